//! The options of connections to servers: timeouts, TKO, bounds.

use super::window::WindowOption;
use crate::backend::keepalive::Keepalive;
use crate::config::router_config::FAILOVER_TIMEOUT;
use clap::Args;
use lookaside_client::{DestinationOptions, TkoTrackers};
use lookaside_routing::HealthSettings;
use std::sync::Arc;
use std::time::Duration;

/// Connections to servers.
#[derive(Args, Clone, Debug)]
pub struct ServerOptions {
    /// Limit on a server's reply time, in milliseconds, unless its pool has another
    #[arg(short = 't', long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub server_timeout: u32,
    /// Limit on connecting to a server, in milliseconds [default: the server timeout]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..))]
    pub connect_timeout: Option<u32>,
    /// Connect to all servers at the start, and again when a connection has ended, so that a dead server is found
    /// before a request waits for it; so it is with --take-over, and if a pool has spares. By default a connection is
    /// made when a request needs it. Each thread has its own
    #[arg(long)]
    pub connect_ahead: bool,
    /// Once a server of a request has timed out, limit on the time of all further ones, such as the gutter, in
    /// milliseconds: a page costs at most one timeout and this. 0 for none. Deletes are not limited
    #[arg(long, value_name = "MS", default_value_t = FAILOVER_TIMEOUT.as_millis() as u32)]
    pub failover_timeout: u32,
    /// Delay before the first probe of a TKO server, in milliseconds; one and a half times as long for each further
    /// probe
    #[arg(short = 'r', long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub probe_timeout_initial: u32,
    /// Longest delay between two probes, in milliseconds, before jitter of up to 50 % more (mcrouter: 60000). After a
    /// partition a server may return deleted values until the router that delivers the deletes has probed it too, so a
    /// long delay prolongs stale reads. Each probe costs a connection
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub probe_timeout_max: u32,
    /// Consecutive timeouts before a server is marked TKO
    #[arg(long, value_name = "TIMEOUTS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub timeouts_until_tko: u32,
    /// Never mark a server TKO: each request waits for a dead one
    #[arg(long)]
    pub disable_tko_tracking: bool,
    /// TCP keepalive probes without a reply before a connection to a server is closed; 0 sends none
    #[arg(short = 'K', long, value_name = "PROBES", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=127))]
    pub keepalive_count: u32,
    /// Seconds between two keepalive probes
    #[arg(short = 'i', long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=32_767))]
    pub keepalive_interval: u32,
    /// Seconds without traffic before the first keepalive probe. (-I of lookaside-server is the largest value:
    /// --value-bytes-max here)
    #[arg(short = 'I', long, value_name = "SECONDS", default_value_t = 300, value_parser = parse_keepalive_idle)]
    pub keepalive_idle: u32,
    /// Interval for re-resolving the host names of servers, in milliseconds; connections follow a changed address. 0
    /// resolves only on connect
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    pub resolve_interval: u32,
    /// Close a connection to a server that has had no request for one to two times as many milliseconds, unless
    /// --connect-ahead or spares keep connections open; 0 for never
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    pub reset_inactive_connection_interval: u32,
    /// Maximum requests that one server has been sent and has not answered, per thread; others wait, and
    /// --target-max-pending counts those. 0 for no limit
    #[arg(long, value_name = "REQUESTS", default_value_t = 0)]
    pub target_max_inflight_requests: u32,
    /// Maximum requests queued for one server, per thread; one more fails at once
    #[arg(long, value_name = "REQUESTS", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub target_max_pending: u32,
    /// Bounds each thread's outstanding requests to all servers together, so that their replies do not cause incast
    /// congestion: `adaptive` stays where replies take about twice as long as with few requests; `loss` grows while all
    /// requests are answered; both halve when one is not; a number is a window of that many requests; `off` has no
    /// bound. With a window, a slow server delays requests to the others until it is TKO
    #[arg(long, value_name = "off|adaptive|loss|REQUESTS", default_value = "off")]
    pub window: WindowOption,
}

impl ServerOptions {
    /// The options of every server of a process that is to take over from another one, or not. All threads must share
    /// the result of one call: it has the TKO trackers.
    pub fn destination_options(&self, is_takeover: bool) -> DestinationOptions {
        DestinationOptions {
            outstanding_requests_max: self.target_max_pending as usize + self.target_max_inflight_requests as usize,
            inflight_requests_max: match self.target_max_inflight_requests {
                0 => usize::MAX,
                requests => requests as usize,
            },
            idle_interval_ms: Some(self.reset_inactive_connection_interval.into()).filter(|&interval| interval > 0),
            health: HealthSettings {
                timeouts_until_tko: self.timeouts_until_tko,
                probe_initial_ms: self.probe_timeout_initial.into(),
                probe_max_ms: self.probe_timeout_max.into(),
                is_never_tko: self.disable_tko_tracking,
            },
            tko_trackers: Some(TkoTrackers::new()),
            retired: Some(Arc::default()),
            // The other process serves meanwhile: later, clients would wait for a silent server.
            connect_eagerly: self.connect_ahead || is_takeover,
            resolve_interval_ms: (self.resolve_interval > 0).then_some(self.resolve_interval.into()),
            ..DestinationOptions::default()
        }
    }

    /// The limit on the time of further servers; `None` for none.
    pub(crate) fn failover_timeout(&self) -> Option<Duration> {
        (self.failover_timeout > 0).then_some(Duration::from_millis(self.failover_timeout.into()))
    }

    /// The keepalive probes of connections; `None` without them.
    pub(crate) fn keepalive(&self) -> Option<Keepalive> {
        (self.keepalive_count > 0).then_some(Keepalive {
            idle: Duration::from_secs(self.keepalive_idle.into()),
            interval: Duration::from_secs(self.keepalive_interval.into()),
            probes: self.keepalive_count,
        })
    }
}

/// The system's maximum.
const KEEPALIVE_IDLE_S_MAX: u32 = 32_767;

/// `-I` was the largest value of a client once, and still is at `lookaside-server`.
fn parse_keepalive_idle(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(seconds @ 1..=KEEPALIVE_IDLE_S_MAX) => Ok(seconds),
        _ => Err(format!(
            "expected seconds from 1 to {KEEPALIVE_IDLE_S_MAX}; the largest value of a client is --value-bytes-max"
        )),
    }
}
