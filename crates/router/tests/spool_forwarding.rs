//! Deletes that a router forwards through a peer, because it does not reach the server itself.

use crate::peer_cluster::{Fixture, REPAIR, host};
use crate::tree_requests::{MISS, NOT_FOUND};
use lookaside_protocol::Reply;
use std::time::Duration;
use tokio::time::sleep;

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
    assert_eq!(fixture.delete_batch(0, &["k", "k"]).await, [NOT_FOUND, NOT_FOUND]);
    assert!(!main.has("k"));
    assert_eq!(fixture.statistics(1).servers_fenced_by_peers, 0, "no other router fences it");
    sleep(REPAIR).await;
    assert_eq!(fixture.statistics(0).pending, 0, "replayed through a peer");
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
    assert_eq!(fixture.delete_batch(0, &keys).await, [NOT_FOUND, NOT_FOUND, NOT_FOUND]);
    for key in keys {
        assert!(!main.has(key), "{key}");
    }
    assert_eq!(fixture.statistics(1).servers_fenced_by_peers, 0, "no other router fences it");
    sleep(REPAIR).await;
    assert_eq!(fixture.statistics(0).pending, 0, "replayed through a peer");
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
