//! What the threads of one daemon share, and no request waits for: how many clients are connected, how the
//! configuration fares, and who must be asked when `stats` adds up.

use crate::Router;
use crate::stats::counters::Tally;
use crate::tls::Certificates;
use lookaside_telemetry::Log;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use tokio::time::Instant;

/// Facts about the process that only the outside knows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity {
    /// The process id, as `stats` shows it.
    pub pid: u32,
    /// The wall clock at the start, in seconds since 1970.
    pub started_unix_s: u64,
}

/// How the configuration fares.
#[derive(Clone, Debug)]
pub struct ConfigurationStatus {
    /// Where it comes from, in words for an operator.
    pub source: String,
    /// When the one in force was taken.
    pub loaded: Instant,
    /// When one was last tried.
    pub attempted: Instant,
    /// How many were refused since the start.
    pub failures: u64,
    /// Why the last one was refused, if it was.
    pub refusal: Option<String>,
}

/// The threads of one daemon.
#[derive(Debug)]
pub struct Fleet {
    identity: Identity,
    started: Instant,
    routers: Mutex<Vec<Weak<Router>>>,
    connections: AtomicUsize,
    reply_bytes: AtomicUsize,
    /// Clients that are told to stop go on in another process.
    is_leaving: AtomicBool,
    configuration: Mutex<ConfigurationStatus>,
    log: OnceLock<Log>,
    certificates: OnceLock<Arc<Certificates>>,
}

/// A place among the connections; given back when dropped.
#[derive(Debug)]
pub struct Seat(Arc<Fleet>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

/// Bytes that a session holds in values; given back when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    fleet: Arc<Fleet>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.fleet.reply_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

impl Fleet {
    /// A fleet without routers. `source` says where the configuration comes from.
    pub fn new(identity: Identity, source: impl Into<String>) -> Arc<Fleet> {
        let now = Instant::now();
        let status =
            ConfigurationStatus { source: source.into(), loaded: now, attempted: now, failures: 0, refusal: None };
        Arc::new(Fleet {
            identity,
            started: now,
            routers: Mutex::default(),
            connections: AtomicUsize::new(0),
            reply_bytes: AtomicUsize::new(0),
            is_leaving: AtomicBool::new(false),
            configuration: Mutex::new(status),
            log: OnceLock::new(),
            certificates: OnceLock::new(),
        })
    }

    /// The process's facts.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Has `stats` tell of TLS, with these.
    pub(crate) fn protect(&self, certificates: Arc<Certificates>) {
        self.certificates.set(certificates).ok();
    }

    /// What TLS is spoken with, if any is.
    pub(crate) fn certificates(&self) -> Option<&Arc<Certificates>> {
        self.certificates.get().filter(|certificates| certificates.are_used())
    }

    /// Hands over the log of the process, whose level clients may change from now on.
    pub fn set_log(&self, log: Log) {
        let _ = self.log.set(log);
    }

    /// The log, where this is a process of its own.
    pub(crate) fn log(&self) -> Option<&Log> {
        self.log.get()
    }

    /// Seconds since the start.
    pub fn uptime_s(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// The moment `at` on the wall clock, in seconds since 1970.
    pub fn unix_s(&self, at: Instant) -> u64 {
        self.identity.started_unix_s + at.saturating_duration_since(self.started).as_secs()
    }

    /// How many clients are connected, over all threads.
    pub fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// Bytes that sessions hold in values, over all threads; those that hold little are not counted.
    pub fn reply_bytes(&self) -> usize {
        self.reply_bytes.load(Relaxed)
    }

    /// Whether a shutdown leaves the clients to another process.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(SeqCst)
    }

    /// The next shutdown is, or is not, one that leaves the clients to another process.
    pub(crate) fn leave(&self, is_leaving: bool) {
        self.is_leaving.store(is_leaving, SeqCst);
    }

    /// Counts `bytes` until the result is dropped.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        self.reply_bytes.fetch_add(bytes, Relaxed);
        Held { fleet: self.clone(), bytes }
    }

    /// The sum of all threads' counters.
    pub fn tally(&self) -> Tally {
        let mut sum = Tally::default();
        for router in self.routers() {
            sum.merge(&router.counters().read());
        }
        sum
    }

    /// How the configuration fares.
    pub fn configuration(&self) -> ConfigurationStatus {
        lock(&self.configuration).clone()
    }

    /// Takes note of a configuration that is in force from now on.
    pub fn configuration_taken(&self) {
        let mut status = lock(&self.configuration);
        status.loaded = Instant::now();
        status.attempted = status.loaded;
        status.refusal = None;
    }

    /// Takes note of a configuration that was refused.
    pub fn configuration_refused(&self, why: String) {
        let mut status = lock(&self.configuration);
        status.attempted = Instant::now();
        status.failures += 1;
        status.refusal = Some(why);
    }

    pub(crate) fn enlist(&self, router: &Arc<Router>) {
        lock(&self.routers).push(Arc::downgrade(router));
    }

    pub(crate) fn routers(&self) -> Vec<Arc<Router>> {
        lock(&self.routers).iter().filter_map(Weak::upgrade).collect()
    }

    /// A place for one more client, unless there are `connections_max` already.
    pub(crate) fn take_seat(self: &Arc<Self>, connections_max: usize) -> Option<Seat> {
        let seat = Seat(self.clone());
        match self.connections.fetch_add(1, Relaxed) < connections_max {
            true => Some(seat),
            false => None,
        }
    }
}

/// No code panics while it holds these locks; if one did, the numbers are still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
