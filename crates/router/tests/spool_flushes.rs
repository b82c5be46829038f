//! Flushes of several routers of one cluster, each with a spool, when servers do not answer: no router reads what a
//! flush removes once it is acknowledged.

use crate::fake_network::Health;
use crate::peer_cluster::{Fixture, PEER_TIMEOUT, REPAIR};
use crate::tree_requests::{MISS, TKO};
use lookaside_protocol::Reply;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A flush in place of deletes is as safe as a delete: no router reads what it removes once it is acknowledged.
#[tokio::test(start_paused = true)]
async fn a_flush_of_a_server_that_hangs_fences_it_at_all_routers() {
    let fixture = Fixture::start().await;
    let main = fixture.main();
    main.put("k", "old");
    main.be(Health::Frozen);
    assert_eq!(fixture.flush_prefix(0, "k").await, "flushed 1");
    fixture.check_get_of_all("k", &TKO).await;
    sleep(PEER_TIMEOUT * 3).await;
    fixture.repair().await;
    fixture.check_get_of_all("k", &MISS).await;
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

/// Groups of servers were asked one after the other, each for as long as a hung one takes. An invalidator gave the
/// flush up before, and began it again from the start, for as long as the servers hung.
#[tokio::test(start_paused = true)]
async fn a_flush_that_meets_many_hung_servers_is_acknowledged_soon() {
    const SERVERS: usize = 300;
    let mut fixture = Fixture::start().await;
    let names: Vec<String> = (0..SERVERS).map(|number| format!("s{number}:1")).collect();
    names.iter().for_each(|name| fixture.network.server(name).be(Health::Frozen));
    let configuration = format!(r#"{{ "pools": {{ "A": {{ "servers": {names:?} }} }}, "route": "PoolRoute|A" }}"#);
    fixture.restart_all(&configuration).await;
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
