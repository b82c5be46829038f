use super::*;
use crate::frontend::limits::Settings;
use crate::shared::{Identity, SharedState};
use crate::tree::Tree;
use lookaside_routing::{BoxFuture, Route};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Poll};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex};
use tokio::sync::Semaphore;

struct EmptyRoute;

impl Route for EmptyRoute {
    fn route<'a>(&'a self, _: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(async { Outcomes::new() })
    }
}

/// Replies to deletes when the test lets it.
struct HungRoute(Arc<Semaphore>);

impl Route for HungRoute {
    fn route<'a>(&'a self, batch: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(async move {
            drop(self.0.acquire().await.expect("never closed"));
            vec![Ok(Reply::NotFound); batch.len()]
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
    let ((end, suspended), ()) = tokio::join!(serve(&context, session, shutdown), hand_over);
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
    let ((end, suspended), ()) = tokio::join!(serve(&context, session, shutdown.clone()), hand_over);
    assert_eq!(end, SessionEnd::Shutdown);
    shared.set_handing_over(false);
    stop.send_replace(false);
    may_flush.store(true, Ordering::Relaxed);
    let mut reply = [0; 7];
    let read = tokio::time::timeout(WRITE_STALL_MAX, client.read_exact(&mut reply));
    tokio::select! {
        biased;
        (end, _) = serve(&context, suspended.expect("it is to be served again"), shutdown) => panic!("{end:?}"),
        read = read => read.expect("the reply does not wait for the next request").map(drop).unwrap(),
    }
    assert_eq!(&reply, b"VERSION");
}
