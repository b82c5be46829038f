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
use lookaside_telemetry::Endpoint;
use lookaside_upgrade::Inherited;
use std::net::{TcpListener, ToSocketAddrs as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

pub(crate) struct BoundEndpoint(Endpoint);

/// The thread that serves the endpoint until this is dropped.
pub(crate) struct MetricsThread {
    /// Closed to stop the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

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
        let no_thread = |error: std::io::Error| format!("cannot start the metrics thread: {error}");
        let (stop, stopped) = UnixStream::pair().map_err(no_thread)?;
        if let Ok(address) = self.0.listener().local_addr() {
            tracing::info!(%address, "serving metrics");
        }
        let run = move || self.0.run(|| prometheus::render(&shared, &version), &stopped);
        let thread = thread::Builder::new().name("metrics".to_owned()).spawn(run).map_err(no_thread)?;
        Ok(MetricsThread { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for MetricsThread {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the metrics thread failed; this is a bug of the router");
        }
    }
}
