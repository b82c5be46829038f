//! [`NetState`]: the state of connections that all threads share.

use crate::net::accept_pause::AcceptPause;
use crate::net::connection_table::ConnectionTable;
use crate::net::udp::amplification::AmplificationLimit;
use crate::net::watchers::Watchers;
use crate::net::worker_handle::WorkerHandle;
use lookaside_sync::SharedCounter;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) struct NetState {
    pub(crate) worker_handles: Vec<WorkerHandle>,
    pub(crate) watchers: Watchers,
    pub(crate) connection_table: ConnectionTable,
    pub(crate) connections_total: SharedCounter,
    pub(crate) connections_rejected: SharedCounter,
    pub(crate) limits: ConnectionLimits,
    pub(crate) accept_pause: AcceptPause,
    /// `None` if UDP is off.
    pub(crate) amplification_limit: Option<Arc<AmplificationLimit>>,
}

/// The options that accepting and closing connections depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    pub(crate) connections_max: usize,
    /// 0 if idle connections are not closed.
    pub(crate) idle_timeout_s: u32,
    /// TLS handshakes that take longer end the connection.
    pub(crate) handshake_timeout_s: u32,
    /// Connections without a login for longer are closed, if clients must log in. 0 if they are not.
    pub(crate) login_timeout_s: u32,
    /// Whether connections over the maximum wait to be accepted (`-o no_maxconns_fast`) or are refused.
    pub(crate) waits_when_full: bool,
}

impl NetState {
    pub(crate) fn new(
        worker_handles: Vec<WorkerHandle>,
        limits: ConnectionLimits,
        amplification_limit: Option<Arc<AmplificationLimit>>,
    ) -> NetState {
        NetState {
            worker_handles,
            watchers: Watchers::default(),
            connection_table: ConnectionTable::new(limits.connections_max),
            connections_total: SharedCounter::default(),
            connections_rejected: SharedCounter::default(),
            limits,
            accept_pause: AcceptPause::default(),
            amplification_limit,
        }
    }

    pub(crate) fn least_loaded_worker(&self) -> &WorkerHandle {
        let least_loaded =
            self.worker_handles.iter().min_by_key(|handle| handle.connections_open.load(Ordering::Relaxed));
        least_loaded.expect("there is at least one worker")
    }

    pub(crate) fn is_full(&self) -> bool {
        self.connections_open() >= self.limits.connections_max
    }

    pub(crate) fn connections_open(&self) -> usize {
        let served: usize =
            self.worker_handles.iter().map(|handle| handle.connections_open.load(Ordering::Relaxed)).sum();
        served + self.watchers.count.load(Ordering::Relaxed)
    }
}
