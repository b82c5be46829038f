//! [`ServerState`]: what all threads of the process share. `startup` builds it, `lifecycle` owns it.

use crate::cli::Arguments;
use crate::clock::Clock;
use crate::net::accept_pause::AcceptPause;
use crate::net::connection_table::ConnectionTable;
use crate::net::tls::certificates::Certificates;
use crate::net::udp::amplification::AmplificationLimit;
use crate::net::watchers::{WatchSources, Watchers};
use crate::net::worker_handle::{Dispatched, WorkerHandle};
use crate::observe::baseline::Baseline;
use crate::observe::event_log::{EventSink, format_eviction, kind};
use crate::session::auth::credentials::Credentials;
use crate::session::auth::login_log::LoginLog;
use crate::session::context::Protocols;
use lookaside_store::{Options, RegionName, Store};
use lookaside_sync::Mutex;
use lookaside_telemetry::Log;
use lookaside_upgrade::Program;
use std::io::Write;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The programs that can take over from each other. The format includes that of a connection's handover state.
pub(crate) const PROGRAM: Program = Program { name: "lookaside-server", format: 1 };

/// What all threads of the process share.
pub(crate) struct ServerState {
    pub(crate) arguments: Arguments,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) store: Store,
    /// `None` if the store does not outlive the process.
    pub(crate) warm_start: Option<WarmStart>,
    pub(crate) worker_handles: Vec<WorkerHandle>,
    pub(crate) connections_total: AtomicU64,
    pub(crate) connections_rejected: AtomicU64,
    pub(crate) connection_limits: ConnectionLimits,
    pub(crate) accept_pause: AcceptPause,
    pub(crate) baseline: Mutex<Baseline>,
    pub(crate) tcp_port: AtomicU16,
    pub(crate) protocols: Protocols,
    pub(crate) secrets: Secrets,
    /// `None` if UDP is off.
    pub(crate) amplification_limit: Option<Arc<AmplificationLimit>>,
    pub(crate) log: Log,
    pub(crate) login_log: LoginLog,
    pub(crate) connection_table: ConnectionTable,
    pub(crate) watchers: Watchers,
    /// Any thread may evict, so evictions have a sink of their own.
    pub(crate) evictions: Arc<EventSink>,
    /// Descriptor and address of each listening socket, as memcached prints them.
    pub(crate) listening: OnceLock<Vec<(RawFd, String)>>,
    /// Set by `lru_crawler enable` and `disable`. The server has no LRU crawler.
    pub(crate) is_crawler_enabled: AtomicBool,
    /// A byte written here ends the main loop, as a signal does.
    pub(crate) stop: UnixStream,
}

/// The options that accepting and closing connections depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    pub(crate) connections_max: usize,
    /// 0 if idle connections are not closed.
    pub(crate) idle_timeout_s: u32,
    /// Whether connections over the maximum wait to be accepted (`-o no_maxconns_fast`) or are refused.
    pub(crate) waits_when_full: bool,
}

/// How the store was attached to its region.
#[derive(Clone, Debug)]
pub(crate) struct WarmStart {
    pub(crate) name: RegionName,
    /// The number of items found in the region.
    pub(crate) items: u64,
    /// How long attaching or creating the region took.
    pub(crate) attach_ms: u64,
}

/// Certificates and users. SIGHUP reloads them from their files.
pub(crate) struct Secrets {
    /// `None` if TLS is off.
    pub(crate) certificates: Option<Certificates>,
    /// The users of the binary protocol; `None` if it needs no authentication.
    pub(crate) sasl_users: Option<Credentials>,
    /// The users of the text protocol; `None` if it needs no authentication.
    pub(crate) text_users: Option<Credentials>,
}

impl Secrets {
    /// Reloads all files. A file that cannot be used is logged, and its previous contents stay in force.
    pub(crate) fn reload(&self, clock: Clock) {
        if let Some(certificates) = &self.certificates {
            match certificates.refresh(clock.now().unix_ms) {
                Ok(()) => tracing::info!("certificates reloaded"),
                Err(error) => tracing::error!("cannot reload certificates; keeping the old ones: {error}"),
            }
        }
        for users in self.sasl_users.iter().chain(&self.text_users) {
            match users.reload() {
                Ok(()) => tracing::info!("{} reloaded", users.describe_count()),
                Err(error) => tracing::error!("cannot reload users; keeping the old ones: {error}"),
            }
        }
    }
}

impl ServerState {
    /// Ends the process, as SIGTERM does.
    pub(crate) fn stop(&self) {
        if let Err(error) = (&self.stop).write_all(b"s") {
            tracing::error!("cannot stop as requested by a client: {error}");
        }
    }

    /// Gives a connection to the worker that has the fewest.
    pub(crate) fn dispatch(&self, dispatched: Dispatched) {
        let least_loaded =
            self.worker_handles.iter().min_by_key(|handle| handle.connections_open.load(Ordering::Relaxed));
        least_loaded.expect("there is at least one worker").dispatch([dispatched]);
    }

    /// Makes the store record its evictions for watchers.
    pub(crate) fn record_evictions(&self) {
        let sink = Arc::clone(&self.evictions);
        self.store.on_eviction(Box::new(move |evicted, now| {
            if sink.is_enabled(kind::EVICTIONS) {
                sink.push(kind::EVICTIONS, format_eviction(evicted, now), now);
            }
        }));
    }

    /// Whether the maximum number of connections is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.connections_open() >= self.connection_limits.connections_max
    }

    /// The number of open client connections.
    pub(crate) fn connections_open(&self) -> usize {
        let served: usize =
            self.worker_handles.iter().map(|handle| handle.connections_open.load(Ordering::Relaxed)).sum();
        served + self.watchers.count.load(Ordering::Relaxed)
    }

    /// What the watchers' thread works on.
    pub(crate) fn watch_sources(&self) -> WatchSources<'_> {
        let sinks = self.worker_handles.iter().map(|handle| &handle.events).chain([&*self.evictions]);
        WatchSources { sinks: sinks.collect(), connection_table: &self.connection_table, clock: self.clock }
    }
}
