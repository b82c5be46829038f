//! The task that keeps one peer's fences up to date and sends it the deletes that it is asked to forward
//! ([`super::peers`]).

use super::peer_protocol;
use super::peers::{Peer, Peers};
use super::server_log::BacklogState;
use super::settings::PeerMissing;
use lookaside_client::{CommandConnection, CommandError, Network};
use lookaside_protocol::Reply;
use lookaside_protocol::text::{Limits, ReplyPart};
use lookaside_routing::Address;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The most keys in one get: each may cost the peer a sync of its disk.
const KEYS_PER_GET_MAX: usize = 50;
/// The wait after a failed synchronization.
const RETRY: Duration = Duration::from_millis(200);
const LIMITS: Limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 2_048 };

type GetBacklogState<'a> = &'a (dyn Fn(&Address) -> BacklogState + Sync);

#[derive(Debug)]
enum PeerError {
    Connection(CommandError),
    /// It does not answer the requests of the spool.
    NoSpool,
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerError::Connection(error) => error.fmt(f),
            PeerError::NoSpool => f.write_str("it has no --spool or no --spool-peers, or it is this router itself"),
        }
    }
}

impl From<CommandError> for PeerError {
    fn from(error: CommandError) -> PeerError {
        PeerError::Connection(error)
    }
}

/// Synchronizes the peer at `index` and forwards deletes through it, until it is dropped. One call for each peer.
pub(super) async fn run(peers: &Peers, index: usize, network: &dyn Network, backlog_state: GetBacklogState<'_>) {
    let peer = peers.peer(index);
    let taken = peer.forward_queue.lock().take();
    let Some(mut forward_queue) = taken else { return std::future::pending().await };
    let mut sync = PeerSync {
        peers,
        peer,
        connection: None,
        queried_at: Instant::now(),
        unreleased: BTreeSet::new(),
        last_error: None,
        logged: Reachability::Reachable,
    };
    loop {
        let was_connected = sync.connection.is_some();
        let mut is_synced = sync.try_sync(network, backlog_state).await;
        if !is_synced && was_connected {
            // The peer may only have been restarted.
            is_synced = sync.try_sync(network, backlog_state).await;
        }
        peer.is_unreachable.store(!is_synced, Relaxed);
        sync.log_reachability(is_synced);
        peer.sync_counts.send_modify(|counts| match is_synced {
            true => counts.successes += 1,
            false => counts.failures += 1,
        });
        let pause = if is_synced { peers.confirmed_for() / 2 } else { RETRY };
        tokio::select! {
            biased;
            () = peer.sync_requested.notified() => {}
            request = forward_queue.recv() => {
                let request = request.expect("the peer itself holds a sender");
                if request.reply.is_closed() {
                    continue; // The caller has given up, and will ask again.
                }
                let forwarded = sync.forward(network, &request.keys).await;
                if forwarded.is_err() {
                    sync.connection = None;
                }
                let _ = request.reply.send(matches!(forwarded, Ok(true)));
            }
            () = sleep(pause) => {}
        }
    }
}

struct PeerSync<'a> {
    peers: &'a Peers,
    peer: &'a Peer,
    connection: Option<CommandConnection>,
    /// When the peer was last asked which servers it has fenced for this router.
    queried_at: Instant,
    /// Servers that it may have fenced and need not.
    unreleased: BTreeSet<Address>,
    last_error: Option<PeerError>,
    /// What the log says.
    logged: Reachability,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reachability {
    Reachable,
    /// Nothing depends on the peer now: the routers of a cluster are started one by one.
    Unreachable,
    /// Deletes depend on the peer, or it can never confirm a fence.
    Missing,
}

impl PeerSync<'_> {
    async fn try_sync(&mut self, network: &dyn Network, backlog_state: GetBacklogState<'_>) -> bool {
        let result = self.sync(network, backlog_state).await;
        let is_synced = result.is_ok();
        if let Err(error) = result {
            tracing::debug!(peer = %self.peer.address, %error, "cannot synchronize a spool peer");
            self.last_error = Some(error);
            self.connection = None;
        }
        is_synced
    }

    /// Logs when the peer becomes unreachable, when deletes depend on it then, and when it is back.
    fn log_reachability(&mut self, is_synced: bool) {
        let is_missing = || !self.peer.fences.lock().is_empty() || matches!(self.last_error, Some(PeerError::NoSpool));
        let reachability = match is_synced {
            true => Reachability::Reachable,
            false if is_missing() => Reachability::Missing,
            false => Reachability::Unreachable.max(self.logged),
        };
        if std::mem::replace(&mut self.logged, reachability) == reachability {
            return;
        }
        let peer = &self.peer.address;
        let error = self.last_error.as_ref().map(tracing::field::display);
        match (reachability, self.peers.missing()) {
            (Reachability::Reachable, _) => tracing::info!(%peer, "spool peer reachable again"),
            (Reachability::Unreachable, _) => {
                tracing::info!(%peer, error, "spool peer unreachable; no delete needs it now");
            }
            (Reachability::Missing, PeerMissing::Fail) => tracing::warn!(
                %peer, error,
                "spool peer unreachable: deletes that a server does not answer fail until it returns"
            ),
            (Reachability::Missing, PeerMissing::Ignore) => tracing::warn!(
                %peer, error,
                "spool peer unreachable: it may serve deleted values until it returns"
            ),
        }
    }

    /// Releases servers without a backlog and renews the fences of the others.
    async fn sync(&mut self, network: &dyn Network, backlog_state: GetBacklogState<'_>) -> Result<(), PeerError> {
        let fenced = self.update_fences(backlog_state);
        let is_new = self.connection.is_none();
        self.connect(network).await?;
        if is_new || self.queried_at.elapsed() > self.peers.confirmed_for() / 4 {
            self.query_fenced(&fenced, backlog_state).await?;
        }
        self.release_servers().await?;
        self.renew_fences(&fenced).await
    }

    /// The servers with a backlog. The others are removed together with their confirmations before anything is sent,
    /// so that a delete that is spooled from now on waits for a new confirmation.
    fn update_fences(&mut self, backlog_state: GetBacklogState<'_>) -> Vec<Address> {
        let mut fences = self.peer.fences.lock();
        let unreleased = &mut self.unreleased;
        fences.retain(|server, _| {
            let state = backlog_state(server);
            match state {
                BacklogState::Replaying => drop(unreleased.remove(server)),
                BacklogState::Empty => drop(unreleased.insert(server.clone())),
                BacklogState::Abandoned => {}
            }
            state == BacklogState::Replaying
        });
        fences.keys().cloned().collect()
    }

    /// Finds fences that need to be released: those set on an earlier connection, or in an earlier run, and those that
    /// a crash of the peer's machine has restored. The query also detects a dead connection.
    async fn query_fenced(&mut self, fenced: &[Address], backlog_state: GetBacklogState<'_>) -> Result<(), PeerError> {
        self.queried_at = Instant::now();
        let reply = self.get(&[peer_protocol::fenced_query(self.peers.own_id())]).await?.remove(0);
        let reply = String::from_utf8(reply.ok_or(PeerError::NoSpool)?).unwrap_or_default();
        let at_peer = reply.split("\r\n").filter(|line| !line.is_empty()).map(|line| Address(line.into()));
        // A server in `fenced` may have a valid confirmation. It is released after it was removed there.
        let is_unneeded = |server: &Address| !fenced.contains(server) && backlog_state(server) == BacklogState::Empty;
        self.unreleased.extend(at_peer.filter(is_unneeded));
        Ok(())
    }

    async fn release_servers(&mut self) -> Result<(), PeerError> {
        let compose = |server| peer_protocol::release_request(self.peers.own_id(), self.peers.next_sequence(), server);
        let releases: Vec<_> = self.unreleased.iter().filter_map(compose).collect();
        self.get(&releases).await?;
        self.unreleased.clear();
        Ok(())
    }

    async fn renew_fences(&mut self, fenced: &[Address]) -> Result<(), PeerError> {
        let compose = |server| peer_protocol::fence_request(self.peers.own_id(), self.peers.next_sequence(), server);
        // A server whose address is too long for a request is never confirmed.
        let requests: Vec<_> = fenced.iter().filter_map(|server| Some((server, compose(server)?))).collect();
        for requests in requests.chunks(KEYS_PER_GET_MAX) {
            let requested_at = Instant::now();
            let keys: Vec<_> = requests.iter().map(|(_, key)| key.clone()).collect();
            let replies = self.get(&keys).await?;
            let mut fences = self.peer.fences.lock();
            for ((server, _), reply) in requests.iter().zip(replies) {
                if let (Some(b"ok"), Some(confirmed)) = (reply.as_deref(), fences.get_mut(*server)) {
                    *confirmed = Some(requested_at);
                }
            }
        }
        Ok(())
    }

    /// Whether the peer has applied all deletes of `keys`.
    async fn forward(&mut self, network: &dyn Network, keys: &[Vec<u8>]) -> Result<bool, PeerError> {
        self.connect(network).await?;
        let replies = self.get(keys).await?;
        Ok(replies.iter().all(|reply| reply.as_deref() == Some(b"ok")))
    }

    async fn connect(&mut self, network: &dyn Network) -> Result<(), CommandError> {
        if self.connection.is_none() {
            let address = &self.peer.address;
            let connected = CommandConnection::connect(network, address, LIMITS, self.peers.timeout()).await;
            self.connection = Some(connected?);
        }
        Ok(())
    }

    /// The values of `keys`, in order. `None` for a miss. The connection must have been made.
    async fn get(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, CommandError> {
        let connection = self.connection.as_mut().ok_or(CommandError::Closed)?;
        let mut replies = Vec::with_capacity(keys.len());
        for keys in keys.chunks(KEYS_PER_GET_MAX) {
            let line = [b"get ".as_slice(), &keys.join(&b' '), b"\r\n"].concat();
            let mut values = BTreeMap::new();
            let mut unexpected = None;
            connection.set_timeout(self.peers.timeout());
            connection.send(&line).await?;
            let on_part = |part: ReplyPart<'_>| match part {
                ReplyPart::Item { key, reply: Reply::Value { value, .. } } => {
                    values.insert(key.to_vec(), value.to_vec());
                }
                other => unexpected = Some(format!("{other:?}")),
            };
            connection.read_until_end(on_part).await?;
            if let Some(reply) = unexpected {
                return Err(CommandError::Unexpected(reply));
            }
            // A key may be in the request twice: a key that is deleted often is spooled as often.
            replies.extend(keys.iter().map(|key| values.get(key).cloned()));
        }
        Ok(replies)
    }
}
