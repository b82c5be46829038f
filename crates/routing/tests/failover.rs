//! Failover: policies, limits and tags.

use crate::environment::FakeEnvironment;
use crate::fakes::{Fake, VERBS, ask};
use lookaside_protocol::{LeaseToken, Operation, Reply};
use lookaside_routing::{
    Address, Configuration, Defaults, Destination, DestinationSettings, Destinations, Environment, Failure, RootRoute,
    Route, TkoReason,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

/// Servers that can be made to fail, and their environment.
pub(crate) struct Cluster {
    pub(crate) env: Arc<FakeEnvironment>,
    pub(crate) servers: BTreeMap<String, Arc<Fake>>,
    failing: Arc<Mutex<BTreeMap<String, Failure>>>,
}

impl Destinations for Cluster {
    fn destination(&mut self, address: &Address, _: &DestinationSettings) -> Arc<dyn Destination> {
        let (name, failing) = (address.to_string(), self.failing.clone());
        let own_name = name.clone();
        let fake = Fake::new(&name, move |request| {
            if let Some(failure) = failing.lock().unwrap().get(&own_name) {
                return Err(failure.clone());
            }
            let value = own_name.clone().into_bytes().into();
            Ok(match request.operation {
                Operation::LeaseGet => Reply::Lease { token: LeaseToken(token_of(&own_name)), flags: 0, stale: None },
                Operation::LeaseSet { token, .. } if token.0 != token_of(&own_name) => Reply::NotStored,
                Operation::LeaseSet { .. } | Operation::Store { .. } => Reply::Stored,
                Operation::Delete { .. } => Reply::Deleted,
                _ => Reply::Value { flags: 0, cas: None, value },
            })
        });
        self.servers.insert(name, fake.clone());
        fake
    }

    fn environment(&mut self) -> Environment {
        self.env.environment(100)
    }
}

/// The token that only this server accepts.
pub(crate) fn token_of(server: &str) -> u64 {
    100 + server.bytes().map(u64::from).sum::<u64>()
}

pub(crate) const POOLS: &str = r#""A": { "servers": ["a:1", "a:2", "a:3", "a:4", "a:5", "a:6"], "failure_domains": [1, 1, 2, 2, 3, 3] },
    "M": { "servers": ["m:1"] }, "G": { "servers": ["g:1"] }, "T": { "servers": ["t:1", "t:2", "t:3"] }"#;

impl Cluster {
    pub(crate) fn build(route: &str) -> (RootRoute, Cluster) {
        let text = format!("{{\"pools\": {{{POOLS}}}, \"route\": {route}}}");
        let configuration = Configuration::parse(&text, &Defaults::default()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(configuration.warnings, []);
        Cluster::of(&configuration)
    }

    pub(crate) fn of(configuration: &Configuration) -> (RootRoute, Cluster) {
        let mut cluster = Cluster { env: FakeEnvironment::new(), servers: BTreeMap::new(), failing: Arc::default() };
        (configuration.build(&mut cluster), cluster)
    }

    pub(crate) fn fail(&self, servers: &[&str], failure: Failure) {
        let mut failing = self.failing.lock().unwrap();
        servers.iter().for_each(|server| _ = failing.insert((*server).to_owned(), failure.clone()));
    }

    pub(crate) fn recover(&self) {
        self.failing.lock().unwrap().clear();
    }

    /// The servers that were asked since the last call, in the order of their names.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.servers.iter().filter(|(_, fake)| !fake.asked().is_empty()).map(|(name, _)| name.clone()).collect()
    }
}

pub(crate) fn failover(children: &str, rest: &str) -> String {
    format!(r#"{{"type": "FailoverRoute", "children": {children}{rest}}}"#)
}

/// A policy that chooses by key.
pub(crate) fn by_key(max_tries: u32, max_error_tries: u32, rest: &str) -> String {
    let rest = if rest.is_empty() { String::new() } else { format!(", {rest}") };
    let limits = format!(r#""max_tries": {max_tries}, "max_error_tries": {max_error_tries}"#);
    format!(r#""type": "DeterministicOrderPolicy", {limits}{rest}"#)
}

#[tokio::test]
async fn tries_are_counted_and_excluded_failures_are_not() {
    for (policy, failure, asked) in [
        ("", Failure::TimedOut, 6),
        (r#""type": "LeastFailuresPolicy", "max_tries": 2"#, Failure::TimedOut, 2),
        (r#""type": "LeastFailuresPolicy", "max_tries": 1"#, Failure::TimedOut, 1),
        (r#""type": "LeastFailuresPolicy", "max_tries": 2"#, Failure::Tko(TkoReason::ConnectFailed), 6),
        (&by_key(9, 2, r#""exclude_errors": ["busy"]"#), Failure::Busy, 6),
        (&by_key(9, 2, r#""exclude_errors": ["busy"]"#), Failure::TimedOut, 2),
        (&by_key(9, 2, r#""exclude_errors": ["busy"]"#), Failure::Tko(TkoReason::ConnectFailed), 6),
    ] {
        let policy = format!(", \"failover_policy\": {{{policy}}}");
        let (route, cluster) = Cluster::build(&failover(r#""Pool|A""#, &policy));
        for verb in VERBS {
            cluster.fail(&["a:1", "a:2", "a:3", "a:4", "a:5", "a:6"], failure.clone());
            assert_eq!(ask(&route, &[&format!("{verb} k")]).await, [failure.to_string()], "{verb}");
            // A delete must find every copy, however tries are counted.
            let expected = if verb == "delete" { 6 } else { asked };
            assert_eq!(cluster.asked().len(), expected, "{verb} {policy} {failure}");
            cluster.recover();
            ask(&route, &[&format!("{verb} k")]).await;
            assert_eq!(cluster.asked(), ["a:1"], "{verb}: no failure, no failover");
        }
    }
}

#[tokio::test]
async fn a_miss_is_not_a_failure_with_any_policy() {
    for policy in ["{}", r#"{"type": "LeastFailuresPolicy"}"#, &format!("{{{}}}", by_key(3, 3, ""))] {
        let (route, cluster) =
            Cluster::build(&failover(r#"["NullRoute", "Pool|A"]"#, &format!(r#", "failover_policy": {policy}"#)));
        for verb in VERBS {
            ask(&route, &[&format!("{verb} k")]).await;
            assert_eq!(cluster.asked(), [""; 0], "{verb} {policy}");
        }
    }
}

#[tokio::test]
async fn the_child_with_the_fewest_failures_is_next() {
    let policy = r#", "failover_policy": {"type": "LeastFailuresPolicy", "max_tries": 2}"#;
    let (route, cluster) = Cluster::build(&failover(r#""Pool|T""#, policy));
    cluster.fail(&["t:1", "t:2"], Failure::TimedOut);
    assert_eq!(ask(&route, &["get k"]).await, ["server timed out"], "t:2 has as few failures as t:3, and precedes it");
    assert_eq!(cluster.asked(), ["t:1", "t:2"]);
    assert_eq!(ask(&route, &["get k"]).await, ["t:3"], "t:2 has failed once");
    assert_eq!(cluster.asked(), ["t:1", "t:3"]);
    cluster.recover();
    cluster.fail(&["t:1", "t:3"], Failure::TimedOut);
    ask(&route, &["get k"]).await;
    assert_eq!(cluster.asked(), ["t:1", "t:3"]);
    // t:3 and t:2 have failed once; after the second failure of t:3, t:2 is next, and its reply resets its count.
    ask(&route, &["get k"]).await;
    ask(&route, &["get k"]).await;
    cluster.asked();
    assert_eq!(ask(&route, &["get k"]).await, ["t:2"]);
    assert_eq!(cluster.asked(), ["t:1", "t:2"]);
}

/// The servers that are asked for a key, if all fail.
async fn order_of_key(route: &dyn Route, cluster: &Cluster, key: &str) -> Vec<String> {
    cluster.recover();
    let mut order: Vec<String> = Vec::new();
    loop {
        cluster.asked();
        let outcome = ask(route, &[&format!("get {key}")]).await;
        let asked = cluster.asked();
        match asked.iter().find(|server| !order.contains(server)) {
            Some(server) => {
                order.push(server.clone());
                cluster.fail(&[server], Failure::TimedOut);
            }
            None => {
                assert_eq!(outcome, ["server timed out"]);
                return order;
            }
        }
    }
}

#[tokio::test]
async fn within_a_pool_the_failover_order_depends_on_the_key() {
    let (route, cluster) = Cluster::build(r#"{"type": "SaltedFailoverRoute", "pool": "A"}"#);
    let (plain, pool) = Cluster::build(r#""PoolRoute|A""#);
    let mut seconds = BTreeMap::new();
    for n in 0..60 {
        let key = format!("key:{n}");
        let order = order_of_key(&route, &cluster, &key).await;
        assert_eq!(order.len(), 5, "the candidates of a key are few");
        ask(&plain, &[&format!("get {key}")]).await;
        assert_eq!(pool.asked(), order[..1], "without a failure it is the pool");
        *seconds.entry(order[..2].to_vec()).or_insert(0) += 1;
        // A delete asks them all, so that none keeps a copy.
        assert_eq!(ask(&route, &[&format!("delete {key}")]).await, ["server timed out"]);
        let mut candidates = order.clone();
        candidates.sort_unstable();
        assert_eq!(cluster.asked(), candidates);
    }
    let first = |server: &str| seconds.keys().filter(|pair| pair[0] == server).count();
    assert!(first("a:1") > 2, "the keys of one server spread over several: {seconds:?}");
}

#[tokio::test]
async fn servers_of_the_same_failure_domain_are_asked_last() {
    let policy = format!(r#""failover_policy": {{{}}}"#, by_key(6, 6, r#""enable_failure_domains": true"#));
    let (route, cluster) = Cluster::build(&format!(r#"{{"type": "SaltedFailoverRoute", "pool": "A", {policy}}}"#));
    let domain = |server: &str| (server[2..].parse::<u32>().unwrap() - 1) / 2;
    for n in 0..40 {
        let order = order_of_key(&route, &cluster, &format!("key:{n}")).await;
        let domains: Vec<u32> = order[..3].iter().map(|server| domain(server)).collect();
        assert!(domains[0] != domains[1] && domains[1] != domains[2] && domains[0] != domains[2], "{order:?}");
    }
}

#[tokio::test]
async fn after_a_fixed_first_child_the_order_depends_on_the_key_too() {
    let policy = format!(r#", "failover_policy": {{{}}}"#, by_key(2, 9, ""));
    let (route, cluster) = Cluster::build(&failover(r#"["AllSyncRoute|Pool|M", "Pool|A"]"#, &policy));
    let mut seconds = BTreeMap::new();
    for n in 0..60 {
        let order = order_of_key(&route, &cluster, &format!("key:{n}")).await;
        assert_eq!((&*order[0], order.len()), ("m:1", 2));
        *seconds.entry(order[1].clone()).or_insert(0) += 1;
    }
    assert_eq!(seconds.len(), 6, "{seconds:?}");
}

#[tokio::test]
async fn after_the_first_child_the_order_follows_the_rendezvous_scores() {
    let policy = r#", "failover_policy": {"type": "RendezvousPolicy", "tags": ["x", "y", "z"]}"#;
    let (route, cluster) = Cluster::build(&failover(r#"["AllSyncRoute|Pool|M", "Pool|T"]"#, policy));
    let hash = r#"{"hash_func": "Rendezvous", "tags": ["x", "y", "z"]}"#;
    let (hash, pool) = Cluster::build(&format!(r#"{{"type": "PoolRoute", "pool": "T", "hash": {hash}}}"#));
    let mut orders = BTreeMap::new();
    for n in 0..60 {
        let key = format!("key:{n}");
        let order = order_of_key(&route, &cluster, &key).await;
        assert_eq!((order.len(), &*order[0]), (4, "m:1"), "no limit");
        ask(&hash, &[&format!("get {key}")]).await;
        assert_eq!(pool.asked(), order[1..2]);
        *orders.entry(order).or_insert(0) += 1;
    }
    assert_eq!(orders.len(), 6, "every possible order: {orders:?}");
}

#[tokio::test]
async fn a_pools_tags_are_those_of_a_rendezvous_policy_without_tags() {
    let build = |tags: &str, policy_tags: &str| {
        let text = format!(
            r#"{{"pools": {{"M": {{"servers": ["m:1"]}}, "T": {{"servers": ["t:1", "t:2", "t:3"], "tags": {tags}}}}},
                "route": {{"type": "FailoverRoute", "children": ["PoolRoute|M", "Pool|T"],
                    "failover_policy": {{"type": "RendezvousPolicy"{policy_tags}}}}}}}"#
        );
        Cluster::of(&Configuration::parse(&text, &Defaults::default()).unwrap_or_else(|error| panic!("{error}")))
    };
    let (of_pool, pool) = build(r#"["x", "y", "z"]"#, "");
    let (of_policy, policy) = build(r#"["x", "y", "z"]"#, r#", "tags": ["p", "q", "r"]"#);
    let (as_policy, same) = build(r#"["p", "q", "r"]"#, "");
    let mut differing = 0;
    for n in 0..20 {
        let key = format!("key:{n}");
        let order = order_of_key(&of_policy, &policy, &key).await;
        assert_eq!(order_of_key(&as_policy, &same, &key).await, order, "the policy's own tags count first");
        differing += usize::from(order_of_key(&of_pool, &pool, &key).await != order);
    }
    assert!(differing > 5, "{differing} of 20");
}

#[tokio::test]
async fn a_load_balancer_asks_further_children_by_key() {
    for route in [
        r#"{"type": "LoadBalancerRoute", "children": "Pool|A", "failover_count": 3, "salt": "s"}"#,
        r#"{"type": "PoolRoute", "pool": "A",
            "hash": {"hash_func": "LoadBalancer", "failover_count": 3, "salt": "s"}}"#,
    ] {
        let text = format!("{{\"pools\": {{{POOLS}}}, \"route\": {route}}}");
        let configuration = Configuration::parse(&text, &Defaults::default()).unwrap_or_else(|error| panic!("{error}"));
        let [warning] = &configuration.warnings[..] else { panic!("{:?}", configuration.warnings) };
        assert!(warning.message.contains("do not report their load"), "{warning}");
        let (route, cluster) = Cluster::of(&configuration);
        let salted = r#"{"type": "PoolRoute", "pool": "A", "hash": {"hash_func": "Ch3", "salt": "s"}}"#;
        let (hash, pool) = Cluster::build(salted);
        let mut orders = std::collections::BTreeSet::new();
        for n in 0..40 {
            let key = format!("key:{n}");
            let order = order_of_key(&route, &cluster, &key).await;
            assert_eq!(order.len(), 3, "failover_count");
            ask(&hash, &[&format!("get {key}")]).await;
            assert_eq!(pool.asked(), order[..1], "Ch3 with the salt");
            orders.insert(order);
        }
        assert!(orders.len() > 20, "{orders:?}");
    }
}

/// The usual configuration: a pool, and its servers behind it. The pool's own choice has failed already.
#[tokio::test]
async fn the_server_that_the_pool_chose_is_not_asked_twice() {
    let tags = r#""tags": ["1", "2", "3", "4", "5", "6"]"#;
    let rendezvous = format!(r#""type": "RendezvousPolicy", {tags}"#);
    for (policy, first, length) in [
        (by_key(6, 6, ""), r#""PoolRoute|A""#, 6),
        (by_key(6, 6, ""), r#"{"type": "HashRoute", "children": "Pool|A"}"#, 6),
        (by_key(3, 6, ""), r#""PoolRoute|A""#, 3),
        (rendezvous, r#""PoolRoute|A""#, 6),
    ] {
        let policy = format!(r#", "failover_policy": {{{policy}}}"#);
        let (route, cluster) = Cluster::build(&failover(&format!(r#"[{first}, "Pool|A"]"#), &policy));
        for n in 0..40 {
            let get = format!("get key:{n}");
            cluster.fail(&["a:1", "a:2", "a:3", "a:4", "a:5", "a:6"], Failure::TimedOut);
            ask(&route, &[&get]).await;
            let asked: Vec<usize> = cluster.servers.values().map(|fake| fake.asked().len()).collect();
            assert_eq!((asked.iter().max(), asked.iter().sum()), (Some(&1), length), "{policy} {asked:?}");
        }
    }
    let again = by_key(20, 20, r#""ignore_normal_reply_index": true"#);
    let (route, cluster) =
        Cluster::build(&failover(r#"["PoolRoute|A", "Pool|A"]"#, &format!(r#", "failover_policy": {{{again}}}"#)));
    cluster.fail(&["a:1", "a:2", "a:3", "a:4", "a:5", "a:6"], Failure::TimedOut);
    ask(&route, &["get k"]).await;
    let asked: usize = cluster.servers.values().map(|fake| fake.asked().len()).sum();
    assert_eq!(asked, 7, "the first server twice");
}

#[tokio::test]
async fn the_default_order_has_no_limits_as_in_mcrouter() {
    let policy =
        r#", "failover_policy": {"type": "FailoverInOrderPolicy", "max_tries": 2, "exclude_errors": ["busy"]}"#;
    let text = format!("{{\"pools\": {{{POOLS}}}, \"route\": {}}}", failover(r#""Pool|A""#, policy));
    let configuration = Configuration::parse(&text, &Defaults::default()).unwrap();
    let ignored: Vec<_> = configuration.warnings.iter().map(|warning| &*warning.message).collect();
    assert_eq!(ignored, ["\"max_tries\" is ignored", "\"exclude_errors\" is ignored"]);
    let (route, cluster) = Cluster::of(&configuration);
    cluster.fail(&["a:1", "a:2", "a:3", "a:4", "a:5"], Failure::TimedOut);
    assert_eq!(ask(&route, &["get k"]).await, ["a:6"]);
}

#[tokio::test]
async fn the_result_of_an_error_route_decides_about_a_failover() {
    let error = |keys: &str| format!(r#"{{"type": "ErrorRoute", "response": "no"{keys}}}"#);
    for (keys, errors, outcome) in [
        ("", r#"["local_error"]"#, "m:1"),
        ("", r#"["timeout"]"#, "no"),
        (r#", "result": "mc_res_timeout""#, r#"["timeout"]"#, "m:1"),
        (r#", "result": "mc_res_timeout""#, r#"["local_error"]"#, "no"),
        (r#", "result": "mc_res_busy""#, r#"["busy"]"#, "m:1"),
        (r#", "result": "mc_res_tko", "enable_logging": false"#, r#"["tko"]"#, "m:1"),
        (r#", "result": "mc_res_bad_value""#, r#"["local_error", "remote_error", "timeout"]"#, "no"),
        (r#", "result": "mc_res_bad_key""#, r#"["local_error", "remote_error", "timeout"]"#, r#"Error(Client(b"no"))"#),
    ] {
        let children = format!(r#"[{}, "PoolRoute|M"]"#, error(keys));
        let (route, cluster) = Cluster::build(&failover(&children, &format!(r#", "failover_errors": {errors}"#)));
        assert_eq!(ask(&route, &["get k"]).await, [outcome], "{keys} {errors}");
        assert_eq!(cluster.env.lines().is_empty(), keys.contains("enable_logging"));
    }
    for (result, text) in [("bad_cas_id", "bad cas id"), ("bad_lease_id", "bad lease id")] {
        let (route, _) = Cluster::build(&format!(r#"{{"type": "ErrorRoute", "result": "mc_res_{result}"}}"#));
        assert_eq!(ask(&route, &["get k"]).await, [format!("Error(Client(b\"{text}\"))")]);
    }
    let (route, cluster) = Cluster::build(r#"{"type": "ErrorRoute", "result": "mc_res_connect_timeout"}"#);
    assert_eq!(ask(&route, &["get k", "get l", "delete k"]).await, ["connection timeout"; 3]);
    ask(&route, &["get secret"]).await;
    assert_eq!(cluster.env.lines(), ["ErrorRoute refused 3 requests, a get among them: connection timeout"]);
    cluster.env.advance(Duration::from_secs(1));
    ask(&route, &["set secret"]).await;
    assert_eq!(cluster.env.lines(), ["ErrorRoute refused 2 requests, a set among them: connection timeout"]);
}

#[tokio::test]
async fn a_batch_is_split_by_first_choice_and_outcomes_are_in_order() {
    let (route, cluster) = Cluster::build(r#"{"type": "SaltedFailoverRoute", "pool": "T"}"#);
    cluster.fail(&["t:2"], Failure::TimedOut);
    let gets: Vec<String> = (0..30).map(|n| format!("get key:{n}")).collect();
    let gets: Vec<&str> = gets.iter().map(String::as_str).collect();
    let together = ask(&route, &gets).await;
    let mut alone = Vec::new();
    for get in &gets {
        alone.extend(ask(&route, &[get]).await);
    }
    assert_eq!(together, alone);
    assert!(together.iter().all(|server| server == "t:1" || server == "t:3"), "{together:?}");
}

#[tokio::test]
async fn failovers_are_limited_to_a_share_of_the_requests() {
    let limit = r#", "failover_limit": {"rate": 0.25, "burst": 3}"#;
    for route in [
        failover(r#"["PoolRoute|M", "PoolRoute|G"]"#, limit),
        format!(r#"{{"type": "FailoverWithExptimeRoute", "normal": "PoolRoute|M", "failover": "PoolRoute|G"{limit}}}"#),
    ] {
        let (route, cluster) = Cluster::build(&route);
        cluster.fail(&["m:1"], Failure::TimedOut);
        let (late, there) = ("server timed out", "g:1");
        assert_eq!(ask(&route, &["get a", "get b", "get c", "get d"]).await, [there, there, there, late]);
        assert_eq!(ask(&route, &["delete a", "delete b"]).await, [late; 2], "deletes cost nothing");
        assert_eq!(cluster.servers["g:1"].asked(), ["get a", "get b", "get c", "delete a", "delete b"]);
        // The bucket was full when the first four came. Two deletes and two gets have brought one token.
        assert_eq!(ask(&route, &["get a", "get b"]).await, [there, late]);
        cluster.fail(&["m:1"], Failure::Tko(TkoReason::ConnectFailed));
        assert_eq!(
            ask(&route, &["get a", "set b", "get c"]).await,
            [there, "Stored", there],
            "nothing from a dead one"
        );
        cluster.recover();
        for _ in 0..40 {
            ask(&route, &["get a"]).await;
        }
        cluster.fail(&["m:1"], Failure::TimedOut);
        let burst = ask(&route, &["get a", "get a", "get a", "get a", "get a"]).await;
        assert_eq!(burst, [there, there, there, late, late], "no more than the burst");
        let mut through = 0;
        for _ in 0..400 {
            through += usize::from(ask(&route, &["get a"]).await == [there]);
        }
        assert!((100..=102).contains(&through), "{through} of 400");
    }
}

#[tokio::test]
async fn each_further_child_costs_a_token() {
    let limit = r#", "failover_limit": {"rate": 0, "burst": 3}"#;
    let (route, cluster) = Cluster::build(&failover(r#""Pool|T""#, limit));
    cluster.fail(&["t:1", "t:2", "t:3"], Failure::TimedOut);
    ask(&route, &["get a"]).await;
    assert_eq!(cluster.asked(), ["t:1", "t:2", "t:3"]);
    cluster.fail(&["t:2"], Failure::Busy);
    assert_eq!(ask(&route, &["get a"]).await, ["too many requests outstanding"], "the last reply is the answer");
    assert_eq!(cluster.asked(), ["t:1", "t:2"]);
    ask(&route, &["get a"]).await;
    assert_eq!(cluster.asked(), ["t:1"]);
}

#[tokio::test]
async fn keys_at_other_children_have_the_failover_tag() {
    let (route, cluster) = Cluster::build(&failover(r#"["PoolRoute|M", "PoolRoute|G"]"#, r#", "failover_tag": true"#));
    cluster.fail(&["m:1"], Failure::TimedOut);
    let long = format!("get {}|#|x", "a".repeat(240));
    ask(&route, &["get /././k|#|x", "get k", "delete k|#|x", &long]).await;
    let asked = ["get k|#|x:failover=1", "get k", "delete k|#|x:failover=1", &long];
    assert_eq!(cluster.servers["g:1"].asked(), asked, "a key without |#|, or too long for the tag, is unchanged");
    assert_eq!(cluster.servers["m:1"].asked(), ["get k|#|x", "get k", "delete k|#|x", &long]);
}
