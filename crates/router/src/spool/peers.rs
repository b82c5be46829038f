//! The other routers of a cluster: a server for which one of them has a backlog is fenced at all of them.
//!
//! ```text
//!   A: a delete fails at S and is spooled
//!      -> every peer at once: spool_delete                       one replies ok (it has reached S): acknowledged
//!      -> 50 ms later, beside that: every peer, spool_fence_for  all have it on disk, S is fenced: acknowledged
//!      ... further deletes of S are acknowledged at once, while every peer's confirmation is recent
//!      S has applied A's backlog -> every peer, spool_release
//! ```
//!
//! A peer that cannot reach S may take a whole server timeout to say so. Therefore the fences are requested before
//! that, and over another connection; a peer that can reach S forwards within the 50 ms, and no router stops reading a
//! server that only A cannot reach. A peer forwards for several servers at once, so a hung server delays no other.
//!
//! A confirmation is valid for half of `peer_timeout`, counted from when it was requested. A peer's fence lasts for all
//! of `peer_timeout`, counted from when the request arrived: that of the router which has the backlog, as the request
//! says. So whatever is lost or delayed, A stops acknowledging before a peer's fence expires. A peer whose fence
//! expires flushes S before it reads S again.
//!
//! Invariant: from the moment that any router has acknowledged a delete that it spooled for a server, no router reads
//! that server until it has applied the delete or was flushed. If a peer cannot be reached, the delete is not
//! acknowledged, but it stays in the spool. (An operator may choose to acknowledge it: [`PeerMissing::Ignore`].)
//!
//! The requests ([`super::peer_protocol`]) are sent by [`super::peer_sync`] and [`super::peer_forward`]. Each has a
//! sequence number, so that one that was delayed on an old connection does not undo a newer one.

use super::ids::RouterId;
use super::peer_protocol;
use super::record::Deletion;
use super::server_log::{BacklogState, ServerLog};
use super::settings::{PeerMissing, SpoolSettings};
use crate::read_permits::ReadPermits;
use futures_util::StreamExt;
use futures_util::future::{Either, join, select};
use futures_util::stream::FuturesUnordered;
use lookaside_client::PERMIT_ENDS_AFTER;
use lookaside_routing::Address;
use lookaside_sync::Mutex;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

/// How long peers may take to forward deletes before they are asked to fence the server. One that reaches the server
/// needs a round trip.
const FORWARD_ALONE_MAX: Duration = Duration::from_millis(50);
/// The most bytes of requests that wait to be forwarded by one peer, or are being forwarded.
const FORWARD_BYTES_MAX: u32 = 16 << 20;
/// The least that a batch counts for, so that at most 1,000 wait.
const FORWARD_BYTES_MIN: u32 = FORWARD_BYTES_MAX / 1_000;
/// Bits of a sequence number that count within a run of the router: more than it can send.
const RUN_SHIFT: u32 = 40;

/// All other routers of the cluster.
pub(super) struct Peers {
    own_id: RouterId,
    /// Of the next request. Increases over restarts.
    sequence: AtomicU64,
    confirmed_for: Duration,
    /// How long a fence at a peer lasts after the last request.
    fenced_for: Duration,
    /// How long a peer may take to connect, or to reply.
    timeout: Duration,
    missing: PeerMissing,
    read_permits: Arc<ReadPermits>,
    peers: Vec<Peer>,
}

pub(super) struct Peer {
    pub(super) address: Address,
    /// Servers that the peer is to fence, and when the last confirmation was requested. `None`: not yet confirmed.
    pub(super) fences: Mutex<BTreeMap<Address, Option<Instant>>>,
    /// Whether the last synchronization failed.
    pub(super) is_unreachable: AtomicBool,
    pub(super) sync_requested: Notify,
    pub(super) syncs: SyncLog,
    /// Bounded by `forward_bytes`.
    forwards: mpsc::UnboundedSender<ForwardRequest>,
    /// Taken by the task that sends them.
    pub(super) forward_queue: Mutex<Option<mpsc::UnboundedReceiver<ForwardRequest>>>,
    forward_bytes: Arc<Semaphore>,
}

/// Tells waiting deletes of each synchronization. Not a `watch` channel, which wakes its receivers in a random order
/// that no seed of a simulation determines.
#[derive(Default)]
pub(super) struct SyncLog {
    failures: AtomicU64,
    ended: Notify,
}

impl SyncLog {
    pub(super) fn record(&self, is_synced: bool) {
        self.failures.fetch_add(u64::from(!is_synced), Relaxed);
        self.ended.notify_waiters();
    }

    fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }
}

/// Deletes that a peer is asked to forward to their server.
pub(super) struct ForwardRequest {
    pub(super) server: Address,
    pub(super) keys: Arc<Vec<Vec<u8>>>,
    /// Whether all of them have been applied.
    pub(super) reply: oneshot::Sender<bool>,
    /// Of [`FORWARD_BYTES_MAX`].
    _permit: OwnedSemaphorePermit,
}

impl Peers {
    /// The peers in `settings`. `backlogged` are the servers with a backlog from an earlier run.
    pub(super) fn new(
        (own_id, run): (RouterId, u64),
        settings: &SpoolSettings,
        backlogged: impl Iterator<Item = Address> + Clone,
    ) -> Peers {
        let peer = |address: &Address| {
            let (forwards, queue) = mpsc::unbounded_channel();
            Peer {
                address: address.clone(),
                fences: Mutex::new(backlogged.clone().map(|server| (server, None)).collect()),
                is_unreachable: AtomicBool::new(false),
                sync_requested: Notify::new(),
                syncs: SyncLog::default(),
                forwards,
                forward_queue: Mutex::new(Some(queue)),
                forward_bytes: Arc::new(Semaphore::new(FORWARD_BYTES_MAX as usize)),
            }
        };
        Peers {
            own_id,
            sequence: AtomicU64::new(run << RUN_SHIFT),
            confirmed_for: settings.peer_timeout / 2,
            fenced_for: settings.peer_timeout,
            timeout: settings.timeout,
            missing: settings.peer_missing,
            read_permits: settings.read_permits.clone(),
            peers: settings.peers.iter().map(peer).collect(),
        }
    }

    pub(super) fn own_id(&self) -> RouterId {
        self.own_id
    }

    pub(super) fn confirmed_for(&self) -> Duration {
        self.confirmed_for
    }

    pub(super) fn fenced_for(&self) -> Duration {
        self.fenced_for
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn missing(&self) -> PeerMissing {
        self.missing
    }

    pub(super) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.peers.len()
    }

    /// How many could not be reached last time.
    pub(super) fn unreachable(&self) -> usize {
        self.peers.iter().filter(|peer| peer.is_unreachable()).count()
    }

    pub(super) fn peer(&self, index: usize) -> &Peer {
        &self.peers[index]
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Relaxed)
    }

    /// Ensures that no peer reads from `server` what `deletions`, which this router has spooled, delete: a peer
    /// applies them, or all peers fence the server. False if neither succeeds; then the deletes must not be
    /// acknowledged.
    pub(super) async fn forward_or_fence(&self, server: &ServerLog, deletions: &[Deletion]) -> bool {
        self.is_fenced(server).await || self.fence_unless(self.forward(&server.address, deletions), server).await
    }

    /// As [`Peers::forward_or_fence`] for a flush that this router has spooled.
    pub(super) async fn forward_flush_or_fence(&self, server: &ServerLog) -> bool {
        self.is_fenced(server).await || self.fence_unless(self.forward_flush(&server.address), server).await
    }

    /// Has all peers fence `server` unless `forwarding` is true soon. True if either succeeds.
    async fn fence_unless(&self, forwarding: impl Future<Output = bool>, server: &ServerLog) -> bool {
        let mut forwarding = pin!(forwarding);
        match timeout(FORWARD_ALONE_MAX, forwarding.as_mut()).await {
            Ok(true) => true,
            Ok(false) => self.fence(server).await,
            Err(_) => either(forwarding, self.fence(server)).await,
        }
    }

    /// Whether nothing reads `server`: it has applied this router's backlog, or all peers fence it, or need not, and
    /// the permits of this router, for which it waits, have ended.
    async fn is_fenced(&self, server: &ServerLog) -> bool {
        let is_confirmed = |peer: &Peer| peer.is_confirmed(&server.address, self.confirmed_for);
        let is_fenced_at = |peer: &Peer| self.may_be_missing(peer) || is_confirmed(peer);
        if server.backlog_state() == BacklogState::Empty {
            return true;
        }
        let is_fenced = self.peers.iter().all(is_fenced_at);
        if is_fenced {
            server.wait_for_permits(&self.read_permits).await;
        }
        is_fenced
    }

    /// Has all peers fence `server`, and waits for the permits of this router. False unless all peers have confirmed
    /// it.
    async fn fence(&self, server: &ServerLog) -> bool {
        join(self.fence_at_peers(server), server.wait_for_permits(&self.read_permits)).await.0
    }

    async fn fence_at_peers(&self, server: &ServerLog) -> bool {
        let address = &server.address;
        self.peers.iter().for_each(|peer| peer.request_fence(address));
        // A peer confirms a fence when its permits have ended.
        let deadline = Instant::now() + self.timeout + PERMIT_ENDS_AFTER;
        for peer in self.peers.iter().filter(|peer| !self.may_be_missing(peer)) {
            if !peer.wait_for_fence(server, self.confirmed_for, deadline).await && self.missing == PeerMissing::Fail {
                tracing::debug!(peer = %peer.address, server = %address, "peer did not confirm a fence: deletes fail");
                return false;
            }
        }
        true
    }

    fn may_be_missing(&self, peer: &Peer) -> bool {
        self.missing == PeerMissing::Ignore && peer.is_unreachable()
    }

    /// Asks all peers at once to apply `deletions`. True when one has. A further backlog of the server stays.
    pub(super) async fn forward(&self, server: &Address, deletions: &[Deletion]) -> bool {
        let compose = |deletion| peer_protocol::delete_requests(self.own_id, || self.next_sequence(), server, deletion);
        let Some(keys) = deletions.iter().map(compose).collect::<Option<Vec<_>>>() else { return false };
        self.forward_requests(server, keys.concat()).await
    }

    /// Asks all peers at once to flush `server`. True when one has.
    pub(super) async fn forward_flush(&self, server: &Address) -> bool {
        match peer_protocol::flush_request(server) {
            Some(key) => self.forward_requests(server, vec![key]).await,
            None => false,
        }
    }

    /// Sends `keys`, requests about `server`, to all peers at once. True when one has replied `ok` to all of them.
    async fn forward_requests(&self, server: &Address, keys: Vec<Vec<u8>>) -> bool {
        let keys = Arc::new(keys);
        let Ok(bytes) = u32::try_from(keys.iter().map(Vec::len).sum::<usize>()) else { return false };
        let send = |peer: &Peer| {
            let (reply, applied) = oneshot::channel();
            let permit = peer.forward_bytes.clone().try_acquire_many_owned(bytes.max(FORWARD_BYTES_MIN)).ok()?;
            let request = ForwardRequest { server: server.clone(), keys: keys.clone(), reply, _permit: permit };
            peer.forwards.send(request).ok().map(|()| applied)
        };
        let reachable = self.peers.iter().filter(|peer| !peer.is_unreachable());
        let mut replies: FuturesUnordered<_> = reachable.filter_map(send).collect();
        let deadline = Instant::now() + self.timeout;
        while let Ok(Some(applied)) = timeout_at(deadline, replies.next()).await {
            if applied == Ok(true) {
                return true;
            }
        }
        false
    }

    /// Synchronizes all peers soon: a backlog may have become empty.
    pub(super) fn request_sync(&self) {
        self.peers.iter().for_each(|peer| peer.sync_requested.notify_one());
    }
}

/// True as soon as one of them is.
async fn either(one: impl Future<Output = bool> + Unpin, other: impl Future<Output = bool>) -> bool {
    match select(one, pin!(other)).await {
        Either::Left((true, _)) | Either::Right((true, _)) => true,
        Either::Left((false, other)) => other.await,
        Either::Right((false, one)) => one.await,
    }
}

impl Peer {
    fn is_unreachable(&self) -> bool {
        self.is_unreachable.load(Relaxed)
    }

    fn is_confirmed(&self, server: &Address, confirmed_for: Duration) -> bool {
        let requested_at = self.fences.lock().get(server).copied().flatten();
        requested_at.is_some_and(|at| Instant::now() < at + confirmed_for)
    }

    fn request_fence(&self, server: &Address) {
        self.fences.lock().entry(server.clone()).or_default();
        self.sync_requested.notify_one();
    }

    /// Waits until the peer has confirmed its fence, or could not be reached, or `deadline` has passed. If the backlog
    /// of the server becomes empty, no fence is needed.
    async fn wait_for_fence(&self, server: &ServerLog, confirmed_for: Duration, deadline: Instant) -> bool {
        let is_safe =
            || self.is_confirmed(&server.address, confirmed_for) || server.backlog_state() == BacklogState::Empty;
        let failures = self.syncs.failures();
        loop {
            // From here on no end of a synchronization is missed.
            let ended = self.syncs.ended.notified();
            if is_safe() {
                return true;
            }
            match timeout_at(deadline, ended).await {
                Ok(()) if self.syncs.failures() == failures => {}
                _ => return is_safe(),
            }
        }
    }
}
