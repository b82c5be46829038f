//! The application's view of the cache: read, fill on a miss under a lease, delete after a database write (§2, §3.2.1
//! of the paper). Serves a get from its first step to its last.
//!
//! | answer to the lease-get  | what [`Client::read`] does                                                       |
//! |--------------------------|----------------------------------------------------------------------------------|
//! | hit                      | takes it                                                                         |
//! | miss with a token        | loads from the database, fills under the token                                   |
//! | hot miss                 | waits a little and asks again; takes a stale value at once if the caller allows  |
//! | still hot after the wait | loads, does not fill                                                             |
//! | failure, error line      | loads, does not fill: an ailing cache gets no extra load (§3.1)                   |
//!
//! A value that was loaded is returned whatever becomes of its fill: a refused fill means that a delete came between,
//! and that the next reader will load anew.
//!
//! The servers must know leases (`lease-get`): a plain memcached answers with an error line, and nothing is ever filled.
//!
//! Absent on purpose: codecs and compression (values are bytes), and where a key goes: any [`Route`] will do, a tree
//! down to servers or one destination that is a router.

mod lease;
mod read_through;
mod stats;

pub use lease::{Lease, Lookup};
pub use read_through::{HOT_MISS_DELAY_MS_MAX, HOT_MISS_DELAY_MS_MIN, Origin, ReadError, ReadOptions, Value};
pub use stats::ClientStatistics;

use bytes::{Bytes, BytesMut};
use lookaside_protocol::{ErrorReply, KeyError, LeaseToken, Operation, Reply, Request, StoreMode, check_key};
use lookaside_routing::{Batch, Context, Failure, Outcome, Outcomes, Route};
use stats::ClientCounters;
use std::{fmt, sync::Arc};

/// Values below this are copied out of the block that they were read in, in bytes: an application that keeps a small
/// value keeps no block of [`crate::READ_BYTES`] with it.
const SLICE_BYTES_MIN: usize = crate::READ_BYTES / 8;

/// Why an operation brought no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// This cannot be a key; nothing was sent.
    BadKey(KeyError),
    /// No server answered.
    Failed(Failure),
    /// A server answered with an error line.
    Refused {
        /// What it said.
        why: String,
    },
    /// A server answered, but not to what was asked.
    Unexpected {
        /// What was asked.
        asked: &'static str,
    },
}

impl std::error::Error for ClientError {}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::BadKey(error) => write!(f, "bad key: {error}"),
            ClientError::Failed(failure) => write!(f, "no answer from the cache: {failure}"),
            ClientError::Refused { why } => write!(f, "the cache refused: {why}"),
            ClientError::Unexpected { asked } => write!(f, "the cache's answer is none to a {asked}"),
        }
    }
}

/// What came of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillOutcome {
    /// Stored.
    Stored,
    /// The lease was void, because a delete came between: not stored, or only as a stale value.
    Refused,
}

/// A look-aside client. Cheap to clone; clones share everything.
///
/// ```no_run
/// # async fn example(route: std::sync::Arc<dyn lookaside_routing::Route>) -> Result<(), Box<dyn std::error::Error>> {
/// use lookaside_client::{Client, ReadOptions};
/// let client = Client::new(route);
/// let options = ReadOptions::default();
/// let user = client.read("user:42", &options, || async {
///     // SELECT name FROM user WHERE id = 42
///     Ok::<_, std::io::Error>("alice".into())
/// });
/// println!("{:?}", user.await?.value);
/// // UPDATE user SET name = 'bob' WHERE id = 42; COMMIT; and then:
/// client.delete("user:42").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    route: Arc<dyn Route>,
    context: Context,
    pub(crate) counters: Arc<ClientCounters>,
}

impl Client {
    /// A client whose requests take this route.
    pub fn new(route: Arc<dyn Route>) -> Client {
        Client::with_context(route, Context::default())
    }

    /// A client that tells the route who it is, for routes that choose replicas by it (§3.2.3).
    pub fn with_context(route: Arc<dyn Route>, context: Context) -> Client {
        Client { route, context, counters: Arc::default() }
    }

    /// What has happened so far, over all clones.
    pub fn statistics(&self) -> ClientStatistics {
        self.counters.snapshot()
    }

    /// Looks one key up. On a miss the caller may hold the lease, and then should [`Client::fill`]:
    /// [`Client::read`] does all of it.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Lookup, ClientError> {
        let mut lookups = self.get_many(&[key]).await?;
        lookups.pop().expect("one lookup a key")
    }

    /// Looks keys up together: one lookup or error each, in order. Fails as a whole, and before anything is sent,
    /// when one cannot be a key.
    pub async fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Result<Lookup, ClientError>>, ClientError> {
        let keys = checked_keys(keys).map_err(ClientError::BadKey)?;
        Ok(self.look_up(&keys).await)
    }

    /// Stores what was loaded, if the lease still holds.
    pub async fn fill(
        &self,
        key: impl AsRef<[u8]>,
        token: LeaseToken,
        value: impl Into<Bytes>,
        flags: u32,
        exptime: i64,
    ) -> Result<FillOutcome, ClientError> {
        let key = checked_key(key.as_ref()).map_err(ClientError::BadKey)?;
        let request = Request { key, operation: Operation::LeaseSet { token, flags, exptime, value: value.into() } };
        let mut filled = self.fill_all(vec![request]).await;
        filled.pop().expect("one result a request")
    }

    /// Stores a value whatever was there. A set without a lease can overwrite a newer value with an older one: for
    /// what a database holds, prefer [`Client::read`] and [`Client::delete`].
    pub async fn set(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        flags: u32,
        exptime: i64,
    ) -> Result<(), ClientError> {
        let operation = Operation::Store { mode: StoreMode::Set, flags, exptime, value: value.into() };
        match self.ask_one(key.as_ref(), operation).await? {
            Reply::Stored => Ok(()),
            other => Err(self.failed(unexpected("set", Ok(other)))),
        }
    }

    /// Deletes a key and voids its lease, after a database write: what this client reads next is not older than what
    /// it wrote. Says whether a value was there. Other clusters learn of the write from the commit log, so that an
    /// error here leaves a stale value for moments, not for good.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, ClientError> {
        match self.ask_one(key.as_ref(), Operation::Delete { hold_off_ms: 0 }).await? {
            Reply::Deleted => Ok(true),
            Reply::NotFound => Ok(false),
            other => Err(self.failed(unexpected("delete", Ok(other)))),
        }
    }

    /// A lease-get of keys that have been checked.
    pub(crate) async fn look_up(&self, keys: &[Bytes]) -> Vec<Result<Lookup, ClientError>> {
        let batch = keys.iter().map(|key| Request { key: key.clone(), operation: Operation::LeaseGet }).collect();
        self.counters.gets(keys.len());
        let outcomes = self.send(batch).await;
        let lookups = outcomes.into_iter().map(|outcome| {
            let lookup = lookup(outcome);
            self.counters.lookup(&lookup);
            lookup
        });
        lookups.collect()
    }

    /// Sends lease-sets of keys that have been checked.
    pub(crate) async fn fill_all(&self, batch: Batch) -> Vec<Result<FillOutcome, ClientError>> {
        let outcomes = self.send(batch).await;
        let filled = outcomes.into_iter().map(|outcome| {
            let filled = match outcome {
                Ok(Reply::Stored) => Ok(FillOutcome::Stored),
                Ok(Reply::NotStored | Reply::StaleStored) => Ok(FillOutcome::Refused),
                other => Err(unexpected("lease-set", other)),
            };
            self.counters.filled(&filled);
            filled
        });
        filled.collect()
    }

    async fn ask_one(&self, key: &[u8], operation: Operation<Bytes>) -> Result<Reply<Bytes>, ClientError> {
        let key = checked_key(key).map_err(ClientError::BadKey)?;
        let outcome = self.send(vec![Request { key, operation }]).await.pop();
        outcome.expect("one outcome a request").map_err(|failure| self.failed(ClientError::Failed(failure)))
    }

    async fn send(&self, batch: Batch) -> Outcomes {
        let requests = batch.len();
        let outcomes = self.route.route(batch, &self.context).await;
        assert_eq!(outcomes.len(), requests, "a route gives one outcome a request");
        outcomes
    }

    fn failed(&self, error: ClientError) -> ClientError {
        self.counters.error();
        error
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("context", &self.context).finish_non_exhaustive()
    }
}

fn lookup(outcome: Outcome) -> Result<Lookup, ClientError> {
    match outcome {
        Ok(Reply::Value { flags, value, .. }) => Ok(Lookup::Hit { value: own(value), flags }),
        Ok(Reply::Lease { token, flags, stale: Some(stale) }) => {
            Ok(Lookup::Stale { value: own(stale), flags, lease: Lease::from(token) })
        }
        Ok(Reply::Lease { token, stale: None, .. }) => Ok(Lookup::Miss { lease: Lease::from(token) }),
        Ok(Reply::Miss) => Ok(Lookup::Miss { lease: Lease::Unsupported }),
        other => Err(unexpected("lease-get", other)),
    }
}

fn unexpected(asked: &'static str, outcome: Outcome) -> ClientError {
    match outcome {
        Err(failure) => ClientError::Failed(failure),
        Ok(Reply::Error(ErrorReply::Unknown)) => ClientError::Refused { why: format!("it does not know {asked}") },
        Ok(Reply::Error(ErrorReply::Client(why) | ErrorReply::Server(why))) => {
            ClientError::Refused { why: String::from_utf8_lossy(&why).into_owned() }
        }
        Ok(_) => ClientError::Unexpected { asked },
    }
}

/// The value without the block that it was read in, when it is small.
fn own(value: Bytes) -> Bytes {
    if value.len() < SLICE_BYTES_MIN { Bytes::copy_from_slice(&value) } else { value }
}

pub(crate) fn checked_key(key: &[u8]) -> Result<Bytes, KeyError> {
    check_key(key)?;
    Ok(Bytes::copy_from_slice(key))
}

/// All keys, held in one allocation.
pub(crate) fn checked_keys<K: AsRef<[u8]>>(keys: &[K]) -> Result<Vec<Bytes>, KeyError> {
    let mut all = BytesMut::with_capacity(keys.iter().map(|key| key.as_ref().len()).sum());
    for key in keys {
        check_key(key.as_ref())?;
        all.extend_from_slice(key.as_ref());
    }
    let mut all = all.freeze();
    Ok(keys.iter().map(|key| all.split_to(key.as_ref().len())).collect())
}
