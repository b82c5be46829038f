//! Reads, fills and deletes of an application against a cache with leases, with a paused clock.

use crate::fake::{Direct, FakeNetwork, Mode, cache::SharedCache, destination};
use bytes::Bytes;
use lookaside_client::{
    Client, ClientError, DestinationOptions, FillOutcome, HOT_MISS_DELAY_MS_MAX, Lease, Lookup, Origin, ReadError,
    ReadOptions, Value,
};
use lookaside_protocol::{KeyError, LeaseToken};
use lookaside_routing::{Failure, TkoReason};
use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep};

const DEFAULT: ReadOptions =
    ReadOptions { allow_stale: false, exptime: 0, hot_miss_wait_ms: 1_000, absent_exptime: 30 };
const LOAD: Duration = Duration::from_millis(5);

fn cached() -> (Client, SharedCache, Arc<FakeNetwork>) {
    let (network, accepted) = FakeNetwork::new();
    let cache = SharedCache::default();
    cache.serve(accepted);
    let server = destination(&network, DestinationOptions::default());
    (Client::new(Arc::new(Direct(server))), cache, network)
}

async fn load(value: &'static str) -> Result<Bytes, Infallible> {
    sleep(LOAD).await;
    Ok(Bytes::from_static(value.as_bytes()))
}

fn from(origin: Origin, value: &'static str) -> Value {
    let flags = if origin == Origin::Cache { 7 } else { 0 };
    Value { value: Bytes::from_static(value.as_bytes()), flags, origin }
}

#[tokio::test(start_paused = true)]
async fn miss_is_loaded_and_filled_and_then_a_hit() {
    assert_eq!(DEFAULT, ReadOptions::default());
    let (client, cache, _) = cached();
    assert_eq!(client.read("a", &DEFAULT, || load("1")).await, Ok(from(Origin::Database, "1")));
    assert_eq!(cache.lock().live("a"), Some(Bytes::from_static(b"1")));
    assert_eq!(client.read("a", &DEFAULT, || load("2")).await, Ok(from(Origin::Cache, "1")));
    let statistics = client.statistics();
    assert_eq!((statistics.gets, statistics.hits, statistics.misses), (2, 1, 1));
    assert_eq!((statistics.loads, statistics.fills, statistics.errors), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_statistics_of_a_page_are_of_its_calls_alone() {
    let (client, _, _) = cached();
    client.read("a", &DEFAULT, || load("12")).await.expect("loads");
    let page = client.with_own_statistics();
    let part = page.with_own_statistics();
    part.read_many(&["a", "b"], &DEFAULT, |_| async { Ok::<_, Infallible>(vec!["345".into()]) }).await.expect("loads");
    page.clone().get("a").await.expect("a hit");
    client.get("b").await.expect("a hit");
    let of = |client: &Client| {
        let statistics = client.statistics();
        let values = (statistics.loads, statistics.fills, statistics.bytes_read, statistics.bytes_written);
        ((statistics.gets, statistics.hits, statistics.round_trips), values)
    };
    assert_eq!(of(&part), ((2, 1, 2), (1, 1, 2, 3)));
    assert_eq!(of(&page), ((3, 2, 3), (1, 1, 4, 3)), "with those of its parts");
    assert_eq!(of(&client), ((5, 3, 6), (2, 2, 7, 5)), "with those of its pages");
    assert_eq!(of(&page.with_own_statistics()), ((0, 0, 0), (0, 0, 0, 0)));
}

/// The next reader need not wait until the lease expires, and nothing is stored.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_used_can_be_released() {
    let (client, cache, _) = cached();
    let Ok(Lookup::Miss { lease: Lease::Held(token) }) = client.get("a").await else { panic!("a miss with a token") };
    assert_eq!(client.get("a").await, Ok(Lookup::Miss { lease: Lease::HotMiss }));
    client.release("a", token).await.expect("released");
    assert_eq!(cache.lock().live("a"), None);
    let next = client.get("a").await;
    let Ok(Lookup::Miss { lease: Lease::Held(next) }) = next else { panic!("a miss with a token: {next:?}") };
    assert_eq!(client.fill("a", token, "old", 0, 0).await, Ok(FillOutcome::Refused), "it is used up");
    assert_eq!(client.fill("a", next, "new", 0, 0).await, Ok(FillOutcome::Stored));
    client.release("a", next).await.expect("of no effect");
    assert_eq!(cache.lock().live("a"), Some(Bytes::from_static(b"new")));
}

#[tokio::test(start_paused = true)]
async fn a_hundred_readers_of_one_absent_key_load_it_once() {
    let (client, cache, _) = cached();
    let loads = Arc::new(AtomicUsize::new(0));
    let readers: Vec<_> = (0..100)
        .map(|_| {
            let (client, loads) = (client.clone(), loads.clone());
            tokio::spawn(async move {
                let load_counted = || async {
                    loads.fetch_add(1, Ordering::Relaxed);
                    load("v").await
                };
                client.read("herd", &DEFAULT, load_counted).await
            })
        })
        .collect();
    let mut origins = Vec::new();
    for reader in readers {
        let value = reader.await.expect("readers do not panic").expect("loading does not fail");
        assert_eq!(&value.value[..], b"v");
        origins.push(value.origin);
    }
    assert_eq!(loads.load(Ordering::Relaxed), 1);
    assert_eq!(origins.iter().filter(|origin| **origin == Origin::Cache).count(), 99);
    assert_eq!(cache.lock().lease_sets, 1);
    // The herd's first round is one or two lines of up to 64 keys, and so is each of the few rounds after it.
    assert!(cache.lock().lines <= 12, "{} lines", cache.lock().lines);
    assert_eq!(client.statistics().loads, 1);
}

#[tokio::test(start_paused = true)]
async fn delete_between_load_and_fill_refuses_the_fill() {
    let (client, cache, _) = cached();
    let value = client.read("a", &DEFAULT, || async {
        let old = load("old").await;
        // Another client writes to the database and deletes.
        cache.lock().delete("a");
        old
    });
    assert_eq!(value.await, Ok(from(Origin::Database, "old")));
    assert_eq!(cache.lock().live("a"), None, "the old value must not be stored");
    let statistics = client.statistics();
    assert_eq!((statistics.fills, statistics.fills_refused), (0, 1));
    let value = client.read("a", &DEFAULT, || load("new")).await;
    assert_eq!(value, Ok(from(Origin::Database, "new")), "the next reader gets its own lease at once");
    assert_eq!(cache.lock().live("a"), Some(Bytes::from_static(b"new")));
}

#[tokio::test(start_paused = true)]
async fn waits_for_a_hot_miss_grow_and_end_with_a_load_without_a_fill() {
    let (client, cache, _) = cached();
    let Ok(Lookup::Miss { lease: Lease::Held(token) }) = client.get("a").await else { panic!("a token") };
    let start = Instant::now();
    let value = client.read("a", &DEFAULT, || load("mine")).await;
    assert_eq!(value, Ok(from(Origin::Database, "mine")));
    let waited = start.elapsed() - LOAD;
    assert!(waited >= Duration::from_millis(1_000) && waited < Duration::from_millis(1_100), "{waited:?}");
    // 1, 2, 4 .. up to the longest, then always the longest: far fewer than one per millisecond.
    let rounds = 7 + (1_000 / HOT_MISS_DELAY_MS_MAX) as usize + 3;
    assert!((10..rounds).contains(&cache.lock().lease_gets), "{} rounds", cache.lock().lease_gets);
    assert_eq!(cache.lock().lease_sets, 0, "nothing is filled without the lease");
    assert!(client.statistics().hot_miss_waits >= 10);

    let filled = client.fill("a", token, "theirs", 0, 0).await;
    assert_eq!(filled, Ok(FillOutcome::Stored), "the other client's lease is still valid");
    assert_eq!(client.fill("a", LeaseToken(4), "x", 0, 0).await, Ok(FillOutcome::Refused));
}

#[tokio::test(start_paused = true)]
async fn stale_value_is_returned_only_if_allowed_and_is_labelled() {
    let (client, cache, _) = cached();
    cache.lock().set("a", "old");
    assert_eq!(client.delete("a").await, Ok(true));
    let stale = Bytes::from_static(b"old");
    let lookup = client.get("a").await.expect("an answer");
    let Lookup::Stale { value, lease: Lease::Held(token), .. } = lookup else { panic!("a token: {lookup:?}") };
    assert_eq!(value, stale);

    let start = Instant::now();
    let allowed = ReadOptions { allow_stale: true, ..DEFAULT };
    assert_eq!(client.read("a", &allowed, || load("new")).await, Ok(from(Origin::Stale, "old")));
    assert_eq!(start.elapsed(), Duration::ZERO, "no wait");
    let reader = {
        let client = client.clone();
        tokio::spawn(async move { client.read("a", &DEFAULT, || load("mine")).await })
    };
    sleep(LOAD).await;
    assert_eq!(client.fill("a", token, "new", 0, 0).await, Ok(FillOutcome::Stored));
    assert_eq!(reader.await.expect("no panic"), Ok(from(Origin::Cache, "new")), "waited for the fill");
    assert!(client.statistics().stale >= 2);
}

#[tokio::test(start_paused = true)]
async fn lease_holder_loads_even_if_stale_values_are_allowed() {
    let (client, cache, _) = cached();
    cache.lock().set("a", "old");
    cache.lock().delete("a");
    let allowed = ReadOptions { allow_stale: true, ..DEFAULT };
    assert_eq!(client.read("a", &allowed, || load("new")).await, Ok(from(Origin::Database, "new")));
    assert_eq!(cache.lock().live("a"), Some(Bytes::from_static(b"new")));
}

#[tokio::test(start_paused = true)]
async fn failed_lookup_loads_and_does_not_fill() {
    let (client, cache, network) = cached();
    network.set(Mode::Refuse);
    assert_eq!(client.read("a", &DEFAULT, || load("1")).await, Ok(from(Origin::Database, "1")));
    let values = client.read_many(&["a", "b"], &DEFAULT, |keys| async move { Ok::<_, Infallible>(keys) });
    assert_eq!(values.await, Ok(vec![from(Origin::Database, "a"), from(Origin::Database, "b")]));
    assert_eq!(cache.lock().lines, 0);
    assert_eq!(client.get("a").await, Err(ClientError::Failed(Failure::Tko(TkoReason::ConnectFailed))));
    assert_eq!(client.delete("a").await, Err(ClientError::Failed(Failure::Tko(TkoReason::ConnectFailed))));
    let statistics = client.statistics();
    assert_eq!((statistics.errors, statistics.loads, statistics.fills), (5, 3, 0));
}

#[tokio::test(start_paused = true)]
async fn failure_of_the_loader_is_returned() {
    let (client, cache, _) = cached();
    let value = client.read("a", &DEFAULT, || async { Err("database is down") }).await;
    assert_eq!(value, Err(ReadError::Load("database is down")));
    assert_eq!(cache.lock().lease_sets, 0);
    let values = client.read_many(&["b", "c"], &DEFAULT, |mut keys: Vec<Bytes>| async move {
        keys.pop();
        Ok::<_, Infallible>(keys)
    });
    assert_eq!(values.await, Err(ReadError::LoadedCount { keys: 2, loaded: 1 }));
}

#[tokio::test(start_paused = true)]
async fn many_keys_are_looked_up_loaded_and_filled_together() {
    let (client, cache, _) = cached();
    cache.lock().set("hit", "H");
    let Ok(Lookup::Miss { lease: Lease::Held(token) }) = client.get("hot").await else { panic!("a token") };
    cache.lock().lines = 0;
    let loaded = RefCell::new(Vec::new());
    let values = client.read_many(&["m1", "hit", "hot", "m2", "m1"], &DEFAULT, |keys| {
        loaded.borrow_mut().push(keys.clone());
        let client = client.clone();
        async move {
            // Meanwhile the other client fills under its lease.
            client.fill("hot", token, "T", 0, 0).await.expect("filled");
            Ok::<_, Infallible>(keys)
        }
    });
    let m1 = from(Origin::Database, "m1");
    let again = Value { value: Bytes::from_static(b"m1"), flags: 7, origin: Origin::Cache };
    let expected = vec![m1, from(Origin::Cache, "H"), from(Origin::Cache, "T"), from(Origin::Database, "m2"), again];
    assert_eq!(values.await, Ok(expected));
    assert_eq!(*loaded.borrow(), [["m1", "m2"]], "one load");
    // One lease-get, the other client's fill, two lease-sets, and one lease-get for both hot misses.
    assert_eq!(cache.lock().lines, 5);
    assert_eq!(cache.lock().live("m2"), Some(Bytes::from_static(b"m2")));
}

#[tokio::test(start_paused = true)]
async fn load_longer_than_the_wait_is_followed_by_one_more_lookup() {
    let (client, cache, _) = cached();
    let Ok(Lookup::Miss { lease: Lease::Held(token) }) = client.get("hot").await else { panic!("a token") };
    let loads = Cell::new(0);
    let values = client.read_many(&["slow", "hot"], &DEFAULT, |keys| {
        loads.set(loads.get() + 1);
        let client = client.clone();
        async move {
            sleep(Duration::from_secs(5)).await;
            client.fill("hot", token, "T", 0, 0).await.expect("filled");
            Ok::<_, Infallible>(keys)
        }
    });
    assert_eq!(values.await, Ok(vec![from(Origin::Database, "slow"), from(Origin::Cache, "T")]));
    assert_eq!(loads.get(), 1);
    assert_eq!(cache.lock().lease_sets, 2);
}

#[tokio::test(start_paused = true)]
async fn invalid_key_is_refused_before_anything_is_sent() {
    let (client, cache, _) = cached();
    let bad = KeyError::BadByte { byte: b'\n', at: 1 };
    assert_eq!(client.get("a\nflush_all").await, Err(ClientError::BadKey(bad)));
    assert_eq!(client.get_many(&["fine", "a\nb"]).await, Err(ClientError::BadKey(bad)));
    assert_eq!(client.set("a\nb", "", 0, 0).await, Err(ClientError::BadKey(bad)));
    assert_eq!(client.delete("").await, Err(ClientError::BadKey(KeyError::Empty)));
    assert_eq!(client.fill("a\nb", LeaseToken(5), "", 0, 0).await, Err(ClientError::BadKey(bad)));
    assert_eq!(client.read("a\nb", &DEFAULT, || load("1")).await, Err(ReadError::BadKey(bad)));
    let long = ["k".repeat(251)];
    let values = client.read_many(&long, &DEFAULT, |keys| async { Ok::<_, Infallible>(keys) });
    assert_eq!(values.await, Err(ReadError::BadKey(KeyError::TooLong { key_bytes: 251 })));
    assert_eq!(cache.lock().lines, 0);
    assert_eq!(client.statistics().loads, 0);
}

#[tokio::test(start_paused = true)]
async fn set_value_is_read_and_deleted_value_is_not() {
    let (client, _, _) = cached();
    assert_eq!(client.set("a", "1", 0, 0).await, Ok(()));
    assert_eq!(client.get("a").await, Ok(Lookup::Hit { value: Bytes::from_static(b"1"), flags: 7 }));
    assert_eq!(client.delete("a").await, Ok(true));
    assert_eq!(client.delete("b").await, Ok(false));
    let lookups = client.get_many(&["a", "b"]).await.expect("good keys");
    assert!(matches!(lookups[0], Ok(Lookup::Stale { lease: Lease::Held(_), .. })), "{lookups:?}");
    assert!(matches!(lookups[1], Ok(Lookup::Miss { lease: Lease::Held(_) })), "{lookups:?}");
}

/// Random writers and readers: a read that began after a delete was acknowledged never returns a value older than the
/// write before that delete.
#[tokio::test(start_paused = true)]
async fn no_reader_sees_a_value_older_than_an_acknowledged_delete() {
    for seed in 0..100 {
        let (client, cache, _) = cached();
        cache.lock().delay = Duration::from_micros(300);
        let database = Arc::new(AtomicUsize::new(0));
        let acknowledged = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..6u64)
            .map(|task| {
                let (client, database, acknowledged) = (client.clone(), database.clone(), acknowledged.clone());
                let mut random = fastrand::Rng::with_seed(seed * 100 + task);
                tokio::spawn(async move {
                    for _ in 0..30 {
                        sleep(Duration::from_micros(random.u64(0..3_000))).await;
                        if task == 0 {
                            let version = database.fetch_add(1, Ordering::Relaxed) + 1;
                            client.delete("key").await.expect("deleted");
                            acknowledged.fetch_max(version, Ordering::Relaxed);
                            continue;
                        }
                        let oldest = acknowledged.load(Ordering::Relaxed);
                        let (before_ms, after_ms) = (random.u64(0..3), random.u64(0..3));
                        let load = || async {
                            sleep(Duration::from_millis(before_ms)).await;
                            let version = database.load(Ordering::Relaxed);
                            sleep(Duration::from_millis(after_ms)).await;
                            Ok::<_, Infallible>(Bytes::from(version.to_string()))
                        };
                        let read = client.read("key", &DEFAULT, load).await.expect("loads");
                        let version: usize = String::from_utf8_lossy(&read.value).parse().expect("a version");
                        assert!(version >= oldest, "seed {seed}: {version} after {oldest} was acknowledged");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no reader saw an old value");
        }
    }
}
