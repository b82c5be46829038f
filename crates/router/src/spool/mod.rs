//! The spool: deletes that a server did not answer are stored on disk until the server has applied them. "Databases
//! and mcrouters buffer deletes when downstream components become unresponsive" (§5 of the paper). A get is affected
//! only in that a server with undelivered deletes, its **backlog**, is **fenced**: it is not read.
//!
//! ```text
//!   destination   delete failed -> writer: written, synced -> server_log: counted, FENCED -> client: NOT_FOUND
//!                                                                |
//!   replay                          the server replies -> deletes in order -> all applied -> UNFENCED
//! ```
//!
//! A delete follows these calls: [`SpoolingDestination`]`::send_or_spool` -> [`Spool::append`] ->
//! `Writer::write_group` -> `ServerLog::end_append_and_fence` (raises the fence) -> `Peers::forward_or_fence` (if there
//! are peers) -> `Failure::Spooled` -> acknowledged; later `Replayer::run` -> `replay_next` ->
//! `ReplayConnection::delete` -> `mark_replayed` -> `next_replay_or_unfence`.
//!
//! Invariants:
//! * No delete is acknowledged before it is applied or spooled.
//! * From the moment that a spooled delete is acknowledged, no thread of this process, and no client with a read permit
//!   of it, reads or fills its server until the server has applied it. Requests that were sent before may still be
//!   answered.
//! * An update that was sent before and never answered may be applied after the delete, because the server may read
//!   the old connection later than the new one. A fill under a lease is refused then; a plain `set` is as unsafe here
//!   as it is beside any delete (§3.2.1).
//!
//! Bounded are the writer's queue, the backlog of one server and of all, and each batch that is sent. A server whose
//! backlog exceeds its bound is flushed instead.
//!
//! Lock order: the fences to request of a peer (`Peer::fences`), then the table of servers (`SpoolShared::servers`),
//! then the state of one server (`ServerLog::state`). The other locks of this module are taken alone, except that an
//! inline writer (simulation only) is locked before the state of a server, and `MemoryDisk`'s lock is taken last, under
//! the inline writer. Nothing is awaited under any of them.

mod destination;
mod ids;
mod peer_connection;
mod peer_fence;
mod peer_forward;
mod peer_protocol;
mod peer_requests;
mod peer_sync;
mod peers;
mod record;
mod recovery;
mod remembered;
mod replay;
mod replay_connection;
mod segments;
mod server_log;
mod settings;
mod shared;
mod stats;
mod storage;
mod writer;

use destination::SpoolingDestination;
pub(crate) use destination::SpoolingRoot;
pub use segments::Backlog;
pub use settings::{Fsync, PeerMissing, SpoolSettings};
pub use stats::{SpoolCounts, SpoolStats};
pub use storage::{Disk, FileDisk, MemoryDisk};

use ids::RouterId;
use lookaside_client::{Network, TkoTrackers, spawn_in};
use lookaside_routing::{Address, Destination};
use lookaside_sync::Mutex;
use lookaside_telemetry::LogThrottle;
use peer_protocol::KeyFragments;
use peer_requests::UNCONFIGURED_SERVERS_MAX;
use peers::Peers;
use record::Deletion;
use replay::Replayer;
use segments::TotalBytes;
use server_log::ServerLog;
use shared::SpoolShared;
use stats::SpoolCounters;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use writer::{AppendError, LOG_INTERVAL, WriteEntry, Writer, WriterHandle};

/// The most lines about fences of peers in [`LOG_INTERVAL`].
const PEER_FENCE_LINES_MAX: u32 = 20;

/// The spooled deletes of one process.
pub struct Spool {
    shared: Arc<SpoolShared>,
    writer: Arc<WriterHandle>,
    /// Of keys in requests of peers.
    fragments: KeyFragments,
    /// Of fences that peers raise and lower: any client can ask for them.
    peer_fence_log: Mutex<LogThrottle<Instant>>,
    /// Servers that need a replayer. Taken by [`Spool::replay`].
    replay_queue: Mutex<Option<mpsc::UnboundedReceiver<Arc<ServerLog>>>>,
}

impl Spool {
    /// The spool on `disk`, with the backlogs of an earlier run; those servers are fenced when this returns.
    /// `tko_trackers` are those of the destinations. Callers write their own entries, so this is for a single thread,
    /// such as a simulation. The error tells the operator what to do.
    pub fn open(
        disk: Arc<dyn Disk>,
        tko_trackers: Arc<TkoTrackers>,
        settings: SpoolSettings,
    ) -> Result<Arc<Spool>, String> {
        Self::open_with(disk, tko_trackers, settings, |writer| Ok(WriterHandle::inline(writer)))
    }

    /// As [`Spool::open`], with a thread that writes, for many threads.
    pub fn open_threaded(
        disk: Arc<dyn Disk>,
        tko_trackers: Arc<TkoTrackers>,
        settings: SpoolSettings,
    ) -> Result<Arc<Spool>, String> {
        Self::open_with(disk, tko_trackers, settings, WriterHandle::spawn)
    }

    fn open_with(
        disk: Arc<dyn Disk>,
        tko_trackers: Arc<TkoTrackers>,
        settings: SpoolSettings,
        start_writer: impl FnOnce(Writer) -> Result<WriterHandle, String>,
    ) -> Result<Arc<Spool>, String> {
        let (replay_starts, replay_queue) = mpsc::unbounded_channel();
        let (total, counters) = (Arc::<TotalBytes>::default(), Arc::<SpoolCounters>::default());
        let identity = match settings.peers.is_empty() {
            true => (RouterId(0), 0),
            false => recovery::load_identity(&*disk, settings.seed)?,
        };
        let servers = recovery::recover(&*disk, &tko_trackers, &total, settings.peer_timeout)?;
        counters.recovered.add(servers.values().map(|server| server.backlog().deletes).sum());
        let has_backlog = |server: &&Arc<ServerLog>| !server.backlog().is_empty();
        let backlogged = servers.values().filter(has_backlog).map(|server| server.address.clone());
        let peers = Peers::new(identity, &settings, backlogged);
        let writer = Writer {
            disk: disk.clone(),
            bytes_max: settings.bytes_max,
            total_bytes_max: settings.total_bytes_max,
            total: total.clone(),
            fsync: settings.fsync,
            counters: counters.clone(),
            replay_starts: replay_starts.clone(),
            unsynced: BTreeSet::new(),
            failure_log: LogThrottle::new(1, LOG_INTERVAL),
            is_closed: false,
        };
        let servers = Mutex::new(servers);
        let shared =
            Arc::new(SpoolShared { settings, disk, tko_trackers, servers, total, counters, peers, replay_starts });
        let (fragments, replay_queue) = (KeyFragments::default(), Mutex::new(Some(replay_queue)));
        let peer_fence_log = Mutex::new(LogThrottle::new(PEER_FENCE_LINES_MAX, LOG_INTERVAL));
        Ok(Arc::new(Spool { shared, writer: Arc::new(start_writer(writer)?), fragments, peer_fence_log, replay_queue }))
    }

    /// Replaces the backlog of each server that is not in `configured` by a flush, which happens if a later
    /// configuration names the server. Must be called once, before the first tree is built.
    pub fn mark_unconfigured_for_flush(&self, configured: &BTreeSet<Address>) {
        for (address, server) in self.shared.servers.lock().iter() {
            if !configured.contains(address) && !server.backlog().is_empty() {
                recovery::replace_with_flush(&*self.shared.disk, server, &self.shared.total);
            }
        }
    }

    /// Takes over the fences of `closed`, an earlier spool of this process over the same files. A fence that neither
    /// has a reason for is lowered. A server whose backlog is no longer on disk is flushed.
    pub fn adopt_fences(&self, closed: &Spool) {
        let servers: Vec<_> = closed.shared.servers.lock().values().cloned().collect();
        for closed in servers.into_iter().filter(|server| server.is_fenced()) {
            let server = self.server(&closed.address);
            if server.adopt_fence(&closed) {
                recovery::replace_with_flush(&*self.shared.disk, &server, &self.shared.total);
            }
        }
    }

    /// Replays backlogs and synchronizes peers until it is dropped. Only the first call of a spool has an effect.
    pub async fn replay(&self, network: Arc<dyn Network>, seed: u64) {
        let taken = self.replay_queue.lock().take();
        let Some(mut replay_queue) = taken else { return std::future::pending().await };
        let mut random = fastrand::Rng::with_seed(seed);
        let mut tasks = JoinSet::new();
        for index in 0..self.shared.peers.len() {
            let (shared, network) = (self.shared.clone(), network.clone());
            spawn_in(&mut tasks, async move {
                let backlog_state = |address: &Address| shared.backlog_state(address);
                let sync = peer_sync::run(&shared.peers, index, &*network, &backlog_state);
                tokio::join!(sync, peer_forward::run(&shared.peers, index, &*network));
            });
        }
        let mut expiry = interval(self.shared.settings.peer_timeout / 4);
        expiry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a replay task failed; this is a bug of the router");
                    }
                }
                // Also without peers: an earlier run may have had some and left their fences.
                _ = expiry.tick() => self.expire_peer_fences().await,
                server = replay_queue.recv() => {
                    let server = server.expect("the spool itself holds a sender");
                    let (shared, writer) = (self.shared.clone(), self.writer.clone());
                    let replayer = Replayer::new(shared, writer, server, network.clone(), random.fork());
                    spawn_in(&mut tasks, replayer.run());
                }
            }
        }
    }

    /// Closes the spool so that another process can open it. When this returns, all acknowledged deletes are on disk,
    /// synced unless [`Fsync::Never`] is set, and the lock is released. Later appends fail. [`Spool::replay`] must
    /// have been dropped; the servers stay fenced.
    pub async fn close(&self) -> Result<(), String> {
        let no_server = Address("".into());
        let fence = self.shared.tko_trackers.fence(&no_server);
        let closed = self.writer.close(ServerLog::new(no_server, String::new(), fence)).await;
        closed.map_err(|error| error.to_string())?;
        self.shared.disk.release().map_err(|error| format!("cannot release the lock of the spool: {error}"))
    }

    pub(crate) fn wrap_destination(self: &Arc<Self>, destination: Arc<dyn Destination>) -> Arc<dyn Destination> {
        let server = self.configure(destination.address());
        Arc::new(SpoolingDestination::new(destination, server, self.clone()))
    }

    /// A tree names the server, whether or not its deletes are spooled: its backlog is replayed from now on.
    pub(crate) fn configure(&self, address: &Address) -> ConfiguredServer {
        let log = self.server(address);
        if log.add_tree() {
            // The receiver is dropped only when the process ends.
            let _ = self.shared.replay_starts.send(log.clone());
        }
        ConfiguredServer { log, shared: self.shared.clone() }
    }

    /// The state of a server, created if it is new.
    fn server(&self, address: &Address) -> Arc<ServerLog> {
        let mut servers = self.shared.servers.lock();
        if let Some(server) = servers.get(address) {
            return server.clone();
        }
        // Those of former configurations.
        if servers.values().filter(|server| server.is_unconfigured()).count() >= UNCONFIGURED_SERVERS_MAX {
            self.remove_unused(&mut servers);
        }
        let fence = self.shared.tko_trackers.fence(address);
        let server = ServerLog::new(address.clone(), recovery::folder_name(address), fence);
        servers.insert(address.clone(), server.clone());
        server
    }

    /// Removes servers that no configuration names, and that have neither a backlog nor a fence.
    fn remove_unused(&self, servers: &mut BTreeMap<Address, Arc<ServerLog>>) {
        // Not those that another task holds: a second `ServerLog` of the same server would be a second fence.
        servers.retain(|_, server| {
            let is_unused = server.is_unconfigured() && server.is_idle() && Arc::strong_count(server) == 1;
            if is_unused && let Err(error) = self.shared.disk.remove_folder(&server.folder) {
                tracing::warn!(folder = server.folder, %error, "cannot remove an empty folder of the spool");
            }
            !is_unused
        });
    }

    /// Spools deletes for a server. On success they are on disk, and the server is fenced here, at the peers,
    /// and for all clients that these permit to read it. On
    /// failure they must not be acknowledged.
    async fn append(&self, server: &Arc<ServerLog>, deletions: Vec<Deletion>) -> Result<(), AppendError> {
        self.writer.write(server, WriteEntry::Deletes(deletions.clone())).await?;
        let peers = &self.shared.peers;
        if peers.is_empty() {
            server.wait_for_permits(&self.shared.settings.read_permits).await;
            return Ok(());
        }
        if peers.forward_or_fence(server, &deletions).await {
            return Ok(());
        }
        self.shared.counters.refused_no_peer.add(deletions.len() as u64);
        Err(AppendError::PeerUnreachable)
    }

    /// Has the server at `address` flushed before it is read again. On success that is on disk, and the server is
    /// fenced here, and for all clients that have a permit; a peer has flushed it, or it is fenced at all peers. The
    /// error says why the flush must not be acknowledged.
    pub(crate) async fn flush(&self, address: &Address) -> Result<(), String> {
        let server = self.server(address);
        self.writer.write(&server, WriteEntry::Flush).await.map_err(|error| error.to_string())?;
        let peers = &self.shared.peers;
        if peers.is_empty() {
            server.wait_for_permits(&self.shared.settings.read_permits).await;
            return Ok(());
        }
        if peers.forward_flush_or_fence(&server).await {
            return Ok(());
        }
        self.shared.counters.refused_no_peer.add(1);
        Err(AppendError::PeerUnreachable.to_string())
    }

    /// The backlog of the server at `address`.
    pub fn backlog(&self, address: &Address) -> Backlog {
        let server = self.shared.servers.lock().get(address).cloned();
        server.map(|server| server.backlog()).unwrap_or_default()
    }

    /// Starts the next attempt to replay the backlog of the server at `address` at once.
    pub fn retry_now(&self, address: &Address) {
        let server = self.shared.servers.lock().get(address).cloned();
        if let Some(server) = server.filter(|server| !server.backlog().is_empty()) {
            server.request_retry();
        }
    }

    /// A snapshot of the counters and gauges.
    pub fn statistics(&self) -> SpoolStats {
        let counts = self.shared.counters.snapshot();
        let peers_unreachable = self.shared.peers.unreachable() as u64;
        let mut statistics = SpoolStats { counts, peers_unreachable, ..SpoolStats::default() };
        for server in self.shared.servers.lock().values() {
            let backlog = server.backlog();
            statistics.pending += backlog.deletes;
            statistics.pending_bytes += backlog.bytes;
            statistics.servers_fenced += u64::from(!backlog.is_empty());
            statistics.servers_fenced_by_peers += u64::from(server.peer_fences() > 0);
        }
        statistics
    }

    /// One line for each server with a backlog or a peer fence.
    pub(crate) fn report(&self) -> String {
        let mut lines = String::new();
        for (address, server) in self.shared.servers.lock().iter() {
            let (Backlog { deletes, bytes, flush_pending }, peer_fences) = (server.backlog(), server.peer_fences());
            if deletes > 0 || flush_pending || peer_fences > 0 {
                let flush_pending = u8::from(flush_pending);
                write!(
                    lines,
                    "{address} deletes:{deletes} bytes:{bytes} flush_pending:{flush_pending} fenced_by_peers:{peer_fences}\r\n"
                )
                .expect("writing to a string does not fail");
            }
        }
        lines
    }
}

/// A server that a tree of routes names. Threads replace their trees one by one, and batches end on the tree on which
/// they began; so the server counts as configured until the last of these is dropped. Then the replay pauses, and the
/// backlog and its fence stay until a later configuration names the server.
pub(crate) struct ConfiguredServer {
    log: Arc<ServerLog>,
    shared: Arc<SpoolShared>,
}

impl Drop for ConfiguredServer {
    fn drop(&mut self) {
        if self.log.remove_tree() {
            // Peers are no longer asked to fence it.
            self.shared.peers.request_sync();
        }
    }
}

impl std::fmt::Debug for Spool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spool").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without peers nothing dropped them: each server that a configuration had named stayed in memory.
    #[test]
    fn servers_of_former_configurations_are_dropped_in_the_end() {
        let spool = Spool::open(Arc::<MemoryDisk>::default(), TkoTrackers::new(), SpoolSettings::default());
        let spool = spool.expect("the disk is good");
        let server = |number: usize| Address(format!("server-{number}:1").into());
        let kept = spool.configure(&server(0));
        for number in 1..3 * UNCONFIGURED_SERVERS_MAX {
            drop(spool.configure(&server(number)));
            assert!(spool.shared.servers.lock().len() <= UNCONFIGURED_SERVERS_MAX + 1);
        }
        assert!(spool.shared.servers.lock().contains_key(&server(0)));
        drop(kept);
    }
}
