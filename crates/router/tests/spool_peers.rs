//! Several routers of one cluster, each with a spool, over one server: a value whose delete one router has
//! acknowledged is read by none of them. The clock is paused, connections between routers and server are cut and
//! restored, routers are killed.

use crate::fake_network::Health;
use crate::peer_cluster::{Fixture, MAIN, ONE, PEER_TIMEOUT, ROUTERS, RunningRouter, SERVER_TIMEOUT, host};
use crate::tree_requests::{DELETE, MISS, NOT_FOUND, TKO, request};
use lookaside_client::PERMIT_ENDS_AFTER;
use lookaside_protocol::Reply;
use lookaside_router::{PeerMissing, RouterConfig, SpoolStats, Tree};
use lookaside_routing::Defaults;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn a_backlog_of_one_router_fences_the_server_at_all() {
    let fixture = Fixture::start().await;
    let main = fixture.main();
    main.put("k", "old");
    fixture.get(1, "k").await.expect("it is well");
    main.be(Health::Frozen);
    assert_eq!(fixture.delete(0, "k").await, NOT_FOUND);
    fixture.check_get_of_all("k", &TKO).await;
    assert_eq!(fixture.statistics(1).servers_fenced_by_peers, 1);
    sleep(PEER_TIMEOUT * 3).await;
    assert_eq!(fixture.get(2, "k").await, TKO, "the fence is renewed");
    fixture.repair().await;
    fixture.check_get_of_all("k", &MISS).await;
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
    fixture.check_get_of_all("k0", &TKO).await;
    fixture.repair().await;
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

/// Threads replace their trees one by one, which takes up to two seconds. Once the server counted as removed before
/// that: peers were not asked to fence it, and the deletes of old trees failed.
#[tokio::test(start_paused = true)]
async fn a_delete_on_an_old_tree_is_acknowledged_although_a_new_configuration_lacks_its_server() {
    let fixture = Fixture::start().await;
    let RunningRouter { proxy, spool, options, .. } = fixture.routers[0].as_ref().expect("it runs");
    let old = proxy.tree();
    let other = ONE.replace(MAIN, "other:1");
    let config = RouterConfig::parse(&other, &Defaults::default(), options).expect("it is good");
    let config = Arc::new(config.with_spool(Some(spool.clone())));
    proxy.set_tree(Tree::build(&config, fixture.network.view(&host(0)), 1, Some(&old)));
    fixture.main().be(Health::Gone);
    assert_eq!(request(&old, "k", DELETE).await, NOT_FOUND);
    assert_eq!(fixture.get(1, "k").await, TKO, "its peers fence the server");
    drop(old);
    fixture.repair().await;
    assert_eq!(fixture.statistics(0).pending, 1, "the last tree that names the server is gone: its backlog stays");
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
