//! The keys that servers have, by `lru_crawler metadump`.
//!
//! All servers are listed side by side. A server that cannot be listed is a failure of its own: the keys of the others
//! are compared all the same. It is tried again after delays that grow, so that a server that hangs does not hold up
//! each round.

use super::{backoff::Backoff, key_sample::KeySample};
use anyhow::{Context as _, Error, Result, anyhow, bail};
use futures_util::future::join_all;
use lookaside_client::{CommandConnection, Network};
use lookaside_protocol::{percent, text::Limits};
use lookaside_routing::Address;
use std::{cell::RefCell, time::Duration};
use tokio::time::{Instant, timeout};

/// A line has a key, percent-encoded, and some numbers.
const LIMITS: Limits = Limits { value_bytes_max: 0, line_bytes_max: 4_096 };
/// How long connecting may take, and the time between two lines.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a listing may take that goes on all the time.
const LISTING_TIMEOUT: Duration = Duration::from_secs(600);

/// The servers that are listed.
pub struct KeyListing(Vec<ListedServer>);

struct ListedServer {
    address: Address,
    backoff: Backoff,
}

impl KeyListing {
    /// Of the servers at these addresses.
    pub fn new(addresses: &[String]) -> KeyListing {
        let server =
            |address: &String| ListedServer { address: Address(address.as_str().into()), backoff: Backoff::default() };
        KeyListing(addresses.iter().map(server).collect())
    }

    /// Adds the keys of all servers to the sample. Returns why servers could not be listed, or not to the end.
    pub async fn add_keys(&mut self, network: &dyn Network, sample: &mut KeySample) -> Vec<Error> {
        let sample = RefCell::new(sample);
        let listed = self.0.iter_mut().map(|server| server.add_keys(network, &sample));
        join_all(listed).await.into_iter().filter_map(Result::err).collect()
    }
}

impl ListedServer {
    async fn add_keys(&mut self, network: &dyn Network, sample: &RefCell<&mut KeySample>) -> Result<()> {
        let place = || format!("listing the keys of {}", self.address);
        if self.backoff.is_waiting(Instant::now()) {
            return Err(anyhow!("it could not be listed; waiting").context(place()));
        }
        let add = |key| sample.borrow_mut().add(key);
        let listed = match timeout(LISTING_TIMEOUT, list_keys(network, &self.address, add)).await {
            Ok(listed) => listed,
            Err(_) => Err(anyhow!("it takes longer than {LISTING_TIMEOUT:?}")),
        };
        let listed = listed.with_context(place);
        match listed {
            Ok(()) => self.backoff.reset(),
            Err(_) => self.backoff.fail(Instant::now()),
        }
        listed
    }
}

async fn list_keys(network: &dyn Network, server: &Address, mut add: impl FnMut(Vec<u8>)) -> Result<()> {
    let mut connection = CommandConnection::connect(network, server, LIMITS, IDLE_TIMEOUT).await?;
    connection.send(b"lru_crawler metadump all\r\n").await?;
    loop {
        connection.set_timeout(IDLE_TIMEOUT);
        let line = connection.read_line().await?;
        if line == b"END" {
            return Ok(());
        }
        // memcached begins the listing at once, this project's server after a line.
        if line == b"OK" {
            continue;
        }
        let Some(rest) = line.strip_prefix(b"key=") else {
            bail!("the server's reply has the line {:?}; expected key=... or END", String::from_utf8_lossy(line))
        };
        let key = rest.split(|&byte| byte == b' ').next().unwrap_or_default();
        let malformed = || anyhow!("the key {:?} is not percent-encoded", String::from_utf8_lossy(key));
        add(percent::decode(key).ok_or_else(malformed)?);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_client::{Listener, Stream};
    use lookaside_routing::BoxFuture;
    use std::{future::ready, io};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Each server sends what its name leads to, and closes the connection; `hung` stays connected.
    struct PlayedServers;

    impl Network for PlayedServers {
        fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
            let listing = match &*address.0 {
                "one:1" => "OK\r\nkey=a exp=-1\r\nkey=b%20c exp=-1\r\nEND\r\n",
                "hung:1" => "key=d exp=-1\r\n",
                "busy:1" => "BUSY crawler\r\n",
                "last:1" => "key=e exp=-1\r\nEND\r\n",
                _ => return Box::pin(ready(Err(io::ErrorKind::ConnectionRefused.into()))),
            };
            let (ours, mut theirs) = tokio::io::duplex(1 << 10);
            let hangs = &*address.0 == "hung:1";
            tokio::spawn(async move {
                let mut command = [0; 26];
                theirs.read_exact(&mut command).await.expect("the client sends its command");
                theirs.write_all(listing.as_bytes()).await.expect("the client reads");
                if hangs {
                    std::future::pending::<()>().await;
                }
            });
            Box::pin(ready(Ok(Box::new(ours) as Box<dyn Stream>)))
        }

        fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
            Box::pin(ready(Err(io::ErrorKind::Unsupported.into())))
        }
    }

    /// The first server that could not be listed ended the listing of all, and one that hung held it up for ten
    /// minutes.
    #[tokio::test(start_paused = true)]
    async fn the_keys_of_all_other_servers_are_listed() {
        let servers = ["one:1", "killed:1", "hung:1", "busy:1", "last:1"].map(ToOwned::to_owned);
        let mut listing = KeyListing::new(&servers);
        let (mut sample, begun) = (KeySample::new(10, 1), Instant::now());
        let failures = listing.add_keys(&PlayedServers, &mut sample).await;
        assert!((IDLE_TIMEOUT..2 * IDLE_TIMEOUT).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        let mut keys = sample.into_keys();
        keys.sort();
        assert_eq!(keys, [&b"a"[..], b"b c", b"d", b"e"]);
        let failed: Vec<String> = failures.iter().map(|why| format!("{why:#}")).collect();
        assert_eq!(failed.len(), 3, "{failed:?}");
        for (why, server) in failed.iter().zip(&servers[1..4]) {
            assert!(why.contains(server.as_str()), "{why}");
        }
        assert!(failed[2].contains(r#"the line "BUSY crawler"; expected key="#), "{}", failed[2]);
        // The hung one is not tried again at once: it would hold up each round.
        let (mut sample, begun) = (KeySample::new(10, 1), Instant::now());
        let failures = listing.add_keys(&PlayedServers, &mut sample).await;
        assert!(failures.iter().any(|why| format!("{why:#}").contains("hung:1: it could not")), "{failures:?}");
        assert!(begun.elapsed() < IDLE_TIMEOUT, "{:?}", begun.elapsed());
    }
}
