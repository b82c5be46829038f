//! Names of servers: where they lead, and what to do when the resolver does not say. Serves every path, but only where a
//! connection is made.
//!
//! A name is looked up for each connection, so that a server which has moved is found where it is now. What was found last
//! is remembered for the whole process, and used when the resolver fails, or takes longer than a server may: an outage
//! of the resolver is none of the cache. That is logged once, and its end.
//!
//! ```text
//!   name --> resolver --> all addresses, in its order --> the first; a moment later the second beside it; ...
//!               | fails, or is slow                          whoever answers first is the connection
//!               '--> what it said last
//! ```
//!
//! Absent on purpose: how long an answer is good for. The system's resolver does not tell; [`crate::DestinationOptions`]
//! says how often a server in use is looked up again.

use std::{
    collections::BTreeMap,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    net::{TcpStream, lookup_host},
    task::JoinSet,
    time::{sleep, timeout},
};

/// Names that are remembered. Of more, an outage of the resolver is an outage.
const NAMES_MAX: usize = 10_000;
/// How long the resolver is waited for where it has been known to answer.
const LOOKUP_MAX: Duration = Duration::from_millis(200);
/// How long one address may be silent before the next is tried beside it.
const STAGGER: Duration = Duration::from_millis(100);
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

/// What the system's resolver has said.
static NAMES: LazyLock<Arc<Names>> = LazyLock::new(Arc::default);

/// Connects to `name`, which is `host:port`.
pub(crate) async fn connect(name: &str) -> io::Result<TcpStream> {
    let addresses = match name.parse() {
        Ok(address) => vec![address],
        Err(_) => NAMES.look_up(name, found(name.to_owned())).await?,
    };
    match &*addresses {
        [only] => TcpStream::connect(only).await,
        _ => connect_first(&addresses).await,
    }
}

/// The addresses of `name`, which is `host:port`; none where it is a number itself.
pub(crate) async fn addresses(name: &str) -> io::Result<Vec<IpAddr>> {
    if name.parse::<SocketAddr>().is_ok() {
        return Ok(Vec::new());
    }
    let addresses = NAMES.look_up(name, found(name.to_owned())).await?;
    Ok(addresses.iter().map(SocketAddr::ip).collect())
}

async fn found(name: String) -> io::Result<Vec<SocketAddr>> {
    Ok(lookup_host(name).await?.take(ADDRESSES_MAX).collect())
}

/// The connection to whichever address answers first.
async fn connect_first(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name stands for no address");
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
            () = sleep(STAGGER), if rest.len() > 0 => {}
        }
    }
}

#[derive(Debug, Default)]
struct Names(Mutex<BTreeMap<String, Known>>);

/// What is known of one name.
#[derive(Debug, Default)]
struct Known {
    /// Where it led when the resolver last said so; empty if it never did.
    addresses: Vec<SocketAddr>,
    /// The resolver failed the last time; that has been said.
    is_failing: bool,
    /// Somebody is asking.
    is_asked: bool,
}

impl Names {
    /// Where `name` leads: what `found` brings, or what it brought the last time.
    async fn look_up(
        self: &Arc<Self>,
        name: &str,
        found: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        let Some((known, is_asked)) = self.begin(name) else { return found.await };
        // A resolver that hangs is not asked again by everybody.
        if is_asked && !known.is_empty() {
            return Ok(known);
        }
        // In a task of its own, so that an answer which comes late is still learnt, and one who asks always stops asking.
        let (names, owned) = (self.clone(), name.to_owned());
        let mut asking = tokio::spawn(async move {
            let asking = Asking { names, name: owned };
            let found = found.await;
            asking.names.learn(&asking.name, found)
        });
        if known.is_empty() {
            return asking.await.map_err(io::Error::other)?;
        }
        match timeout(LOOKUP_MAX, &mut asking).await {
            Ok(learnt) => learnt.map_err(io::Error::other)?,
            Err(_) => Ok(known),
        }
    }

    /// What is known of `name`, and whether somebody is asking; nothing where it is not remembered.
    fn begin(&self, name: &str) -> Option<(Vec<SocketAddr>, bool)> {
        let mut names = self.lock();
        if !names.contains_key(name) && names.len() >= NAMES_MAX {
            return None;
        }
        let entry = names.entry(name.to_owned()).or_default();
        Some((entry.addresses.clone(), std::mem::replace(&mut entry.is_asked, true)))
    }

    /// Takes note of what the resolver said, and says what to do now.
    fn learn(&self, name: &str, found: io::Result<Vec<SocketAddr>>) -> io::Result<Vec<SocketAddr>> {
        let mut names = self.lock();
        let entry = names.entry(name.to_owned()).or_default();
        let nothing = || io::Error::new(io::ErrorKind::NotFound, "the name stands for no address");
        match found.and_then(|found| if found.is_empty() { Err(nothing()) } else { Ok(found) }) {
            Ok(found) => {
                if std::mem::take(&mut entry.is_failing) {
                    tracing::info!(name, "the name can be resolved again");
                }
                entry.addresses.clone_from(&found);
                Ok(found)
            }
            Err(error) => {
                let is_known = !entry.addresses.is_empty();
                if !std::mem::replace(&mut entry.is_failing, true) {
                    let meanwhile =
                        if is_known { "what it stood for last stays in use" } else { "it cannot be reached" };
                    tracing::warn!(name, %error, "the name of a server cannot be resolved: {meanwhile}");
                }
                if is_known { Ok(entry.addresses.clone()) } else { Err(error) }
            }
        }
    }

    /// Nothing panics under the lock; if it did, what it guards is still whole.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody asks the resolver. However that ends, the next may ask again.
struct Asking {
    names: Arc<Names>,
    name: String,
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(known) = self.names.lock().get_mut(&self.name) {
            known.is_asked = false;
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
    async fn what_the_resolver_said_last_is_used_while_it_fails_or_hangs() {
        let names = Arc::new(Names::default());
        assert!(names.look_up(NAME, ready(failure())).await.is_err(), "nothing is known yet");
        assert_eq!(names.look_up(NAME, ready(Ok(addresses(1)))).await.unwrap(), addresses(1));
        assert_eq!(names.look_up(NAME, ready(failure())).await.unwrap(), addresses(1));
        assert_eq!(names.look_up(NAME, ready(Ok(Vec::new()))).await.unwrap(), addresses(1));
        assert_eq!(names.look_up(NAME, ready(Ok(addresses(2)))).await.unwrap(), addresses(2));
        let begun = Instant::now();
        assert_eq!(names.look_up(NAME, pending()).await.unwrap(), addresses(2));
        assert_eq!(begun.elapsed(), LOOKUP_MAX);
        let asked = async { panic!("asked although somebody is waiting for it already") };
        assert_eq!(names.look_up(NAME, asked).await.unwrap(), addresses(2));
        assert_eq!(begun.elapsed(), LOOKUP_MAX, "and nobody waits twice");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_late_counts_from_then_on() {
        let names = Arc::new(Names::default());
        names.look_up(NAME, ready(Ok(addresses(1)))).await.unwrap();
        let late = async {
            sleep(LOOKUP_MAX * 3).await;
            Ok(addresses(2))
        };
        assert_eq!(names.look_up(NAME, late).await.unwrap(), addresses(1));
        sleep(LOOKUP_MAX * 3).await;
        assert_eq!(names.look_up(NAME, ready(failure())).await.unwrap(), addresses(2));
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_and_dies_leaves_the_question_to_the_next() {
        let names = Arc::new(Names::default());
        names.look_up(NAME, ready(Ok(addresses(1)))).await.unwrap();
        assert!(names.look_up(NAME, async { panic!("as a bug would") }).await.is_err());
        assert_eq!(names.look_up(NAME, ready(Ok(addresses(2)))).await.unwrap(), addresses(2));
    }

    #[tokio::test]
    async fn all_addresses_of_a_name_are_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = listener.local_addr().unwrap();
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let nobody = free.local_addr().unwrap();
        drop(free);
        let stream = connect_first(&[nobody, there]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), there);
        assert!(connect_first(&[nobody, nobody]).await.is_err());
        assert!(connect_first(&[]).await.is_err());
    }
}
