//! Deadlines, callers that go away, and hedged lookups, with a paused clock.

use crate::fake::{Direct, FakeNetwork, Mode, cache::SharedCache, destination};
use bytes::Bytes;
use lookaside_client::{
    Client, ClientError, Codec, DestinationOptions, HedgeDelay, HedgeSettings, Lease, Lookup, Origin, ReadError,
    ReadOptions, TypedClient, TypedError, Window, WindowSettings, WindowedDestination,
};
use lookaside_protocol::{ErrorReply, Reply};
use lookaside_routing::{
    Address, Batch, BoxFuture, Context, DatagramLoss, DestinationRoute, Failure, Outcome, Outcomes, Route,
};
use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

const OPTIONS: ReadOptions = ReadOptions { allow_stale: false, exptime: 0, hot_miss_wait_ms: 1_000, absent_exptime: 5 };
const DEADLINE: Duration = Duration::from_millis(20);
/// Longer than any task of a client that has nothing to do lives.
const LONG: Duration = Duration::from_secs(20);

fn server() -> (Arc<Direct>, SharedCache, Arc<FakeNetwork>) {
    let (network, accepted) = FakeNetwork::new();
    let cache = SharedCache::default();
    cache.serve(accepted);
    let destination = destination(&network, DestinationOptions::default());
    (Arc::new(Direct(destination)), cache, network)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The next reader gets the lease at once.
async fn assert_released(client: &Client, key: &str) {
    sleep(ms(10)).await;
    let lookup = client.get(key).await;
    assert!(matches!(lookup, Ok(Lookup::Miss { lease: Lease::Held(_) })), "{lookup:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_every_kind_of_call() {
    let (route, _, network) = server();
    network.set(Mode::Silence);
    let client = Client::new(route).with_deadline(DEADLINE);
    let started = Instant::now();
    assert_eq!(client.get("k").await, Err(ClientError::DeadlineExceeded));
    assert_eq!(client.get_many(&["k", "l"]).await, Err(ClientError::DeadlineExceeded));
    assert_eq!(client.set("k", "v", 0, 0).await, Err(ClientError::DeadlineExceeded));
    assert_eq!(client.delete("k").await, Err(ClientError::DeadlineExceeded));
    let read = client.read("k", &OPTIONS, || async { Ok::<_, Infallible>("v".into()) });
    assert_eq!(read.await, Err(ReadError::DeadlineExceeded));
    assert_eq!(started.elapsed(), 5 * DEADLINE);
    assert_eq!(client.statistics().deadlines_exceeded, 5);
}

#[tokio::test(start_paused = true)]
async fn no_task_is_left_behind() {
    let (route, cache, _) = server();
    cache.lock().delay = ms(30);
    let client = Client::new(route).with_deadline(DEADLINE);
    assert!(client.get("warm").await.is_err());
    sleep(LONG).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    for number in 0..100 {
        let client = if number % 2 == 0 { client.clone() } else { client.clone().with_batching() };
        assert_eq!(client.get("k").await, Err(ClientError::DeadlineExceeded));
        sleep(ms(100)).await;
    }
    sleep(LONG).await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), tasks);
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_load_that_is_too_slow_is_released() {
    for is_batching in [false, true] {
        let (route, _, _) = server();
        let mut client = Client::new(route);
        if is_batching {
            client = client.with_batching();
        }
        let limited = client.clone().with_deadline(DEADLINE);
        let read = limited.read("k", &OPTIONS, pending::<Result<Bytes, Infallible>>);
        assert_eq!(read.await, Err(ReadError::DeadlineExceeded));
        assert_released(&client, "k").await;
    }
}

/// The reply, with its lease, comes when nothing waits for it any more.
#[tokio::test(start_paused = true)]
async fn the_lease_of_a_late_reply_is_released() {
    let (route, cache, _) = server();
    cache.lock().delay = ms(30);
    let client = Client::new(route);
    assert_eq!(client.clone().with_deadline(DEADLINE).get("k").await, Err(ClientError::DeadlineExceeded));
    sleep(ms(100)).await;
    assert_eq!(cache.lock().lease_sets, 1);
    assert_released(&client, "k").await;
    assert_eq!(cache.lock().live("k"), None, "nothing was stored");
}

/// Once they waited on in the background, and then took the window from lookups whose callers were there.
#[tokio::test(start_paused = true)]
async fn lookups_whose_callers_have_gone_are_not_sent() {
    for is_batching in [false, true] {
        let (network, accepted) = FakeNetwork::new();
        let cache = SharedCache::default();
        cache.serve(accepted);
        let window = Window::new(WindowSettings::fixed(1));
        let server = WindowedDestination::new(destination(&network, DestinationOptions::default()), window);
        let client = Client::new(Arc::new(DestinationRoute::new(Arc::new(server), true)));
        client.get("connect").await.expect("a miss");
        cache.lock().delay = ms(30);
        let first = tokio::spawn({
            let client = client.clone();
            async move { client.get("first").await }
        });
        sleep(ms(1)).await;
        let limited = client.clone().with_deadline(DEADLINE);
        let limited = if is_batching { limited.with_batching() } else { limited };
        for number in 0..20 {
            let limited = limited.clone();
            tokio::spawn(async move { limited.get(format!("gone:{number}")).await.expect_err("too late") });
        }
        sleep(DEADLINE + ms(1)).await;
        let started = Instant::now();
        client.get("last").await.expect("a miss");
        assert!(started.elapsed() < ms(50), "behind the first alone: {:?}", started.elapsed());
        first.await.expect("it ends").expect("a miss");
        sleep(LONG).await;
        assert_eq!(cache.lock().lease_gets, 3, "connect, first and last");
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_dropped_releases_its_lease() {
    let (route, _, _) = server();
    let client = Client::new(route);
    let reader = tokio::spawn({
        let client = client.clone();
        async move { client.read("k", &OPTIONS, pending::<Result<Bytes, Infallible>>).await }
    });
    sleep(ms(5)).await;
    reader.abort();
    assert_released(&client, "k").await;
}

/// A release must not undo what happened after the lease was given.
#[tokio::test(start_paused = true)]
async fn the_release_of_a_void_lease_changes_nothing() {
    let (route, cache, _) = server();
    let client = Client::new(route);
    let read = client.clone().with_deadline(DEADLINE);
    let load = || async {
        cache.lock().delete("k");
        cache.lock().set("k", "of another client");
        pending::<Result<Bytes, Infallible>>().await
    };
    assert_eq!(read.read("k", &OPTIONS, load).await, Err(ReadError::DeadlineExceeded));
    sleep(ms(10)).await;
    assert_eq!(cache.lock().lease_sets, 1);
    assert_eq!(cache.lock().live("k").as_deref(), Some(&b"of another client"[..]));
}

fn hedged(delay: HedgeDelay, share_max: f64) -> (Client, SharedCache, SharedCache, Arc<FakeNetwork>) {
    hedged_by(HedgeSettings { delay, share_max, ..HedgeSettings::default() })
}

fn hedged_by(settings: HedgeSettings) -> (Client, SharedCache, SharedCache, Arc<FakeNetwork>) {
    let (route, slow, network) = server();
    let (replicas, fast, _) = server();
    (Client::new(route).with_hedging(replicas, settings), slow, fast, network)
}

const HIT: Lookup = Lookup::Hit { value: Bytes::from_static(b"v"), flags: 7 };

#[tokio::test(start_paused = true)]
async fn a_late_lookup_is_answered_by_the_replica() {
    let (client, slow, fast, _) = hedged(HedgeDelay::Fixed(ms(5)), 1.0);
    slow.lock().set("k", "v");
    fast.lock().set("k", "v");
    let started = Instant::now();
    assert_eq!(client.get("k").await, Ok(HIT));
    assert_eq!((started.elapsed(), fast.lock().lines), (Duration::ZERO, 0), "in time");
    slow.lock().delay = ms(50);
    let started = Instant::now();
    assert_eq!(client.get("k").await, Ok(HIT));
    assert_eq!(started.elapsed(), ms(5));
    assert_eq!(fast.lock().lease_gets, 0, "a plain get");
    let statistics = client.statistics();
    assert_eq!((statistics.hedges, statistics.hedges_won, statistics.hedges_withheld), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_miss_at_the_replica_decides_nothing_and_a_lost_lease_is_released() {
    let (client, slow, fast, _) = hedged(HedgeDelay::Fixed(ms(5)), 1.0);
    slow.lock().delay = ms(50);
    fast.lock().set("b", "v");
    let started = Instant::now();
    let lookups = client.get_many(&["a", "b"]).await.expect("valid keys");
    assert_eq!(started.elapsed(), ms(50));
    let is_held = |lookup: &_| matches!(lookup, Ok(Lookup::Miss { lease: Lease::Held(_) }));
    assert!(lookups.iter().all(is_held), "{lookups:?}");

    fast.lock().set("c", "v");
    assert_eq!(client.get("c").await, Ok(HIT), "of the replica");
    sleep(ms(200)).await;
    assert_eq!(slow.lock().lease_sets, 1, "the lease of the first server was released");
    assert_eq!(client.statistics().hedges_won, 1);
}

#[tokio::test(start_paused = true)]
async fn hits_of_the_replica_take_the_place_of_failures() {
    let (client, slow, fast, _) = hedged(HedgeDelay::Fixed(ms(5)), 1.0);
    slow.lock().delay = LONG;
    fast.lock().set("a", "v");
    let lookups = client.get_many(&["a", "b"]).await.expect("valid keys");
    assert_eq!(lookups, [Ok(HIT), Err(ClientError::Failed(Failure::TimedOut))]);
}

/// Ends each request late, with the same outcome.
struct Late(Outcome);

impl Route for Late {
    fn route<'a>(&'a self, batch: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(async move {
            sleep(ms(100)).await;
            vec![self.0.clone(); batch.len()]
        })
    }
}

/// Once a hit of the replica took the place of a failure, but not of an error reply, which a lost datagram was then.
#[tokio::test(start_paused = true)]
async fn a_hit_of_the_replica_takes_the_place_of_a_lost_datagram_and_of_an_error_reply() {
    let (server_address, loss) = (Address("a:1".into()), DatagramLoss::LostOrLate);
    let lost = Failure::DatagramLost { server: server_address, loss };
    let refused = Reply::Error(ErrorReply::Client("no".into()));
    for outcome in [Err(lost), Ok(refused)] {
        assert_hit_of_the_replica_takes_the_place_of(outcome).await;
    }
}

async fn assert_hit_of_the_replica_takes_the_place_of(outcome: Outcome) {
    let (replicas, fast, _) = server();
    fast.lock().set("a", "v");
    let settings = HedgeSettings { delay: HedgeDelay::Fixed(ms(5)), share_max: 1.0, plain_gets: false };
    let client = Client::new(Arc::new(Late(outcome.clone()))).with_hedging(replicas, settings);
    let lookups = client.get_many(&["a", "b"]).await.expect("valid keys");
    assert_eq!(lookups[0], Ok(HIT));
    let expected = match outcome {
        Err(failure) => ClientError::from(failure),
        Ok(_) => ClientError::Refused { why: "no".to_owned() },
    };
    assert_eq!(lookups[1], Err(expected), "a miss decides nothing");
}

#[tokio::test(start_paused = true)]
async fn hedges_are_a_bounded_share() {
    let (client, slow, fast, _) = hedged(HedgeDelay::Fixed(ms(5)), 0.1);
    slow.lock().delay = ms(20);
    slow.lock().set("k", "v");
    fast.lock().set("k", "v");
    for _ in 0..1_000 {
        assert_eq!(client.get("k").await, Ok(HIT));
    }
    let statistics = client.statistics();
    assert!((100..=111).contains(&statistics.hedges), "a tenth, and a burst of ten: {statistics:?}");
    assert_eq!(statistics.hedges + statistics.hedges_withheld, 1_000);
}

#[tokio::test(start_paused = true)]
async fn the_delay_follows_the_latencies() {
    let (client, slow, fast, _) = hedged(HedgeDelay::Quantile(0.95), 1.0);
    slow.lock().set("k", "v");
    fast.lock().set("k", "v");
    slow.lock().delay = ms(10);
    for _ in 0..500 {
        assert_eq!(client.get("k").await, Ok(HIT));
    }
    assert_eq!(client.statistics().hedges, 0, "all take as long");
    slow.lock().delay = ms(300);
    let started = Instant::now();
    assert_eq!(client.get("k").await, Ok(HIT));
    assert!((ms(10)..ms(13)).contains(&started.elapsed()), "{:?}", started.elapsed());
    assert_eq!(client.statistics().hedges_won, 1);
}

#[tokio::test(start_paused = true)]
async fn a_hedged_read_is_from_the_cache() {
    let (client, slow, fast, _) = hedged(HedgeDelay::Fixed(ms(5)), 1.0);
    let client = client.with_batching();
    slow.lock().delay = ms(50);
    fast.lock().set("k", "v");
    let value = client.read("k", &OPTIONS, || async { Err::<Bytes, _>("not loaded") }).await.expect("a hit");
    assert_eq!(value.origin, Origin::Cache);
}

/// A client of typed values, whose gets are plain and hedged after five milliseconds.
fn hedged_plain(share_max: f64) -> (TypedClient, SharedCache, SharedCache) {
    typed(HedgeSettings { delay: HedgeDelay::Fixed(ms(5)), share_max, plain_gets: true })
}

fn typed(settings: HedgeSettings) -> (TypedClient, SharedCache, SharedCache) {
    let (client, slow, fast, _) = hedged_by(settings);
    slow.lock().keeps_flags = true;
    fast.lock().keeps_flags = true;
    (TypedClient::new(client, Codec::default()), slow, fast)
}

/// Once plain gets were hedged as lookups are, and a late one returned a value that was older than the client's own
/// set: replicas get deletes, and a set is none.
#[tokio::test(start_paused = true)]
async fn a_plain_get_is_not_older_than_the_clients_own_set() {
    let (client, slow, fast) = typed(HedgeSettings { delay: HedgeDelay::Fixed(ms(5)), ..HedgeSettings::default() });
    fast.lock().set("session", "old");
    client.set("session", &Bytes::from_static(b"new"), 0).await.expect("stored at the first server");
    slow.lock().delay = ms(50);
    assert_eq!(client.get("session").await, Ok(Some(Bytes::from_static(b"new"))));
    assert_eq!(client.get_many(&["session"]).await, Ok(vec![Ok(Some(Bytes::from_static(b"new")))]));
    assert_eq!((fast.lock().lines, client.client().statistics().hedges), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_late_plain_get_is_answered_by_the_replica() {
    let (client, slow, fast) = hedged_plain(1.0);
    for key in ["a", "b"] {
        slow.lock().set(key, "v");
        fast.lock().set(key, "v");
    }
    let hit = Ok(Some(Bytes::from_static(b"v")));
    assert_eq!(client.get("a").await, hit);
    assert_eq!(fast.lock().lines, 0, "in time");
    slow.lock().delay = ms(50);
    let started = Instant::now();
    assert_eq!(client.get("a").await, hit);
    assert_eq!(client.get_many(&["a", "b"]).await, Ok(vec![hit.clone(), hit]));
    assert_eq!(started.elapsed(), 2 * ms(5));
    assert_eq!((slow.lock().lease_gets, fast.lock().lease_gets), (0, 0));
    let statistics = client.client().statistics();
    assert_eq!((statistics.hedges, statistics.hedges_won, statistics.round_trips), (2, 2, 3));
}

#[tokio::test(start_paused = true)]
async fn a_plain_miss_at_the_replica_decides_nothing_and_hits_take_the_place_of_failures() {
    let (client, slow, fast) = hedged_plain(1.0);
    slow.lock().delay = ms(50);
    fast.lock().set("a", "of the replica");
    slow.lock().set("b", "of the server");
    let found = client.get_many::<Bytes, _>(&["a", "b"]).await.expect("valid keys");
    assert_eq!(found, [Ok(None), Ok(Some("of the server".into()))]);
    slow.lock().delay = LONG;
    let found = client.get_many::<Bytes, _>(&["a", "b"]).await.expect("valid keys");
    let failed = TypedError::Client(ClientError::Failed(Failure::TimedOut));
    assert_eq!(found, [Ok(Some("of the replica".into())), Err(failed)]);
}

#[tokio::test(start_paused = true)]
async fn plain_gets_and_lookups_share_the_bound_of_hedges() {
    let (client, slow, fast) = hedged_plain(0.1);
    slow.lock().delay = ms(20);
    slow.lock().set("k", "v");
    fast.lock().set("k", "v");
    for _ in 0..500 {
        client.get::<Bytes>("k").await.expect("a hit");
        client.client().get("k").await.expect("a hit");
    }
    let statistics = client.client().statistics();
    assert!((100..=111).contains(&statistics.hedges), "a tenth, and a burst of ten: {statistics:?}");
    assert_eq!(statistics.hedges + statistics.hedges_withheld, 1_000);
}

/// A reply that nothing waits for is not waited for without end.
#[tokio::test(start_paused = true)]
async fn a_plain_get_that_a_replica_has_answered_leaves_no_task() {
    let (client, slow, fast) = hedged_plain(1.0);
    fast.lock().set("k", "v");
    client.get::<Bytes>("warm").await.expect("a miss");
    slow.lock().delay = ms(50);
    client.get::<Bytes>("k").await.expect("a hit");
    sleep(LONG).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    for _ in 0..100 {
        assert_eq!(client.get("k").await, Ok(Some(Bytes::from_static(b"v"))));
    }
    assert!(Handle::current().metrics().num_alive_tasks() > tasks, "they go on in the background");
    sleep(LONG).await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), tasks);
}
