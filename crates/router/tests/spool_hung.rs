//! How long a delete waits while its server, or a peer, hangs: one server timeout, whatever else hangs.

use crate::fake_network::{FakeServer, Health};
use crate::peer_cluster::{Fixture, SERVER_TIMEOUT, host};
use crate::tree_requests::{NOT_FOUND, TKO};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// Beyond a server timeout: peers get 50 ms to forward, and then need a round trip.
const MARGIN: Duration = Duration::from_millis(60);
const TWO_SERVERS: &str = r#"{ "pools": { "A": { "servers": ["main:1"] }, "B": { "servers": ["other:1"] } },
    "route": { "type": "PrefixSelectorRoute", "policies": { "b": "PoolRoute|B" }, "wildcard": "PoolRoute|A" } }"#;
const MOMENT: Duration = Duration::from_millis(2);

/// Fails in 200 ms if the peers are asked for fences only when they have failed to forward.
#[tokio::test(start_paused = true)]
async fn a_delete_for_a_hung_server_is_acknowledged_after_one_timeout() {
    let fixture = Fixture::start().await;
    fixture.main().put("k", "old");
    fixture.main().be(Health::Frozen);
    let started = Instant::now();
    assert_eq!(fixture.delete(0, "k").await, NOT_FOUND);
    let waited = started.elapsed();
    assert!(waited < SERVER_TIMEOUT + MARGIN, "{waited:?}");
    fixture.check_get_of_all("k", &TKO).await;
    let started = Instant::now();
    for number in 0..100 {
        assert_eq!(fixture.delete(0, &format!("k{number}")).await, NOT_FOUND);
    }
    assert!(started.elapsed() < MOMENT, "spooled at once, as all peers have fenced the server");
}

#[tokio::test(start_paused = true)]
async fn all_deletes_that_a_server_hangs_with_are_acknowledged_after_one_timeout() {
    let fixture = Fixture::start().await;
    fixture.main().be(Health::Frozen);
    let delete = |number: u32| {
        let fixture = &fixture;
        async move {
            sleep(SERVER_TIMEOUT * number / 25).await;
            let started = Instant::now();
            let outcome = fixture.delete(0, &format!("k{number}")).await;
            (outcome, started.elapsed())
        }
    };
    let all = futures_util::future::join_all((0..50).map(delete)).await;
    for (number, (outcome, waited)) in all.into_iter().enumerate() {
        assert_eq!(outcome, NOT_FOUND, "{number}");
        assert!(waited < SERVER_TIMEOUT + MARGIN, "{number}: {waited:?}");
    }
}

/// The reply of the peer that can reach the server counts, whichever peer that is.
#[tokio::test(start_paused = true)]
async fn a_hung_peer_does_not_delay_a_delete_that_another_forwards() {
    for hung in [1, 2] {
        let fixture = Fixture::start().await;
        fixture.main().put("k", "old");
        fixture.cut_server(0, true);
        fixture.cut_routers(0, hung, true);
        let started = Instant::now();
        assert_eq!(fixture.delete(0, "k").await, NOT_FOUND);
        let waited = started.elapsed();
        assert!(waited < SERVER_TIMEOUT + MARGIN / 2, "{hung}: {waited:?}");
        assert!(!fixture.main().has("k"));
    }
}

/// Two servers: the one of most keys hangs, and the first router does not reach the other one, which has "b".
async fn start_with_hung_server() -> (Fixture, Arc<FakeServer>) {
    let mut fixture = Fixture::start().await;
    let other = fixture.network.server("other:1");
    fixture.restart_all(TWO_SERVERS).await;
    fixture.main().be(Health::Frozen);
    fixture.network.cut(&host(0), "other:1", true);
    other.put("b", "old");
    (fixture, other)
}

/// A peer takes a server timeout to say that it cannot forward to a hung server. Once the fences of another server
/// waited for that.
#[tokio::test(start_paused = true)]
async fn deletes_for_other_servers_do_not_wait_for_a_hung_one() {
    let (fixture, _other) = start_with_hung_server().await;
    let delete = |key: &'static str, at_ms: u64| {
        let fixture = &fixture;
        async move {
            sleep(Duration::from_millis(at_ms)).await;
            let started = Instant::now();
            (fixture.delete(0, key).await, started.elapsed())
        }
    };
    let ((_, _), (outcome, waited)) = tokio::join!(delete("a", 0), delete("b", 20));
    assert_eq!(outcome, NOT_FOUND);
    assert!(waited < SERVER_TIMEOUT + MARGIN, "{waited:?}");
}

/// A peer forwards one batch after the other for each server. Once it was one after the other for all servers: a batch
/// for a hung server delayed the next, and a server that only one router cannot reach was fenced at all.
#[tokio::test(start_paused = true)]
async fn a_healthy_server_is_not_fenced_because_a_peer_forwards_to_a_hung_one() {
    let (fixture, other) = start_with_hung_server().await;
    let delete_later = async {
        // When this one fails, the peers still have 80 ms to find out that they cannot forward "a".
        sleep(SERVER_TIMEOUT / 5).await;
        fixture.delete(0, "b").await
    };
    let (_, outcome) = tokio::join!(fixture.delete(0, "a"), delete_later);
    assert_eq!(outcome, NOT_FOUND);
    assert!(!other.has("b"), "a peer has forwarded it");
    let fenced = fixture.statistics(1).servers_fenced_by_peers;
    assert_eq!(fenced, 1, "only the hung server is fenced");
}
