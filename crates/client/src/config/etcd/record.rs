//! A record in etcd that several processes replace: one key, changed by compare-and-swap, and keys below it that are
//! written and removed together with it.
//!
//! ```text
//!   read                             KEY is at revision 57
//!   if KEY is at revision 57:        put KEY, put KEY/a, delete KEY/b     one transaction: all of it or nothing
//! ```
//!
//! A request goes to the endpoint of the connection that is kept, and to each of the others once if that one fails, or
//! has not replied for [`NEXT_ENDPOINT_DELAY`]: one member that is down, or hangs, hides no record, and neither does a
//! proxy in front of one that refuses. The first reply of etcd counts.
//!
//! A write without a reply may have been made, or may be made later, but then only if nothing was written in between.
//! So a write that two endpoints have received is made once: the second one finds another revision.

use super::client::EtcdClient;
use super::location::EtcdLocation;
use crate::Network;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How long an endpoint may take until the next one is asked, too. Connecting to a member whose host is gone takes
/// longer.
const NEXT_ENDPOINT_DELAY: Duration = Duration::from_millis(500);

/// The value of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdValue {
    /// `None` if there is no such key.
    pub text: Option<String>,
    /// The revision of its last change; 0 if there is no such key.
    pub revision: i64,
}

/// Why etcd has not done what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdError {
    /// It does not answer, or cannot now.
    Unavailable(String),
    /// It refuses: the user lacks a permission, or the request is too large.
    Refused(String),
    /// Something else refuses: a proxy, or another program at that port.
    Foreign(String),
}

impl EtcdError {
    /// The same with another text.
    pub(super) fn map(self, change: impl FnOnce(&str) -> String) -> EtcdError {
        match self {
            EtcdError::Unavailable(why) => EtcdError::Unavailable(change(&why)),
            EtcdError::Refused(why) => EtcdError::Refused(change(&why)),
            EtcdError::Foreign(why) => EtcdError::Foreign(change(&why)),
        }
    }
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (EtcdError::Unavailable(why) | EtcdError::Refused(why) | EtcdError::Foreign(why)) = self;
        f.write_str(why)
    }
}

impl From<String> for EtcdError {
    fn from(why: String) -> EtcdError {
        EtcdError::Unavailable(why)
    }
}

impl From<EtcdError> for String {
    fn from(error: EtcdError) -> String {
        error.to_string()
    }
}

/// A record in etcd, and the keys below it. It keeps a connection between two requests.
pub struct EtcdRecord {
    location: EtcdLocation,
    network: Arc<dyn Network>,
    connection: Mutex<RecordConnection>,
}

struct RecordConnection {
    /// `None` after an error, and before the first request.
    client: Option<EtcdClient>,
    /// The number of the endpoint of the next connection.
    endpoint: usize,
}

enum RecordRequest<'a> {
    Read { key: &'a str },
    Replace { revision: i64, text: &'a str, changes: &'a [(&'a str, Option<&'a str>)] },
}

impl EtcdRecord {
    /// The record at `location`; etcd is reached through `network`.
    pub fn new(location: EtcdLocation, network: Arc<dyn Network>) -> EtcdRecord {
        EtcdRecord { location, network, connection: Mutex::new(RecordConnection { client: None, endpoint: 0 }) }
    }

    /// Where it is. This is for logs.
    pub fn location(&self) -> &EtcdLocation {
        &self.location
    }

    /// The record as it is now.
    pub async fn read(&self) -> Result<EtcdValue, EtcdError> {
        self.value(&self.location.key).await
    }

    /// The text of `name` below the record; `None` if there is none.
    pub async fn read_below(&self, name: &str) -> Result<Option<String>, EtcdError> {
        Ok(self.value(&self.key_below(name)).await?.text)
    }

    /// Replaces the record by `text` if its last change was at `revision`, and puts and removes texts below it. Returns
    /// the record as it is then: of another revision and text if another process has changed it.
    pub async fn replace(
        &self,
        revision: i64,
        text: &str,
        puts: &[(String, Arc<str>)],
        removed: &[String],
    ) -> Result<EtcdValue, EtcdError> {
        let below: Vec<(String, Option<&str>)> = puts
            .iter()
            .map(|(name, text)| (self.key_below(name), Some(&**text)))
            .chain(removed.iter().map(|name| (self.key_below(name), None)))
            .collect();
        let mut changes = vec![(&*self.location.key, Some(text))];
        changes.extend(below.iter().map(|(key, text)| (&**key, *text)));
        self.ask(&RecordRequest::Replace { revision, text, changes: &changes }).await
    }

    async fn value(&self, key: &str) -> Result<EtcdValue, EtcdError> {
        self.ask(&RecordRequest::Read { key }).await
    }

    async fn ask(&self, request: &RecordRequest<'_>) -> Result<EtcdValue, EtcdError> {
        let mut connection = self.connection.lock().await;
        let (kept, first) = (connection.client.take(), connection.endpoint);
        let endpoints = self.location.endpoints.len();
        // Of a kept connection, that it fails shows little: etcd, or a proxy, may have closed it meanwhile.
        let kept = kept.map(|client| (first, Some(client)));
        let others = (first..first + endpoints).map(|endpoint| (endpoint, None));
        let mut attempts = kept.into_iter().chain(others).peekable();
        let (mut running, mut failures, mut foreign) = (FuturesUnordered::new(), Vec::new(), 0);
        loop {
            if let Some((endpoint, client)) = attempts.next() {
                running.push(self.ask_once(endpoint, client, request));
            }
            let reply = match attempts.peek() {
                Some(_) => timeout(NEXT_ENDPOINT_DELAY, running.next()).await,
                None => Ok(running.next().await),
            };
            match reply {
                // It may still reply.
                Err(_) => {}
                Ok(None) if foreign == failures.len() => return Err(EtcdError::Foreign(failures.join("; "))),
                Ok(None) => return Err(EtcdError::Unavailable(failures.join("; "))),
                Ok(Some((_, Err(EtcdError::Unavailable(why))))) => failures.push(why),
                Ok(Some((_, Err(EtcdError::Foreign(why))))) => {
                    failures.push(why);
                    foreign += 1;
                }
                Ok(Some((_, Err(refused @ EtcdError::Refused(_))))) => return Err(refused),
                Ok(Some((next, Ok((value, client))))) => {
                    *connection = RecordConnection { client: Some(client), endpoint: next };
                    return Ok(value);
                }
            }
        }
    }

    /// Asks `client`, or else the endpoint with this number. Returns the endpoint of the next connection, and the
    /// client if it has replied: one that was dropped in the middle of a reply is not used again.
    async fn ask_once(
        &self,
        endpoint: usize,
        client: Option<EtcdClient>,
        request: &RecordRequest<'_>,
    ) -> (usize, Result<(EtcdValue, EtcdClient), EtcdError>) {
        let endpoints = &self.location.endpoints;
        let next = if client.is_some() { endpoint } else { (endpoint + 1) % endpoints.len() };
        let asked = async {
            let mut client = match client {
                Some(client) => client,
                None => {
                    let endpoint = &endpoints[endpoint % endpoints.len()];
                    EtcdClient::connect(&*self.network, endpoint, self.location.user.as_ref()).await?
                }
            };
            let value = match request {
                RecordRequest::Read { key } => client.value(key).await?,
                RecordRequest::Replace { revision, text, changes } => {
                    let changed = client.compare_and_change(&self.location.key, *revision, changes).await?;
                    changed
                        .map_or_else(|other| other, |revision| EtcdValue { text: Some((*text).to_owned()), revision })
                }
            };
            Ok((value, client))
        };
        (next, asked.await)
    }

    fn key_below(&self, name: &str) -> String {
        format!("{}/{name}", self.location.key)
    }
}
