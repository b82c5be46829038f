//! One client's exchange with a router without sockets and servers: the client's bytes arrive in pieces, one for each
//! read, and a fake route replies. No clock is involved: the end of the input ends the session.
//!
//! Shared by the property tests beside it and by the fuzz target `session`.

use bytes::Bytes;
use lookaside_client::{Listener, Stream};
use lookaside_protocol::meta::{MetaReply, MetaStatus, MetaVerb};
use lookaside_protocol::text::Limits;
use lookaside_protocol::{Cas, LeaseToken, Operation, Reply, Request};
use lookaside_router::{Identity, Proxy, Settings, SharedState, Tree};
use lookaside_routing::{Batch, BoxFuture, Context, Failure, Outcome, Outcomes, Route};
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
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

/// Runs an exchange. The pieces have these lengths, cyclically, 0 counting as 1; without lengths there is one piece.
pub fn run(bytes: &[u8], piece_bytes: &[u8]) -> ExchangeResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let route = Arc::new(FakeRoute::default());
    let exchange = Arc::new(Mutex::new(Exchange { pieces: cut(bytes, piece_bytes), ..Exchange::default() }));
    runtime.block_on(async {
        let limits = Limits { value_bytes_max: VALUE_BYTES_MAX, line_bytes_max: LINE_BYTES_MAX };
        let settings = Settings { limits, flush_enabled: true, ..Settings::default() };
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
    let is_binary = bytes.first() == Some(&0x80);
    let replies = if is_binary { without_binary_stats(&exchange.replies) } else { without_stats(&exchange.replies) };
    let routed = std::mem::take(&mut *route.routed.lock().unwrap());
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

fn without_stats(replies: &[u8]) -> Vec<u8> {
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
