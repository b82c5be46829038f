//! The context of one thread's sessions: the store, the thread's counters, the limits, and the process around them.
//! Passed to every call, so that a session itself has a few bytes only.

use crate::observe::counters::Counters;
use crate::observe::event_log::{EventSink, NO_EVENTS};
use crate::observe::metrics::Sampler;
use crate::session::crawl::ClassSet;
use lookaside_authentication::{Credentials, LoginAttempt};
use lookaside_protocol::text::Limits;
use lookaside_store::{Now, Options, Store};

/// The longest command line, in bytes: a get of some 4,000 of the longest keys. A client that sends more without a line
/// feed gets an error and is disconnected.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// The process, as far as clients may read or change it.
pub trait ServerControl {
    /// Appends the reply to `stats <arguments>`.
    fn stats(&self, arguments: &[u8], now: Now, out: &mut Vec<u8>);

    /// `verbosity <level>`.
    fn set_verbosity(&self, level: u32) {
        let _ = level;
    }

    /// `cache_memlimit`; returns whether the limit has been set.
    fn set_memory_limit(&self, megabytes: u64) -> bool {
        let _ = megabytes;
        false
    }

    /// Whether clients may stop the process.
    fn allows_shutdown(&self) -> bool {
        false
    }

    /// `shutdown`: stops the process if that is allowed; returns whether it is.
    fn shut_down(&self) -> bool {
        false
    }

    /// `refresh_certs`: reloads the certificates. An error is the reply.
    fn refresh_certificates(&self) -> Result<(), String> {
        Err("Error TLS not enabled".to_string())
    }

    /// Logs a refused login. `user` is `None` if no name could be read; `descriptor` is `None` if there is no
    /// connection.
    fn record_refused_login(&self, user: Option<&[u8]>, descriptor: Option<i32>, now: Now) {
        let _ = (user, descriptor, now);
    }

    /// Why a client may not `watch`; `None` if it may.
    fn watch_refusal(&self) -> Option<&'static str> {
        Some("CLIENT_ERROR watch commands not allowed")
    }

    /// Whether clients may list keys.
    fn allows_key_dump(&self) -> bool {
        true
    }

    /// Whether clients may flush the store.
    fn allows_flush(&self) -> bool {
        true
    }

    /// Whether `stats sizes` is enabled.
    fn tracks_sizes(&self) -> bool {
        false
    }

    /// `lru_crawler crawl`: removes items of these classes that have expired; `false` if a crawl is under way.
    fn reclaim_expired(&self, classes: ClassSet, now: Now) -> bool {
        let _ = (classes, now);
        true
    }

    /// Whether `lru_crawler` commands may crawl.
    fn is_crawler_enabled(&self) -> bool {
        true
    }

    /// `lru_crawler enable` and `disable`.
    fn set_crawler_enabled(&self, is_enabled: bool) {
        let _ = is_enabled;
    }
}

/// The control of sessions that run without a server: `stats` is empty, and everything else has its default.
pub struct NoControl;

impl ServerControl for NoControl {
    fn stats(&self, _arguments: &[u8], _now: Now, out: &mut Vec<u8>) {
        out.extend_from_slice(b"END\r\n");
    }
}

/// The protocols that clients may speak (memcached's `-B`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocols {
    /// Both: the first byte of a connection decides.
    #[default]
    Both,
    /// The text protocol, with meta commands and leases.
    Text,
    /// The binary protocol.
    Binary,
}

/// The context of a session; one per thread.
#[derive(Clone, Copy)]
pub struct SessionContext<'s> {
    /// The memory, shared with all other threads.
    pub store: &'s Store,
    /// This thread's own counters.
    pub counters: &'s Counters,
    /// Where this thread records events for watchers.
    pub events: &'s EventSink,
    /// Where this thread samples latencies and hot keys; `None` without metrics.
    pub sampler: Option<&'s Sampler>,
    /// The parser's limits.
    pub limits: Limits,
    /// The protocols that clients may speak.
    pub protocols: Protocols,
    /// The users of the binary protocol (SASL); `None` if it needs no authentication.
    pub sasl_users: Option<&'s Credentials>,
    /// The users of the text protocol (`-Y`); `None` if it needs no authentication.
    pub text_users: Option<&'s Credentials>,
    /// The process.
    pub control: &'s (dyn ServerControl + Sync),
}

impl<'s> SessionContext<'s> {
    /// Whether clients of a protocol must authenticate.
    pub(crate) fn requires_auth(&self) -> bool {
        self.sasl_users.is_some() || self.text_users.is_some()
    }

    /// Counts a login, and logs it if it was refused.
    pub(crate) fn record_login(&self, attempt: LoginAttempt<'_>, now: Now) {
        self.counters.auth_cmds.add(1);
        if let LoginAttempt::Refused { user } = attempt {
            self.counters.auth_errors.add(1);
            self.control.record_refused_login(user, self.events.connection.descriptor(), now);
        }
    }

    /// A context over a store made with `options`, without a server around it.
    pub fn new(store: &'s Store, options: &Options, counters: &'s Counters) -> Self {
        SessionContext {
            store,
            counters,
            events: &NO_EVENTS,
            sampler: None,
            limits: limits(options),
            protocols: Protocols::Both,
            sasl_users: None,
            text_users: None,
            control: &NoControl,
        }
    }
}

/// The parser's limits for a store with `options`. The store refuses values a little below `item_bytes_max`, because
/// key and header count too.
pub fn limits(options: &Options) -> Limits {
    Limits { value_bytes_max: options.item_bytes_max, line_bytes_max: LINE_BYTES_MAX }
}
