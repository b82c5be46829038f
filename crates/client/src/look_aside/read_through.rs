//! Read-through: look up, wait for the client that fills, load, fill (§2, §3.2.1 of the paper). The table in
//! `look_aside` shows the effect of each reply.
//!
//! One key and many take the same rounds. A round looks up all keys that have no value yet, loads in one call those
//! that this client must load, fills them together, and leaves the hot misses to the next round. The first waits are
//! about as long as a fast database takes; they double, so that a slow load does not cause many lookups.

use super::{
    client::{Client, check_and_copy_keys},
    error::ClientError,
    lease::{Lease, Lookup},
    lookup::HeldLeases,
};
use crate::values::{Encoded, Format, ValueFlags};
use bytes::Bytes;
use lookaside_protocol::{KeyError, LeaseToken, Operation, Request};
use lookaside_routing::Batch;
use std::{fmt, future::Future, time::Duration};
use tokio::time::{Instant, sleep};

/// The first wait for another client's fill, in milliseconds; it doubles each round.
pub const HOT_MISS_DELAY_MS_MIN: u64 = 1;

/// The longest wait between two lookups of a hot miss, in milliseconds.
pub const HOT_MISS_DELAY_MS_MAX: u64 = 64;

/// Options of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Whether to accept a value that was deleted a short while ago, while another client loads the new one. Default
    /// false.
    pub allow_stale: bool,
    /// When a filled value expires: 0 never, up to 30 days in seconds from now, beyond that a Unix time. Default 0.
    pub exptime: i64,
    /// How long to wait for another client's fill before loading without filling, in milliseconds. Default 1,000.
    /// With 0, all readers of a hot key load it; if it is very long, a client that dies with the lease delays the
    /// others.
    pub hot_miss_wait_ms: u64,
    /// When a mark that there is no such row expires ([`Format::Absent`]), as `exptime`. Default 30 seconds. Without
    /// an invalidator that deletes the key when the row is inserted, the row is not seen before that.
    pub absent_exptime: i64,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions { allow_stale: false, exptime: 0, hot_miss_wait_ms: 1_000, absent_exptime: 30 }
    }
}

/// A value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The value.
    pub value: Bytes,
    /// The flags that the value was stored with; those to store it with, if it was loaded.
    pub flags: u32,
    /// Where it came from.
    pub origin: Origin,
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The cache.
    Cache,
    /// The cache, but the value is older than the database.
    Stale,
    /// The loader.
    Database,
}

/// Why a read returned no value. A failing cache is no reason: then the value is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError<E> {
    /// The key is invalid; nothing was sent or loaded.
    BadKey(KeyError),
    /// The loader failed.
    Load(E),
    /// The loader returned a wrong number of values.
    LoadedCount {
        /// Keys to load.
        keys: usize,
        /// Values returned.
        loaded: usize,
    },
    /// The client's deadline has passed ([`Client::with_deadline`]). Leases that were held are released.
    DeadlineExceeded,
}

impl<E: std::error::Error + 'static> std::error::Error for ReadError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::BadKey(error) => Some(error),
            ReadError::Load(error) => Some(error),
            ReadError::LoadedCount { .. } | ReadError::DeadlineExceeded => None,
        }
    }
}

impl<E: fmt::Display> fmt::Display for ReadError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::BadKey(error) => write!(f, "bad key: {error}"),
            ReadError::Load(error) => write!(f, "cannot load the value: {error}"),
            ReadError::LoadedCount { keys, loaded } => {
                write!(f, "the loader returned {loaded} values for {keys} keys")
            }
            ReadError::DeadlineExceeded => write!(f, "the deadline has passed"),
        }
    }
}

impl Client {
    /// Reads one key's value from the cache, or else with `load`, and fills the cache if this client holds the lease.
    ///
    /// If the database has no such row, `load` should return a value that means so (an empty one, say): a miss that
    /// is not filled is loaded again by the next reader. [`TypedClient`](crate::TypedClient) caches `None`.
    ///
    /// If this is dropped before it is ready, the lease is released, and the next reader loads.
    pub async fn read<E, F, L>(
        &self,
        key: impl AsRef<[u8]>,
        options: &ReadOptions,
        load: F,
    ) -> Result<Value, ReadError<E>>
    where
        F: FnOnce() -> L,
        L: Future<Output = Result<Bytes, E>>,
    {
        let mut load = Some(load);
        let load_once = |_: Vec<Bytes>| {
            let load = load.take().expect("a key is loaded at most once");
            async move { Ok(vec![load().await?]) }
        };
        let mut values = self.read_many(&[key], options, load_once).await?;
        Ok(values.pop().expect("one value per key"))
    }

    /// Reads the values of many keys, in order. `load` gets the keys whose values must come from the database, and
    /// returns them in that order. It is called at most once per round: for keys that missed, then for hot misses
    /// whose lease this client got later, finally for those that stayed hot.
    pub async fn read_many<K, E, F, L>(
        &self,
        keys: &[K],
        options: &ReadOptions,
        mut load: F,
    ) -> Result<Vec<Value>, ReadError<E>>
    where
        K: AsRef<[u8]>,
        F: FnMut(Vec<Bytes>) -> L,
        L: Future<Output = Result<Vec<Bytes>, E>>,
    {
        let load_plain = |missed| {
            let loaded = load(missed);
            async move { Ok(loaded.await?.into_iter().map(Encoded::from).collect()) }
        };
        self.limit_read(self.read_encoded(keys, options, load_plain)).await
    }

    /// A read until the deadline of its call.
    pub(super) async fn limit_read<T, E>(
        &self,
        read: impl Future<Output = Result<T, ReadError<E>>>,
    ) -> Result<T, ReadError<E>> {
        self.limit(read).await.unwrap_or(Err(ReadError::DeadlineExceeded))
    }

    /// Reads values with flags, without a deadline.
    pub(super) async fn read_encoded<K, E, F, L>(
        &self,
        keys: &[K],
        options: &ReadOptions,
        load: F,
    ) -> Result<Vec<Value>, ReadError<E>>
    where
        K: AsRef<[u8]>,
        F: FnMut(Vec<Bytes>) -> L,
        L: Future<Output = Result<Vec<Encoded>, E>>,
    {
        let (values, fills) = self.read_unfilled(keys, options, load).await?;
        if let Some(fills) = fills {
            self.send_fills(fills).await;
        }
        Ok(values)
    }

    /// The same, but leaves the last fills to the caller; `None` if there are none.
    pub(super) async fn read_unfilled<K, E, F, L>(
        &self,
        keys: &[K],
        options: &ReadOptions,
        mut load: F,
    ) -> Result<(Vec<Value>, Option<Fills>), ReadError<E>>
    where
        K: AsRef<[u8]>,
        F: FnMut(Vec<Bytes>) -> L,
        L: Future<Output = Result<Vec<Encoded>, E>>,
    {
        let keys = check_and_copy_keys(keys).map_err(ReadError::BadKey)?;
        let mut state = ReadState::new(keys);
        let deadline = Instant::now() + Duration::from_millis(options.hot_miss_wait_ms);
        let mut delay_ms = HOT_MISS_DELAY_MS_MIN;
        while !state.pending.is_empty() {
            let lookups = self.look_up(state.pending_keys()).await;
            // Read here: a client that looked up before the deadline looks up once more after loading, however long
            // that took.
            let now = Instant::now();
            let mut round = state.classify(lookups, options.allow_stale);
            if now >= deadline {
                round.to_load.extend(round.hot.drain(..).map(|index| (index, None)));
            }
            let mut fills = None;
            if !round.to_load.is_empty() {
                fills = Some(self.load(&mut state, &round.to_load, options, &mut load).await?);
            }
            state.pending = round.hot;
            if state.pending.is_empty() {
                return Ok((state.into_values(), fills));
            }
            if let Some(fills) = fills {
                self.send_fills(fills).await;
            }
            self.counters.add(|counters| &counters.hot_miss_waits, state.pending.len() as u64);
            let left = deadline.saturating_duration_since(Instant::now());
            sleep(Duration::from_millis(delay_ms).min(left)).await;
            delay_ms = (delay_ms * 2).min(HOT_MISS_DELAY_MS_MAX);
        }
        Ok((state.into_values(), None))
    }

    /// Fills under leases. If the caller goes away meanwhile, the leases are released.
    pub(super) async fn send_fills(&self, fills: Fills) {
        if !fills.requests.is_empty() {
            self.fill_all(fills.requests).await;
        }
        fills.held.disarm();
    }

    /// Loads the values of a round. If the caller goes away meanwhile, or the loader fails, the leases are released.
    async fn load<E, F, L>(
        &self,
        state: &mut ReadState,
        to_load: &[(usize, Option<LeaseToken>)],
        options: &ReadOptions,
        load: &mut F,
    ) -> Result<Fills, ReadError<E>>
    where
        F: FnMut(Vec<Bytes>) -> L,
        L: Future<Output = Result<Vec<Encoded>, E>>,
    {
        let held = to_load.iter().filter_map(|&(index, token)| Some((state.keys[index].clone(), token?)));
        let held = HeldLeases::new(self.lookups.sender(), held.collect());
        let wanted: Vec<Bytes> = to_load.iter().map(|&(index, _)| state.keys[index].clone()).collect();
        let missing = wanted.len();
        self.count_loads(missing);
        let loaded = check_loaded(missing, load(wanted).await)?;
        let absent = loaded.iter().filter(|loaded| is_absent(loaded.flags)).count();
        self.counters.add(|counters| &counters.absent_loads, absent as u64);
        Ok(Fills { requests: state.store_loaded(to_load, loaded, options), held })
    }
}

/// What a loader has returned, one value for each of `keys`.
pub(super) fn check_loaded<T, E>(keys: usize, loaded: Result<Vec<T>, E>) -> Result<Vec<T>, ReadError<E>> {
    match loaded {
        Ok(loaded) if loaded.len() == keys => Ok(loaded),
        Ok(loaded) => Err(ReadError::LoadedCount { keys, loaded: loaded.len() }),
        Err(error) => Err(ReadError::Load(error)),
    }
}

fn is_absent(flags: u32) -> bool {
    ValueFlags::parse(flags).is_ok_and(|flags| flags.format == Format::Absent)
}

/// Loaded values that are to be filled, and the leases for that. Dropped, it releases them.
pub(super) struct Fills {
    requests: Batch,
    held: HeldLeases,
}

/// Keys being read, by their index.
struct ReadState {
    keys: Vec<Bytes>,
    values: Vec<Option<Value>>,
    /// Keys without a value yet.
    pending: Vec<usize>,
}

#[derive(Default)]
struct Round {
    /// Keys to load now, with the token to fill with, if there is one.
    to_load: Vec<(usize, Option<LeaseToken>)>,
    /// Keys that another client is loading.
    hot: Vec<usize>,
}

impl ReadState {
    fn new(keys: Vec<Bytes>) -> ReadState {
        ReadState { values: vec![None; keys.len()], pending: (0..keys.len()).collect(), keys }
    }

    fn into_values(self) -> Vec<Value> {
        self.values.into_iter().map(|value| value.expect("no key is pending")).collect()
    }

    fn pending_keys(&self) -> Vec<Bytes> {
        self.pending.iter().map(|&index| self.keys[index].clone()).collect()
    }

    /// Stores the values that were found, and classifies the other keys.
    fn classify(&mut self, lookups: Vec<Result<Lookup, ClientError>>, allow_stale: bool) -> Round {
        let mut round = Round::default();
        for (&index, lookup) in self.pending.iter().zip(lookups) {
            let lease = match lookup {
                Ok(Lookup::Hit { value, flags }) => {
                    self.values[index] = Some(Value { value, flags, origin: Origin::Cache });
                    continue;
                }
                Ok(Lookup::Stale { value, flags, lease: Lease::HotMiss }) if allow_stale => {
                    self.values[index] = Some(Value { value, flags, origin: Origin::Stale });
                    continue;
                }
                Ok(Lookup::Stale { lease, .. } | Lookup::Miss { lease }) => lease,
                Err(_) => Lease::Unsupported,
            };
            match lease {
                Lease::Held(token) => round.to_load.push((index, Some(token))),
                Lease::Unsupported => round.to_load.push((index, None)),
                Lease::HotMiss => round.hot.push(index),
            }
        }
        round
    }

    /// Stores the loaded values; returns the fills to send.
    fn store_loaded(
        &mut self,
        to_load: &[(usize, Option<LeaseToken>)],
        loaded: Vec<Encoded>,
        options: &ReadOptions,
    ) -> Batch {
        let mut fills = Vec::new();
        for (&(index, token), Encoded { value, flags }) in to_load.iter().zip(loaded) {
            if let Some(token) = token {
                let exptime = if is_absent(flags) { options.absent_exptime } else { options.exptime };
                let operation = Operation::LeaseSet { token, flags, exptime, value: value.clone() };
                fills.push(Request { key: self.keys[index].clone(), operation });
            }
            self.values[index] = Some(Value { value, flags, origin: Origin::Database });
        }
        fills
    }
}
