//! The bytes that a client sends and gets, and the batches that the tree of routes receives.

use crate::support::{SessionHarness, expect, rest};
use lookaside_protocol::Operation;
use lookaside_router::{BATCH_REQUESTS_MAX, Settings};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt};
use tokio::time::timeout;

const SCRIPT: &str = "set a 0 0 3\r\nfoo\r\nget a b a\r\nset b 0 0 0 noreply\r\n\r\ndelete a\r\ndelete a\r\n\
    get down:1\r\nset down:2 0 0 1\r\nx\r\nflush_regex x\r\nset big 0 0 99999999\r\n";
const REPLIES: &str = "STORED\r\nVALUE a 0 3\r\nfoo\r\nVALUE a 0 3\r\nfoo\r\nEND\r\nDELETED\r\nNOT_FOUND\r\n\
    SERVER_ERROR Reply timeout\r\nSERVER_ERROR Reply timeout\r\nSERVER_ERROR Command not supported\r\n\
    SERVER_ERROR object too large for cache\r\n";

#[tokio::test(start_paused = true)]
async fn one_write_becomes_one_batch_with_replies_in_order() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    client.write_all(SCRIPT.as_bytes()).await.unwrap();
    expect(&mut client, REPLIES).await;
    assert_eq!(harness.route.batch_sizes(), [10], "the last is the delete instead of the refused set");
}

#[tokio::test(start_paused = true)]
async fn replies_do_not_depend_on_where_the_bytes_are_split() {
    for split in 1..SCRIPT.len() {
        let harness = SessionHarness::start(Settings::default());
        let mut client = harness.connect();
        for part in [&SCRIPT[..split], &SCRIPT[split..]] {
            client.write_all(part.as_bytes()).await.unwrap();
            // Paused time advances only when all tasks wait: the part has been read.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        expect(&mut client, REPLIES).await;
    }
}

#[tokio::test(start_paused = true)]
async fn replies_do_not_change_when_bytes_arrive_one_by_one() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect_with(1);
    let (mut from, mut to) = tokio::io::split(&mut client);
    let write = async { to.write_all(SCRIPT.as_bytes()).await.unwrap() };
    let read = async {
        let mut answers = vec![0; REPLIES.len()];
        timeout(Duration::from_secs(60), from.read_exact(&mut answers)).await.expect("all replies").unwrap();
        assert_eq!(String::from_utf8_lossy(&answers), REPLIES);
    };
    tokio::join!(write, read);
}

#[tokio::test(start_paused = true)]
async fn commands_that_arrive_during_a_batch_become_the_next() {
    let harness = SessionHarness::start(Settings::default());
    harness.route.gate.forget_permits(usize::MAX >> 3);
    let mut client = harness.connect();
    client.write_all(b"get first\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    for _ in 0..50 {
        client.write_all(b"get k\r\n").await.unwrap();
    }
    harness.route.gate.add_permits(2);
    expect(&mut client, &"END\r\n".repeat(51)).await;
    assert_eq!(harness.route.batch_sizes(), [1, 50]);
}

#[tokio::test(start_paused = true)]
async fn pipelined_commands_become_few_batches() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    client.write_all("get some:key:or:other\r\n".repeat(5_000).as_bytes()).await.unwrap();
    expect(&mut client, &"END\r\n".repeat(5_000)).await;
    let sizes = harness.route.batch_sizes();
    assert_eq!(sizes.iter().sum::<usize>(), 5_000);
    assert!(sizes.iter().all(|size| *size <= BATCH_REQUESTS_MAX), "{sizes:?}");
    assert!(sizes.len() < 50, "{sizes:?}");
}

#[tokio::test(start_paused = true)]
async fn long_get_is_one_chunk_once_values_are_known_to_be_small() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    let keys: String = (0..1_740).map(|key| format!(" key:{key}")).collect();
    for _ in 0..2 {
        client.write_all(format!("get{keys}\r\n").as_bytes()).await.unwrap();
        expect(&mut client, "END\r\n").await;
    }
    assert_eq!(harness.route.batch_sizes(), [32, 128, 512, 1_068, 1_740]);
}

#[tokio::test(start_paused = true)]
async fn lease_verbs_are_routed() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    client.write_all(b"lease-get k\r\nlease-set k 4242 5 60 2\r\nhi\r\nget k\r\n").await.unwrap();
    expect(&mut client, "LVALUE k 4242 0 0\r\n\r\nEND\r\nSTORED\r\nVALUE k 0 2\r\nhi\r\nEND\r\n").await;
    let batches = harness.route.batches.lock().unwrap();
    match &batches[0][1].operation {
        Operation::LeaseSet { token, flags, exptime, value } => {
            assert_eq!((token.0, *flags, *exptime, &value[..]), (4242, 5, 60, &b"hi"[..]));
        }
        other => panic!("{other:?}"),
    }
    drop(batches);
    let tally = harness.counters();
    assert_eq!((tally.lease_tokens, tally.lease_sets_stored), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_too_long_get_an_error_and_the_connection_stays_open() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    let long = "k".repeat(251);
    let commands = format!(
        "get {long}\r\nset {long} 0 0 1\r\nx\r\nset {long} 0 0 1 noreply\r\nx\r\ndelete {long}\r\nset a 0 0 1\r\nx\r\n\
         get a {long} b\r\nget {long} __mcrouter__.hostid\r\nstats unknown\r\nversion\r\n"
    );
    client.write_all(commands.as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    let bad_key = "CLIENT_ERROR bad key\r\n";
    let expected = format!(
        "{}STORED\r\nVALUE a 0 1\r\nx\r\n{bad_key}VALUE __mcrouter__.hostid 0 30\r\nERROR: unknown command: hostid\r\n\
         {bad_key}CLIENT_ERROR bad stats command\r\nVERSION {}\r\n",
        bad_key.repeat(3),
        Settings::default().version
    );
    assert_eq!(rest(&mut client).await, expected);
    assert_eq!(harness.route.keys(), ["a", "a", "b"], "nothing else reached a server");
}

#[tokio::test(start_paused = true)]
async fn malformed_input_ends_the_connection_behind_the_replies_before_it() {
    let long = "k".repeat(251);
    for malformed in [
        "bogus",
        "get",
        "statsfoo",
        "get a\u{1}b",
        "get \u{1} LONG",
        "incr a x",
        "set a 0 0 x",
        "set LONG 0 0 x",
        "set a 0 0 1\r\nxyz",
        "delete",
        "shutdown",
        "incr a x noreply",
        "",
    ] {
        let harness = SessionHarness::start(Settings::default());
        let mut client = harness.connect();
        let malformed = malformed.replace("LONG", &long);
        let commands = format!("set a 0 0 1\r\nx\r\nget a\r\n{malformed}\r\ndelete a\r\nget a\r\n");
        client.write_all(commands.as_bytes()).await.unwrap();
        let expected = "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\nCLIENT_ERROR malformed request\r\n";
        assert_eq!(rest(&mut client).await, expected, "{malformed}");
        assert_eq!(harness.route.keys(), ["a", "a"], "{malformed}: nothing behind it is executed");
        assert_eq!(harness.counters().bad_commands, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_bare_line_feed_ends_a_line_and_wrong_meta_commands_leave_the_connection_open() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    client.write_all(b"set a 0 0 1\nx\r\nget a\nmg\nflush_regex .*\nmg a !\nget a\n").await.unwrap();
    client.shutdown().await.unwrap();
    let answers = rest(&mut client).await;
    let lines: Vec<&str> = answers.split("\r\n").collect();
    assert_eq!(lines[..4], ["STORED", "VALUE a 0 1", "x", "END"], "{answers}");
    assert!(lines[4].starts_with("CLIENT_ERROR bad command line format") && lines[6].starts_with("CLIENT_ERROR "));
    assert_eq!(lines[5], "SERVER_ERROR Command not supported");
    assert_eq!(lines[7..], ["VALUE a 0 1", "x", "END", ""], "{answers}");
}

#[tokio::test(start_paused = true)]
async fn all_errors_are_alike_with_group_remote_errors() {
    let harness = SessionHarness::start(Settings { group_remote_errors: true, ..Settings::default() });
    let mut client = harness.connect();
    client.write_all(b"get down\r\nset down 0 0 1\r\nx\r\nget a\r\n").await.unwrap();
    expect(&mut client, "SERVER_ERROR remote error\r\nSERVER_ERROR remote error\r\nEND\r\n").await;
}

#[tokio::test(start_paused = true)]
async fn garbage_harms_only_its_sender() {
    let harness = SessionHarness::start(Settings::default());
    let (mut bad, mut good) = (harness.connect(), harness.connect());
    let mut random = fastrand::Rng::with_seed(5);
    let garbage: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(200_000).collect();
    bad.write_all(&garbage).await.unwrap();
    good.write_all(b"set k 0 0 1\r\nx\r\nget k\r\n").await.unwrap();
    expect(&mut good, "STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n").await;
}

#[tokio::test(start_paused = true)]
async fn endless_line_closes_the_connection() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    let line = vec![b'x'; 2 << 20];
    let (mut from, mut to) = tokio::io::split(&mut client);
    let mut answer = String::new();
    let (_, read) = tokio::join!(to.write_all(&line), tokio::io::AsyncReadExt::read_to_string(&mut from, &mut answer));
    read.unwrap();
    assert!(answer.contains("ERROR"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn half_a_command_is_not_executed() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    client.write_all(b"delete a\r\nset k 0 0 10\r\n12345").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(rest(&mut client).await, "NOT_FOUND\r\n");
    assert_eq!(harness.route.batch_sizes(), [1]);
}

#[tokio::test(start_paused = true)]
async fn batch_is_executed_even_if_its_client_has_disconnected() {
    let harness = SessionHarness::start(Settings::default());
    harness.route.gate.forget_permits(usize::MAX >> 3);
    let mut client = harness.connect();
    client.write_all(b"delete a\r\ndelete b\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    drop(client);
    tokio::time::sleep(Duration::from_millis(1)).await;
    harness.route.gate.add_permits(1);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(harness.route.batch_sizes(), [2]);
}

#[tokio::test(start_paused = true)]
async fn local_commands_are_replied_to_in_order() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    let version = Settings::default().version;
    client.write_all(b"get a\r\nversion\r\nverbosity 1\r\nmn\r\nflush_all\r\nflush_all noreply\r\n").await.unwrap();
    client.write_all(b"get a __mcrouter__.version __mcrouter__.nothing\r\nquit\r\nget a\r\n").await.unwrap();
    let expected = format!(
        "END\r\nVERSION {version}\r\nOK\r\nMN\r\nSERVER_ERROR Command disabled\r\n\
         VALUE __mcrouter__.version 0 {}\r\n{version}\r\n\
         VALUE __mcrouter__.nothing 0 31\r\nERROR: unknown command: nothing\r\nEND\r\n",
        version.len()
    );
    assert_eq!(rest(&mut client).await, expected);
    let counters = harness.counters();
    assert_eq!((counters.cmd_get, counters.get_hits), (2, 0), "keys that the router answers itself do not count");
}

#[tokio::test(start_paused = true)]
async fn stats_count_requests() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    client.write_all(b"set a 0 0 1\r\nx\r\nget a b down\r\ndelete a\r\n").await.unwrap();
    expect(&mut client, "STORED\r\nVALUE a 0 1\r\nx\r\nSERVER_ERROR Reply timeout\r\nDELETED\r\n").await;
    client.write_all(b"stats\r\n").await.unwrap();
    client.shutdown().await.unwrap();
    let stats = rest(&mut client).await;
    for line in [
        "pid 7",
        "cmd_get 3",
        "get_hits 1",
        "get_misses 1",
        "get_failures 1",
        "cmd_set 1",
        "cmd_delete 1",
        "delete_hits 1",
        "curr_connections 1",
        "total_connections 1",
        "batches 1",
        "batched_requests 5",
        "config_failures 0",
        "config_last_success 1000000",
    ] {
        assert!(stats.contains(&format!("STAT {line}\r\n")), "{line} is not in {stats}");
    }
    assert!(stats.ends_with("END\r\n"));
}

#[tokio::test(start_paused = true)]
async fn failed_gets_are_misses_with_miss_on_get_errors() {
    let harness = SessionHarness::start(Settings { miss_on_get_errors: true, ..Settings::default() });
    let mut client = harness.connect();
    client.write_all(b"get down\r\nlease-get down\r\ndelete down\r\n").await.unwrap();
    expect(&mut client, "END\r\nEND\r\nSERVER_ERROR Reply timeout\r\n").await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_answers_the_running_batch_and_closes_idle_connections() {
    let harness = SessionHarness::start(Settings::default());
    harness.route.gate.forget_permits(usize::MAX >> 3);
    let (mut busy, mut idle) = (harness.connect(), harness.connect());
    busy.write_all(b"delete a\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    harness.shut.send_replace(true);
    assert_eq!(rest(&mut idle).await, "");
    harness.route.gate.add_permits(1);
    assert_eq!(rest(&mut busy).await, "NOT_FOUND\r\n");
    timeout(Duration::from_millis(1), harness.served).await.expect("nothing left to wait for").unwrap();
}

#[tokio::test(start_paused = true)]
async fn shutdown_is_bounded() {
    let harness = SessionHarness::start(Settings::default());
    harness.route.gate.forget_permits(usize::MAX >> 3);
    let mut busy = harness.connect();
    busy.write_all(b"delete a\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    harness.shut.send_replace(true);
    timeout(lookaside_router::DRAIN_MAX * 2, harness.served).await.expect("a bounded time").unwrap();
    assert_eq!(rest(&mut busy).await, "");
}

#[tokio::test(start_paused = true)]
async fn quiet_flag_of_meta_commands_is_not_sent_to_servers() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    client.write_all(b"mg a v q k\r\nmg b v q\r\nms c 1 q\r\nx\r\nmd d\r\nmn\r\n").await.unwrap();
    expect(&mut client, "VA 1 ka\r\nA\r\nHD\r\nMN\r\n").await;
    let batches = harness.route.batches.lock().unwrap();
    for request in &batches[0] {
        let Operation::Meta(meta) = &request.operation else { panic!("{request:?}") };
        assert!(!meta.flags.split(|byte| *byte == b' ').any(|flag| flag == b"q"), "{meta:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn data_block_of_a_refused_set_is_never_parsed_as_commands() {
    let mut settings = Settings::default();
    let limit = 1 << 20;
    settings.limits.value_bytes_max = limit;
    let block = "delete a\r\n".repeat(limit / 10 + 1);
    let text = format!("set k 0 0 {}\r\n{block}\r\nget a\r\n", block.len());
    // At once, and in parts that end inside the block.
    for part_bytes in [text.len(), 65_536, 1_000] {
        let harness = SessionHarness::start(settings.clone());
        let mut client = harness.connect_with(4 << 20);
        for part in text.as_bytes().chunks(part_bytes) {
            client.write_all(part).await.unwrap();
        }
        expect(&mut client, "SERVER_ERROR object too large for cache\r\nEND\r\n").await;
        let asked = harness.route.batches.lock().unwrap().concat();
        assert_eq!(asked.iter().map(|request| &request.key[..]).collect::<Vec<_>>(), [b"k", b"a"]);
    }
    // Small enough for the line and its block to arrive in one read.
    settings.limits.value_bytes_max = 8;
    let harness = SessionHarness::start(settings);
    let mut client = harness.connect();
    client.write_all(b"set k 0 0 9\r\ndelete a\n\r\nget b\r\n").await.unwrap();
    expect(&mut client, "SERVER_ERROR object too large for cache\r\nEND\r\n").await;
    assert_eq!(harness.route.batch_sizes(), [2]);
}
