//! The application's client in a replica region: it sets markers before writes, and looks for them at misses and at
//! reads past the cache.

use super::exchange;
use super::load::{ReadFrom, load_each};
use super::marking::Marking;
use super::names::{MARKER_SUFFIX_BYTES, MarkerNames, Token};
use super::search::{Found, MarkerSearch};
use super::settings::{MarkerSettings, MarkerSettingsError, WhenNotSet};
use super::statistics::{MarkerCounters, MarkerStatistics};
use super::write::{MarkError, RemoteWrite, WrittenKey};
use crate::look_aside::client::{Client, check_and_copy_keys};
use crate::look_aside::read_through::check_loaded;
use crate::look_aside::{ClientError, ReadError, ReadOptions, Value};
use crate::tasks::spawn;
use bytes::Bytes;
use lookaside_protocol::{KEY_BYTES_MAX, KeyError};
use lookaside_routing::{BoxFuture, Route};
use lookaside_sync::Mutex;
use std::{collections::HashSet, fmt, sync::Arc};

/// A look-aside client in a replica region, with remote markers. Cheap to clone; clones share everything.
///
/// ```no_run
/// # async fn example(client: lookaside_client::Client, pool: std::sync::Arc<dyn lookaside_routing::Route>)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use lookaside_client::{MarkerSettings, ReadFrom, ReadOptions, RegionalClient};
/// let regional = RegionalClient::new(client, pool, MarkerSettings::default())?;
///
/// let write = regional.begin_write(&["user:42"]).await?;
/// let comment = write.sql_comment().expect("a plain key");
/// // At the master: UPDATE user SET name = 'bob' WHERE id = 42 {comment}; COMMIT
/// # let _ = comment;
/// write.finish().await?;
///
/// let options = ReadOptions::default();
/// let user = regional.read("user:42", &options, |from| async move {
///     match from {
///         ReadFrom::Master => {}  // SELECT name FROM user WHERE id = 42, at the master
///         ReadFrom::Replica => {} // the same, at this region's replica
///     }
///     Ok::<_, std::io::Error>("bob".into())
/// });
/// println!("{:?}", user.await?.value);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RegionalClient {
    client: Client,
    /// To the regional pool; it shares deadline and counters with the client.
    pool: Client,
    markers: Arc<Markers>,
}

struct Markers {
    settings: MarkerSettings,
    random: Mutex<fastrand::Rng>,
    counters: MarkerCounters,
}

impl RegionalClient {
    /// A client that reads and writes as `client` does, with markers at `pool`: often the same route, which sends keys
    /// with the prefix of [`MarkerSettings`] to the regional pool.
    pub fn new(
        client: Client,
        pool: Arc<dyn Route>,
        settings: MarkerSettings,
    ) -> Result<RegionalClient, MarkerSettingsError> {
        settings.check()?;
        let seed = settings.seed.unwrap_or_else(|| fastrand::u64(..));
        let random = Mutex::new(fastrand::Rng::with_seed(seed));
        let pool = client.with_route(pool);
        let markers = Arc::new(Markers { settings, random, counters: MarkerCounters::default() });
        Ok(RegionalClient { client, pool, markers })
    }

    /// The same markers for another client, which has another deadline say, or counters of its own.
    pub fn with_client(&self, client: Client) -> RegionalClient {
        let pool = client.with_route(self.pool.route());
        RegionalClient { client, pool, markers: self.markers.clone() }
    }

    /// The client underneath. Its own reads look for no markers.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn pool(&self) -> &Client {
        &self.pool
    }

    /// Where a miss is read from if the pool does not say whether it has a marker.
    pub fn when_unknown(&self) -> ReadFrom {
        self.markers.settings.when_unknown
    }

    /// The counters of markers. Requests to the pool are counted by the client underneath as well.
    pub fn marker_statistics(&self) -> MarkerStatistics {
        self.markers.counters.snapshot()
    }

    /// Sets the markers of keys that a transaction is about to make stale. Two round trips to the regional pool, three
    /// if a key had many writes of late. If this is dropped before it is ready, markers may stay until they expire.
    pub async fn begin_write<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<RemoteWrite, MarkError> {
        let Markers { settings, random, counters } = &*self.markers;
        let mut seen = HashSet::new();
        let mut keys = check_and_copy_keys(keys).map_err(MarkError::BadKey)?;
        keys.retain(|key| seen.insert(key.clone()));
        let token = Token::random(&mut random.lock());
        let start = |key: &Bytes| match MarkerNames::new(settings, key) {
            Some(names) => Ok(Marking::new(names, token, settings.ttl_s)),
            None => {
                let bytes_max = KEY_BYTES_MAX - MARKER_SUFFIX_BYTES - settings.key_prefix.len();
                Err(MarkError::KeyTooLong { key: key.clone(), bytes_max })
            }
        };
        let mut markings = keys.iter().map(start).collect::<Result<Vec<_>, _>>()?;
        // Markings that the deadline has ended have no result.
        let _ = self.client.limit(exchange::run(&self.pool, &mut markings)).await;
        let to_written = |(key, marking): (Bytes, Marking)| {
            let result = marking.result().cloned().unwrap_or(Err(ClientError::DeadlineExceeded));
            WrittenKey { key, marker: marking.marker(), result }
        };
        let written: Vec<WrittenKey> = keys.into_iter().zip(markings).map(to_written).collect();
        let failed = written.iter().find_map(|written| Some((written.key.clone(), written.result.clone().err()?)));
        let not_marked = written.iter().filter(|written| written.result.is_err()).count();
        counters.marked.add((written.len() - not_marked) as u64);
        counters.not_marked.add(not_marked as u64);
        let write = RemoteWrite::new(self.clone(), written, settings.form);
        match (failed, settings.when_not_set) {
            (Some((key, why)), WhenNotSet::Fail) => {
                // Whatever comes of it: the markers expire at the latest.
                spawn(async move { drop(write.abort().await) });
                Err(MarkError::NotSet { key, why })
            }
            (Some(_), WhenNotSet::AcceptLag) | (None, _) => Ok(write),
        }
    }

    /// Reads one key's value from the cache, or else with `load` from the database that it is given. As
    /// [`Client::read`] otherwise; a miss costs one round trip more, or two after writes.
    ///
    /// With [`ReadOptions::allow_stale`] a read may be older than a write of the same user.
    pub async fn read<E, F, L>(
        &self,
        key: impl AsRef<[u8]>,
        options: &ReadOptions,
        load: F,
    ) -> Result<Value, ReadError<E>>
    where
        F: FnOnce(ReadFrom) -> L,
        L: Future<Output = Result<Bytes, E>>,
    {
        let key = key.as_ref();
        let load = || async move {
            let sources = self.search(&[Bytes::copy_from_slice(key)], false).await;
            load(sources[0]).await
        };
        self.client.read(key, options, load).await
    }

    /// Reads the values of many keys, in order. `load` gets the keys whose values must come from a database, and from
    /// which one; it may be called twice at the same time, for the keys of each. As [`Client::read_many`] otherwise.
    pub async fn read_many<K, E, F, L>(
        &self,
        keys: &[K],
        options: &ReadOptions,
        load: F,
    ) -> Result<Vec<Value>, ReadError<E>>
    where
        K: AsRef<[u8]>,
        F: FnMut(ReadFrom, Vec<Bytes>) -> L + Send,
        L: Future<Output = Result<Vec<Bytes>, E>> + Send,
        E: Send,
    {
        self.client.read_many(keys, options, self.loader(load)).await
    }

    /// Reads keys past the cache, in order: no key is looked up, filled or leased. `load` gets the keys of each
    /// database, the master's if they have a marker; it may be called twice at the same time, for the keys of each.
    ///
    /// A write whose markers are set is seen once it has committed, in each cluster of the region: it needs no
    /// [`finish`](RemoteWrite::finish) before, and what a cluster has cached does not matter.
    pub async fn read_past_cache<T, K, E, F, L>(&self, keys: &[K], load: F) -> Result<Vec<T>, ReadError<E>>
    where
        K: AsRef<[u8]>,
        F: FnMut(ReadFrom, Vec<Bytes>) -> L + Send,
        L: Future<Output = Result<Vec<T>, E>> + Send,
    {
        let keys = check_and_copy_keys(keys).map_err(ReadError::BadKey)?;
        let read = async {
            let sources = self.search(&keys, false).await;
            self.load_past_cache(keys, &sources, false, load).await
        };
        self.client.limit_read(read).await
    }

    /// Reads keys from the master, past the cache, in order, whether or not they have markers. For a user whose last
    /// write of them has none ([`RemoteWrite::unmarked`]), until the replica has it: the cache may keep the row from
    /// before that write, and its misses may be read from the replica. `load` is called once, with
    /// [`ReadFrom::Master`], if there are keys.
    pub async fn read_master<T, K, E, F, L>(&self, keys: &[K], load: F) -> Result<Vec<T>, ReadError<E>>
    where
        K: AsRef<[u8]>,
        F: FnMut(ReadFrom, Vec<Bytes>) -> L + Send,
        L: Future<Output = Result<Vec<T>, E>> + Send,
    {
        let keys = check_and_copy_keys(keys).map_err(ReadError::BadKey)?;
        let sources = vec![ReadFrom::Master; keys.len()];
        self.client.limit_read(self.load_past_cache(keys, &sources, true, load)).await
    }

    /// The database to read each key from past the cache, in order: for a query over several rows, say, which must go
    /// to the master if one of them does. A key whose markers are not known when the client's deadline has passed is
    /// read from [`MarkerSettings::when_unknown`].
    ///
    /// A value that is loaded by this must not be cached: the markers were looked for without a lease. For values that
    /// are to be cached there is [`RegionalClient::loader`].
    pub async fn find_sources<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<ReadFrom>, KeyError> {
        let keys = check_and_copy_keys(keys)?;
        Ok(self.search(&keys, true).await)
    }

    /// Counts keys as [`RegionalClient::read_past_cache`] does, or with `is_demanded` as
    /// [`RegionalClient::read_master`]. For a caller that runs its loader by itself, as the Python package does.
    pub fn count_past_cache(&self, keys: usize, is_demanded: bool) {
        self.client.count_loads(keys);
        if is_demanded {
            self.markers.counters.demanded.add(keys as u64);
        }
    }

    /// A loader for [`Client::read_many`], [`TypedClient::get_or_load_many`](crate::TypedClient::get_or_load_many) or a
    /// node of a [`Plan`](crate::Plan), which looks for the markers of the keys that have missed, and calls `load` with
    /// the database to read them from. These calls have taken the leases by then, as the guarantee needs.
    pub fn loader<'a, T, E, F, L>(&self, load: F) -> impl FnMut(Vec<Bytes>) -> BoxFuture<'a, Result<Vec<T>, E>> + 'a
    where
        T: Send + 'a,
        E: Send + 'a,
        F: FnMut(ReadFrom, Vec<Bytes>) -> L + Send + 'a,
        L: Future<Output = Result<Vec<T>, E>> + Send + 'a,
    {
        let (client, load) = (self.clone(), Arc::new(Mutex::new(load)));
        move |keys| {
            let (client, load) = (client.clone(), load.clone());
            Box::pin(async move {
                let sources = client.search(&keys, false).await;
                load_each(keys, &sources, |from, keys| (load.lock())(from, keys)).await
            })
        }
    }
}

impl RegionalClient {
    /// Where to read each key. With `is_limited` the markers are looked for until the client's deadline; otherwise the
    /// caller sees to that.
    async fn search(&self, keys: &[Bytes], is_limited: bool) -> Vec<ReadFrom> {
        let Markers { settings, counters, .. } = &*self.markers;
        let names: Vec<_> = keys.iter().map(|key| MarkerNames::new(settings, key)).collect();
        let mut searches: Vec<_> = names.iter().flatten().cloned().map(MarkerSearch::new).collect();
        counters.searches.add(searches.len() as u64);
        let exchange = exchange::run(&self.pool, &mut searches);
        match is_limited {
            true => _ = self.client.limit(exchange).await,
            false => exchange.await,
        }
        // A search that the deadline has ended has found nothing out.
        let mut found = searches.iter().map(|search| search.found().unwrap_or(Found::Unknown));
        // No write of a key that is too long has a marker: it was refused.
        let source = |names: &Option<MarkerNames>| {
            names
                .as_ref()
                .map_or(ReadFrom::Replica, |_| self.markers.source(found.next().expect("one search per name")))
        };
        names.iter().map(source).collect()
    }

    /// Loads and counts keys past the cache: nothing is filled, and so nothing needs a lease.
    async fn load_past_cache<T, E, F, L>(
        &self,
        keys: Vec<Bytes>,
        sources: &[ReadFrom],
        is_demanded: bool,
        load: F,
    ) -> Result<Vec<T>, ReadError<E>>
    where
        F: FnMut(ReadFrom, Vec<Bytes>) -> L,
        L: Future<Output = Result<Vec<T>, E>>,
    {
        self.count_past_cache(keys.len(), is_demanded);
        let load = Mutex::new(load);
        check_loaded(keys.len(), load_each(keys, sources, |from, keys| (load.lock())(from, keys)).await)
    }
}

impl Markers {
    fn source(&self, found: Found) -> ReadFrom {
        match found {
            Found::Unmarked => ReadFrom::Replica,
            Found::Marked => {
                self.counters.found.add(1);
                ReadFrom::Master
            }
            Found::Unknown => {
                self.counters.unknown.add(1);
                self.settings.when_unknown
            }
        }
    }
}

impl fmt::Debug for RegionalClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Markers { settings, .. } = &*self.markers;
        f.debug_struct("RegionalClient").field("client", &self.client).field("settings", settings).finish()
    }
}
