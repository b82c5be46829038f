//! State that the threads of one process share: the number of connections and of the bytes they hold, the status of the
//! configuration, and the threads whose counters `stats` adds up. No request waits for any of it.

mod held_bytes;

pub(crate) use held_bytes::HeldBytesPermit;

use crate::read_permits::ReadPermits;
use crate::resize::status::ResizeStatus;
use crate::stats::by_verb::VerbResults;
use crate::stats::counters::{CounterDelta, Counters};
use crate::stats::rates::{Count, Rates};
use crate::tls::Certificates;
use crate::tree::Tree;
use held_bytes::HeldBytes;
use lookaside_routing::LeaseClients;
use lookaside_sync::Mutex;
use lookaside_telemetry::{Log, LogThrottle};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Between two warnings that clients are disconnected because of the bound on input or on output.
const BOUND_WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Facts about the process, which come from outside.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity {
    /// The process id, as `stats` shows it.
    pub pid: u32,
    /// The wall clock at the start, in seconds since 1970.
    pub started_unix_s: u64,
}

/// The state of the configuration.
#[derive(Clone, Debug)]
pub struct ConfigStatus {
    /// Where it comes from, as shown to operators.
    pub source: String,
    /// When the configuration in force was applied.
    pub loaded: Instant,
    /// When a configuration was last tried.
    pub attempted: Instant,
    /// Configurations refused since the start.
    pub failures: u64,
    /// Configurations taken from a copy on disk, as their source could not be read or was wrong.
    pub from_disk: u64,
    /// Why the last configuration was refused; `None` if it was applied.
    pub refusal: Option<String>,
}

impl ConfigStatus {
    /// Seconds since the configuration in force was applied.
    pub(crate) fn age_s(&self) -> u64 {
        self.loaded.elapsed().as_secs()
    }
}

/// One thread, as `stats` and metrics see it.
pub(crate) trait StatsSource: Send + Sync {
    fn counters(&self) -> &Counters;
    fn results(&self) -> &VerbResults;
    fn tree(&self) -> Arc<Tree>;
    /// The limit on connections, over all threads.
    fn connections_max(&self) -> usize;
}

/// State of all threads.
#[derive(Debug)]
pub struct SharedState {
    identity: Identity,
    started: Instant,
    sources: Mutex<Vec<Weak<dyn StatsSource>>>,
    connections: AtomicUsize,
    reply_bytes: HeldBytes,
    input_bytes: HeldBytes,
    output_bytes: HeldBytes,
    delete_bytes: HeldBytes,
    is_handing_over: AtomicBool,
    config: Mutex<ConfigStatus>,
    log: OnceLock<Log>,
    certificates: OnceLock<Arc<Certificates>>,
    resize: Arc<ResizeStatus>,
    read_permits: Arc<ReadPermits>,
    lease_clients: Arc<LeaseClients>,
    rates: Mutex<Rates>,
    input_bound_warnings: Mutex<LogThrottle<Instant>>,
    output_bound_warnings: Mutex<LogThrottle<Instant>>,
}

/// A permit for one client connection.
#[derive(Debug)]
pub(crate) struct ConnectionPermit(Arc<SharedState>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

impl SharedState {
    /// State without threads. `source` is where the configuration comes from.
    pub fn new(identity: Identity, source: impl Into<String>) -> Arc<SharedState> {
        let now = Instant::now();
        let status = ConfigStatus {
            source: source.into(),
            loaded: now,
            attempted: now,
            failures: 0,
            from_disk: 0,
            refusal: None,
        };
        Arc::new(SharedState {
            identity,
            started: now,
            sources: Mutex::default(),
            connections: AtomicUsize::new(0),
            reply_bytes: HeldBytes::default(),
            input_bytes: HeldBytes::default(),
            output_bytes: HeldBytes::default(),
            delete_bytes: HeldBytes::default(),
            is_handing_over: AtomicBool::new(false),
            config: Mutex::new(status),
            log: OnceLock::new(),
            certificates: OnceLock::new(),
            resize: Arc::default(),
            read_permits: ReadPermits::new(),
            lease_clients: Arc::default(),
            rates: Mutex::new(Rates::new(now)),
            input_bound_warnings: Mutex::new(LogThrottle::new(1, BOUND_WARNING_INTERVAL)),
            output_bound_warnings: Mutex::new(LogThrottle::new(1, BOUND_WARNING_INTERVAL)),
        })
    }

    /// Facts about the process.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Has `stats` report on TLS, with these certificates.
    pub(crate) fn set_certificates(&self, certificates: Arc<Certificates>) {
        self.certificates.set(certificates).ok();
    }

    /// The certificates; `None` if TLS is not used.
    pub(crate) fn certificates(&self) -> Option<&Arc<Certificates>> {
        self.certificates.get().filter(|certificates| certificates.is_enabled())
    }

    /// Hands over the log of the process, whose level clients may change from now on.
    pub fn set_log(&self, log: Log) {
        let _ = self.log.set(log);
    }

    /// The log; `None` if this is not a process of its own.
    pub(crate) fn log(&self) -> Option<&Log> {
        self.log.get()
    }

    /// The state of a change of the configuration.
    pub fn resize(&self) -> &Arc<ResizeStatus> {
        &self.resize
    }

    /// The permits of clients that read servers directly.
    pub fn read_permits(&self) -> &Arc<ReadPermits> {
        &self.read_permits
    }

    /// The clients that the router takes leases for.
    pub fn lease_clients(&self) -> &Arc<LeaseClients> {
        &self.lease_clients
    }

    /// The increase per second of each of `counts`.
    pub(crate) fn read_rates(&self, now: Instant, counts: &[Count]) -> Vec<f64> {
        self.rates.lock().read(now, counts)
    }

    /// Seconds since the start.
    pub fn uptime_s(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// The moment `at` on the wall clock, in seconds since 1970.
    pub fn unix_s(&self, at: Instant) -> u64 {
        self.identity.started_unix_s + at.saturating_duration_since(self.started).as_secs()
    }

    /// Connected clients, over all threads.
    pub fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// Bytes of values that sessions hold, over all threads. Sessions that hold little are not counted.
    pub fn reply_bytes(&self) -> usize {
        self.reply_bytes.total()
    }

    /// Bytes of large input buffers that sessions hold, over all threads.
    pub fn input_bytes(&self) -> usize {
        self.input_bytes.total()
    }

    /// Bytes of large replies that clients have not read yet, over all threads.
    pub fn output_bytes(&self) -> usize {
        self.output_bytes.total()
    }

    /// Bytes that sessions hold for deletes in progress behind others of their connection, over all threads.
    pub fn delete_bytes(&self) -> usize {
        self.delete_bytes.total()
    }

    /// Logs that a client was disconnected because of the bound on input, unless that was logged just now.
    pub(crate) fn warn_of_input_bound(&self) {
        if let Some(suppressed) = self.input_bound_warnings.lock().allow(Instant::now()) {
            tracing::warn!(
                suppressed,
                input_bytes = self.input_bytes(),
                "closed a client connection: all clients together send too many large commands and do not end them; \
                 find the senders, or lower --max-conns"
            );
        }
    }

    /// Logs that a client was disconnected because of the bound on output, unless that was logged just now.
    pub(crate) fn warn_of_output_bound(&self) {
        if let Some(suppressed) = self.output_bound_warnings.lock().allow(Instant::now()) {
            tracing::warn!(
                suppressed,
                output_bytes = self.output_bytes(),
                "closed a client connection: all clients together send requests and do not read the replies; find the \
                 senders, or lower --max-conns"
            );
        }
    }

    /// A permit for no bytes of output yet.
    pub(crate) fn output_permit(&self) -> HeldBytesPermit {
        self.output_bytes.reserve(0)
    }

    /// A permit for no bytes of input yet.
    pub(crate) fn input_permit(&self) -> HeldBytesPermit {
        self.input_bytes.reserve(0)
    }

    /// A permit for no bytes of deletes yet.
    pub(crate) fn delete_permit(&self) -> HeldBytesPermit {
        self.delete_bytes.reserve(0)
    }

    /// Whether a shutdown hands the clients over to another process.
    pub(crate) fn is_handing_over(&self) -> bool {
        self.is_handing_over.load(SeqCst)
    }

    pub(crate) fn set_handing_over(&self, is_handing_over: bool) {
        self.is_handing_over.store(is_handing_over, SeqCst);
    }

    /// Counts `bytes` of values until the permit is dropped.
    pub(crate) fn reserve_reply_bytes(&self, bytes: usize) -> HeldBytesPermit {
        self.reply_bytes.reserve(bytes)
    }

    /// The sum of all threads' counters.
    pub fn sum_counters(&self) -> CounterDelta {
        let mut sum = CounterDelta::default();
        for source in self.sources() {
            sum.add(&source.counters().snapshot());
        }
        sum
    }

    /// The state of the configuration.
    pub fn config_status(&self) -> ConfigStatus {
        self.config.lock().clone()
    }

    /// Records that a configuration is valid, and will be in force.
    pub fn record_config_accepted(&self) {
        let mut status = self.config.lock();
        status.attempted = Instant::now();
        status.refusal = None;
    }

    /// Records that a configuration is in force from now on.
    pub fn record_config_applied(&self) {
        let mut status = self.config.lock();
        status.loaded = Instant::now();
        status.attempted = status.loaded;
        status.refusal = None;
    }

    /// Records that a configuration was refused.
    pub fn record_config_refused(&self, why: String) {
        let mut status = self.config.lock();
        status.attempted = Instant::now();
        status.failures += 1;
        status.refusal = Some(why);
    }

    /// Records that the configuration was taken from a copy on disk.
    pub fn record_config_from_disk(&self) {
        self.config.lock().from_disk += 1;
    }

    /// Adds a thread to those whose counters are added up.
    pub(crate) fn register(&self, source: Weak<dyn StatsSource>) {
        self.sources.lock().push(source);
    }

    /// The threads that run.
    pub(crate) fn sources(&self) -> Vec<Arc<dyn StatsSource>> {
        self.sources.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// A permit for one more client; `None` if there are `connections_max` already.
    pub(crate) fn acquire_connection(self: &Arc<Self>, connections_max: usize) -> Option<ConnectionPermit> {
        let permit = ConnectionPermit(self.clone());
        match self.connections.fetch_add(1, Relaxed) < connections_max {
            true => Some(permit),
            false => None,
        }
    }
}
