//! How a server is reached before anybody asks for it, where its name leads, and when it has just come back.

mod fake;

use fake::{FakeNetwork, Mode, delete, destination, finish, get, start};
use lookaside_client::{DestinationOptions, TkoTrackers};
use lookaside_protocol::Reply;
use lookaside_routing::{Destination, Failure};
use std::time::Duration;
use tokio::time::{Instant, advance, sleep, timeout};

const RESOLVE_MS: u64 = 1_000;
/// More than one interval, whatever the jitter.
const RESOLVED: Duration = Duration::from_millis(RESOLVE_MS * 2);

fn ahead() -> DestinationOptions {
    DestinationOptions { connect_eagerly: true, resolve_interval_ms: Some(RESOLVE_MS), ..DestinationOptions::default() }
}

fn named() -> DestinationOptions {
    DestinationOptions { connect_eagerly: false, ..ahead() }
}

#[tokio::test(start_paused = true)]
async fn one_that_connects_ahead_is_connected_before_anybody_asks() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, ahead());
    server.ready().await;
    assert_eq!(server.statistics().connects, 1);
    let sent = start(&server, vec![get("a")]).await;
    let mut peer = peers.next().await;
    peer.expect("get a\r\n").await;
    peer.say("END\r\n").await;
    assert_eq!(finish(sent).await, [Ok(Reply::Miss)]);
    drop(peer);
    let begun = Instant::now();
    peers.next().await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "a server that closes every connection is not hammered");
    assert_eq!(server.statistics().connects, 2);
}

#[tokio::test(start_paused = true)]
async fn one_that_connects_ahead_knows_of_a_dead_server_before_anybody_asks() {
    let (network, mut peers) = FakeNetwork::new();
    network.set(Mode::Refuse);
    let tko_trackers = Some(TkoTrackers::new());
    let [first, second] = [1, 2].map(|seed| {
        let options = DestinationOptions { tko_trackers: tko_trackers.clone(), seed, ..ahead() };
        destination(&network, options)
    });
    first.ready().await;
    second.ready().await;
    assert!(first.is_taken_out_hard() && second.is_taken_out_hard());
    assert_eq!(first.send(vec![get("a")]).await, [Err(Failure::Tko)]);
    network.set(Mode::Accept);
    let mut probed = peers.next().await;
    probed.expect("version\r\n").await;
    probed.say("VERSION 1\r\n").await;
    peers.next().await;
    assert_eq!(first.statistics().connects + second.statistics().connects, 2, "the other one comes by itself, too");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_believe_who_we_are_is_taken_out_until_it_does() {
    let (network, mut peers) = FakeNetwork::new();
    network.set(Mode::Alert);
    for options in [ahead(), named()] {
        let server = destination(&network, options);
        server.send(vec![get("a")]).await.remove(0).expect_err("the connection ends before an answer");
        assert!(server.is_taken_out_hard());
        peers.next().await;
    }
    let server = destination(&network, named());
    server.send(vec![get("a")]).await.remove(0).expect_err("the connection ends before an answer");
    peers.next().await;
    peers.next().await;
    assert!(server.is_taken_out_hard(), "a probe that ends so is no answer");
    network.set(Mode::Accept);
    let mut probed = peers.next().await;
    probed.expect("version\r\n").await;
    probed.say("VERSION 1\r\n").await;
    probed.expect_nothing().await;
    assert!(!server.is_tko());
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_waited_for_no_longer_than_a_connection_may_take() {
    let (network, _peers) = FakeNetwork::new();
    network.set(Mode::Silence);
    let server = destination(&network, DestinationOptions { connect_timeout_ms: Some(300), ..ahead() });
    let begun = Instant::now();
    server.ready().await;
    assert_eq!((begun.elapsed(), server.is_tko()), (Duration::from_millis(300), true));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_moves_is_followed_and_no_request_fails_for_it() {
    let (network, mut peers) = FakeNetwork::new();
    network.lead_to(Some(1));
    let server = destination(&network, named());
    let first = start(&server, vec![get("a")]).await;
    let mut old = peers.next().await;
    old.expect("get a\r\n").await;
    old.say("END\r\n").await;
    assert_eq!(finish(first).await, [Ok(Reply::Miss)]);
    network.lead_to(Some(2));
    let mut new = timeout(RESOLVED, peers.next()).await.expect("it is looked up while it is used");
    new.expect("version\r\n").await;
    let second = start(&server, vec![get("b")]).await;
    old.expect("get b\r\n").await;
    new.say("VERSION 1\r\n").await;
    new.expect_nothing().await;
    let third = start(&server, vec![delete("c")]).await;
    new.expect_nothing().await;
    old.say("END\r\n").await;
    assert_eq!(finish(second).await, [Ok(Reply::Miss)]);
    new.expect("delete c\r\n").await;
    new.say("NOT_FOUND\r\n").await;
    assert_eq!(finish(third).await, [Ok(Reply::NotFound)]);
    old.expect_end().await;
    let statistics = server.statistics();
    assert_eq!((statistics.relocations, statistics.connections_lost, statistics.taken_out), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_stays_or_cannot_be_resolved_or_leads_to_nobody_changes_nothing() {
    let (network, mut peers) = FakeNetwork::new();
    network.lead_to(Some(1));
    let server = destination(&network, named());
    let sent = start(&server, vec![get("a")]).await;
    let mut peer = peers.next().await;
    peer.expect("get a\r\n").await;
    peer.say("END\r\n").await;
    finish(sent).await.remove(0).expect("answered");
    sleep(RESOLVED).await;
    network.lead_to(None);
    sleep(RESOLVED).await;
    network.lead_to(Some(2));
    network.set(Mode::Refuse);
    sleep(RESOLVED).await;
    let sent = start(&server, vec![get("b")]).await;
    peer.expect("get b\r\n").await;
    peer.say("END\r\n").await;
    assert_eq!(finish(sent).await, [Ok(Reply::Miss)]);
    let statistics = server.statistics();
    assert_eq!((statistics.connects, statistics.relocations, statistics.taken_out), (1, 0, 0));
    assert!(statistics.connect_failures > 0 && peers.is_empty(), "it tried");
}

/// How many keys, and in how many lines, have been sent to a peer that has answered none of them.
async fn sent_to(peer: &mut fake::Peer) -> (usize, usize) {
    let mut lines = vec![0; 64 << 10];
    let read = timeout(Duration::from_micros(1), tokio::io::AsyncReadExt::read(&mut peer.0, &mut lines)).await;
    let read = read.map_or(0, |read| read.expect("pipes do not fail"));
    let count = |wanted| lines[..read].iter().filter(|&&byte| byte == wanted).count();
    (count(b'k'), count(b'\n'))
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_back_gets_its_requests_by_and_by() {
    const REQUESTS: usize = 500;
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions::default());
    network.set(Mode::Refuse);
    assert_eq!(server.send(vec![get("a")]).await, [Err(Failure::ConnectFailed)]);
    network.set(Mode::Accept);
    advance(Duration::from_secs(2)).await;
    let mut peer = peers.next().await;
    peer.expect("version\r\n").await;
    peer.say("VERSION 1\r\n").await;
    peer.expect_nothing().await;
    let mut waiting = Vec::new();
    for _ in 0..REQUESTS {
        waiting.push(start(&server, vec![get("k")]).await);
    }
    let mut rounds = Vec::new();
    while rounds.iter().sum::<usize>() < REQUESTS {
        let (sent, lines) = sent_to(&mut peer).await;
        assert!(sent > 0, "after {rounds:?} nothing more comes");
        rounds.push(sent);
        peer.say(&"END\r\n".repeat(lines)).await;
    }
    assert_eq!(rounds[..3], [32, 64, 128], "{rounds:?}");
    for sent in waiting {
        assert_eq!(finish(sent).await, [Ok(Reply::Miss)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_never_out_gets_all_at_once() {
    let (network, mut peers) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions::default());
    let mut waiting = Vec::new();
    for _ in 0..300 {
        waiting.push(start(&server, vec![get("k")]).await);
    }
    let mut peer = peers.next().await;
    assert_eq!(sent_to(&mut peer).await.0, 300);
}
