//! The endpoint that Prometheus reads at `--metrics-address`, on a thread of its own.

use lookaside_telemetry::Endpoint;
use std::{
    net::TcpListener,
    os::unix::net::UnixStream,
    thread::{self, JoinHandle},
};

/// The thread that serves the endpoint until this is dropped.
pub struct MetricsThread {
    /// Closed to stop the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsThread {
    /// Binds `address`, host:port, and serves the text that `render` returns there.
    pub fn start(address: &str, render: impl Fn() -> String + Send + 'static) -> Result<MetricsThread, String> {
        let endpoint = TcpListener::bind(address).and_then(Endpoint::new).map_err(|why| {
            format!("cannot listen on {address}: {why}; choose another address with --metrics-address")
        })?;
        let no_thread = |why: std::io::Error| format!("cannot start the metrics thread: {why}");
        let (stop, stopped) = UnixStream::pair().map_err(no_thread)?;
        let run = move || endpoint.run(render, &stopped);
        let thread = thread::Builder::new().name("metrics".to_owned()).spawn(run).map_err(no_thread)?;
        tracing::info!(address, "serving metrics");
        Ok(MetricsThread { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for MetricsThread {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the metrics thread failed; please report this bug");
        }
    }
}
