//! Stores whose CAS unique is requested, at servers that are sent the text protocol, with a paused clock.

use crate::fake::{FakeNetwork, await_outcomes, destination, get, request, set, start_send, start_together};
use bytes::Bytes;
use lookaside_client::DestinationOptions;
use lookaside_protocol::{Cas, ErrorReply, Operation, Reply, Request, StoreMode};
use lookaside_routing::{Failure, Protocol};

fn set_for_cas(key: &'static str, value: &'static str) -> Request<Bytes> {
    let value = Bytes::from_static(value.as_bytes());
    request(key, Operation::Store { mode: StoreMode::Set, flags: 0, exptime: 0, value, cas: true })
}

#[tokio::test(start_paused = true)]
async fn the_first_store_waits_for_the_version_of_the_server() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions::default());
    let batches = [vec![get("a"), set("b", "2")], vec![get("c"), set_for_cas("d", "three")], vec![get("e")]];
    let [first, second, third] = start_together(&server, batches).await;
    let mut peer = accepted.next().await;
    peer.expect("get a\r\nset b 0 0 1\r\n2\r\nversion\r\n").await;
    peer.expect_nothing().await;
    peer.send("END\r\nSTORED\r\n").await;
    assert_eq!(await_outcomes(first).await, [Ok(Reply::Miss), Ok(Reply::Stored)]);
    peer.expect_nothing().await;
    peer.send("VERSION 1.6.45\r\n").await;
    peer.expect("get c\r\nms d 5 F0 T0 c\r\nthree\r\nget e\r\n").await;
    peer.send("END\r\nHD c42\r\nEND\r\n").await;
    assert_eq!(await_outcomes(second).await, [Ok(Reply::Miss), Ok(Reply::StoredAs(Cas(42)))]);
    assert_eq!(await_outcomes(third).await, [Ok(Reply::Miss)]);
    let again = start_send(&server, vec![set_for_cas("d", "6"), set("b", "7")]).await;
    peer.expect("ms d 1 F0 T0 c\r\n6\r\nset b 0 0 1\r\n7\r\n").await;
    peer.send("NS\r\nSTORED\r\n").await;
    assert_eq!(await_outcomes(again).await, [Ok(Reply::NotStored), Ok(Reply::Stored)]);
}

/// Its value would be executed as a command.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_know_the_command_is_never_sent_it() {
    for version in ["VERSION 1.4.39\r\n", "VERSION 1.6.9\r\n", "ERROR\r\n", "VERSION mcrouter 1.0\r\n"] {
        let (network, mut accepted) = FakeNetwork::new();
        let server = destination(&network, DestinationOptions::default());
        let sent = start_send(&server, vec![set_for_cas("d", "flush_all"), get("e")]).await;
        let mut peer = accepted.next().await;
        peer.expect("version\r\n").await;
        peer.send(version).await;
        peer.expect("set d 0 0 9\r\nflush_all\r\nget e\r\n").await;
        peer.send("STORED\r\nEND\r\n").await;
        assert_eq!(await_outcomes(sent).await, [Ok(Reply::Stored), Ok(Reply::Miss)], "{version}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_of_the_meta_protocol_is_not_asked() {
    let (network, mut accepted) = FakeNetwork::new();
    let server =
        destination(&network, DestinationOptions { protocol: Protocol::Meta, ..DestinationOptions::default() });
    let sent = start_send(&server, vec![set_for_cas("d", "1")]).await;
    let mut peer = accepted.next().await;
    peer.expect("ms d 1 F0 T0 c\r\n1\r\n").await;
    peer.send("HD c7\r\n").await;
    assert_eq!(await_outcomes(sent).await, [Ok(Reply::StoredAs(Cas(7)))]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_reply_to_version_times_out_as_any_other() {
    let (network, mut accepted) = FakeNetwork::new();
    let server = destination(&network, DestinationOptions::default());
    let sent = start_send(&server, vec![set_for_cas("d", "1")]).await;
    let mut peer = accepted.next().await;
    peer.expect("version\r\n").await;
    assert_eq!(await_outcomes(sent).await, [Err(Failure::QueueTimedOut)]);
    let later = start_send(&server, vec![get("a")]).await;
    peer.expect("get a\r\n").await;
    peer.send("VERSION 1.6.45\r\nEND\r\n").await;
    assert_eq!(await_outcomes(later).await, [Ok(Reply::Miss)]);
    let stored = start_send(&server, vec![set_for_cas("d", "1")]).await;
    peer.expect("ms d 1 F0 T0 c\r\n1\r\n").await;
    peer.send("SERVER_ERROR out of memory\r\n").await;
    let refused = Reply::Error(ErrorReply::Server(Bytes::from_static(b"out of memory")));
    assert_eq!(await_outcomes(stored).await, [Ok(refused)]);
}
