//! One client's exchange with a router without sockets and servers: the client's bytes arrive in pieces, one for each
//! read, and a fake route replies. No clock is involved: the end of the input ends the session.
//!
//! Shared by the property tests beside it and by the fuzz target `session`.

use bytes::Bytes;
use lookaside_client::{Listener, Stream};
use lookaside_protocol::meta::{MetaReply, MetaStatus, MetaVerb};
use lookaside_protocol::text::Limits;
use lookaside_protocol::{Cas, LeaseToken, Operation, Reply, Request};
use lookaside_router::{Identity, Proxy, Settings, SharedState, Tree, Users};
use lookaside_routing::{Batch, BoxFuture, Context, Failure, Outcome, Outcomes, Route};
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{self, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{oneshot, watch};

/// Small, so that short exchanges reach both bounds.
pub const VALUE_BYTES_MAX: usize = 2_048;
pub const LINE_BYTES_MAX: usize = 512;

/// The result of an exchange.
#[derive(Debug, PartialEq, Eq)]
pub struct ExchangeResult {
    /// Without those to `stats`, which has the number of reads and batches in it.
    pub replies: Vec<u8>,
    /// Whether the router closed the connection before the end of the input.
    pub is_closed: bool,
    /// The requests that were routed, in order.
    pub routed: Vec<Request<Bytes>>,
}

/// How the client must log in: by the text protocol (`-Y`), by SASL (`-S`), by either, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequiredLogin {
    pub text: bool,
    pub sasl: bool,
}

impl RequiredLogin {
    pub const NONE: RequiredLogin = RequiredLogin { text: false, sasl: false };

    /// The bits of a byte.
    pub fn from_bits(bits: u8) -> RequiredLogin {
        RequiredLogin { text: bits & 1 != 0, sasl: bits & 2 != 0 }
    }

    fn users(self) -> Option<Arc<Users>> {
        static USERS: LazyLock<Vec<Option<Arc<Users>>>> = LazyLock::new(|| {
            let path = std::env::temp_dir().join(format!("lookaside-router-exchange-users-{}", std::process::id()));
            std::fs::write(&path, [b"ada:", PASSWORD, b"\n"].concat()).expect("a file");
            let path_if = |is_used: bool| is_used.then_some(path.as_path());
            let open = |login: RequiredLogin| Users::open(path_if(login.text), path_if(login.sasl)).expect("one user");
            let users = (0..4).map(|bits| open(RequiredLogin::from_bits(bits)).map(Arc::new)).collect();
            std::fs::remove_file(&path).expect("it was written");
            users
        });
        USERS[usize::from(self.text) + 2 * usize::from(self.sasl)].clone()
    }

    /// Whether a client that begins with these bytes speaks the binary protocol: only one that has users is served.
    fn is_binary(self, bytes: &[u8]) -> bool {
        if self.text == self.sasl { bytes.first() == Some(&0x80) } else { self.sasl }
    }
}

/// The password of the only user, `ada`.
pub const PASSWORD: &[u8] = b"secret";

/// As [`run_with_login`], without a login.
pub fn run(bytes: &[u8], piece_bytes: &[u8]) -> ExchangeResult {
    run_with_login(RequiredLogin::NONE, bytes, piece_bytes)
}

/// Runs an exchange, and checks that nothing is routed for a client that does not know the password. The pieces have
/// these lengths, cyclically, 0 counting as 1; without lengths there is one piece.
pub fn run_with_login(login: RequiredLogin, bytes: &[u8], piece_bytes: &[u8]) -> ExchangeResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let route = Arc::new(FakeRoute::default());
    let exchange = Arc::new(Mutex::new(Exchange { pieces: cut(bytes, piece_bytes), ..Exchange::default() }));
    runtime.block_on(async {
        let limits = Limits { value_bytes_max: VALUE_BYTES_MAX, line_bytes_max: LINE_BYTES_MAX };
        let settings = Settings { limits, flush_enabled: true, users: login.users(), ..Settings::default() };
        let shared = SharedState::new(Identity { pid: 7, started_unix_s: 1_000_000 }, "a test");
        let proxy = Proxy::new(settings, shared, Tree::from_route(route.clone()));
        let (sender, ended) = oneshot::channel();
        let pipe = Pipe { exchange: exchange.clone(), ended: Some(sender) };
        let (_shut, shutdown) = watch::channel(false);
        tokio::select! {
            () = proxy.serve(Box::new(OneClient(Some(pipe))), shutdown) => unreachable!("it is not shut down"),
            has_panicked = ended => assert!(!has_panicked.expect("the session ends"), "the session panicked"),
        }
    });
    let exchange = std::mem::take(&mut *exchange.lock().unwrap());
    let without_stats = if login.is_binary(bytes) { without_binary_stats } else { without_text_stats };
    let replies = without_stats(&exchange.replies);
    let routed = std::mem::take(&mut *route.routed.lock().unwrap());
    let knows_password = bytes.windows(PASSWORD.len()).any(|part| part == PASSWORD);
    if login != RequiredLogin::NONE && !knows_password {
        assert_eq!(routed, [], "a client that has not logged in was served");
    }
    ExchangeResult { replies, is_closed: !exchange.has_reached_end, routed }
}

fn cut(mut rest: &[u8], piece_bytes: &[u8]) -> VecDeque<Vec<u8>> {
    let (mut pieces, mut lengths) = (VecDeque::new(), piece_bytes.iter().cycle());
    while !rest.is_empty() {
        let length = lengths.next().map_or(rest.len(), |&length| usize::from(length).clamp(1, rest.len()));
        let (piece, behind) = rest.split_at(length);
        pieces.push_back(piece.to_vec());
        rest = behind;
    }
    pieces
}

fn without_text_stats(replies: &[u8]) -> Vec<u8> {
    let lines = replies.split_inclusive(|&byte| byte == b'\n').filter(|line| !line.starts_with(b"STAT "));
    lines.flatten().copied().collect()
}

/// Leaves out the responses to `stat` (0x10).
fn without_binary_stats(mut responses: &[u8]) -> Vec<u8> {
    let mut others = Vec::new();
    while let Some(header) = responses.first_chunk::<24>() {
        let body_bytes = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let (response, behind) = responses.split_at(24 + body_bytes);
        if header[1] != 0x10 {
            others.extend_from_slice(response);
        }
        responses = behind;
    }
    assert!(responses.is_empty(), "a partial response");
    others
}

/// What the session has left to read, and what it has written.
#[derive(Default)]
struct Exchange {
    pieces: VecDeque<Vec<u8>>,
    replies: Vec<u8>,
    has_reached_end: bool,
}

/// The session's end of the connection.
struct Pipe {
    exchange: Arc<Mutex<Exchange>>,
    /// Gets whether the session has panicked.
    ended: Option<oneshot::Sender<bool>>,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let ended = self.ended.take().expect("it is dropped once");
        let _ = ended.send(std::thread::panicking());
    }
}

impl Stream for Pipe {
    fn peer(&self) -> Option<IpAddr> {
        Some([10, 0, 0, 7].into())
    }
}

impl AsyncRead for Pipe {
    fn poll_read(self: Pin<&mut Self>, _: &mut task::Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut exchange = self.exchange.lock().unwrap();
        match exchange.pieces.pop_front() {
            Some(mut piece) => {
                let rest = piece.split_off(piece.len().min(into.remaining()));
                into.put_slice(&piece);
                if !rest.is_empty() {
                    exchange.pieces.push_front(rest);
                }
            }
            None => exchange.has_reached_end = true,
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut task::Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.exchange.lock().unwrap().replies.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

struct OneClient(Option<Pipe>);

impl Listener for OneClient {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        match self.0.take() {
            Some(pipe) => Box::pin(async { Ok(Box::new(pipe) as Box<dyn Stream>) }),
            None => Box::pin(std::future::pending()),
        }
    }
}

/// Replies by the request alone, so that its replies do not depend on how requests are batched.
#[derive(Default)]
struct FakeRoute {
    routed: Mutex<Vec<Request<Bytes>>>,
}

impl Route for FakeRoute {
    fn route<'a>(&'a self, batch: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
        let outcomes = batch.iter().map(outcome).collect();
        self.routed.lock().unwrap().extend(batch);
        Box::pin(async { outcomes })
    }
}

/// The key's first byte chooses among hit, miss and failure.
fn outcome(request: &Request<Bytes>) -> Outcome {
    let Request { key, operation } = request;
    let kind = key.first().copied().unwrap_or_default() % 4;
    match kind {
        2 => return Err(Failure::TimedOut),
        3 => return Err(Failure::NoRoute("a test".into())),
        _ => {}
    }
    Ok(match operation {
        Operation::Get { cas } | Operation::GetAndTouch { cas, .. } if kind == 0 => {
            Reply::Value { flags: 3, cas: cas.then_some(Cas(9)), value: Bytes::from_static(b"a\r\nvalue") }
        }
        Operation::Get { .. } | Operation::GetAndTouch { .. } => Reply::Miss,
        Operation::LeaseGet => Reply::Lease { token: LeaseToken(4_242), flags: 0, stale: None },
        Operation::Store { .. } | Operation::LeaseSet { .. } => Reply::Stored,
        Operation::Delete { .. } if kind == 0 => Reply::Deleted,
        Operation::Arithmetic { delta, .. } if kind == 0 => Reply::Number(*delta),
        Operation::Touch { .. } if kind == 0 => Reply::Touched,
        Operation::Delete { .. } | Operation::Arithmetic { .. } | Operation::Touch { .. } => Reply::NotFound,
        Operation::Meta(meta) => Reply::Meta(meta_reply(meta.verb, kind == 0)),
    })
}

fn meta_reply(verb: MetaVerb, is_hit: bool) -> MetaReply<Bytes> {
    let (status, value) = match (verb, is_hit) {
        (MetaVerb::Get, true) => (MetaStatus::Value, Some(Bytes::from_static(b"v"))),
        (MetaVerb::Get, false) => (MetaStatus::Miss, None),
        (_, true) => (MetaStatus::Done, None),
        (_, false) => (MetaStatus::NotFound, None),
    };
    MetaReply { status, flags: Bytes::new(), value }
}
