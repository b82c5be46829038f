//! [`ServerState`]: the state that all threads of the process share. `startup` builds it, `lifecycle` owns it. The
//! threads that serve see only parts of it: the store, [`NetState`], and the rest behind `ServerControl`.

use crate::cli::Arguments;
use crate::clock::Clock;
use crate::net::state::NetState;
use crate::net::tls::certificates::Certificates;
use crate::net::watchers::WatchSources;
use crate::observe::baseline::Baseline;
use crate::observe::event_log::{EventSink, format_eviction, kind};
use crate::session::context::Protocols;
use crate::session::crawl::expiry::ExpiryCrawl;
use lookaside_authentication::{Credentials, LoginLog};
use lookaside_store::{Options, RegionName, Store};
use lookaside_sync::Mutex;
use lookaside_telemetry::Log;
use lookaside_upgrade::Program;
use std::io::Write;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU16};
use std::sync::{Arc, OnceLock};

/// The programs that can take over from each other. The format includes that of a connection's handover state.
pub(crate) const PROGRAM: Program = Program { name: "lookaside-server", format: 1 };

pub(crate) struct ServerState {
    pub(crate) arguments: Arguments,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) store: Store,
    pub(crate) net: NetState,
    /// `None` if the store does not outlive the process.
    pub(crate) warm_start: Option<WarmStart>,
    pub(crate) baseline: Mutex<Baseline>,
    /// 0 if TCP is off.
    pub(crate) tcp_port: AtomicU16,
    /// 0 if UDP is off.
    pub(crate) udp_port: u16,
    pub(crate) protocols: Protocols,
    pub(crate) secrets: Secrets,
    pub(crate) log: Log,
    pub(crate) login_log: LoginLog,
    /// Any thread may evict, so evictions have a sink of their own.
    pub(crate) evictions: Arc<EventSink>,
    /// Descriptor and address of each listening socket, as memcached prints them.
    pub(crate) listening: OnceLock<Vec<(RawFd, String)>>,
    /// Set by `lru_crawler enable` and `disable`.
    pub(crate) is_crawler_enabled: AtomicBool,
    /// The crawl of `lru_crawler crawl`.
    pub(crate) expiry_crawl: ExpiryCrawl,
    /// A byte written here ends the main loop, as a signal does.
    pub(crate) stop: UnixStream,
}

/// How the store was attached to its region.
#[derive(Clone, Debug)]
pub(crate) struct WarmStart {
    pub(crate) name: RegionName,
    /// Found in the region.
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
            users.reload_and_log();
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

    /// Makes the store record its evictions for watchers.
    pub(crate) fn record_evictions(&self) {
        let sink = Arc::clone(&self.evictions);
        self.store.on_eviction(Box::new(move |evicted, now| {
            if sink.is_enabled(kind::EVICTIONS) {
                sink.push(kind::EVICTIONS, format_eviction(evicted, now), now);
            }
        }));
    }

    pub(crate) fn watch_sources(&self) -> WatchSources<'_> {
        let sinks = self.net.worker_handles.iter().map(|handle| &handle.events).chain([&*self.evictions]);
        WatchSources { sinks: sinks.collect(), connection_table: &self.net.connection_table, clock: self.clock }
    }
}
