//! Keys that a change of a pool's servers has moved are read from their former owners, and copied under leases.

use crate::environment::FakeEnvironment;
use crate::fakes::request;
use bytes::Bytes;
use lookaside_protocol::meta::{MetaOperation, MetaReply, MetaStatus, MetaVerb};
use lookaside_protocol::{ErrorReply, LeaseToken, Operation, Reply, Request};
use lookaside_routing::{
    Address, BACKGROUND_TASKS_MAX, Batch, BoxFuture, Context, Destination, FORMER_OWNER_RETRY, FORMER_OWNER_TIMEOUT,
    Failure, FormerOwnerCounters, FormerOwnerRoute, KeyHash, Outcome, Outcomes, Owners, PoolRoute, Route, Verb,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug, PartialEq)]
struct Item {
    value: &'static str,
    flags: u32,
    ttl: &'static str,
    /// Further flags of a meta get's reply.
    state: &'static str,
}

const ITEM: Item = Item { value: "value", flags: 5, ttl: "60", state: "" };

/// A server with leases.
struct Server {
    address: Address,
    items: Mutex<BTreeMap<Bytes, Item>>,
    stored: Mutex<Vec<(Bytes, u32, i64)>>,
    leases: Mutex<BTreeMap<Bytes, u64>>,
    tokens: AtomicU64,
    asked: Mutex<Vec<&'static str>>,
    failure: Mutex<Option<Outcome>>,
    /// Called after each meta get.
    after_read: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Server {
    fn new(name: &str) -> Arc<Server> {
        Arc::new(Server {
            address: Address(name.into()),
            items: Mutex::default(),
            stored: Mutex::default(),
            leases: Mutex::default(),
            tokens: AtomicU64::new(1),
            asked: Mutex::default(),
            failure: Mutex::default(),
            after_read: Mutex::default(),
        })
    }

    fn put(&self, key: &'static str, item: Item) {
        self.items.lock().unwrap().insert(key.into(), item);
    }

    fn delete(&self, key: &Bytes) -> Reply<Bytes> {
        self.leases.lock().unwrap().remove(key);
        self.items.lock().unwrap().remove(key).map_or(Reply::NotFound, |_| Reply::Deleted)
    }

    /// A client's set.
    fn set(&self, key: &'static str, item: Item) {
        self.leases.lock().unwrap().remove(&Bytes::from(key));
        self.put(key, item);
    }

    fn asked(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// The items that were stored: key, flags, exptime.
    fn stored(&self) -> Vec<(Bytes, u32, i64)> {
        std::mem::take(&mut *self.stored.lock().unwrap())
    }

    fn lease(&self, key: &Bytes) -> Reply<Bytes> {
        let mut leases = self.leases.lock().unwrap();
        let token = match leases.get(key) {
            Some(_) => 1,
            None => self.tokens.fetch_add(1, Relaxed) + 1,
        };
        leases.entry(key.clone()).or_insert(token);
        Reply::Lease { token: LeaseToken(token), flags: 0, stale: None }
    }

    fn reply(&self, request: &Request<Bytes>) -> Outcome {
        let verb = match &request.operation {
            Operation::Meta(_) => "mg",
            operation => Verb::of(operation).name(),
        };
        self.asked.lock().unwrap().push(verb);
        let failure = self.failure.lock().unwrap().clone();
        if let Some(failure) = failure.filter(|failure| failure.is_err() || verb == "lease-get") {
            return failure;
        }
        let item = self.items.lock().unwrap().get(&request.key).cloned();
        Ok(match (&request.operation, item) {
            (Operation::Meta(meta), item) => {
                let reply = meta_get(meta, item);
                if let Some(after_read) = &*self.after_read.lock().unwrap() {
                    after_read();
                }
                Reply::Meta(reply)
            }
            (Operation::LeaseSet { token, flags, exptime, .. }, _) => {
                let is_valid = self.leases.lock().unwrap().remove(&request.key) == Some(token.0);
                if !is_valid {
                    return Ok(Reply::NotStored);
                }
                if *exptime < 0 {
                    return Ok(Reply::Stored);
                }
                self.items.lock().unwrap().insert(request.key.clone(), ITEM);
                self.stored.lock().unwrap().push((request.key.clone(), *flags, *exptime));
                Reply::Stored
            }
            (Operation::Delete { .. }, _) => self.delete(&request.key),
            (_, Some(item)) => Reply::Value { flags: item.flags, cas: None, value: item.value.into() },
            (Operation::LeaseGet, None) => self.lease(&request.key),
            (_, None) => Reply::Miss,
        })
    }
}

fn meta_get(meta: &MetaOperation<Bytes>, item: Option<Item>) -> MetaReply<Bytes> {
    assert_eq!(meta.verb, MetaVerb::Get);
    let Some(Item { value, flags, ttl, state }) = item else {
        return MetaReply { status: MetaStatus::Miss, flags: Bytes::new(), value: None };
    };
    let flags = format!("f{flags} t{ttl}{state}").into();
    MetaReply { status: MetaStatus::Value, flags, value: Some(value.into()) }
}

impl Destination for Server {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        let outcomes = batch.iter().map(|request| self.reply(request)).collect();
        Box::pin(async move { outcomes })
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

/// A pool that had one server and has another.
struct Pool {
    old: Arc<Server>,
    new: Arc<Server>,
    environment: Arc<FakeEnvironment>,
    counters: Arc<FormerOwnerCounters>,
    route: FormerOwnerRoute,
}

impl Pool {
    fn new(old: &Arc<Server>, new: &Arc<Server>) -> Pool {
        Pool::of_servers(old, std::slice::from_ref(new))
    }

    fn of_servers(old: &Arc<Server>, new: &[Arc<Server>]) -> Pool {
        let environment = FakeEnvironment::new();
        let counters = Arc::<FormerOwnerCounters>::default();
        let owners = Owners {
            servers: new.iter().map(|server| server.address.clone()).collect(),
            hash: KeyHash::default(),
            former: vec![old.clone()],
            former_hash: KeyHash::default(),
            is_owned: Box::new(|_, _, key| !key.starts_with(b"foreign:")),
            unleased_after: None,
        };
        let servers = new.iter().map(|server| server.clone() as Arc<dyn Destination>).collect();
        let pool = Arc::new(PoolRoute::new(servers, false, KeyHash::default()));
        let routes = environment.environment(BACKGROUND_TASKS_MAX);
        let route = FormerOwnerRoute::new(pool, owners, counters.clone(), routes);
        Pool { old: old.clone(), new: new[0].clone(), environment, counters, route }
    }

    /// The former owner has "k".
    fn moved() -> Pool {
        let pool = Pool::new(&Server::new("old:1"), &Server::new("new:1"));
        pool.old.put("k", ITEM);
        pool
    }

    async fn ask(&self, text: &str) -> Outcome {
        self.ask_all(vec![request(text)]).await.remove(0)
    }

    async fn ask_all(&self, batch: Batch) -> Outcomes {
        self.route.route(batch, &Context::default()).await
    }

    fn counts(&self) -> [u64; 4] {
        let FormerOwnerCounters { hits, misses, errors, fills, .. } = &*self.counters;
        [hits.value(), misses.value(), errors.value(), fills.value()]
    }
}

fn value() -> Outcome {
    Ok(Reply::Value { flags: 5, cas: None, value: "value".into() })
}

#[tokio::test]
async fn a_get_returns_the_former_owners_value_and_copies_it_in_the_background() {
    let pool = Pool::moved();
    assert_eq!(pool.ask("get k").await, value());
    assert_eq!((pool.new.asked(), pool.old.asked()), (vec!["get"], vec!["mg"]));
    assert_eq!(pool.environment.run_background().await, 1);
    assert_eq!((pool.new.asked(), pool.old.asked()), (vec!["lease-get", "lease-set"], vec!["mg"]));
    assert_eq!(pool.new.stored(), [("k".into(), 5, 60)], "with its flags and the rest of its time");
    assert_eq!(pool.counts(), [1, 0, 0, 1]);
    assert_eq!(pool.ask("get k").await, value());
    assert_eq!((pool.new.asked(), pool.old.asked()), (vec!["get"], vec![]), "it has moved");
}

#[tokio::test]
async fn a_delete_between_the_read_and_the_copy_is_not_undone() {
    for reads_before in [1, 2] {
        let pool = Pool::moved();
        let (new, reads) = (pool.new.clone(), AtomicU64::new(0));
        *pool.old.after_read.lock().unwrap() = Some(Box::new(move || {
            if reads.fetch_add(1, Relaxed) + 1 == reads_before {
                new.delete(&"k".into());
            }
        }));
        assert_eq!(pool.ask("get k").await, value());
        if reads_before == 1 {
            // As deletes do, it had reached the former owner first.
            pool.old.delete(&"k".into());
        }
        pool.environment.run_background().await;
        assert!(pool.new.stored().is_empty());
    }
}

#[tokio::test]
async fn a_clients_lease_is_used_for_the_copy() {
    let pool = Pool::moved();
    assert_eq!(pool.ask("lease-get k").await, value());
    assert_eq!((pool.new.asked(), pool.old.asked()), (vec!["lease-get", "lease-set"], vec!["mg"]));
    assert_eq!(pool.new.stored(), [("k".into(), 5, 60)]);
    let pool = Pool::new(&pool.old, &Server::new("new:1"));
    pool.new.lease(&"k".into());
    assert_eq!(pool.ask("lease-get k").await, value(), "a hot miss need not wait");
    assert_eq!((pool.environment.run_background().await, pool.new.stored().len()), (0, 0));
    let missed = Pool::new(&Server::new("old:1"), &Server::new("new:1"));
    assert!(matches!(missed.ask("lease-get k").await, Ok(Reply::Lease { token, .. }) if token.is_held()));
    assert_eq!(missed.counts(), [0, 1, 0, 0]);
}

#[tokio::test]
async fn verbs_that_the_new_owner_must_answer_are_answered_by_it() {
    for verb in ["gets k", "gat k 9", "gats k 9"] {
        let pool = Pool::moved();
        assert_eq!(pool.ask(verb).await, value());
        let verb = verb.split(' ').next().unwrap();
        assert_eq!(pool.new.asked(), [verb, "lease-get", "lease-set", verb]);
    }
    let pool = Pool::moved();
    let meta = MetaOperation { verb: MetaVerb::Get, flags: "v".into(), value: None };
    let outcome = pool.ask_all(vec![Request { key: "k".into(), operation: Operation::Meta(meta) }]).await.remove(0);
    assert!(matches!(outcome, Ok(Reply::Meta(reply)) if reply.value == Some("value".into())));
    // Another client copies it, and never ends.
    let pool = Pool::moved();
    pool.new.lease(&"k".into());
    assert_eq!(pool.ask("gets k").await, Ok(Reply::Miss));
    assert_eq!(waits(&pool), 3);
}

#[tokio::test]
async fn only_live_values_are_copied_with_the_time_that_they_have_left() {
    for (ttl, state, exptime) in [
        ("-1", "", Some(0)),
        ("1", "", Some(1)),
        ("2592000", "", Some(2_592_000)),
        ("2592001", "", Some(2_592_001)),
        ("0", "", None),
        ("60", " W X", None),
        ("60", " Z", None),
    ] {
        let pool = Pool::moved();
        pool.old.put("k", Item { ttl, state, ..ITEM });
        let outcome = pool.ask("lease-get k").await;
        let stored: Vec<i64> = pool.new.stored().iter().map(|(_, _, exptime)| *exptime).collect();
        assert_eq!(stored, Vec::from_iter(exptime), "{ttl}{state}");
        assert_eq!(outcome == value(), exptime.is_some(), "{ttl}{state}");
    }
}

/// An audit of a pool whose servers had changed copied each key that it compared.
#[tokio::test]
async fn an_observer_copies_nothing() {
    for (flags, is_copied) in [("v Olookaside-observer", false), ("v Oother", true)] {
        let pool = Pool::moved();
        let meta = MetaOperation { verb: MetaVerb::Get, flags: flags.into(), value: None };
        pool.ask_all(vec![Request { key: "k".into(), operation: Operation::Meta(meta) }]).await;
        assert_eq!(!pool.old.asked().is_empty(), is_copied, "{flags}");
        assert_eq!(pool.new.asked().contains(&"lease-set"), is_copied, "{flags}");
    }
}

#[tokio::test]
async fn other_keys_and_verbs_do_not_reach_the_former_owner() {
    let pool = Pool::moved();
    pool.old.put("foreign:k", ITEM);
    for text in ["get foreign:k", "set k", "incr k", "touch k 9", "delete k"] {
        pool.ask(text).await.expect("a reply");
    }
    let same = Pool::new(&pool.old, &Server::new("old:1"));
    same.ask("get k").await.expect("a reply");
    assert!(pool.old.asked().is_empty());
}

#[tokio::test]
async fn a_former_owner_that_fails_is_not_asked_for_a_while() {
    let pool = Pool::moved();
    *pool.old.failure.lock().unwrap() = Some(Err(Failure::TimedOut));
    for _ in 0..10 {
        assert_eq!(pool.ask("get k").await, Ok(Reply::Miss));
    }
    assert_eq!((pool.old.asked().len(), pool.counts()), (1, [0, 0, 1, 0]));
    *pool.old.failure.lock().unwrap() = None;
    pool.environment.advance(FORMER_OWNER_RETRY);
    assert_eq!(pool.ask("get k").await, value());
}

#[tokio::test]
async fn a_server_without_leases_is_not_filled() {
    let pool = Pool::moved();
    *pool.new.failure.lock().unwrap() = Some(Ok(Reply::Error(ErrorReply::Unknown)));
    for _ in 0..2 {
        assert_eq!(pool.ask("get k").await, value());
        pool.environment.run_background().await;
    }
    assert!(pool.new.stored().is_empty());
    assert_eq!(pool.new.asked(), ["get", "lease-get", "get"], "it is asked for a lease once");
    let lines = pool.environment.lines();
    assert!(lines.len() == 1 && lines[0].contains("new:1 does not know lease-get"), "{lines:?}");
}

#[tokio::test]
async fn simultaneous_misses_copy_a_key_once() {
    let pool = Pool::moved();
    let outcomes = pool.ask_all(vec![request("get k"); 1_000]).await;
    assert!(outcomes.iter().all(|outcome| *outcome == value()));
    for _ in 0..9 {
        pool.ask("get k").await.expect("a reply");
    }
    pool.new.asked();
    assert_eq!(pool.environment.run_background().await, 1);
    assert_eq!(pool.new.asked(), ["lease-get", "lease-set"]);
}

/// Otherwise clients with leases would wait for a fill that does not come.
#[tokio::test]
async fn a_lease_is_returned_if_the_value_has_gone_meanwhile() {
    let pool = Pool::moved();
    assert_eq!(pool.ask("get k").await, value());
    pool.old.delete(&"k".into());
    pool.environment.run_background().await;
    assert_eq!(pool.new.asked(), ["get", "lease-get", "lease-set"]);
    assert!(pool.new.stored().is_empty() && pool.new.leases.lock().unwrap().is_empty());
    assert_eq!(pool.counts()[3], 0, "a lease that is returned is no fill");
}

/// A lease was returned by a delete, which removed the value that a client had stored meanwhile.
#[tokio::test]
async fn the_return_of_a_lease_leaves_a_newer_value() {
    let newer = Item { value: "newer", ..ITEM };
    let pool = Pool::moved();
    assert_eq!(pool.ask("get k").await, value());
    // A client's set deletes the key at the former owner first.
    pool.old.delete(&"k".into());
    let (new, of_client) = (pool.new.clone(), newer.clone());
    *pool.old.after_read.lock().unwrap() = Some(Box::new(move || new.set("k", of_client.clone())));
    pool.environment.run_background().await;
    assert_eq!(pool.new.items.lock().unwrap().get(&Bytes::from("k")), Some(&newer));
}

fn waits(pool: &Pool) -> usize {
    pool.environment.slept().into_iter().filter(|slept| *slept < FORMER_OWNER_TIMEOUT).count()
}

/// The last wait ended without another question, and was in vain.
#[tokio::test]
async fn the_new_owner_is_asked_after_each_wait_for_another_clients_fill() {
    let pool = Pool::moved();
    pool.new.lease(&"k".into());
    assert_eq!(pool.ask("gets k").await, Ok(Reply::Miss));
    assert_eq!(pool.new.asked(), ["gets", "lease-get", "gets", "gets", "gets", "gets"]);
    assert_eq!(waits(&pool), 3);
}

/// Each `gets` of a moved key took 35 ms, and was a miss.
#[tokio::test]
async fn nothing_is_waited_for_without_a_fill() {
    let pool = Pool::moved();
    *pool.new.failure.lock().unwrap() = Some(Ok(Reply::Error(ErrorReply::Unknown)));
    assert_eq!(pool.ask("gets k").await, Ok(Reply::Miss));
    assert_eq!((pool.new.asked(), pool.old.asked()), (vec!["gets", "lease-get"], vec!["mg"]));
    assert_eq!(pool.ask("gets k").await, Ok(Reply::Miss));
    assert_eq!((pool.new.asked(), pool.old.asked()), (vec!["gets"], vec![]), "no value could be copied");
    assert_eq!(waits(&pool), 0);
    let pool = Pool::moved();
    let (old, reads) = (pool.old.clone(), AtomicU64::new(0));
    *pool.old.after_read.lock().unwrap() = Some(Box::new(move || {
        if reads.fetch_add(1, Relaxed) == 0 {
            old.delete(&"k".into());
        }
    }));
    assert_eq!(pool.ask("gets k").await, Ok(Reply::Miss));
    assert_eq!((pool.new.asked(), waits(&pool)), (vec!["gets", "lease-get", "lease-set"], 0), "it has gone meanwhile");
}

/// Any error in a reply to one key ended the copying of all keys of the pool.
#[tokio::test]
async fn only_a_server_that_does_not_know_leases_is_not_filled() {
    let pool = Pool::moved();
    *pool.new.failure.lock().unwrap() = Some(Ok(Reply::Error(ErrorReply::Server("busy".into()))));
    assert_eq!(pool.ask("get k").await, value());
    pool.environment.run_background().await;
    assert!(pool.environment.lines().is_empty());
    *pool.new.failure.lock().unwrap() = None;
    assert_eq!(pool.ask("get k").await, value());
    pool.environment.run_background().await;
    assert_eq!(pool.new.stored().len(), 1);

    const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let new = [Server::new("new:1"), Server::new("new:2")];
    let pool = Pool::of_servers(&Server::new("old:1"), &new);
    *new[0].failure.lock().unwrap() = Some(Ok(Reply::Error(ErrorReply::Unknown)));
    for key in KEYS.repeat(2) {
        pool.old.put(key, ITEM);
        assert_eq!(pool.ask(&format!("get {key}")).await, value());
        pool.environment.run_background().await;
    }
    let asked = new.each_ref().map(|server| server.asked());
    let of_first = asked[0].iter().filter(|verb| **verb == "get").count() / 2;
    assert!((1..KEYS.len()).contains(&of_first), "{of_first} keys are at the first");
    assert_eq!(asked[0].iter().filter(|verb| **verb == "lease-get").count(), 1);
    assert_eq!((new[0].stored().len(), new[1].stored().len()), (0, KEYS.len() - of_first));
}
