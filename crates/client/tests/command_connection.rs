//! One connection for a few commands: replies in order, a deadline over all, bounded memory.

use crate::fake::FakeNetwork;
use lookaside_client::{CommandConnection, CommandError};
use lookaside_protocol::{
    ErrorReply, Reply,
    text::{Limits, ReplyPart},
};
use lookaside_routing::Address;
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

const LIMITS: Limits = Limits { value_bytes_max: 10, line_bytes_max: 50 };
const TIMEOUT: Duration = Duration::from_secs(1);

async fn connect(network: &Arc<FakeNetwork>) -> Result<CommandConnection, CommandError> {
    CommandConnection::connect(&**network, &Address("fake:11211".into()), LIMITS, TIMEOUT).await
}

#[tokio::test(start_paused = true)]
async fn replies_are_read_in_order_however_their_bytes_are_cut() {
    let (network, mut accepted) = FakeNetwork::new();
    let mut connection = connect(&network).await.expect("connected");
    let mut peer = accepted.next().await;
    connection.send(b"get a b\r\nflush_all\r\nversion\r\n").await.expect("sent");
    peer.expect("get a b\r\nflush_all\r\nversion\r\n").await;
    let reply = "VALUE a 0 1\r\n1\r\nVALUE b 0 2\r\n22\r\nEND\r\nOK\r\nVERSION 1\r\n";
    let server = tokio::spawn(async move {
        for at in 0..reply.len() {
            peer.send(&reply[at..=at]).await;
            sleep(Duration::from_millis(1)).await;
        }
        peer
    });
    let mut items = Vec::new();
    let on_part = |part: ReplyPart<'_>| match part {
        ReplyPart::Item { key, reply: Reply::Value { value, .. } } => items.push((key.to_vec(), value.to_vec())),
        other => panic!("not an item: {other:?}"),
    };
    connection.read_until_end(on_part).await.expect("a reply");
    assert_eq!(items, [(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"22".to_vec())]);
    assert_eq!(connection.read_part().await.expect("a reply"), ReplyPart::Reply(Reply::Ok));
    assert_eq!(connection.read_part().await.expect("a reply"), ReplyPart::Version(b"1"));
    let _peer = server.await.expect("all was sent");
    assert!(connection.into_stream().is_some(), "every byte was part of a reply");
}

#[tokio::test(start_paused = true)]
async fn errors_and_other_replies_are_no_success() {
    for (reply, text) in [
        ("ERROR\r\n", "ERROR"),
        ("CLIENT_ERROR flush_all not allowed\r\n", "flush_all not allowed"),
        ("STORED\r\n", "unexpected reply: Reply(Stored)"),
        ("what?\r\n", "malformed reply: "),
        ("OK but later\r\n", "malformed reply: "),
        ("OK\r\nERROR\r\n", "malformed reply: more bytes after OK"),
    ] {
        let (network, mut accepted) = FakeNetwork::new();
        let mut connection = connect(&network).await.expect("connected");
        let mut peer = accepted.next().await;
        peer.send(reply).await;
        let error = connection.flush_all(None).await.expect_err(reply).to_string();
        assert!(error.starts_with(text), "{reply:?}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn error_in_place_of_items_is_the_whole_reply() {
    let (network, mut accepted) = FakeNetwork::new();
    let mut connection = connect(&network).await.expect("connected");
    let mut peer = accepted.next().await;
    peer.send("SERVER_ERROR out of memory\r\nERROR\r\n").await;
    let error = connection.read_until_end(|_| panic!("no item")).await.expect_err("an error");
    assert!(matches!(error, CommandError::Refused(message) if message == "out of memory"));
    let part = connection.read_part().await.expect("the next reply");
    assert_eq!(part, ReplyPart::Reply(Reply::Error(ErrorReply::Unknown)));
}

#[tokio::test(start_paused = true)]
async fn one_deadline_holds_for_all_commands() {
    let (network, mut accepted) = FakeNetwork::new();
    let start_send = Instant::now();
    let mut connection = connect(&network).await.expect("connected");
    let mut peer = accepted.next().await;
    for _ in 0..2 {
        connection.send(b"version\r\n").await.expect("sent");
        sleep(TIMEOUT / 4).await;
        peer.send("VERSION 1\r\n").await;
        connection.read_part().await.expect("a reply");
    }
    connection.send(b"version\r\n").await.expect("sent");
    let error = connection.read_part().await.expect_err("a silent server");
    assert!(matches!(error, CommandError::TimedOut(TIMEOUT)), "{error}");
    assert_eq!(start_send.elapsed(), TIMEOUT);
    connection.set_timeout(TIMEOUT * 2);
    connection.read_part().await.expect_err("a silent server");
    assert_eq!(start_send.elapsed(), TIMEOUT * 3, "counted from the moment it was set");
}

#[tokio::test(start_paused = true)]
async fn replies_over_the_limits_are_refused() {
    for reply in ["VALUE a 0 11\r\n".to_owned(), "V".repeat(200)] {
        let (network, mut accepted) = FakeNetwork::new();
        let mut connection = connect(&network).await.expect("connected");
        let mut peer = accepted.next().await;
        peer.send(&reply).await;
        let error = connection.read_part().await.expect_err(&reply);
        assert!(matches!(error, CommandError::Malformed(_)), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn end_of_the_connection_is_an_error_and_unread_bytes_are_noticed() {
    let (network, mut accepted) = FakeNetwork::new();
    let mut connection = connect(&network).await.expect("connected");
    let mut peer = accepted.next().await;
    peer.send("VERSION 1\r\nVER").await;
    connection.read_part().await.expect("a reply");
    assert!(connection.into_stream().is_none(), "bytes of another reply have arrived");

    let mut connection = connect(&network).await.expect("connected");
    drop(accepted.next().await);
    assert!(matches!(connection.read_part().await, Err(CommandError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn lines_of_a_listing_are_read_one_by_one_and_bounded() {
    let (network, mut accepted) = FakeNetwork::new();
    let mut connection = connect(&network).await.expect("connected");
    let mut peer = accepted.next().await;
    for cut in ["mg a\r\nmg b", " b\r", "\nEN\r\nOK\r\n"] {
        peer.send(cut).await;
    }
    for expected in ["mg a", "mg b b", "EN"] {
        assert_eq!(connection.read_line().await.expect("a line"), expected.as_bytes());
    }
    assert_eq!(connection.read_part().await.expect("a reply"), ReplyPart::Reply(Reply::Ok));
    peer.send(&"k".repeat(LIMITS.line_bytes_max + 1)).await;
    assert!(matches!(connection.read_line().await, Err(CommandError::Malformed(why)) if why.contains("too long")));
}
