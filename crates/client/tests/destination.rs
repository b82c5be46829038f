//! A destination against a server that the test plays, on a paused clock.

mod fake;

use bytes::Bytes;
use fake::{FakeNetwork, Mode, delete, destination, finish, get, lease_get, request, set, start, start_together};
use lookaside_client::DestinationOptions;
use lookaside_protocol::{
    Cas, ErrorReply, LeaseToken, Operation, Reply,
    meta::{MetaOperation, MetaReply, MetaStatus, MetaVerb},
};
use lookaside_routing::{Destination, Failure, HealthSettings, Outcome, Outcomes};
use std::time::Duration;
use tokio::time::{Instant, advance};

fn value(value: &str) -> Outcome {
    Ok(Reply::Value { flags: 0, cas: None, value: Bytes::copy_from_slice(value.as_bytes()) })
}

fn all(failure: &Failure, requests: usize) -> Outcomes {
    vec![Err(failure.clone()); requests]
}

/// Options under which timeouts do not take the server out.
fn patient() -> DestinationOptions {
    let health = HealthSettings { timeouts_until_out: u32::MAX, ..HealthSettings::default() };
    DestinationOptions { health, ..DestinationOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn batches_that_queued_up_leave_together_and_runs_of_gets_share_a_line() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, patient());
    let batches = [
        vec![get("a"), get("b")],
        vec![get("a"), delete("c"), get("d")],
        vec![set("e", "five"), lease_get("f"), lease_get("g")],
    ];
    let [first, second, third] = start_together(&server, batches).await;
    let mut peer = peers.next().await;
    peer.expect("get a b a\r\ndelete c\r\nget d\r\nset e 0 0 4\r\nfive\r\nlease-get f g\r\n").await;
    assert_eq!(server.statistics().writes, 1);

    peer.say("VALUE a 0 1\r\n1\r\nVALUE a 0 1\r\n2\r\nEND\r\nDELETED\r\nEND\r\nSTORED\r\n").await;
    assert_eq!(finish(first).await, [value("1"), Ok(Reply::Miss)]);
    assert_eq!(finish(second).await, [value("2"), Ok(Reply::Deleted), Ok(Reply::Miss)]);
    assert!(!third.is_finished());
    peer.say("LVALUE f 77 0 0\r\n\r\nLVALUE g 1 5 3\r\nold\r\nEND\r\n").await;
    let hot = Reply::Lease { token: LeaseToken::HOT_MISS, flags: 5, stale: Some(Bytes::from_static(b"old")) };
    let held = Reply::Lease { token: LeaseToken(77), flags: 0, stale: None };
    assert_eq!(finish(third).await, [Ok(Reply::Stored), Ok(held), Ok(hot)]);
    peer.expect_nothing().await;
    let statistics = server.statistics();
    assert_eq!((statistics.requests, statistics.outstanding, statistics.answered_batches), (8, 0, 3));
}

#[tokio::test(start_paused = true)]
async fn gets_of_another_kind_do_not_share_a_line() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, patient());
    let touch = |key, exptime, cas| request(key, Operation::GetAndTouch { exptime, cas });
    let batch = vec![
        get("a"),
        request("b", Operation::Get { cas: true }),
        touch("c", 9, false),
        touch("d", 9, false),
        touch("e", 10, false),
        touch("f", 10, true),
    ];
    let sent = start(&server, batch).await;
    let mut peer = peers.next().await;
    peer.expect("get a\r\ngets b\r\ngat 9 c d\r\ngat 10 e\r\ngats 10 f\r\n").await;
    peer.say("END\r\nVALUE b 3 1 8\r\nx\r\nEND\r\nEND\r\nEND\r\nEND\r\n").await;
    let outcomes = finish(sent).await;
    assert_eq!(outcomes[1], Ok(Reply::Value { flags: 3, cas: Some(Cas(8)), value: Bytes::from_static(b"x") }));
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Ok(Reply::Miss)).count(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_get_line_has_at_most_64_keys_and_2000_bytes() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, patient());
    let short: Vec<String> = (100..165).map(|n| n.to_string()).collect();
    let long: Vec<String> = (0..9).map(|n| n.to_string().repeat(250)).collect();
    let sent = start(&server, short.iter().chain(&long).map(|key| get(key)).collect()).await;
    let mut peer = peers.next().await;
    peer.expect(&format!("get {}\r\n", short[..64].join(" "))).await;
    peer.expect(&format!("get {} {}\r\n", short[64], long[..7].join(" "))).await;
    peer.expect(&format!("get {}\r\n", long[7..].join(" "))).await;
    peer.say(&format!("END\r\nVALUE {} 0 1\r\n7\r\nEND\r\nEND\r\n", long[6])).await;
    let outcomes = finish(sent).await;
    assert_eq!(outcomes[65 + 6], value("7"));
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Ok(Reply::Miss)).count(), 73);
}

#[tokio::test(start_paused = true)]
async fn answers_are_the_same_wherever_the_bytes_are_cut() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, patient());
    let big = "x".repeat(40_000);
    let answers = format!("VALUE a 0 3\r\nEND\r\nVALUE c 0 {}\r\n{big}\r\nEND\r\nSTORED\r\nNOT_FOUND\r\n", big.len());
    let head = 60;
    let mut peer = None;
    for cut in (1..head).chain([answers.len() / 2, answers.len() - 20, answers.len() - 3]) {
        let sent = start(&server, vec![get("a"), get("b"), get("c"), set("d", ""), delete("e")]).await;
        let peer = match &mut peer {
            Some(peer) => peer,
            none => none.insert(peers.next().await),
        };
        peer.expect("get a b c\r\nset d 0 0 0\r\n\r\ndelete e\r\n").await;
        for part in [&answers[..cut], &answers[cut..]] {
            peer.say(part).await;
            peer.expect_nothing().await;
        }
        let expected = [value("END"), Ok(Reply::Miss), value(&big), Ok(Reply::Stored), Ok(Reply::NotFound)];
        assert_eq!(finish(sent).await, expected, "cut at {cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn keys_may_come_back_in_another_order_but_no_others() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, patient());
    let sent = start(&server, vec![get("a"), get("b"), get("a"), get("c")]).await;
    let mut peer = peers.next().await;
    peer.expect("get a b a c\r\n").await;
    peer.say("VALUE c 0 1\r\nC\r\nVALUE a 0 1\r\nA\r\nVALUE b 0 1\r\nB\r\nEND\r\n").await;
    assert_eq!(finish(sent).await, [value("A"), value("B"), Ok(Reply::Miss), value("C")]);

    let sent = start(&server, vec![get("a"), get("b")]).await;
    peer.expect("get a b\r\n").await;
    peer.say("VALUE a 0 1\r\nA\r\nVALUE z 0 1\r\nZ\r\nEND\r\n").await;
    assert_eq!(finish(sent).await, [value("A"), Err(Failure::Malformed)]);
    peer.expect_end().await;
    assert_eq!(server.statistics().malformed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_dropped_and_the_next_one_is_matched() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, patient());
    let begin = Instant::now();
    let late = start(&server, vec![get("a"), delete("b"), get("c")]).await;
    let mut peer = peers.next().await;
    peer.expect("get a\r\ndelete b\r\nget c\r\n").await;
    peer.say("VALUE a 0 1\r\n1\r\nEND\r\n").await;
    assert_eq!(finish(late).await, [value("1"), Err(Failure::TimedOut), Err(Failure::TimedOut)]);
    assert!(begin.elapsed() >= Duration::from_millis(1_000) && begin.elapsed() < Duration::from_millis(1_010));

    let next = start(&server, vec![get("c")]).await;
    peer.expect("get c\r\n").await;
    peer.say("DELETED\r\nVALUE c 0 4\r\nlate\r\nEND\r\n").await;
    peer.expect_nothing().await;
    assert!(!next.is_finished(), "a late answer is not this one's");
    peer.say("VALUE c 0 3\r\nnew\r\nEND\r\n").await;
    assert_eq!(finish(next).await, [value("new")]);
    let statistics = server.statistics();
    assert_eq!((statistics.timed_out_batches, statistics.late_answers, statistics.connects), (1, 1, 1));
}

/// Batches that waited for one slow write are composed together, however long each has waited.
#[tokio::test(start_paused = true)]
async fn a_line_shared_by_a_late_batch_and_one_in_time_serves_both() {
    let (network, mut peers) = FakeNetwork::with_pipe(1_000);
    let server = destination(&network, DestinationOptions { server_timeout_ms: 1_500, ..patient() });
    let large = "x".repeat(5_000);
    let slow = start(&server, vec![set("slow", &large)]).await;
    let mut peer = peers.next().await;
    advance(Duration::from_millis(100)).await;
    let early = start(&server, vec![get("a"), get("b")]).await;
    advance(Duration::from_millis(600)).await;
    let later = start(&server, vec![get("a"), get("b")]).await;
    peer.expect(&format!("set slow 0 0 5000\r\n{large}\r\nget a b a b\r\n")).await;
    peer.say("STORED\r\nVALUE b 0 1\r\n1\r\n").await;
    assert_eq!(finish(slow).await, [Ok(Reply::Stored)]);
    assert_eq!(finish(early).await, [Err(Failure::TimedOut), value("1")]);
    peer.say("VALUE b 0 1\r\n2\r\nVALUE a 0 1\r\n3\r\nVALUE a 0 1\r\n4\r\nEND\r\n").await;
    assert_eq!(finish(later).await, [value("4"), value("2")]);
}

#[tokio::test(start_paused = true)]
async fn too_many_late_answers_end_the_connection() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions { late_requests_max: 3, ..patient() });
    let mut peer = None;
    for _ in 0..2 {
        let sent = start(&server, vec![get("a"), get("b")]).await;
        let peer = match &mut peer {
            Some(peer) => peer,
            none => none.insert(peers.next().await),
        };
        peer.expect("get a b\r\n").await;
        assert_eq!(finish(sent).await, all(&Failure::TimedOut, 2));
    }
    peer.expect("one connection").expect_end().await;
    assert_eq!(server.statistics().connects, 1);
    let sent = start(&server, vec![get("a")]).await;
    let mut peer = peers.next().await;
    peer.expect("get a\r\n").await;
    peer.say("END\r\n").await;
    assert_eq!(finish(sent).await, [Ok(Reply::Miss)]);
}

#[tokio::test(start_paused = true)]
async fn late_answers_that_came_make_room_for_others() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions { late_requests_max: 3, ..patient() });
    let mut peer = None;
    for _ in 0..5 {
        let sent = start(&server, vec![get("a"), get("b")]).await;
        let peer = match &mut peer {
            Some(peer) => peer,
            none => none.insert(peers.next().await),
        };
        peer.expect("get a b\r\n").await;
        assert_eq!(finish(sent).await, all(&Failure::TimedOut, 2));
        peer.say("END\r\n").await;
        peer.expect_nothing().await;
    }
    let statistics = server.statistics();
    assert_eq!((statistics.connects, statistics.late_answers), (1, 5));
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_fails_what_was_sent_and_nothing_is_sent_twice() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, patient());
    let first = start(&server, vec![get("a"), delete("b")]).await;
    let second = start(&server, vec![set("c", "x")]).await;
    let mut peer = peers.next().await;
    peer.expect("get a\r\ndelete b\r\nset c 0 0 1\r\nx\r\n").await;
    peer.say("VALUE a 0 1\r\n1\r\nEND\r\nDELE").await;
    drop(peer);
    assert_eq!(finish(first).await, [value("1"), Err(Failure::ConnectionLost)]);
    assert_eq!(finish(second).await, all(&Failure::ConnectionLost, 1));
    assert!(peers.is_empty(), "nothing to send, nothing to connect for");

    let next = start(&server, vec![get("d")]).await;
    let mut peer = peers.next().await;
    peer.expect("get d\r\n").await;
    peer.say("END\r\n").await;
    assert_eq!(finish(next).await, [Ok(Reply::Miss)]);
    let statistics = server.statistics();
    assert_eq!((statistics.connects, statistics.connections_lost, statistics.outstanding), (2, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_connection_closed_while_idle_harms_nobody() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, patient());
    for _ in 0..3 {
        let sent = start(&server, vec![get("a")]).await;
        let mut peer = peers.next().await;
        peer.expect("get a\r\n").await;
        peer.say("END\r\n").await;
        assert_eq!(finish(sent).await, [Ok(Reply::Miss)]);
        drop(peer);
        tokio::task::yield_now().await;
    }
    assert_eq!(server.statistics().connections_lost, 0);
}

#[tokio::test(start_paused = true)]
async fn one_refused_connection_takes_the_server_out_until_a_probe_is_answered() {
    let (network, mut peers) = FakeNetwork::new();
    network.set(Mode::Refuse);
    let server = destination(&network, DestinationOptions::default());
    assert_eq!(server.send(vec![get("a"), get("b")]).await, all(&Failure::ConnectFailed, 2));
    assert!(server.is_tko());
    let begin = Instant::now();
    assert_eq!(server.send(vec![get("a")]).await, all(&Failure::Tko, 1));
    assert_eq!(begin.elapsed(), Duration::ZERO);

    advance(Duration::from_millis(1_501)).await;
    tokio::task::yield_now().await;
    assert_eq!(server.statistics().probes, 1, "after a second, and up to a half by chance");
    assert_eq!(server.send(vec![get("a")]).await, all(&Failure::Tko, 1));

    network.set(Mode::Accept);
    let mut peer = peers.next().await;
    assert_eq!(server.statistics().probes, 2, "the next probe comes by itself");
    peer.expect("version\r\n").await;
    assert!(server.is_tko());
    peer.say("VERSION 1.6.45\r\n").await;
    peer.expect_nothing().await;
    assert!(!server.is_tko());
    let sent = start(&server, vec![get("a")]).await;
    peer.expect("get a\r\n").await;
    peer.say("END\r\n").await;
    assert_eq!(finish(sent).await, [Ok(Reply::Miss)]);
    let statistics = server.statistics();
    assert_eq!((statistics.taken_out, statistics.refused_taken_out, statistics.outstanding), (1, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn connecting_has_a_time_limit_of_its_own() {
    let (network, _peers) = FakeNetwork::new();
    network.set(Mode::Silence);
    let server = destination(&network, DestinationOptions { connect_timeout_ms: Some(250), ..Default::default() });
    let begin = Instant::now();
    let first = start(&server, vec![get("a")]).await;
    let second = start(&server, vec![get("b")]).await;
    assert_eq!(finish(first).await, all(&Failure::ConnectTimedOut, 1));
    assert_eq!(finish(second).await, all(&Failure::ConnectTimedOut, 1));
    assert!(begin.elapsed() >= Duration::from_millis(250) && begin.elapsed() < Duration::from_millis(260));
    assert!(server.is_tko());
}

#[tokio::test(start_paused = true)]
async fn three_timeouts_in_a_row_take_the_server_out_and_end_its_connection() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions::default());
    let mut sent = Vec::new();
    for _ in 0..3 {
        sent.push(start(&server, vec![get("a")]).await);
        advance(Duration::from_millis(100)).await;
    }
    sent.push(start(&server, vec![delete("b")]).await);
    let mut peer = peers.next().await;
    peer.expect("get a\r\nget a\r\nget a\r\ndelete b\r\n").await;
    let last = sent.pop().expect("four were sent");
    for sent in sent {
        assert_eq!(finish(sent).await, all(&Failure::TimedOut, 1));
    }
    assert_eq!(finish(last).await, all(&Failure::ConnectionLost, 1), "in flight when the server was taken out");
    peer.expect_end().await;
    assert!(server.is_tko());

    let mut peer = peers.next().await;
    peer.expect("version\r\n").await;
    peer.say("ERROR\r\n").await;
    peer.expect_nothing().await;
    assert!(!server.is_tko(), "even an error line is a sign of life");
}

#[tokio::test(start_paused = true)]
async fn an_answer_between_timeouts_keeps_the_server_in() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions::default());
    let mut peer = None;
    for round in 0..3 {
        for _ in 0..2 {
            let sent = start(&server, vec![get("a")]).await;
            let peer = match &mut peer {
                Some(peer) => peer,
                none => none.insert(peers.next().await),
            };
            peer.expect("get a\r\n").await;
            assert_eq!(finish(sent).await, all(&Failure::TimedOut, 1), "round {round}");
        }
        let sent = start(&server, vec![get("a")]).await;
        let peer = peer.as_mut().expect("connected");
        peer.expect("get a\r\n").await;
        peer.say("END\r\nEND\r\nEND\r\n").await;
        assert_eq!(finish(sent).await, [Ok(Reply::Miss)]);
    }
    assert!(!server.is_tko());
}

#[tokio::test(start_paused = true)]
async fn more_than_the_limit_outstanding_is_busy_and_room_comes_back() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions { outstanding_requests_max: 3, ..patient() });
    let first = start(&server, vec![get("a"), get("b")]).await;
    assert_eq!(server.send(vec![get("c"), get("d")]).await, all(&Failure::Busy, 2));
    let second = start(&server, vec![get("e")]).await;
    assert_eq!(server.send(vec![get("f")]).await, all(&Failure::Busy, 1));
    assert_eq!(server.statistics().outstanding, 3);
    let mut peer = peers.next().await;
    peer.expect("get a b\r\nget e\r\n").await;
    peer.say("END\r\nEND\r\n").await;
    finish(first).await;
    finish(second).await;
    assert_eq!(server.statistics().busy, 3);
    let third = start(&server, vec![get("g"), get("h"), get("i")]).await;
    peer.expect("get g h i\r\n").await;
    peer.say("END\r\n").await;
    assert_eq!(finish(third).await, vec![Ok(Reply::Miss); 3]);
}

#[tokio::test(start_paused = true)]
async fn error_lines_are_answers() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions::default());
    let sent = start(&server, vec![lease_get("a"), lease_get("b"), delete("c"), get("d"), set("e", "x")]).await;
    let mut peer = peers.next().await;
    peer.expect("lease-get a b\r\ndelete c\r\nget d\r\nset e 0 0 1\r\nx\r\n").await;
    peer.say("ERROR\r\nCLIENT_ERROR no\r\nVALUE d 0 1\r\nD\r\nSERVER_ERROR out of memory\r\nSERVER_ERROR large\r\n")
        .await;
    let outcomes = finish(sent).await;
    assert_eq!(outcomes[..2], vec![Ok(Reply::Error(ErrorReply::Unknown)); 2]);
    assert_eq!(outcomes[2], Ok(Reply::Error(ErrorReply::Client(Bytes::from_static(b"no")))));
    assert_eq!(outcomes[3], value("D"));
    assert_eq!(outcomes[4], Ok(Reply::Error(ErrorReply::Server(Bytes::from_static(b"large")))));
    assert!(!server.is_tko());
    let sent = start(&server, vec![get("f")]).await;
    peer.expect("get f\r\n").await;
    peer.say("END\r\n").await;
    assert_eq!(finish(sent).await, [Ok(Reply::Miss)]);
}

/// memcached answers `ERROR` to a `lease-set` line, and then reads the value as a command: were the connection kept,
/// every later answer would be matched to the wrong request.
#[tokio::test(start_paused = true)]
async fn a_server_that_reads_a_value_as_a_command_loses_the_connection() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions::default());
    let value = Bytes::from_static(b"hello");
    let lease_set = request("a", Operation::LeaseSet { token: LeaseToken(7), flags: 0, exptime: 0, value });
    let sent = start(&server, vec![lease_set, get("b")]).await;
    let mut peer = peers.next().await;
    peer.expect("lease-set a 7 0 0 5\r\nhello\r\nget b\r\n").await;
    peer.say("ERROR\r\nERROR\r\nEND\r\n").await;
    let expected = [Ok(Reply::Error(ErrorReply::Unknown)), Err(Failure::ConnectionLost)];
    assert_eq!(finish(sent).await, expected);
    peer.expect_end().await;
    assert!(!server.is_tko());
}

#[tokio::test(start_paused = true)]
async fn answers_that_make_no_sense_end_the_connection() {
    for nonsense in ["HTTP/1.1 400 Bad Request\r\n", "DELETED\r\n", "VALUE a 0 99999999999\r\n", "VERSION 1\r\n"] {
        let (network, mut peers) = FakeNetwork::new();
        let server = destination(&network, patient());
        let sent = start(&server, vec![get("a")]).await;
        let mut peer = peers.next().await;
        peer.expect("get a\r\n").await;
        peer.say(nonsense).await;
        assert_eq!(finish(sent).await, all(&Failure::Malformed, 1), "{nonsense}");
        peer.expect_end().await;
        let again = start(&server, vec![get("a")]).await;
        let mut peer = peers.next().await;
        peer.expect("get a\r\n").await;
        peer.say("END\r\n").await;
        assert_eq!(finish(again).await, [Ok(Reply::Miss)]);
        peer.say("END\r\n").await;
        peer.expect_end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_quiet_meta_command_is_sent_aloud() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, patient());
    let meta = |key, verb, flags, value| request(key, Operation::Meta(MetaOperation { verb, flags, value }));
    let batch = vec![
        meta("a", MetaVerb::Get, Bytes::from_static(b"v q Oqq"), None),
        meta("b", MetaVerb::Set, Bytes::from_static(b"q"), Some(Bytes::from_static(b"xy"))),
        get("c"),
    ];
    let sent = start(&server, batch).await;
    let mut peer = peers.next().await;
    peer.expect("mg a v Oqq\r\nms b 2\r\nxy\r\nget c\r\n").await;
    peer.say("EN\r\nHD\r\nEND\r\n").await;
    let status = |status| Ok(Reply::Meta(MetaReply { status, flags: Bytes::new(), value: None }));
    assert_eq!(finish(sent).await, [status(MetaStatus::Miss), status(MetaStatus::Done), Ok(Reply::Miss)]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_goes_away_leaves_the_others_in_step() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, patient());
    let gone = start(&server, vec![get("a"), delete("b")]).await;
    gone.abort();
    let stays = start(&server, vec![get("a")]).await;
    let mut peer = peers.next().await;
    peer.expect("get a\r\ndelete b\r\nget a\r\n").await;
    peer.say("VALUE a 0 1\r\n1\r\nEND\r\nDELETED\r\nVALUE a 0 1\r\n2\r\nEND\r\n").await;
    assert_eq!(finish(stays).await, [value("2")]);
    assert_eq!(server.statistics().outstanding, 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_reads_holds_nobody_up_for_longer_than_the_timeout() {
    let (network, mut peers) = FakeNetwork::with_pipe(1_000);
    let server = destination(&network, patient());
    let large = "x".repeat(700_000);
    let mut sent = Vec::new();
    for _ in 0..4 {
        sent.push(start(&server, vec![set("a", &large), get("b")]).await);
    }
    let peer = peers.next().await;
    for sent in sent {
        assert_eq!(finish(sent).await, all(&Failure::TimedOut, 2));
    }
    assert_eq!(server.statistics().timed_out_batches, 4);
    drop(peer);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_destination_ends_its_connection() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, patient());
    let sent = start(&server, vec![get("a")]).await;
    let mut peer = peers.next().await;
    peer.expect("get a\r\n").await;
    peer.say("END\r\n").await;
    finish(sent).await;
    drop(server);
    peer.expect_end().await;
}

#[tokio::test(start_paused = true)]
async fn an_empty_batch_needs_no_connection() {
    let (network, peers) = FakeNetwork::new();
    let server = destination(&network, patient());
    assert_eq!(server.send(Vec::new()).await, []);
    tokio::task::yield_now().await;
    assert!(peers.is_empty());
}
