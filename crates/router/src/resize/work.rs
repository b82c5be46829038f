//! The work of a change that takes time: polls of peers, their texts, emptying and purging of servers. All of it runs
//! in the task that polls [`WorkQueue::next`], and ends when the queue is dropped.

use super::coverage::{Emptying, Purge};
use super::history::{HistoryChange, HistoryError, HistoryStore};
use super::new_servers::{Emptied, empty_server};
use super::peer_poll::{PeerConnection, PollError};
use super::purge::{PurgeError, PurgeLimits, purge_server};
use super::recorder::{self, SeenRecord};
use super::report::CoverageReport;
use super::status::ResizeStatus;
use crate::config::router_config::RouterConfig;
use crate::tree::placement::Placement;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use lookaside_client::Network;
use lookaside_client::config::ConfigId;
use lookaside_routing::{Address, BoxFuture};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// The wait after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// What was done.
pub(crate) enum Done {
    Polled {
        peer: usize,
        polled_at: Instant,
        report: Box<Polled>,
    },
    /// `None` if the peer did not send it.
    Fetched {
        id: ConfigId,
        text: Option<String>,
    },
    Emptied {
        config: ConfigId,
        server: Address,
        /// `None` after a failure.
        emptied: Option<Emptied>,
    },
    Purged {
        purge: Purge,
        is_done: bool,
    },
    History {
        /// `None` after a read.
        change: Option<HistoryChange>,
        reply: Result<SeenRecord, HistoryError>,
    },
}

/// A report and the connection for the next poll.
type Polled = Result<(PeerConnection, CoverageReport), PollError>;

/// What is to be done.
pub(super) enum Work {
    Fetch {
        peer: Address,
        id: ConfigId,
    },
    Empty {
        config: ConfigId,
        server: Address,
        emptying: Emptying,
    },
    Purge {
        purge: Purge,
        config: Arc<RouterConfig>,
        kept: Vec<Arc<RouterConfig>>,
    },
    /// Replaces the shared history, or reads it.
    History {
        store: Arc<dyn HistoryStore>,
        change: Option<HistoryChange>,
    },
    /// Reads a text that the shared history names.
    FetchRecorded {
        store: Arc<dyn HistoryStore>,
        id: ConfigId,
    },
}

/// Names work that runs, so that it is not started twice.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum WorkId {
    Fetch(ConfigId),
    Empty(ConfigId, Address),
    Purge(Purge),
    History,
}

pub(super) struct WorkQueue {
    network: Arc<dyn Network>,
    status: Arc<ResizeStatus>,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    started: BTreeSet<WorkId>,
    /// Work that was begun and has not succeeded yet. Its next attempt waits, and is not logged if it fails.
    attempted: BTreeSet<WorkId>,
    /// Work that was asked for since [`WorkQueue::retain_requested`].
    requested: BTreeSet<WorkId>,
    /// The purge that was started last.
    last_purge: Option<Purge>,
    purge_limits: PurgeLimits,
}

impl WorkQueue {
    /// Without work, of one of `routers` that change the same servers.
    pub(super) fn new(network: Arc<dyn Network>, status: Arc<ResizeStatus>, routers: usize) -> WorkQueue {
        let (running, started, attempted) = (FuturesUnordered::new(), BTreeSet::new(), BTreeSet::new());
        let (purge_limits, requested) = (PurgeLimits::shared_by(routers), BTreeSet::new());
        WorkQueue { network, status, running, started, attempted, requested, last_purge: None, purge_limits }
    }

    pub(super) fn clear(&mut self) {
        self.running.clear();
        self.started.clear();
    }

    /// Which of these purges to start; `None` if one runs: it costs time on this thread. They take turns, so a server
    /// that does not answer delays the others by one attempt.
    pub(super) fn next_purge(&self, purges: &[Purge]) -> Option<Purge> {
        if self.started.iter().any(|id| matches!(id, WorkId::Purge(_))) {
            return None;
        }
        let after_last = purges.iter().filter(|&purge| Some(purge) > self.last_purge.as_ref()).min();
        after_last.or(purges.iter().min()).cloned()
    }

    /// Starts work unless it runs.
    pub(super) fn start(&mut self, work: Work) {
        let id = match &work {
            Work::Fetch { id, .. } | Work::FetchRecorded { id, .. } => WorkId::Fetch(*id),
            Work::History { .. } => WorkId::History,
            Work::Empty { config, server, .. } => WorkId::Empty(*config, server.clone()),
            Work::Purge { purge, .. } => WorkId::Purge(purge.clone()),
        };
        self.requested.insert(id.clone());
        if !self.started.insert(id.clone()) {
            return;
        }
        if let Work::Purge { purge, .. } = &work {
            self.last_purge = Some(purge.clone());
        }
        let delay = if self.attempted.contains(&id) { RETRY } else { Duration::ZERO };
        let (network, status, limits) = (self.network.clone(), self.status.clone(), self.purge_limits);
        let is_logged = self.attempted.insert(id);
        self.running.push(Box::pin(async move {
            sleep(delay).await;
            match work {
                Work::Fetch { peer, id } => fetch(&*network, &peer, id, is_logged).await,
                Work::Empty { config, server, emptying } => {
                    empty(&*network, config, (server, emptying), &status, is_logged).await
                }
                Work::Purge { purge, config, kept } => {
                    remove_misplaced(&*network, purge, &config, &kept, limits, &status, is_logged).await
                }
                Work::History { store, change } => {
                    let reply = ask_history(&*store, change.clone()).await;
                    Done::History { change, reply }
                }
                Work::FetchRecorded { store, id } => fetch_recorded(&*store, id, is_logged).await,
            }
        }));
    }

    /// Drops the attempts at work that is no longer needed: it does not run, is none of `purges`, and was not asked for
    /// since the last call.
    pub(super) fn retain_requested(&mut self, purges: &[Purge]) {
        let requested = std::mem::take(&mut self.requested);
        self.attempted.retain(|id| {
            // Purges take turns.
            let is_pending = matches!(id, WorkId::Purge(purge) if purges.contains(purge));
            is_pending || requested.contains(id) || self.started.contains(id)
        });
    }

    /// The next that is done. Cancel safe.
    pub(super) async fn next(&mut self) -> Done {
        let Some(done) = self.running.next().await else { return std::future::pending().await };
        let (id, is_done) = match &done {
            Done::Polled { .. } => return done,
            Done::Fetched { id, text } => (WorkId::Fetch(*id), text.is_some()),
            Done::Emptied { config, server, emptied } => {
                let is_done = !matches!(emptied, None | Some(Emptied::HoldsItems));
                (WorkId::Empty(*config, server.clone()), is_done)
            }
            Done::Purged { purge, is_done } => (WorkId::Purge(purge.clone()), *is_done),
            Done::History { reply, .. } => (WorkId::History, reply.is_ok()),
        };
        self.started.remove(&id);
        if is_done {
            self.attempted.remove(&id);
        }
        done
    }
}

async fn fetch(network: &dyn Network, peer: &Address, id: ConfigId, is_logged: bool) -> Done {
    let fetched = async { PeerConnection::connect(network, peer).await?.text(id).await };
    let text = fetched.await.unwrap_or_else(|error| {
        if is_logged {
            tracing::warn!(%peer, configuration = %id, %error, "cannot read a configuration of a peer; trying again");
        }
        None
    });
    Done::Fetched { id, text }
}

async fn ask_history(store: &dyn HistoryStore, change: Option<HistoryChange>) -> Result<SeenRecord, HistoryError> {
    let stored = match change {
        Some(change) => store.replace(change).await,
        None => store.read().await,
    };
    recorder::parse(&stored?)
}

async fn fetch_recorded(store: &dyn HistoryStore, id: ConfigId, is_logged: bool) -> Done {
    let text = store.read_text(id).await;
    if let (true, Err(error)) = (is_logged, &text) {
        tracing::warn!(configuration = %id, %error, "cannot read a configuration of the history; trying again");
    }
    Done::Fetched { id, text: text.ok().flatten() }
}

async fn empty(
    network: &dyn Network,
    config: ConfigId,
    (server, emptying): (Address, Emptying),
    status: &ResizeStatus,
    is_logged: bool,
) -> Done {
    let emptied = empty_server(network, &server, emptying).await;
    match &emptied {
        Ok(Emptied::WasEmpty) => tracing::info!(%server, "a new server holds no items"),
        Ok(Emptied::Flushed) => {
            status.servers_emptied.add(1);
            tracing::info!(%server, "flushed a new server: it has missed deletes");
        }
        Ok(Emptied::FlushedWithLeases) => {
            status.servers_emptied.add(1);
            status.lease_voids_refused.add(1);
            tracing::warn!(
                %server,
                "flushed a new server that has leases and does not know lease-void-all; upgrade the servers before the routers"
            );
        }
        Err(error) if is_logged && emptying == Emptying::Check => tracing::warn!(
            %server, %error,
            "cannot ask a server of a pool under a new name whether it is empty, so the new configuration waits; start the \
             server, or give the pool \"flush_new_servers\": false if it is another cluster's"
        ),
        Err(error) if is_logged => tracing::warn!(
            %server, %error,
            "cannot empty a new server, so the new configuration waits; start the server, and allow flush_all"
        ),
        // Logged when it is known that no other router has filled it.
        Ok(Emptied::HoldsItems) | Err(_) => {}
    }
    Done::Emptied { config, server, emptied: emptied.ok() }
}

async fn remove_misplaced(
    network: &dyn Network,
    purge: Purge,
    config: &RouterConfig,
    kept: &[Arc<RouterConfig>],
    limits: PurgeLimits,
    status: &ResizeStatus,
    is_logged: bool,
) -> Done {
    let server = &purge.server;
    let former = Placement::of(config);
    let kept: Vec<Placement> = kept.iter().map(|config| Placement::of(config)).collect();
    let is_misplaced = |stored: &Bytes| former.misplaces(server, stored, &kept);
    let purged = purge_server(network, server, &is_misplaced, limits, &status.purges).await;
    status.lease_voids_refused.add(matches!(purged, Err(PurgeError::LeasesHold)).into());
    match &purged {
        Ok(removed) => tracing::info!(%server, removed, "removed the copies that a former configuration placed"),
        Err(error) if is_logged => tracing::warn!(
            %server, %error,
            "cannot remove the copies that a former configuration placed, so deletes still go to its servers; trying again"
        ),
        Err(_) => {}
    }
    Done::Purged { is_done: purged.is_ok(), purge }
}

/// The other routers, as far as they are polled.
pub(super) struct Peers {
    network: Arc<dyn Network>,
    peers: Vec<Peer>,
}

struct Peer {
    address: Address,
    connection: Option<PeerConnection>,
    is_polling: bool,
    polled_at: Option<Instant>,
    is_unreachable: bool,
}

impl Peers {
    pub(super) fn new(addresses: Vec<Address>, network: Arc<dyn Network>) -> Peers {
        let peer =
            |address| Peer { address, connection: None, is_polling: false, polled_at: None, is_unreachable: false };
        Peers { network, peers: addresses.into_iter().map(peer).collect() }
    }

    pub(super) fn address(&self, peer: usize) -> &Address {
        &self.peers[peer].address
    }

    pub(super) fn disconnect(&mut self) {
        for peer in &mut self.peers {
            (peer.connection, peer.is_polling) = (None, false);
        }
    }

    /// Polls each peer that was last polled `interval` ago.
    pub(super) fn start_polls(&mut self, interval: Duration, queue: &mut WorkQueue) {
        for (at, peer) in self.peers.iter_mut().enumerate() {
            let is_due = peer.polled_at.is_none_or(|polled_at| polled_at.elapsed() >= interval);
            if peer.is_polling || !is_due {
                continue;
            }
            let polled_at = Instant::now();
            (peer.is_polling, peer.polled_at) = (true, Some(polled_at));
            let (network, address, connection) = (self.network.clone(), peer.address.clone(), peer.connection.take());
            queue.running.push(Box::pin(async move {
                let report = poll(&*network, &address, connection).await;
                Done::Polled { peer: at, polled_at, report: Box::new(report) }
            }));
        }
    }

    /// The report of a poll that has ended; `None` if it failed.
    pub(super) fn record_poll(&mut self, peer: usize, polled: Polled) -> Option<CoverageReport> {
        let peer = &mut self.peers[peer];
        peer.is_polling = false;
        match polled {
            Ok((connection, report)) => {
                peer.connection = Some(connection);
                if std::mem::take(&mut peer.is_unreachable) {
                    tracing::info!(peer = %peer.address, "peer reports its configurations again");
                }
                Some(report)
            }
            Err(error) => {
                if !std::mem::replace(&mut peer.is_unreachable, true) {
                    // Routers are started one by one. A change that waits for the peer is warned of by itself.
                    tracing::info!(
                        peer = %peer.address, %error,
                        "peer does not report its configurations; a new configuration would wait until it does"
                    );
                }
                None
            }
        }
    }
}

async fn poll(network: &dyn Network, peer: &Address, connection: Option<PeerConnection>) -> Polled {
    if let Some(mut connection) = connection
        && let Ok(report) = connection.report().await
    {
        return Ok((connection, report));
    }
    // The peer may have been restarted.
    let mut connection = PeerConnection::connect(network, peer).await?;
    let report = connection.report().await?;
    Ok((connection, report))
}

/// The reports of all peers that reply within `wait_max`, and the texts of the configurations that they name.
pub(crate) async fn ask_peers(
    network: &dyn Network,
    peers: &[Address],
    wait_max: Duration,
) -> (Vec<CoverageReport>, Vec<String>) {
    let ask = |peer| async move {
        let mut connection = PeerConnection::connect(network, peer).await?;
        let report = connection.report().await?;
        let mut texts = Vec::new();
        for id in report.covers.iter().chain(&report.reads).chain(&report.waits_for) {
            texts.extend(connection.text(*id).await?);
        }
        Ok::<_, PollError>((report, texts))
    };
    // One that hangs must not hide the reports of the others.
    let ask_within = |peer| async move { timeout(wait_max, ask(peer)).await };
    let asked = futures_util::future::join_all(peers.iter().map(ask_within)).await;
    let (mut reports, mut texts) = (Vec::new(), Vec::new());
    for (peer, reply) in peers.iter().zip(asked) {
        match reply {
            Ok(Ok((report, of_peer))) => {
                reports.push(report);
                texts.extend(of_peer);
            }
            Ok(Err(error)) => tracing::info!(%peer, %error, "peer does not tell which configurations it covers"),
            Err(_) => tracing::info!(%peer, "peer does not tell in time which configurations it covers"),
        }
    }
    (reports, texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_client::TcpNetwork;

    /// The first of them was tried again and again while it was out of reach, and no other server was listed.
    #[tokio::test]
    async fn purges_take_turns() {
        let mut work = WorkQueue::new(Arc::new(TcpNetwork), Arc::default(), 3);
        assert_eq!(work.purge_limits.keys_per_s_max, 33_333, "a third of what one router alone lists");
        let config = ConfigId::parse(&"0".repeat(32)).expect("hexadecimal");
        let purges = ["b:1", "a:1", "c:1"].map(|server| Purge { config, server: Address(server.into()), number: 1 });
        let mut tried = Vec::new();
        for _ in 0..5 {
            let next = work.next_purge(&purges).expect("none runs");
            work.started.insert(WorkId::Purge(next.clone()));
            assert_eq!(work.next_purge(&purges), None, "one at a time");
            work.started.clear();
            tried.push(next.server.to_string());
            work.last_purge = Some(next);
        }
        assert_eq!(tried, ["a:1", "b:1", "c:1", "a:1", "b:1"]);
        assert_eq!(work.next_purge(&[]), None);
    }

    /// The work of each configuration that was given up stayed there.
    #[tokio::test]
    async fn failures_of_work_that_is_not_needed_any_more_are_dropped() {
        let mut work = WorkQueue::new(Arc::new(TcpNetwork), Arc::default(), 1);
        let config = ConfigId(7);
        let server = |name: &str| Address(name.into());
        let empty = |name| WorkId::Empty(config, server(name));
        let purge = Purge { config, server: server("c:1"), number: 1 };
        work.attempted = [empty("a:1"), empty("b:1"), WorkId::Purge(purge.clone())].into();
        work.start(Work::Empty { config, server: server("a:1"), emptying: Emptying::Flush });
        work.start(Work::Empty { config, server: server("d:1"), emptying: Emptying::Flush });
        work.retain_requested(std::slice::from_ref(&purge));
        assert_eq!(work.attempted.len(), 3, "what runs for the first time, what runs again, and a purge");
        assert!(!work.attempted.contains(&empty("b:1")));
        work.clear();
        work.retain_requested(&[]);
        assert!(work.attempted.is_empty());
    }
}
