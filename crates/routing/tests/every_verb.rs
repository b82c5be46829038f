//! Every route handle, for every verb and every reply of its first server: which servers are asked, in which order, and
//! what is returned. The tables repeat the heads of the routes' files.
//!
//! ```text
//!   get gets: hit a ok | miss a+b ok | bad a+b:get ok
//!                 |  |           |            '-- with another verb than the client's
//!                 |  '-- ok: done; no: a miss or a refusal; fail: an error or no reply
//!                 '-- server a: hits, misses, or fails (`bad`: an error, a timeout, TKO)
//! ```
//!
//! At servers b and c every request succeeds. Requests in the background count as asked.

use crate::environment::FakeEnvironment;
use crate::fakes::{Fake, VERBS, request, server_error};
use bytes::Bytes;
use lookaside_protocol::{Reply, Request, meta::MetaStatus};
use lookaside_routing::{
    Address, Batch, BoxFuture, Configuration, Context, Defaults, Destination, DestinationSettings, Destinations,
    Environment, Failure, LeaseClients, Leasing, Outcome, Outcomes, RootRoute, Route, TkoReason, Verb,
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

const READS: &str = "get gets gat gats lease-get metaget";
const UPDATES: &str = "set add replace append prepend cas lease-set incr decr touch";

/// The states of server a.
const STATES: [(&str, &[&str]); 3] = [("hit", &["hit"]), ("miss", &["miss"]), ("bad", &["error", "timeout", "out"])];

/// Handles that ask their only child and return its reply.
const AS_IT_IS: &str = "all: hit a ok | miss a no | bad a fail";
/// Failover, except for deletes.
const IN_TURN: &str = "reads updates: hit a ok | miss a no | bad a+b ok
    delete: hit a ok | miss a no | bad a+b fail";

/// Each handle and its table.
const HANDLES: &[(&str, &str)] = &[
    (r#""PoolRoute|A""#, AS_IT_IS),
    (r#"{"type": "HashRoute", "children": ["PoolRoute|A"]}"#, AS_IT_IS),
    (r#"{"type": "HashRoute", "children": ["PoolRoute|A"], "hash_func": "Latest"}"#, AS_IT_IS),
    (r#"{"type": "LoadBalancerRoute", "children": ["PoolRoute|A", "PoolRoute|A"]}"#, AS_IT_IS),
    (r#"{"type": "HostIdRoute", "children": ["PoolRoute|A", "PoolRoute|A"]}"#, AS_IT_IS),
    (r#"{"type": "OriginalClientHashRoute", "children": ["PoolRoute|A", "PoolRoute|A"]}"#, AS_IT_IS),
    (r#"{"type": "RandomRoute", "children": ["PoolRoute|A", "PoolRoute|A"]}"#, AS_IT_IS),
    (r#"{"type": "OutstandingLimitRoute", "max_outstanding": 1, "target": "PoolRoute|A"}"#, AS_IT_IS),
    (r#"{"type": "LatencyInjectionRoute", "before_latency_ms": 1, "child": "PoolRoute|A"}"#, AS_IT_IS),
    (r#"{"type": "LoggingRoute", "target": "PoolRoute|A"}"#, AS_IT_IS),
    (r#"{"type": "ModifyKeyRoute", "ensure_key_prefix": "x:", "target": "PoolRoute|A"}"#, AS_IT_IS),
    (r#"{"type": "ModifyExptimeRoute", "exptime": 9, "target": "PoolRoute|A"}"#, AS_IT_IS),
    (r#"{"type": "RateLimitRoute", "rates": {}, "target": "PoolRoute|A"}"#, AS_IT_IS),
    (r#"{"type": "PrefixSelectorRoute", "policies": {"k": "PoolRoute|A"}, "wildcard": "PoolRoute|B"}"#, AS_IT_IS),
    (r#"{"type": "PrefixSelectorRoute", "policies": {"x": "PoolRoute|B"}, "wildcard": "PoolRoute|A"}"#, AS_IT_IS),
    (
        r#"{"type": "OperationSelectorRoute", "default_policy": "PoolRoute|A",
            "operation_policies": {"delete": "PoolRoute|B", "lease-get": "PoolRoute|C"}}"#,
        "get gets gat gats metaget updates: hit a ok | miss a no | bad a fail
        lease-get: hit c ok | miss c ok | bad c ok
        delete: hit b ok | miss b ok | bad b ok",
    ),
    (r#""NullRoute""#, "all: hit - no | miss - no | bad - no"),
    (r#""DevNullRoute""#, "all: hit - no | miss - no | bad - no"),
    (r#""ErrorRoute|why""#, "all: hit - fail | miss - fail | bad - fail"),
    (
        r#"{"type": "AllSyncRoute", "children": ["PoolRoute|A", "PoolRoute|B"]}"#,
        "reads updates: hit a+b ok | miss a+b no | bad a+b fail
        delete: hit a+b ok | miss a+b ok | bad a+b fail",
    ),
    (
        r#"{"type": "AllInitialRoute", "children": ["PoolRoute|A", "PoolRoute|B"]}"#,
        "all: hit a+b ok | miss a+b no | bad a+b fail",
    ),
    (
        r#"{"type": "AllFastestRoute", "children": ["PoolRoute|A", "PoolRoute|B"]}"#,
        "all: hit a+b ok | miss a+b no | bad a+b ok",
    ),
    (
        r#"{"type": "AllAsyncRoute", "children": ["PoolRoute|A", "PoolRoute|B"]}"#,
        "all: hit a+b no | miss a+b no | bad a+b no",
    ),
    (
        r#"{"type": "AllMajorityRoute", "children": ["PoolRoute|A", "PoolRoute|B", "PoolRoute|C"]}"#,
        "all: hit a+b+c ok | miss a+b+c ok | bad a+b+c ok",
    ),
    (r#"{"type": "FailoverRoute", "children": ["PoolRoute|A", "PoolRoute|B"]}"#, IN_TURN),
    (r#"{"type": "FailoverRoute", "children": ["PoolRoute|A", "PoolRoute|B"], "failover_errors": []}"#, AS_IT_IS),
    (
        r#"{"type": "FailoverWithExptimeRoute", "normal": "PoolRoute|A", "failover": "PoolRoute|B",
            "failover_exptime": 10}"#,
        IN_TURN,
    ),
    (
        r#"{"type": "LatestRoute", "children": ["PoolRoute|A", "PoolRoute|B"], "failover_count": 2, "salt": "2"}"#,
        IN_TURN,
    ),
    (
        r#"{"type": "MissFailoverRoute", "children": ["PoolRoute|A", "PoolRoute|B"]}"#,
        "get gets gat gats metaget: hit a ok | miss a+b ok | bad a+b ok
        lease-get: hit a ok | miss a+b:get ok | bad a+b ok
        updates: hit a ok | miss a no | bad a+b ok
        delete: hit a+b ok | miss a+b ok | bad a+b fail",
    ),
    // One hour before it begins.
    (r#"{"type": "MigrateRoute", "start_time": 13600, "from": "PoolRoute|A", "to": "PoolRoute|B"}"#, AS_IT_IS),
    // In the first interval.
    (
        r#"{"type": "MigrateRoute", "start_time": 9000, "interval": 3600, "from": "PoolRoute|A", "to": "PoolRoute|B"}"#,
        "reads updates: hit a ok | miss a no | bad a fail
        delete: hit a+b ok | miss a+b ok | bad a+b fail",
    ),
    // In the second.
    (
        r#"{"type": "MigrateRoute", "start_time": 5000, "interval": 3600, "from": "PoolRoute|A", "to": "PoolRoute|B"}"#,
        "reads updates: hit b ok | miss b ok | bad b ok
        delete: hit a+b ok | miss a+b ok | bad a+b fail",
    ),
    // Afterwards.
    (
        r#"{"type": "MigrateRoute", "start_time": 1000, "interval": 3600, "from": "PoolRoute|B", "to": "PoolRoute|A"}"#,
        AS_IT_IS,
    ),
    (
        r#"{"type": "ShadowRoute", "target": "PoolRoute|A", "shadows":
            [{"target": "PoolRoute|B", "index_range": [0, 1], "key_fraction_range": [0, 1]}]}"#,
        "all: hit a+b ok | miss a+b no | bad a+b fail",
    ),
    // A client that has missed nothing.
    (
        r#"{"type": "LeaseRoute", "target": "PoolRoute|A"}"#,
        "get: hit a:lease-get ok | miss a:lease-get no | bad a:lease-get fail
        gets gat gats: hit a ok | miss a+a:lease-get no | bad a fail
        incr decr touch: hit a ok | miss a+a:lease-get no | bad a fail
        set add replace: hit - no | miss - no | bad - no
        lease-get metaget cas append prepend lease-set delete: hit a ok | miss a no | bad a fail",
    ),
    (
        r#"{"type": "LeaseRoute", "set_without_miss": "only-if-absent", "target": "PoolRoute|A"}"#,
        "get: hit a:lease-get ok | miss a:lease-get no | bad a:lease-get fail
        gets gat gats: hit a ok | miss a+a:lease-get no | bad a fail
        incr decr touch: hit a ok | miss a+a:lease-get no | bad a fail
        set: hit a:add ok | miss a:add no | bad a:add fail
        replace: hit - no | miss - no | bad - no
        lease-get metaget add cas append prepend lease-set delete: hit a ok | miss a no | bad a fail",
    ),
    // A meta get asks for the time to live; this server does not report it, so there is no fill.
    (
        r#"{"type": "StagingRoute", "warm": "PoolRoute|A", "staging": "PoolRoute|B"}"#,
        "get: hit a+a ok | miss a no | bad a fail
        gets gat gats lease-get: hit a+a:get ok | miss a no | bad a fail
        metaget: hit a ok | miss a no | bad a fail
        updates: hit a+b:delete ok | miss a+b:delete no | bad a+b:delete fail
        delete: hit a+b ok | miss a+b ok | bad a+b fail",
    ),
    // This cold cluster refuses all adds, as during a hold-off: values of the warm one are not used.
    (
        r#"{"type": "WarmUpRoute", "cold": "PoolRoute|A", "warm": "PoolRoute|B", "exptime": 60}"#,
        "get: hit a ok | miss a+b+a:add+a no | bad a fail
        gets gat gats: hit a ok | miss a+b:get+a:add+a no | bad a fail
        lease-get: hit a ok | miss a+b:get+a:add+a:get no | bad a fail
        metaget: hit a ok | miss a+b ok | bad a fail
        updates delete: hit a ok | miss a no | bad a fail",
    ),
    // This warm cluster does not tell the time to live, so nothing is copied.
    (
        r#"{"type": "WarmUpRoute", "cold": "PoolRoute|A", "warm": "PoolRoute|B", "enable_metaget": true}"#,
        "get: hit a ok | miss a+b+b no | bad a fail
        gets lease-get: hit a ok | miss a+b:get+b:get no | bad a fail
        gat gats: hit a ok | miss a+b:get+a:add+a no | bad a fail
        metaget: hit a ok | miss a+b ok | bad a fail
        updates delete: hit a ok | miss a no | bad a fail",
    ),
    (
        r#"{"type": "L1L2CacheRoute", "l1": "PoolRoute|A", "l2": "PoolRoute|B", "upgradingL1Exptime": 60}"#,
        "get: hit a ok | miss a+b+a:add ok | bad a+b+a:add ok
        lease-get: hit a:get ok | miss a:get+b+a:add ok | bad a:get+b+a:add ok
        gets gat gats metaget: hit b ok | miss b ok | bad b ok
        updates: hit b+a:delete ok | miss b+a:delete ok | bad b+a:delete ok
        delete: hit b+a ok | miss b+a ok | bad b+a fail",
    ),
    (
        r#"{"type": "L1L2CacheRoute", "l1": "PoolRoute|A", "l2": "PoolRoute|B", "upgradingL1Exptime": 60,
            "l1_only_writes": true}"#,
        "get gets gat gats: hit a ok | miss a+b+a:add ok | bad a+b+a:add ok
        lease-get: hit a ok | miss a+b:get+a:add ok | bad a+b+a:add ok
        metaget: hit a ok | miss a+b ok | bad a+b ok
        updates delete: hit a ok | miss a no | bad a fail",
    ),
    // A value of one byte is large.
    (
        r#"{"type": "L1L2SizeSplitRoute", "l1": "PoolRoute|A", "l2": "PoolRoute|B", "threshold": 1}"#,
        "set: hit b+a ok | miss b+a no | bad b+a fail
        lease-set: hit b:set+a ok | miss b:set+a no | bad b:set+a fail
        reads add replace append prepend cas incr decr touch delete: hit a ok | miss a no | bad a fail",
    ),
    (
        r#"{"type": "L1L2SizeSplitRoute", "l1": "PoolRoute|A", "l2": "PoolRoute|B", "threshold": 1,
            "both_full_set": true}"#,
        "set: hit a+b ok | miss a no | bad a fail
        lease-set: hit a+b:set ok | miss a no | bad a fail
        reads add replace append prepend cas incr decr touch delete: hit a ok | miss a no | bad a fail",
    ),
    (r#"{"type": "ShardSplitRoute", "shard_splits": {"1": 2}, "destination": "PoolRoute|A"}"#, AS_IT_IS),
    (
        r#"{"type": "RoutingGroupRoute", "default_policy": "PoolRoute|A",
            "routing_group_policies": {"get_like": "PoolRoute|B", "arithmetic_like": "PoolRoute|C"}}"#,
        "reads: hit b ok | miss b ok | bad b ok
        incr decr: hit c ok | miss c ok | bad c ok
        set add replace append prepend cas lease-set touch delete: hit a ok | miss a no | bad a fail",
    ),
    (
        r#"{"type": "RoutingGroupRoute",
            "routing_group_policies": {"update_like": "PoolRoute|B", "delete_like": "PoolRoute|C"}}"#,
        "reads incr decr touch: hit - fail | miss - fail | bad - fail
        set add replace append prepend cas lease-set: hit b ok | miss b ok | bad b ok
        delete: hit c ok | miss c ok | bad c ok",
    ),
    (
        r#"{"type": "KeySplitRoute", "replicas": 2, "destination": "PoolRoute|A"}"#,
        "reads updates: hit a ok | miss a no | bad a fail
        delete: hit a+a ok | miss a+a no | bad a+a fail",
    ),
    (
        r#"{"type": "KeySplitRoute", "replicas": 2, "all_sync": true, "destination": "PoolRoute|A"}"#,
        "reads cas lease-set: hit a ok | miss a no | bad a fail
        set add replace append prepend incr decr touch delete: hit a+a ok | miss a+a no | bad a+a fail",
    ),
    (
        r#"{"type": "BigValueRoute", "split_threshold": 100, "target": "PoolRoute|A"}"#,
        "reads set add replace cas lease-set incr decr touch delete: hit a ok | miss a no | bad a fail
        append prepend: hit a:gets+a ok | miss a:gets+a no | bad a:gets fail",
    ),
];

/// The time of all requests, in seconds since 1970.
const NOW_UNIX_S: u64 = 10_000;

/// Servers with one list of recorded requests.
struct Servers {
    state: &'static str,
    env: Arc<FakeEnvironment>,
    asked: Arc<Mutex<Vec<String>>>,
}

/// A server that records its requests in the common list.
struct RecordingDestination {
    server: Arc<Fake>,
    name: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Destination for RecordingDestination {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        let verb = |request: &Request<Bytes>| Verb::of(&request.operation).name();
        let lines = batch.iter().map(|request| format!("{}:{}", self.name, verb(request)));
        self.asked.lock().unwrap().extend(lines);
        self.server.send(batch)
    }

    fn address(&self) -> &Address {
        self.server.address()
    }
}

impl Destinations for Servers {
    fn destination(&mut self, address: &Address, _: &DestinationSettings) -> Arc<dyn Destination> {
        let name = address.to_string();
        let server = match (&*name, self.state) {
            ("a:1", "miss") => Fake::miss(&name),
            ("a:1", "error") => Fake::new(&name, |_| server_error("out of memory")),
            ("a:1", "timeout") => Fake::failing(&name, Failure::TimedOut),
            ("a:1", "out") => Fake::failing(&name, Failure::Tko(TkoReason::ConnectFailed)),
            _ => Fake::hit(&name),
        };
        let name = name.trim_end_matches(":1").to_owned();
        Arc::new(RecordingDestination { server, name, asked: self.asked.clone() })
    }

    fn environment(&mut self) -> Environment {
        self.env.environment(100)
    }
}

/// The servers asked and the reply, in the notation of the tables.
async fn observed(handle: &str, verb: &str, state: &'static str) -> String {
    let text = format!(
        r#"{{"pools": {{"A": {{"servers": ["a:1"]}}, "B": {{"servers": ["b:1"]}}, "C": {{"servers": ["c:1"]}}}},
            "route": {handle}}}"#
    );
    let configuration = Configuration::parse(&text, &Defaults::default()).unwrap_or_else(|error| panic!("{error}"));
    let env = FakeEnvironment::new();
    env.advance(Duration::from_secs(NOW_UNIX_S));
    let mut servers = Servers { state, env: env.clone(), asked: Arc::default() };
    let root: RootRoute = configuration.build(&mut servers);
    let context =
        Context { misses: Some(Arc::new(LeaseClients::default()).add(Leasing::default(), None)), ..Context::default() };
    let outcomes = root.route(vec![request(&format!("{verb} k"))], &context).await;
    while env.run_background().await > 0 {}
    let own = format!(":{verb}");
    let asked: Vec<String> =
        servers.asked.lock().unwrap().iter().map(|line| line.strip_suffix(&own).unwrap_or(line).to_owned()).collect();
    let asked = if asked.is_empty() { "-".to_owned() } else { asked.join("+") };
    format!("{asked} {}", class(&outcomes[0]))
}

fn class(outcome: &Outcome) -> &'static str {
    match outcome {
        Ok(Reply::Miss | Reply::Lease { .. } | Reply::NotStored | Reply::NotFound) => "no",
        Ok(Reply::Meta(meta)) if meta.status == MetaStatus::Miss => "no",
        Err(_) | Ok(Reply::Error(_)) => "fail",
        Ok(_) => "ok",
    }
}

/// The entries of a table for a verb: names of states and expectations.
fn expected<'a>(table: &'a str, verb: &str) -> Vec<(&'a str, &'a str)> {
    let of_verb = |line: &&str| {
        let (verbs, _) = line.split_once(": hit ").expect("verbs and then states");
        let names = |word: &str| match word {
            "all" => true,
            "reads" => READS.split(' ').any(|name| name == verb),
            "updates" => UPDATES.split(' ').any(|name| name == verb),
            name => name == verb,
        };
        verbs.split_whitespace().any(names)
    };
    let lines: Vec<&str> = table.lines().map(str::trim).filter(of_verb).collect();
    let [line] = lines[..] else { panic!("{verb} is in {} lines of {table}", lines.len()) };
    let (_, states) = line.split_once(": ").expect("verbs and then states");
    states.split(" | ").map(|state| state.split_once(' ').expect("a state and an expectation")).collect()
}

#[tokio::test]
async fn every_handle_treats_every_verb_as_in_its_table() {
    let mut wrong = Vec::new();
    for (handle, table) in HANDLES {
        for verb in VERBS {
            for ((name, states), (state_name, expected)) in STATES.iter().zip(expected(table, verb)) {
                assert_eq!(*name, state_name, "{table}");
                for state in *states {
                    let observed = observed(handle, verb, state).await;
                    if observed != expected {
                        wrong.push(format!("{handle}: {verb}, {state}: {observed}, expected {expected}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_tables_have_all_verbs() {
    let mut all: Vec<&str> = READS.split(' ').chain(UPDATES.split(' ')).chain(["delete"]).collect();
    let mut known = VERBS.to_vec();
    all.sort_unstable();
    known.sort_unstable();
    assert_eq!(all, known);
}
