//! The client's sets, adds, counters, touches and deletes, against a cache with leases, with a paused clock.

mod fake;

use fake::{Direct, FakeNetwork, cache::SharedCache, destination};
use lookaside_client::{Client, ClientError, Codec, DestinationOptions, FillOutcome, Lease, Lookup, TypedClient};
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

fn cached() -> (Client, SharedCache) {
    let (network, accepted) = FakeNetwork::new();
    let cache = SharedCache::default();
    cache.lock().keeps_flags = true;
    cache.serve(accepted);
    let server = destination(&network, DestinationOptions::default());
    (Client::new(Arc::new(Direct(server))), cache)
}

#[tokio::test(start_paused = true)]
async fn add_stores_only_where_there_is_no_value() {
    let (client, cache) = cached();
    assert_eq!(client.add("k", "first", 0, 0).await, Ok(true));
    assert_eq!(client.add("k", "second", 0, 0).await, Ok(false));
    assert_eq!(cache.lock().live("k").as_deref(), Some(&b"first"[..]));
    client.delete("k").await.expect("deleted");
    assert_eq!(client.add("k", "third", 0, 0).await, Ok(true), "a stale value is none");
}

#[tokio::test(start_paused = true)]
async fn counters_change_the_numbers_that_typed_values_are() {
    let (client, _) = cached();
    let typed = TypedClient::new(client.clone(), Codec::default());
    assert_eq!(client.incr("n", 1).await, Ok(None));
    typed.set("n", &5u64, 0).await.expect("stored");
    assert_eq!((client.incr("n", 37).await, client.decr("n", 2).await), (Ok(Some(42)), Ok(Some(40))));
    assert_eq!(client.decr("n", 100).await, Ok(Some(0)));
    assert_eq!(typed.get::<u64>("n").await, Ok(Some(0)));
    typed.set("text", "text", 0).await.expect("stored");
    let refused = client.incr("text", 1).await;
    assert!(matches!(refused, Err(ClientError::Refused { .. })), "{refused:?}");
    assert_eq!(client.statistics().errors, 1);
}

#[tokio::test(start_paused = true)]
async fn touch_sets_when_a_value_expires() {
    let (client, _) = cached();
    assert_eq!(client.touch("k", 10).await, Ok(false));
    client.set("k", "value", 0, 1).await.expect("stored");
    assert_eq!(client.touch("k", 10).await, Ok(true));
    sleep(Duration::from_secs(9)).await;
    assert!(matches!(client.get("k").await, Ok(Lookup::Hit { .. })));
    sleep(Duration::from_secs(2)).await;
    assert_eq!(client.touch("k", 10).await, Ok(false));
}

#[tokio::test(start_paused = true)]
async fn many_values_are_stored_and_deleted_in_one_round_trip_each() {
    let (client, cache) = cached();
    let typed = TypedClient::new(client.clone(), Codec::default());
    let stored = typed.set_many([("a", 1u64), ("b", 2)], 0).await;
    assert_eq!(stored, Ok(vec![Ok(()), Ok(())]));
    assert_eq!(typed.get_many::<u64, _>(&["a", "b"]).await, Ok(vec![Ok(Some(1)), Ok(Some(2))]));
    assert_eq!(client.delete_many(&["b", "c"]).await, Ok(vec![Ok(true), Ok(false)]));
    let left = ["a", "b"].map(|key| cache.lock().live(key).is_some());
    assert_eq!(left, [true, false]);
    assert_eq!(client.statistics().round_trips, 3);
    let lines = cache.lock().lines;
    for invalid in ["", "two words"] {
        let bad_key = |error| matches!(error, ClientError::BadKey(_));
        assert!(client.delete_many(&["a", invalid]).await.is_err_and(bad_key));
        assert!(client.set_many([("a", "x".into()), (invalid, "x".into())], 0).await.is_err_and(bad_key));
    }
    assert_eq!(client.delete_many::<&str>(&[]).await, Ok(vec![]));
    assert_eq!(cache.lock().lines, lines, "nothing was sent");
}

/// A miss whose lease is out has no value to count or to touch, and the holder's fill is stored all the same.
#[tokio::test(start_paused = true)]
async fn counting_and_touching_a_leased_key_leaves_its_lease() {
    let (client, cache) = cached();
    let Ok(Lookup::Miss { lease: Lease::Held(token) }) = client.get("k").await else { panic!("no lease") };
    assert_eq!(client.incr("k", 1).await, Ok(None));
    assert_eq!(client.touch("k", 10).await, Ok(false));
    assert_eq!(client.fill("k", token, "filled", 0, 0).await, Ok(FillOutcome::Stored));
    assert_eq!(cache.lock().live("k").as_deref(), Some(&b"filled"[..]));
}
