//! Reading through: look up, wait for who is filling, load, fill (§2, §3.2.1 of the paper). The table in `look_aside`
//! says what is done when.
//!
//! One key and many take the same rounds. A round looks up all keys that have no value yet, loads in one call those
//! whose turn it is, fills them together, and leaves the hot misses to the next round. The first waits are about as
//! long as a fast database takes; they double, so that a slow one is not asked about all the time.

use super::{Client, Lease, Lookup, checked_key, checked_keys};
use bytes::Bytes;
use lookaside_protocol::{KeyError, LeaseToken, Operation, Request};
use std::{fmt, future::Future, time::Duration};
use tokio::time::{Instant, sleep};

/// The first wait for another client's fill, in milliseconds; it doubles from round to round.
pub const HOT_MISS_DELAY_MS_MIN: u64 = 1;

/// The longest wait between two looks for another client's fill, in milliseconds.
pub const HOT_MISS_DELAY_MS_MAX: u64 = 64;

/// How a read is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Whether a value that was deleted a short while ago will do while another client loads the new one. Default
    /// false.
    pub allow_stale: bool,
    /// When a filled value expires: 0 never, up to 30 days in seconds from now, beyond that a Unix time. Default 0.
    pub exptime: i64,
    /// How long to wait for another client's fill before loading without filling, in milliseconds. Default 1,000. At
    /// 0 a herd is not held back; much longer, and one client that dies with the lease holds the others up.
    pub hot_miss_wait_ms: u64,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions { allow_stale: false, exptime: 0, hot_miss_wait_ms: 1_000 }
    }
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The value.
    pub value: Bytes,
    /// As the value was stored with; 0 when it was loaded.
    pub flags: u32,
    /// Where it came from.
    pub origin: Origin,
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The cache.
    Cache,
    /// The cache, which marked it as older than the database.
    Stale,
    /// The loader.
    Database,
}

/// Why a read brought no value. Failures of the cache are not among the reasons: then the database is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError<E> {
    /// This cannot be a key; nothing was sent or loaded.
    BadKey(KeyError),
    /// The loader failed.
    Load(E),
    /// The loader was asked for some keys and brought another number of values.
    LoadedCount {
        /// How many keys it was asked for.
        asked: usize,
        /// How many values it brought.
        loaded: usize,
    },
}

impl<E: std::error::Error + 'static> std::error::Error for ReadError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::BadKey(error) => Some(error),
            ReadError::Load(error) => Some(error),
            ReadError::LoadedCount { .. } => None,
        }
    }
}

impl<E: fmt::Display> fmt::Display for ReadError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::BadKey(error) => write!(f, "bad key: {error}"),
            ReadError::Load(error) => write!(f, "the value could not be loaded: {error}"),
            ReadError::LoadedCount { asked, loaded } => {
                write!(f, "the loader was asked for {asked} keys and brought {loaded} values")
            }
        }
    }
}

impl Client {
    /// Brings one key's value, from the cache or else from `load`, and fills the cache when it is this caller's turn.
    ///
    /// What the database does not have should be loaded as a value that says so (an empty one, say): a miss that
    /// nobody fills makes others wait.
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
        let keys = vec![checked_key(key.as_ref()).map_err(ReadError::BadKey)?];
        let mut load = Some(load);
        let load_once = |_: Vec<Bytes>| {
            let load = load.take().expect("a key is loaded at most once");
            async move { Ok(vec![load().await?]) }
        };
        let mut values = self.read_checked(keys, options, load_once).await?;
        Ok(values.pop().expect("one value a key"))
    }

    /// Brings the values of many keys, in order. `load` is given the keys whose values must come from the database
    /// and brings them in that order; it is called at most once a round: for keys that missed, then for hot misses
    /// that became this caller's turn, at last for those that stayed hot.
    pub async fn read_many<K, E, F, L>(
        &self,
        keys: &[K],
        options: &ReadOptions,
        load: F,
    ) -> Result<Vec<Value>, ReadError<E>>
    where
        K: AsRef<[u8]>,
        F: FnMut(Vec<Bytes>) -> L,
        L: Future<Output = Result<Vec<Bytes>, E>>,
    {
        let keys = checked_keys(keys).map_err(ReadError::BadKey)?;
        self.read_checked(keys, options, load).await
    }

    async fn read_checked<E, F, L>(
        &self,
        keys: Vec<Bytes>,
        options: &ReadOptions,
        mut load: F,
    ) -> Result<Vec<Value>, ReadError<E>>
    where
        F: FnMut(Vec<Bytes>) -> L,
        L: Future<Output = Result<Vec<Bytes>, E>>,
    {
        let mut reading = Reading::new(keys);
        let deadline = Instant::now() + Duration::from_millis(options.hot_miss_wait_ms);
        let mut delay_ms = HOT_MISS_DELAY_MS_MIN;
        while !reading.pending.is_empty() {
            let lookups = self.look_up(&reading.pending_keys()).await;
            // Whoever looked before the time was over looks again after loading, however long that took.
            let now = Instant::now();
            let mut round = reading.sort(lookups, options.allow_stale);
            if now >= deadline {
                round.to_load.extend(round.hot.drain(..).map(|index| (index, None)));
            }
            if !round.to_load.is_empty() {
                let wanted: Vec<Bytes> = round.to_load.iter().map(|&(index, _)| reading.keys[index].clone()).collect();
                self.counters.loads(wanted.len());
                let asked = wanted.len();
                let loaded = load(wanted).await.map_err(ReadError::Load)?;
                if loaded.len() != asked {
                    return Err(ReadError::LoadedCount { asked, loaded: loaded.len() });
                }
                let fills = reading.keep_loaded(&round.to_load, loaded, options.exptime);
                if !fills.is_empty() {
                    self.fill_all(fills).await;
                }
            }
            reading.pending = round.hot;
            if !reading.pending.is_empty() {
                self.counters.hot_miss_waits(reading.pending.len());
                let left = deadline.saturating_duration_since(Instant::now());
                sleep(Duration::from_millis(delay_ms).min(left)).await;
                delay_ms = (delay_ms * 2).min(HOT_MISS_DELAY_MS_MAX);
            }
        }
        Ok(reading.values.into_iter().map(|value| value.expect("no key is pending any more")).collect())
    }
}

/// Keys being read, by their index.
struct Reading {
    keys: Vec<Bytes>,
    values: Vec<Option<Value>>,
    /// Those without a value yet.
    pending: Vec<usize>,
}

/// What one round of lookups leaves to do.
#[derive(Default)]
struct Round {
    /// Those to load now, with the token to fill with, where there is one.
    to_load: Vec<(usize, Option<LeaseToken>)>,
    /// Those that another client is loading.
    hot: Vec<usize>,
}

impl Reading {
    fn new(keys: Vec<Bytes>) -> Reading {
        Reading { values: vec![None; keys.len()], pending: (0..keys.len()).collect(), keys }
    }

    fn pending_keys(&self) -> Vec<Bytes> {
        self.pending.iter().map(|&index| self.keys[index].clone()).collect()
    }

    /// Keeps the values that were found, and sorts the other keys by what is to be done.
    fn sort(&mut self, lookups: Vec<Result<Lookup, crate::ClientError>>, allow_stale: bool) -> Round {
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

    /// Keeps the values that were loaded, and says what to fill.
    fn keep_loaded(
        &mut self,
        to_load: &[(usize, Option<LeaseToken>)],
        loaded: Vec<Bytes>,
        exptime: i64,
    ) -> Vec<Request<Bytes>> {
        let mut fills = Vec::new();
        for (&(index, token), value) in to_load.iter().zip(loaded) {
            if let Some(token) = token {
                let operation = Operation::LeaseSet { token, flags: 0, exptime, value: value.clone() };
                fills.push(Request { key: self.keys[index].clone(), operation });
            }
            self.values[index] = Some(Value { value, flags: 0, origin: Origin::Database });
        }
        fills
    }
}
