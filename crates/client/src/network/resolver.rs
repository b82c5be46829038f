//! Resolves the host names of servers. Serves every path, but only when a connection is made.
//!
//! A name is resolved for each connection, so that a server that has moved is found. The last result is cached for the
//! whole process, and used when the resolver fails or is slower than a server may be: a DNS outage does not become a
//! cache outage. Its start and its end are logged once. A lookup cannot be cancelled: there is one for each name, which
//! all callers share, and at most [`LOOKUPS_MAX`] run, so that a resolver that hangs leaves threads to others.
//!
//! ```text
//!   name --> resolver --> all addresses, in its order --> connect to the first; 100 ms later also to the second; ...
//!               | fails, or is slow                       the first connection that is made is used (RFC 8305)
//!               '--> the last result
//! ```
//!
//! A process that was forked has a cache of its own ([`ProcessCaches`]): lookups that were in flight in its parent run
//! in none of its threads.
//!
//! Deliberately absent: times to live, which the system's resolver does not tell.

use lookaside_sync::Mutex;
use std::{
    collections::BTreeMap,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{
    net::{TcpStream, lookup_host},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

/// Names that are cached. Further names cannot be used while the resolver fails.
const CACHED_NAMES_MAX: usize = 10_000;
/// Lookups at once, over all names. Each occupies a thread of the pool that also reads and writes files, for as long as
/// the resolver hangs; the pool has 512.
const LOOKUPS_MAX: usize = 32;
/// How long a lookup may take if a cached result can be used instead. It is a part of the connect timeout, which may be
/// as short as a round trip; a slower result is used for the next connection.
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(10);
/// How long an attempt to connect may take before the next address is tried as well (RFC 8305, "Connection Attempt
/// Delay").
const CONNECTION_ATTEMPT_DELAY: Duration = Duration::from_millis(100);
/// The most addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

/// Processes from the first one to this, each forked by the one before, that can have a cache.
const GENERATIONS_MAX: usize = 16;

static CACHES: ProcessCaches = ProcessCaches([const { ProcessCache::new() }; GENERATIONS_MAX]);

/// Connects to `name`, which is `host:port`.
pub(crate) async fn connect(name: &str) -> io::Result<TcpStream> {
    let addresses = match name.parse() {
        Ok(address) => vec![address],
        Err(_) => CACHES.of(std::process::id()).resolve(name, look_up(name.to_owned())).await?,
    };
    match &*addresses {
        [only] => TcpStream::connect(only).await,
        _ => connect_any(&addresses).await,
    }
}

/// The IP addresses of `name`, which is `host:port`; none if the host is an IP address itself.
pub(crate) async fn addresses(name: &str) -> io::Result<Vec<IpAddr>> {
    if name.parse::<SocketAddr>().is_ok() {
        return Ok(Vec::new());
    }
    let addresses = CACHES.of(std::process::id()).resolve(name, look_up(name.to_owned())).await?;
    Ok(addresses.iter().map(SocketAddr::ip).collect())
}

async fn look_up(name: String) -> io::Result<Vec<SocketAddr>> {
    Ok(lookup_host(name).await?.take(ADDRESSES_MAX).collect())
}

/// Connects to all addresses, staggered; returns the first connection that is made.
async fn connect_any(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    let mut attempts = JoinSet::new();
    let mut rest = addresses.iter();
    loop {
        match rest.next() {
            Some(&address) => drop(attempts.spawn(TcpStream::connect(address))),
            None if attempts.is_empty() => return Err(failure),
            None => {}
        }
        tokio::select! {
            biased;
            Some(ended) = attempts.join_next() => match ended.map_err(io::Error::other).flatten() {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            },
            () = sleep(CONNECTION_ATTEMPT_DELAY), if rest.len() > 0 => {}
        }
    }
}

/// The caches of this process and of those that it descends from, which the memory of a forked process still has. Those
/// are never touched again: a lock of theirs may be held by a thread that only the parent has, and a lookup in flight
/// may wait for one.
///
/// There is no lock here that a fork could leave held: a process claims a place by its id, and no other process
/// initializes it. If there is no place left, which takes a chain of [`GENERATIONS_MAX`] forks, nothing is cached.
///
/// Ids are used again. A process that had the id of an ancestor would find that one's cache; but then the ancestor has
/// ended, and thousands of processes have begun since the fork.
struct ProcessCaches([ProcessCache; GENERATIONS_MAX]);

struct ProcessCache {
    /// 0 if no process has claimed it.
    process_id: AtomicU32,
    cache: OnceLock<Arc<ResolverCache>>,
}

impl ProcessCache {
    const fn new() -> ProcessCache {
        ProcessCache { process_id: AtomicU32::new(0), cache: OnceLock::new() }
    }
}

impl ProcessCaches {
    /// The cache of the process with this id, which is the caller's.
    fn of(&self, process_id: u32) -> Arc<ResolverCache> {
        let is_own = |place: &&ProcessCache| match place.process_id.compare_exchange(0, process_id, SeqCst, SeqCst) {
            Ok(_) => true,
            Err(owner) => owner == process_id,
        };
        self.0.iter().find(is_own).map(|place| place.cache.get_or_init(Arc::default).clone()).unwrap_or_default()
    }
}

/// The result of a lookup. An error is shared by several callers, so it is in parts.
type Resolved = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;
/// Resolves to the result of a lookup; closed without one if the lookup has panicked.
type InFlight = watch::Receiver<Option<Resolved>>;

#[derive(Debug)]
struct ResolverCache {
    names: Mutex<BTreeMap<String, CachedName>>,
    /// Lookups that may run. One holds its permit until the resolver has replied, also if no caller waits any more.
    lookups: Semaphore,
}

#[derive(Debug, Default)]
struct CachedName {
    /// The last result; empty if there was none.
    addresses: Vec<SocketAddr>,
    /// Whether the last lookup failed, which has been logged.
    is_failing: bool,
    /// The lookup in flight, or waiting for its turn.
    in_flight: Option<InFlight>,
}

impl Default for ResolverCache {
    fn default() -> Self {
        ResolverCache { names: Mutex::default(), lookups: Semaphore::new(LOOKUPS_MAX) }
    }
}

impl ResolverCache {
    /// The addresses of `name`: the result of `lookup`, or of one that is in flight, or else the last result.
    async fn resolve(
        self: &Arc<Self>,
        name: &str,
        lookup: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        let (cached, in_flight, sender) = self.join_lookup(name);
        match sender {
            Some(sender) => self.start_lookup(name, lookup, sender),
            // While the resolver hangs, other callers do not wait for it.
            None if !cached.is_empty() => return Ok(cached),
            None => {}
        }
        if cached.is_empty() {
            return result(in_flight).await;
        }
        timeout(LOOKUP_TIMEOUT, result(in_flight)).await.unwrap_or(Ok(cached))
    }

    /// The cached addresses of `name` and the lookup in flight. If the caller has to start it, also where its result
    /// goes.
    fn join_lookup(&self, name: &str) -> (Vec<SocketAddr>, InFlight, Option<watch::Sender<Option<Resolved>>>) {
        let mut names = self.names.lock();
        let entry = names.entry(name.to_owned()).or_default();
        let cached = entry.addresses.clone();
        if let Some(in_flight) = &entry.in_flight {
            return (cached, in_flight.clone(), None);
        }
        let (sender, receiver) = watch::channel(None);
        entry.in_flight = Some(receiver.clone());
        (cached, receiver, Some(sender))
    }

    /// Starts a lookup, in a task of its own: a late result is still cached, and a caller that gives up does not end
    /// the lookup for others.
    fn start_lookup(
        self: &Arc<Self>,
        name: &str,
        lookup: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
        sender: watch::Sender<Option<Resolved>>,
    ) {
        let in_flight = InFlightLookup { cache: self.clone(), name: name.to_owned() };
        tokio::spawn(async move {
            // Moved as a whole, so that it ends with the task, also if the task never runs.
            let in_flight = in_flight;
            let permit = in_flight.cache.lookups.acquire().await.expect("never closed");
            let result = lookup.await;
            drop(permit);
            let resolved = in_flight.cache.record_result(&in_flight.name, result);
            drop(in_flight);
            sender.send_replace(Some(resolved.map_err(|error| (error.kind(), error.to_string()))));
        });
    }

    /// Caches the result of a lookup; returns it, or the last result if it is an error.
    fn record_result(&self, name: &str, result: io::Result<Vec<SocketAddr>>) -> io::Result<Vec<SocketAddr>> {
        let mut names = self.names.lock();
        let is_full = names.len() > CACHED_NAMES_MAX;
        let entry = names.entry(name.to_owned()).or_default();
        let no_address = || io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        match result.and_then(|found| if found.is_empty() { Err(no_address()) } else { Ok(found) }) {
            Ok(found) => {
                if std::mem::take(&mut entry.is_failing) {
                    tracing::info!(name, "host name resolved again");
                }
                if !is_full || !entry.addresses.is_empty() {
                    entry.addresses.clone_from(&found);
                }
                Ok(found)
            }
            Err(error) => {
                let is_cached = !entry.addresses.is_empty();
                if !std::mem::replace(&mut entry.is_failing, true) {
                    let effect =
                        if is_cached { "its last addresses stay in use" } else { "the server cannot be reached" };
                    tracing::warn!(name, %error, "cannot resolve a server's host name: {effect}");
                }
                if is_cached { Ok(entry.addresses.clone()) } else { Err(error) }
            }
        }
    }
}

/// Waits for the end of a lookup.
async fn result(mut in_flight: InFlight) -> io::Result<Vec<SocketAddr>> {
    let ended = in_flight.wait_for(Option::is_some).await.map_err(io::Error::other)?;
    ended.clone().expect("it has ended").map_err(|(kind, message)| io::Error::new(kind, message))
}

/// A lookup in flight. However it ends, dropping this lets the next caller start another.
struct InFlightLookup {
    cache: Arc<ResolverCache>,
    name: String,
}

impl Drop for InFlightLookup {
    fn drop(&mut self) {
        let mut names = self.cache.names.lock();
        let is_full = names.len() > CACHED_NAMES_MAX;
        let Some(name) = names.get_mut(&self.name) else { return };
        name.in_flight = None;
        if is_full && name.addresses.is_empty() {
            names.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use tokio::{net::TcpListener, time::Instant};

    const NAME: &str = "cache-1.example:11211";

    fn addresses(last: u8) -> Vec<SocketAddr> {
        vec![SocketAddr::from(([10, 0, 0, last], 11211))]
    }

    fn failure() -> io::Result<Vec<SocketAddr>> {
        Err(io::ErrorKind::TimedOut.into())
    }

    #[tokio::test(start_paused = true)]
    async fn last_result_is_used_while_the_resolver_fails_or_hangs() {
        let cache = Arc::new(ResolverCache::default());
        assert!(cache.resolve(NAME, ready(failure())).await.is_err(), "nothing is cached yet");
        assert_eq!(cache.resolve(NAME, ready(Ok(addresses(1)))).await.unwrap(), addresses(1));
        assert_eq!(cache.resolve(NAME, ready(failure())).await.unwrap(), addresses(1));
        assert_eq!(cache.resolve(NAME, ready(Ok(Vec::new()))).await.unwrap(), addresses(1));
        assert_eq!(cache.resolve(NAME, ready(Ok(addresses(2)))).await.unwrap(), addresses(2));
        let start = Instant::now();
        assert_eq!(cache.resolve(NAME, pending()).await.unwrap(), addresses(2));
        assert_eq!(start.elapsed(), LOOKUP_TIMEOUT);
        let second = async { panic!("a second lookup while one is in flight") };
        assert_eq!(cache.resolve(NAME, second).await.unwrap(), addresses(2));
        assert_eq!(start.elapsed(), LOOKUP_TIMEOUT, "the second caller does not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn late_result_is_cached() {
        let cache = Arc::new(ResolverCache::default());
        cache.resolve(NAME, ready(Ok(addresses(1)))).await.unwrap();
        let late = async {
            sleep(LOOKUP_TIMEOUT * 3).await;
            Ok(addresses(2))
        };
        assert_eq!(cache.resolve(NAME, late).await.unwrap(), addresses(1));
        sleep(LOOKUP_TIMEOUT * 3).await;
        assert_eq!(cache.resolve(NAME, ready(failure())).await.unwrap(), addresses(2));
    }

    #[tokio::test(start_paused = true)]
    async fn lookup_that_panics_does_not_block_the_next() {
        let cache = Arc::new(ResolverCache::default());
        cache.resolve(NAME, ready(Ok(addresses(1)))).await.unwrap();
        assert!(cache.resolve(NAME, async { panic!("as a bug would") }).await.is_err());
        assert_eq!(cache.resolve(NAME, ready(Ok(addresses(2)))).await.unwrap(), addresses(2));
    }

    /// While the resolver hangs, each connect gives up after its own limit, but the thread of a lookup stays until the
    /// resolver does. With a lookup for each attempt they would add up until no thread is left for files.
    #[tokio::test(start_paused = true)]
    async fn callers_share_one_lookup_also_without_a_cached_address() {
        let cache = Arc::new(ResolverCache::default());
        let started = Arc::new(AtomicUsize::new(0));
        let lookup = || {
            let started = started.clone();
            async move {
                started.fetch_add(1, Relaxed);
                sleep(Duration::from_secs(20)).await;
                Ok(addresses(1))
            }
        };
        for _ in 0..10 {
            assert!(timeout(Duration::from_millis(200), cache.resolve(NAME, lookup())).await.is_err());
        }
        assert_eq!(started.load(Relaxed), 1);
        let (first, second) = tokio::join!(cache.resolve(NAME, lookup()), cache.resolve(NAME, lookup()));
        assert_eq!((first.unwrap(), second.unwrap()), (addresses(1), addresses(1)));
        assert_eq!(started.load(Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn lookups_of_all_names_are_bounded() {
        let cache = Arc::new(ResolverCache::default());
        let running = Arc::new(AtomicUsize::new(0));
        for at in 0..200 {
            let running = running.clone();
            let lookup = async move {
                running.fetch_add(1, Relaxed);
                sleep(Duration::from_secs(20)).await;
                running.fetch_sub(1, Relaxed);
                failure()
            };
            let limit = Duration::from_millis(1);
            assert!(timeout(limit, cache.resolve(&format!("cache-{at}.example:1"), lookup)).await.is_err());
        }
        assert!(running.load(Relaxed) <= LOOKUPS_MAX, "{} lookups at once", running.load(Relaxed));
        assert_eq!(cache.resolve(NAME, ready(Ok(addresses(1)))).await.unwrap(), addresses(1), "the others' turn comes");
    }

    /// A connect timeout of 20 ms is short for a server in the same data centre, but may be chosen.
    #[tokio::test(start_paused = true)]
    async fn cached_address_is_used_well_within_a_short_connect_timeout() {
        let cache = Arc::new(ResolverCache::default());
        cache.resolve(NAME, ready(Ok(addresses(1)))).await.unwrap();
        let resolved = timeout(Duration::from_millis(20), cache.resolve(NAME, pending())).await;
        assert_eq!(resolved.expect("in time").unwrap(), addresses(1));
    }

    /// Once a child had its parent's cache: every connection to a name whose lookup was in flight at the fork waited
    /// for a task of the parent, until it timed out, for ever. A lock that another thread held at that moment was never
    /// released.
    #[tokio::test(start_paused = true)]
    async fn a_forked_process_waits_for_nothing_of_its_parent() {
        let caches = ProcessCaches([const { ProcessCache::new() }; GENERATIONS_MAX]);
        let (grandparent, parent, child) = (1_000, 1_001, 1_002);
        assert!(!Arc::ptr_eq(&caches.of(grandparent), &caches.of(parent)));
        assert!(!Arc::ptr_eq(&caches.of(parent), &caches.of(child)));
        std::mem::forget(caches.of(grandparent).names.lock());
        let limit = Duration::from_millis(200);
        assert!(timeout(limit, caches.of(parent).resolve(NAME, pending())).await.is_err());
        let resolved = timeout(limit, caches.of(child).resolve(NAME, ready(Ok(addresses(1))))).await;
        assert_eq!(resolved.expect("in time").unwrap(), addresses(1));
        let lookup = caches.of(child).resolve(NAME, ready(failure())).await;
        assert_eq!(lookup.unwrap(), addresses(1), "its own threads share one");
    }

    #[tokio::test]
    async fn after_too_many_forks_nothing_is_cached() {
        let caches = ProcessCaches([const { ProcessCache::new() }; GENERATIONS_MAX]);
        for process_id in 1..=GENERATIONS_MAX as u32 {
            assert!(Arc::ptr_eq(&caches.of(process_id), &caches.of(process_id)));
        }
        assert!(!Arc::ptr_eq(&caches.of(1_000), &caches.of(1_000)));
        assert_eq!(caches.of(1_000).resolve(NAME, ready(Ok(addresses(1)))).await.unwrap(), addresses(1));
    }

    #[tokio::test]
    async fn all_addresses_of_a_name_are_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = listener.local_addr().unwrap();
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let unused = free.local_addr().unwrap();
        drop(free);
        let stream = connect_any(&[unused, there]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), there);
        assert!(connect_any(&[unused, unused]).await.is_err());
        assert!(connect_any(&[]).await.is_err());
    }
}
