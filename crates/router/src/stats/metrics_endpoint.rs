//! What Prometheus reads at `--metrics-address`: the router, its pools, and its servers.
//!
//! * [`per_target`](super::per_target): noted by each thread for itself, around its pools and its servers, so that no request waits for another.
//! * [`by_verb`](super::by_verb): what came of clients' requests, by verb.
//! * [`prometheus`](super::prometheus): the text; `lookaside_telemetry` serves it, on a thread of its own.
//!
//! Without the option nothing stands around pools and servers, and no thread runs. How many series there are is bounded:
//! see [`prometheus`](super::prometheus).

use crate::Fleet;
use lookaside_telemetry::Endpoint;
use lookaside_upgrade::Inherited;
use std::net::{TcpListener, ToSocketAddrs as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// The port where metrics are read, open and not yet served.
pub(crate) struct Port(Endpoint);

/// A port that is served until this is dropped.
pub(crate) struct Serving {
    /// Closed to stop the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Port {
    /// Opens the port at `address`, host:port, unless another process had, and it is `inherited`.
    pub(crate) fn open(address: &str, inherited: &mut Inherited) -> Result<Port, String> {
        let places = address.to_socket_addrs().ok();
        let handed_over = places.and_then(|mut places| places.find_map(|place| inherited.take_tcp(place)));
        let listener = handed_over.map_or_else(|| TcpListener::bind(address), |socket| Ok(socket.into()));
        let opened = listener.and_then(Endpoint::new);
        opened
            .map(Port)
            .map_err(|error| format!("cannot listen on {address}: {error}; choose another with --metrics-address"))
    }

    /// A copy of its socket, for the process that may take over.
    pub(crate) fn copy(&self) -> std::io::Result<OwnedFd> {
        self.0.listener().as_fd().try_clone_to_owned()
    }

    /// Serves the metrics of `fleet` on a thread of its own.
    pub(crate) fn serve(self, fleet: Arc<Fleet>, version: String) -> Result<Serving, String> {
        let no_thread = |error: std::io::Error| format!("the system gives no thread for metrics: {error}");
        let (stop, stopped) = UnixStream::pair().map_err(no_thread)?;
        if let Ok(address) = self.0.listener().local_addr() {
            tracing::info!(%address, "metrics are served");
        }
        let run = move || self.0.run(|| super::prometheus::render(&fleet, &version), &stopped);
        let thread = thread::Builder::new().name("metrics".to_owned()).spawn(run).map_err(no_thread)?;
        Ok(Serving { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the thread of metrics has failed; this is a bug of the router");
        }
    }
}
