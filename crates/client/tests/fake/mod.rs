//! A network in memory. The test plays the server, line by line.

pub mod cache;
pub mod cluster;

use bytes::Bytes;
use lookaside_client::{DestinationOptions, Listener, Network, Stream, TcpDestination};
use lookaside_protocol::{Operation, Request, StoreMode};
use lookaside_routing::{Address, Batch, BoxFuture, Context, Destination, Outcomes, Route};
use std::{
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf},
    sync::mpsc,
    time::timeout,
};

/// How long a test waits for an event, on the paused clock.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// Bytes that a connection holds between its ends.
const PIPE_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Accept,
    Refuse,
    /// Connections are made, and the first read fails with a TLS alert.
    Alert,
    /// Connecting never ends.
    Silence,
}

pub struct FakeNetwork {
    mode: Mutex<Mode>,
    pipe_bytes: usize,
    accepted: mpsc::UnboundedSender<DuplexStream>,
    /// The address of every host name; `None` if addresses hold no names, as at first; `Err` if the resolver fails.
    resolved: Mutex<Result<Option<IpAddr>, ()>>,
}

impl FakeNetwork {
    pub fn new() -> (Arc<FakeNetwork>, AcceptedStreams) {
        FakeNetwork::with_pipe(PIPE_BYTES)
    }

    pub fn with_pipe(pipe_bytes: usize) -> (Arc<FakeNetwork>, AcceptedStreams) {
        let (accepted, streams) = mpsc::unbounded_channel();
        let (mode, resolved) = (Mutex::new(Mode::Accept), Mutex::new(Ok(None)));
        (Arc::new(FakeNetwork { mode, pipe_bytes, accepted, resolved }), AcceptedStreams(streams))
    }

    pub fn set(&self, mode: Mode) {
        *self.mode.lock().expect("no test panics while it holds the lock") = mode;
    }

    /// Resolves all names to 10.0.0.`last` from now on; `None`: the resolver fails.
    pub fn resolve_to(&self, last: Option<u8>) {
        let there = last.map(|last| Some(IpAddr::from([10, 0, 0, last]))).ok_or(());
        *self.resolved.lock().expect("no test panics while it holds the lock") = there;
    }
}

impl Network for FakeNetwork {
    fn connect<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let mode = *self.mode.lock().expect("no test panics while it holds the lock");
            match mode {
                Mode::Accept | Mode::Alert => {
                    let (ours, theirs) = tokio::io::duplex(self.pipe_bytes);
                    self.accepted.send(theirs).map_err(|_| io::ErrorKind::ConnectionRefused)?;
                    let peer = self.resolved.lock().expect("no test panics while it holds the lock").ok().flatten();
                    Ok(Box::new(Pipe(ours, peer, mode == Mode::Alert)) as Box<dyn Stream>)
                }
                Mode::Refuse => Err(io::ErrorKind::ConnectionRefused.into()),
                Mode::Silence => std::future::pending().await,
            }
        })
    }

    fn resolve<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let there = *self.resolved.lock().expect("no test panics while it holds the lock");
        let addresses = there.map(|there| there.into_iter().collect()).map_err(|()| io::ErrorKind::TimedOut.into());
        Box::pin(async move { addresses })
    }

    fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

struct Pipe(DuplexStream, Option<IpAddr>, bool);

impl Stream for Pipe {
    fn peer(&self) -> Option<IpAddr> {
        self.1
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> task::Poll<io::Result<()>> {
        if self.2 {
            return task::Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "certificate required")));
        }
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>, bytes: &[u8]) -> task::Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The server's ends of the connections, in the order in which they were made.
pub struct AcceptedStreams(mpsc::UnboundedReceiver<DuplexStream>);

impl AcceptedStreams {
    pub async fn next(&mut self) -> AcceptedStream {
        AcceptedStream(timeout(WAIT_MAX, self.0.recv()).await.expect("a connection").expect("the network exists"))
    }

    /// Whether no connection is left to take.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The server's end of one connection.
pub struct AcceptedStream(pub DuplexStream);

impl AcceptedStream {
    /// Reads exactly these bytes.
    #[track_caller]
    pub fn expect<'a>(&'a mut self, expected: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut got = vec![0; expected.len()];
            let read = timeout(WAIT_MAX, self.0.read_exact(&mut got)).await;
            let got = String::from_utf8_lossy(&got).into_owned();
            assert_eq!(got, expected, "{read:?}");
        })
    }

    /// Expects that nothing more is sent before all tasks wait.
    pub async fn expect_nothing(&mut self) {
        let mut byte = [0];
        let read = timeout(Duration::from_micros(1), self.0.read(&mut byte)).await;
        assert!(read.is_err(), "sent more: {read:?} {byte:?}");
    }

    pub async fn send(&mut self, bytes: &str) {
        self.0.write_all(bytes.as_bytes()).await.expect("the client reads");
    }

    pub async fn expect_end(&mut self) {
        let mut rest = Vec::new();
        timeout(WAIT_MAX, self.0.read_to_end(&mut rest))
            .await
            .expect("the connection ends")
            .expect("pipes do not fail");
        assert_eq!(String::from_utf8_lossy(&rest), "", "nothing before the end");
    }
}

pub fn destination(network: &Arc<FakeNetwork>, options: DestinationOptions) -> Arc<TcpDestination> {
    Arc::new(TcpDestination::new(Address("fake:11211".into()), network.clone(), options))
}

/// Sends a batch in a task; it is in the destination's queue when this returns.
pub async fn start_send(destination: &Arc<TcpDestination>, batch: Batch) -> tokio::task::JoinHandle<Outcomes> {
    let destination = destination.clone();
    let sent = tokio::spawn(async move { destination.send(batch).await });
    tokio::task::yield_now().await;
    sent
}

/// Sends batches that are all in the queue before the destination reads it.
pub async fn start_together<const N: usize>(
    destination: &Arc<TcpDestination>,
    batches: [Batch; N],
) -> [tokio::task::JoinHandle<Outcomes>; N] {
    let sent = batches.map(|batch| {
        let destination = destination.clone();
        tokio::spawn(async move { destination.send(batch).await })
    });
    tokio::task::yield_now().await;
    sent
}

pub async fn await_outcomes(sent: tokio::task::JoinHandle<Outcomes>) -> Outcomes {
    timeout(WAIT_MAX, sent).await.expect("outcomes come").expect("sending does not panic")
}

pub fn get(key: &str) -> Request<Bytes> {
    request(key, Operation::Get { cas: false })
}

pub fn lease_get(key: &str) -> Request<Bytes> {
    request(key, Operation::LeaseGet)
}

pub fn delete(key: &str) -> Request<Bytes> {
    request(key, Operation::Delete { hold_off_ms: 0 })
}

pub fn set(key: &str, value: &str) -> Request<Bytes> {
    let value = Bytes::copy_from_slice(value.as_bytes());
    request(key, Operation::Store { mode: StoreMode::Set, flags: 0, exptime: 0, value, cas: false })
}

pub fn request(key: &str, operation: Operation<Bytes>) -> Request<Bytes> {
    Request { key: Bytes::copy_from_slice(key.as_bytes()), operation }
}

/// A tree of one destination.
pub struct Direct(pub Arc<TcpDestination>);

impl Route for Direct {
    fn route<'a>(&'a self, batch: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.0.send(batch)
    }
}
