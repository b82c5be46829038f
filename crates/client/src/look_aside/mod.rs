//! The application's view of the cache: read, fill on a miss under a lease, delete after a database write (§2, §3.2.1
//! of the paper). Serves a get from its first step to its last.
//!
//! | reply to the lease-get   | effect in [`Client::read`]                                                    |
//! |--------------------------|-------------------------------------------------------------------------------|
//! | hit                      | returns the value                                                             |
//! | miss with a token        | loads from the database, fills under the token                                |
//! | hot miss                 | waits and retries; returns a stale value at once if the caller allows it      |
//! | still hot after the wait | loads, does not fill                                                          |
//! | failure, error line      | loads, does not fill: a failing cache gets no extra load (§3.1)               |
//!
//! A loaded value is returned even if its fill is refused: then the key was deleted in between, and the next reader
//! loads it again.
//!
//! The servers must know leases (`lease-get`): a plain memcached replies with an error line, and nothing is ever
//! filled.
//!
//! Deliberately absent: serialization and compression (values are bytes), and the choice of a server: any [`Route`]
//! will do, a tree of routes or one destination that is a router.

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

/// Smaller values are copied, so that they do not keep their block of [`crate::READ_BYTES`] in memory.
const SLICE_BYTES_MIN: usize = crate::READ_BYTES / 8;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// The key is invalid; nothing was sent.
    BadKey(KeyError),
    /// No server replied.
    Failed(Failure),
    /// A server replied with an error line.
    Refused {
        /// Its message.
        why: String,
    },
    /// A server's reply was not one of the operation's.
    Unexpected {
        /// The operation.
        operation: &'static str,
    },
}

impl std::error::Error for ClientError {}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::BadKey(error) => write!(f, "bad key: {error}"),
            ClientError::Failed(failure) => write!(f, "no reply from the cache: {failure}"),
            ClientError::Refused { why } => write!(f, "the cache refused: {why}"),
            ClientError::Unexpected { operation } => write!(f, "unexpected reply to {operation}"),
        }
    }
}

/// The result of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillOutcome {
    /// Stored.
    Stored,
    /// The lease was void because of a delete in between: not stored, or only as a stale value.
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
    counters: Arc<ClientCounters>,
}

impl Client {
    /// A client that sends its requests to `route`.
    pub fn new(route: Arc<dyn Route>) -> Client {
        Client::with_context(route, Context::default())
    }

    /// A client that passes `context` to the route, for routes that choose replicas by it (§3.2.3).
    pub fn with_context(route: Arc<dyn Route>, context: Context) -> Client {
        Client { route, context, counters: Arc::default() }
    }

    /// The counters of this client and its clones.
    pub fn statistics(&self) -> ClientStatistics {
        self.counters.snapshot()
    }

    /// Looks up one key. On a miss the caller may hold the lease, and then should [`Client::fill`]; [`Client::read`]
    /// does both.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Lookup, ClientError> {
        let mut lookups = self.get_many(&[key]).await?;
        lookups.pop().expect("one lookup per key")
    }

    /// Looks up keys together: one lookup or error for each, in order. If a key is invalid, the call fails and
    /// nothing is sent.
    pub async fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Result<Lookup, ClientError>>, ClientError> {
        let keys = check_and_copy_keys(keys).map_err(ClientError::BadKey)?;
        Ok(self.look_up(&keys).await)
    }

    /// Stores a loaded value if the lease is still valid.
    pub async fn fill(
        &self,
        key: impl AsRef<[u8]>,
        token: LeaseToken,
        value: impl Into<Bytes>,
        flags: u32,
        exptime: i64,
    ) -> Result<FillOutcome, ClientError> {
        let key = check_and_copy_key(key.as_ref()).map_err(ClientError::BadKey)?;
        let request = Request { key, operation: Operation::LeaseSet { token, flags, exptime, value: value.into() } };
        let mut fills = self.fill_all(vec![request]).await;
        fills.pop().expect("one result per request")
    }

    /// Stores a value unconditionally. A set without a lease can overwrite a newer value with an older one: for data
    /// of a database prefer [`Client::read`] and [`Client::delete`].
    pub async fn set(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        flags: u32,
        exptime: i64,
    ) -> Result<(), ClientError> {
        let operation = Operation::Store { mode: StoreMode::Set, flags, exptime, value: value.into(), cas: false };
        match self.send_one(key.as_ref(), operation).await? {
            Reply::Stored => Ok(()),
            other => Err(self.count_error(unexpected("set", Ok(other)))),
        }
    }

    /// Deletes a key and voids its lease, after a database write: this client's next read is not older than the
    /// write. Returns whether there was a value. The invalidator deletes the key as well, once it has read the commit
    /// log: after an error here, a stale value lives for moments, not permanently.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, ClientError> {
        match self.send_one(key.as_ref(), Operation::Delete { hold_off_ms: 0 }).await? {
            Reply::Deleted => Ok(true),
            Reply::NotFound => Ok(false),
            other => Err(self.count_error(unexpected("delete", Ok(other)))),
        }
    }

    /// Sends a lease-get of valid keys.
    async fn look_up(&self, keys: &[Bytes]) -> Vec<Result<Lookup, ClientError>> {
        let batch = keys.iter().map(|key| Request { key: key.clone(), operation: Operation::LeaseGet }).collect();
        self.counters.gets.add(keys.len() as u64);
        let outcomes = self.send(batch).await;
        let lookups = outcomes.into_iter().map(|outcome| {
            let lookup = to_lookup(outcome);
            self.count_lookup(&lookup);
            lookup
        });
        lookups.collect()
    }

    /// Sends lease-sets of valid keys.
    async fn fill_all(&self, batch: Batch) -> Vec<Result<FillOutcome, ClientError>> {
        let outcomes = self.send(batch).await;
        let fills = outcomes.into_iter().map(|outcome| match outcome {
            Ok(Reply::Stored) => {
                self.counters.fills.add(1);
                Ok(FillOutcome::Stored)
            }
            Ok(Reply::NotStored | Reply::StaleStored) => {
                self.counters.fills_refused.add(1);
                Ok(FillOutcome::Refused)
            }
            other => Err(self.count_error(unexpected("lease-set", other))),
        });
        fills.collect()
    }

    async fn send_one(&self, key: &[u8], operation: Operation<Bytes>) -> Result<Reply<Bytes>, ClientError> {
        let key = check_and_copy_key(key).map_err(ClientError::BadKey)?;
        let outcome = self.send(vec![Request { key, operation }]).await.pop();
        outcome.expect("one outcome per request").map_err(|failure| self.count_error(ClientError::Failed(failure)))
    }

    async fn send(&self, batch: Batch) -> Outcomes {
        let requests = batch.len();
        let outcomes = self.route.route(batch, &self.context).await;
        assert_eq!(outcomes.len(), requests, "a route returns one outcome per request");
        outcomes
    }

    fn count_lookup(&self, lookup: &Result<Lookup, ClientError>) {
        match lookup {
            Ok(Lookup::Hit { .. }) => self.counters.hits.add(1),
            Ok(Lookup::Stale { .. }) => {
                self.counters.misses.add(1);
                self.counters.stale.add(1);
            }
            Ok(Lookup::Miss { .. }) => self.counters.misses.add(1),
            Err(_) => self.counters.errors.add(1),
        }
    }

    fn count_error(&self, error: ClientError) -> ClientError {
        self.counters.errors.add(1);
        error
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("context", &self.context).finish_non_exhaustive()
    }
}

fn to_lookup(outcome: Outcome) -> Result<Lookup, ClientError> {
    match outcome {
        Ok(Reply::Value { flags, value, .. }) => Ok(Lookup::Hit { value: copy_if_small(value), flags }),
        Ok(Reply::Lease { token, flags, stale: Some(stale) }) => {
            Ok(Lookup::Stale { value: copy_if_small(stale), flags, lease: Lease::from(token) })
        }
        Ok(Reply::Lease { token, stale: None, .. }) => Ok(Lookup::Miss { lease: Lease::from(token) }),
        Ok(Reply::Miss) => Ok(Lookup::Miss { lease: Lease::Unsupported }),
        other => Err(unexpected("lease-get", other)),
    }
}

fn unexpected(operation: &'static str, outcome: Outcome) -> ClientError {
    match outcome {
        Err(failure) => ClientError::Failed(failure),
        Ok(Reply::Error(ErrorReply::Unknown)) => ClientError::Refused { why: format!("it does not know {operation}") },
        Ok(Reply::Error(error)) => ClientError::Refused { why: error.to_string() },
        Ok(_) => ClientError::Unexpected { operation },
    }
}

fn copy_if_small(value: Bytes) -> Bytes {
    if value.len() < SLICE_BYTES_MIN { Bytes::copy_from_slice(&value) } else { value }
}

fn check_and_copy_key(key: &[u8]) -> Result<Bytes, KeyError> {
    check_key(key)?;
    Ok(Bytes::copy_from_slice(key))
}

/// Checks the keys, and copies them into one allocation.
fn check_and_copy_keys<K: AsRef<[u8]>>(keys: &[K]) -> Result<Vec<Bytes>, KeyError> {
    let mut all = BytesMut::with_capacity(keys.iter().map(|key| key.as_ref().len()).sum());
    for key in keys {
        check_key(key.as_ref())?;
        all.extend_from_slice(key.as_ref());
    }
    let mut all = all.freeze();
    Ok(keys.iter().map(|key| all.split_to(key.as_ref().len())).collect())
}
