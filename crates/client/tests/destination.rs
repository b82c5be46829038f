//! A destination against a server that the test plays, with a paused clock.

use crate::fake::{
    FakeNetwork, Mode, await_outcomes, delete, destination, get, lease_get, request, set, start_send, start_together,
};
use bytes::Bytes;
use lookaside_client::DestinationOptions;
use lookaside_protocol::{
    Cas, ErrorReply, LeaseToken, Operation, Reply,
    meta::{MetaOperation, MetaReply, MetaStatus, MetaVerb},
};
use lookaside_routing::{Destination, Failure, HealthSettings, Outcome, Outcomes, TkoReason};
use std::time::Duration;
use tokio::time::{Instant, advance, sleep};

fn value(value: &str) -> Outcome {
    Ok(Reply::Value { flags: 0, cas: None, value: Bytes::copy_from_slice(value.as_bytes()) })
}

fn all(failure: &Failure, requests: usize) -> Outcomes {
    vec![Err(failure.clone()); requests]
}

/// Options with which timeouts do not make the server TKO.
fn without_tko() -> DestinationOptions {
    let health = HealthSettings { timeouts_until_tko: u32::MAX, ..HealthSettings::default() };
    DestinationOptions { health, ..DestinationOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn queued_batches_are_written_together_and_runs_of_gets_share_a_line() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, without_tko());
    let batches = [
        vec![get("a"), get("b")],
        vec![get("a"), delete("c"), get("d")],
        vec![set("e", "five"), lease_get("f"), lease_get("g")],
    ];
    let [first, second, third] = start_together(&server, batches).await;
    let mut peer = accepted.next().await;
    peer.expect("get a b a\r\ndelete c\r\nget d\r\nset e 0 0 4\r\nfive\r\nlease-get f g\r\n").await;
    assert_eq!(server.statistics().writes, 1);

    peer.send("VALUE a 0 1\r\n1\r\nVALUE a 0 1\r\n2\r\nEND\r\nDELETED\r\nEND\r\nSTORED\r\n").await;
    assert_eq!(await_outcomes(first).await, [value("1"), Ok(Reply::Miss)]);
    assert_eq!(await_outcomes(second).await, [value("2"), Ok(Reply::Deleted), Ok(Reply::Miss)]);
    assert!(!third.is_finished());
    peer.send("LVALUE f 77 0 0\r\n\r\nLVALUE g 1 5 3\r\nold\r\nEND\r\n").await;
    let hot = Reply::Lease { token: LeaseToken::HOT_MISS, flags: 5, stale: Some(Bytes::from_static(b"old")) };
    let held = Reply::Lease { token: LeaseToken(77), flags: 0, stale: None };
    assert_eq!(await_outcomes(third).await, [Ok(Reply::Stored), Ok(held), Ok(hot)]);
    peer.expect_nothing().await;
    let statistics = server.statistics();
    assert_eq!((statistics.requests, statistics.outstanding, statistics.answered_batches), (8, 0, 3));
}

#[tokio::test(start_paused = true)]
async fn gets_of_another_kind_do_not_share_a_line() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, without_tko());
    let touch = |key, exptime, cas| request(key, Operation::GetAndTouch { exptime, cas });
    let batch = vec![
        get("a"),
        request("b", Operation::Get { cas: true }),
        touch("c", 9, false),
        touch("d", 9, false),
        touch("e", 10, false),
        touch("f", 10, true),
    ];
    let sent = start_send(&server, batch).await;
    let mut peer = accepted.next().await;
    peer.expect("get a\r\ngets b\r\ngat 9 c d\r\ngat 10 e\r\ngats 10 f\r\n").await;
    peer.send("END\r\nVALUE b 3 1 8\r\nx\r\nEND\r\nEND\r\nEND\r\nEND\r\n").await;
    let outcomes = await_outcomes(sent).await;
    assert_eq!(outcomes[1], Ok(Reply::Value { flags: 3, cas: Some(Cas(8)), value: Bytes::from_static(b"x") }));
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Ok(Reply::Miss)).count(), 5);
}

#[tokio::test(start_paused = true)]
async fn get_line_has_at_most_64_keys_and_2000_bytes() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, without_tko());
    let short: Vec<String> = (100..165).map(|n| n.to_string()).collect();
    let long: Vec<String> = (0..9).map(|n| n.to_string().repeat(250)).collect();
    let sent = start_send(&server, short.iter().chain(&long).map(|key| get(key)).collect()).await;
    let mut peer = accepted.next().await;
    peer.expect(&format!("get {}\r\n", short[..64].join(" "))).await;
    peer.expect(&format!("get {} {}\r\n", short[64], long[..7].join(" "))).await;
    peer.expect(&format!("get {}\r\n", long[7..].join(" "))).await;
    peer.send(&format!("END\r\nVALUE {} 0 1\r\n7\r\nEND\r\nEND\r\n", long[6])).await;
    let outcomes = await_outcomes(sent).await;
    assert_eq!(outcomes[65 + 6], value("7"));
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Ok(Reply::Miss)).count(), 73);
}

#[tokio::test(start_paused = true)]
async fn replies_are_the_same_wherever_the_bytes_are_cut() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, without_tko());
    let big = "x".repeat(40_000);
    let replies = format!("VALUE a 0 3\r\nEND\r\nVALUE c 0 {}\r\n{big}\r\nEND\r\nSTORED\r\nNOT_FOUND\r\n", big.len());
    let head = 60;
    let mut peer = None;
    for cut in (1..head).chain([replies.len() / 2, replies.len() - 20, replies.len() - 3]) {
        let sent = start_send(&server, vec![get("a"), get("b"), get("c"), set("d", ""), delete("e")]).await;
        let peer = match &mut peer {
            Some(peer) => peer,
            none => none.insert(accepted.next().await),
        };
        peer.expect("get a b c\r\nset d 0 0 0\r\n\r\ndelete e\r\n").await;
        for part in [&replies[..cut], &replies[cut..]] {
            peer.send(part).await;
            peer.expect_nothing().await;
        }
        let expected = [value("END"), Ok(Reply::Miss), value(&big), Ok(Reply::Stored), Ok(Reply::NotFound)];
        assert_eq!(await_outcomes(sent).await, expected, "cut at {cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn items_may_come_in_another_order_but_not_of_other_keys() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, without_tko());
    let sent = start_send(&server, vec![get("a"), get("b"), get("a"), get("c")]).await;
    let mut peer = accepted.next().await;
    peer.expect("get a b a c\r\n").await;
    peer.send("VALUE c 0 1\r\nC\r\nVALUE a 0 1\r\nA\r\nVALUE b 0 1\r\nB\r\nEND\r\n").await;
    assert_eq!(await_outcomes(sent).await, [value("A"), value("B"), Ok(Reply::Miss), value("C")]);

    let sent = start_send(&server, vec![get("a"), get("b")]).await;
    peer.expect("get a b\r\n").await;
    peer.send("VALUE a 0 1\r\nA\r\nVALUE z 0 1\r\nZ\r\nEND\r\n").await;
    assert_eq!(await_outcomes(sent).await, [value("A"), Err(Failure::Malformed)]);
    peer.expect_end().await;
    assert_eq!(server.statistics().malformed, 1);
}

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
async fn error_lines_are_replies() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions::default());
    let sent = start_send(&server, vec![lease_get("a"), lease_get("b"), delete("c"), get("d"), set("e", "x")]).await;
    let mut peer = accepted.next().await;
    peer.expect("lease-get a b\r\ndelete c\r\nget d\r\nset e 0 0 1\r\nx\r\n").await;
    peer.send("ERROR\r\nCLIENT_ERROR no\r\nVALUE d 0 1\r\nD\r\nSERVER_ERROR out of memory\r\nSERVER_ERROR large\r\n")
        .await;
    let outcomes = await_outcomes(sent).await;
    assert_eq!(outcomes[..2], vec![Ok(Reply::Error(ErrorReply::Unknown)); 2]);
    assert_eq!(outcomes[2], Ok(Reply::Error(ErrorReply::Client(Bytes::from_static(b"no")))));
    assert_eq!(outcomes[3], value("D"));
    assert_eq!(outcomes[4], Ok(Reply::Error(ErrorReply::Server(Bytes::from_static(b"large")))));
    assert!(!server.is_tko());
    let sent = start_send(&server, vec![get("f")]).await;
    peer.expect("get f\r\n").await;
    peer.send("END\r\n").await;
    assert_eq!(await_outcomes(sent).await, [Ok(Reply::Miss)]);
}

/// memcached replies `ERROR` to a `lease-set` line, and then reads the value as a command. If the connection were
/// kept, every later reply would be matched to the wrong request.
#[tokio::test(start_paused = true)]
async fn connection_to_a_server_that_reads_a_value_as_a_command_is_closed() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions::default());
    let value = Bytes::from_static(b"hello");
    let lease_set = request("a", Operation::LeaseSet { token: LeaseToken(7), flags: 0, exptime: 0, value });
    let sent = start_send(&server, vec![lease_set, get("b")]).await;
    let mut peer = accepted.next().await;
    peer.expect("lease-set a 7 0 0 5\r\nhello\r\nget b\r\n").await;
    peer.send("ERROR\r\nERROR\r\nEND\r\n").await;
    let expected = [Ok(Reply::Error(ErrorReply::Unknown)), Err(Failure::ConnectionLost)];
    assert_eq!(await_outcomes(sent).await, expected);
    peer.expect_end().await;
    assert!(!server.is_tko());
}

#[tokio::test(start_paused = true)]
async fn malformed_replies_end_the_connection() {
    for malformed in ["HTTP/1.1 400 Bad Request\r\n", "DELETED\r\n", "VALUE a 0 99999999999\r\n", "VERSION 1\r\n"] {
        let (network, mut accepted) = FakeNetwork::new();
        let server = destination(&network, without_tko());
        let sent = start_send(&server, vec![get("a")]).await;
        let mut peer = accepted.next().await;
        peer.expect("get a\r\n").await;
        peer.send(malformed).await;
        assert_eq!(await_outcomes(sent).await, all(&Failure::Malformed, 1), "{malformed}");
        peer.expect_end().await;
        let again = start_send(&server, vec![get("a")]).await;
        let mut peer = accepted.next().await;
        peer.expect("get a\r\n").await;
        peer.send("END\r\n").await;
        assert_eq!(await_outcomes(again).await, [Ok(Reply::Miss)]);
        peer.send("END\r\n").await;
        peer.expect_end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn quiet_meta_command_is_sent_without_its_q() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, without_tko());
    let meta = |key, verb, flags, value| request(key, Operation::Meta(MetaOperation { verb, flags, value }));
    let batch = vec![
        meta("a", MetaVerb::Get, Bytes::from_static(b"v q Oqq"), None),
        meta("b", MetaVerb::Set, Bytes::from_static(b"q"), Some(Bytes::from_static(b"xy"))),
        get("c"),
    ];
    let sent = start_send(&server, batch).await;
    let mut peer = accepted.next().await;
    peer.expect("mg a v Oqq\r\nms b 2\r\nxy\r\nget c\r\n").await;
    peer.send("EN\r\nHD\r\nEND\r\n").await;
    let status = |status| Ok(Reply::Meta(MetaReply { status, flags: Bytes::new(), value: None }));
    assert_eq!(await_outcomes(sent).await, [status(MetaStatus::Miss), status(MetaStatus::Done), Ok(Reply::Miss)]);
}

#[tokio::test(start_paused = true)]
async fn replies_stay_matched_after_a_caller_is_dropped() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, without_tko());
    let gone = start_send(&server, vec![get("a"), delete("b")]).await;
    gone.abort();
    let waiting = start_send(&server, vec![get("a")]).await;
    let mut peer = accepted.next().await;
    peer.expect("get a\r\ndelete b\r\nget a\r\n").await;
    peer.send("VALUE a 0 1\r\n1\r\nEND\r\nDELETED\r\nVALUE a 0 1\r\n2\r\nEND\r\n").await;
    assert_eq!(await_outcomes(waiting).await, [value("2")]);
    assert_eq!(server.statistics().outstanding, 0);
}

#[tokio::test(start_paused = true)]
async fn server_that_never_reads_delays_no_request_beyond_the_timeout() {
    let (network, mut accepted) = FakeNetwork::with_pipe(1_000);
    let server = destination(&network, without_tko());
    let large = "x".repeat(700_000);
    let mut sent = Vec::new();
    for _ in 0..4 {
        sent.push(start_send(&server, vec![set("a", &large), get("b")]).await);
    }
    let peer = accepted.next().await;
    for sent in sent {
        let outcomes = await_outcomes(sent).await;
        assert!(outcomes.len() == 2 && outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(Failure::is_timeout)));
    }
    assert_eq!(server.statistics().timed_out_batches, 4);
    drop(peer);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_destination_ends_its_connection() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, without_tko());
    let sent = start_send(&server, vec![get("a")]).await;
    let mut peer = accepted.next().await;
    peer.expect("get a\r\n").await;
    peer.send("END\r\n").await;
    await_outcomes(sent).await;
    drop(server);
    peer.expect_end().await;
}

#[tokio::test(start_paused = true)]
async fn empty_batch_needs_no_connection() {
    let (network, accepted) = FakeNetwork::new();
    let server = destination(&network, without_tko());
    assert_eq!(server.send(Vec::new()).await, []);
    tokio::task::yield_now().await;
    assert!(accepted.is_empty());
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
