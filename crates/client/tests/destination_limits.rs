//! The limits on what a destination has outstanding, and on how long it is idle, with a paused clock.

use crate::destination::{all, without_tko};
use crate::fake::{FakeNetwork, await_outcomes, delete, destination, get, start_send, start_together};
use lookaside_client::DestinationOptions;
use lookaside_protocol::Reply;
use lookaside_routing::{Destination, Failure};
use std::time::Duration;
use tokio::time::{Instant, advance, sleep};

#[tokio::test(start_paused = true)]
async fn requests_over_the_limit_are_busy_until_others_are_answered() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions { outstanding_requests_max: 3, ..without_tko() });
    let first = start_send(&server, vec![get("a"), get("b")]).await;
    let full = Failure::TooManyPending { server: server.address().clone(), requests_max: 3 };
    assert_eq!(server.send(vec![get("c"), get("d")]).await, all(&full, 2));
    let second = start_send(&server, vec![get("e")]).await;
    assert_eq!(server.send(vec![get("f")]).await, all(&full, 1));
    assert_eq!(server.statistics().outstanding, 3);
    let mut peer = accepted.next().await;
    peer.expect("get a b\r\nget e\r\n").await;
    peer.send("END\r\nEND\r\n").await;
    await_outcomes(first).await;
    await_outcomes(second).await;
    assert_eq!(server.statistics().busy, 3);
    let third = start_send(&server, vec![get("g"), get("h"), get("i")]).await;
    peer.expect("get g h i\r\n").await;
    peer.send("END\r\n").await;
    assert_eq!(await_outcomes(third).await, vec![Ok(Reply::Miss); 3]);
}

#[tokio::test(start_paused = true)]
async fn no_more_requests_are_in_flight_than_allowed_and_the_others_wait() {
    let (network, mut accepted) = FakeNetwork::new();
    let options = DestinationOptions { inflight_requests_max: 2, outstanding_requests_max: 4, ..without_tko() };
    let server = destination(&network, options);
    let batches = [vec![get("a")], vec![delete("b"), get("c")], vec![get("d")]];
    let [first, second, third] = start_together(&server, batches).await;
    let mut peer = accepted.next().await;
    peer.expect("get a\r\n").await;
    peer.expect_nothing().await;
    peer.send("END\r\n").await;
    assert_eq!(await_outcomes(first).await, [Ok(Reply::Miss)]);
    peer.expect("delete b\r\nget c\r\n").await;
    peer.expect_nothing().await;
    peer.send("DELETED\r\nEND\r\n").await;
    assert_eq!(await_outcomes(second).await, [Ok(Reply::Deleted), Ok(Reply::Miss)]);
    peer.expect("get d\r\n").await;
    // A larger batch is sent in parts.
    let large = start_send(&server, vec![get("e"), get("f"), get("g"), get("h"), get("i")]).await;
    let full = Failure::TooManyPending { server: server.address().clone(), requests_max: 4 };
    assert_eq!(server.send(vec![get("j"); 2]).await, all(&full, 2), "one is in flight, and two wait");
    peer.send("END\r\n").await;
    await_outcomes(third).await;
    for part in ["get e f\r\n", "get g h\r\n", "get i\r\n"] {
        peer.expect(part).await;
        peer.expect_nothing().await;
        peer.send("END\r\n").await;
    }
    assert_eq!(await_outcomes(large).await, vec![Ok(Reply::Miss); 5]);
}

/// Once each part waited as long as the first: a page of 400 keys at a server that hung took 80 timeouts.
#[tokio::test(start_paused = true)]
async fn behind_a_part_that_has_timed_out_nothing_is_sent() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions { inflight_requests_max: 2, ..without_tko() });
    let started = Instant::now();
    let keys: Vec<String> = (0..400).map(|number| format!("key:{number}")).collect();
    let sent = start_send(&server, keys.iter().map(|key| get(key)).collect()).await;
    let mut peer = accepted.next().await;
    peer.expect("get key:0 key:1\r\n").await;
    peer.send("END\r\n").await;
    peer.expect("get key:2 key:3\r\n").await;
    let outcomes = await_outcomes(sent).await;
    assert_eq!(started.elapsed(), Duration::from_millis(DestinationOptions::default().server_timeout_ms));
    assert_eq!(outcomes[..2], [Ok(Reply::Miss), Ok(Reply::Miss)]);
    assert_eq!(outcomes[2..4], all(&Failure::TimedOut, 2));
    assert_eq!(outcomes[4..], all(&Failure::QueueTimedOut, 396), "another server may execute them");
    peer.expect_nothing().await;
    assert_eq!((server.statistics().requests, server.statistics().outstanding), (4, 0));
}

/// A server that is slow, and answers something of each part, is sent all of them.
#[tokio::test(start_paused = true)]
async fn behind_a_part_that_was_partly_answered_the_next_one_is_sent() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions { inflight_requests_max: 2, ..without_tko() });
    let sent = start_send(&server, vec![delete("a"), delete("b"), delete("c")]).await;
    let mut peer = accepted.next().await;
    peer.expect("delete a\r\ndelete b\r\n").await;
    peer.send("DELETED\r\n").await;
    sleep(Duration::from_millis(1_500)).await;
    peer.send("DELETED\r\n").await;
    peer.expect("delete c\r\n").await;
    peer.send("DELETED\r\n").await;
    assert_eq!(await_outcomes(sent).await, [Ok(Reply::Deleted), Err(Failure::TimedOut), Ok(Reply::Deleted)]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_after_one_to_two_intervals() {
    let (network, mut accepted) = FakeNetwork::new();
    let interval = Duration::from_secs(10);
    let server = destination(&network, DestinationOptions { idle_interval_ms: Some(10_000), ..without_tko() });
    let mut start = Instant::now();
    let mut peer = None;
    for pause in [0, 7, 7, 7] {
        advance(Duration::from_secs(pause)).await;
        let sent = start_send(&server, vec![get("a")]).await;
        let peer = match &mut peer {
            Some(peer) => peer,
            none => none.insert(accepted.next().await),
        };
        start = Instant::now();
        peer.expect("get a\r\n").await;
        peer.send("END\r\n").await;
        await_outcomes(sent).await;
    }
    let mut peer = peer.expect("one connection");
    peer.expect_end().await;
    assert!((interval..=interval * 2).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert!(accepted.is_empty(), "none is made ahead");
    let sent = start_send(&server, vec![get("b")]).await;
    let mut peer = accepted.next().await;
    peer.expect("get b\r\n").await;
    // A request that is not answered is no idle time: the deadline is the server's timeout.
    assert_eq!(await_outcomes(sent).await, all(&Failure::TimedOut, 1));
    assert_eq!(server.statistics().connections_lost, 0);
}
