//! What a session bounds: what clients that do not read make the router hold, the number of clients, and the requests
//! of one client.

use crate::support::{SessionHarness, expect, rest};
use lookaside_protocol::Operation;
use lookaside_router::{REPLY_BYTES_MAX, Settings, TOTAL_REPLY_BYTES_MAX, WRITE_STALL_MAX};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt};

const BIG: usize = 1 << 20;

/// 11 KB of gets once made a router hold a thousand values.
#[tokio::test(start_paused = true)]
async fn client_that_requests_much_and_never_reads_holds_little() {
    let harness = SessionHarness::start(Settings::default());
    harness.route.values.lock().unwrap().insert("big".into(), vec![b'x'; BIG].into());
    let asked = || harness.route.batch_sizes().iter().sum::<usize>();
    let mut first = harness.connect();
    first.write_all("get big\r\n".repeat(1_024).as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(asked(), 32, "the first estimate");
    assert_eq!(harness.proxy.shared().reply_bytes(), 32 * BIG);

    let answer = format!("VALUE big 0 {BIG}\r\n{}\r\nEND\r\n", "x".repeat(BIG));
    for _ in 0..100 {
        expect(&mut first, &answer).await;
        let held_bytes = harness.proxy.shared().reply_bytes();
        assert!(held_bytes <= 32 * BIG, "{held_bytes}");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(harness.route.batch_sizes()[1..].iter().all(|values| values * BIG <= REPLY_BYTES_MAX));
    drop(first);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(harness.proxy.shared().reply_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn clients_that_never_read_share_a_bound() {
    let harness = SessionHarness::start(Settings::default());
    harness.route.values.lock().unwrap().insert("big".into(), vec![b'x'; BIG].into());
    let mut clients = Vec::new();
    for _ in 0..40 {
        let mut client = harness.connect();
        client.write_all("get big\r\n".repeat(1_024).as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        clients.push(client);
    }
    let full = TOTAL_REPLY_BYTES_MAX / BIG;
    assert_eq!(harness.proxy.shared().reply_bytes(), (full + 40 - full / 32) * BIG, "32 each, then one each");
}

#[tokio::test(start_paused = true)]
async fn delete_after_unread_gets_is_executed() {
    let harness = SessionHarness::start(Settings::default());
    harness.route.values.lock().unwrap().insert("big".into(), vec![b'x'; BIG].into());
    let mut client = harness.connect_with(1 << 16);
    let request = "get big\r\n".repeat(100) + "delete a\r\n";
    client.write_all(request.as_bytes()).await.unwrap();
    tokio::time::sleep(WRITE_STALL_MAX * 2).await;
    let batches = harness.route.batches.lock().unwrap();
    assert_eq!(
        batches.iter().map(Vec::len).collect::<Vec<_>>(),
        [32, 1],
        "gets of a disconnected client are not routed"
    );
    assert!(matches!(batches[1][0].operation, Operation::Delete { .. }));
}

#[tokio::test(start_paused = true)]
async fn at_the_limit_the_least_recently_used_client_is_closed() {
    let harness = SessionHarness::start(Settings { connections_max: 2, ..Settings::default() });
    let (mut first, mut second) = (harness.connect(), harness.connect());
    for client in [&mut first, &mut second] {
        client.write_all(b"get a\r\n").await.unwrap();
        expect(client, "END\r\n").await;
    }
    first.write_all(b"get b\r\n").await.unwrap();
    expect(&mut first, "END\r\n").await;
    let mut third = harness.connect();
    assert_eq!(rest(&mut second).await, "");
    for client in [&mut third, &mut first] {
        client.write_all(b"get a\r\n").await.unwrap();
        expect(client, "END\r\n").await;
    }
    let (counters, stats) = (harness.counters(), harness.proxy.shared().connections());
    assert_eq!((counters.evicted_connections, counters.rejected_connections, stats), (1, 0, 2));
}

/// A batch that has begun is answered: its mutations must not be dropped.
#[tokio::test(start_paused = true)]
async fn at_the_limit_a_client_is_refused_if_all_have_requests_in_progress() {
    let harness = SessionHarness::start(Settings { connections_max: 2, ..Settings::default() });
    harness.route.gate.forget_permits(usize::MAX >> 3);
    let (mut first, mut second) = (harness.connect(), harness.connect());
    first.write_all(b"get a\r\n").await.unwrap();
    second.write_all(b"delete a\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    // More input is read while deletes are in progress.
    second.write_all(b"delete b\r\ndelete").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let mut third = harness.connect();
    assert_eq!(rest(&mut third).await, "ERROR Too many open connections\r\n");
    harness.route.gate.add_permits(usize::MAX >> 4);
    expect(&mut first, "END\r\n").await;
    expect(&mut second, "NOT_FOUND\r\nNOT_FOUND\r\n").await;
    assert_eq!((harness.counters().evicted_connections, harness.counters().rejected_connections), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn client_that_never_reads_delays_no_other_and_is_disconnected() {
    let harness = SessionHarness::start(Settings::default());
    let mut lazy = harness.connect_with(64 << 10);
    lazy.write_all(format!("set k 0 0 100000\r\n{}\r\n", "v".repeat(100_000)).as_bytes()).await.unwrap();
    lazy.write_all(b"get k k k\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    lazy.write_all(b"get never\r\n").await.unwrap();
    let mut good = harness.connect();
    good.write_all(b"get a\r\n").await.unwrap();
    expect(&mut good, "END\r\n").await;
    tokio::time::sleep(WRITE_STALL_MAX + Duration::from_secs(1)).await;
    assert_eq!(harness.counters().stalled_connections, 1);
    let asked: Vec<_> =
        harness.route.batches.lock().unwrap().iter().flatten().map(|request| request.key.clone()).collect();
    assert_eq!(asked, ["k", "k", "k", "k", "a"], "commands after the stall were never read");
}

/// mcrouter's default is a second.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_disconnected_after_the_client_timeout() {
    for (timeout, after, is_closed) in [
        (Some(Duration::from_secs(1)), Duration::from_secs(10), true),
        (Some(Duration::from_secs(1)), Duration::from_millis(500), false),
        (None, WRITE_STALL_MAX * 9, false),
    ] {
        let harness = SessionHarness::start(Settings { client_timeout: timeout, ..Settings::default() });
        let mut lazy = harness.connect_with(64 << 10);
        lazy.write_all(format!("set k 0 0 100000\r\n{}\r\n", "v".repeat(100_000)).as_bytes()).await.unwrap();
        lazy.write_all(b"get k k k\r\n").await.unwrap();
        tokio::time::sleep(after).await;
        assert_eq!(harness.counters().stalled_connections, u64::from(is_closed), "{timeout:?} {after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_client_in_progress_are_bounded() {
    for (requests_max, batches) in [(2, vec![2, 2, 1]), (5, vec![5]), (usize::MAX, vec![5])] {
        let harness = SessionHarness::start(Settings { requests_max, ..Settings::default() });
        let mut client = harness.connect();
        client.write_all(b"get a\r\nget b\r\nget c\r\nget d\r\nget e\r\n").await.unwrap();
        expect(&mut client, &"END\r\n".repeat(5)).await;
        let found: Vec<usize> = harness.route.batches.lock().unwrap().iter().map(Vec::len).collect();
        assert_eq!(found, batches);
    }
    // Deletes do not wait for each other, but are counted together.
    let harness = SessionHarness::start(Settings { requests_max: 3, ..Settings::default() });
    harness.route.gate.forget_permits(usize::MAX >> 3);
    let delete = "delete a\r\n".as_bytes();
    let mut client = harness.connect_with(delete.len());
    let mut written = 0;
    while tokio::time::timeout(Duration::from_secs(1), client.write_all(delete)).await.is_ok() {
        written += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(written, 3 + 1, "three are in progress, and one is not read");
    harness.route.gate.add_permits(1);
    let mut replies = [0; 6];
    client.read_exact(&mut replies).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(1), client.write_all(delete)).await.is_ok());
}
