//! Settings of a destination.

use super::shared::RetiredCounts;
use crate::tko::TkoTrackers;
use lookaside_protocol::text::Limits;
use lookaside_routing::{HealthSettings, Protocol};
use std::{sync::Arc, time::Duration};

/// The longest line of a reply: a key, four numbers and a verb, or an error message.
const REPLY_LINE_BYTES_MAX: usize = 2_048;

/// What a destination is, in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DestinationRole {
    /// A cache server.
    #[default]
    Server,
    /// A router in front of cache servers.
    Router,
}

impl std::fmt::Display for DestinationRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DestinationRole::Server => "server",
            DestinationRole::Router => "router",
        })
    }
}

/// Logs an event of a destination at the level `$level`, under the name of its role: its address as the field `server`
/// or `router`, then the other fields and the message.
macro_rules! log_destination {
    ($level:ident, $role:expr, $address:expr, $($event:tt)+) => {
        match $role {
            $crate::DestinationRole::Server => tracing::$level!(server = %$address, $($event)+),
            $crate::DestinationRole::Router => tracing::$level!(router = %$address, $($event)+),
        }
    };
}
pub(super) use log_destination;

/// Settings of a [`crate::TcpDestination`].
#[derive(Clone, Debug)]
pub struct DestinationOptions {
    /// How long a batch may wait for its replies once there is a connection, in milliseconds. Default 1,000. If it is
    /// too short, a busy server becomes TKO; if it is too long, a dead server delays its callers.
    pub server_timeout_ms: u64,
    /// How long connecting may take, in milliseconds. Default `None`: as `server_timeout_ms`.
    pub connect_timeout_ms: Option<u64>,
    /// The longest of these two times, whatever a configuration says, in milliseconds. Default: no limit.
    pub timeout_ms_max: u64,
    /// Requests that may be queued or sent and not answered; one more is [`Failure::Busy`]. Default 100,000. A batch
    /// larger than this is always refused.
    ///
    /// [`Failure::Busy`]: lookaside_routing::Failure::Busy
    pub outstanding_requests_max: usize,
    /// Requests that may be sent and not answered; further ones wait, as long as the server timeout allows. Default: no
    /// limit but the former.
    pub inflight_requests_max: usize,
    /// Requests that have timed out and whose replies are still expected; one more ends the connection. Default 10,000.
    pub late_requests_max: usize,
    /// The largest value that is accepted from the server, in bytes. Default 128 MiB. A larger one is malformed.
    pub value_bytes_max: usize,
    /// The protocol that the server is sent. Default text: a run of gets is one line there, so it costs less.
    pub protocol: Protocol,
    /// When the server becomes TKO, and how it is probed.
    pub health: HealthSettings,
    /// Shares the server's TKO state with the other destinations at its address. Default `None`: not shared.
    pub tko_trackers: Option<Arc<TkoTrackers>>,
    /// Gets the counts of each destination when that is dropped, so that sums never fall. Default `None`.
    pub retired: Option<Arc<RetiredCounts>>,
    /// Whether to connect before the first batch, and again after a connection has ended, so that a dead server is
    /// found before a request waits for it. Default false: connections are made when they are needed.
    pub connect_eagerly: bool,
    /// A connection without requests for one to two such intervals is closed, in milliseconds. Default `None`: it stays
    /// open, as it does with `connect_eagerly`.
    pub idle_interval_ms: Option<u64>,
    /// How often a server's host name is resolved again while it is connected, in milliseconds, plus or minus a
    /// quarter. Default 30,000; `None`: only when a connection is made. If it is too long, a server that has moved is
    /// used at its old address.
    pub resolve_interval_ms: Option<u64>,
    /// Seed of the jitter of probes. Default 0.
    pub seed: u64,
    /// Whether its failures name it ([`Failure::OfServer`]). Default false.
    ///
    /// [`Failure::OfServer`]: lookaside_routing::Failure::OfServer
    pub names_failures: bool,
    /// What it is called in the log. Default a server.
    pub role: DestinationRole,
}

impl Default for DestinationOptions {
    fn default() -> Self {
        DestinationOptions {
            server_timeout_ms: 1_000,
            connect_timeout_ms: None,
            timeout_ms_max: u64::MAX,
            outstanding_requests_max: 100_000,
            inflight_requests_max: usize::MAX,
            late_requests_max: 10_000,
            value_bytes_max: 128 << 20,
            protocol: Protocol::Text,
            health: HealthSettings::default(),
            tko_trackers: None,
            retired: None,
            connect_eagerly: false,
            idle_interval_ms: None,
            resolve_interval_ms: Some(30_000),
            seed: 0,
            names_failures: false,
            role: DestinationRole::Server,
        }
    }
}

impl DestinationOptions {
    pub(super) fn reply_limits(&self) -> Limits {
        Limits { value_bytes_max: self.value_bytes_max, line_bytes_max: REPLY_LINE_BYTES_MAX }
    }

    pub(super) fn server_timeout(&self) -> Duration {
        Duration::from_millis(self.server_timeout_ms)
    }

    pub(super) fn idle_interval(&self) -> Option<Duration> {
        self.idle_interval_ms.filter(|_| !self.connect_eagerly).map(Duration::from_millis)
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms.unwrap_or(self.server_timeout_ms))
    }
}
