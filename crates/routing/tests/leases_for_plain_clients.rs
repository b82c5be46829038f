//! `LeaseRoute`: the replies to plain clients, and the requests to their servers, miss by miss and set by set.

use crate::environment::FakeEnvironment;
use crate::fakes::{Fake, request};
use crate::lease_world::{Client, World, refusing, with};
use bytes::Bytes;
use lookaside_protocol::{
    LeaseToken, Operation, Reply, Request, StoreMode,
    meta::{MetaOperation, MetaStatus, MetaVerb, OBSERVER_OPAQUE},
};
use lookaside_routing::{
    Batch, BoxFuture, Clock, Context, HotMisses, LeaseClients, LeaseRoute, LeaseScope, LeaseSettings, Leasing, Outcome,
    Outcomes, Route, UnleasedSet,
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// The race of §3.2.1, in every verb by which a client can find that a key is missing, and store it.
#[tokio::test]
async fn a_value_from_before_a_delete_is_not_stored() {
    for find in ["get", "gets", "gat", "gats", "touch", "incr", "decr"] {
        for store in ["set", "add", "replace"] {
            let world = refusing();
            let client = world.client();
            assert!(matches!(client.one(&format!("{find} k")).await, Reply::Miss | Reply::NotFound), "{find}");
            world.delete("k");
            assert_eq!(client.one(&format!("{store} k")).await, Reply::NotStored, "{find}, {store}");
            assert_eq!(world.value("k"), None, "{find}, {store}");
        }
    }
}

#[tokio::test]
async fn a_fill_is_stored_under_the_token_of_its_miss() {
    for find in ["get", "gets", "gat", "gats", "touch", "incr", "decr"] {
        for store in ["set", "add"] {
            let world = refusing();
            let client = world.client();
            client.one(&format!("{find} k")).await;
            assert_eq!(client.one(&format!("{store} k 60")).await, Reply::Stored, "{find}, {store}");
            assert_eq!(world.server.asked().last().unwrap(), "lease-set k 60");
            assert!(world.value("k").is_some());
            assert_eq!(world.clients.remembered(), 0);
        }
    }
}

#[tokio::test]
async fn hits_cost_one_request() {
    let world = refusing();
    world.store.lock().unwrap().values.insert("k".into(), "v".into());
    let client = world.client();
    for (find, asked) in [("get k", "lease-get k"), ("gets k", "gets k"), ("touch k", "touch k 0")] {
        client.one(find).await;
        assert_eq!(world.server.asked(), [asked]);
    }
    assert_eq!(world.clients.remembered(), 0);
}

/// Two threads share a connection. One has read the database before a delete, the other misses after it.
#[tokio::test]
async fn a_later_miss_of_the_connection_does_not_help_an_older_value() {
    let world = refusing();
    let client = world.client();
    client.one("get k").await;
    world.delete("k");
    client.one("get k").await;
    assert_eq!(client.one("set k").await, Reply::NotStored, "it may be the value of the first thread");
    assert_eq!(client.one("set k").await, Reply::NotStored);
    let other = world.client();
    assert_eq!(other.one("get k").await, Reply::Miss);
    assert_eq!(other.one("set k").await, Reply::Stored, "the token that could not be used was returned");
}

/// Nothing is ever answered.
struct Silent;

impl Route for Silent {
    fn route<'a>(&'a self, _: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(std::future::pending())
    }
}

/// A thread of a client gave up on a get, after a deadline, read the database, and was delayed. Once its value was
/// stored under the token of a later miss of another thread.
#[tokio::test]
async fn a_get_that_its_caller_gives_up_counts_as_a_miss() {
    let world = refusing();
    let client = world.client();
    let silent = LeaseRoute::new(Arc::new(Silent), LeaseSettings::default(), world.env.clone());
    let context = Context { misses: Some(client.misses.clone()), ..Context::default() };
    tokio::select! {
        biased;
        _ = silent.route(vec![request("get k")], &context) => unreachable!("it is silent"),
        () = std::future::ready(()) => {}
    }
    world.delete("k");
    assert_eq!(client.one("get k").await, Reply::Miss);
    assert_eq!(client.one("set k").await, Reply::NotStored, "it may be the value from before the delete");
    assert_eq!(client.one("set k").await, Reply::NotStored);
    assert_eq!(client.one("get k").await, Reply::Miss);
    assert_eq!(client.one("set k").await, Reply::Stored);
}

/// The sleep of a hot miss never ends.
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn unix_s(&self) -> u64 {
        0
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// A client sends a batch with a hot miss, and gives it up while that is held back: all other outcomes are known.
async fn give_up_while_held_back(world: &World, client: &Client<'_>, requests: &[&str]) {
    let slow = LeaseRoute::new(world.server.leaf(), LeaseSettings::default(), Arc::new(Stopped));
    let context = Context { misses: Some(client.misses.clone()), ..Context::default() };
    tokio::select! {
        biased;
        _ = slow.route(requests.iter().copied().map(request).collect(), &context) => unreachable!("it is held back"),
        () = std::future::ready(()) => {}
    }
}

/// Once the miss that was recorded already was counted again, and so were updates: their keys were void for all sets
/// that came.
#[tokio::test]
async fn a_miss_of_a_batch_that_is_given_up_counts_once() {
    let world = refusing();
    let (client, other) = (world.client(), world.client());
    other.one("get hot").await;
    give_up_while_held_back(&world, &client, &["get a", "incr n", "get hot"]).await;
    assert_eq!(world.clients.remembered(), 4, "one of them is of the other client");
    for key in ["a", "n"] {
        assert_eq!(client.one(&format!("set {key}")).await, Reply::Stored, "{key}");
    }
    assert_eq!(client.one("set hot").await, Reply::NotStored);
    assert_eq!(world.clients.remembered(), 1);
}

/// The client does not get the hit either, so it reads the database. If the hit did not count, the value of that thread
/// would be stored under the token of the other one's miss, although it was read before the delete.
#[tokio::test]
async fn a_hit_of_a_batch_that_is_given_up_counts_as_a_miss() {
    let world = refusing();
    let (client, other) = (world.client(), world.client());
    other.one("get a").await;
    assert_eq!(other.one("set a").await, Reply::Stored);
    other.one("get hot").await;
    give_up_while_held_back(&world, &client, &["get a", "get hot"]).await;
    world.delete("a");
    assert_eq!(client.one("get a").await, Reply::Miss);
    assert_eq!(client.one("set a").await, Reply::NotStored, "it may be the value from before the delete");
    assert_eq!(client.one("set a").await, Reply::NotStored);
    assert_eq!(client.one("get a").await, Reply::Miss);
    assert_eq!(client.one("set a").await, Reply::Stored);
}

/// Both were sent before the reply to either, so the value is older than the miss.
#[tokio::test]
async fn a_set_in_the_batch_of_its_get_is_not_its_fill() {
    let world = refusing();
    let client = world.client();
    assert_eq!(client.ask_text(&["get k", "set k"]).await, [Reply::Miss, Reply::NotStored]);
    assert_eq!(world.clients.counters.unleased_refused.value(), 1);
    assert_eq!(client.ask_text(&["set k", "get k"]).await[0], Reply::Stored, "now it is");
}

#[tokio::test]
async fn two_gets_on_one_connection_do_not_wait_for_each_other() {
    let world = refusing();
    let client = world.client();
    assert_eq!(client.ask_text(&["get k", "get k"]).await, [Reply::Miss, Reply::Miss]);
    assert!(world.env.slept().is_empty(), "the fill comes over this connection");
    assert_eq!(client.ask_text(&["set k", "set k"]).await, [Reply::Stored, Reply::NotStored]);
    assert_eq!(world.clients.remembered(), 0);
}

/// Such a store once used up the token, and other clients waited for a fill until the server issued another one.
#[tokio::test]
async fn a_token_that_a_store_cannot_use_is_returned() {
    let world = refusing();
    let (client, other) = (world.client(), world.client());
    for store in [request("replace k"), meta(MetaVerb::Set, "I")] {
        client.one("get k").await;
        let outcomes = client.ask(vec![request("get other"), store, request("get third")]).await;
        assert_eq!(outcomes.len(), 3);
        assert!(world.server.asked().contains(&"lease-set k -1".to_owned()));
        assert_eq!(other.one("get k").await, Reply::Miss);
        assert!(world.env.slept().is_empty(), "it has a token of its own");
        assert_eq!(other.one("set k").await, Reply::Stored);
        world.delete("k");
        client.one("set k").await;
    }
}

#[tokio::test]
async fn a_delete_of_the_client_voids_its_miss() {
    let world = refusing();
    let client = world.client();
    client.one("get k").await;
    client.one("delete k").await;
    world.server.asked();
    assert_eq!(client.one("set k").await, Reply::NotStored);
    assert!(world.server.asked().is_empty(), "the server need not be asked");
    client.one("get k").await;
    assert_eq!(client.one("set k").await, Reply::Stored);
}

#[tokio::test]
async fn a_hot_miss_is_held_back_until_the_fill() {
    let world = refusing();
    let (holder, reader) = (world.client(), world.client());
    holder.one("get k").await;
    let before = world.env.slept().len();
    assert_eq!(before, 0);
    assert_eq!(reader.one("get k").await, Reply::Miss);
    let slept = world.env.slept();
    assert_eq!(slept.iter().sum::<Duration>(), Duration::from_millis(100), "{slept:?}");
    assert_eq!(reader.one("set k").await, Reply::NotStored, "it had no token");
    assert_eq!(holder.one("set k").await, Reply::Stored);
    assert_eq!(world.clients.counters.hot_misses.value(), 1);
}

#[tokio::test]
async fn a_held_miss_returns_the_value_that_arrives() {
    for find in ["get k", "gets k"] {
        let asked = Mutex::new(0);
        let server = Fake::new("a", move |request| {
            let mut asked = asked.lock().unwrap();
            *asked += u32::from(matches!(request.operation, Operation::LeaseGet));
            Ok(match (*asked > 2, &request.operation) {
                (true, _) => Reply::Value { flags: 0, cas: None, value: "new".into() },
                (false, Operation::LeaseGet) => Reply::Lease { token: LeaseToken::HOT_MISS, flags: 0, stale: None },
                (false, _) => Reply::Miss,
            })
        });
        let env = FakeEnvironment::new();
        let route = LeaseRoute::new(server.leaf(), LeaseSettings::default(), env.clone());
        let clients = Arc::new(LeaseClients::default());
        let context = Context { misses: Some(clients.add(Leasing::default(), None)), ..Context::default() };
        let outcomes = route.route(vec![request(find)], &context).await;
        assert!(matches!(&outcomes[0], Ok(Reply::Value { value, .. }) if value == "new"), "{find}: {outcomes:?}");
        assert_eq!((clients.counters.hot_hits.value(), clients.remembered()), (1, 0));
        assert_eq!(server.asked().last().unwrap(), if find == "get k" { "lease-get k" } else { "gets k" });
    }
}

#[tokio::test]
async fn stale_values_are_returned_if_that_is_set() {
    let hot_misses = HotMisses { wait: Duration::from_millis(100), return_stale: true };
    let world = World::new(LeaseSettings { hot_misses, ..LeaseSettings::default() });
    let (holder, reader) = (world.client(), world.client());
    world.store.lock().unwrap().values.insert("k".into(), "old".into());
    world.delete("k");
    assert_eq!(holder.one("get k").await, Reply::Miss, "the client with the token must read the database");
    assert!(matches!(reader.one("get k").await, Reply::Value { value, .. } if value == "old"));
    assert_eq!(reader.one("gets k").await, Reply::Miss, "a stale value has no CAS unique");
    assert_eq!((world.clients.counters.stale_hits.value(), world.clients.counters.hot_misses.value()), (1, 1));
}

#[tokio::test]
async fn a_store_without_a_miss_does_what_is_set() {
    for (unleased_set, of_set, of_replace, deleted) in [
        (UnleasedSet::Refuse, Reply::NotStored, Reply::NotStored, 0),
        (UnleasedSet::Pass, Reply::Stored, Reply::Stored, 0),
        (UnleasedSet::OnlyIfAbsent { hold_off_ms: 1_500 }, Reply::Stored, Reply::NotStored, 1_500),
    ] {
        let world = with(unleased_set);
        let client = world.client();
        assert_eq!(client.one("set k").await, of_set, "{unleased_set:?}");
        assert_eq!(client.one("replace k").await, of_replace, "{unleased_set:?}");
        if let UnleasedSet::OnlyIfAbsent { .. } = unleased_set {
            assert_eq!(client.one("set k").await, Reply::NotStored, "there is a value");
        }
        world.server.requests();
        client.one("delete k").await;
        assert_eq!(world.server.requests()[0].operation, Operation::Delete { hold_off_ms: deleted });
        let counters = &world.clients.counters;
        let counts = [&counters.unleased_passed, &counters.unleased_refused, &counters.unleased_added];
        let expected = match unleased_set {
            UnleasedSet::Pass => [2, 0, 0],
            UnleasedSet::Refuse => [0, 2, 0],
            UnleasedSet::OnlyIfAbsent { .. } => [0, 1, 2],
        };
        assert_eq!(counts.map(|counter| counter.value()), expected);
    }
}

/// With every setting: a miss that is remembered as void is not the same as none.
#[tokio::test]
async fn a_void_miss_is_refused_even_if_stores_without_a_miss_pass() {
    for unleased_set in [UnleasedSet::Pass, UnleasedSet::OnlyIfAbsent { hold_off_ms: 0 }] {
        let world = with(unleased_set);
        let client = world.client();
        client.one("get k").await;
        client.one("delete k").await;
        assert_eq!(client.one("set k").await, Reply::NotStored, "{unleased_set:?}");
        assert_eq!(client.one("set k").await, Reply::Stored, "{unleased_set:?}");
    }
}

/// Most clients take a failed get for a miss.
#[tokio::test]
async fn a_get_that_failed_is_not_filled() {
    let server = Fake::failing("a", lookaside_routing::Failure::TimedOut);
    let route = LeaseRoute::new(server.leaf(), LeaseSettings::default(), FakeEnvironment::new());
    let context =
        Context { misses: Some(Arc::new(LeaseClients::default()).add(Leasing::default(), None)), ..Context::default() };
    for find in ["get k", "gets j"] {
        assert!(route.route(vec![request(find)], &context).await[0].is_err());
    }
    server.asked();
    let outcomes = route.route(vec![request("set k"), request("set j")], &context).await;
    assert_eq!(outcomes, [Ok(Reply::NotStored), Ok(Reply::NotStored)]);
    assert!(server.asked().is_empty());
}

fn meta(verb: MetaVerb, flags: &'static str) -> Request<Bytes> {
    let value = (verb == MetaVerb::Set).then(|| Bytes::from_static(b"v"));
    Request { key: "k".into(), operation: Operation::Meta(MetaOperation { verb, flags: flags.into(), value }) }
}

#[tokio::test]
async fn meta_commands_are_leased() {
    let world = refusing();
    let client = world.client();
    let reply = |outcomes: Vec<Outcome>| match &outcomes[..] {
        [Ok(Reply::Meta(reply))] => (reply.status, String::from_utf8(reply.flags.to_vec()).unwrap()),
        other => panic!("{other:?}"),
    };
    assert_eq!(reply(client.ask(vec![meta(MetaVerb::Get, "v")]).await).0, MetaStatus::Miss);
    world.delete("k");
    let refused = reply(client.ask(vec![meta(MetaVerb::Set, "O7 k F5 T60")]).await);
    assert_eq!(refused, (MetaStatus::NotStored, "O7 kk".to_owned()));
    client.ask(vec![meta(MetaVerb::Get, "v")]).await;
    world.server.requests();
    let stored = reply(client.ask(vec![meta(MetaVerb::Set, "O7 k c F5 T60")]).await);
    assert_eq!(stored, (MetaStatus::Done, "O7 kk c0".to_owned()));
    match &world.server.requests()[0].operation {
        Operation::LeaseSet { flags: 5, exptime: 60, .. } => {}
        other => panic!("{other:?}"),
    }
    world.delete("k");
    client.ask(vec![meta(MetaVerb::Get, "v")]).await;
    assert_eq!(reply(client.ask(vec![meta(MetaVerb::Set, "E9")]).await).0, MetaStatus::NotStored, "not expressible");
    assert_eq!(world.value("k"), None);
}

/// An audit read a key that was not cached. Its connection kept the token, so each client that missed the key next
/// waited for a fill that did not come, and could not fill it either.
#[tokio::test]
async fn an_observer_takes_no_lease() {
    let world = refusing();
    let observer = world.client();
    assert_eq!(OBSERVER_OPAQUE, b"lookaside-observer");
    observer.ask(vec![meta(MetaVerb::Get, "v c f u Olookaside-observer")]).await;
    assert_eq!(world.server.requests(), [meta(MetaVerb::Get, "v c f u Olookaside-observer")]);
    assert_eq!(world.clients.remembered(), 0);
    let client = world.client();
    client.one("get k").await;
    assert_eq!(client.one("set k").await, Reply::Stored);
}

#[tokio::test]
async fn a_meta_store_without_a_miss_becomes_an_add() {
    let world = with(UnleasedSet::OnlyIfAbsent { hold_off_ms: 0 });
    world.client().ask(vec![meta(MetaVerb::Set, "T60 MS O1")]).await;
    assert_eq!(world.server.requests(), [meta(MetaVerb::Set, "T60 O1 ME")]);
}

/// Copies for shadows have no client.
#[tokio::test]
async fn without_a_client_reads_pass_and_stores_have_no_miss() {
    let world = refusing();
    let batch = ["get k", "gets k", "set k", "delete k"].map(request).to_vec();
    let outcomes = world.route.route(batch, &Context::default()).await;
    assert_eq!(outcomes[2], Ok(Reply::NotStored));
    assert_eq!(world.server.asked(), ["get k", "gets k", "delete k"]);
}

/// A world with a pool, when its address is no longer blind.
async fn pooled() -> World {
    let world = World::new(LeaseSettings { scope: LeaseScope::Address, ..LeaseSettings::default() });
    world.client_of(LeaseScope::Address).one("get other").await;
    world.env.advance(Duration::from_secs(11));
    world.env.slept();
    world
}

/// A pool: one thread misses over one connection before a delete, the other over another after it, and the first stores
/// over the connection of the second.
#[tokio::test]
async fn connections_that_exchange_sets_store_nothing_old() {
    let world = pooled().await;
    let (one, other) = (world.client_of(LeaseScope::Address), world.client_of(LeaseScope::Address));
    one.one("get k").await;
    world.delete("k");
    assert_eq!(other.one("get k").await, Reply::Miss);
    assert!(!world.env.slept().is_empty(), "the older value may be refused meanwhile");
    assert_eq!(other.one("set k").await, Reply::NotStored, "it may be the older value");
    assert_eq!(one.one("set k").await, Reply::NotStored);
    assert_eq!(one.one("get k").await, Reply::Miss);
    assert_eq!(other.one("set k").await, Reply::Stored, "over any connection");
}

/// The client whose set the others wait for may have ended.
#[tokio::test]
async fn a_set_that_does_not_come_is_not_waited_for_long() {
    let world = pooled().await;
    let (one, other) = (world.client_of(LeaseScope::Address), world.client_of(LeaseScope::Address));
    one.one("get k").await;
    world.delete("k");
    other.one("get k").await;
    world.env.slept();
    world.env.advance(Duration::from_secs(2));
    other.one("get k").await;
    assert!(world.env.slept().is_empty());
    world.env.advance(Duration::from_secs(11));
    other.one("get k").await;
    assert_eq!(other.one("set k").await, Reply::Stored, "all misses before this one are too old");
}

/// Every interleaving of two readers on one or two connections, a writer and the server: a value from before a delete
/// is never found behind it.
#[tokio::test]
async fn no_interleaving_stores_an_old_value() {
    /// The steps of a client: get, read the database, store, and so on, three rounds.
    const ROUNDS: usize = 3;
    let mut rng = fastrand::Rng::with_seed(14);
    for run in 0..4_000 {
        // Either each reader uses one connection throughout, and some share it; or they have a pool.
        let is_pool = rng.bool();
        let world = if is_pool { pooled().await } else { refusing() };
        let scope = if is_pool { LeaseScope::Address } else { LeaseScope::Connection };
        let connections = [world.client_of(scope), world.client_of(scope)];
        let is_shared = rng.bool();
        let mut readers: Vec<(usize, usize, Option<u64>)> =
            (0..3).map(|reader| (if is_shared { 0 } else { reader % 2 }, 0, None)).collect();
        let mut row = 0_u64;
        for _ in 0..60 {
            if rng.u8(0..4) == 0 {
                row += 1;
                world.delete("k");
                let kept = world.value("k");
                assert_eq!(kept, None);
                continue;
            }
            let at = rng.usize(0..readers.len());
            let (connection, round, read) = &mut readers[at];
            if *round == ROUNDS {
                continue;
            }
            if is_pool {
                *connection = rng.usize(0..connections.len());
            }
            let client = &connections[*connection];
            match *read {
                None => match client.one("get k").await {
                    Reply::Miss => *read = Some(row),
                    Reply::Value { value, .. } => {
                        assert_eq!(value, row.to_string(), "run {run}");
                        *round += 1;
                    }
                    other => panic!("{other:?}"),
                },
                Some(value) => {
                    let operation = Operation::Store {
                        mode: StoreMode::Set,
                        flags: 0,
                        exptime: 0,
                        value: value.to_string().into(),
                        cas: false,
                    };
                    client.ask(vec![Request { key: "k".into(), operation }]).await;
                    (*read, *round) = (None, *round + 1);
                }
            }
            if let Some(stored) = world.value("k") {
                assert_eq!(stored, row.to_string(), "run {run}");
            }
        }
    }
}
