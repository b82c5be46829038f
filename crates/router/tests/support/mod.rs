//! A router without sockets: clients connect by pipes, and a route records their requests and replies from a small map.

use bytes::Bytes;
use lookaside_client::{Listener, Stream};
use lookaside_protocol::meta::{MetaReply, MetaStatus, MetaVerb};
use lookaside_protocol::{Cas, LeaseToken, Operation, Reply, StoreMode};
use lookaside_router::{CounterDelta, Identity, Proxy, Settings, SharedState, Tree};
use lookaside_routing::{Batch, BoxFuture, Context, Failure, Outcome, Outcomes, Route};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Duration, timeout};

/// A router that sends nothing for as long has no more to send.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Replies from a map; keys that begin with `down` time out. Waits for `gate` before each batch, and for `hung` before
/// one with a key that begins with `hung`.
pub struct FakeRoute {
    pub values: Mutex<BTreeMap<Bytes, Bytes>>,
    pub batches: Mutex<Vec<Batch>>,
    pub gate: Semaphore,
    pub hung: Semaphore,
}

impl FakeRoute {
    pub fn new() -> Arc<FakeRoute> {
        Arc::new(FakeRoute {
            values: Mutex::default(),
            batches: Mutex::default(),
            gate: Semaphore::new(Semaphore::MAX_PERMITS),
            hung: Semaphore::new(0),
        })
    }

    /// The keys of all requests that were executed, in order.
    pub fn keys(&self) -> Vec<String> {
        let batches = self.batches.lock().unwrap();
        batches.iter().flatten().map(|request| String::from_utf8_lossy(&request.key).into_owned()).collect()
    }

    pub fn batch_sizes(&self) -> Vec<usize> {
        self.batches.lock().unwrap().iter().map(Vec::len).collect()
    }

    fn outcome(&self, key: &Bytes, operation: &Operation<Bytes>) -> Outcome {
        if key.starts_with(b"down") {
            return Err(Failure::TimedOut);
        }
        let mut values = self.values.lock().unwrap();
        Ok(match operation {
            Operation::Get { cas } | Operation::GetAndTouch { cas, .. } => match values.get(key) {
                Some(value) => Reply::Value { flags: 0, cas: cas.then_some(Cas(9)), value: value.clone() },
                None => Reply::Miss,
            },
            Operation::Store { mode: StoreMode::Add, .. } if values.contains_key(key) => Reply::NotStored,
            Operation::Store { mode: StoreMode::Cas(unique), .. } if *unique != Cas(9) => Reply::Exists,
            Operation::LeaseGet => Reply::Lease { token: LeaseToken(4242), flags: 0, stale: None },
            Operation::Store { value, cas, .. } => {
                values.insert(key.clone(), value.clone());
                if *cas { Reply::StoredAs(Cas(9)) } else { Reply::Stored }
            }
            Operation::LeaseSet { value, .. } => {
                values.insert(key.clone(), value.clone());
                Reply::Stored
            }
            Operation::Delete { .. } => match values.remove(key) {
                Some(_) => Reply::Deleted,
                None => Reply::NotFound,
            },
            Operation::Arithmetic { delta, .. } => match values.get_mut(key) {
                Some(value) => {
                    let number = String::from_utf8_lossy(value).parse::<u64>().expect("a number") + delta;
                    *value = number.to_string().into();
                    Reply::Number(number)
                }
                None => Reply::NotFound,
            },
            Operation::Touch { .. } if values.contains_key(key) => Reply::Touched,
            Operation::Touch { .. } => Reply::NotFound,
            Operation::Meta(meta) => Reply::Meta(meta_reply(key, meta.verb)),
        })
    }
}

/// A hit for `a`, a miss for all other keys; mutations succeed.
fn meta_reply(key: &Bytes, verb: MetaVerb) -> MetaReply<Bytes> {
    let (status, flags, value) = match (verb, &key[..]) {
        (MetaVerb::Get, b"a") => (MetaStatus::Value, "ka", Some("A".into())),
        (MetaVerb::Get, _) => (MetaStatus::Miss, "", None),
        _ => (MetaStatus::Done, "", None),
    };
    MetaReply { status, flags: flags.into(), value }
}

impl Route for FakeRoute {
    fn route<'a>(&'a self, batch: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(async move {
            self.gate.acquire().await.expect("never closed").forget();
            if batch.iter().any(|request| request.key.starts_with(b"hung")) {
                self.hung.acquire().await.expect("never closed").forget();
            }
            let outcomes = batch.iter().map(|request| self.outcome(&request.key, &request.operation)).collect();
            self.batches.lock().unwrap().push(batch);
            outcomes
        })
    }
}

/// One end of a pipe, with an address like a socket's. Like a TLS stream it buffers some of the written bytes until it
/// is flushed.
pub struct Pipe {
    end: DuplexStream,
    buffered: Vec<u8>,
}

/// The most bytes that a pipe buffers.
const BUFFERED_BYTES_MAX: usize = 16 << 10;

impl Pipe {
    pub fn new(end: DuplexStream) -> Pipe {
        Pipe { end, buffered: Vec::new() }
    }

    fn poll_drain(&mut self, context: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        while !self.buffered.is_empty() {
            let written = task::ready!(Pin::new(&mut self.end).poll_write(context, &self.buffered))?;
            self.buffered.drain(..written);
        }
        task::Poll::Ready(Ok(()))
    }
}

impl Stream for Pipe {
    fn peer(&self) -> Option<IpAddr> {
        Some([10, 0, 0, 7].into())
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.end).poll_read(context, into)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        bytes: &[u8],
    ) -> task::Poll<io::Result<usize>> {
        if self.buffered.len() == BUFFERED_BYTES_MAX {
            task::ready!(self.poll_drain(context))?;
        }
        let accepted = bytes.len().min(BUFFERED_BYTES_MAX - self.buffered.len());
        self.buffered.extend_from_slice(&bytes[..accepted]);
        task::Poll::Ready(Ok(accepted))
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        task::ready!(self.poll_drain(context))?;
        Pin::new(&mut self.end).poll_flush(context)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        task::ready!(self.poll_drain(context))?;
        Pin::new(&mut self.end).poll_shutdown(context)
    }
}

struct Pipes(mpsc::UnboundedReceiver<Pipe>);

impl Listener for Pipes {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            match self.0.recv().await {
                Some(pipe) => Ok(Box::new(pipe) as Box<dyn Stream>),
                None => std::future::pending().await,
            }
        })
    }
}

/// A proxy with a fake route, which serves until `shut` is set.
pub struct SessionHarness {
    pub route: Arc<FakeRoute>,
    pub proxy: Arc<Proxy>,
    pub shut: watch::Sender<bool>,
    pub served: JoinHandle<()>,
    clients: mpsc::UnboundedSender<Pipe>,
}

impl SessionHarness {
    pub fn start(settings: Settings) -> SessionHarness {
        let route = FakeRoute::new();
        SessionHarness::start_with(settings, Tree::from_route(route.clone()), route)
    }

    /// Serves `tree`, to which `route` may belong.
    pub fn start_with(settings: Settings, tree: Tree, route: Arc<FakeRoute>) -> SessionHarness {
        let shared = SharedState::new(Identity { pid: 7, started_unix_s: 1_000_000 }, "a test");
        let proxy = Proxy::new(settings, shared, tree);
        let (shut, shutdown) = watch::channel(false);
        let (clients, pipes) = mpsc::unbounded_channel();
        let served = tokio::spawn(proxy.clone().serve(Box::new(Pipes(pipes)), shutdown));
        SessionHarness { route, proxy, shut, served, clients }
    }

    /// A client whose pipe holds `bytes` each way.
    pub fn connect_with(&self, bytes: usize) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(bytes);
        self.clients.send(Pipe::new(theirs)).expect("the router listens");
        ours
    }

    pub fn connect(&self) -> DuplexStream {
        self.connect_with(1 << 20)
    }

    pub fn counters(&self) -> CounterDelta {
        self.proxy.counters().snapshot()
    }
}

/// Reads exactly as many bytes as `expected` has, and compares. Fails if the router sends fewer and no more.
pub async fn expect(client: &mut DuplexStream, expected: &str) {
    let mut bytes = vec![0; expected.len()];
    let mut filled = 0;
    while filled < bytes.len() {
        match timeout(SILENCE_MAX, client.read(&mut bytes[filled..])).await {
            Ok(Ok(0)) | Err(_) => break,
            Ok(read) => filled += read.expect("a pipe does not break"),
        }
    }
    bytes.truncate(filled);
    assert_eq!(String::from_utf8_lossy(&bytes), expected);
}

/// Reads until the router closes the connection.
pub async fn rest(client: &mut DuplexStream) -> String {
    let mut text = String::new();
    let read = timeout(SILENCE_MAX, client.read_to_string(&mut text)).await;
    read.unwrap_or_else(|_| panic!("the router does not close the connection: {text:?}"))
        .expect("a pipe does not break");
    text
}
