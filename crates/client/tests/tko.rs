//! Several destinations with one server, as the threads of a router have them: what one finds out holds for all.

mod fake;

use fake::{FakeNetwork, Mode, delete, destination, finish, get, start};
use lookaside_client::{DestinationOptions, TcpDestination, TkoTrackers};
use lookaside_protocol::Reply;
use lookaside_routing::{Destination, Failure};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, advance};

fn two(network: &Arc<FakeNetwork>) -> [Arc<TcpDestination>; 2] {
    let options = DestinationOptions { tko_trackers: Some(TkoTrackers::new()), ..DestinationOptions::default() };
    [1, 2].map(|seed| destination(network, DestinationOptions { seed, ..options.clone() }))
}

/// After an outage one thread once served what the server still held, while another refused deletes for as long as
/// its own next probe was away.
#[tokio::test(start_paused = true)]
async fn one_takes_the_server_out_and_brings_it_back_for_all() {
    let (network, mut peers) = FakeNetwork::new();
    let [first, second] = two(&network);
    network.set(Mode::Refuse);
    assert_eq!(first.send(vec![get("a")]).await, [Err(Failure::ConnectFailed)]);
    let begin = Instant::now();
    assert!(second.is_tko() && second.is_taken_out_hard());
    assert_eq!(second.send(vec![delete("a")]).await, [Err(Failure::Tko)]);
    assert_eq!(begin.elapsed(), Duration::ZERO, "nobody waits for what another knows");

    advance(Duration::from_secs(20)).await;
    network.set(Mode::Accept);
    let mut probed = peers.next().await;
    probed.expect("version\r\n").await;
    assert!(second.is_tko());
    probed.say("VERSION 1\r\n").await;
    probed.expect_nothing().await;
    assert!(!first.is_tko() && !second.is_tko());
    let deleted = start(&second, vec![delete("a")]).await;
    let mut peer = peers.next().await;
    peer.expect("delete a\r\n").await;
    peer.say("DELETED\r\n").await;
    assert_eq!(finish(deleted).await, [Ok(Reply::Deleted)]);
    assert_eq!(second.statistics().probes, 0, "one of them probes");
    assert_eq!((first.statistics().taken_out, second.statistics().taken_out), (1, 0));
}

/// A connection from before a partition may stay silent after it: had the second destination kept it, its timeouts
/// would take the server out again for all.
#[tokio::test(start_paused = true)]
async fn a_connection_from_before_the_removal_is_not_used_after_it() {
    let (network, mut peers) = FakeNetwork::new();
    let [first, second] = two(&network);
    let sent = start(&second, vec![get("a")]).await;
    let mut old = peers.next().await;
    old.expect("get a\r\n").await;
    old.say("END\r\n").await;
    assert_eq!(finish(sent).await, [Ok(Reply::Miss)]);
    // Three batches are on their way when the network is cut, and will time out: old evidence.
    let mut lost = Vec::new();
    for _ in 0..3 {
        lost.push(start(&second, vec![get("b")]).await);
    }
    network.set(Mode::Refuse);
    assert_eq!(first.send(vec![get("a")]).await, [Err(Failure::ConnectFailed)]);
    network.set(Mode::Accept);
    for sent in lost {
        assert_eq!(finish(sent).await, [Err(Failure::TimedOut)]);
    }
    let mut probed = peers.next().await;
    probed.expect("version\r\n").await;
    probed.say("VERSION 1\r\n").await;
    probed.expect_nothing().await;
    assert!(!first.is_tko(), "the old timeouts did not take it out again");
    let sent = start(&second, vec![get("c")]).await;
    let mut new = peers.next().await;
    new.expect("get c\r\n").await;
    new.say("END\r\n").await;
    assert_eq!(finish(sent).await, [Ok(Reply::Miss)]);
    old.expect("get b\r\nget b\r\nget b\r\n").await;
    old.expect_end().await;
}

/// The connection is idle during the outage, so only the next batch finds out that it is from before.
#[tokio::test(start_paused = true)]
async fn an_idle_connection_from_before_the_removal_is_replaced() {
    let (network, mut peers) = FakeNetwork::new();
    let [first, second] = two(&network);
    let sent = start(&second, vec![get("a")]).await;
    let mut old = peers.next().await;
    old.expect("get a\r\n").await;
    old.say("END\r\n").await;
    finish(sent).await;
    network.set(Mode::Refuse);
    assert_eq!(first.send(vec![get("a")]).await, [Err(Failure::ConnectFailed)]);
    network.set(Mode::Accept);
    let mut probed = peers.next().await;
    probed.expect("version\r\n").await;
    probed.say("VERSION 1\r\n").await;
    probed.expect_nothing().await;
    let sent = start(&second, vec![get("b")]).await;
    let mut new = peers.next().await;
    old.expect_end().await;
    new.expect("get b\r\n").await;
    new.say("END\r\n").await;
    assert_eq!(finish(sent).await, [Ok(Reply::Miss)]);
}

#[tokio::test(start_paused = true)]
async fn a_server_is_not_out_for_ever_when_the_one_who_probes_is_dropped() {
    let (network, mut peers) = FakeNetwork::new();
    let [first, second] = two(&network);
    network.set(Mode::Refuse);
    assert_eq!(first.send(vec![get("a")]).await, [Err(Failure::ConnectFailed)]);
    drop(first);
    tokio::task::yield_now().await;
    assert_eq!(second.send(vec![get("a")]).await, [Err(Failure::ConnectFailed)], "it finds out for itself");
    assert!(second.is_tko());
    network.set(Mode::Accept);
    let mut probed = peers.next().await;
    probed.expect("version\r\n").await;
    assert_eq!(second.statistics().probes, 1);
}
