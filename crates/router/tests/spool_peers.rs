//! Several routers of one cluster, each with a spool, over one server: a value whose delete one router has
//! acknowledged is read by none of them. The clock is paused, connections between routers and server are cut and
//! restored, routers are killed.

use crate::fake_network::Health;
use crate::peer_cluster::{CONFIGURATION, Fixture, MAIN, PEER_TIMEOUT, ROUTERS, RunningRouter, SERVER_TIMEOUT, host};
use bytes::Bytes;
use lookaside_client::{Network as _, PERMIT_ENDS_AFTER, Stream};
use lookaside_protocol::{Operation, Reply, Request};
use lookaside_router::{Disk as _, Fsync, PeerMissing, RouterConfig, SpoolStats, Tree};
use lookaside_routing::{Address, Context, Defaults, Failure, Outcome, TkoReason};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep};

const REPAIR: Duration = Duration::from_secs(10);

const NOT_FOUND: Outcome = Ok(Reply::NotFound);
const TKO: Outcome = Err(Failure::Tko(TkoReason::Fenced));
const MISS: Outcome = Ok(Reply::Miss);

#[tokio::test(start_paused = true)]
async fn a_backlog_of_one_router_fences_the_server_at_all() {
    let fixture = Fixture::start().await;
    let main = fixture.main();
    main.put("k", "old");
    fixture.get(1, "k").await.expect("it is well");
    main.be(Health::Frozen);
    assert_eq!(fixture.delete(0, "k").await, NOT_FOUND);
    for router in 0..ROUTERS {
        assert_eq!(fixture.get(router, "k").await, TKO, "{router}");
    }
    assert_eq!(fixture.statistics(1).servers_fenced_by_peers, 1);
    sleep(PEER_TIMEOUT * 3).await;
    assert_eq!(fixture.get(2, "k").await, TKO, "the fence is renewed");
    main.be(Health::Well);
    sleep(REPAIR).await;
    for router in 0..ROUTERS {
        assert_eq!(fixture.get(router, "k").await, MISS, "{router}");
    }
    assert_eq!(main.asked("flush_all").len(), 0);
}

/// Clients of a peer that read servers directly do not know of its fence until they ask for their next permits.
#[tokio::test(start_paused = true)]
async fn a_peer_confirms_its_fence_when_the_permits_of_its_clients_have_ended() {
    let fixture = Fixture::start().await;
    fixture.main().be(Health::Frozen);
    let peer = fixture.routers[2].as_ref().expect("it runs");
    let started = Instant::now();
    let renew = async {
        loop {
            peer.proxy.shared().read_permits().record();
            sleep(Duration::from_millis(70)).await;
        }
    };
    let delete = tokio::select! {
        outcome = fixture.delete(0, "k") => outcome,
        () = renew => unreachable!("it never ends"),
    };
    assert_eq!(delete, NOT_FOUND);
    let waited = started.elapsed();
    assert!(waited > PERMIT_ENDS_AFTER, "{waited:?}");
    assert!(waited < PERMIT_ENDS_AFTER + SERVER_TIMEOUT * 3, "it does not wait for the permits since then: {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_delete_is_forwarded_by_a_peer_that_reaches_the_server() {
    let fixture = Fixture::start().await;
    let main = fixture.main();
    main.put("k", "old");
    main.put("l", "other");
    fixture.cut_server(0, true);
    assert_eq!(fixture.delete(0, "k").await, NOT_FOUND);
    assert!(!main.has("k"), "deleted before it was acknowledged");
    assert_eq!(fixture.get(1, "k").await, MISS);
    assert!(matches!(fixture.get(1, "l").await, Ok(Reply::Value { .. })), "the others still read");
    sleep(REPAIR).await;
    assert_eq!(fixture.statistics(0).pending, 0, "replayed through a peer");
    fixture.cut_server(0, false);
    sleep(REPAIR).await;
    assert_eq!(fixture.get(0, "k").await, MISS);
}

/// Once no batch with a repeated key was ever forwarded, because the second reply was missed: one router without a
/// connection then kept a healthy server fenced at all others.
#[tokio::test(start_paused = true)]
async fn a_batch_with_a_repeated_key_is_forwarded() {
    let fixture = Fixture::start().await;
    let main = fixture.main();
    main.put("k", "old");
    fixture.cut_server(0, true);
    let running = fixture.routers[0].as_ref().expect("it runs");
    let delete = Request { key: Bytes::from_static(b"k"), operation: Operation::Delete { hold_off_ms: 0 } };
    let outcomes = running.proxy.tree().root().route(vec![delete; 2], &Context::default()).await;
    assert_eq!(outcomes, [NOT_FOUND, NOT_FOUND]);
    assert!(!main.has("k"));
    assert_eq!(fixture.statistics(1).servers_fenced_by_peers, 0, "no other router fences it");
    sleep(REPAIR).await;
    assert_eq!(fixture.statistics(0).pending, 0, "replayed through a peer");
}

#[tokio::test(start_paused = true)]
async fn a_delete_is_not_acknowledged_while_a_peer_is_unreachable() {
    let mut fixture = Fixture::start().await;
    fixture.main().put("k", "old");
    fixture.main().be(Health::Frozen);
    fixture.cut_routers(0, 2, true);
    assert!(fixture.delete(0, "k").await.is_err());
    assert_eq!(fixture.statistics(0).counts.refused_no_peer, 1);
    fixture.cut_routers(0, 2, false);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.delete(0, "k").await, NOT_FOUND);
    fixture.kill(2).await;
    sleep(PEER_TIMEOUT).await;
    assert!(fixture.delete(0, "k").await.is_err(), "its confirmation is too old");
    fixture.start_router(2).await;
    assert_eq!(fixture.get(2, "k").await, TKO, "fenced from the start");
}

/// While a peer is away, a delete is stored and fails, and its sender repeats it. Once every repeat was stored again: a
/// few thousand deletes that were repeated for minutes exceeded the backlog's limit, and the server was flushed.
#[tokio::test(start_paused = true)]
async fn a_repeated_delete_is_stored_once_for_each_attempt_to_replay_it() {
    let fixture = Fixture::start_with(PeerMissing::Fail, 1_000).await;
    let main = fixture.main();
    (0..10).for_each(|key| main.put(&format!("k{key}"), "old"));
    main.put("l", "other");
    main.be(Health::Frozen);
    fixture.cut_routers(0, 2, true);
    for _ in 0..100 {
        for key in 0..10 {
            assert!(fixture.delete(0, &format!("k{key}")).await.is_err());
        }
    }
    let statistics = fixture.statistics(0);
    assert!(statistics.pending <= 20, "one may be repeated that is being replayed: {}", statistics.pending);
    assert_eq!(statistics.counts.overflows, 0);
    assert_eq!(statistics.counts.spooled + statistics.counts.repeated, 1_000);
    fixture.cut_routers(0, 2, false);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.delete(0, "k0").await, NOT_FOUND, "a repeat fences, too");
    for router in 0..ROUTERS {
        assert_eq!(fixture.get(router, "k0").await, TKO, "{router}");
    }
    main.be(Health::Well);
    sleep(REPAIR).await;
    assert!((0..10).all(|key| !main.has(&format!("k{key}"))) && main.has("l"), "replayed, and not flushed");
}

#[tokio::test(start_paused = true)]
async fn a_server_stays_fenced_until_the_last_backlog_is_empty() {
    let fixture = Fixture::start().await;
    let main = fixture.main();
    main.put("k", "old");
    main.be(Health::Frozen);
    assert_eq!((fixture.delete(0, "j").await, fixture.delete(1, "l").await), (NOT_FOUND, NOT_FOUND));
    assert_eq!(fixture.delete(0, "k").await, NOT_FOUND, "spooled without asking the server");
    fixture.cut_server(0, true);
    fixture.cut_routers(0, 1, true);
    fixture.cut_routers(2, 0, true);
    main.be(Health::Well);
    sleep(PEER_TIMEOUT / 2).await;
    assert_eq!(fixture.statistics(1).pending, 0, "it has replayed its own");
    assert!(main.has("k"));
    assert_eq!((fixture.get(1, "k").await, fixture.get(2, "k").await), (TKO, TKO));
}

#[tokio::test(start_paused = true)]
async fn with_peer_missing_ignore_deletes_are_acknowledged_without_a_peer() {
    let mut fixture = Fixture::start_with(PeerMissing::Ignore, 1 << 20).await;
    fixture.main().be(Health::Frozen);
    fixture.kill(2).await;
    assert_eq!(fixture.delete(0, "k").await, NOT_FOUND);
    assert_eq!(fixture.get(1, "k").await, TKO, "the reachable peer fences");
}

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
    main.be(Health::Well);
    sleep(REPAIR).await;
    for router in 0..ROUTERS {
        assert!(matches!(fixture.get(router, "l").await, Ok(Reply::Value { .. })), "{router}");
    }
    assert_eq!(main.asked("flush_all").len(), 0);
}

/// Threads replace their trees one by one, which takes up to two seconds. Once the server counted as removed before
/// that: peers were not asked to fence it, and the deletes of old trees failed.
#[tokio::test(start_paused = true)]
async fn a_delete_on_an_old_tree_is_acknowledged_although_a_new_configuration_lacks_its_server() {
    let fixture = Fixture::start().await;
    let RunningRouter { proxy, spool, options, .. } = fixture.routers[0].as_ref().expect("it runs");
    let old = proxy.tree();
    let other = CONFIGURATION.replace(MAIN, "other:1");
    let config = RouterConfig::parse(&other, &Defaults::default(), options).expect("it is good");
    let config = Arc::new(config.with_spool(Some(spool.clone())));
    proxy.set_tree(Tree::build(&config, fixture.network.view(&host(0)), 1, Some(&old)));
    fixture.main().be(Health::Gone);
    let delete = Request { key: "k".into(), operation: Operation::Delete { hold_off_ms: 0 } };
    assert_eq!(old.root().route(vec![delete], &Context::default()).await, [NOT_FOUND]);
    assert_eq!(fixture.get(1, "k").await, TKO, "its peers fence the server");
    drop(old);
    fixture.main().be(Health::Well);
    sleep(REPAIR).await;
    assert_eq!(fixture.statistics(0).pending, 1, "the last tree that names the server is gone: its backlog stays");
}

/// Once a key of more than about 190 bytes prevented its whole batch from being forwarded: a router without a
/// connection then kept a healthy server fenced at all others.
#[tokio::test(start_paused = true)]
async fn a_batch_with_the_longest_key_is_forwarded() {
    let fixture = Fixture::start().await;
    let main = fixture.main();
    let long = "l,(".repeat(100)[..250].to_owned();
    let keys = ["k", &long, "m"];
    keys.iter().for_each(|key| main.put(key, "old"));
    fixture.cut_server(0, true);
    let running = fixture.routers[0].as_ref().expect("it runs");
    let delete = |key: &&str| Request {
        key: Bytes::copy_from_slice(key.as_bytes()),
        operation: Operation::Delete { hold_off_ms: 0 },
    };
    let outcomes = running.proxy.tree().root().route(keys.iter().map(delete).collect(), &Context::default()).await;
    assert_eq!(outcomes, [NOT_FOUND, NOT_FOUND, NOT_FOUND]);
    for key in keys {
        assert!(!main.has(key), "{key}");
    }
    assert_eq!(fixture.statistics(1).servers_fenced_by_peers, 0, "no other router fences it");
    sleep(REPAIR).await;
    assert_eq!(fixture.statistics(0).pending, 0, "replayed through a peer");
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
    main.put("k", "old");
    main.be(Health::Frozen);
    assert_eq!(fixture.delete(0, "k").await, NOT_FOUND);
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
        fixture.kill(1).await;
        fixture.start_router(1).await;
        sleep(Duration::from_secs(1)).await;
        let main = fixture.main();
        main.put("k", "old");
        main.be(Health::Frozen);
        assert_eq!(fixture.delete(0, "k").await, NOT_FOUND);
        // From now on it reaches nothing, and relies on what was confirmed.
        fixture.cut_server(0, true);
        (1..ROUTERS).for_each(|peer| fixture.cut_routers(0, peer, true));
        main.be(Health::Well);
        if is_restarted {
            fixture.kill(1).await;
            fixture.start_router(1).await;
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
        fixture.kill(router).await;
        fixture.start_router(router).await;
    }
    sleep(Duration::from_secs(1)).await;
    let main = fixture.main();
    main.put("k", "old");
    main.be(Health::Frozen);
    assert_eq!(fixture.delete(0, "k").await, NOT_FOUND);
    sleep(Duration::from_secs(1)).await;
    fixture.peer_timeouts[0] = PEER_TIMEOUT;
    fixture.kill(0).await;
    fixture.start_router(0).await;
    sleep(Duration::from_secs(1)).await;
    // From now on it reaches nothing, and relies on what was confirmed.
    fixture.cut_server(0, true);
    (1..ROUTERS).for_each(|peer| fixture.cut_routers(0, peer, true));
    main.be(Health::Well);
    fixture.kill(1).await;
    fixture.start_router(1).await;
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
        let mut fixture = Fixture::start_with(PeerMissing::Fail, 1 << 20).await;
        for router in 0..ROUTERS {
            fixture.kill(router).await;
        }
        fixture.configuration = configuration;
        for router in 0..ROUTERS {
            fixture.start_router(router).await;
        }
        sleep(Duration::from_secs(1)).await;
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

/// Once deletes that waited for a peer were forwarded long after their sender had given up, in addition to its later
/// attempts.
#[tokio::test(start_paused = true)]
async fn a_delete_whose_sender_has_given_up_is_not_forwarded() {
    let fixture = Fixture::start().await;
    let main = fixture.main();
    fixture.cut_server(0, true);
    [1, 2].iter().for_each(|peer| fixture.network.cut(&host(0), &host(*peer), true));
    let delete = |number: u64| {
        let fixture = &fixture;
        async move {
            sleep(Duration::from_millis(number)).await;
            fixture.delete(0, &format!("k{number}")).await
        }
    };
    let outcomes = tokio::join!(delete(1), delete(2), delete(3), delete(4));
    assert!(outcomes.0.is_err() && outcomes.3.is_err(), "no peer is reachable");
    [1, 2].iter().for_each(|peer| fixture.network.cut(&host(0), &host(*peer), false));
    sleep(REPAIR).await;
    assert_eq!(fixture.statistics(0).pending, 0);
    for number in 2..=4 {
        let times = main.asked(&format!("delete k{number}")).len();
        assert!((1..=2).contains(&times), "once by each peer at most: {times}");
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

/// Sets, deletes and gets at three routers while connections are cut and restored and routers are killed: a get that
/// starts after any router acknowledged a delete returns no value that was set before the delete started.
#[tokio::test(start_paused = true)]
async fn no_router_reads_a_value_that_another_has_deleted() {
    let (mut spooled, mut forwarded, mut flushes) = (0, 0, 0);
    for seed in 0..120 {
        let counts = run_random_outages(seed).await;
        spooled += counts[0];
        forwarded += counts[1];
        flushes += counts[2];
    }
    assert!(spooled > 300 && forwarded > 10 && flushes > 10, "the outages hit: {spooled} {forwarded} {flushes}");
}

async fn run_random_outages(seed: u64) -> [u64; 3] {
    let mut random = fastrand::Rng::with_seed(seed);
    let bytes_max = if random.bool() { 200 } else { 1 << 20 };
    let mut fixture = Fixture::start_with(PeerMissing::Fail, bytes_max).await;
    let mut counts = [0; 3];
    let mut floors: BTreeMap<String, u64> = BTreeMap::new();
    for version in 1..150 {
        let (key, router) = (format!("k{}", random.u8(0..4)), random.usize(0..ROUTERS));
        match random.u8(0..16) {
            0 => fixture.cut_server(router, random.bool()),
            1 => fixture.cut_routers(router, (router + 1) % ROUTERS, random.u8(0..3) == 0),
            2 => fixture.main().be([Health::Gone, Health::Frozen][random.usize(0..2)]),
            3 | 4 => fixture.main().be(Health::Well),
            5 => sleep(Duration::from_millis(random.u64(0..2_000))).await,
            6 if random.bool() => {
                if let Some(running) = &fixture.routers[router] {
                    add_counts(&mut counts, &running.spool.statistics());
                }
                match random.bool() {
                    true => fixture.kill(router).await,
                    false => fixture.upgrade(router).await,
                }
            }
            6 | 7 if fixture.routers[router].is_none() => fixture.start_router(router).await,
            8..11 => {
                // Only where the server replies: a set without a reply may be applied at any later time.
                if fixture.get(router, &key).await.is_ok() {
                    let _ = fixture.set(router, &key, &version.to_string()).await;
                }
            }
            11..13 => {
                if fixture.delete(router, &key).await.is_ok() {
                    floors.insert(key, version);
                }
            }
            _ => {
                if let Ok(Reply::Value { value, .. }) = fixture.get(router, &key).await {
                    let found: u64 = String::from_utf8_lossy(&value).parse().expect("a version");
                    let floor = floors.get(&key).copied().unwrap_or_default();
                    assert!(found > floor, "seed {seed}: {key} is {found} at {router}, deleted at {floor}");
                }
            }
        }
    }
    for running in fixture.routers.iter().flatten() {
        add_counts(&mut counts, &running.spool.statistics());
    }
    for router in 0..ROUTERS {
        fixture.kill(router).await;
    }
    counts
}

fn add_counts(counts: &mut [u64; 3], statistics: &SpoolStats) {
    counts[0] += statistics.counts.spooled;
    counts[1] += statistics.counts.forwarded;
    counts[2] += statistics.counts.flushes;
}
