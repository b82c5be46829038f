//! Small values in L1, large ones in L2. What is stored where, and what is returned.

use crate::environment::FakeEnvironment;
use crate::fakes::{Fake, VERBS, request, server_error};
use bytes::Bytes;
use lookaside_protocol::{Cas, ErrorReply, LeaseToken, Operation, Reply, Request, StoreMode};
use lookaside_routing::{
    Context, Failure, L1L2SizeSplitRoute, Outcome, Route, SENTINEL_FLAG, SizeSplitSettings, TkoReason,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LEASE: LeaseToken = LeaseToken(7);

#[derive(Clone, Debug, PartialEq)]
struct Item {
    flags: u32,
    value: Bytes,
    exptime: i64,
    cas: Cas,
}

type ItemsHook = Box<dyn FnMut(&mut BTreeMap<Bytes, Item>) + Send>;

#[derive(Default)]
struct Store {
    items: BTreeMap<Bytes, Item>,
    stale: BTreeMap<Bytes, Item>,
    changes: u64,
    /// The reply to every request, if there is one.
    reply: Option<Outcome>,
    /// Called before each `gets`.
    before_gets: Option<ItemsHook>,
}

impl Store {
    fn outcome(&mut self, request: &Request<Bytes>) -> Outcome {
        if let Some(reply) = &self.reply {
            return reply.clone();
        }
        if let (Operation::Get { cas: true }, Some(before)) = (&request.operation, &mut self.before_gets) {
            before(&mut self.items);
        }
        let item = self.items.get(&request.key).cloned();
        let value = |cas: bool| {
            let Item { flags, value, cas: unique, .. } = item.clone()?;
            Some(Reply::Value { flags, cas: cas.then_some(unique), value })
        };
        Ok(match &request.operation {
            Operation::Get { cas } | Operation::GetAndTouch { cas, .. } => value(*cas).unwrap_or(Reply::Miss),
            Operation::LeaseGet => value(false).unwrap_or_else(|| {
                let stale = self.stale.get(&request.key);
                let (flags, value) = stale.map_or((0, None), |item| (item.flags, Some(item.value.clone())));
                Reply::Lease { token: LEASE, flags, stale: value.filter(|value| !value.is_empty()) }
            }),
            Operation::Store { mode: StoreMode::Cas(cas), .. } if item.as_ref().map(|item| item.cas) != Some(*cas) => {
                Reply::Exists
            }
            Operation::LeaseSet { token, .. } if *token != LEASE => Reply::NotStored,
            Operation::Store { flags, exptime, value, .. } | Operation::LeaseSet { flags, exptime, value, .. } => {
                self.changes += 1;
                self.items.remove(&request.key);
                if *exptime >= 0 {
                    let (value, cas) = (value.clone(), Cas(self.changes));
                    self.items.insert(request.key.clone(), Item { flags: *flags, value, exptime: *exptime, cas });
                }
                Reply::Stored
            }
            Operation::Delete { .. } => match self.items.remove(&request.key) {
                Some(item) => {
                    self.stale.insert(request.key.clone(), item);
                    Reply::Deleted
                }
                None => Reply::NotFound,
            },
            _ => Reply::NotFound,
        })
    }
}

struct Server {
    fake: Arc<Fake>,
    store: Arc<Mutex<Store>>,
}

impl Server {
    fn new(name: &str) -> Server {
        let store = Arc::new(Mutex::new(Store::default()));
        let of_fake = store.clone();
        Server { fake: Fake::new(name, move |request| of_fake.lock().unwrap().outcome(request)), store }
    }

    fn put(&self, key: &'static str, flags: u32, value: &'static str) {
        let item = Item { flags, value: value.into(), exptime: 0, cas: Cas(1_000) };
        self.store.lock().unwrap().items.insert(key.into(), item);
    }

    /// Flags and value of each key.
    fn content(&self) -> Vec<(String, u32, String)> {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let store = self.store.lock().unwrap();
        store.items.iter().map(|(key, item)| (text(key), item.flags, text(&item.value))).collect()
    }

    fn exptime(&self, key: &str) -> Option<i64> {
        self.store.lock().unwrap().items.get(key.as_bytes()).map(|item| item.exptime)
    }

    fn reply_always(&self, reply: Option<Outcome>) {
        self.store.lock().unwrap().reply = reply;
    }
}

struct World {
    env: Arc<FakeEnvironment>,
    l1: Server,
    l2: Server,
    route: L1L2SizeSplitRoute,
}

const SETTINGS: SizeSplitSettings =
    SizeSplitSettings { threshold_bytes: 5, ttl_threshold_s: 0, failure_ttl_s: 60, both_full_set: false, retries: 1 };

impl World {
    fn new(settings: SizeSplitSettings) -> World {
        let (env, l1, l2) = (FakeEnvironment::new(), Server::new("l1"), Server::new("l2"));
        let background = env.environment(9).background;
        let route = L1L2SizeSplitRoute::new(l1.fake.leaf(), l2.fake.leaf(), settings, 1, env.clone(), background);
        World { env, l1, l2, route }
    }

    async fn ask(&self, request: Request<Bytes>) -> Outcome {
        self.route.route(vec![request], &Context::default()).await.remove(0)
    }

    async fn ask_text(&self, text: &str) -> Outcome {
        self.ask(request(text)).await
    }

    fn asked(&self) -> (Vec<String>, Vec<String>) {
        (self.l1.fake.asked(), self.l2.fake.asked())
    }

    /// Stores a large value of `k` under a lease. Returns its key in L2.
    async fn fill(&self, value: &'static str) -> String {
        assert_eq!(self.ask(lease_set("k", value, 0)).await, Ok(Reply::Stored));
        let content = self.l1.content();
        let [(_, _, number)] = &content[..] else { panic!("{content:?}") };
        self.asked();
        format!("k|==|{number}")
    }
}

fn set(key: &'static str, value: &'static str, exptime: i64) -> Request<Bytes> {
    let operation = Operation::Store { mode: StoreMode::Set, flags: 3, exptime, value: value.into(), cas: false };
    Request { key: key.into(), operation }
}

fn lease_set(key: &'static str, value: &'static str, exptime: i64) -> Request<Bytes> {
    Request { key: key.into(), operation: Operation::LeaseSet { token: LEASE, flags: 3, exptime, value: value.into() } }
}

fn hit(value: &'static str) -> Outcome {
    Ok(Reply::Value { flags: 3, cas: None, value: value.into() })
}

fn entry(key: &str, flags: u32, value: &str) -> (String, u32, String) {
    (key.to_owned(), flags, value.to_owned())
}

fn lines(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| line.to_string()).collect()
}

#[tokio::test]
async fn small_values_stay_in_l1() {
    for (settings, value, exptime) in [
        (SETTINGS, "four", 0),
        (SizeSplitSettings { threshold_bytes: 0, ..SETTINGS }, "a large value", 0),
        (SizeSplitSettings { ttl_threshold_s: 30, ..SETTINGS }, "a large value", 29),
        (SizeSplitSettings { ttl_threshold_s: 30, ..SETTINGS }, "a large value", 0),
        (SizeSplitSettings { ttl_threshold_s: 30, both_full_set: true, ..SETTINGS }, "a large value", 29),
    ] {
        let world = World::new(settings);
        for request in [set("k", value, exptime), lease_set("k", value, exptime)] {
            assert_eq!(world.ask(request).await, Ok(Reply::Stored), "{settings:?}");
            assert_eq!(world.l1.content(), [entry("k", 3, value)]);
        }
        assert_eq!(world.ask_text("get k").await, hit(value));
        assert_eq!((world.l2.fake.asked(), world.env.run_background().await), (vec![], 0), "{settings:?}");
    }
    let world = World::new(SETTINGS);
    for (bytes, is_large) in [(231, true), (232, false)] {
        let key: &'static str = "k".repeat(bytes).leak();
        assert_eq!(world.ask(lease_set(key, "a large value", 0)).await, Ok(Reply::Stored));
        assert_eq!(!world.l2.fake.asked().is_empty(), is_large, "a key of {bytes} bytes");
    }
}

#[tokio::test]
async fn a_large_set_leaves_an_empty_sentinel() {
    for (threshold_bytes, ttl_threshold_s, exptime) in [(5, 0, 77), (5, 30, 30)] {
        let world = World::new(SizeSplitSettings { threshold_bytes, ttl_threshold_s, ..SETTINGS });
        assert_eq!(world.ask(set("k", "large", exptime)).await, Ok(Reply::Stored));
        assert_eq!(world.asked(), (lines(&[&format!("set k {exptime}")]), lines(&[&format!("set k {exptime}")])));
        assert_eq!(world.l1.content(), [entry("k", 3 | 0x20, "")], "{SENTINEL_FLAG}");
        assert_eq!(world.l2.content(), [entry("k", 3, "large")]);
        assert_eq!(world.ask_text("get k").await, hit("large"));
        assert_eq!(world.asked(), (lines(&["get k"]), lines(&["get k"])));
    }
}

#[tokio::test]
async fn a_large_set_that_l2_refuses_changes_nothing_in_l1() {
    let world = World::new(SETTINGS);
    world.l1.put("k", 3, "old");
    for reply in [Err(Failure::TimedOut), server_error("out of memory"), Ok(Reply::NotStored)] {
        world.l2.reply_always(Some(reply.clone()));
        assert_eq!(world.ask(set("k", "large", 0)).await, reply);
        assert_eq!(world.l1.content(), [entry("k", 3, "old")]);
    }
    world.l2.reply_always(None);
    let unavailable = || Err(Failure::Tko(TkoReason::ConnectFailed));
    world.l1.reply_always(Some(unavailable()));
    assert_eq!(world.ask(set("k", "large", 0)).await, unavailable(), "L1's reply is the answer");
}

#[tokio::test]
async fn a_large_lease_set_is_stored_under_an_alias() {
    let world = World::new(SETTINGS);
    let first = world.fill("large").await;
    let number: u32 = first.strip_prefix("k|==|").unwrap().parse().expect("32 bits");
    assert_eq!(world.l1.content(), [entry("k", 3 | 0x20, &number.to_string())]);
    assert_eq!(world.l2.content(), [entry(&first, 3, "large")]);
    for verb in ["get", "lease-get"] {
        assert_eq!(world.ask_text(&format!("{verb} k")).await, hit("large"));
        assert_eq!(world.asked(), (lines(&[&format!("{verb} k")]), lines(&[&format!("get {first}")])));
    }
    let Ok(Reply::Value { cas: Some(cas), value, .. }) = world.ask_text("gets k").await else { panic!("a hit") };
    assert_eq!((cas, &*value), (Cas(1), &b"large"[..]), "the CAS unique is L1's");

    let second = world.fill("newer").await;
    assert_ne!(first, second);
    assert_eq!(world.l2.content().len(), 2);
    // A late write of the first fill.
    let late = Request { key: first.into(), ..set("", "late value", 0) };
    world.l2.fake.leaf().route(vec![late], &Context::default()).await;
    assert_eq!(world.ask_text("get k").await, hit("newer"), "it cannot be read");
    assert_eq!(world.ask_text("delete k").await, Ok(Reply::Deleted));
    assert_eq!(world.ask_text("get k").await, Ok(Reply::Miss));
}

#[tokio::test]
async fn a_key_is_aliased_behind_its_hash_stop() {
    let world = World::new(SETTINGS);
    drop(world.ask(lease_set("a|#|b", "large", 0)).await);
    assert!(world.l2.fake.asked()[0].starts_with("set a|#|b|==|"));
}

#[tokio::test]
async fn a_fill_that_l2_refuses_lives_briefly_in_l1() {
    let world = World::new(SETTINGS);
    world.env.advance(Duration::from_secs(1_800_000_000));
    world.l2.reply_always(Some(Err(Failure::TimedOut)));
    for (exptime, expected) in
        [(0, 60), (61, 60), (60, 60), (59, 59), (1_800_000_061, 60), (1_800_000_060, 1_800_000_060), (-1, -1)]
    {
        assert_eq!(world.ask(lease_set("k", "large", exptime)).await, Ok(Reply::Stored));
        assert_eq!(world.l1.exptime("k"), (expected >= 0).then_some(expected), "{exptime}");
        let asked = world.l1.fake.requests();
        assert!(matches!(asked[0].operation, Operation::LeaseSet { token: LEASE, flags: 3, .. }), "{asked:?}");
    }
}

#[tokio::test]
async fn both_caches_may_get_large_values() {
    let world = World::new(SizeSplitSettings { both_full_set: true, ..SETTINGS });
    for request in [set("k", "large", 9), lease_set("l", "large", 9)] {
        assert_eq!(world.ask(request).await, Ok(Reply::Stored));
        assert!(world.l2.fake.asked().is_empty(), "no client waits for L2");
        assert_eq!(world.env.run_background().await, 1);
        assert_eq!(world.l2.fake.asked().len(), 1);
    }
    let stored = [entry("k", 3, "large"), entry("l", 3, "large")];
    assert_eq!((world.l1.content(), world.l2.content()), (stored.to_vec(), stored.to_vec()));
    world.l1.reply_always(Some(Ok(Reply::NotStored)));
    assert_eq!(world.ask(lease_set("m", "large", 9)).await, Ok(Reply::NotStored));
    assert_eq!(world.env.run_background().await, 0, "what L1 refuses is not copied");
}

#[tokio::test]
async fn after_an_empty_sentinel_a_get_returns_what_l2_replies() {
    let world = World::new(SETTINGS);
    world.l1.put("k", 0x20, "");
    for reply in [Ok(Reply::Miss), Err(Failure::TimedOut), server_error("any text")] {
        world.l2.reply_always(Some(reply.clone()));
        assert_eq!(world.ask_text("get k").await, reply);
        assert_eq!(world.asked(), (lines(&["get k"]), lines(&["get k"])), "the sentinel stays");
    }
}

#[tokio::test]
async fn a_sentinel_whose_value_is_lost_is_removed() {
    let world = World::new(SETTINGS);
    world.l1.put("k", 0x20, "42");
    assert_eq!(world.ask_text("get k").await, server_error("local error"));
    assert_eq!(world.asked(), (lines(&["get k", "gets k", "cas k -1"]), lines(&["get k|==|42"])));
    assert_eq!(world.l1.content(), []);
    for (verb, number, expected) in [
        ("gets", "42", Reply::Miss),
        ("gets", "", Reply::Miss),
        ("lease-get", "42", Reply::Lease { token: LEASE, flags: 0, stale: None }),
        ("lease-get", "", Reply::Lease { token: LEASE, flags: 0, stale: None }),
    ] {
        world.l1.put("k", 0x20, number);
        assert_eq!(world.ask_text(&format!("{verb} k")).await, Ok(expected), "{verb} {number}: L1 is asked again");
        assert_eq!(world.l1.content(), []);
        assert_eq!(world.asked().0, lines(&[&format!("{verb} k"), "gets k", "cas k -1", &format!("{verb} k")]));
    }
}

/// Another client fills the key between the read and the removal.
#[tokio::test]
async fn a_newer_value_is_not_removed() {
    let world = World::new(SETTINGS);
    world.l1.put("k", 0x20, "42");
    world.l1.store.lock().unwrap().before_gets = Some(Box::new(|items| {
        let item = items.get_mut(&b"k"[..]).expect("a sentinel");
        item.value = "43".into();
    }));
    assert_eq!(world.ask_text("get k").await, server_error("local error"));
    assert_eq!(world.l1.content(), [entry("k", 0x20, "43")]);
    assert_eq!(world.asked().0, ["get k", "gets k"]);
}

#[tokio::test]
async fn reads_are_tried_again_as_often_as_configured() {
    for retries in [1, 3] {
        let world = World::new(SizeSplitSettings { retries, ..SETTINGS });
        // Every removal finds another sentinel, so none succeeds.
        world.l1.put("k", 0x20, "1");
        let mut number = 1;
        world.l1.store.lock().unwrap().before_gets = Some(Box::new(move |items| {
            number += 1;
            items.get_mut(&b"k"[..]).expect("a sentinel").value = number.to_string().into();
        }));
        assert_eq!(world.ask_text("lease-get k").await, server_error("local error"));
        let (of_l1, of_l2) = world.asked();
        assert_eq!(of_l1.iter().filter(|line| *line == "lease-get k").count(), 1 + retries as usize);
        assert_eq!(of_l2.len(), 1 + retries as usize);
    }
}

#[tokio::test]
async fn an_error_of_l2_is_returned_by_name_and_removes_the_sentinel() {
    let client_error = || Ok(Reply::Error(ErrorReply::Client("bad".into())));
    for verb in ["get", "gets", "lease-get"] {
        for (reply, expected, is_removed) in [
            (server_error("out of memory"), server_error("remote error"), true),
            (server_error("307 come back later"), server_error("307 busy"), true),
            // Another error that begins with the same digits.
            (server_error("3070 items are locked"), server_error("remote error"), true),
            (Err(Failure::TimedOut), Err(Failure::TimedOut), true),
            (Err(Failure::Tko(TkoReason::TimedOut)), Err(Failure::Tko(TkoReason::TimedOut)), true),
            (client_error(), client_error(), false),
        ] {
            let world = World::new(SETTINGS);
            world.l1.put("k", 0x20, "42");
            world.l2.reply_always(Some(reply));
            assert_eq!(world.ask_text(&format!("{verb} k")).await, expected, "{verb}");
            assert_eq!(world.l1.content().is_empty(), is_removed, "{verb}: {expected:?}");
        }
    }
}

#[tokio::test]
async fn a_stale_sentinel_is_dropped_from_a_lease() {
    for (number, flags) in [("42", 0x23), ("", 0x20)] {
        let world = World::new(SETTINGS);
        world.l1.put("k", flags, number);
        drop(world.ask_text("delete k").await);
        let lease = Reply::Lease { token: LEASE, flags: 0, stale: None };
        assert_eq!(world.ask_text("lease-get k").await, Ok(lease), "{number}");
        assert!(world.l2.fake.asked().is_empty(), "{number}");
    }
    let world = World::new(SETTINGS);
    world.l1.put("k", 3, "42");
    drop(world.ask_text("delete k").await);
    let lease = Reply::Lease { token: LEASE, flags: 3, stale: Some("42".into()) };
    assert_eq!(world.ask_text("lease-get k").await, Ok(lease), "a value stays");
}

#[tokio::test]
async fn a_value_is_a_sentinel_only_with_the_flag_and_a_number() {
    let world = World::new(SETTINGS);
    for (flags, value) in [(0, "42"), (0x40, ""), (0x20, "4x"), (0x20, "-1"), (0x20, "123456789012345678901")] {
        world.l1.put("k", flags, value);
        let expected = Ok(Reply::Value { flags, cas: None, value: value.into() });
        assert_eq!(world.ask_text("get k").await, expected);
    }
    assert!(world.l2.fake.asked().is_empty());
    world.l1.put("k", 0x20, "12345678901234567890");
    drop(world.ask_text("get k").await);
    assert_eq!(world.l2.fake.asked(), ["get k|==|12345678901234567890"], "mcrouter's numbers may be longer");
}

#[tokio::test]
async fn all_other_verbs_reach_l1_alone() {
    let world = World::new(SETTINGS);
    for verb in VERBS.iter().filter(|verb| !["set", "lease-set", "get", "gets", "lease-get"].contains(verb)) {
        world.l1.put("k", 0x20, "42");
        drop(world.ask_text(&format!("{verb} k")).await);
        assert_eq!(world.asked().1, [""; 0], "{verb}");
    }
    world.l1.put("k", 0x20, "42");
    let seen = world.ask_text("gat k 5").await;
    assert_eq!(seen, Ok(Reply::Value { flags: 0x20, cas: None, value: "42".into() }), "it sees the sentinel");
    for mode in [StoreMode::Add, StoreMode::Replace, StoreMode::Append, StoreMode::Cas(Cas(1))] {
        let operation = Operation::Store { mode, flags: 0, exptime: 0, value: "a large value".into(), cas: false };
        drop(world.ask(Request { key: "k".into(), operation }).await);
        assert_eq!(world.asked().1, [""; 0], "{mode:?}");
    }
}

#[tokio::test]
async fn pipelined_requests_are_executed_in_order() {
    let world = World::new(SETTINGS);
    let batch = vec![
        set("a", "large", 0),
        request("get a"),
        set("a", "tiny", 0),
        request("get a"),
        lease_set("a", "large again", 0),
        request("delete b"),
        request("get a"),
        request("delete a"),
        request("get a"),
    ];
    let outcomes = world.route.route(batch, &Context::default()).await;
    let stored = || Ok(Reply::Stored);
    assert_eq!(
        outcomes,
        [
            stored(),
            hit("large"),
            stored(),
            hit("tiny"),
            stored(),
            Ok(Reply::NotFound),
            hit("large again"),
            Ok(Reply::Deleted),
            Ok(Reply::Miss),
        ]
    );
}

#[tokio::test]
async fn many_keys_are_asked_together() {
    let world = World::new(SETTINGS);
    world.l1.put("a", 3, "near");
    world.l1.put("b", 0x20, "1");
    world.l1.put("c", 0x20, "2");
    world.l2.put("b|==|1", 3, "far b");
    world.l2.put("c|==|2", 3, "far c");
    let batch = ["a", "b", "c", "d"].map(|key| request(&format!("get {key}"))).to_vec();
    let outcomes = world.route.route(batch, &Context::default()).await;
    assert_eq!(outcomes, [hit("near"), hit("far b"), hit("far c"), Ok(Reply::Miss)]);
    assert_eq!(world.l1.fake.asked_batches(), [["get a", "get b", "get c", "get d"]]);
    assert_eq!(world.l2.fake.asked_batches(), [["get b|==|1", "get c|==|2"]]);
}
