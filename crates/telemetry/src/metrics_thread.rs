//! The thread of a daemon that serves its metrics at `--metrics-address`.

use crate::Endpoint;
use std::{
    io,
    net::TcpListener,
    os::unix::net::UnixStream,
    thread::{self, JoinHandle},
};

/// The thread that serves an [`Endpoint`] until this is dropped.
#[derive(Debug)]
pub struct MetricsThread {
    /// Closed to stop the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsThread {
    /// Binds `address`, host:port, and serves the text that `render` returns there. The error names the address and the
    /// option.
    pub fn bind(address: &str, render: impl Fn() -> String + Send + 'static) -> Result<MetricsThread, String> {
        let endpoint = TcpListener::bind(address).and_then(Endpoint::new).map_err(|why| {
            format!("cannot listen on {address}: {why}; choose another address with --metrics-address")
        })?;
        MetricsThread::serve(endpoint, render)
    }

    /// Serves the text that `render` returns.
    pub fn serve(endpoint: Endpoint, render: impl Fn() -> String + Send + 'static) -> Result<MetricsThread, String> {
        let no_thread = |why: io::Error| format!("cannot start the metrics thread: {why}");
        let (stop, stopped) = UnixStream::pair().map_err(no_thread)?;
        if let Ok(address) = endpoint.listener().local_addr() {
            tracing::info!(%address, "serving metrics");
        }
        let run = move || endpoint.run(render, &stopped);
        let thread = thread::Builder::new().name("metrics".to_owned()).spawn(run).map_err(no_thread)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    #[test]
    fn metrics_are_served_until_the_thread_is_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let endpoint = Endpoint::new(listener).expect("an endpoint");
        let thread = MetricsThread::serve(endpoint, || "metric 1\n".to_owned()).expect("a thread");
        let mut client = TcpStream::connect(address).expect("it listens");
        client.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
        let mut response = String::new();
        client.read_to_string(&mut response).expect("a response");
        assert!(response.ends_with("\r\n\r\nmetric 1\n"), "{response}");
        let why = MetricsThread::bind(&address.to_string(), String::new).expect_err("the address is in use");
        assert!(why.contains(&address.to_string()) && why.contains("--metrics-address"), "{why}");
        drop(thread);
        assert!(TcpStream::connect(address).is_err(), "it listens no more");
    }
}
