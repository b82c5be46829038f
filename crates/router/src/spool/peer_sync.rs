//! The task that keeps one peer's fences up to date ([`super::peers`]). Its connection carries nothing that waits for a
//! server, so that a server that hangs does not delay a fence.

use super::peer_connection::{PeerConnection, PeerError};
use super::peer_protocol::{self, FenceRequest};
use super::peers::{Peer, Peers};
use super::server_log::BacklogState;
use super::settings::PeerMissing;
use lookaside_client::Network;
use lookaside_routing::Address;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The wait after a failed synchronization.
const RETRY: Duration = Duration::from_millis(200);

/// The wait before a fence that the peer has not confirmed is requested again.
const UNCONFIRMED_RETRY: Duration = Duration::from_millis(20);

type GetBacklogState<'a> = &'a (dyn Fn(&Address) -> BacklogState + Sync);

/// Synchronizes the peer at `index` until it is dropped. One call for each peer.
pub(super) async fn run(peers: &Peers, index: usize, network: &dyn Network, backlog_state: GetBacklogState<'_>) {
    let peer = peers.peer(index);
    let mut sync = PeerSync {
        peers,
        peer,
        connection: PeerConnection::new(network, &peer.address, peers.timeout()),
        queried_at: Instant::now(),
        unreleased: BTreeSet::new(),
        knows_durations: true,
        has_unconfirmed: false,
        last_error: None,
        logged: Reachability::Reachable,
    };
    loop {
        let was_connected = sync.connection.is_open();
        let mut is_synced = sync.try_sync(backlog_state).await;
        if !is_synced && was_connected {
            // The peer may only have been restarted.
            is_synced = sync.try_sync(backlog_state).await;
        }
        peer.is_unreachable.store(!is_synced, Relaxed);
        sync.log_reachability(is_synced);
        peer.syncs.record(is_synced);
        let pause = match is_synced {
            true if sync.has_unconfirmed => UNCONFIRMED_RETRY,
            true => peers.confirmed_for() / 2,
            false => RETRY,
        };
        tokio::select! {
            biased;
            () = peer.sync_requested.notified() => {}
            () = sleep(pause) => {}
        }
    }
}

struct PeerSync<'a> {
    peers: &'a Peers,
    peer: &'a Peer,
    connection: PeerConnection<'a>,
    /// When the peer was last asked which servers it has fenced for this router.
    queried_at: Instant,
    /// Servers that it may have fenced and need not.
    unreleased: BTreeSet<Address>,
    /// Requests for fences say how long these last. Without it a peer whose time-out is shorter reads the server again
    /// while this router still acknowledges deletes.
    knows_durations: bool,
    /// The peer has set a fence, and confirms it when permits of its clients have ended; or it is to be asked once
    /// more.
    has_unconfirmed: bool,
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
    async fn try_sync(&mut self, backlog_state: GetBacklogState<'_>) -> bool {
        let result = self.sync(backlog_state).await;
        let is_synced = result.is_ok();
        if let Err(error) = result {
            tracing::debug!(peer = %self.peer.address, %error, "cannot synchronize a spool peer");
            self.last_error = Some(error);
            self.connection.close();
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
    async fn sync(&mut self, backlog_state: GetBacklogState<'_>) -> Result<(), PeerError> {
        let fenced = self.update_fences(backlog_state);
        if !self.connection.is_open() || self.queried_at.elapsed() > self.peers.confirmed_for() / 4 {
            self.query_fenced(&fenced, backlog_state).await?;
            // A later version may have taken over its connections.
            self.knows_durations = true;
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
        let reply = self.connection.get(&[peer_protocol::fenced_query(self.peers.own_id())]).await?.remove(0);
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
        self.connection.get(&releases).await?;
        self.unreleased.clear();
        Ok(())
    }

    async fn renew_fences(&mut self, fenced: &[Address]) -> Result<(), PeerError> {
        let compose = |server: &Address| {
            let (router, number) = (self.peers.own_id(), self.peers.next_sequence());
            let duration = self.knows_durations.then(|| self.peers.fenced_for());
            FenceRequest { router, number, duration, server: server.clone() }.to_key()
        };
        // A server whose address is too long for a request is never confirmed.
        let requests: Vec<_> = fenced.iter().filter_map(|server| Some((server, compose(server)?))).collect();
        self.has_unconfirmed = false;
        for requests in requests.chunks(PeerConnection::KEYS_PER_GET_MAX) {
            let requested_at = Instant::now();
            let keys: Vec<_> = requests.iter().map(|(_, key)| key.clone()).collect();
            let replies = self.connection.get(&keys).await?;
            if self.knows_durations && replies.iter().all(Option::is_none) {
                // It is of an earlier version, or has no spool any more.
                (self.knows_durations, self.has_unconfirmed) = (false, true);
                return Ok(());
            }
            let mut fences = self.peer.fences.lock();
            for ((server, _), reply) in requests.iter().zip(replies) {
                self.has_unconfirmed |= reply.as_deref() == Some(peer_protocol::PERMITS_IN_USE);
                if let (Some(b"ok"), Some(confirmed)) = (reply.as_deref(), fences.get_mut(*server)) {
                    *confirmed = Some(requested_at);
                }
            }
        }
        Ok(())
    }
}
