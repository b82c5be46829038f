//! Limits and settings of the clients' side.

use super::users::Users;
use lookaside_protocol::text::Limits;
use std::sync::Arc;
use std::time::Duration;

/// The largest value that a client may send, by default. mcrouter has no limit, servers have theirs; what bounds memory
/// is the sum over all clients (`TOTAL_INPUT_BYTES_MAX`).
pub const VALUE_BYTES_MAX: usize = 64 << 20;
/// The longest command line: a get of 1,740 keys (the paper's largest common page, §3.1) of 250 bytes fits.
pub const LINE_BYTES_MAX: usize = 512 << 10;
/// The default limit on client connections.
pub const CONNECTIONS_MAX: usize = 10_000;

/// A client that sends nothing inside a large command for this long is disconnected, and one that reads none of its
/// replies, unless [`Settings::client_timeout`] is another.
pub const WRITE_STALL_MAX: Duration = Duration::from_secs(60);

/// The default limit on the requests of one client that are in progress: mcrouter's.
pub const CLIENT_REQUESTS_MAX: usize = 34_133;

/// The default time for a client's login.
pub const LOGIN_TIMEOUT: Duration = Duration::from_secs(30);

/// The clients' side of a router.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Limits on clients' commands.
    pub limits: Limits,
    /// The limit on open client connections, over all threads. For one more, the thread that accepts it closes the
    /// least recently used one of its own that waits for its client; without any, the new one gets an error and is
    /// closed. Default 10,000, at least 1.
    pub connections_max: usize,
    /// A get that no server answered is a miss instead of an error. Default false. With it an application cannot
    /// distinguish an outage from an empty cache.
    pub miss_on_get_errors: bool,
    /// Every error of a server or a route reaches clients as `SERVER_ERROR remote error`. Default false.
    pub group_remote_errors: bool,
    /// `flush_all` is sent to every server instead of being refused. Default false: one careless client would flush the
    /// whole cluster.
    pub flush_enabled: bool,
    /// The users that may log in. Default `None`: clients are served without.
    pub users: Option<Arc<Users>>,
    /// Clients that have not logged in after this time are disconnected, if there are users. Default 30 s; `None` for
    /// no limit.
    pub login_timeout: Option<Duration>,
    /// Clients that send nothing for this long are disconnected. Default `None`: never.
    pub idle_timeout: Option<Duration>,
    /// Clients that read none of their replies for this long are disconnected. Default [`WRITE_STALL_MAX`]; `None`:
    /// they are not.
    pub client_timeout: Option<Duration>,
    /// The requests of one client that may be in progress; beyond, its socket is not read. A get of more keys is in
    /// progress alone. Default [`CLIENT_REQUESTS_MAX`].
    pub requests_max: usize,
    /// The reply to `version`.
    pub version: String,
    /// The command line as the process was started, for `stats`.
    pub command_line: String,
    /// The command line, by mcrouter's names of options, for the key `__mcrouter__.options`.
    pub options: Arc<[(String, String)]>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            limits: Limits { value_bytes_max: VALUE_BYTES_MAX, line_bytes_max: LINE_BYTES_MAX },
            connections_max: CONNECTIONS_MAX,
            miss_on_get_errors: false,
            group_remote_errors: false,
            flush_enabled: false,
            users: None,
            login_timeout: Some(LOGIN_TIMEOUT),
            idle_timeout: None,
            version: format!("lookaside-router {} (mcrouter)", env!("CARGO_PKG_VERSION")),
            command_line: String::new(),
            client_timeout: Some(WRITE_STALL_MAX),
            requests_max: CLIENT_REQUESTS_MAX,
            options: Arc::default(),
        }
    }
}
