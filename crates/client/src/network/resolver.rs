//! Resolves the host names of servers. Serves every path, but only when a connection is made.
//!
//! A name is resolved for each connection, so that a server that has moved is found. The last result is cached for
//! the whole process, and used when the resolver fails or is slower than a server may be: a DNS outage does not
//! become a cache outage. Its start and its end are logged once.
//!
//! ```text
//!   name --> resolver --> all addresses, in its order --> connect to the first; 100 ms later also to the second; ...
//!               | fails, or is slow                       the first connection that is made is used (RFC 8305)
//!               '--> the last result
//! ```
//!
//! Deliberately absent: times to live, which the system's resolver does not tell.

use lookaside_sync::Mutex;
use std::{
    collections::BTreeMap,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, LazyLock},
    time::Duration,
};
use tokio::{
    net::{TcpStream, lookup_host},
    task::JoinSet,
    time::{sleep, timeout},
};

/// Names that are cached. Further names cannot be used while the resolver fails.
const CACHED_NAMES_MAX: usize = 10_000;
/// How long a lookup may take if a cached result can be used instead. It is a part of the connect timeout, which may be
/// as short as a round trip. (RFC 8305 waits as long for a second result, "Resolution Delay".)
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(50);
/// How long an attempt to connect may take before the next address is tried as well (RFC 8305, "Connection Attempt
/// Delay").
const CONNECTION_ATTEMPT_DELAY: Duration = Duration::from_millis(100);
/// The most addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

static CACHE: LazyLock<Arc<ResolverCache>> = LazyLock::new(Arc::default);

/// Connects to `name`, which is `host:port`.
pub(crate) async fn connect(name: &str) -> io::Result<TcpStream> {
    let addresses = match name.parse() {
        Ok(address) => vec![address],
        Err(_) => CACHE.resolve(name, look_up(name.to_owned())).await?,
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
    let addresses = CACHE.resolve(name, look_up(name.to_owned())).await?;
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

#[derive(Debug, Default)]
struct ResolverCache(Mutex<BTreeMap<String, CachedName>>);

#[derive(Debug, Default)]
struct CachedName {
    /// The last result; empty if there was none.
    addresses: Vec<SocketAddr>,
    /// Whether the last lookup failed, which has been logged.
    is_failing: bool,
    is_in_flight: bool,
}

impl ResolverCache {
    /// The addresses of `name`: the result of `lookup`, or else the last result.
    async fn resolve(
        self: &Arc<Self>,
        name: &str,
        lookup: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        let Some((cached, is_in_flight)) = self.start_lookup(name) else { return lookup.await };
        // While the resolver hangs, other callers start no further lookups.
        if is_in_flight && !cached.is_empty() {
            return Ok(cached);
        }
        // In a task of its own, so that a late result is still cached, and a cancelled caller does not leave the
        // lookup in flight.
        let (cache, owned) = (self.clone(), name.to_owned());
        let mut task = tokio::spawn(async move {
            let in_flight = InFlightLookup { cache, name: owned };
            let result = lookup.await;
            in_flight.cache.record_result(&in_flight.name, result)
        });
        if cached.is_empty() {
            return task.await.map_err(io::Error::other)?;
        }
        match timeout(LOOKUP_TIMEOUT, &mut task).await {
            Ok(resolved) => resolved.map_err(io::Error::other)?,
            Err(_) => Ok(cached),
        }
    }

    /// The cached addresses of `name`, and whether a lookup was in flight already; `None` if the name is not cached.
    fn start_lookup(&self, name: &str) -> Option<(Vec<SocketAddr>, bool)> {
        let mut names = self.0.lock();
        if !names.contains_key(name) && names.len() >= CACHED_NAMES_MAX {
            return None;
        }
        let entry = names.entry(name.to_owned()).or_default();
        Some((entry.addresses.clone(), std::mem::replace(&mut entry.is_in_flight, true)))
    }

    /// Caches the result of a lookup; returns it, or the last result if it is an error.
    fn record_result(&self, name: &str, result: io::Result<Vec<SocketAddr>>) -> io::Result<Vec<SocketAddr>> {
        let mut names = self.0.lock();
        let entry = names.entry(name.to_owned()).or_default();
        let no_address = || io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        match result.and_then(|found| if found.is_empty() { Err(no_address()) } else { Ok(found) }) {
            Ok(found) => {
                if std::mem::take(&mut entry.is_failing) {
                    tracing::info!(name, "host name resolved again");
                }
                entry.addresses.clone_from(&found);
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

/// A lookup in flight. However it ends, dropping this lets the next caller start another.
struct InFlightLookup {
    cache: Arc<ResolverCache>,
    name: String,
}

impl Drop for InFlightLookup {
    fn drop(&mut self) {
        if let Some(name) = self.cache.0.lock().get_mut(&self.name) {
            name.is_in_flight = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
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
