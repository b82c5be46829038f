//! The endpoint that Prometheus reads at `--metrics-address`, on a thread of its own.
//!
//! * [`per_target`](crate::stats::per_target): each thread's counts for its pools and servers, so that no request waits
//!   for another thread.
//! * [`by_verb`](crate::stats::by_verb): results of clients' requests, by verb.
//! * [`prometheus`](super::prometheus): the text, and the bounds on the number of series.
//!
//! Without the option pools and servers are not measured, and the thread does not run.

use super::prometheus;
use crate::shared::SharedState;
use lookaside_telemetry::{Endpoint, MetricsThread};
use lookaside_upgrade::Inherited;
use std::net::{TcpListener, ToSocketAddrs as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

pub(crate) struct BoundEndpoint(Endpoint);

impl BoundEndpoint {
    /// Binds `address`, host:port, or takes its socket from `inherited`.
    pub(crate) fn bind(address: &str, inherited: &mut Inherited) -> Result<BoundEndpoint, String> {
        let addresses = address.to_socket_addrs().ok();
        let socket = addresses.and_then(|mut addresses| addresses.find_map(|address| inherited.take_tcp(address)));
        let listener = socket.map_or_else(|| TcpListener::bind(address), |socket| Ok(socket.into()));
        let bound = listener.and_then(Endpoint::new);
        bound
            .map(BoundEndpoint)
            .map_err(|error| format!("cannot listen on {address}: {error}; choose another with --metrics-address"))
    }

    /// A copy of its socket, for the process that may take over.
    pub(crate) fn duplicate_fd(&self) -> std::io::Result<OwnedFd> {
        self.0.listener().as_fd().try_clone_to_owned()
    }

    pub(crate) fn serve(self, shared: Arc<SharedState>, version: String) -> Result<MetricsThread, String> {
        MetricsThread::serve(self.0, move || prometheus::render(&shared, &version))
    }
}
