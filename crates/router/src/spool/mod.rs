//! The spool: deletes that a server did not answer, kept on disk until it has carried them out. "Databases and mcrouters
//! buffer deletes when downstream components become unresponsive" (§5). A get passes here only in so far as it is kept
//! from a server that owes deletes.
//!
//! ```text
//!   leaf      delete failed -> ledger: written, synced -> server: counted, FENCE UP -> client: NOT_FOUND
//!                                                            |
//!   replay                      the server answers -> deletes in order -> all acknowledged -> FENCE DOWN
//! ```
//!
//! Files: `record` (bytes), `disk` (where they lie), `server` (what one server owes: the protocol between the two lines
//! above), `ledger` (the upper line), `replay` and `conversation` (the lower one), `load` (the start), `leaf` (the tree).
//!
//! Invariants:
//! * No delete is acknowledged before it is applied or kept.
//! * From the moment that a kept delete is acknowledged, no thread of this process reads or fills its server until the
//!   server has carried it out. What was handed in before, may be answered still.
//! * An update that was sent before and never answered may be carried out after the delete: the server may read the old
//!   connection later than the new one. A fill under a lease is refused then; a plain `set` is as unsafe here as it is
//!   beside any delete (§3.2.1).
//!
//! Everything is bounded: what waits to be written, what one server and all servers may owe, what is sent at once. Who
//! owes too much is made to forget everything instead.
//!
//! Other routers of the cluster are told what this one owes (`peers`, in the words of `question`), if there are any.

mod destination;
mod ids;
mod peer_fence;
mod peer_protocol;
mod peers;
mod record;
mod recovery;
mod replay;
mod replay_connection;
mod segments;
mod server_log;
mod stats;
mod storage;
mod writer;

use bytes::Bytes;
use destination::SpoolingDestination;
pub(crate) use destination::SpoolingRoot;
pub use peers::PeerMissing;
pub use server_log::Owed;
pub use stats::SpoolStatistics;
pub use storage::{Disk, FileDisk, MemoryDisk};
pub use writer::Fsync;

use ids::Owner;
use lookaside_client::{Network, TkoTrackers};
use lookaside_protocol::Request;
use lookaside_routing::{Address, Destination};
use peer_protocol::Parts;
use peers::{Debt, Peers};
use record::Deletion;
use server_log::{Server, TotalBytes};
use stats::Counters;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use writer::{Job, Ledger, Room, Work};

/// Servers that are known, by the configuration, from an earlier run or from peers; of more, peers are not heard.
const SERVERS_MAX: usize = 10_000;
/// Of these, such as no configuration here names; peers are not heard of more.
const STRANGERS_MAX: usize = 1_000;
/// Routers that one server is held for.
const HOLDS_MAX: usize = 1_000;
/// Batches that may wait for the writer's thread; one more is not kept, and its deletes fail.
const WAITING_BATCHES_MAX: usize = 10_000;
/// Bytes that may wait for it.
const WAITING_BYTES_MAX: u64 = 64 << 20;

/// How a spool behaves.
#[derive(Clone, Debug)]
pub struct SpoolSettings {
    /// What one server may owe, in bytes on disk (14 a delete, and the key). Default 64 MiB. A server that owes more
    /// is made to forget everything.
    pub bytes_max: u64,
    /// What all servers together may owe, in bytes. Default 1 GiB.
    pub total_bytes_max: u64,
    /// When kept deletes are safe from a crash of the machine. Default: before they are acknowledged.
    pub fsync: Fsync,
    /// How long a server may take to connect, or to answer a batch, while its deletes are replayed. Default 1 s.
    pub timeout: Duration,
    /// The longest wait between two attempts, before jitter of up to a half more. Default 1 s.
    pub wait_max: Duration,
    /// The other routers of the cluster, where they listen to clients; each has a spool too. Default: none.
    pub peers: Vec<Address>,
    /// A peer that owes a server something and is silent for so long is not waited for: the server forgets everything. The
    /// same for all routers of a cluster. Default 10 s.
    pub peer_timeout: Duration,
    /// What becomes of a delete that must be kept while a peer cannot be told. Default: it fails.
    pub peer_missing: PeerMissing,
    /// What this router's identity is drawn from, once for each disk.
    pub seed: u64,
}

impl Default for SpoolSettings {
    fn default() -> Self {
        SpoolSettings {
            bytes_max: 64 << 20,
            total_bytes_max: 1 << 30,
            fsync: Fsync::Always,
            timeout: Duration::from_secs(1),
            wait_max: Duration::from_secs(1),
            peers: Vec::new(),
            peer_timeout: Duration::from_secs(10),
            peer_missing: PeerMissing::Fail,
            seed: 0,
        }
    }
}

/// The deletes that one process keeps.
pub struct Spool {
    shared: Arc<Shared>,
    writer: Writer,
    waiting_bytes: Arc<AtomicU64>,
    /// Of keys that peers pass on.
    parts: Parts,
    /// Servers that somebody must begin to work off; taken by who does.
    begun: Mutex<Option<mpsc::UnboundedReceiver<Arc<Server>>>>,
}

/// What the writer, the replayers and the leaves share.
pub(crate) struct Shared {
    settings: SpoolSettings,
    disk: Arc<dyn Disk>,
    tko_trackers: Arc<TkoTrackers>,
    servers: Mutex<BTreeMap<Address, Arc<Server>>>,
    total: Arc<TotalBytes>,
    counters: Arc<Counters>,
    peers: Peers,
    begin: mpsc::UnboundedSender<Arc<Server>>,
}

enum Writer {
    /// Whoever keeps something writes it himself.
    Here(Mutex<Ledger>),
    Thread(SyncSender<Job>),
}

impl Spool {
    /// The spool on `disk`, with what an earlier run left there: those servers are fenced off when this returns.
    /// `tko_trackers` are those of the destinations. Whoever keeps something writes it himself, so for one thread: a
    /// simulation. The error says what an operator can do.
    pub fn open(
        disk: Arc<dyn Disk>,
        tko_trackers: Arc<TkoTrackers>,
        settings: SpoolSettings,
    ) -> Result<Arc<Spool>, String> {
        Self::make(disk, tko_trackers, settings, |ledger| Ok(Writer::Here(Mutex::new(ledger))))
    }

    /// The same with a thread that writes, for many threads.
    pub fn open_threaded(
        disk: Arc<dyn Disk>,
        tko_trackers: Arc<TkoTrackers>,
        settings: SpoolSettings,
    ) -> Result<Arc<Spool>, String> {
        Self::make(disk, tko_trackers, settings, |ledger| {
            let (writer, jobs) = sync_channel(WAITING_BATCHES_MAX);
            let thread = thread::Builder::new().name("spool".to_owned()).spawn(move || ledger.run(&jobs));
            thread.map_err(|error| format!("the system gives no thread: {error}"))?;
            Ok(Writer::Thread(writer))
        })
    }

    fn make(
        disk: Arc<dyn Disk>,
        tko_trackers: Arc<TkoTrackers>,
        settings: SpoolSettings,
        writer: impl FnOnce(Ledger) -> Result<Writer, String>,
    ) -> Result<Arc<Spool>, String> {
        let (begin, begun) = mpsc::unbounded_channel();
        let (total, counters) = (Arc::<TotalBytes>::default(), Arc::<Counters>::default());
        let identity = match settings.peers.is_empty() {
            true => (Owner(0), 0),
            false => recovery::identify(&*disk, settings.seed)?,
        };
        let servers = recovery::load(&*disk, &tko_trackers, &total, settings.peer_timeout)?;
        let owing = servers.values().filter(|server| !server.owed().is_nothing()).map(|server| server.address.clone());
        let peers = Peers::new(identity, &settings, owing);
        let ledger = Ledger {
            disk: disk.clone(),
            bytes_max: settings.bytes_max,
            total_bytes_max: settings.total_bytes_max,
            total: total.clone(),
            fsync: settings.fsync,
            counters: counters.clone(),
            begin: begin.clone(),
            unsynced: BTreeSet::new(),
            complained_at: None,
            is_closed: false,
        };
        let servers = Mutex::new(servers);
        let shared = Arc::new(Shared { settings, disk, tko_trackers, servers, total, counters, peers, begin });
        let (waiting_bytes, parts, begun) = (Arc::default(), Parts::default(), Mutex::new(Some(begun)));
        Ok(Arc::new(Spool { shared, writer: writer(ledger)?, waiting_bytes, parts, begun }))
    }

    /// Servers that owe something from an earlier run and are not `configured` will be made to forget everything, should
    /// a later configuration name them: that is kept instead of the deletes. Call it once, before the first tree is built.
    pub fn retire_others(&self, configured: &BTreeSet<Address>) {
        for (address, server) in self.servers().iter() {
            if !configured.contains(address) && !server.owed().is_nothing() {
                recovery::retire(&*self.shared.disk, server, &self.shared.total);
            }
        }
    }

    /// A new configuration names `configured` and no others: what the others owe stays as it is, unread, until one names
    /// them again. Call it after the configuration is in force.
    pub fn drop_others(&self, configured: &BTreeSet<Address>) {
        let servers = self.servers();
        servers
            .iter()
            .filter(|(address, _)| !configured.contains(address))
            .for_each(|(_, server)| server.unconfigure());
        drop(servers);
        // Peers hear nothing more of them.
        self.shared.peers.settle();
    }

    /// Works off what servers owe, and tells peers of it, until it is dropped. One call a spool: a second one has nothing
    /// to do.
    pub async fn replay(&self, network: Arc<dyn Network>, seed: u64) {
        let Some(mut begun) = lock(&self.begun).take() else { return std::future::pending().await };
        let mut random = fastrand::Rng::with_seed(seed);
        let mut tasks = JoinSet::new();
        for index in 0..self.shared.peers.len() {
            let (shared, network) = (self.shared.clone(), network.clone());
            tasks.spawn(async move { shared.peers.tell(index, &*network, &|address| shared.debt(address)).await });
        }
        let mut overdue = interval(self.shared.settings.peer_timeout / 4);
        overdue.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a replay failed; this is a bug of the router");
                    }
                }
                // Without peers too: holds may be left from a run that had some.
                _ = overdue.tick() => self.expire_holds().await,
                server = begun.recv() => {
                    let server = server.expect("the spool itself can send");
                    let (shared, network, random) = (self.shared.clone(), network.clone(), random.fork());
                    tasks.spawn(replay::Replayer { shared, server, network, random }.run());
                }
            }
        }
    }

    /// Leaves what is owed to another process: when this returns, all that was acknowledged is on disk, synced if
    /// anything is, and the disk has been let go of. What comes later fails. [`Spool::replay`] must have been dropped; the
    /// servers stay fenced off.
    pub async fn close(&self) -> Result<(), String> {
        let (reply, closed) = oneshot::channel();
        let nowhere = Address("".into());
        let server = Server::new(nowhere.clone(), String::new(), self.shared.tko_trackers.fence(&nowhere));
        let room = Room::take(&self.waiting_bytes, 0, u64::MAX).expect("nothing has room");
        let job = Job { server, work: Work::Close, reply, _room: room };
        match &self.writer {
            Writer::Here(ledger) => lock(ledger).keep(vec![job]),
            // It waits for room behind what is being written, but not for long: nobody hands anything in any more.
            Writer::Thread(writer) => writer.send(job).map_err(|_| "the spool's thread is gone")?,
        }
        closed.await.map_err(|_| "the spool's thread is gone")?.map_err(|why| why.to_string())?;
        self.shared.disk.let_go().map_err(|error| format!("the spool cannot be let go of: {error}"))
    }

    /// `destination` with its failed deletes kept.
    pub(crate) fn wrap(self: &Arc<Self>, destination: Arc<dyn Destination>) -> Arc<dyn Destination> {
        let server = self.configured(destination.address());
        Arc::new(SpoolingDestination::new(destination, server, self.clone()))
    }

    /// A configuration names the server, whether or not its deletes are kept: what it owes from before is worked off from
    /// now on.
    pub(crate) fn configure(&self, address: &Address) {
        self.configured(address);
    }

    fn configured(&self, address: &Address) -> Arc<Server> {
        let server = self.server(address);
        if server.configure() {
            // Whoever replays is gone only when the process ends.
            let _ = self.shared.begin.send(server.clone());
        }
        server
    }

    fn server(&self, address: &Address) -> Arc<Server> {
        let mut servers = self.servers();
        let make =
            || Server::new(address.clone(), recovery::folder_name(address), self.shared.tko_trackers.fence(address));
        servers.entry(address.clone()).or_insert_with(make).clone()
    }

    fn servers(&self) -> MutexGuard<'_, BTreeMap<Address, Arc<Server>>> {
        lock(&self.shared.servers)
    }

    /// Keeps deletes for a server. When this says so, they are on disk and the server is fenced off, here and at the
    /// peers. The error is for the log: the deletes failed.
    async fn keep(&self, server: &Arc<Server>, deletions: Vec<Deletion>) -> Result<(), Arc<str>> {
        let kept = self.note(server, Work::Deletes(deletions.clone())).await;
        match kept.is_err() || self.shared.peers.is_alone() || self.shared.peers.assure(server, &deletions).await {
            true => kept,
            false => {
                self.shared.counters.unassured.fetch_add(deletions.len() as u64, Relaxed);
                Err(Arc::from("a peer could not be told"))
            }
        }
    }

    /// Has something written down.
    async fn note(&self, server: &Arc<Server>, work: Work) -> Result<(), Arc<str>> {
        let records = work.deletions().len() as u64;
        let bytes = work.deletions().iter().map(Deletion::bytes).sum();
        let crowded = || {
            self.shared.counters.append_failures.fetch_add(records, Relaxed);
            Err(Arc::from("too many deletes wait to be written to the spool"))
        };
        let Some(room) = Room::take(&self.waiting_bytes, bytes, WAITING_BYTES_MAX) else { return crowded() };
        let (reply, kept) = oneshot::channel();
        let job = Job { server: server.clone(), work, reply, _room: room };
        match &self.writer {
            Writer::Here(ledger) => lock(ledger).keep(vec![job]),
            Writer::Thread(writer) => match writer.try_send(job) {
                Ok(()) => {}
                Err(TrySendError::Full(_)) => return crowded(),
                Err(TrySendError::Disconnected(_)) => return Err(Arc::from("the spool's thread is gone")),
            },
        }
        kept.await.unwrap_or_else(|_| Err(Arc::from("the spool's thread is gone")))
    }

    /// Has every server forget that a silent router owes something.
    async fn expire_holds(&self) {
        let now = Instant::now();
        let servers: Vec<_> = self.servers().values().cloned().collect();
        for server in servers {
            for owner in server.overdue(now) {
                tracing::warn!(
                    server = %server.address, router = format!("{:016x}", owner.0),
                    "a router that owes this server deletes is silent: the server will forget everything before it is read"
                );
                // What could not be written is tried again; until then the server is held.
                let _ = self.note(&server, Work::Expire { owner }).await;
            }
        }
    }

    /// Answers another router: `name` is what comes behind `spool_`. Nothing where that is no question, or there are no
    /// peers.
    pub(crate) async fn answer_peer(&self, name: &[u8]) -> Option<Vec<u8>> {
        if self.shared.peers.is_alone() {
            return None;
        }
        if self.parts.take_up(name) {
            return Some(b"ok".to_vec());
        }
        if let Some(owner) = peer_protocol::asking(name) {
            let held = self.servers();
            let held = held.values().filter(|server| server.is_held_for(owner)).map(|server| &*server.address.0);
            // A router that names itself as its peer gets no answer.
            return (!self.shared.peers.is_own(owner)).then(|| held.collect::<Vec<_>>().join("\r\n").into_bytes());
        }
        let hold = peer_protocol::saying(name, "hold");
        let is_hold = hold.is_some();
        let (owner, sequence, address) = hold.or_else(|| peer_protocol::saying(name, "release"))?;
        if self.shared.peers.is_own(owner) {
            return None;
        }
        let is_known = { self.servers().contains_key(&address) };
        if !is_known && (!is_hold || !self.has_room_for_strangers()) {
            return Some(if is_hold { b"too many servers".to_vec() } else { b"ok".to_vec() });
        }
        let work = match is_hold {
            true => Work::Hold { owner, sequence, until: Instant::now() + self.shared.settings.peer_timeout },
            false => Work::Release { owner, sequence },
        };
        let server = self.server(&address);
        if is_hold && server.holds() >= HOLDS_MAX && !server.is_held_for(owner) {
            return Some(b"too many routers owe it something".to_vec());
        }
        let was_held = server.is_held_for(owner);
        let outcome = self.note(&server, work).await;
        let router = format!("{:016x}", owner.0);
        match (was_held, server.is_held_for(owner)) {
            (false, true) => {
                tracing::warn!(server = %address, router, "another router owes this server deletes: it is not read")
            }
            (true, false) => {
                tracing::info!(server = %address, router, "what another router owed this server is done with")
            }
            _ => {}
        }
        Some(outcome.map_or_else(|why| why.as_bytes().to_vec(), |()| b"ok".to_vec()))
    }

    /// Whether one more server may be known that no configuration here names.
    fn has_room_for_strangers(&self) -> bool {
        let mut servers = self.servers();
        let strangers =
            |servers: &BTreeMap<_, Arc<Server>>| servers.values().filter(|server| server.is_stranger()).count();
        let has_room = |servers: &BTreeMap<_, _>| servers.len() < SERVERS_MAX && strangers(servers) < STRANGERS_MAX;
        if has_room(&servers) {
            return true;
        }
        // Those that are done with, unless somebody is about to do something with one: a second record of it would be another
        // fence.
        servers.retain(|_, server| {
            let goes = server.is_stranger() && server.is_free() && Arc::strong_count(server) == 1;
            if goes && let Err(error) = self.shared.disk.remove_folder(&server.folder) {
                tracing::warn!(folder = server.folder, %error, "an empty folder of the spool stays");
            }
            !goes
        });
        has_room(&servers)
    }

    /// The server and the delete that another router asks to pass on: `name` is what comes behind `spool_`.
    pub(crate) fn passed_on(&self, name: &[u8]) -> Option<(Address, Request<Bytes>)> {
        if self.shared.peers.is_alone() {
            return None;
        }
        let (address, deletion) = self.parts.deletion(name)?;
        Some((address, deletion.request()))
    }

    /// What the server at `address` owes.
    pub fn owed(&self, address: &Address) -> Owed {
        let server = self.servers().get(address).cloned();
        server.map(|server| server.owed()).unwrap_or_default()
    }

    /// Makes the next attempt to work off what the server at `address` owes come at once.
    pub fn hurry(&self, address: &Address) {
        let server = self.servers().get(address).cloned();
        if let Some(server) = server.filter(|server| !server.owed().is_nothing()) {
            server.hurry();
        }
    }

    /// How it fares.
    pub fn statistics(&self) -> SpoolStatistics {
        let mut statistics = SpoolStatistics::read(&self.shared.counters);
        for server in self.servers().values() {
            let owed = server.owed();
            statistics.pending += owed.records;
            statistics.pending_bytes += owed.bytes;
            statistics.servers_behind += u64::from(!owed.is_nothing());
            statistics.servers_held += u64::from(server.holds() > 0);
        }
        statistics
    }

    /// A line for each server that owes something.
    pub(crate) fn report(&self) -> String {
        let mut lines = String::new();
        for (address, server) in self.servers().iter() {
            let (Owed { records, bytes, forget }, holds) = (server.owed(), server.holds());
            if !server.owed().is_nothing() || holds > 0 {
                let forget = u8::from(forget);
                write!(lines, "{address} deletes:{records} bytes:{bytes} forget:{forget} held_for:{holds}\r\n")
                    .expect("a string takes all");
            }
        }
        lines
    }
}

impl Shared {
    /// What this router owes the server.
    fn debt(&self, address: &Address) -> Debt {
        let server = lock(&self.servers).get(address).cloned();
        server.map_or(Debt::Nothing, |server| server.debt())
    }
}

impl std::fmt::Debug for Spool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spool").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

/// Nothing panics under these locks; if it did, what they guard is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
