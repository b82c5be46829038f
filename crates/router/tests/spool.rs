//! The spool under a paused clock: trees of routes over servers that fail, storage in memory, and the replay. All
//! tests assert the same: no acknowledged delete is lost, and no server is read before it has applied its backlog.

use crate::fake_network::Health;
use crate::spool_router::*;
use crate::tree_requests::*;
use bytes::Bytes;
use lookaside_client::PERMIT_ENDS_AFTER;
use lookaside_protocol::meta::{MetaOperation, MetaReply, MetaStatus, MetaVerb};
use lookaside_protocol::{ErrorReply, Operation, Reply};
use lookaside_router::{Backlog, Disk as _, Fsync, SpoolCounts, SpoolSettings};
use lookaside_routing::Address;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn a_lost_delete_is_replayed_before_the_server_is_read() {
    let fixture = Fixture::default();
    let (router, main) = (fixture.start(ONE, 2), fixture.main());
    main.put("k", "old");
    assert_eq!(router.get(0, "k").await, value("old"));
    main.be(Health::Frozen);
    let syncs = fixture.disk.syncs();
    assert_eq!(router.delete(1, "k").await, NOT_FOUND, "spooled");
    assert_eq!(router.get(0, "k").await, TKO, "one timeout makes no server TKO, but one spooled delete fences it");
    assert_eq!(router.set(0, "k", "new").await, TKO);
    assert_eq!(router.delete(0, "l").await, NOT_FOUND, "spooled without asking the server");
    assert_eq!(router.backlog().deletes, 2);
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, TKO, "while the server is frozen");
    fixture.repair().await;
    assert_eq!(router.get(0, "k").await, MISS);
    assert_eq!(router.get(1, "k").await, MISS);
    assert_eq!((router.backlog(), router.statistics().counts.replayed), (Backlog::default(), 2));
    assert_eq!(fixture.disk.syncs(), syncs + 2, "each was synced before it was acknowledged");
}

#[tokio::test(start_paused = true)]
async fn a_single_lost_delete_fences_the_server_only_until_it_is_replayed() {
    let fixture = Fixture::default();
    let (router, main) = (fixture.start(ONE, 1), fixture.main());
    router.get(0, "k").await.expect("it is well");
    main.be(Health::Frozen);
    let delete = router.delete(0, "k");
    let thaw = async {
        sleep(Duration::from_millis(99)).await;
        main.be(Health::Gone);
        main.be(Health::Well);
    };
    assert_eq!(tokio::join!(delete, thaw).0, NOT_FOUND);
    sleep(Duration::from_millis(5)).await;
    assert_eq!(router.get(0, "k").await, MISS);
}

/// A client that reads servers directly does not know of a fence until it asks for its next permit.
#[tokio::test(start_paused = true)]
async fn a_delete_waits_for_the_permits_from_before_its_fence() {
    let settings = SpoolSettings::default();
    let permits = settings.read_permits.clone();
    let fixture = Fixture::with(settings);
    let router = fixture.start(ONE, 1);
    fixture.main().be(Health::Gone);
    permits.record();
    let started = Instant::now();
    assert_eq!(router.delete(0, "k").await, NOT_FOUND);
    let waited = started.elapsed();
    assert!(waited >= PERMIT_ENDS_AFTER && waited < PERMIT_ENDS_AFTER * 2, "{waited:?}");
    permits.record();
    let started = Instant::now();
    assert_eq!(router.delete(0, "l").await, NOT_FOUND);
    assert!(started.elapsed() < Duration::from_millis(1), "the permits since then name the server");
}

/// The wait is for what clients may read. Once the server has applied the delete, they may read that.
#[tokio::test(start_paused = true)]
async fn a_delete_that_is_replayed_meanwhile_waits_for_no_permit() {
    let settings = SpoolSettings::default();
    let permits = settings.read_permits.clone();
    let fixture = Fixture::with(settings);
    let (router, main) = (fixture.start(ONE, 1), fixture.main());
    main.put("k", "old");
    main.be(Health::Gone);
    permits.record();
    let started = Instant::now();
    let return_soon = async {
        sleep(Duration::from_millis(20)).await;
        main.be(Health::Well);
        router.spool.retry_now(&Address(MAIN.into()));
    };
    assert_eq!(tokio::join!(router.delete(0, "k"), return_soon).0, NOT_FOUND, "spooled");
    assert!(!main.has("k"));
    assert!(started.elapsed() < PERMIT_ENDS_AFTER / 2, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_backlog_of_a_killed_router_is_replayed_by_the_next_before_it_reads() {
    let fixture = Fixture::default();
    let (router, main) = (fixture.start_with_backlog(Health::Gone).await, fixture.main());
    router.kill().await;
    fixture.disk.crash(|_| 0);
    main.be(Health::Well);
    let router = fixture.start(ONE, 1);
    assert_eq!(router.get(0, "k").await, TKO, "from the start");
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, MISS);
    let SpoolCounts { spooled, recovered, replayed, .. } = router.statistics().counts;
    assert_eq!((spooled, recovered, replayed), (0, 1, 1), "none is replayed that is counted nowhere");
    router.kill().await;
    assert_eq!(fixture.start(ONE, 1).backlog(), Backlog::default(), "nothing is left on disk");
}

/// Once a peer fence outlived the last peer, and its server was never read again: only routers with peers expired
/// fences.
#[tokio::test(start_paused = true)]
async fn a_peer_fence_expires_although_no_peers_are_configured() {
    let fixture = Fixture::default();
    fixture.disk.write("main%3A1", "00c0ffee00c0ffee.fence", 0, b"fenced\n", true).expect("it fits");
    let (router, main) = (fixture.start(ONE, 1), fixture.main());
    main.put("k", "old");
    assert_eq!(router.get(0, "k").await, TKO);
    sleep(fixture.settings.peer_timeout + REPAIR).await;
    assert_eq!(router.get(0, "k").await, MISS);
    assert_eq!(main.asked("flush_all").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_permanently_rejected_delete_does_not_block_the_rest() {
    let fixture = Fixture::default();
    let (router, main) = (fixture.start(ONE, 1), fixture.main());
    main.put("k", "old");
    main.be(Health::Gone);
    let hold_off = Operation::Delete { hold_off_ms: 2_000 };
    assert_eq!(router.request(0, "k", hold_off).await, NOT_FOUND);
    main.refuse("delete-hold-off", "CLIENT_ERROR bad command line format");
    main.refuse("md", "ERROR");
    let meta = MetaOperation { verb: MetaVerb::Delete, flags: "q b O7".into(), value: None };
    let reply = router.request(0, "a2V5", Operation::Meta(meta)).await;
    let nothing_found = MetaReply { status: MetaStatus::NotFound, flags: Bytes::from_static(b"b O7"), value: None };
    assert_eq!(reply, Ok(Reply::Meta(nothing_found)));
    fixture.repair().await;
    assert_eq!(router.get(0, "k").await, MISS, "without its hold-off");
    assert_eq!((router.statistics().counts.replayed, router.statistics().counts.refused), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_delete_with_a_server_error_is_retried() {
    let fixture = Fixture::default();
    let (router, main) = (fixture.start_with_backlog(Health::Gone).await, fixture.main());
    main.refuse("delete", "SERVER_ERROR busy");
    fixture.repair().await;
    assert_eq!(router.get(0, "k").await, TKO);
    main.refusals.lock().unwrap().clear();
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, MISS);
}

/// A router of another cluster stayed fenced for ever, and all later deletes waited behind one that it has no route
/// for. Its client, an invalidator for example, got the reply that there was no such key.
#[tokio::test(start_paused = true)]
async fn a_delete_that_a_remote_router_has_no_route_for_is_not_spooled() {
    let remote = r#"{
        "pools": { "A": { "servers": ["main:1"], "keep_routing_prefix": true } }, "route": "PoolRoute|A"
    }"#;
    for why in ["SERVER_ERROR RootRoute: No rh found", "SERVER_ERROR no route: no pool"] {
        let fixture = Fixture::default();
        let (router, main) = (fixture.start(remote, 1), fixture.main());
        main.refuse("delete", why);
        let expected = why.strip_prefix("SERVER_ERROR ").expect("it is one").as_bytes();
        let refused = Ok(Reply::Error(ErrorReply::Server(Bytes::from_static(expected))));
        assert_eq!(router.delete(0, "k").await, refused, "the client learns it");
        assert_eq!((router.get(0, "k").await, router.backlog().deletes), (MISS, 0));
        // The same of one that did not answer at first. It is not in the way of the next.
        main.be(Health::Gone);
        main.put("l", "old");
        let hold_off = Operation::Delete { hold_off_ms: 2_000 };
        assert_eq!(router.delete(0, "k").await, NOT_FOUND, "spooled");
        assert_eq!(router.request(0, "l", hold_off).await, NOT_FOUND, "spooled");
        fixture.repair().await;
        assert_eq!((router.get(0, "l").await, router.backlog().deletes), (MISS, 0));
        assert_eq!((router.statistics().counts.replayed, router.statistics().counts.refused), (1, 1));
    }
}

/// As in an upgrade, also one that fails.
#[tokio::test(start_paused = true)]
async fn a_closed_spool_is_on_disk_and_accepts_no_further_deletes() {
    let fixture = Fixture::with(SpoolSettings { fsync: Fsync::Interval(REPAIR), ..SpoolSettings::default() });
    let (router, main) = (fixture.start_with_backlog(Health::Frozen).await, fixture.main());
    main.put("l", "old");
    router.replay.abort();
    router.spool.close().await.expect("it is released");
    assert!(router.delete(0, "l").await.is_err(), "it is not spooled");
    assert_eq!(router.get(0, "k").await, TKO, "not read by the old process either");
    assert!(router.spool.close().await.is_err(), "it is closed already");
    fixture.disk.crash(|_| 0);
    main.be(Health::Well);
    let next = fixture.start(ONE, 1);
    assert_eq!(next.get(0, "k").await, TKO, "from the start");
    sleep(REPAIR).await;
    assert_eq!((next.get(0, "k").await, next.get(0, "l").await), (MISS, value("old")));
}

/// Sets, deletes and gets on two threads of a router while the server freezes, stops and returns, and the router
/// itself is killed: a get that starts after a delete was acknowledged never returns a value that was set before the
/// delete started.
#[tokio::test(start_paused = true)]
async fn a_deleted_value_is_never_read_again() {
    let mut spooled = 0;
    for seed in 0..150 {
        spooled += run_random_outages(seed).await;
    }
    assert!(spooled > 300, "the outages hit deletes: {spooled}");
}

async fn run_random_outages(seed: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let bytes_max = if random.bool() { 200 } else { 1 << 20 };
    let fsync = if random.bool() { Fsync::Always } else { Fsync::Interval(REPAIR) };
    let fixture = Fixture::with(SpoolSettings { bytes_max, fsync, ..SpoolSettings::default() });
    let main = fixture.main();
    let mut router = fixture.start(ONE, 2);
    let mut spooled = 0;
    // The versions that were deleted: a key must be gone or newer.
    let mut floors: BTreeMap<String, u64> = BTreeMap::new();
    // Those that a crash of the machine leaves with intervals between syncs.
    let mut synced_floors = floors.clone();
    for version in 1..80 {
        let (key, thread) = (format!("k{}", random.u8(0..4)), random.usize(0..2));
        match random.u8(0..12) {
            0 => main.be(Health::Gone),
            1 => main.be(Health::Frozen),
            2 | 3 => main.be(Health::Well),
            4 => sleep(Duration::from_millis(random.u64(0..400))).await,
            5 if random.u8(0..3) == 0 => {
                spooled += router.statistics().counts.spooled;
                let is_closed = random.bool();
                if is_closed {
                    // As in an upgrade.
                    router.replay.abort();
                    router.spool.close().await.expect("it is released");
                }
                router.kill().await;
                if fsync != Fsync::Always && !is_closed {
                    floors.clone_from(&synced_floors);
                }
                fixture.disk.crash(|bytes| random.usize(0..=bytes));
                router = fixture.start(ONE, 2);
                synced_floors.clone_from(&floors);
            }
            5 => {
                fixture.sync_all();
                synced_floors.clone_from(&floors);
            }
            6..8 => drop(set_safely(&router, thread, &key, version).await),
            8..10 => {
                if router.delete(thread, &key).await.is_ok() {
                    floors.insert(key, version);
                }
            }
            _ => {
                if let Ok(Reply::Value { value, .. }) = router.get(thread, &key).await {
                    let found: u64 = String::from_utf8_lossy(&value).parse().expect("a version");
                    let floor = floors.get(&key).copied().unwrap_or_default();
                    assert!(found > floor, "seed {seed}: {key} is {found}, deleted at {floor}");
                }
            }
        }
    }
    spooled + router.statistics().counts.spooled
}

/// Sets only while the server replies. A set without a reply may be applied at any later time, as with any memcached.
async fn set_safely(router: &RunningRouter, thread: usize, key: &str, version: u64) -> Option<()> {
    router.get(thread, key).await.ok()?;
    router.set(thread, key, &version.to_string()).await.ok().map(drop)
}
