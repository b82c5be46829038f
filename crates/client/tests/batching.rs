//! Lookups of many tasks in one batch, and plans, against a cache with leases, with a paused clock.

use crate::fake::{Direct, FakeNetwork, Mode, cache::SharedCache, destination};
use bytes::Bytes;
use lookaside_client::{
    Client, ClientError, DestinationOptions, Encoded, Lease, Lookup, NodeError, Origin, Plan, PlanError, ReadError,
    ReadOptions,
};
use lookaside_protocol::Operation;
use lookaside_routing::{Batch, BoxFuture, Context, Failure, Outcomes, Route};
use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    task::{JoinSet, yield_now},
    time::{Instant, sleep, timeout},
};

/// Passes batches on, and records the keys of each that reads.
struct RecordingRoute {
    inner: Direct,
    reads: Arc<Mutex<Vec<Vec<String>>>>,
    /// How long a fill takes on its way, in milliseconds.
    fill_delay_ms: Arc<AtomicU64>,
}

impl Route for RecordingRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        if batch.iter().all(|request| request.operation == Operation::LeaseGet) {
            let keys = batch.iter().map(|request| String::from_utf8_lossy(&request.key).into_owned()).collect();
            self.reads.lock().expect("no test panics while it holds the lock").push(keys);
        }
        let is_fill = matches!(batch[0].operation, Operation::LeaseSet { .. });
        Box::pin(async move {
            if is_fill {
                sleep(Duration::from_millis(self.fill_delay_ms.load(Ordering::Relaxed))).await;
            }
            self.inner.route(batch, context).await
        })
    }
}

struct Fixture {
    client: Client,
    cache: SharedCache,
    network: Arc<FakeNetwork>,
    reads: Arc<Mutex<Vec<Vec<String>>>>,
    fill_delay_ms: Arc<AtomicU64>,
}

fn cached() -> Fixture {
    let (network, accepted) = FakeNetwork::new();
    let cache = SharedCache::default();
    cache.serve(accepted);
    cache.lock().delay = Duration::from_millis(1);
    let (reads, fill_delay_ms) = (Arc::default(), Arc::default());
    let inner = Direct(destination(&network, DestinationOptions::default()));
    let route = RecordingRoute { inner, reads: Arc::clone(&reads), fill_delay_ms: Arc::clone(&fill_delay_ms) };
    Fixture { client: Client::new(Arc::new(route)), cache, network, reads, fill_delay_ms }
}

impl Fixture {
    /// The keys of each batch of lookups since the last call.
    fn reads(&self) -> Vec<Vec<String>> {
        std::mem::take(&mut *self.reads.lock().expect("no test panics while it holds the lock"))
    }
}

const OPTIONS: ReadOptions = ReadOptions { allow_stale: false, exptime: 0, hot_miss_wait_ms: 1_000, absent_exptime: 5 };

#[tokio::test(start_paused = true)]
async fn lookups_of_one_turn_travel_as_one_batch_and_each_key_once() {
    let fixture = cached();
    fixture.cache.lock().set("a", "A");
    let client = fixture.client.clone().with_batching();
    let lookups: Vec<_> = [vec!["a", "b"], vec!["b"], vec!["c", "a", "c"]]
        .map(|keys| {
            tokio::spawn({
                let client = client.clone();
                async move { client.get_many(&keys).await.expect("valid keys") }
            })
        })
        .into();
    let mut found = Vec::new();
    for lookup in lookups {
        found.push(lookup.await.expect("no panic"));
    }
    assert_eq!(fixture.reads(), [["a", "b", "c"]]);
    let hit = Ok(Lookup::Hit { value: Bytes::from_static(b"A"), flags: 7 });
    let is_held = |lookup: &_| matches!(lookup, Ok(Lookup::Miss { lease: Lease::Held(_) }));
    let hot = Ok(Lookup::Miss { lease: Lease::HotMiss });
    assert!(found[0][0] == hit && is_held(&found[0][1]), "{found:?}");
    assert!(found[1][0] == hot, "the first has the lease: {found:?}");
    assert!(is_held(&found[2][0]), "{found:?}");
    assert_eq!(found[2][1..], [hit, hot]);
    let statistics = client.statistics();
    assert_eq!((statistics.round_trips, statistics.gets, statistics.hits, statistics.misses), (1, 6, 2, 4));
    // The next turn is another batch.
    let _ = client.get("d").await;
    assert_eq!(fixture.reads(), [["d"]]);
}

#[tokio::test(start_paused = true)]
async fn the_lease_goes_to_a_caller_that_still_waits_or_is_released() {
    let fixture = cached();
    let client = fixture.client.clone().with_batching();
    let spawn_get = || {
        tokio::spawn({
            let client = client.clone();
            async move { client.get("k").await }
        })
    };
    let (first, second) = (spawn_get(), spawn_get());
    for _ in 0..3 {
        yield_now().await;
    }
    assert_eq!(fixture.reads().len(), 1, "sent");
    first.abort();
    let lookup = second.await.expect("no panic");
    let Ok(Lookup::Miss { lease: Lease::Held(token) }) = lookup else { panic!("the second has it: {lookup:?}") };
    client.fill("k", token, "v", 0, 0).await.expect("filled");

    fixture.cache.lock().delete("k");
    let (first, second) = (spawn_get(), spawn_get());
    for _ in 0..3 {
        yield_now().await;
    }
    first.abort();
    second.abort();
    sleep(Duration::from_millis(10)).await;
    let lookup = client.get("k").await;
    assert!(
        matches!(lookup, Ok(Lookup::Stale { lease: Lease::Held(_), .. } | Lookup::Miss { lease: Lease::Held(_) })),
        "the lease was released: {lookup:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn failures_reach_every_caller() {
    let fixture = cached();
    fixture.network.set(Mode::Refuse);
    let client = fixture.client.clone().with_batching();
    let mut tasks = JoinSet::new();
    for key in ["a", "b", "a"] {
        let client = client.clone();
        tasks.spawn(async move { client.get(key).await });
    }
    while let Some(lookup) = tasks.join_next().await {
        let lookup = lookup.expect("no panic");
        assert!(matches!(lookup, Err(ClientError::Failed(Failure::ConnectFailed | Failure::Tko(_)))), "{lookup:?}");
    }
    assert_eq!(client.statistics().errors, 3);
}

/// A thousand tasks ask for one absent key: one of them loads, and the rounds of the others cost one key each.
#[tokio::test(start_paused = true)]
async fn a_stampede_loads_once() {
    for is_batching in [false, true] {
        let fixture = cached();
        let client = if is_batching { fixture.client.clone().with_batching() } else { fixture.client.clone() };
        let loads = Arc::new(AtomicUsize::new(0));
        let mut readers = JoinSet::new();
        for _ in 0..1_000 {
            let (client, loads) = (client.clone(), loads.clone());
            readers.spawn(async move {
                let load = || async {
                    loads.fetch_add(1, Ordering::Relaxed);
                    sleep(Duration::from_millis(5)).await;
                    Ok::<_, ()>("v".into())
                };
                client.read("herd", &OPTIONS, load).await.expect("loads")
            });
        }
        let mut from_cache = 0;
        while let Some(value) = readers.join_next().await {
            let value = value.expect("readers do not panic");
            assert_eq!(&value.value[..], b"v");
            from_cache += usize::from(value.origin == Origin::Cache);
        }
        assert_eq!((loads.load(Ordering::Relaxed), from_cache), (1, 999));
        let cache = fixture.cache.lock();
        assert_eq!(cache.lease_sets, 1);
        let keys_max = if is_batching { 10 } else { 10_000 };
        assert!(cache.lease_gets < keys_max, "{} keys were sent", cache.lease_gets);
    }
}

async fn load_rows(keys: Vec<Bytes>) -> Result<Vec<Encoded>, &'static str> {
    Ok(keys.iter().map(|key| Encoded::from(Bytes::from([b"row of ", &key[..]].concat()))).collect())
}

/// Fills the cache with what the loader returns.
async fn warm(fixture: &Fixture, keys: &[&str]) {
    for key in keys {
        fixture.client.set(key, format!("row of {key}"), 0, 0).await.expect("stored");
    }
}

fn key(name: &str) -> Result<Vec<Bytes>, &'static str> {
    Ok(vec![Bytes::copy_from_slice(name.as_bytes())])
}

#[tokio::test(start_paused = true)]
async fn a_plan_needs_as_many_round_trips_as_it_is_deep() {
    let fixture = cached();
    warm(&fixture, &["user", "friends", "photos", "friend:1", "friend:2", "photo:1"]).await;
    let started = Instant::now();
    let mut plan = Plan::new(OPTIONS);
    let user = plan.node([], |_| key("user"), load_rows);
    let friends = plan.node(
        [user],
        move |values| {
            assert_eq!(&values.of(user)[0].value[..], b"row of user");
            key("friends")
        },
        load_rows,
    );
    let photos = plan.node([user], |_| key("photos"), load_rows);
    let all = plan.node([friends], |_| Ok(vec!["friend:1".into(), "friend:2".into()]), load_rows);
    let photo = plan.node([photos], |_| key("photo:1"), load_rows);
    let results = fixture.client.run_plan(plan).await.expect("no cycle");
    assert_eq!(started.elapsed(), Duration::from_millis(3), "three round trips");
    let mut reads = fixture.reads();
    reads.iter_mut().for_each(|keys| keys.sort_unstable());
    assert_eq!(reads, [vec!["user"], vec!["friends", "photos"], vec!["friend:1", "friend:2", "photo:1"]]);
    assert_eq!(results.statistics().round_trips, 3);
    assert_eq!((results.statistics().hits, results.statistics().loads), (6, 0));
    assert_eq!(&results.of(all).as_ref().expect("read")[1].value[..], b"row of friend:2");
    assert_eq!(&results.of(photo).as_ref().expect("read")[0].value[..], b"row of photo:1");
}

/// A level that misses costs a lookup and a load. Its fills travel while the next level is looked up.
#[tokio::test(start_paused = true)]
async fn a_cold_plan_does_not_wait_for_its_fills() {
    let fixture = cached();
    fixture.fill_delay_ms.store(20, Ordering::Relaxed);
    let started = Instant::now();
    let mut plan = Plan::new(OPTIONS);
    let first = plan.node([], |_| key("first"), load_rows);
    let second = plan.node([first], |_| key("second"), load_rows);
    plan.node([second], |_| key("third"), load_rows);
    let results = fixture.client.run_plan(plan).await.expect("no cycle");
    assert_eq!(started.elapsed(), Duration::from_millis(3 + 20 + 1), "three lookups, and the last fill");
    assert_eq!((results.statistics().fills, results.statistics().round_trips), (3, 6));
    assert_eq!(fixture.cache.lock().live("third").as_deref(), Some(&b"row of third"[..]));
}

/// Nodes whose values live for different times are looked up together all the same.
#[tokio::test(start_paused = true)]
async fn a_node_may_have_options_of_its_own() {
    let fixture = cached();
    let mut plan = Plan::new(ReadOptions { exptime: 60, ..OPTIONS });
    let short = plan.node([], |_| key("short"), load_rows);
    plan.node([], |_| key("long"), load_rows);
    plan.set_options(short, ReadOptions { exptime: 5, ..OPTIONS });
    fixture.client.run_plan(plan).await.expect("no cycle");
    assert_eq!(fixture.reads(), [vec!["short", "long"]], "one round trip");
    let is_cached = async |key: &str| matches!(fixture.client.get(key).await, Ok(Lookup::Hit { .. }));
    assert!(is_cached("short").await && is_cached("long").await);
    sleep(Duration::from_secs(6)).await;
    assert!(!is_cached("short").await && is_cached("long").await);
    sleep(Duration::from_secs(60)).await;
    assert!(!is_cached("long").await);
}

/// A task that the first one wakes is ready, too, although it runs after the one that sends the batch was spawned.
#[tokio::test(start_paused = true)]
async fn a_task_that_is_woken_in_the_same_turn_joins_the_batch() {
    let fixture = cached();
    let client = fixture.client.clone().with_batching();
    let (wake, woken) = tokio::sync::oneshot::channel();
    let second = tokio::spawn({
        let client = client.clone();
        async move {
            woken.await.expect("it is sent");
            client.get("b").await
        }
    });
    yield_now().await;
    let wake_second = async { wake.send(()).expect("it waits") };
    let (first, ()) = tokio::join!(client.get("a"), wake_second);
    assert!(first.is_ok() && second.await.expect("no panic").is_ok());
    assert_eq!(fixture.reads(), [["a", "b"]]);
}

/// A node waits for what it depends on, and for nothing else of its level.
#[tokio::test(start_paused = true)]
async fn a_node_begins_when_its_own_dependencies_are_there() {
    let fixture = cached();
    warm(&fixture, &["fast", "after fast"].map(|key| if key == "fast" { key } else { "after" })).await;
    let order = RefCell::new(Vec::new());
    let order = &Mutex::new(order);
    let record = |name: &'static str| order.lock().expect("not poisoned").borrow_mut().push(name);
    let mut plan = Plan::new(OPTIONS);
    let slow = plan.node(
        [],
        |_| key("slow"),
        async |keys| {
            sleep(Duration::from_millis(100)).await;
            load_rows(keys).await
        },
    );
    let fast = plan.node([], |_| key("fast"), load_rows);
    let after_fast = plan.node(
        [fast],
        |_| {
            record("after fast");
            key("after")
        },
        load_rows,
    );
    let last = plan.node(
        [after_fast],
        |_| {
            record("last");
            key("after")
        },
        load_rows,
    );
    let both = plan.node(
        [slow, last],
        |_| {
            record("both");
            Ok(vec![])
        },
        load_rows,
    );
    let results = fixture.client.run_plan(plan).await.expect("no cycle");
    assert_eq!(*order.lock().expect("not poisoned").borrow(), ["after fast", "last", "both"]);
    assert_eq!(results.of(both), &Ok(vec![]), "no keys, no values");
    assert_eq!(fixture.reads(), [vec!["slow", "fast"], vec!["after"], vec!["after"]]);
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_node_is_that_of_its_dependents_only() {
    let fixture = cached();
    let mut plan = Plan::new(OPTIONS);
    let fine = plan.node([], |_| key("fine"), load_rows);
    let failing = plan.node([], |_| key("failing"), async |_| Err("database"));
    let dependent = plan.node([fine, failing], |_| unreachable!("its dependency failed"), load_rows);
    let further = plan.node([dependent], |_| unreachable!("its dependency failed"), load_rows);
    let no_keys = plan.node([fine], |_| Err("no keys"), load_rows);
    let bad_key = plan.node([fine], |_| key("a b"), load_rows);
    let other = plan.node([fine], |_| key("other"), load_rows);
    let results = fixture.client.run_plan(plan).await.expect("no cycle");
    assert_eq!(results.of(failing), &Err(NodeError::Read(ReadError::Load("database"))));
    assert_eq!(results.of(dependent), &Err(NodeError::Dependency(failing)));
    assert_eq!(results.of(further), &Err(NodeError::Dependency(dependent)));
    assert_eq!(results.of(no_keys), &Err(NodeError::Keys("no keys")));
    assert!(matches!(results.of(bad_key), Err(NodeError::Read(ReadError::BadKey(_)))));
    assert!(results.of(fine).is_ok() && results.of(other).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_cycle_is_refused_and_nothing_is_sent() {
    let fixture = cached();
    let mut plan = Plan::new(OPTIONS);
    let free = plan.node([], |_| key("free"), load_rows);
    let first = plan.node([free], |_| key("first"), load_rows);
    let second = plan.node([first], |_| key("second"), load_rows);
    let behind = plan.node([second], |_| key("behind"), load_rows);
    plan.add_dependency(first, second);
    let error = fixture.client.run_plan(plan).await.expect_err("a cycle");
    assert_eq!(error, PlanError::Cycle(vec![first, second, behind]));
    assert_eq!(error.to_string(), "nodes 1, 2, 3 of the plan depend on each other");
    assert_eq!(fixture.cache.lock().lines, 0);
    let mut itself = Plan::new(OPTIONS);
    let node = itself.node([], |_| key("k"), load_rows);
    itself.add_dependency(node, node);
    assert_eq!(fixture.client.run_plan(itself).await.expect_err("a cycle"), PlanError::Cycle(vec![node]));
}

#[tokio::test(start_paused = true)]
async fn a_plan_ends_at_the_deadline_and_lets_its_leases_go() {
    let fixture = cached();
    let client = fixture.client.clone().with_deadline(Duration::from_millis(20));
    let mut plan = Plan::new(OPTIONS);
    plan.node([], |_| key("k"), async |_| std::future::pending::<Result<Vec<Encoded>, &str>>().await);
    let started = Instant::now();
    assert_eq!(client.run_plan(plan).await.expect_err("late"), PlanError::DeadlineExceeded);
    assert_eq!(started.elapsed(), Duration::from_millis(20));
    let read = fixture.client.read("k", &OPTIONS, || async { Ok::<_, ()>("v".into()) });
    let read = timeout(Duration::from_millis(10), read).await.expect("at once").expect("loads");
    assert_eq!(read.origin, Origin::Database);
}
