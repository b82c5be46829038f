//! etcd's JSON gateway: the questions that a watched configuration needs, over HTTP/1.1. Keys, values and names of users
//! travel in base64, revisions as strings of digits, and what is zero or empty is left out.
//!
//! | question | answer |
//! |---|---|
//! | `POST /v3/auth/authenticate` | a token, for the header `Authorization` of what follows |
//! | `POST /v3/kv/range` | the key's value, and the revision of the whole store at which it was that |
//! | `POST /v3/watch` | a line of JSON for each batch of changes, for as long as the connection lasts |

use super::location::EtcdUser;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::BytesMut;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use lookaside_client::Network;
use lookaside_routing::Address;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// How long connecting, and each answer, may take: etcd promises an election within a few seconds.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(3);
/// The longest answer, or line of a watch. etcd takes values of 1.5 MiB unless told otherwise; base64 adds a third.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Asks a member of etcd to end the watch when it has lost the others: it would hear of nothing.
const NEEDS_LEADER: &str = "grpc-metadata-hasleader";

/// A connection to one member of etcd.
pub(super) struct Gateway {
    endpoint: Address,
    sender: SendRequest<Full<Bytes>>,
    token: Option<String>,
    _driver: Driver,
}

/// The task that moves a connection's bytes; it ends with the connection's owner.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The key at a moment.
#[derive(Debug)]
pub(super) struct Found {
    /// `None` where the key is not there.
    pub(super) value: Option<Vec<u8>>,
    /// The store's revision at that moment.
    pub(super) revision: i64,
}

/// What a watch tells.
#[derive(Debug)]
pub(super) enum News {
    /// The last of some changes to the key.
    Changed(Found),
    /// etcd ends the watch: the revision it was to start from is no longer kept, or the user may not watch.
    Ended(String),
    /// Nothing that concerns the key.
    Nothing,
}

impl Gateway {
    /// Connects, and logs in where there is a user.
    pub(super) async fn connect(
        network: &dyn Network,
        endpoint: &Address,
        user: Option<&EtcdUser>,
    ) -> Result<Gateway, String> {
        let connecting = async {
            let stream = network.connect(endpoint).await.map_err(|error| error.to_string())?;
            handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())
        };
        let (sender, connection) = within(connecting).await.map_err(|why| format!("{endpoint}: {why}"))?;
        let driver = tokio::spawn(async move {
            // Who has asked something is told of the end itself.
            let _ = connection.await;
        });
        let driver = Driver(driver.abort_handle());
        let mut gateway = Gateway { endpoint: endpoint.clone(), sender, token: None, _driver: driver };
        if let Some(user) = user {
            gateway.authenticate(user).await?;
        }
        Ok(gateway)
    }

    async fn authenticate(&mut self, user: &EtcdUser) -> Result<(), String> {
        #[derive(Deserialize)]
        struct Answer {
            token: String,
        }
        let body = json!({ "name": user.name, "password": user.password });
        let answer: Answer = self.ask("/v3/auth/authenticate", &body).await?;
        self.token = Some(answer.token);
        Ok(())
    }

    /// Reads the key. The answer is the whole cluster's: a member that has lost the others gives none.
    pub(super) async fn range(&mut self, key: &str) -> Result<Found, String> {
        let answer: Range = self.ask("/v3/kv/range", &json!({ "key": BASE64.encode(key) })).await?;
        let value = answer.kvs.into_iter().next().map(|kv| self.decoded(&kv.value)).transpose()?;
        Ok(Found { value, revision: answer.header.revision()? })
    }

    /// Watches the key from `revision` on. Nothing more can be asked on this connection.
    pub(super) async fn watch(mut self, key: &str, revision: i64) -> Result<Watch, String> {
        let body = json!({ "create_request": { "key": BASE64.encode(key), "start_revision": revision.to_string() } });
        let response = within(self.post("/v3/watch", &body)).await.map_err(|why| self.blame(&why))?;
        let mut watch = Watch { gateway: self, body: response.into_body(), read: BytesMut::new() };
        // The first line says that the watch has begun.
        match within(watch.next()).await? {
            News::Ended(why) => Err(why),
            _ => Ok(watch),
        }
    }

    async fn ask<T: DeserializeOwned>(&mut self, path: &str, body: &serde_json::Value) -> Result<T, String> {
        let asked = async {
            let mut body = self.post(path, body).await?.into_body();
            let mut answer = BytesMut::new();
            while let Some(piece) = next_piece(&mut body).await? {
                answer.extend_from_slice(&piece);
                check_length(&answer)?;
            }
            serde_json::from_slice(&answer).map_err(|error| format!("the answer is not etcd's: {error}"))
        };
        within(asked).await.map_err(|why| self.blame(&why))
    }

    async fn post(&mut self, path: &str, body: &serde_json::Value) -> Result<Response<Incoming>, String> {
        let mut request = Request::post(path)
            .header(HOST, &*self.endpoint.0)
            .header(CONTENT_TYPE, "application/json")
            .header(NEEDS_LEADER, "true");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Full::from(body.to_string())).map_err(|error| error.to_string())?;
        // Behind an answer the connection may need a turn until it takes the next question.
        self.sender.ready().await.map_err(|error| error.to_string())?;
        let response = self.sender.send_request(request).await.map_err(|error| error.to_string())?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status => Err(refusal(status, response.into_body()).await),
        }
    }

    fn decoded(&self, value: &str) -> Result<Vec<u8>, String> {
        BASE64.decode(value).map_err(|error| self.blame(&format!("a value that is no base64: {error}")))
    }

    fn blame(&self, why: &str) -> String {
        format!("{}: {why}", self.endpoint)
    }
}

/// A watch under way.
pub(super) struct Watch {
    gateway: Gateway,
    body: Incoming,
    read: BytesMut,
}

impl Watch {
    /// The next line. Nothing is lost where the future is dropped. The error is the connection's end.
    pub(super) async fn next(&mut self) -> Result<News, String> {
        loop {
            if let Some(end) = self.read.iter().position(|&byte| byte == b'\n') {
                let line = self.read.split_to(end + 1);
                return self.news(&line);
            }
            check_length(&self.read).map_err(|why| self.gateway.blame(&why))?;
            match next_piece(&mut self.body).await {
                Ok(Some(piece)) => self.read.extend_from_slice(&piece),
                Ok(None) => return Err(self.gateway.blame("the watch has ended")),
                Err(why) => return Err(self.gateway.blame(&why)),
            }
        }
    }

    fn news(&self, line: &[u8]) -> Result<News, String> {
        let blame = |why: &str| self.gateway.blame(why);
        let line: WatchLine =
            serde_json::from_slice(line).map_err(|error| blame(&format!("the watch is not etcd's: {error}")))?;
        let result = match (line.result, line.error) {
            (Some(result), None) => result,
            (_, Some(error)) => return Ok(News::Ended(blame(&error.to_string()))),
            (None, None) => return Ok(News::Nothing),
        };
        if result.canceled {
            let why = match result.compact_revision {
                Some(revision) => format!("what came before revision {revision} is compacted"),
                None => result.cancel_reason,
            };
            return Ok(News::Ended(blame(&format!("the watch is canceled: {why}"))));
        }
        let Some(event) = result.events.into_iter().last() else { return Ok(News::Nothing) };
        let is_put = event.kind.is_empty() || event.kind == "PUT";
        let value = is_put.then(|| self.gateway.decoded(&event.kv.value)).transpose()?;
        Ok(News::Changed(Found { value, revision: result.header.revision()? }))
    }
}

#[derive(Deserialize)]
struct Range {
    header: Header,
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Default, Deserialize)]
struct Header {
    #[serde(default)]
    revision: String,
}

impl Header {
    fn revision(&self) -> Result<i64, String> {
        self.revision.parse().map_err(|_| format!("the answer is not etcd's: the revision is {:?}", self.revision))
    }
}

#[derive(Default, Deserialize)]
struct KeyValue {
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
struct WatchLine {
    result: Option<WatchResult>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct WatchResult {
    #[serde(default)]
    header: Header,
    #[serde(default)]
    canceled: bool,
    #[serde(default)]
    cancel_reason: String,
    compact_revision: Option<String>,
    #[serde(default)]
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    kv: KeyValue,
}

async fn within<T>(what: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout(ANSWER_MAX, what).await.unwrap_or_else(|_| Err(format!("no answer within {ANSWER_MAX:?}")))
}

async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, String> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(error)) => return Err(error.to_string()),
            Some(Ok(frame)) => {
                if let Ok(piece) = frame.into_data() {
                    return Ok(Some(piece));
                }
            }
        }
    }
}

fn check_length(answer: &BytesMut) -> Result<(), String> {
    match answer.len() <= ANSWER_BYTES_MAX {
        true => Ok(()),
        false => Err(format!("an answer of more than {ANSWER_BYTES_MAX} bytes")),
    }
}

/// Why etcd refuses, in its words.
async fn refusal(status: StatusCode, mut body: Incoming) -> String {
    let first = next_piece(&mut body).await.ok().flatten().unwrap_or_default();
    let words: Option<serde_json::Map<String, serde_json::Value>> = serde_json::from_slice(&first).ok();
    let word = |name: &str| words.as_ref()?.get(name)?.as_str().map(str::to_owned);
    word("message").or_else(|| word("error")).unwrap_or_else(|| format!("etcd answers {status}"))
}
