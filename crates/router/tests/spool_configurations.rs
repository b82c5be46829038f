//! The spool and the routing configuration under a paused clock: servers that leave and return, failover, and pools
//! without `asynclog`.

use crate::fake_network::Health;
use crate::spool_router::*;
use crate::tree_requests::*;
use lookaside_protocol::Reply;
use lookaside_router::{Backlog, Tree};
use lookaside_routing::Failure;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn a_server_that_was_removed_from_the_configuration_is_flushed_when_it_returns() {
    let fixture = Fixture::default();
    let (router, main) = (fixture.start_with_backlog(Health::Gone).await, fixture.main());
    router.kill().await;
    main.be(Health::Well);
    let router = fixture.start(OTHER, 1);
    sleep(REPAIR).await;
    assert_eq!(main.asked("delete").len() + main.asked("flush_all").len(), 0, "nothing is sent to it");
    assert!(router.backlog().flush_pending);
    router.kill().await;
    let router = fixture.start(ONE, 1);
    assert_eq!(router.get(0, "k").await, TKO);
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, MISS);
    assert_eq!((main.asked("flush_all").len(), fixture.network.server(GUTTER).asked("flush_all").len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_new_configuration_keeps_the_backlog() {
    let fixture = Fixture::default();
    let mut router = fixture.start_with_backlog(Health::Gone).await;
    router.trees = vec![Tree::build(&router.config, fixture.network.clone(), 1, None)];
    fixture.main().be(Health::Well);
    assert_eq!(router.get(0, "k").await, TKO, "new destinations, the same fence");
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, MISS);
}

/// Once the backlog of a server that a new configuration no longer names was replayed for ever, and peers stayed
/// fenced.
#[tokio::test(start_paused = true)]
async fn replay_to_a_server_that_a_reload_removes_pauses_until_a_reload_names_it_again() {
    let fixture = Fixture::default();
    let (mut router, main) = (fixture.start_with_backlog(Health::Gone).await, fixture.main());
    router.reload(&fixture, OTHER);
    fixture.repair().await;
    assert_eq!(main.asked("delete").len() + main.asked("flush_all").len(), 0, "nothing is sent to it");
    assert_eq!(router.statistics().servers_fenced, 1, "and its backlog stays");
    router.reload(&fixture, ONE);
    assert_eq!(router.get(0, "k").await, TKO);
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, MISS);
    assert_eq!(router.statistics().servers_fenced, 0);
}

#[tokio::test(start_paused = true)]
async fn a_spooled_delete_is_also_sent_where_gets_fail_over_to() {
    let fixture = Fixture::default();
    let (router, gutter) = (fixture.start(FAILOVER, 1), fixture.network.server(GUTTER));
    fixture.main().be(Health::Gone);
    router.set(0, "k", "old").await.expect("the gutter takes it");
    assert_eq!(router.delete(0, "k").await, Ok(Reply::Deleted), "it was in the gutter");
    assert!(!gutter.has("k"));
    assert_eq!(router.backlog().deletes, 1);
    gutter.refuse("delete", "CLIENT_ERROR no");
    let refused = router.delete(0, "k").await;
    assert!(matches!(refused, Ok(Reply::Error(_))), "the gutter may still hold it: {refused:?}");
}

/// Once a spooled delete failed over as `tko` only. Where only timeouts fail over, the gutter went on serving an old
/// value that gets reached.
#[tokio::test(start_paused = true)]
async fn a_spooled_delete_fails_over_with_every_setting_of_failover_errors() {
    for errors in [r#"["timeout"]"#, r#"{ "gets": ["timeout"], "deletes": [] }"#] {
        let configuration = FAILOVER.replace("\"children\"", &format!("\"failover_errors\": {errors}, \"children\""));
        let fixture = Fixture::default();
        let (router, gutter) = (fixture.start(&configuration, 1), fixture.network.server(GUTTER));
        gutter.put("k", "old");
        fixture.main().be(Health::Frozen);
        assert_eq!(router.get(0, "k").await, value("old"), "{errors}: after a timeout");
        assert_eq!(router.delete(0, "k").await, Ok(Reply::Deleted), "{errors}");
        assert!(!gutter.has("k"), "{errors}");
        gutter.put("l", "old");
        assert_eq!(router.delete(0, "l").await, Ok(Reply::Deleted), "{errors}: spooled at once");
        assert!(!gutter.has("l"), "{errors}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_without_asynclog_is_fenced_too() {
    let configuration = r#"{
        "pools": { "A": { "servers": ["main:1"] } },
        "route": {
            "type": "PrefixSelectorRoute",
            "policies": { "l": { "type": "PoolRoute", "pool": "A", "asynclog": false } }, "wildcard": "PoolRoute|A"
        }
    }"#;
    let fixture = Fixture::default();
    let router = fixture.start(configuration, 1);
    fixture.main().be(Health::Frozen);
    assert_eq!(router.delete(0, "l").await, Err(Failure::TimedOut));
    assert_eq!(router.backlog(), Backlog::default());
    assert_eq!(router.delete(0, "k").await, NOT_FOUND);
    assert_eq!(router.get(0, "l").await, TKO);
}

/// Once such a backlog was never replayed, and the server never read again: only spooling destinations marked the
/// server as configured.
#[tokio::test(start_paused = true)]
async fn a_backlog_is_replayed_although_its_pool_no_longer_has_asynclog() {
    let fixture = Fixture::default();
    let (router, main) = (fixture.start_with_backlog(Health::Frozen).await, fixture.main());
    router.kill().await;
    let without = r#"{
        "pools": { "A": { "servers": ["main:1"] } },
        "route": { "type": "PoolRoute", "pool": "A", "asynclog": false }
    }"#;
    let router = fixture.start(without, 1);
    assert_eq!(router.get(0, "k").await, TKO);
    fixture.repair().await;
    assert_eq!(router.get(0, "k").await, MISS);
    assert_eq!(main.asked("flush_all").len(), 0, "its deletes are replayed");
}
