//! Delivery through the routers of a cluster: which router gets which deletes, and which replies count as applied.

use bytes::Bytes;
use lookaside_client::{Listener, Network, Stream};
use lookaside_invalidator::{
    keys::FLUSH_CLUSTER,
    observe::stats::Statistics,
    pipeline::delivery::{DeleteResult, Delivery, RouterConnections, RouterDelivery},
};
use lookaside_protocol::{ErrorReply, Operation, Reply, Request};
use lookaside_routing::{
    Address, Batch, BoxFuture, Context as RouteContext, Destination, Failure, OperationSelectorRoute, Outcome,
    Outcomes, Route, TkoReason,
};
use std::{
    io,
    sync::{Arc, Mutex},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A router with the same outcome for all keys without a script. It records the keys that it received.
struct Router {
    address: Address,
    outcome: Mutex<Outcome>,
    received: Mutex<Vec<String>>,
}

impl Router {
    fn new(name: &str, outcome: Outcome) -> Arc<Router> {
        let address = Address(name.into());
        Arc::new(Router { address, outcome: Mutex::new(outcome), received: Mutex::new(Vec::new()) })
    }

    fn take_received(&self) -> Vec<String> {
        std::mem::take(&mut *self.received.lock().expect("no panic"))
    }
}

impl Destination for Router {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        let reply = |request: &lookaside_protocol::Request<Bytes>| {
            assert_eq!(request.operation, Operation::Delete { hold_off_ms: 0 });
            let key = String::from_utf8_lossy(&request.key).into_owned();
            let outcome = match key.as_str() {
                "refused" => Ok(server_error()),
                "absent" => Ok(Reply::NotFound),
                _ => self.outcome.lock().expect("no panic").clone(),
            };
            self.received.lock().expect("no panic").push(key);
            outcome
        };
        let outcomes = batch.iter().map(reply).collect();
        Box::pin(async { outcomes })
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

fn server_error() -> Reply<Bytes> {
    Reply::Error(ErrorReply::Server(Bytes::from_static(b"out of order")))
}

fn delivery_through(routers: &[&Arc<Router>]) -> RouterDelivery {
    let connections =
        |router: &&Arc<Router>| RouterConnections { deletes: (*router).clone(), probes: (*router).clone() };
    let routers = routers.iter().map(connections).collect();
    RouterDelivery::new(routers, Arc::new(FlushNetwork), Statistics::new(["a"]).clusters()[0].clone())
}

async fn delete(routers: &RouterDelivery, keys: &[&str]) -> Vec<bool> {
    let keys = keys.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect();
    routers.delete(keys).await.iter().map(|result| *result == DeleteResult::Applied).collect()
}

#[tokio::test]
async fn only_deleted_and_not_found_count_as_applied() {
    for (outcome, applied) in [
        (Ok(Reply::Deleted), true),
        (Ok(Reply::NotFound), true),
        (Ok(server_error()), false),
        (Ok(Reply::Error(ErrorReply::Client(Bytes::new()))), false),
        (Ok(Reply::Error(ErrorReply::Unknown)), false),
        (Ok(Reply::Stored), false),
        (Err(Failure::TimedOut), false),
        (Err(Failure::Tko(TkoReason::ConnectFailed)), false),
        (Err(Failure::ConnectionLost), false),
    ] {
        let routers = delivery_through(&[&Router::new("r", outcome.clone())]);
        assert_eq!(delete(&routers, &["key"]).await, [applied], "{outcome:?}");
    }
}

#[tokio::test]
async fn next_router_gets_failed_deletes_and_the_following_ones() {
    let dead = Router::new("dead:1", Err(Failure::ConnectFailed));
    let alive = Router::new("alive:1", Ok(Reply::Deleted));
    let routers = delivery_through(&[&dead, &alive]);
    assert_eq!(delete(&routers, &["a", "absent", "b"]).await, [true; 3]);
    assert_eq!(dead.take_received(), ["a", "absent", "b"]);
    assert_eq!(alive.take_received(), ["a", "b"], "acknowledged deletes are not sent again");
    assert_eq!(delete(&routers, &["c"]).await, [true]);
    assert_eq!(
        (dead.take_received(), alive.take_received()),
        (vec![], vec!["c".to_string()]),
        "the router that replied stays the first"
    );
    *alive.outcome.lock().expect("no panic") = Err(Failure::TimedOut);
    *dead.outcome.lock().expect("no panic") = Ok(Reply::Deleted);
    assert_eq!(delete(&routers, &["d"]).await, [true], "the other router is used again");
}

#[tokio::test]
async fn refusal_by_the_cluster_names_the_last_router_that_was_asked() {
    let (first, second) = (Router::new("1:1", Ok(Reply::Deleted)), Router::new("2:1", Ok(Reply::Deleted)));
    let routers = delivery_through(&[&first, &second]);
    assert_eq!(delete(&routers, &["a", "refused"]).await, [true, false]);
    assert_eq!(first.take_received(), ["a", "refused"]);
    assert_eq!(second.take_received(), ["refused"], "acknowledged deletes are not sent again");
    // The second router is asked first then, as its turn has come.
    let DeleteResult::Refused(why) = routers.delete(vec![Bytes::from_static(b"refused")]).await.remove(0) else {
        panic!("it is refused");
    };
    assert_eq!([first.take_received(), second.take_received()], [["refused"], ["refused"]]);
    assert!(why.contains("1:1") && why.contains("out of order"), "{why}");
}

/// A key that looks like a path has a routing prefix that the router does not know. Its delete was retried forever, and
/// the position never moved.
#[tokio::test]
async fn key_without_a_route_is_unroutable_with_the_routers_message() {
    let message = |failure: &Failure| format!("{failure}: key /api/v1/users");
    let result = async |message: String| {
        let router = Router::new("r:1", Ok(Reply::Error(ErrorReply::Server(message.into()))));
        delivery_through(&[&router]).delete(vec![Bytes::from_static(b"/api/v1/users")]).await.remove(0)
    };
    let unknown = message(&Failure::NoTree);
    assert_eq!(result(unknown.clone()).await, DeleteResult::Unroutable(format!("router r:1: {unknown}")));
    assert!(result(unknown).await.is_final());
    assert!(!result(message(&Failure::Tko(TkoReason::ConnectFailed))).await.is_final());
}

/// If only deletes have no route, gets may still find a value that should have been deleted.
#[tokio::test]
async fn router_without_a_route_for_deletes_only_refuses() {
    let selector = OperationSelectorRoute::new(None, []);
    let request = Request { key: Bytes::from_static(b"a"), operation: Operation::Delete { hold_off_ms: 0 } };
    let outcome = selector.route(Batch::from([request]), &RouteContext::default()).await.remove(0);
    let message = outcome.expect_err("it has no policy").to_string();
    let router = Router::new("r:1", Ok(Reply::Error(ErrorReply::Server(message.into()))));
    assert!(!delivery_through(&[&router]).delete(vec![Bytes::from_static(b"a")]).await[0].is_final());
}

#[tokio::test]
async fn each_dead_router_is_tried_once() {
    let dead: Vec<_> =
        (0..3).map(|n| Router::new(&format!("{n}:1"), Err(Failure::Tko(TkoReason::ConnectFailed)))).collect();
    let routers = delivery_through(&dead.iter().collect::<Vec<_>>());
    assert_eq!(delete(&routers, &["a", "b"]).await, [false, false]);
    assert!(dead.iter().all(|router| router.take_received() == ["a", "b"]));
}

#[tokio::test(start_paused = true)]
async fn flush_uses_a_router_that_accepts_it() {
    let router = |name| Router::new(name, Ok(Reply::Deleted));
    assert_eq!(
        delivery_through(&[&router("unreachable"), &router("refuses"), &router("accepts")]).flush().await,
        Ok(())
    );
    let why = delivery_through(&[&router("refuses")]).flush().await.expect_err("it refuses");
    assert_eq!(why, "router refuses: flush_all: disabled");
    let why = delivery_through(&[&router("no-flush")]).flush().await.expect_err("it has no --enable-flush-cmd");
    assert!(why.contains("router no-flush refuses") && why.contains("with --enable-flush-cmd"), "{why}");
    let why = delivery_through(&[&router("silent")]).flush().await.expect_err("it never replies");
    assert!(why.contains("no reply within"), "{why}");
}

/// A change that no key can express stands among the keys as a mark, which no server would accept as a key.
#[tokio::test(start_paused = true)]
async fn a_mark_among_the_keys_flushes_the_cluster() {
    let mark = std::str::from_utf8(FLUSH_CLUSTER).expect("text");
    let accepts = Router::new("accepts", Ok(Reply::Deleted));
    let results = delete(&delivery_through(&[&accepts]), &["a", mark, "refused", mark]).await;
    assert_eq!(results, [true, true, false, true]);
    assert_eq!(accepts.take_received(), ["a", "refused"], "the mark is not sent as a key");
    let refuses = Router::new("refuses", Ok(Reply::Deleted));
    assert_eq!(delete(&delivery_through(&[&refuses]), &[mark, "a"]).await, [false, true], "the flush is retried");
    assert_eq!(delete(&delivery_through(&[&accepts]), &[mark]).await, [true]);
    assert!(accepts.take_received().is_empty());
}

/// A rule may demand a flush of the pools of its keys only. Routers know which these are.
#[tokio::test(start_paused = true)]
async fn a_prefix_among_the_keys_flushes_its_pools() {
    let (users, posts) = ("\0flush-prefix:user:", "\0flush-prefix:post:");
    let router = |name: &str| Router::new(name, Ok(Reply::Deleted));
    let accepts = router("accepts");
    assert_eq!(delete(&delivery_through(&[&accepts]), &["a", users, posts, users]).await, [true; 4]);
    assert_eq!(accepts.take_received(), ["a"]);
    assert_eq!(
        delete(&delivery_through(&[&router("refuses"), &accepts]), &[users]).await,
        [true],
        "another one does it"
    );
    assert_eq!(delete(&delivery_through(&[&router("refuses")]), &["a", users]).await, [true, false], "it is retried");
    let cluster = std::str::from_utf8(FLUSH_CLUSTER).expect("text");
    let flushed_once = delivery_through(&[&router("only_flush_all")]);
    assert_eq!(delete(&flushed_once, &[users, cluster]).await, [true, true], "a flush of the cluster does for both");
    let result = async |name: &str| {
        let mut results = delivery_through(&[&router(name)]).delete(vec![Bytes::from(users)]).await;
        results.pop().expect("one result")
    };
    for (name, why) in [
        ("refuses", "router refuses: flush of the pools of keys that begin with \"user:\": refused: disabled"),
        (
            "older",
            "router older: flush of the pools of keys that begin with \"user:\": it is of a version without flushes of pools; update it",
        ),
    ] {
        assert_eq!(result(name).await, DeleteResult::Refused(why.into()));
    }
    assert!(matches!(result("has_no_server").await, DeleteResult::Unroutable(_)), "nothing can be cached there");
    let differing = delivery_through(&[&router("has_no_server"), &router("accepts")]);
    for _ in 0..2 {
        let results = differing.delete(vec![Bytes::from(users)]).await;
        assert_eq!(results, [DeleteResult::Applied], "whichever is asked first");
    }
    let unknown = delivery_through(&[&router("has_no_server"), &router("refuses")]);
    for _ in 0..2 {
        let results = unknown.delete(vec![Bytes::from(users)]).await;
        assert!(matches!(&results[0], DeleteResult::Refused(_)), "one may have a server: {results:?}");
    }
    assert!(matches!(result("silent").await, DeleteResult::Refused(why) if why.contains("no reply within")));
}

/// A flush once waited ten seconds for a router that hung, and all that time the others served old values.
#[tokio::test(start_paused = true)]
async fn a_flush_does_not_wait_for_a_router_that_hangs() {
    let router = |name: &str| Router::new(name, Ok(Reply::Deleted));
    let begun = tokio::time::Instant::now();
    let routers = delivery_through(&[&router("silent"), &router("accepts")]);
    assert_eq!(delete(&routers, &["\0flush-prefix:user:"]).await, [true]);
    assert_eq!(routers.flush().await, Ok(()));
    assert!(begun.elapsed() < std::time::Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_prefix_that_is_too_long_for_a_request_is_cut() {
    let long = format!("\0flush-prefix:{}", "x".repeat(250));
    assert_eq!(delete(&delivery_through(&[&Router::new("accepts", Ok(Reply::Deleted))]), &[&long]).await, [true]);
}

/// A network of routers that are named after their reaction to flushes.
struct FlushNetwork;

impl Network for FlushNetwork {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let (of_all, of_prefix) = match &*address.0 {
                "unreachable" => return Err(io::ErrorKind::ConnectionRefused.into()),
                "refuses" => ("SERVER_ERROR disabled\r\n", Some("refused: disabled")),
                "no-flush" => ("SERVER_ERROR Command disabled\r\n", Some("refused: Command disabled")),
                "accepts" => ("OK\r\n", Some("flushed 3")),
                "only_flush_all" => ("OK\r\n", Some("refused: not expected")),
                "has_no_server" => ("", Some("flushed 0")),
                "older" => ("", None),
                _ => ("", Some("")),
            };
            let (ours, mut theirs) = tokio::io::duplex(512);
            tokio::spawn(async move {
                let mut command = Vec::new();
                while !command.ends_with(b"\r\n") {
                    command.push(theirs.read_u8().await.expect("the command arrives"));
                }
                let key =
                    command.strip_prefix(b"get ").map(|key| String::from_utf8_lossy(key.trim_ascii_end()).into_owned());
                let reply = match (key, of_prefix) {
                    (None, _) => {
                        assert_eq!(command, b"flush_all\r\n");
                        of_all.to_owned()
                    }
                    (Some(_), Some("")) => String::new(),
                    (Some(_), None) => "END\r\n".to_owned(),
                    (Some(key), Some(value)) => {
                        assert!(key.starts_with("__mcrouter__.flush_prefix(") && key.len() <= 250, "{key}");
                        format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len())
                    }
                };
                theirs.write_all(reply.as_bytes()).await.expect("the client reads");
                std::future::pending::<()>().await;
            });
            Ok(Box::new(ours) as Box<dyn Stream>)
        })
    }

    fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}
