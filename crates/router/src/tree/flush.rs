//! Flushes: of all servers (`flush_all`), or of those that may hold keys with a prefix
//! (`get __mcrouter__.flush_prefix(PREFIX)`, [ADR 018](../../../../docs/adr/018-flush-by-prefix.md)).
//!
//! | a server | a flush that is due at once | a delayed one |
//! |---|---|---|
//! | replies OK | is done | is done |
//! | does not answer | with `--spool`: it is fenced until it is flushed, as for a delete; else an error | an error |
//! | refuses, or replies something else | an error | an error |
//! | is fenced | is not asked; it stays fenced until it is flushed | as any other |
//!
//! With `--spool` a flush that is due at once is answered within about 3 s, however many servers hang, and within twice
//! that during a change of the configuration: an invalidator gives a flush up after 10 s, and repeats it from the
//! start.

use super::Tree;
use crate::backend::flush::flush_server;
use futures_util::future::join_all;
use lookaside_client::{CommandError, Network};
use lookaside_routing::{Address, Destination as _};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// The most servers that are asked at the same time.
const ASKED_MAX: usize = 128;
/// How long servers are asked. Those that have not answered then are fenced, also if they were not asked: a router that
/// reaches them flushes them at once.
const ASKED_FOR: Duration = Duration::from_secs(2);

/// One flush of many servers.
struct FlushPass {
    delay_s: i64,
    /// Servers that are fenced as it begins.
    fenced: BTreeSet<Address>,
    asked: Semaphore,
    /// When servers are no longer asked.
    deadline: Instant,
}

impl FlushPass {
    async fn ask(&self, network: &dyn Network, server: &Address) -> Result<(), CommandError> {
        let _permit = self.asked.acquire().await.expect("it is never closed");
        flush_server(network, server, self.delay_s).await
    }
}

impl Tree {
    /// Flushes every server after `delay_s` seconds. The error names the servers that failed.
    pub(crate) async fn flush_all(&self, delay_s: i64) -> Result<(), String> {
        let servers = self.destinations.iter().map(|destination| destination.address().clone()).collect();
        self.flush(servers, delay_s).await
    }

    /// Flushes every server that may hold a key that begins with `key_prefix`, under any configuration that deletes
    /// cover. Returns how many these are.
    pub(crate) async fn flush_prefix(&self, key_prefix: &[u8]) -> Result<usize, String> {
        let Some(source) = &self.source else { return Ok(0) };
        let mut servers = source.config.servers_of_keys(key_prefix);
        for covered in source.covered_places.iter().flat_map(|places| places.covered()) {
            servers.extend(covered.config.servers_of_keys(key_prefix).difference(&covered.departed).cloned());
        }
        let count = servers.len();
        self.flush(servers, 0).await.map(|()| count)
    }

    /// Flushes a server that a peer cannot reach. False if the tree does not name it, or it does not answer.
    pub(crate) async fn flush_for_peer(&self, server: &Address) -> bool {
        let Some(source) = &self.source else { return false };
        let is_named = self.destinations.iter().any(|destination| destination.address() == server);
        is_named && flush_server(&*source.network, server, 0).await.is_ok()
    }

    async fn flush(&self, servers: BTreeSet<Address>, delay_s: i64) -> Result<(), String> {
        let is_changing = self.source.as_ref().is_some_and(|source| source.covered_places.is_some());
        // During a change a router may copy a value from a former owner that is flushed after the new one.
        let again = is_changing.then(|| second_flush_delay_s(delay_s));
        let servers: Vec<Address> = servers.into_iter().collect();
        let mut failed = BTreeMap::new();
        for delay_s in [delay_s].into_iter().chain(again) {
            let (fenced, asked) = (self.fenced(), Semaphore::new(ASKED_MAX));
            let pass = FlushPass { delay_s, fenced, asked, deadline: Instant::now() + ASKED_FOR };
            let flushed = join_all(servers.iter().map(|server| self.flush_or_spool(server, &pass))).await;
            let outcomes = servers.iter().zip(flushed);
            failed.extend(
                outcomes.filter_map(|(server, flushed)| Some((server, format!("{server} ({})", flushed.err()?)))),
            );
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(format!("not flushed: {}", Vec::from_iter(failed.into_values()).join(", "))),
        }
    }

    async fn flush_or_spool(&self, server: &Address, pass: &FlushPass) -> Result<(), String> {
        let Some(source) = &self.source else { return Ok(()) };
        let Some(spool) = self.spool().filter(|_| pass.delay_s == 0) else {
            return pass.ask(&*source.network, server).await.map_err(|why| why.to_string());
        };
        let why = match pass.fenced.contains(server) {
            true => "it is fenced".to_owned(),
            false => match timeout_at(pass.deadline, pass.ask(&*source.network, server)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(why)) if !is_unanswered(&why) => return Err(why.to_string()),
                Ok(Err(why)) => why.to_string(),
                Err(_) => "no answer in time".to_owned(),
            },
        };
        spool.flush(server).await.map_err(|error| format!("{why}; {error}"))
    }
}

fn is_unanswered(why: &CommandError) -> bool {
    matches!(why, CommandError::Connect(_) | CommandError::Io(_) | CommandError::Closed | CommandError::TimedOut(_))
}

/// A longer delay is a Unix time.
const FLUSH_DELAY_S_MAX: i64 = 60 * 60 * 24 * 30;

/// The delay of a second flush, which must come after the first one at all servers: their clocks may differ by less
/// than a second.
fn second_flush_delay_s(delay_s: i64) -> i64 {
    match delay_s {
        FLUSH_DELAY_S_MAX | ..=0 => delay_s,
        _ => delay_s + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::router_config::RouterConfig;
    use crate::tree::active_configs::{ActiveConfigs, CoveredConfig};
    use lookaside_client::{DestinationOptions, TcpNetwork};
    use lookaside_routing::Defaults;
    use lookaside_sync::Mutex;
    use std::sync::Arc;
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::TcpListener;

    #[test]
    fn a_second_flush_comes_a_second_later_unless_it_comes_at_once() {
        let month = super::FLUSH_DELAY_S_MAX;
        let delays = [-1, 0, 1, month - 1, month, month + 1].map(second_flush_delay_s);
        assert_eq!(delays, [-1, 0, 2, month, month, month + 2]);
    }

    /// The names of servers in the order of their flushes.
    type Flushes = Arc<Mutex<Vec<&'static str>>>;

    /// A server that accepts every flush; its address.
    async fn server(name: &'static str, flushes: &Flushes) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let flushes = flushes.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let flushes = flushes.clone();
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let mut line = String::new();
                    while stream.read_line(&mut line).await.is_ok_and(|bytes| bytes > 0) {
                        if std::mem::take(&mut line).starts_with("flush_all") {
                            flushes.lock().push(name);
                            stream.write_all(b"OK\r\n").await.expect("the client reads");
                        }
                    }
                });
            }
        });
        address
    }

    /// Keys that begin with `user:` at one server, all others at another.
    fn config(users: &str, rest: &str) -> Arc<RouterConfig> {
        let text = format!(
            r#"{{
                "pools": {{ "users": {{ "servers": ["{users}"] }}, "rest": {{ "servers": ["{rest}"] }} }},
                "route": {{
                    "type": "PrefixSelectorRoute", "policies": {{ "user:": "PoolRoute|users" }}, "wildcard": "PoolRoute|rest"
                }}
            }}"#
        );
        let config = RouterConfig::parse(&text, &Defaults::default(), &DestinationOptions::default());
        Arc::new(config.expect("the configuration is valid"))
    }

    /// A copy at a former owner must be flushed, too: it may be copied to the new one, or be read by another router.
    #[tokio::test]
    async fn a_flush_covers_what_deletes_cover_and_comes_twice_then() {
        let flushes = Flushes::default();
        let mut addresses = Vec::new();
        for name in ["new", "old", "departed", "rest"] {
            addresses.push(server(name, &flushes).await);
        }
        let [new, old, departed, rest] = &addresses[..] else { unreachable!("four servers") };
        let covered = |users: &str, departed: &[&str]| CoveredConfig {
            id: users.into(),
            config: config(users, rest),
            departed: departed.iter().map(|server| Address((*server).into())).collect(),
            is_released: false,
        };
        let single = ActiveConfigs::single(config(new, rest));
        let tree = Tree::build_active(&single, Arc::new(TcpNetwork), 0, None);
        assert_eq!(tree.flush_prefix(b"user:42").await, Ok(1));
        assert_eq!(std::mem::take(&mut *flushes.lock()), ["new"]);
        let covered = vec![covered(old, &[]), covered(departed, &[departed])];
        let changing = ActiveConfigs { covered, reads_at: 2, ..single };
        let tree = Tree::build_active(&changing, Arc::new(TcpNetwork), 0, None);
        assert_eq!(tree.flush_prefix(b"user:").await, Ok(2));
        let mut flushed = std::mem::take(&mut *flushes.lock());
        flushed[..2].sort_unstable();
        flushed[2..].sort_unstable();
        assert_eq!(flushed, ["new", "old", "new", "old"], "all once, then all again");
        assert_eq!(tree.flush_prefix(b"post:").await, Ok(1));
        assert_eq!(std::mem::take(&mut *flushes.lock()), ["rest", "rest"]);
    }
}
