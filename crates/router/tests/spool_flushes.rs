//! Flushes of several routers of one cluster, each with a spool, when servers do not answer: no router reads what a flush
//! removes once it is acknowledged.

use crate::fake_network::Health;
use crate::peer_cluster::{Fixture, PEER_TIMEOUT, ROUTERS};
use lookaside_protocol::Reply;
use lookaside_routing::{Failure, Outcome, TkoReason};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const REPAIR: Duration = Duration::from_secs(10);

const TKO: Outcome = Err(Failure::Tko(TkoReason::Fenced));
const MISS: Outcome = Ok(Reply::Miss);

/// A flush in place of deletes is as safe as a delete: no router reads what it removes once it is acknowledged.
#[tokio::test(start_paused = true)]
async fn a_flush_of_a_server_that_hangs_fences_it_at_all_routers() {
    let fixture = Fixture::start().await;
    let main = fixture.main();
    main.put("k", "old");
    main.be(Health::Frozen);
    assert_eq!(fixture.flush_prefix(0, "k").await, "flushed 1");
    for router in 0..ROUTERS {
        assert_eq!(fixture.get(router, "k").await, TKO, "{router}");
    }
    sleep(PEER_TIMEOUT * 3).await;
    main.be(Health::Well);
    sleep(REPAIR).await;
    for router in 0..ROUTERS {
        assert_eq!(fixture.get(router, "k").await, MISS, "{router}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_flush_is_forwarded_by_a_peer_that_reaches_the_server() {
    let fixture = Fixture::start().await;
    let main = fixture.main();
    main.put("k", "old");
    fixture.cut_server(0, true);
    assert_eq!(fixture.flush_prefix(0, "k").await, "flushed 1");
    assert!(!main.has("k"), "flushed before it was acknowledged");
    main.put("l", "new");
    assert!(matches!(fixture.get(1, "l").await, Ok(Reply::Value { .. })), "the others still read");
    assert_eq!(fixture.statistics(1).servers_fenced_by_peers, 0);
    sleep(REPAIR).await;
    assert_eq!(fixture.statistics(0).servers_fenced, 0, "flushed once more through a peer");
    fixture.cut_server(0, false);
    sleep(REPAIR).await;
    assert_eq!(fixture.get(0, "k").await, MISS);
}

#[tokio::test(start_paused = true)]
async fn a_flush_is_not_acknowledged_while_a_peer_is_unreachable() {
    let fixture = Fixture::start().await;
    fixture.main().put("k", "old");
    fixture.main().be(Health::Frozen);
    fixture.cut_routers(0, 2, true);
    let refused = fixture.flush_prefix(0, "k").await;
    assert!(refused.starts_with("refused: ") && refused.contains("a peer is unreachable"), "{refused}");
    fixture.cut_routers(0, 2, false);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.flush_prefix(0, "k").await, "flushed 1");
    assert_eq!(fixture.get(2, "k").await, TKO);
}

/// Groups of servers were asked one after the other, each for as long as a hung one takes. An invalidator gave the flush
/// up before, and began it again from the start, for as long as the servers hung.
#[tokio::test(start_paused = true)]
async fn a_flush_that_meets_many_hung_servers_is_acknowledged_soon() {
    const SERVERS: usize = 300;
    let mut fixture = Fixture::start().await;
    let names: Vec<String> = (0..SERVERS).map(|number| format!("s{number}:1")).collect();
    fixture.configuration = format!(r#"{{ "pools": {{ "A": {{ "servers": {names:?} }} }}, "route": "PoolRoute|A" }}"#);
    names.iter().for_each(|name| fixture.network.server(name).be(Health::Frozen));
    for router in 0..ROUTERS {
        fixture.kill(router).await;
        fixture.start_router(router).await;
    }
    sleep(Duration::from_secs(1)).await;
    for limit in [Duration::from_secs(4), Duration::from_secs(1)] {
        let started = Instant::now();
        assert_eq!(fixture.flush_prefix(0, "k").await, format!("flushed {SERVERS}"));
        assert!(started.elapsed() < limit, "{:?}", started.elapsed());
    }
    assert_eq!(fixture.statistics(1).servers_fenced_by_peers, SERVERS as u64);
    names.iter().for_each(|name| fixture.network.server(name).be(Health::Well));
    sleep(REPAIR).await;
    assert_eq!(fixture.statistics(1).servers_fenced_by_peers, 0);
    assert!(names.iter().all(|name| !fixture.network.server(name).asked("flush_all").is_empty()));
}
