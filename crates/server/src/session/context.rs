//! What the sessions of one thread work on: the store, the thread's counters, the limits, and the process's word about
//! itself. Handed to every call, so that a session itself stays a few bytes.

use crate::observe::counters::Counters;
use crate::observe::event_log::EventSink;
use crate::observe::event_log::NO_EVENTS;
use crate::observe::metrics::Sampler;
use crate::session::auth::credentials::Credentials;
use lookaside_protocol::text::Limits;
use lookaside_store::{Now, Options, Store};

/// The longest command line, in bytes: room for a get of some 4,000 of the longest keys. A client that sends more
/// without a line's end is told so and disconnected.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Answers what only the whole process knows.
pub trait ServerControl {
    /// Appends the reply to `stats <arguments>`.
    fn stats(&self, arguments: &[u8], now: Now, out: &mut Vec<u8>);

    /// `verbosity <level>`.
    fn set_verbosity(&self, level: u32) {
        let _ = level;
    }

    /// `cache_memlimit`: says whether the limit is now so many megabytes.
    fn set_memory_limit(&self, megabytes: u64) -> bool {
        let _ = megabytes;
        false
    }

    /// Whether clients may end the process.
    fn allows_shutdown(&self) -> bool {
        false
    }

    /// `shutdown`: ends the process if that is allowed; says whether it is.
    fn shut_down(&self) -> bool {
        false
    }

    /// `refresh_certs`: reads the certificates anew; an error is what to say.
    fn refresh_certificates(&self) -> Result<(), String> {
        Err("Error TLS not enabled".to_string())
    }

    /// Somebody was refused who came as this user, if that could be read, by this connection, if it has one.
    fn record_refused_login(&self, user: Option<&[u8]>, descriptor: Option<i32>, now: Now) {
        let _ = (user, descriptor, now);
    }

    /// `watch`: why nobody may, or may any more.
    fn watch_refusal(&self) -> Option<&'static str> {
        Some("CLIENT_ERROR watch commands not allowed")
    }

    /// Whether keys may be listed.
    fn allows_key_dump(&self) -> bool {
        true
    }

    /// Whether clients may empty the store.
    fn allows_flush(&self) -> bool {
        true
    }

    /// Whether sizes of items are told.
    fn tracks_sizes(&self) -> bool {
        false
    }

    /// Whether memcached's crawler would be on.
    fn is_crawler_enabled(&self) -> bool {
        true
    }

    /// `lru_crawler enable` and `disable`.
    fn set_crawler_enabled(&self, is_crawler_enabled: bool) {
        let _ = is_crawler_enabled;
    }
}

/// A process with nothing to say about itself, for sessions that are driven without a daemon: `stats` is empty.
pub struct NoControl;

impl ServerControl for NoControl {
    fn stats(&self, _arguments: &[u8], _now: Now, out: &mut Vec<u8>) {
        out.extend_from_slice(b"END\r\n");
    }
}

/// In which dialects clients may speak (memcached's `-B`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocols {
    /// In either: the first byte of a connection says which.
    #[default]
    Both,
    /// In the text dialect, with meta commands and leases.
    Text,
    /// In the binary dialect.
    Binary,
}

/// What a session works on; one per thread.
#[derive(Clone, Copy)]
pub struct SessionContext<'s> {
    /// The memory, shared with all other threads.
    pub store: &'s Store,
    /// This thread's own counters.
    pub counters: &'s Counters,
    /// Who looks at what this thread does.
    pub events: &'s EventSink,
    /// Where samples of this thread's work go, if anybody wants them.
    pub sampler: Option<&'s Sampler>,
    /// What the parser refuses.
    pub limits: Limits,
    /// In which dialects clients may speak.
    pub protocols: Protocols,
    /// Whom a client of the binary dialect must prove to be, if anyone (SASL).
    pub sasl: Option<&'s Credentials>,
    /// Whom a client of the text dialect must prove to be, if anyone (`-Y`).
    pub text_users: Option<&'s Credentials>,
    /// Who answers `stats`.
    pub control: &'s (dyn ServerControl + Sync),
}

impl<'s> SessionContext<'s> {
    /// Whether clients must prove who they are.
    pub(crate) fn requires_auth(&self) -> bool {
        self.sasl.is_some() || self.text_users.is_some()
    }

    /// Counts a refused login and tells the process.
    pub(crate) fn refuse_login(&self, user: Option<&[u8]>, now: Now) {
        self.counters.auth_errors.add(1);
        self.control.record_refused_login(user, self.events.descriptor(), now);
    }

    /// A service over a store made with `options`, without a daemon around it.
    pub fn new(store: &'s Store, options: &Options, counters: &'s Counters) -> Self {
        SessionContext {
            store,
            counters,
            events: &NO_EVENTS,
            sampler: None,
            limits: limits(options),
            protocols: Protocols::Both,
            sasl: None,
            text_users: None,
            control: &NoControl,
        }
    }
}

/// The parser's limits for a store with `options`. The store refuses a little less than `item_bytes_max`, for the key
/// and the item's header count there too.
pub fn limits(options: &Options) -> Limits {
    Limits { value_bytes_max: options.item_bytes_max, line_bytes_max: LINE_BYTES_MAX }
}
