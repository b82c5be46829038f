//! Eager connecting, host names that lead to other addresses, and slow start after a TKO.

use crate::fake::{self, FakeNetwork, Mode, await_outcomes, delete, destination, get, start_send};
use lookaside_client::{DestinationOptions, TkoTrackers};
use lookaside_protocol::Reply;
use lookaside_routing::{Destination, Failure, TkoReason};
use std::time::Duration;
use tokio::time::{Instant, advance, sleep, timeout};

const RESOLVE_MS: u64 = 1_000;
/// More than one interval, whatever the jitter.
const RESOLVED: Duration = Duration::from_millis(RESOLVE_MS * 2);

fn eager() -> DestinationOptions {
    DestinationOptions { connect_eagerly: true, resolve_interval_ms: Some(RESOLVE_MS), ..DestinationOptions::default() }
}

fn lazy() -> DestinationOptions {
    DestinationOptions { connect_eagerly: false, ..eager() }
}

#[tokio::test(start_paused = true)]
async fn eager_destination_connects_before_the_first_request() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, eager());
    server.ready().await;
    assert_eq!(server.statistics().connects, 1);
    let sent = start_send(&server, vec![get("a")]).await;
    let mut peer = accepted.next().await;
    peer.expect("get a\r\n").await;
    peer.send("END\r\n").await;
    assert_eq!(await_outcomes(sent).await, [Ok(Reply::Miss)]);
    drop(peer);
    let start = Instant::now();
    accepted.next().await;
    assert!(start.elapsed() >= Duration::from_secs(1), "connections that are closed at once are not retried at once");
    assert_eq!(server.statistics().connects, 2);
}

#[tokio::test(start_paused = true)]
async fn eager_destination_finds_a_dead_server_before_the_first_request() {
    let (network, mut accepted) = FakeNetwork::new();
    network.set(Mode::Refuse);
    let tko_trackers = Some(TkoTrackers::new());
    let [first, second] = [1, 2].map(|seed| {
        let options = DestinationOptions { tko_trackers: tko_trackers.clone(), seed, ..eager() };
        destination(&network, options)
    });
    first.ready().await;
    second.ready().await;
    assert!(first.is_hard_tko() && second.is_hard_tko());
    assert_eq!(first.send(vec![get("a")]).await, [Err(Failure::Tko(TkoReason::ConnectFailed))]);
    network.set(Mode::Accept);
    let mut probe = accepted.next().await;
    probe.expect("version\r\n").await;
    probe.send("VERSION 1\r\n").await;
    accepted.next().await;
    assert_eq!(first.statistics().connects + second.statistics().connects, 2, "the other destination connects as well");
}

#[tokio::test(start_paused = true)]
async fn server_that_rejects_our_certificate_is_tko_until_it_accepts_it() {
    let (network, mut accepted) = FakeNetwork::new();
    network.set(Mode::Alert);
    for options in [eager(), lazy()] {
        let server = destination(&network, options);
        server.send(vec![get("a")]).await.remove(0).expect_err("the connection ends before a reply");
        assert!(server.is_hard_tko());
        accepted.next().await;
    }
    let server = destination(&network, lazy());
    server.send(vec![get("a")]).await.remove(0).expect_err("the connection ends before a reply");
    accepted.next().await;
    accepted.next().await;
    assert!(server.is_hard_tko(), "a probe that ends so is not answered");
    network.set(Mode::Accept);
    let mut probe = accepted.next().await;
    probe.expect("version\r\n").await;
    probe.send("VERSION 1\r\n").await;
    probe.expect_nothing().await;
    assert!(!server.is_tko());
}

#[tokio::test(start_paused = true)]
async fn ready_waits_no_longer_than_the_connect_timeout() {
    let (network, _peers) = FakeNetwork::new();
    network.set(Mode::Silence);
    let server = destination(&network, DestinationOptions { connect_timeout_ms: Some(300), ..eager() });
    let start = Instant::now();
    server.ready().await;
    assert_eq!((start.elapsed(), server.is_tko()), (Duration::from_millis(300), true));
}

#[tokio::test(start_paused = true)]
async fn name_that_leads_to_another_address_is_followed_without_a_failed_request() {
    let (network, mut accepted) = FakeNetwork::new();
    network.resolve_to(Some(1));
    let server = destination(&network, lazy());
    let first = start_send(&server, vec![get("a")]).await;
    let mut old = accepted.next().await;
    old.expect("get a\r\n").await;
    old.send("END\r\n").await;
    assert_eq!(await_outcomes(first).await, [Ok(Reply::Miss)]);
    network.resolve_to(Some(2));
    let mut new = timeout(RESOLVED, accepted.next()).await.expect("the name is resolved while it is in use");
    new.expect("version\r\n").await;
    let second = start_send(&server, vec![get("b")]).await;
    old.expect("get b\r\n").await;
    new.send("VERSION 1\r\n").await;
    new.expect_nothing().await;
    let third = start_send(&server, vec![delete("c")]).await;
    new.expect_nothing().await;
    old.send("END\r\n").await;
    assert_eq!(await_outcomes(second).await, [Ok(Reply::Miss)]);
    new.expect("delete c\r\n").await;
    new.send("NOT_FOUND\r\n").await;
    assert_eq!(await_outcomes(third).await, [Ok(Reply::NotFound)]);
    old.expect_end().await;
    let statistics = server.statistics();
    assert_eq!((statistics.relocations, statistics.connections_lost, statistics.tko_marks), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn connection_stays_if_the_name_is_unchanged_or_unresolved_or_its_address_does_not_answer() {
    let (network, mut accepted) = FakeNetwork::new();
    network.resolve_to(Some(1));
    let server = destination(&network, lazy());
    let sent = start_send(&server, vec![get("a")]).await;
    let mut peer = accepted.next().await;
    peer.expect("get a\r\n").await;
    peer.send("END\r\n").await;
    await_outcomes(sent).await.remove(0).expect("answered");
    sleep(RESOLVED).await;
    network.resolve_to(None);
    sleep(RESOLVED).await;
    network.resolve_to(Some(2));
    network.set(Mode::Refuse);
    sleep(RESOLVED).await;
    let sent = start_send(&server, vec![get("b")]).await;
    peer.expect("get b\r\n").await;
    peer.send("END\r\n").await;
    assert_eq!(await_outcomes(sent).await, [Ok(Reply::Miss)]);
    let statistics = server.statistics();
    assert_eq!((statistics.connects, statistics.relocations, statistics.tko_marks), (1, 0, 0));
    assert!(statistics.connect_failures > 0 && accepted.is_empty(), "it tried");
}

/// The keys, and the lines, that have been sent and not answered.
async fn sent_to(peer: &mut fake::AcceptedStream) -> (usize, usize) {
    let mut lines = vec![0; 64 << 10];
    let read = timeout(Duration::from_micros(1), tokio::io::AsyncReadExt::read(&mut peer.0, &mut lines)).await;
    let read = read.map_or(0, |read| read.expect("pipes do not fail"));
    let count = |wanted| lines[..read].iter().filter(|&&byte| byte == wanted).count();
    (count(b'k'), count(b'\n'))
}

#[tokio::test(start_paused = true)]
async fn recovered_server_gets_its_requests_with_slow_start() {
    const REQUESTS: usize = 500;
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions::default());
    network.set(Mode::Refuse);
    assert_eq!(server.send(vec![get("a")]).await, [Err(Failure::ConnectFailed)]);
    network.set(Mode::Accept);
    advance(Duration::from_secs(2)).await;
    let mut peer = accepted.next().await;
    peer.expect("version\r\n").await;
    peer.send("VERSION 1\r\n").await;
    peer.expect_nothing().await;
    let mut waiting = Vec::new();
    for _ in 0..REQUESTS {
        waiting.push(start_send(&server, vec![get("k")]).await);
    }
    let mut rounds = Vec::new();
    while rounds.iter().sum::<usize>() < REQUESTS {
        let (sent, lines) = sent_to(&mut peer).await;
        assert!(sent > 0, "no more requests after {rounds:?}");
        rounds.push(sent);
        peer.send(&"END\r\n".repeat(lines)).await;
    }
    assert_eq!(rounds[..3], [32, 64, 128], "{rounds:?}");
    for sent in waiting {
        assert_eq!(await_outcomes(sent).await, [Ok(Reply::Miss)]);
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_was_never_tko_gets_all_requests_at_once() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions::default());
    let mut waiting = Vec::new();
    for _ in 0..300 {
        waiting.push(start_send(&server, vec![get("k")]).await);
    }
    let mut peer = accepted.next().await;
    assert_eq!(sent_to(&mut peer).await.0, 300);
}
