//! Deletes of one connection that do not wait for each other: what is routed while a server hangs, the order of the
//! replies, and the bounds.

use crate::support::{SessionHarness, expect, rest};
use lookaside_router::{
    BATCH_REQUESTS_MAX, DELETES_BYTES_MAX, Settings, TOTAL_DELETES_BYTES_MAX, TOTAL_REPLY_BYTES_MAX, WRITE_STALL_MAX,
};
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::time::{sleep, timeout};

const MOMENT: Duration = Duration::from_millis(1);

/// The result of `future`, which is bounded: a reply that never comes fails a test.
async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), future).await.expect("it ends")
}

/// Sends `bytes`, and waits until the session has done what it can.
async fn send(client: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) {
    client.write_all(bytes).await.unwrap();
    sleep(MOMENT).await;
}

/// A client that has sent a delete of a key whose server hangs.
async fn start_with_hung_delete() -> (SessionHarness, DuplexStream) {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    send(&mut client, b"delete hung\r\n").await;
    (harness, client)
}

/// Once every delete of a cluster waited for the one of a hung server, because the invalidator has one connection and a
/// session routed one batch at a time.
#[tokio::test(start_paused = true)]
async fn a_delete_does_not_wait_for_one_of_a_hung_server() {
    let (harness, mut client) = start_with_hung_delete().await;
    for key in ["a", "b"] {
        send(&mut client, format!("delete {key}\r\ndelete {key}2\r\n").as_bytes()).await;
    }
    assert_eq!(harness.route.keys(), ["a", "a2", "b", "b2"]);
    assert!(timeout(MOMENT, client.read_u8()).await.is_err(), "replies leave in the order of the requests");
    harness.route.hung.add_permits(1);
    within(expect(&mut client, &"NOT_FOUND\r\n".repeat(5))).await;
    assert_eq!((harness.counters().batches, harness.counters().overlapped_batches), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn other_commands_wait_for_the_deletes_before_them() {
    for other in
        ["get x", "set x 0 0 1\r\n1", "md x q", "mn", "version", "flush_regex x", "stats", "get __mcrouter__.version"]
    {
        let (harness, mut client) = start_with_hung_delete().await;
        send(&mut client, format!("delete a\r\n{other}\r\ndelete b\r\nquit\r\n").as_bytes()).await;
        assert_eq!(harness.route.keys(), ["a"], "{other}");
        harness.route.hung.add_permits(1);
        let replies = within(rest(&mut client)).await;
        assert!(replies.starts_with("NOT_FOUND\r\nNOT_FOUND\r\n"), "{other}: {replies}");
        assert!(replies.ends_with("NOT_FOUND\r\n"), "{other}: {replies}");
        let executed = harness.route.keys();
        assert_eq!((&*executed[0], &*executed[1], executed.last().unwrap().as_str()), ("a", "hung", "b"), "{other}");
    }
}

/// Deletes, gets and sets of a few keys, in random parts, while some deletes hang for a random time. Which of two
/// deletes of a key finds the value depends on the route: the fake one holds back a whole batch.
#[tokio::test(start_paused = true)]
async fn replies_are_those_of_one_command_after_the_other() {
    let mut overlapped = 0;
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let commands: Vec<String> = (0..60)
            .map(|number| match random.u8(0..10) {
                0 => format!("set k{} 0 0 2\r\n{number:02}\r\n", random.u8(0..3)),
                1 => format!("get k{} k{}\r\n", random.u8(0..3), random.u8(0..3)),
                2 => format!("delete hung{}\r\n", random.u8(0..2)),
                3 => "delete k0 noreply\r\n".to_owned(),
                4 => "flush_regex x\r\n".to_owned(),
                _ => format!("delete k{}\r\n", random.u8(0..3)),
            })
            .collect();
        let model = SessionHarness::start(Settings::default());
        model.route.hung.add_permits(1_000);
        let mut one_by_one = model.connect();
        for command in &commands {
            send(&mut one_by_one, command.as_bytes()).await;
        }
        one_by_one.shutdown().await.unwrap();
        let expected = within(rest(&mut one_by_one)).await;

        let harness = SessionHarness::start(Settings::default());
        let mut client = harness.connect_with(random.usize(1..500));
        let (mut from, mut to) = tokio::io::split(&mut client);
        let text = commands.concat();
        let write = async {
            let mut rest = text.as_bytes();
            while !rest.is_empty() {
                let (part, behind) = rest.split_at(random.usize(1..80).min(rest.len()));
                to.write_all(part).await.unwrap();
                rest = behind;
                sleep(MOMENT * u32::from(random.bool())).await;
            }
            to.shutdown().await.unwrap();
        };
        let release = async {
            for _ in 0..60 {
                sleep(MOMENT * 7).await;
                harness.route.hung.add_permits(1);
            }
        };
        let mut replies = String::new();
        let (read, (), ()) = within(async { tokio::join!(from.read_to_string(&mut replies), write, release) }).await;
        read.unwrap();
        let one_kind = |replies: &str| replies.replace("DELETED", "NOT_FOUND");
        assert_eq!(one_kind(&replies), one_kind(&expected), "seed {seed}: {text}");
        overlapped += harness.counters().overlapped_batches;
    }
    assert!(overlapped > 100, "{overlapped}");
}

const ONE: &str = "delete some:key:or:other\r\n";

#[tokio::test(start_paused = true)]
async fn deletes_in_progress_are_bounded() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect_with(1 << 16);
    client.write_all(b"delete hung\r\n").await.unwrap();
    let (mut from, mut to) = tokio::io::split(client);
    let (deletes, shared) = (60_000, harness.proxy.shared());
    let text = ONE.repeat(deletes);
    let mut write = pin!(to.write_all(text.as_bytes()));
    assert!(timeout(Duration::from_secs(1), &mut write).await.is_err(), "the rest is not read");
    let held_bytes = shared.delete_bytes();
    assert!((DELETES_BYTES_MAX - (2 << 20)..=DELETES_BYTES_MAX).contains(&held_bytes), "{held_bytes}");
    let routed = harness.route.keys().len();
    assert!(routed > 10_000 && routed < 20_000, "{routed}");
    harness.route.hung.add_permits(1);
    let mut replies = vec![0; "NOT_FOUND\r\n".len() * (deletes + 1)];
    let (written, read) = within(async { tokio::join!(write, from.read_exact(&mut replies)) }).await;
    written.unwrap();
    read.unwrap();
    assert_eq!((harness.route.keys().len(), shared.delete_bytes()), (deletes + 1, 0));
}

/// Once deletes shared the bound on replies: while clients held large values, the invalidator's deletes queued behind
/// the one of a hung server.
#[tokio::test(start_paused = true)]
async fn a_delete_does_not_wait_for_one_of_a_hung_server_while_replies_hold_their_bound() {
    const BIG: usize = 1 << 20;
    let harness = SessionHarness::start(Settings::default());
    harness.route.values.lock().unwrap().insert("big".into(), vec![b'x'; BIG].into());
    let mut others = Vec::new();
    for _ in 0..=TOTAL_REPLY_BYTES_MAX / (32 * BIG) {
        let mut other = harness.connect();
        send(&mut other, "get big\r\n".repeat(1_024).as_bytes()).await;
        others.push(other);
    }
    assert!(harness.proxy.shared().reply_bytes() >= TOTAL_REPLY_BYTES_MAX);
    let mut client = harness.connect();
    send(&mut client, b"delete hung\r\n").await;
    send(&mut client, b"delete a\r\n").await;
    assert!(harness.route.keys().contains(&"a".to_owned()));
    harness.route.hung.add_permits(1);
    within(expect(&mut client, "NOT_FOUND\r\nNOT_FOUND\r\n")).await;
}

/// Many connections that send as many deletes as they can leave space for those of one more.
#[tokio::test(start_paused = true)]
async fn sessions_share_a_bound_and_leave_space_for_one_more() {
    let harness = SessionHarness::start(Settings::default());
    let mut others = Vec::new();
    for _ in 0..20 {
        let mut other = harness.connect_with(4 << 20);
        send(&mut other, b"delete hung\r\n").await;
        send(&mut other, ONE.repeat(60_000).as_bytes()).await;
        others.push(other);
    }
    let held_bytes = harness.proxy.shared().delete_bytes();
    assert!((TOTAL_DELETES_BYTES_MAX * 3 / 4..TOTAL_DELETES_BYTES_MAX).contains(&held_bytes), "{held_bytes}");
    let mut client = harness.connect();
    send(&mut client, b"delete hung\r\n").await;
    send(&mut client, b"delete a\r\n").await;
    assert!(harness.route.keys().contains(&"a".to_owned()));
    drop(others);
    harness.route.hung.add_permits(21);
    within(expect(&mut client, "NOT_FOUND\r\nNOT_FOUND\r\n")).await;
    sleep(MOMENT).await;
    assert_eq!(harness.proxy.shared().delete_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn deletes_in_progress_are_executed_even_if_their_client_has_disconnected() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    for key in ["hung1", "a", "hung2", "hung3"] {
        send(&mut client, format!("delete {key}\r\n").as_bytes()).await;
    }
    drop(client);
    for _ in 0..3 {
        sleep(MOMENT).await;
        harness.route.hung.add_permits(1);
    }
    sleep(MOMENT).await;
    assert_eq!(harness.route.keys(), ["a", "hung1", "hung2", "hung3"]);
    assert_eq!(harness.proxy.shared().connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lone_delete_is_executed_even_if_its_client_has_disconnected() {
    let (harness, client) = start_with_hung_delete().await;
    drop(client);
    sleep(MOMENT).await;
    harness.route.hung.add_permits(1);
    sleep(MOMENT).await;
    assert_eq!((harness.route.keys(), harness.counters().overlapped_batches), (vec!["hung".to_owned()], 0));
    assert_eq!(harness.proxy.shared().connections(), 0);
}

/// A batch has at most [`BATCH_REQUESTS_MAX`] requests. What has arrived with them is not read again.
#[tokio::test(start_paused = true)]
async fn a_delete_that_arrived_with_a_full_batch_does_not_wait_for_it() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect_with(1 << 16);
    // The session reads more at once after this.
    client.write_all("delete a\r\n".repeat(6_000).as_bytes()).await.unwrap();
    within(expect(&mut client, &"NOT_FOUND\r\n".repeat(6_000))).await;
    let text = format!("{}delete behind\r\n", "delete hung\r\n".repeat(BATCH_REQUESTS_MAX));
    send(&mut client, text.as_bytes()).await;
    assert_eq!(harness.route.keys().last().map(String::as_str), Some("behind"));
    harness.route.hung.add_permits(1);
    within(expect(&mut client, &"NOT_FOUND\r\n".repeat(BATCH_REQUESTS_MAX + 1))).await;
    assert!(harness.route.batch_sizes().ends_with(&[1, BATCH_REQUESTS_MAX]), "{:?}", harness.route.batch_sizes());
    assert_eq!(harness.counters().overlapped_batches, 1);
}

/// Otherwise a client that does not read would hold what its deletes hold: a part of the window, for example.
#[tokio::test(start_paused = true)]
async fn deletes_are_carried_on_while_their_client_does_not_read() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect_with(1 << 12);
    send(&mut client, b"delete hung1\r\n").await;
    for _ in 0..50 {
        send(&mut client, "delete down\r\n".repeat(20).as_bytes()).await;
    }
    send(&mut client, b"delete hung2\r\n").await;
    harness.route.hung.add_permits(1);
    sleep(MOMENT).await;
    client.write_all(b"delete never\r\n").await.unwrap();
    harness.route.hung.add_permits(1);
    sleep(MOMENT).await;
    let keys = harness.route.keys();
    assert_eq!((keys.len(), &*keys[1_000], &*keys[1_001]), (1_002, "hung1", "hung2"), "nothing more is read");
    sleep(WRITE_STALL_MAX).await;
    assert_eq!(harness.counters().stalled_connections, 1);
    assert!(!harness.route.keys().contains(&"never".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_answers_the_deletes_in_progress() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    for key in ["hung", "a"] {
        send(&mut client, format!("delete {key}\r\n").as_bytes()).await;
    }
    harness.shut.send_replace(true);
    sleep(MOMENT).await;
    send(&mut client, b"delete late\r\n").await;
    harness.route.hung.add_permits(1);
    assert_eq!(within(rest(&mut client)).await, "NOT_FOUND\r\nNOT_FOUND\r\n");
    assert_eq!(harness.route.keys(), ["a", "hung"]);
    timeout(MOMENT, harness.served).await.expect("nothing left to wait for").unwrap();
}

/// Also if the client has always sent more.
#[tokio::test(start_paused = true)]
async fn a_shutdown_reads_no_further_deletes() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect_with(4 << 20);
    client.write_all(b"delete hung\r\n").await.unwrap();
    send(&mut client, ONE.repeat(60_000).as_bytes()).await;
    let routed = harness.route.keys().len() + 1;
    assert!(routed > 10_000 && routed < 20_000, "up to the bound: {routed}");
    harness.shut.send_replace(true);
    harness.route.hung.add_permits(1);
    let replies = within(rest(&mut client)).await;
    assert_eq!(replies.lines().count(), harness.route.keys().len());
    assert!(replies.lines().count() < routed + 2_000, "{}", replies.lines().count());
}

/// A request of the binary protocol: a header, extras, and a key.
fn binary(opcode: u8, extras: &[u8], key: &str) -> Vec<u8> {
    let mut request = vec![0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
    request.extend_from_slice(&((extras.len() + key.len()) as u32).to_be_bytes());
    request.extend_from_slice(&[0; 12]);
    [&request, extras, key.as_bytes()].concat()
}

#[tokio::test(start_paused = true)]
async fn deletes_of_the_binary_protocol_do_not_wait_for_each_other() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    for (opcode, key) in [(0x04, "hung"), (0x14, "a"), (0x04, "b"), (0x0c, "c"), (0x04, "d")] {
        send(&mut client, &binary(opcode, b"", key)).await;
    }
    assert_eq!(harness.route.keys(), ["a", "b"], "a get ends it");
    harness.route.hung.add_permits(1);
    let mut replies = [0; 5 * 24];
    timeout(Duration::from_secs(1), client.read_exact(&mut replies)).await.expect("replied").unwrap();
    assert_eq!(harness.route.keys(), ["a", "b", "hung", "c", "d"]);
}
