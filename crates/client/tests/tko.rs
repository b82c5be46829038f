//! Several destinations with one server, as in the threads of a router: the TKO state of one holds for all.

use crate::fake::{FakeNetwork, Mode, await_outcomes, delete, destination, get, start_send};
use lookaside_client::{ConnectionState, DestinationOptions, RetiredCounts, TcpDestination, TkoTrackers};
use lookaside_protocol::Reply;
use lookaside_routing::{Destination, Failure, TkoReason};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, advance};

fn two_destinations(network: &Arc<FakeNetwork>) -> [Arc<TcpDestination>; 2] {
    let options = DestinationOptions { tko_trackers: Some(TkoTrackers::new()), ..DestinationOptions::default() };
    [1, 2].map(|seed| destination(network, DestinationOptions { seed, ..options.clone() }))
}

/// After an outage one thread once read the server while another still refused deletes until its own next probe:
/// stale values were served.
#[tokio::test(start_paused = true)]
async fn one_destination_marks_and_clears_tko_for_all() {
    let (network, mut accepted) = FakeNetwork::new();
    let [first, second] = two_destinations(&network);
    network.set(Mode::Refuse);
    assert_eq!(first.send(vec![get("a")]).await, [Err(Failure::ConnectFailed)]);
    let start = Instant::now();
    assert!(second.is_tko() && second.is_hard_tko());
    assert_eq!(second.send(vec![delete("a")]).await, [Err(Failure::Tko(TkoReason::ConnectFailed))]);
    assert_eq!(start.elapsed(), Duration::ZERO, "the second destination does not wait");

    advance(Duration::from_secs(20)).await;
    network.set(Mode::Accept);
    let mut probe = accepted.next().await;
    probe.expect("version\r\n").await;
    assert!(second.is_tko());
    probe.send("VERSION 1\r\n").await;
    probe.expect_nothing().await;
    assert!(!first.is_tko() && !second.is_tko());
    let deleted = start_send(&second, vec![delete("a")]).await;
    let mut peer = accepted.next().await;
    peer.expect("delete a\r\n").await;
    peer.send("DELETED\r\n").await;
    assert_eq!(await_outcomes(deleted).await, [Ok(Reply::Deleted)]);
    assert_eq!(second.statistics().probes, 0, "only the first probes");
    assert_eq!((first.statistics().tko_marks, second.statistics().tko_marks), (1, 0));
}

/// A connection from before a partition may stay silent after it. If the second destination kept it, its timeouts
/// would make the server TKO again for all.
#[tokio::test(start_paused = true)]
async fn connection_from_before_a_tko_is_not_used_after_it() {
    let (network, mut accepted) = FakeNetwork::new();
    let [first, second] = two_destinations(&network);
    let sent = start_send(&second, vec![get("a")]).await;
    let mut old = accepted.next().await;
    old.expect("get a\r\n").await;
    old.send("END\r\n").await;
    assert_eq!(await_outcomes(sent).await, [Ok(Reply::Miss)]);
    // Three batches are in flight when the network is cut, and will time out: old evidence.
    let mut lost = Vec::new();
    for _ in 0..3 {
        lost.push(start_send(&second, vec![get("b")]).await);
    }
    network.set(Mode::Refuse);
    assert_eq!(first.send(vec![get("a")]).await, [Err(Failure::ConnectFailed)]);
    network.set(Mode::Accept);
    for sent in lost {
        assert_eq!(await_outcomes(sent).await, [Err(Failure::TimedOut)]);
    }
    let mut probe = accepted.next().await;
    probe.expect("version\r\n").await;
    probe.send("VERSION 1\r\n").await;
    probe.expect_nothing().await;
    assert!(!first.is_tko(), "the old timeouts did not mark it again");
    let sent = start_send(&second, vec![get("c")]).await;
    let mut new = accepted.next().await;
    new.expect("get c\r\n").await;
    new.send("END\r\n").await;
    assert_eq!(await_outcomes(sent).await, [Ok(Reply::Miss)]);
    old.expect("get b\r\nget b\r\nget b\r\n").await;
    old.expect_end().await;
}

/// The connection is idle during the outage, so that only the next batch finds that it is old.
#[tokio::test(start_paused = true)]
async fn idle_connection_from_before_a_tko_is_replaced() {
    let (network, mut accepted) = FakeNetwork::new();
    let [first, second] = two_destinations(&network);
    let sent = start_send(&second, vec![get("a")]).await;
    let mut old = accepted.next().await;
    old.expect("get a\r\n").await;
    old.send("END\r\n").await;
    await_outcomes(sent).await;
    network.set(Mode::Refuse);
    assert_eq!(first.send(vec![get("a")]).await, [Err(Failure::ConnectFailed)]);
    network.set(Mode::Accept);
    let mut probe = accepted.next().await;
    probe.expect("version\r\n").await;
    probe.send("VERSION 1\r\n").await;
    probe.expect_nothing().await;
    let sent = start_send(&second, vec![get("b")]).await;
    let mut new = accepted.next().await;
    old.expect_end().await;
    new.expect("get b\r\n").await;
    new.send("END\r\n").await;
    assert_eq!(await_outcomes(sent).await, [Ok(Reply::Miss)]);
}

/// Connections once counted as ended while their server was TKO, and as open again after it: a counter that fell.
#[tokio::test(start_paused = true)]
async fn open_connection_to_a_tko_server_does_not_count_as_ended() {
    let (network, mut accepted) = FakeNetwork::new();
    let retired = Arc::new(RetiredCounts::default());
    let options = DestinationOptions {
        tko_trackers: Some(TkoTrackers::new()),
        retired: Some(retired.clone()),
        ..DestinationOptions::default()
    };
    let [first, second] = [1, 2].map(|seed| destination(&network, DestinationOptions { seed, ..options.clone() }));
    let counts = |server: &TcpDestination| (server.statistics().connects, server.statistics().disconnects);
    let sent = start_send(&second, vec![get("a")]).await;
    let mut old = accepted.next().await;
    old.expect("get a\r\n").await;
    old.send("END\r\n").await;
    await_outcomes(sent).await;
    network.set(Mode::Refuse);
    assert_eq!(first.send(vec![get("a")]).await, [Err(Failure::ConnectFailed)]);
    assert_eq!(second.report().connection, ConnectionState::Down);
    assert_eq!((counts(&first), counts(&second)), ((0, 0), (1, 0)), "it is open");
    network.set(Mode::Accept);
    let probe = accepted.next().await;
    drop(probe);
    let mut probe = accepted.next().await;
    assert_eq!(counts(&first), (2, 1), "a probe that is not answered has a connection, too");
    probe.expect("version\r\n").await;
    probe.send("VERSION 1\r\n").await;
    probe.expect_nothing().await;
    let sent = start_send(&second, vec![get("b")]).await;
    let mut new = accepted.next().await;
    old.expect_end().await;
    new.expect("get b\r\n").await;
    new.send("END\r\n").await;
    await_outcomes(sent).await;
    assert_eq!((counts(&first), counts(&second)), ((2, 1), (2, 1)));
    drop((first, second));
    probe.expect_end().await;
    new.expect_end().await;
    assert_eq!((retired.connects.value(), retired.disconnects.value()), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn server_is_not_tko_for_ever_if_the_destination_that_probes_is_dropped() {
    let (network, mut accepted) = FakeNetwork::new();
    let [first, second] = two_destinations(&network);
    network.set(Mode::Refuse);
    assert_eq!(first.send(vec![get("a")]).await, [Err(Failure::ConnectFailed)]);
    drop(first);
    tokio::task::yield_now().await;
    assert_eq!(second.send(vec![get("a")]).await, [Err(Failure::ConnectFailed)], "it tries to connect itself");
    assert!(second.is_tko());
    network.set(Mode::Accept);
    let mut probe = accepted.next().await;
    probe.expect("version\r\n").await;
    assert_eq!(second.statistics().probes, 1);
}

/// With a timeout of 5 s, a router that lost one reply to a probe stayed out of use for 5 s more.
#[tokio::test(start_paused = true)]
async fn probe_without_a_reply_is_given_up_after_a_second_even_if_batches_may_wait_longer() {
    let (network, mut accepted) = FakeNetwork::new();
    let server =
        destination(&network, DestinationOptions { server_timeout_ms: 5_000, ..DestinationOptions::default() });
    network.set(Mode::Refuse);
    assert_eq!(server.send(vec![get("a")]).await, [Err(Failure::ConnectFailed)]);
    network.set(Mode::Accept);
    let mut silent = accepted.next().await;
    silent.expect("version\r\n").await;
    let start = Instant::now();
    silent.expect_end().await;
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}
