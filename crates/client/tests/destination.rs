//! A destination against a server that the test plays, with a paused clock.

use crate::fake::{
    FakeNetwork, await_outcomes, delete, destination, get, lease_get, request, set, start_send, start_together,
};
use bytes::Bytes;
use lookaside_client::DestinationOptions;
use lookaside_protocol::{
    Cas, ErrorReply, LeaseToken, Operation, Reply,
    meta::{MetaOperation, MetaReply, MetaStatus, MetaVerb},
};
use lookaside_routing::{Destination, Failure, HealthSettings, Outcome, Outcomes};

pub(crate) fn value(value: &str) -> Outcome {
    Ok(Reply::Value { flags: 0, cas: None, value: Bytes::copy_from_slice(value.as_bytes()) })
}

pub(crate) fn all(failure: &Failure, requests: usize) -> Outcomes {
    vec![Err(failure.clone()); requests]
}

/// Options with which timeouts do not make the server TKO.
pub(crate) fn without_tko() -> DestinationOptions {
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
