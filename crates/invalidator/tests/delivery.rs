//! Delivery through the routers of a cluster: which router is asked what, and what counts as applied.

use bytes::Bytes;
use lookaside_client::{Listener, Network, Stream};
use lookaside_invalidator::pipeline::delivery::{Delivery, Routers, Verdict};
use lookaside_protocol::{ErrorReply, Operation, Reply, Request};
use lookaside_routing::{
    Address, Batch, BoxFuture, Context as Asked, Destination, Failure, OperationSelectorRoute, Outcome, Outcomes, Route,
};
use std::{
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};

/// A router that gives the same outcome to each key it does not know, and remembers what it was asked.
struct Router {
    address: Address,
    outcome: Mutex<Outcome>,
    asked: Mutex<Vec<String>>,
}

impl Router {
    fn new(name: &str, outcome: Outcome) -> Arc<Router> {
        let address = Address(name.into());
        Arc::new(Router { address, outcome: Mutex::new(outcome), asked: Mutex::new(Vec::new()) })
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().expect("no panic"))
    }
}

impl Destination for Router {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        let answer = |request: &lookaside_protocol::Request<Bytes>| {
            assert_eq!(request.operation, Operation::Delete { hold_off_ms: 0 });
            let key = String::from_utf8_lossy(&request.key).into_owned();
            let outcome = match key.as_str() {
                "refused" => Ok(server_error()),
                "absent" => Ok(Reply::NotFound),
                _ => self.outcome.lock().expect("no panic").clone(),
            };
            self.asked.lock().expect("no panic").push(key);
            outcome
        };
        let outcomes = batch.iter().map(answer).collect();
        Box::pin(async { outcomes })
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

fn server_error() -> Reply<Bytes> {
    Reply::Error(ErrorReply::Server(Bytes::from_static(b"out of order")))
}

fn through(routers: &[&Arc<Router>]) -> Routers {
    let routers = routers.iter().map(|&router| router.clone() as Arc<dyn Destination>).collect();
    Routers::new(routers, Arc::new(FlushNetwork))
}

async fn delete(routers: &Routers, keys: &[&str]) -> Vec<bool> {
    let keys = keys.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect();
    routers.delete(keys).await.iter().map(|verdict| *verdict == Verdict::Applied).collect()
}

#[tokio::test]
async fn deleted_and_not_found_are_applied_and_nothing_else() {
    for (outcome, applied) in [
        (Ok(Reply::Deleted), true),
        (Ok(Reply::NotFound), true),
        (Ok(server_error()), false),
        (Ok(Reply::Error(ErrorReply::Client(Bytes::new()))), false),
        (Ok(Reply::Error(ErrorReply::Unknown)), false),
        (Ok(Reply::Stored), false),
        (Err(Failure::TimedOut), false),
        (Err(Failure::Tko), false),
        (Err(Failure::ConnectionLost), false),
    ] {
        let routers = through(&[&Router::new("r", outcome.clone())]);
        assert_eq!(delete(&routers, &["key"]).await, [applied], "{outcome:?}");
    }
}

#[tokio::test]
async fn the_next_router_is_asked_for_what_failed_and_stays_the_first() {
    let dead = Router::new("dead:1", Err(Failure::ConnectFailed));
    let alive = Router::new("alive:1", Ok(Reply::Deleted));
    let routers = through(&[&dead, &alive]);
    assert_eq!(delete(&routers, &["a", "absent", "b"]).await, [true; 3]);
    assert_eq!(dead.asked(), ["a", "absent", "b"]);
    assert_eq!(alive.asked(), ["a", "b"], "what was acknowledged is not sent again");
    assert_eq!(delete(&routers, &["c"]).await, [true]);
    assert_eq!((dead.asked(), alive.asked()), (vec![], vec!["c".to_string()]), "it stays with who answered");
    *alive.outcome.lock().expect("no panic") = Err(Failure::TimedOut);
    *dead.outcome.lock().expect("no panic") = Ok(Reply::Deleted);
    assert_eq!(delete(&routers, &["d"]).await, [true], "and comes back");
}

#[tokio::test]
async fn a_refusal_is_the_clusters_and_no_other_router_is_asked() {
    let (first, second) = (Router::new("1:1", Ok(Reply::Deleted)), Router::new("2:1", Ok(Reply::Deleted)));
    let routers = through(&[&first, &second]);
    assert_eq!(delete(&routers, &["a", "refused"]).await, [true, false]);
    assert_eq!(second.asked(), [""; 0]);
    let Verdict::Refused(why) = routers.delete(vec![Bytes::from_static(b"refused")]).await.remove(0) else {
        panic!("it is refused");
    };
    assert!(why.contains("1:1") && why.contains("out of order"), "{why}");
}

/// A key that looks like a path names a tree of routes that the router does not have. Its delete was sent again for
/// ever, and the position never moved on.
#[tokio::test]
async fn what_a_router_has_no_route_for_is_settled_in_the_routers_own_words() {
    let says = |failure: &Failure| format!("{failure}: key /api/v1/users");
    let verdict = async |says: String| {
        let router = Router::new("r:1", Ok(Reply::Error(ErrorReply::Server(says.into()))));
        through(&[&router]).delete(vec![Bytes::from_static(b"/api/v1/users")]).await.remove(0)
    };
    let unknown = says(&Failure::NoRoute("no tree is named /api/v1/".into()));
    assert_eq!(verdict(unknown.clone()).await, Verdict::Unroutable(format!("router r:1 says: {unknown}")));
    assert!(verdict(unknown).await.is_settled());
    assert!(!verdict(says(&Failure::Tko)).await.is_settled());
}

/// Where only deletes lead nowhere, gets may still find what ought to have been deleted.
#[tokio::test]
async fn a_router_without_a_way_for_deletes_is_no_reason_to_settle() {
    let selector = OperationSelectorRoute::new(None, []);
    let request = Request { key: Bytes::from_static(b"a"), operation: Operation::Delete { hold_off_ms: 0 } };
    let outcome = selector.route(Batch::from([request]), &Asked::default()).await.remove(0);
    let says = outcome.expect_err("it has no policy").to_string();
    let router = Router::new("r:1", Ok(Reply::Error(ErrorReply::Server(says.into()))));
    assert!(!through(&[&router]).delete(vec![Bytes::from_static(b"a")]).await[0].is_settled());
}

#[tokio::test]
async fn when_all_are_dead_each_is_asked_once() {
    let dead: Vec<_> = (0..3).map(|n| Router::new(&format!("{n}:1"), Err(Failure::Tko))).collect();
    let routers = through(&dead.iter().collect::<Vec<_>>());
    assert_eq!(delete(&routers, &["a", "b"]).await, [false, false]);
    assert!(dead.iter().all(|router| router.asked() == ["a", "b"]));
}

#[tokio::test(start_paused = true)]
async fn a_flush_goes_to_a_router_that_does_it() {
    let router = |name| Router::new(name, Ok(Reply::Deleted));
    assert_eq!(through(&[&router("unreachable"), &router("refuses"), &router("obeys")]).flush().await, Ok(()));
    let why = through(&[&router("refuses")]).flush().await.expect_err("it refuses");
    assert!(why.contains("SERVER_ERROR disabled"), "{why}");
    let why = through(&[&router("silent")]).flush().await.expect_err("it never answers");
    assert!(why.contains("no answer in time"), "{why}");
}

/// A network of routers that are named after what they do with `flush_all`.
struct FlushNetwork;

impl Network for FlushNetwork {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let answer: &[u8] = match &*address.0 {
                "unreachable" => return Err(io::ErrorKind::ConnectionRefused.into()),
                "refuses" => b"SERVER_ERROR disabled\r\n",
                "obeys" => b"OK\r\n",
                _ => b"",
            };
            let (ours, mut theirs) = tokio::io::duplex(64);
            tokio::spawn(async move {
                let mut asked = [0; 11];
                theirs.read_exact(&mut asked).await.expect("it is asked");
                assert_eq!(&asked, b"flush_all\r\n");
                theirs.write_all(answer).await.expect("it listens");
                std::future::pending::<()>().await;
            });
            Ok(Box::new(Pipe(ours)) as Box<dyn Stream>)
        })
    }

    fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

struct Pipe(DuplexStream);

impl Stream for Pipe {
    fn peer(&self) -> Option<IpAddr> {
        None
    }
}

impl AsyncRead for Pipe {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
