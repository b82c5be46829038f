//! The application's client: how it is set up, its lookups and fills. Whole reads are in `read_through` and `plan`,
//! sets, deletes and the other updates in `updates`.

use super::{
    batcher::Batcher,
    error::{ClientError, unexpected},
    hedge::{HedgeSettings, HedgedSender},
    lease::{Lookup, to_lookup},
    lookup::Sender,
    stats::{CallCounters, ClientStatistics},
};
use crate::values::Encoded;
use bytes::{Bytes, BytesMut};
use lookaside_protocol::{KeyError, LeaseToken, Operation, Reply, Request, check_key};
use lookaside_routing::{Batch, Context, Outcomes, Route};
use std::{fmt, sync::Arc, time::Duration};
use tokio::time::timeout;

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
    pub(super) lookups: HedgedSender,
    /// `None` if every lookup is sent by itself.
    pub(super) batcher: Option<Arc<Batcher>>,
    /// `None` if calls have no deadline.
    deadline: Option<Duration>,
    pub(super) counters: CallCounters,
}

impl Client {
    /// A client that sends its requests to `route`.
    pub fn new(route: Arc<dyn Route>) -> Client {
        Client::with_context(route, Context::default())
    }

    /// A client that passes `context` to the route, for routes that choose replicas by it (§3.2.3).
    pub fn with_context(route: Arc<dyn Route>, context: Context) -> Client {
        let lookups = HedgedSender::new(Sender { route, context });
        Client { lookups, batcher: None, deadline: None, counters: CallCounters::default() }
    }

    /// A client whose lookups, and those of its clones, travel together if their tasks are ready at the same time; a
    /// key that several of them ask for travels once. It costs a task and a turn of the scheduler for each batch, and
    /// pays where many tasks look up at once. Plain gets, those of [`TypedClient::get`](crate::TypedClient::get), are
    /// sent by themselves: where leases are taken for them, each needs a miss of its own for the set that follows it.
    pub fn with_batching(self) -> Client {
        Client { batcher: Some(Arc::new(Batcher::new(self.lookups.clone()))), ..self }
    }

    /// A client whose late lookups are sent to `replicas` as well, those of [`Client::get`], [`Client::read`] and
    /// plans; the first answer counts. `replicas` must get all deletes that this client's route gets, and should not be
    /// the same server. A key that is also changed by [`Client::set`] or another update without a delete may be looked
    /// up only if `replicas` get these updates, too. The same holds for all keys of plain gets, those of
    /// [`TypedClient::get`](crate::TypedClient::get), which are hedged only with [`HedgeSettings::plain_gets`].
    pub fn with_hedging(self, replicas: Arc<dyn Route>, settings: HedgeSettings) -> Client {
        let is_batching = self.batcher.is_some();
        let client = Client { lookups: self.lookups.with_hedging(replicas, settings), ..self };
        if is_batching { client.with_batching() } else { client }
    }

    /// A client whose calls end after `deadline` at the latest, loading included, with
    /// [`ClientError::DeadlineExceeded`] or [`ReadError::DeadlineExceeded`](crate::ReadError::DeadlineExceeded). The
    /// leases of such a call are released in the background, so that the next reader need not wait for them to expire.
    ///
    /// ```
    /// # async fn example(client: lookaside_client::Client) {
    /// use std::time::Duration;
    /// let lookup = client.clone().with_deadline(Duration::from_millis(50)).get("user:42").await;
    /// # }
    /// ```
    pub fn with_deadline(self, deadline: Duration) -> Client {
        Client { deadline: Some(deadline), ..self }
    }

    /// A client with counters of its own, for a call or a page. What it counts, this client counts too.
    ///
    /// ```
    /// # async fn example(client: lookaside_client::Client) {
    /// let page = client.with_own_statistics();
    /// let _ = page.get_many(&["user:42", "user:43"]).await;
    /// assert_eq!(page.statistics().round_trips, 1);
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example(
    /// #     lookaside_client::Client::new(std::sync::Arc::new(lookaside_routing::NullRoute))
    /// # ));
    /// ```
    pub fn with_own_statistics(&self) -> Client {
        Client { counters: self.counters.nested(), ..self.clone() }
    }

    /// A client for requests to another route, with the same deadline and counters.
    pub(super) fn with_route(&self, route: Arc<dyn Route>) -> Client {
        let context = self.lookups.sender().context.clone();
        Client { lookups: HedgedSender::new(Sender { route, context }), batcher: None, ..self.clone() }
    }

    /// Where requests go.
    pub(super) fn route(&self) -> Arc<dyn Route> {
        self.lookups.sender().route.clone()
    }

    /// The counters of this client and its clones.
    pub fn statistics(&self) -> ClientStatistics {
        self.counters.snapshot()
    }

    /// Looks up one key. On a miss the caller may hold the lease, and then should [`Client::fill`] or
    /// [`Client::release`]; [`Client::read`] does all of it. [`ClientError::DatagramLost`] is a miss, too, without a
    /// lease.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Lookup, ClientError> {
        let mut lookups = self.get_many(&[key]).await?;
        lookups.pop().expect("one lookup per key")
    }

    /// Looks up keys together: one lookup or error for each, in order. If a key is invalid, the call fails and
    /// nothing is sent.
    pub async fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Result<Lookup, ClientError>>, ClientError> {
        let keys = check_and_copy_keys(keys).map_err(ClientError::BadKey)?;
        self.limit(self.look_up(keys)).await.ok_or(ClientError::DeadlineExceeded)
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
        let mut fills = self.limit(self.fill_all(vec![request])).await.ok_or(ClientError::DeadlineExceeded)?;
        fills.pop().expect("one result per request")
    }

    /// Gives back the lease of a miss that is not going to be filled, so that the next client that misses the key need
    /// not wait until it expires. Nothing happens if it is void, or was used.
    pub async fn release(&self, key: impl AsRef<[u8]>, token: LeaseToken) -> Result<(), ClientError> {
        let key = check_and_copy_key(key.as_ref()).map_err(ClientError::BadKey)?;
        let released = self.limit(self.lookups.sender().clone().release(vec![(key, token)])).await;
        released.ok_or(ClientError::DeadlineExceeded)
    }

    /// Live values with their flags, without leases; `None` for misses.
    pub(super) async fn get_live<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Result<Option<Encoded>, ClientError>>, ClientError> {
        let keys = check_and_copy_keys(keys).map_err(ClientError::BadKey)?;
        let count = keys.len();
        self.counters.add(|counters| &counters.gets, count as u64);
        self.counters.add(|counters| &counters.round_trips, 1);
        let outcomes = self.limit(self.lookups.get(keys, &self.counters)).await;
        let outcomes = outcomes.ok_or(ClientError::DeadlineExceeded)?;
        assert_eq!(outcomes.len(), count, "a route returns one outcome per request");
        let found = outcomes.into_iter().map(|outcome| {
            let lookup = match outcome {
                Ok(Reply::Value { .. } | Reply::Miss) => to_lookup(outcome),
                other => Err(unexpected("get", other)),
            };
            self.count_lookup(&lookup);
            match lookup? {
                Lookup::Hit { value, flags } => Ok(Some(Encoded { value, flags })),
                Lookup::Stale { .. } | Lookup::Miss { .. } => Ok(None),
            }
        });
        Ok(found.collect())
    }

    /// Sends a lease-get of valid keys. What is dropped before it is ready lets its leases go.
    pub(super) async fn look_up(&self, keys: Vec<Bytes>) -> Vec<Result<Lookup, ClientError>> {
        if keys.is_empty() {
            return Vec::new();
        }
        self.counters.add(|counters| &counters.gets, keys.len() as u64);
        let lookups = match &self.batcher {
            Some(batcher) => batcher.look_up(keys, &self.counters).await,
            None => {
                self.counters.add(|counters| &counters.round_trips, 1);
                let outcomes = self.lookups.look_up(keys, &self.counters).await;
                outcomes.into_iter().map(to_lookup).collect()
            }
        };
        lookups.iter().for_each(|lookup| self.count_lookup(lookup));
        lookups
    }

    /// Sends lease-sets of valid keys.
    pub(super) async fn fill_all(&self, batch: Batch) -> Vec<Result<FillOutcome, ClientError>> {
        let outcomes = self.send(batch).await;
        let fills = outcomes.into_iter().map(|outcome| match outcome {
            Ok(Reply::Stored) => {
                self.counters.add(|counters| &counters.fills, 1);
                Ok(FillOutcome::Stored)
            }
            Ok(Reply::NotStored | Reply::StaleStored) => {
                self.counters.add(|counters| &counters.fills_refused, 1);
                Ok(FillOutcome::Refused)
            }
            other => Err(self.count_error(unexpected("lease-set", other))),
        });
        fills.collect()
    }

    pub(super) async fn send(&self, batch: Batch) -> Outcomes {
        let Sender { route, context } = self.lookups.sender();
        let (requests, written) = (batch.len(), batch.iter().map(value_bytes).sum::<usize>());
        self.counters.add(|counters| &counters.round_trips, 1);
        self.counters.add(|counters| &counters.bytes_written, written as u64);
        let outcomes = route.route(batch, context).await;
        assert_eq!(outcomes.len(), requests, "a route returns one outcome per request");
        outcomes
    }

    /// Waits until the deadline of a call; `None` if it has passed.
    pub(super) async fn limit<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        let Some(deadline) = self.deadline else { return Some(call.await) };
        let ended = timeout(deadline, call).await.ok();
        if ended.is_none() {
            self.counters.add(|counters| &counters.deadlines_exceeded, 1);
        }
        ended
    }

    fn count_lookup(&self, lookup: &Result<Lookup, ClientError>) {
        match lookup {
            Ok(Lookup::Hit { value, .. }) => {
                self.counters.add(|counters| &counters.hits, 1);
                self.counters.add(|counters| &counters.bytes_read, value.len() as u64);
            }
            Ok(Lookup::Stale { value, .. }) => {
                self.counters.add(|counters| &counters.misses, 1);
                self.counters.add(|counters| &counters.stale, 1);
                self.counters.add(|counters| &counters.bytes_read, value.len() as u64);
            }
            Ok(Lookup::Miss { .. }) => self.counters.add(|counters| &counters.misses, 1),
            Err(_) => self.counters.add(|counters| &counters.errors, 1),
        }
    }

    pub(super) fn count_error(&self, error: ClientError) -> ClientError {
        self.counters.add(|counters| &counters.errors, 1);
        error
    }

    pub(super) fn count_loads(&self, keys: usize) {
        self.counters.add(|counters| &counters.loads, keys as u64);
    }

    pub(super) fn count_undecodable(&self) {
        self.counters.add(|counters| &counters.undecodable, 1);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("context", &self.lookups.sender().context).finish_non_exhaustive()
    }
}

fn value_bytes(request: &Request<Bytes>) -> usize {
    match &request.operation {
        Operation::Store { value, .. } | Operation::LeaseSet { value, .. } => value.len(),
        _ => 0,
    }
}

pub(super) fn check_and_copy_key(key: &[u8]) -> Result<Bytes, KeyError> {
    check_key(key)?;
    Ok(Bytes::copy_from_slice(key))
}

/// Checks the keys, and copies them into one allocation.
pub(super) fn check_and_copy_keys<K: AsRef<[u8]>>(keys: &[K]) -> Result<Vec<Bytes>, KeyError> {
    let mut all = BytesMut::with_capacity(keys.iter().map(|key| key.as_ref().len()).sum());
    for key in keys {
        check_key(key.as_ref())?;
        all.extend_from_slice(key.as_ref());
    }
    let mut all = all.freeze();
    Ok(keys.iter().map(|key| all.split_to(key.as_ref().len())).collect())
}
