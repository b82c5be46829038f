//! The bounds of the spool under a paused clock: a full disk, and the largest backlog of a server and of all together.
//! A server whose deletes are not all stored is flushed before it is read.

use crate::fake_network::Health;
use crate::spool_router::*;
use crate::tree_requests::*;
use lookaside_router::{Backlog, Fsync, SpoolSettings};
use lookaside_routing::Failure;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn a_delete_that_cannot_be_spooled_fails() {
    let fixture = Fixture::default();
    let (router, main) = (fixture.start(ONE, 1), fixture.main());
    main.put("k", "old");
    main.be(Health::Gone);
    fixture.disk.limit_free_bytes(Some(20));
    assert_eq!(router.delete(0, "k").await, Err(Failure::ConnectFailed));
    assert_eq!((router.backlog(), router.statistics().counts.append_failures), (Backlog::default(), 1));
    fixture.disk.limit_free_bytes(None);
    assert_eq!(router.delete(0, "k").await, NOT_FOUND);
    fixture.repair().await;
    assert_eq!(router.get(0, "k").await, MISS);
}

#[tokio::test(start_paused = true)]
async fn a_server_with_too_large_a_backlog_is_flushed_before_it_is_read() {
    let fixture = Fixture::with(SpoolSettings { bytes_max: 1_000, ..SpoolSettings::default() });
    let (router, main) = (fixture.start(ONE, 1), fixture.main());
    main.put("never deleted", "old");
    main.put("k99", "old");
    main.be(Health::Gone);
    for number in 0..100 {
        assert_eq!(router.delete(0, &format!("k{number}")).await, NOT_FOUND);
    }
    let statistics = router.statistics();
    assert_eq!((statistics.counts.overflows, router.backlog().flush_pending), (1, true));
    assert!(router.backlog().bytes < 100);
    router.kill().await;
    let router = fixture.start(ONE, 1);
    assert!(router.backlog().flush_pending, "also after a restart");
    main.refuse("flush_all", "CLIENT_ERROR flush_all not allowed");
    fixture.repair().await;
    assert_eq!(router.get(0, "k99").await, TKO, "a server that refuses flush_all is not read");
    main.refusals.lock().unwrap().clear();
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k99").await, MISS);
    assert_eq!((main.has("never deleted"), router.statistics().counts.flushes), (false, 1));
}

/// Deletes that had been synced long before were replaced by a flush record that had not been. A crash of the machine
/// then lost all of them, and the next run read the server at once.
#[tokio::test(start_paused = true)]
async fn a_flush_record_survives_a_crash_between_two_syncs() {
    let settings = SpoolSettings { fsync: Fsync::Interval(REPAIR), bytes_max: 1_000, ..SpoolSettings::default() };
    let fixture = Fixture::with(settings);
    let (router, main) = (fixture.start(ONE, 1), fixture.main());
    main.put("k0", "old");
    main.be(Health::Gone);
    assert_eq!(router.delete(0, "k0").await, NOT_FOUND);
    fixture.sync_all();
    for number in 1..100 {
        assert_eq!(router.delete(0, &format!("k{number}")).await, NOT_FOUND);
    }
    assert_eq!(router.statistics().counts.overflows, 1);
    router.kill().await;
    fixture.disk.crash(|_| 0);
    main.be(Health::Well);
    let router = fixture.start(ONE, 1);
    assert_eq!((router.backlog().flush_pending, router.get(0, "k0").await), (true, TKO));
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k0").await, MISS);
}

#[tokio::test(start_paused = true)]
async fn the_backlog_of_all_servers_together_is_bounded() {
    const BOTH: &str = r#"{
        "pools": { "A": { "servers": ["main:1"] }, "B": { "servers": ["gutter:2"] } },
        "route": { "type": "AllSyncRoute", "children": ["PoolRoute|A", "PoolRoute|B"] }
    }"#;
    let fixture = Fixture::with(SpoolSettings { total_bytes_max: 500, ..SpoolSettings::default() });
    let router = fixture.start(BOTH, 1);
    for server in [MAIN, GUTTER] {
        fixture.network.server(server).be(Health::Gone);
    }
    for number in 0..50 {
        assert_eq!(router.delete(0, &format!("k{number}")).await, NOT_FOUND);
        assert!(router.statistics().pending_bytes <= 500 + 17, "the bound and one flush record");
    }
    assert!(router.statistics().counts.overflows > 0);
    for server in [MAIN, GUTTER] {
        fixture.network.server(server).put("k3", "old");
        fixture.network.server(server).be(Health::Well);
    }
    sleep(REPAIR).await;
    assert_eq!(router.statistics().servers_fenced, 0);
    assert!(!fixture.main().has("k3") && !fixture.network.server(GUTTER).has("k3"));
}
