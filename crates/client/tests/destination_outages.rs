//! A destination whose server is late, is lost or becomes TKO, with a paused clock.

use crate::destination::{all, value, without_tko};
use crate::fake::{FakeNetwork, Mode, await_outcomes, delete, destination, get, set, start_send};
use lookaside_client::DestinationOptions;
use lookaside_protocol::Reply;
use lookaside_routing::{Destination, Failure, TkoReason};
use std::time::Duration;
use tokio::time::{Instant, advance};

#[tokio::test(start_paused = true)]
async fn late_reply_is_dropped_and_the_next_one_is_matched() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, without_tko());
    let start = Instant::now();
    let late = start_send(&server, vec![get("a"), delete("b"), get("c")]).await;
    let mut peer = accepted.next().await;
    peer.expect("get a\r\ndelete b\r\nget c\r\n").await;
    peer.send("VALUE a 0 1\r\n1\r\nEND\r\n").await;
    assert_eq!(await_outcomes(late).await, [value("1"), Err(Failure::TimedOut), Err(Failure::TimedOut)]);
    assert!(start.elapsed() >= Duration::from_millis(1_000) && start.elapsed() < Duration::from_millis(1_010));

    let next = start_send(&server, vec![get("c")]).await;
    peer.expect("get c\r\n").await;
    peer.send("DELETED\r\nVALUE c 0 4\r\nlate\r\nEND\r\n").await;
    peer.expect_nothing().await;
    assert!(!next.is_finished(), "the late reply belongs to the first batch");
    peer.send("VALUE c 0 3\r\nnew\r\nEND\r\n").await;
    assert_eq!(await_outcomes(next).await, [value("new")]);
    let statistics = server.statistics();
    assert_eq!((statistics.timed_out_batches, statistics.late_batches, statistics.connects), (1, 1, 1));
}

/// Batches that wait for one slow write are composed together, however long each has waited.
#[tokio::test(start_paused = true)]
async fn line_shared_by_a_late_batch_and_one_in_time_answers_both() {
    let (network, mut accepted) = FakeNetwork::with_pipe(1_000);
    let server = destination(&network, DestinationOptions { server_timeout_ms: 1_500, ..without_tko() });
    let large = "x".repeat(5_000);
    let slow = start_send(&server, vec![set("slow", &large)]).await;
    let mut peer = accepted.next().await;
    advance(Duration::from_millis(100)).await;
    let early = start_send(&server, vec![get("a"), get("b")]).await;
    advance(Duration::from_millis(600)).await;
    let later = start_send(&server, vec![get("a"), get("b")]).await;
    peer.expect(&format!("set slow 0 0 5000\r\n{large}\r\nget a b a b\r\n")).await;
    peer.send("STORED\r\nVALUE b 0 1\r\n1\r\n").await;
    assert_eq!(await_outcomes(slow).await, [Ok(Reply::Stored)]);
    assert_eq!(await_outcomes(early).await, [Err(Failure::TimedOut), value("1")]);
    peer.send("VALUE b 0 1\r\n2\r\nVALUE a 0 1\r\n3\r\nVALUE a 0 1\r\n4\r\nEND\r\n").await;
    assert_eq!(await_outcomes(later).await, [value("4"), value("2")]);
}

#[tokio::test(start_paused = true)]
async fn too_many_late_replies_end_the_connection() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions { late_requests_max: 3, ..without_tko() });
    let mut peer = None;
    for _ in 0..2 {
        let sent = start_send(&server, vec![get("a"), get("b")]).await;
        let peer = match &mut peer {
            Some(peer) => peer,
            none => none.insert(accepted.next().await),
        };
        peer.expect("get a b\r\n").await;
        assert_eq!(await_outcomes(sent).await, all(&Failure::TimedOut, 2));
    }
    peer.expect("one connection").expect_end().await;
    assert_eq!(server.statistics().connects, 1);
    let sent = start_send(&server, vec![get("a")]).await;
    let mut peer = accepted.next().await;
    peer.expect("get a\r\n").await;
    peer.send("END\r\n").await;
    assert_eq!(await_outcomes(sent).await, [Ok(Reply::Miss)]);
}

#[tokio::test(start_paused = true)]
async fn late_replies_that_came_do_not_count_any_more() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions { late_requests_max: 3, ..without_tko() });
    let mut peer = None;
    for _ in 0..5 {
        let sent = start_send(&server, vec![get("a"), get("b")]).await;
        let peer = match &mut peer {
            Some(peer) => peer,
            none => none.insert(accepted.next().await),
        };
        peer.expect("get a b\r\n").await;
        assert_eq!(await_outcomes(sent).await, all(&Failure::TimedOut, 2));
        peer.send("END\r\n").await;
        peer.expect_nothing().await;
    }
    let statistics = server.statistics();
    assert_eq!((statistics.connects, statistics.late_batches), (1, 5));
}

#[tokio::test(start_paused = true)]
async fn lost_connection_fails_the_sent_requests_and_nothing_is_sent_twice() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, without_tko());
    let first = start_send(&server, vec![get("a"), delete("b")]).await;
    let second = start_send(&server, vec![set("c", "x")]).await;
    let mut peer = accepted.next().await;
    peer.expect("get a\r\ndelete b\r\nset c 0 0 1\r\nx\r\n").await;
    peer.send("VALUE a 0 1\r\n1\r\nEND\r\nDELE").await;
    drop(peer);
    assert_eq!(await_outcomes(first).await, [value("1"), Err(Failure::ConnectionLost)]);
    assert_eq!(await_outcomes(second).await, all(&Failure::ConnectionLost, 1));
    assert!(accepted.is_empty(), "without a request no connection is made");

    let next = start_send(&server, vec![get("d")]).await;
    let mut peer = accepted.next().await;
    peer.expect("get d\r\n").await;
    peer.send("END\r\n").await;
    assert_eq!(await_outcomes(next).await, [Ok(Reply::Miss)]);
    let statistics = server.statistics();
    assert_eq!((statistics.connects, statistics.connections_lost, statistics.outstanding), (2, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn connection_closed_while_idle_fails_no_request() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, without_tko());
    for _ in 0..3 {
        let sent = start_send(&server, vec![get("a")]).await;
        let mut peer = accepted.next().await;
        peer.expect("get a\r\n").await;
        peer.send("END\r\n").await;
        assert_eq!(await_outcomes(sent).await, [Ok(Reply::Miss)]);
        drop(peer);
        tokio::task::yield_now().await;
    }
    assert_eq!(server.statistics().connections_lost, 0);
}

/// Otherwise they would be taken for the reply to the next request.
#[tokio::test(start_paused = true)]
async fn bytes_that_no_request_asked_for_end_the_connection() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, without_tko());
    let sent = start_send(&server, vec![get("a")]).await;
    let mut peer = accepted.next().await;
    peer.expect("get a\r\n").await;
    peer.send("END\r\n").await;
    assert_eq!(await_outcomes(sent).await, [Ok(Reply::Miss)]);
    peer.send("VALUE b 0 3\r\nold\r\nEND\r\n").await;
    peer.expect_end().await;

    let sent = start_send(&server, vec![get("b")]).await;
    let mut peer = accepted.next().await;
    peer.expect("get b\r\n").await;
    peer.send("END\r\n").await;
    assert_eq!(await_outcomes(sent).await, [Ok(Reply::Miss)]);
}

#[tokio::test(start_paused = true)]
async fn one_refused_connection_makes_the_server_tko_until_a_probe_is_answered() {
    let (network, mut accepted) = FakeNetwork::new();
    network.set(Mode::Refuse);
    let server = destination(&network, DestinationOptions::default());
    assert_eq!(server.send(vec![get("a"), get("b")]).await, all(&Failure::ConnectFailed, 2));
    assert!(server.is_tko());
    let start = Instant::now();
    assert_eq!(server.send(vec![get("a")]).await, all(&Failure::Tko(TkoReason::ConnectFailed), 1));
    assert_eq!(start.elapsed(), Duration::ZERO);

    advance(Duration::from_millis(1_501)).await;
    tokio::task::yield_now().await;
    assert_eq!(server.statistics().probes, 1, "after a second, plus up to a half");
    assert_eq!(server.send(vec![get("a")]).await, all(&Failure::Tko(TkoReason::ConnectFailed), 1));

    network.set(Mode::Accept);
    let mut peer = accepted.next().await;
    assert_eq!(server.statistics().probes, 2, "the next probe needs no request");
    peer.expect("version\r\n").await;
    assert!(server.is_tko());
    peer.send("VERSION 1.6.45\r\n").await;
    peer.expect_nothing().await;
    assert!(!server.is_tko());
    let sent = start_send(&server, vec![get("a")]).await;
    peer.expect("get a\r\n").await;
    peer.send("END\r\n").await;
    assert_eq!(await_outcomes(sent).await, [Ok(Reply::Miss)]);
    let statistics = server.statistics();
    assert_eq!((statistics.tko_marks, statistics.refused_tko, statistics.outstanding), (1, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn connecting_has_its_own_timeout() {
    let (network, _peers) = FakeNetwork::new();
    network.set(Mode::Silence);
    let server = destination(&network, DestinationOptions { connect_timeout_ms: Some(250), ..Default::default() });
    let start = Instant::now();
    let first = start_send(&server, vec![get("a")]).await;
    let second = start_send(&server, vec![get("b")]).await;
    assert_eq!(await_outcomes(first).await, all(&Failure::ConnectTimedOut, 1));
    assert_eq!(await_outcomes(second).await, all(&Failure::ConnectTimedOut, 1));
    assert!(start.elapsed() >= Duration::from_millis(250) && start.elapsed() < Duration::from_millis(260));
    assert!(server.is_tko());
}

#[tokio::test(start_paused = true)]
async fn three_timeouts_in_a_row_make_the_server_tko_and_end_its_connection() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions::default());
    let mut sent = Vec::new();
    for _ in 0..3 {
        sent.push(start_send(&server, vec![get("a")]).await);
        advance(Duration::from_millis(100)).await;
    }
    sent.push(start_send(&server, vec![delete("b")]).await);
    let mut peer = accepted.next().await;
    peer.expect("get a\r\nget a\r\nget a\r\ndelete b\r\n").await;
    let last = sent.pop().expect("four were sent");
    for sent in sent {
        assert_eq!(await_outcomes(sent).await, all(&Failure::TimedOut, 1));
    }
    assert_eq!(await_outcomes(last).await, all(&Failure::ConnectionLost, 1), "in flight when the server became TKO");
    peer.expect_end().await;
    assert!(server.is_tko());

    let mut peer = accepted.next().await;
    peer.expect("version\r\n").await;
    peer.send("ERROR\r\n").await;
    peer.expect_nothing().await;
    assert!(!server.is_tko(), "even an error line proves that the server is alive");
}

#[tokio::test(start_paused = true)]
async fn reply_between_timeouts_prevents_tko() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions::default());
    let mut peer = None;
    for round in 0..3 {
        for _ in 0..2 {
            let sent = start_send(&server, vec![get("a")]).await;
            let peer = match &mut peer {
                Some(peer) => peer,
                none => none.insert(accepted.next().await),
            };
            peer.expect("get a\r\n").await;
            assert_eq!(await_outcomes(sent).await, all(&Failure::TimedOut, 1), "round {round}");
        }
        let sent = start_send(&server, vec![get("a")]).await;
        let peer = peer.as_mut().expect("connected");
        peer.expect("get a\r\n").await;
        peer.send("END\r\nEND\r\nEND\r\n").await;
        assert_eq!(await_outcomes(sent).await, [Ok(Reply::Miss)]);
    }
    assert!(!server.is_tko());
}
