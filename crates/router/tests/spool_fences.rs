//! How long the fences of peers last: across restarts, crashes and silent routers, for addresses of every form, and for
//! servers that do not exist.

use crate::fake_network::Health;
use crate::peer_cluster::{Fixture, MAIN, PEER_TIMEOUT, REPAIR, ROUTERS, host};
use crate::tree_requests::{MISS, NOT_FOUND, TKO};
use lookaside_client::{Network as _, Stream};
use lookaside_protocol::Reply;
use lookaside_router::{Disk as _, Fsync};
use lookaside_routing::Address;
use std::ops::Range;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn a_router_that_stops_with_a_backlog_causes_a_flush_and_no_stale_read() {
    let mut fixture = Fixture::start().await;
    let main = fixture.main();
    main.put("k", "old");
    main.put("l", "other");
    main.be(Health::Frozen);
    assert_eq!(fixture.delete(0, "k").await, NOT_FOUND);
    fixture.kill(0).await;
    main.be(Health::Well);
    sleep(PEER_TIMEOUT / 2).await;
    assert_eq!(fixture.get(1, "k").await, TKO);
    sleep(PEER_TIMEOUT).await;
    assert_eq!(fixture.get(1, "k").await, MISS);
    assert!(!main.has("l"));
    main.put("l", "newer");
    fixture.start_router(0).await;
    sleep(REPAIR).await;
    assert!(main.has("l"), "its backlog is replayed without a further flush");
    for router in 0..ROUTERS {
        assert!(matches!(fixture.get(router, "l").await, Ok(Reply::Value { .. })), "{router}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_router_that_restarts_in_time_causes_no_flush() {
    let mut fixture = Fixture::start().await;
    let main = fixture.main();
    main.put("l", "other");
    main.be(Health::Frozen);
    assert_eq!(fixture.delete(0, "k").await, NOT_FOUND);
    fixture.kill(0).await;
    sleep(PEER_TIMEOUT / 4).await;
    fixture.start_router(0).await;
    sleep(REPAIR).await;
    fixture.repair().await;
    for router in 0..ROUTERS {
        assert!(matches!(fixture.get(router, "l").await, Ok(Reply::Value { .. })), "{router}");
    }
    assert_eq!(main.asked("flush_all").len(), 0);
}

/// Once a router without a backlog sent nothing to its peers. So it never learned that a restarted peer had found a
/// fence on its disk that a crash of the machine had restored, and that peer flushed the server.
#[tokio::test(start_paused = true)]
async fn a_fence_that_a_crash_restores_causes_no_flush() {
    let mut fixture = Fixture::start().await;
    let main = fixture.main();
    main.put("k", "old");
    main.be(Health::Frozen);
    assert_eq!(fixture.delete(0, "j").await, NOT_FOUND);
    let disk = fixture.disks[1].clone();
    let folder = disk.folders().unwrap().into_iter().find(|folder| folder.starts_with("main")).expect("it is fenced");
    let fence = disk.files(&folder).unwrap().remove(0);
    main.be(Health::Well);
    sleep(PEER_TIMEOUT * 3).await;
    assert!(!disk.files(&folder).unwrap().contains(&fence), "released");
    fixture.kill(1).await;
    disk.write(&folder, &fence, 0, b"fenced\n", true).expect("it fits");
    fixture.start_router(1).await;
    assert_eq!(fixture.get(1, "k").await, TKO);
    sleep(PEER_TIMEOUT * 3).await;
    assert!(matches!(fixture.get(1, "k").await, Ok(Reply::Value { .. })), "released again");
    assert_eq!(main.asked("flush_all").len(), 0);
}

/// The file of the fence was removed when the flush record that replaces it was written and not synced. A crash of the
/// machine left neither.
#[tokio::test(start_paused = true)]
async fn a_flush_for_a_silent_peer_survives_a_crash_between_two_syncs() {
    let mut fixture = Fixture::start().await;
    fixture.kill(1).await;
    fixture.fsync = Fsync::Interval(Duration::from_secs(60));
    fixture.start_router(1).await;
    sleep(Duration::from_secs(1)).await;
    let main = fixture.main();
    fixture.spool_delete().await;
    fixture.kill(0).await;
    sleep(PEER_TIMEOUT * 2).await;
    assert_eq!(fixture.statistics(1).servers_fenced_by_peers, 0, "the fence has expired");
    fixture.kill(1).await;
    fixture.disks[1].crash(|_| 0);
    main.be(Health::Well);
    fixture.start_router(1).await;
    assert_eq!(fixture.get(1, "k").await, TKO, "from the start");
    sleep(REPAIR).await;
    assert_eq!(fixture.get(1, "k").await, MISS);
}

/// A peer with a shorter time-out let the fence expire, flushed the server and read it again, while the router with the
/// backlog went on to acknowledge deletes.
#[tokio::test(start_paused = true)]
async fn a_fence_lasts_for_as_long_as_the_router_with_the_backlog_relies_on_it() {
    for is_restarted in [false, true] {
        let mut fixture = Fixture::start().await;
        fixture.peer_timeouts[1] = Duration::from_millis(500);
        fixture.restart(1).await;
        sleep(Duration::from_secs(1)).await;
        let main = fixture.main();
        fixture.spool_delete().await;
        // From now on it reaches nothing, and relies on what was confirmed.
        fixture.isolate(0);
        main.be(Health::Well);
        if is_restarted {
            fixture.restart(1).await;
        }
        sleep(Duration::from_millis(1_000)).await;
        main.put("k", "old");
        assert_eq!(fixture.delete(0, "k").await, NOT_FOUND);
        assert_eq!(fixture.get(1, "k").await, TKO, "{is_restarted}");
        sleep(PEER_TIMEOUT).await;
        assert!(fixture.delete(0, "k").await.is_err(), "nothing confirms it");
        sleep(PEER_TIMEOUT).await;
        assert_eq!(fixture.get(1, "k").await, MISS, "flushed");
    }
}

/// The file of the fence kept the time of before: after a restart of the peer the server was flushed and read while the
/// router with the backlog still acknowledged deletes.
#[tokio::test(start_paused = true)]
async fn a_fence_lasts_as_long_after_its_router_was_given_more_time() {
    let mut fixture = Fixture::start().await;
    fixture.peer_timeouts[..2].fill(Duration::from_millis(500));
    for router in 0..2 {
        fixture.restart(router).await;
    }
    sleep(Duration::from_secs(1)).await;
    let main = fixture.main();
    fixture.spool_delete().await;
    sleep(Duration::from_secs(1)).await;
    fixture.peer_timeouts[0] = PEER_TIMEOUT;
    fixture.restart(0).await;
    sleep(Duration::from_secs(1)).await;
    // From now on it reaches nothing, and relies on what was confirmed.
    fixture.isolate(0);
    main.be(Health::Well);
    fixture.restart(1).await;
    sleep(Duration::from_secs(1)).await;
    main.put("k", "old");
    assert_eq!(fixture.delete(0, "k").await, NOT_FOUND);
    assert_eq!(fixture.get(1, "k").await, TKO);
}

/// Once an address with a comma was not parsed, and one too long for a request made the whole line of requests
/// malformed.
#[tokio::test(start_paused = true)]
async fn an_odd_address_does_not_prevent_other_servers_from_being_fenced() {
    for (odd, is_fenced) in [("o(d),d:1", true), (&format!("{}:1", "long".repeat(60)), false)] {
        let configuration = format!(
            r#"{{ "pools": {{ "A": {{ "servers": ["main:1"] }}, "B": {{ "servers": ["{odd}"] }} }},
                "route": {{ "type": "PrefixSelectorRoute", "policies": {{ "b": "PoolRoute|B" }}, "wildcard": "PoolRoute|A" }} }}"#
        );
        let mut fixture = Fixture::start().await;
        fixture.restart_all(&configuration).await;
        for address in [MAIN, odd] {
            fixture.network.server(address).be(Health::Gone);
        }
        assert_eq!(fixture.delete(0, "b").await.is_ok(), is_fenced, "{odd}");
        assert_eq!(fixture.delete(0, "a").await, NOT_FOUND, "{odd}");
        assert_eq!(fixture.statistics(1).servers_fenced_by_peers, 1 + u64::from(is_fenced));
        for address in [MAIN, odd] {
            fixture.network.server(address).be(Health::Well);
        }
        sleep(REPAIR).await;
        assert_eq!((fixture.statistics(1).servers_fenced_by_peers, fixture.get(1, "b").await), (0, MISS));
    }
}

/// Once any client could fill a router's table with servers that do not exist.
#[tokio::test(start_paused = true)]
async fn fences_of_unknown_servers_do_not_push_out_configured_ones() {
    const UNCONFIGURED_SERVERS_MAX: usize = 1_000;
    let fixture = Fixture::start().await;
    let view = fixture.network.view("unknown");
    let mut stream = view.connect(&Address(host(1).into())).await.expect("it listens");
    let fenced = request_from_peer(&mut stream, "fence", 0..3_000).await;
    assert_eq!(fenced, UNCONFIGURED_SERVERS_MAX);
    fixture.main().be(Health::Gone);
    assert_eq!(fixture.delete(0, "k").await, NOT_FOUND, "a configured server is fenced");
    fixture.main().be(Health::Well);
    assert_eq!(request_from_peer(&mut stream, "release", 0..3_000).await, 3_000);
    let fenced = request_from_peer(&mut stream, "fence", 3_000..6_000).await;
    assert_eq!(fenced, UNCONFIGURED_SERVERS_MAX, "idle servers are removed");
    assert!(fixture.disks[1].folders().unwrap().len() <= UNCONFIGURED_SERVERS_MAX + 2, "on disk, too");
}

/// Asks a router to fence or release servers that do not exist; returns how many of the requests succeed.
async fn request_from_peer(stream: &mut Box<dyn Stream>, verb: &str, numbers: Range<usize>) -> usize {
    let mut done = 0;
    for number in numbers {
        let sequence = number + if verb == "release" { 10_000 } else { 0 };
        let line = format!("get __mcrouter__.spool_{verb}(00000000000000aa,{sequence},nowhere-{number}:1)\r\n");
        stream.write_all(line.as_bytes()).await.expect("it reads");
        let mut reply = Vec::new();
        while !reply.ends_with(b"END\r\n") {
            assert!(stream.read_buf(&mut reply).await.expect("it replies") > 0);
        }
        done += usize::from(String::from_utf8_lossy(&reply).contains("\r\nok\r\n"));
    }
    done
}
