use super::*;
use crate::config::router_config::RouterConfig;
use crate::frontend::flow_control::{TOTAL_INPUT_BYTES_MAX, TOTAL_OUTPUT_BYTES_MAX};
use crate::frontend::limits::Settings;
use crate::shared::{Identity, SharedState};
use crate::tree::Tree;
use lookaside_client::{DestinationOptions, TcpNetwork};
use lookaside_protocol::{ErrorReply, Operation, Reply, Request};
use lookaside_routing::{BoxFuture, Defaults, Outcomes, Route};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex};
use tokio::sync::Semaphore;

async fn serve_alone(
    context: &SessionContext,
    client: ClientSession,
    shutdown: watch::Receiver<bool>,
) -> (SessionEnd, Option<ClientSession>) {
    serve(context, client, &SessionActivity::default(), shutdown).await
}

struct EmptyRoute;

impl Route for EmptyRoute {
    fn route<'a>(&'a self, _: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(async { Outcomes::new() })
    }
}

/// Replies when the test lets it: to gets with a value of [`VALUE_BYTES`].
struct HungRoute(Arc<Semaphore>);

const VALUE_BYTES: usize = 400_000;

impl Route for HungRoute {
    fn route<'a>(&'a self, batch: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(async move {
            drop(self.0.acquire().await.expect("never closed"));
            let value = Bytes::from(vec![b'x'; VALUE_BYTES]);
            let reply = |request: &Request<Bytes>| match request.operation {
                Operation::Get { .. } => Reply::Value { flags: 0, cas: None, value: value.clone() },
                _ => Reply::NotFound,
            };
            batch.iter().map(|request| Ok(reply(request))).collect()
        })
    }
}

struct PlainStream(DuplexStream);

impl AsyncRead for PlainStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for PlainStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl Stream for PlainStream {
    fn peer(&self) -> Option<IpAddr> {
        None
    }
}

/// Sends `texts`, the first `deletes` of whose commands are in progress when a handover begins. They must be answered,
/// and `rest` passed on with what is still in the socket.
async fn check_handover_during_deletes(texts: &[&str], deletes: usize, rest: &str) {
    let shared = SharedState::new(Identity { pid: 7, started_unix_s: 1 }, "a test");
    let hung = Arc::new(Semaphore::new(0));
    let tree = Tree::from_route(Arc::new(HungRoute(hung.clone())));
    let context = SessionContext::new(Settings::default(), shared.clone(), tree);
    let (mut client, inner) = duplex(1_000);
    let (stop, shutdown) = watch::channel(false);
    let moment = Duration::from_millis(1);
    let hand_over = async {
        for text in texts {
            client.write_all(text.as_bytes()).await.unwrap();
            tokio::time::sleep(moment).await;
        }
        shared.set_handing_over(true);
        stop.send_replace(true);
        tokio::time::sleep(moment).await;
        client.write_all(b"delete late\r\n").await.unwrap();
        tokio::time::sleep(moment).await;
        hung.add_permits(deletes);
        let mut replies = vec![0; deletes * "NOT_FOUND\r\n".len()];
        client.read_exact(&mut replies).await.unwrap();
    };
    let session = ClientSession::new(Box::new(PlainStream(inner)));
    let ((end, suspended), ()) = tokio::join!(serve_alone(&context, session, shutdown), hand_over);
    assert_eq!(end, SessionEnd::Shutdown);
    let ClientSession { mut stream, connection_state } = suspended.expect("it is handed over");
    assert_eq!(connection_state.input, rest.as_bytes());
    assert!(connection_state.output.is_empty());
    let mut unread = [0; "delete late\r\n".len()];
    stream.read_exact(&mut unread).await.unwrap();
    assert_eq!(&unread, b"delete late\r\n", "left in the socket");
}

#[tokio::test(start_paused = true)]
async fn a_handover_answers_deletes_in_progress_and_passes_on_what_follows_unparsed() {
    let texts = ["delete a\r\n", "delete b\r\n", "delete c\r\nget d\r\ndelete e\r\n"];
    check_handover_during_deletes(&texts, 3, "get d\r\ndelete e\r\n").await;
}

/// The first batch is routed alone: no other one looks at the shutdown.
#[tokio::test(start_paused = true)]
async fn a_handover_answers_a_lone_delete_and_reads_nothing_more() {
    check_handover_during_deletes(&["delete a\r\n"], 1, "").await;
    check_handover_during_deletes(&["delete a\r\ndel"], 1, "del").await;
}

/// Holds the first delete until there is a permit, and fails all others with a long error.
struct HungThenFailingRoute(Arc<Semaphore>);

impl Route for HungThenFailingRoute {
    fn route<'a>(&'a self, batch: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(async move {
            if batch.iter().any(|request| request.key == "hung") {
                drop(self.0.acquire().await.expect("never closed"));
            }
            let error = Reply::Error(ErrorReply::Server(Bytes::from_static(&[b'e'; 400])));
            vec![Ok(error); batch.len()]
        })
    }
}

/// Once the session looped for ever: during a handover a write may leave megabytes of replies, and more were composed
/// only once there was less.
#[tokio::test(start_paused = true)]
async fn a_handover_passes_on_megabytes_of_replies_to_deletes_that_the_client_does_not_read() {
    let shared = SharedState::new(Identity { pid: 7, started_unix_s: 1 }, "a test");
    let hung = Arc::new(Semaphore::new(0));
    let tree = Tree::from_route(Arc::new(HungThenFailingRoute(hung.clone())));
    let context = SessionContext::new(Settings::default(), shared.clone(), tree);
    let (mut client, inner) = duplex(64 << 10);
    let (stop, shutdown) = watch::channel(false);
    let moment = Duration::from_millis(1);
    let hand_over = async {
        client.write_all(b"delete hung\r\n").await.unwrap();
        tokio::time::sleep(moment).await;
        let long = format!("delete {}\r\n", "k".repeat(240)).repeat(500);
        for _ in 0..16 {
            client.write_all(long.as_bytes()).await.unwrap();
            tokio::time::sleep(moment).await;
        }
        shared.set_handing_over(true);
        stop.send_replace(true);
        hung.add_permits(1);
    };
    let session = ClientSession::new(Box::new(PlainStream(inner)));
    let ((end, suspended), ()) = tokio::join!(serve_alone(&context, session, shutdown), hand_over);
    assert_eq!(end, SessionEnd::Shutdown);
    let output = suspended.expect("it is handed over").connection_state.output;
    assert!(output.len() > 2 * WRITE_BYTES_MAX, "{} bytes", output.len());
}

/// Buffers written bytes, as a TLS stream may, until `may_flush` is set.
struct BufferingStream {
    inner: DuplexStream,
    buffered: Vec<u8>,
    may_flush: Arc<AtomicBool>,
}

impl AsyncRead for BufferingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for BufferingStream {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut task::Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.buffered.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<std::io::Result<()>> {
        if !self.buffered.is_empty() && !self.may_flush.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        let buffered = std::mem::take(&mut self.buffered);
        let _ = Pin::new(&mut self.inner).poll_write(cx, &buffered)?;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Stream for BufferingStream {
    fn peer(&self) -> Option<IpAddr> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_that_a_stream_buffered_are_sent_after_a_failed_handover() {
    let shared = SharedState::new(Identity { pid: 7, started_unix_s: 1 }, "a test");
    let context = SessionContext::new(Settings::default(), shared.clone(), Tree::from_route(Arc::new(EmptyRoute)));
    let (mut client, inner) = duplex(1_000);
    let may_flush = Arc::new(AtomicBool::new(false));
    let stream = BufferingStream { inner, buffered: Vec::new(), may_flush: may_flush.clone() };
    let (stop, shutdown) = watch::channel(false);
    client.write_all(b"version\r\n").await.unwrap();
    let hand_over = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        shared.set_handing_over(true);
        stop.send_replace(true);
    };
    let session = ClientSession::new(Box::new(stream));
    let ((end, suspended), ()) = tokio::join!(serve_alone(&context, session, shutdown.clone()), hand_over);
    assert_eq!(end, SessionEnd::Shutdown);
    shared.set_handing_over(false);
    stop.send_replace(false);
    may_flush.store(true, Ordering::Relaxed);
    let mut reply = [0; 7];
    let read = tokio::time::timeout(WRITE_STALL_MAX, client.read_exact(&mut reply));
    tokio::select! {
        biased;
        (end, _) = serve_alone(&context, suspended.expect("it is to be served again"), shutdown) => panic!("{end:?}"),
        read = read => read.expect("the reply does not wait for the next request").map(drop).unwrap(),
    }
    assert_eq!(&reply, b"VERSION");
}

/// Clients of one router.
struct InputHarness {
    context: Arc<SessionContext>,
    stop: watch::Sender<bool>,
}

impl InputHarness {
    fn new() -> InputHarness {
        InputHarness::with(Settings::default())
    }

    fn with(settings: Settings) -> InputHarness {
        let shared = SharedState::new(Identity { pid: 7, started_unix_s: 1 }, "a test");
        let tree = Tree::from_route(Arc::new(HungRoute(Arc::new(Semaphore::new(1)))));
        let context = Arc::new(SessionContext::new(settings, shared, tree));
        InputHarness { context, stop: watch::channel(false).0 }
    }

    fn connect(&self) -> (DuplexStream, tokio::task::JoinHandle<SessionEnd>) {
        let (client, inner) = duplex(4 << 20);
        let (context, shutdown) = (self.context.clone(), self.stop.subscribe());
        let session = ClientSession::new(Box::new(PlainStream(inner)));
        (client, tokio::spawn(async move { serve_alone(&context, session, shutdown).await.0 }))
    }

    /// A client that has sent the first 700 KB of a command of 1 MB.
    async fn connect_with_half_a_value(&self) -> (DuplexStream, tokio::task::JoinHandle<SessionEnd>) {
        let (mut client, session) = self.connect();
        client.write_all(b"set k 0 0 1000000\r\n").await.unwrap();
        client.write_all(&vec![b'x'; 700_000]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        (client, session)
    }
}

async fn expect_reply(client: &mut DuplexStream, command: &[u8], reply: &[u8]) {
    client.write_all(command).await.unwrap();
    let mut read = vec![0; reply.len()];
    client.read_exact(&mut read).await.unwrap();
    assert_eq!(read, reply);
}

/// 10,000 connections with half a value of 1 MB each would hold 10 GB.
#[tokio::test(start_paused = true)]
async fn half_received_values_of_all_clients_are_bounded() {
    let harness = InputHarness::new();
    let shared = &harness.context.shared;
    let mut others = shared.input_permit();
    let others_bytes = TOTAL_INPUT_BYTES_MAX - (6 << 20);
    assert!(others.try_resize(others_bytes, TOTAL_INPUT_BYTES_MAX));
    let (mut first, first_session) = harness.connect_with_half_a_value().await;
    assert!(shared.input_bytes() >= others_bytes + 700_000, "{}", shared.input_bytes() - others_bytes);
    let mut more = Vec::new();
    for _ in 0..10 {
        more.push(harness.connect_with_half_a_value().await);
        assert!(shared.input_bytes() <= TOTAL_INPUT_BYTES_MAX);
    }
    let (mut last, last_session) = more.pop().unwrap();
    assert!(last_session.is_finished());
    assert_eq!(last_session.await.unwrap(), SessionEnd::InputBound);
    assert_eq!(last.read(&mut [0]).await.unwrap(), 0, "disconnected");
    let closed = harness.context.counters.snapshot().closed_input_bound;
    assert_eq!(closed as usize, 1 + more.iter().filter(|(_, session)| session.is_finished()).count());
    assert!(!first_session.is_finished(), "only those that ask for more are disconnected");
    let (mut small, _small_session) = harness.connect();
    expect_reply(&mut small, b"delete a\r\n", b"NOT_FOUND\r\n").await;
    let rest = [&vec![b'x'; 300_000][..], b"\r\n"].concat();
    expect_reply(&mut first, &rest, b"NOT_FOUND\r\n").await;
    drop(more);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(shared.input_bytes(), others_bytes, "an idle session holds nothing");
}

#[tokio::test(start_paused = true)]
async fn client_that_stops_inside_a_large_command_is_disconnected() {
    let harness = InputHarness::new();
    let (_large, large_session) = harness.connect_with_half_a_value().await;
    let (mut small, small_session) = harness.connect();
    small.write_all(b"delete ").await.unwrap();
    tokio::time::sleep(WRITE_STALL_MAX + Duration::from_secs(1)).await;
    assert!(large_session.is_finished());
    assert_eq!(large_session.await.unwrap(), SessionEnd::Stalled);
    assert_eq!(harness.context.counters.snapshot().stalled_connections, 1);
    assert_eq!(harness.context.shared.input_bytes(), 0);
    assert!(!small_session.is_finished(), "a client may buffer small commands");
    expect_reply(&mut small, b"a\r\n", b"NOT_FOUND\r\n").await;
}

/// A byte a minute kept a large command, and its share of what all clients may hold, for ever.
#[tokio::test(start_paused = true)]
async fn client_that_sends_a_large_command_too_slowly_is_disconnected() {
    let harness = InputHarness::new();
    let (mut client, session) = harness.connect_with_half_a_value().await;
    let start = Instant::now();
    while !session.is_finished() && start.elapsed() < 10 * WRITE_STALL_MAX {
        let _ = client.write_all(b"x").await;
        tokio::time::sleep(WRITE_STALL_MAX / 12).await;
    }
    assert!(session.is_finished());
    assert_eq!(session.await.unwrap(), SessionEnd::Stalled);
    let limit = WRITE_STALL_MAX + Duration::from_secs(1_000_000 / TRANSFER_BYTES_PER_S_MIN as u64);
    assert!(start.elapsed() >= limit && start.elapsed() <= limit + WRITE_STALL_MAX / 6, "{:?}", start.elapsed());
    assert_eq!(harness.context.counters.snapshot().stalled_connections, 1);
}

/// A client that reads none of its replies: 4 MiB of them are on their way, one or two more MiB are held.
async fn connect_without_reading(harness: &InputHarness) -> (DuplexStream, tokio::task::JoinHandle<SessionEnd>) {
    let (mut client, session) = harness.connect();
    client.write_all("get k\r\n".repeat((5 << 20) / VALUE_BYTES + 1).as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    (client, session)
}

/// The replies of 10,000 clients that read none took 10 GB and more, beside the values that are counted.
#[tokio::test(start_paused = true)]
async fn unread_replies_of_all_clients_are_bounded() {
    let harness = InputHarness::new();
    let shared = &harness.context.shared;
    let mut others = shared.output_permit();
    let others_bytes = TOTAL_OUTPUT_BYTES_MAX - (6 << 20);
    assert!(others.try_resize(others_bytes, TOTAL_OUTPUT_BYTES_MAX));
    let (mut first, first_session) = connect_without_reading(&harness).await;
    assert!(shared.output_bytes() >= others_bytes + VALUE_BYTES, "{}", shared.output_bytes() - others_bytes);
    let mut more = Vec::new();
    for _ in 0..10 {
        more.push(connect_without_reading(&harness).await);
        assert!(shared.output_bytes() <= TOTAL_OUTPUT_BYTES_MAX);
    }
    let (_, last_session) = more.pop().unwrap();
    assert!(last_session.is_finished());
    assert_eq!(last_session.await.unwrap(), SessionEnd::OutputBound);
    let closed = harness.context.counters.snapshot().closed_output_bound;
    assert_eq!(closed as usize, 1 + more.iter().filter(|(_, session)| session.is_finished()).count());
    assert!(!first_session.is_finished(), "only those that ask for more are disconnected");
    let (mut small, _small_session) = harness.connect();
    expect_reply(&mut small, b"delete a\r\n", b"NOT_FOUND\r\n").await;
    drop(more);
    // A client that reads a little now and then is too slow, too.
    let start = Instant::now();
    while !first_session.is_finished() && start.elapsed() < 10 * WRITE_STALL_MAX {
        let _ = first.read(&mut [0; 100]).await;
        tokio::time::sleep(WRITE_STALL_MAX / 12).await;
    }
    assert_eq!(first_session.await.unwrap(), SessionEnd::Stalled);
    assert_eq!(shared.output_bytes(), others_bytes);
}

#[tokio::test(start_paused = true)]
async fn idle_client_is_disconnected_after_the_idle_timeout() {
    let idle_timeout = Some(Duration::from_secs(5));
    let harness = InputHarness::with(Settings { idle_timeout, ..Settings::default() });
    let (mut client, session) = harness.connect();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(4)).await;
        expect_reply(&mut client, b"delete a\r\n", b"NOT_FOUND\r\n").await;
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!session.is_finished());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(session.await.unwrap(), SessionEnd::Idle);
    assert_eq!(harness.context.counters.snapshot().idle_kicks, 1);
}

/// What the next process learns of the misses of a client that has sent nothing, under this route.
async fn has_misses_at_handover(route: &str) -> bool {
    let text = format!(r#"{{ "pools": {{ "A": {{ "servers": ["127.0.0.1:1"] }} }}, "route": {route} }}"#);
    let config = RouterConfig::parse(&text, &Defaults::default(), &DestinationOptions::default());
    let tree = Tree::build(&Arc::new(config.expect("it is valid")), Arc::new(TcpNetwork), 1, None);
    let shared = SharedState::new(Identity { pid: 7, started_unix_s: 1 }, "a test");
    shared.set_handing_over(true);
    let context = SessionContext::new(Settings::default(), shared, tree);
    let (_client, inner) = duplex(1_000);
    let (_stop, shutdown) = watch::channel(true);
    let (_, suspended) = serve_alone(&context, ClientSession::new(Box::new(PlainStream(inner))), shutdown).await;
    suspended.expect("it is handed over").connection_state.session.has_misses
}

/// An upgrade with `--leases`, from a process without it, took every connection for one that has missed nothing: a
/// value from before it was stored for a miss behind it.
#[tokio::test]
async fn a_process_that_does_not_know_all_misses_hands_that_over() {
    assert!(has_misses_at_handover(r#""PoolRoute|A""#).await);
    let users = r#"{
        "type": "PrefixSelectorRoute", "policies": { "user:": "LeaseRoute|PoolRoute|A" }, "wildcard": "PoolRoute|A"
    }"#;
    assert!(has_misses_at_handover(users).await);
    assert!(!has_misses_at_handover(r#""LeaseRoute|PoolRoute|A""#).await);
}

/// At the limit on connections a client was once disconnected in the middle of a `set`: it counted as idle.
#[tokio::test(start_paused = true)]
async fn part_of_a_command_is_in_progress_for_a_bounded_time() {
    let shared = SharedState::new(Identity { pid: 7, started_unix_s: 1 }, "a test");
    let tree = Tree::from_route(Arc::new(HungRoute(Arc::new(Semaphore::new(1)))));
    let context = SessionContext::new(Settings::default(), shared, tree);
    let (mut client, inner) = duplex(1_000);
    let (_stop, shutdown) = watch::channel(false);
    let activity = SessionActivity::default();
    let session = ClientSession::new(Box::new(PlainStream(inner)));
    let serving = serve(&context, session, &activity, shutdown);
    let moment = Duration::from_millis(1);
    let asking = async {
        let is_waiting = || activity.is_waiting(context.uses.now_ms());
        tokio::time::sleep(moment).await;
        assert!(is_waiting(), "nothing has arrived");
        for part in ["del", "set k 0 0 8\r\n", "set k 0 0 8\r\nhalf", "set k 0 0 70000000\r\n"] {
            client.write_all(part.as_bytes()).await.unwrap();
            tokio::time::sleep(moment).await;
            assert!(!is_waiting(), "{part:?}");
            tokio::time::sleep(WRITE_STALL_MAX - 2 * moment).await;
            assert!(!is_waiting(), "{part:?} is in progress for a minute");
            let (rest, reply) = match part {
                "del" => ("ete k\r\n", "NOT_FOUND\r\n"),
                "set k 0 0 8\r\n" => ("halfhalf\r\n", "NOT_FOUND\r\n"),
                "set k 0 0 8\r\nhalf" => ("half\r\n", "NOT_FOUND\r\n"),
                _ => ("x", "SERVER_ERROR object too large for cache\r\n"),
            };
            let (first, last) = rest.split_at(1);
            client.write_all(first.as_bytes()).await.unwrap();
            tokio::time::sleep(2 * moment).await;
            if last.is_empty() {
                assert!(!is_waiting(), "70 MB may take longer");
                tokio::time::sleep(WRITE_STALL_MAX).await;
            }
            assert!(is_waiting(), "a byte now and then does not hold the connection");
            client.write_all(last.as_bytes()).await.unwrap();
            let mut replied = vec![0; reply.len()];
            client.read_exact(&mut replied).await.unwrap();
            assert_eq!(String::from_utf8_lossy(&replied), reply);
            tokio::time::sleep(moment).await;
            assert!(is_waiting(), "{part:?} is done");
        }
        drop(client);
    };
    let ((end, _), ()) = tokio::join!(serving, asking);
    assert_eq!(end, SessionEnd::Gone);
}
