//! Shadows. Which servers are asked, and what is returned.

use crate::environment::{FakeEnvironment, HeldRoute};
use crate::fakes::{Fake, VERBS, ask, request};
use crate::parsing::{read, refusal, with_route};
use futures_util::FutureExt;
use lookaside_protocol::{LeaseToken, Operation, Reply};
use lookaside_routing::{
    Address, Batch, BoxFuture, Configuration, Context, Copies, Destination, DestinationSettings, Destinations,
    Environment, Failure, KeyFraction, Outcomes, Route, RuntimeVariables, Security, ShadowRoute, ShadowSettings,
    ShadowedKeys,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const TIMEOUT: Failure = Failure::TimedOut;
const ALL: ShadowedKeys = ShadowedKeys::Fraction(KeyFraction::ALL);

fn shadowed(normal: Arc<dyn Route>, shadow: &Arc<Fake>, keys: ShadowedKeys, environment: &Environment) -> ShadowRoute {
    let copies = vec![Copies::new(shadow.leaf(), keys, environment, 1)];
    ShadowRoute::new(normal, copies, environment)
}

#[tokio::test]
async fn shadows_get_copies_and_change_nothing() {
    for shadow in [Fake::hit("shadow"), Fake::miss("shadow"), Fake::failing("shadow", TIMEOUT)] {
        let (env, normal) = (FakeEnvironment::new(), Fake::hit("normal"));
        let route = shadowed(normal.leaf(), &shadow, ALL, &env.environment(9));
        for verb in VERBS {
            let alone = ask(&*normal.leaf(), &[&format!("{verb} k")]).await;
            assert_eq!(ask(&route, &[&format!("{verb} k")]).await, alone);
            assert!(shadow.asked().is_empty(), "{verb}: only after the reply");
            env.run_background().await;
            assert!(shadow.asked().concat().starts_with(&format!("{verb} k")), "{verb}");
        }
    }
}

#[tokio::test]
async fn a_request_without_a_permit_has_no_copy() {
    let (env, normal, shadow) = (FakeEnvironment::new(), Fake::miss("normal"), Fake::hit("shadow"));
    let environment = env.environment(1);
    let route = shadowed(normal.leaf(), &shadow, ALL, &environment);
    ask(&route, &["get a"]).await;
    ask(&route, &["get b"]).await;
    assert_eq!(environment.background.dropped(), 1);
    env.run_background().await;
    assert_eq!(shadow.asked(), ["get a"]);
    // The copy of a dropped caller is still sent.
    let route = shadowed(HeldRoute::new(normal.leaf()), &shadow, ALL, &environment);
    assert!(ask(&route, &["delete k"]).now_or_never().is_none());
    env.run_background().await;
    assert_eq!(shadow.asked(), ["delete k"]);
}

/// Replies to each lease-get with the next token from `first` on.
fn leasing(name: &str, first: u64) -> Arc<Fake> {
    let next = std::sync::atomic::AtomicU64::new(first);
    Fake::new(name, move |request| {
        Ok(match request.operation {
            Operation::LeaseGet => {
                let token = LeaseToken(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
                Reply::Lease { token, flags: 0, stale: None }
            }
            _ => Reply::Stored,
        })
    })
}

/// The tokens of the fills that a fake has got.
fn fill_tokens(fake: &Fake) -> Vec<u64> {
    let token = |operation: Operation<_>| match operation {
        Operation::LeaseSet { token, .. } => Some(token.0),
        _ => None,
    };
    fake.requests().into_iter().filter_map(|request| token(request.operation)).collect()
}

#[tokio::test]
async fn a_fill_reaches_the_shadow_with_the_shadows_own_token() {
    let (env, normal, shadow) = (FakeEnvironment::new(), leasing("normal", 100), leasing("shadow", 900));
    let environment =
        Environment { shadows: ShadowSettings { tokens_max: 2, ..ShadowSettings::default() }, ..env.environment(9) };
    let route = shadowed(normal.leaf(), &shadow, ALL, &environment);
    for _ in 0..3 {
        ask(&route, &["lease-get k"]).await;
        env.run_background().await;
    }
    normal.requests();
    shadow.requests();
    // Of three pairs the first has been removed for the third; an unknown token has none; each is used once.
    for token in [100, 102, 50, 102, 101] {
        let mut fill = request("lease-set k");
        let Operation::LeaseSet { token: its, .. } = &mut fill.operation else { unreachable!() };
        *its = LeaseToken(token);
        route.route(vec![fill], &Context::default()).await;
        env.run_background().await;
    }
    assert_eq!(fill_tokens(&normal), [100, 102, 50, 102, 101]);
    assert_eq!(fill_tokens(&shadow), [0, 902, 0, 0, 901]);
}

#[tokio::test]
async fn the_shadow_is_asked_for_a_lease_after_the_normal_target() {
    let (env, shadow) = (FakeEnvironment::new(), leasing("shadow", 900));
    let route = shadowed(HeldRoute::new(leasing("normal", 100).leaf()), &shadow, ALL, &env.environment(9));
    assert!(ask(&route, &["lease-get k"]).now_or_never().is_none());
    env.run_background().await;
    assert!(shadow.asked().is_empty());
}

#[tokio::test]
async fn the_fraction_is_bit_exact_and_both_ends_are_included() {
    let (env, normal, shadow) = (FakeEnvironment::new(), Fake::hit("normal"), Fake::hit("shadow"));
    let hash = f64::from(HASH_OF_USER_42);
    let part = |hash: f64| hash / f64::from(u32::MAX);
    for (start, end, copied) in [
        (hash, hash, true),
        (hash - 1.0, hash, true),
        (hash, hash + 1.0, true),
        (hash - 2.0, hash - 1.0, false),
        (hash + 1.0, hash + 2.0, false),
    ] {
        // The middle of the numbers that give a hash: division rounds.
        let keys = ShadowedKeys::Fraction(KeyFraction::new(part(start + 0.25), part(end + 0.25)));
        let route = shadowed(normal.leaf(), &shadow, keys, &env.environment(9));
        ask(&route, &["get user:42", "get user:42|#|profile"]).await;
        env.run_background().await;
        assert_eq!(shadow.asked().len(), if copied { 2 } else { 0 }, "{start} to {end}");
    }
}

/// By the package `spookyhash` for Python, around the author's own code: `spookyhash.hash32(b"user:42", 0)`.
const HASH_OF_USER_42: u32 = 443_553_244;

#[tokio::test]
async fn always_the_same_fraction_of_keys_is_shadowed() {
    let (env, normal, shadow) = (FakeEnvironment::new(), Fake::hit("normal"), Fake::hit("shadow"));
    let quarter = ShadowedKeys::Fraction(KeyFraction::new(0.25, 0.5));
    let route = shadowed(normal.leaf(), &shadow, quarter, &env.environment(9));
    let requests: Vec<String> = (0..2_000).map(|n| format!("get key:{n}")).collect();
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    let mut copies = Vec::new();
    for _ in 0..2 {
        ask(&route, &requests).await;
        env.run_background().await;
        copies.push(shadow.asked());
    }
    assert!((400..600).contains(&copies[0].len()), "{} of 2000", copies[0].len());
    assert_eq!(copies[0], copies[1]);
}

#[tokio::test]
async fn a_share_of_the_requests_is_drawn_at_random() {
    let (env, normal, shadow) = (FakeEnvironment::new(), Fake::hit("normal"), Fake::hit("shadow"));
    let environment = env.environment(9);
    for (share, expected) in [(0.0, 0..=0), (0.25, 400..=600), (1.0, 2_000..=2_000)] {
        let copies = Copies::new(shadow.leaf(), ALL, &environment, 1).of_share(share);
        let route = ShadowRoute::new(normal.leaf(), vec![copies], &environment);
        ask(&route, &["get k"; 2_000]).await;
        env.run_background().await;
        let copied = shadow.asked().len();
        assert!(expected.contains(&copied), "{copied} of 2000 at {share}");
    }
}

#[tokio::test]
async fn a_runtime_variable_replaces_the_fraction_at_once() {
    let (env, normal, shadow) = (FakeEnvironment::new(), Fake::hit("normal"), Fake::hit("shadow"));
    let variables = RuntimeVariables::default();
    let keys = ShadowedKeys::Variable { name: "images".into(), variables: variables.clone(), otherwise: None };
    let route = shadowed(normal.leaf(), &shadow, keys, &env.environment(9));
    for (set, copied) in [(None, 0), (Some(KeyFraction::ALL), 1), (Some(KeyFraction::new(0.0, 0.0)), 0), (None, 0)] {
        variables.replace(set.map(|range| ("images".to_owned(), range)).into_iter().collect());
        ask(&route, &["get k"]).await;
        env.run_background().await;
        assert_eq!(shadow.asked().len(), copied, "{set:?}");
    }
}

/// Trees over fakes that hit, with a background.
struct Fakes {
    env: Arc<FakeEnvironment>,
    made: BTreeMap<String, Arc<Fake>>,
    shadows: ShadowSettings,
}

impl Destinations for Fakes {
    fn destination(&mut self, address: &Address, _: &DestinationSettings) -> Arc<dyn Destination> {
        let name = address.to_string();
        self.made.entry(name.clone()).or_insert_with(|| Fake::hit(&name)).clone()
    }

    fn environment(&mut self) -> Environment {
        Environment { shadows: self.shadows.clone(), ..self.env.environment(1_000) }
    }
}

/// The names of the fakes that get 100 keys by a route, and how many requests each has got.
async fn asked_by(route: &str) -> BTreeMap<String, usize> {
    let text = format!(
        r#"{{"pools": {{"A": {{"servers": ["a:1", "a:2", "a:3"]}}, "B": {{"servers": ["b:1"]}}}}, "route": {route}}}"#
    );
    let configuration: Configuration = read(&text);
    let shadows = ShadowSettings::default();
    shadows.variables.replace([("some".to_owned(), KeyFraction::ALL)].into());
    let mut fakes = Fakes { env: FakeEnvironment::new(), made: BTreeMap::new(), shadows };
    let root = configuration.build(&mut fakes);
    let requests: Vec<String> = (0..100).map(|n| format!("get key:{n}")).collect();
    ask(&root, &requests.iter().map(String::as_str).collect::<Vec<_>>()).await;
    fakes.env.run_background().await;
    fakes.made.iter().map(|(name, fake)| (name.clone(), fake.asked().len())).filter(|(_, asked)| *asked > 0).collect()
}

fn total(asked: &BTreeMap<String, usize>, names: &[&str]) -> usize {
    names.iter().map(|name| asked.get(*name).copied().unwrap_or(0)).sum()
}

#[tokio::test]
async fn the_indices_and_keys_of_an_entry_choose_what_is_copied() {
    let pool = |shadow: &str| format!(r#"{{"type": "PoolRoute", "pool": "A", "shadows": [{shadow}]}}"#);
    let whole = r#""key_fraction_range": [0, 1]"#;
    for (entry, copied_of) in [
        (format!(r#"{{"target": "PoolRoute|B", "index_range": [0, 3], {whole}}}"#), vec!["a:1", "a:2", "a:3"]),
        (format!(r#"{{"target": "PoolRoute|B", "index_range": [0, 2], {whole}}}"#), vec!["a:1", "a:2"]),
        (format!(r#"{{"target": "PoolRoute|B", "index_range": [1, 2], {whole}}}"#), vec!["a:2"]),
        (format!(r#"{{"target": "PoolRoute|B", "index_range": [1, 9], {whole}}}"#), vec!["a:2", "a:3"]),
        // The end is not included, and nothing is the default of both ranges.
        (format!(r#"{{"target": "PoolRoute|B", "index_range": [0, 0], {whole}}}"#), vec![]),
        (format!(r#"{{"target": "PoolRoute|B", {whole}}}"#), vec![]),
        (r#"{"target": "PoolRoute|B", "index_range": [0, 3]}"#.to_owned(), vec![]),
        (r#"{"target": "PoolRoute|B"}"#.to_owned(), vec![]),
        // A variable replaces the range; one without a value leaves it.
        (
            r#"{"target": "PoolRoute|B", "index_range": [0, 1], "key_fraction_range_rv": "some"}"#.to_owned(),
            vec!["a:1"],
        ),
        (
            format!(r#"{{"target": "PoolRoute|B", "index_range": [0, 1], {whole}, "key_fraction_range_rv": "none"}}"#),
            vec!["a:1"],
        ),
        (r#"{"target": "PoolRoute|B", "index_range": [0, 1], "key_fraction_range_rv": "none"}"#.to_owned(), vec![]),
    ] {
        let asked = asked_by(&pool(&entry)).await;
        assert_eq!(total(&asked, &["a:1", "a:2", "a:3"]), 100, "{entry}");
        assert_eq!(total(&asked, &["b:1"]), total(&asked, &copied_of), "{entry}");
    }
    let listed = r#"{"target": "PoolRoute|B", "keys_to_shadow": ["key:1", "key:22", "other"]}"#;
    assert_eq!(total(&asked_by(&pool(listed)).await, &["b:1"]), 2);
}

#[tokio::test]
async fn an_index_counts_the_routes_among_the_servers_of_a_pool() {
    let route = r#"{"type": "PoolRoute", "pool": {"servers": ["c:1"]}}"#;
    let shadow = r#"{"target": "PoolRoute|B", "index_range": [1, 2], "key_fraction_range": [0, 1]}"#;
    let servers = format!(r#"["a:1", {route}, "a:2"]"#);
    let pool = format!(r#"{{"type": "PoolRoute", "pool": {{"servers": {servers}}}, "shadows": [{shadow}]}}"#);
    let asked = asked_by(&pool).await;
    assert!(asked["c:1"] > 0 && asked["a:2"] > 0, "{asked:?}");
    assert_eq!(asked["b:1"], asked["c:1"]);
}

#[tokio::test]
async fn shadows_of_several_children_are_for_their_indices() {
    let shadows = r#""shadows": [{"target": "PoolRoute|B", "index_range": [1, 2], "key_fraction_range": [0, 1]}]"#;
    let list = format!(r#"{{"type": "ShadowRoute", "children": "Pool|A", {shadows}}}"#);
    let asked = asked_by(&format!(r#"{{"type": "HashRoute", "children": [{list}]}}"#)).await;
    assert_eq!(total(&asked, &["a:1", "a:2", "a:3"]), 100);
    assert!(asked["b:1"] > 0);
    assert_eq!(asked["b:1"], asked["a:2"]);
    // One child is a route, three are not.
    let one = r#"{"type": "ShadowRoute", "children": ["PoolRoute|A"], "shadows": []}"#;
    assert_eq!(total(&asked_by(one).await, &["a:1", "a:2", "a:3"]), 100);
    let three = r#"{"type": "ShadowRoute", "children": "Pool|A", "shadows": []}"#;
    let pool = r#""A": {"servers": ["a:1", "a:2", "a:3"]}"#;
    let error = refusal(&format!(r#"{{"pools": {{{pool}}}, "route": {three}}}"#));
    assert!(error.contains("these are 3 routes: expected one route"), "{error}");
}

#[test]
fn an_entry_with_an_error_is_skipped_with_a_warning() {
    let warnings = |entry: &str| {
        let route = format!(r#"{{"type": "PoolRoute", "pool": "A", "shadows": [{entry}]}}"#);
        let warnings = read(&with_route(&route)).warnings;
        warnings.into_iter().map(|warning| (warning.path, warning.message)).collect::<Vec<_>>()
    };
    let place = "route.shadows[0]";
    for (entry, expected) in [
        ("7", "expected a shadow: an object with a \"target\", found the number 7"),
        (r#"{"index_range": [0, 1]}"#, "\"target\" is missing"),
        (r#"{"target": "NullRoute", "index_range": [3, 1]}"#, "the range is backwards"),
        (r#"{"target": "NullRoute", "index_range": "all"}"#, "found the string \"all\""),
        (r#"{"target": "NullRoute", "key_fraction_range": [0.5, 2]}"#, "expected a part of all keys from 0 to 1"),
        (r#"{"target": "NullRoute", "key_fraction_range": [1, 0]}"#, "the range is backwards"),
        (r#"{"target": "NullRoute", "requests_fraction": 2}"#, "expected a share of requests from 0 to 1"),
        (r#"{"target": "NullRoute", "keys_to_shadow": [1]}"#, "expected a key, found the number 1"),
        (
            r#"{"target": "NullRoute", "keys_to_shadow": ["k"], "index_range": [0, 1]}"#,
            "expected \"keys_to_shadow\" or ranges, found both",
        ),
    ] {
        let found = warnings(entry);
        assert_eq!((found.len(), found[0].0.as_str()), (1, place), "{entry}: {found:?}");
        assert!(found[0].1.starts_with("this shadow is skipped: "), "{entry}: {found:?}");
        assert!(found[0].1.contains(expected), "{entry}: {found:?}");
    }
    let [(path, message)] = &warnings(r#"{"target": "NullRoute", "key_fraction_range": [0, 1]}"#)[..] else { panic!() };
    assert_eq!((path.as_str(), message.as_str()), (place, "this shadow copies nothing: it has no \"index_range\""));
    for (target, expected) in [
        (r#""PoolRoute|missing""#, "no pool is named \"missing\""),
        (r#"{"type": "NoSuchRoute"}"#, "Unknown RouteHandle: NoSuchRoute"),
        ("7", "expected a route"),
        (r#"{"type": "AllSyncRoute", "children": ["PoolRoute|A", "PoolRoute|missing"]}"#, "missing"),
        (r#"{"type": "AllSyncRoute", "children": ["NoSuchRoute", "PoolRoute|missing"]}"#, "NoSuchRoute"),
    ] {
        let found =
            warnings(&format!(r#"{{"target": {target}, "index_range": [0, 1], "key_fraction_range": [0, 1]}}"#));
        assert_eq!((found.len(), found[0].0.as_str()), (1, place), "{target}: {found:?}");
        assert!(found[0].1.starts_with("this shadow is skipped: "), "{target}: {found:?}");
        assert!(found[0].1.contains(expected), "{target}: {found:?}");
    }
}

#[tokio::test]
async fn entries_beside_a_skipped_one_copy() {
    let good = r#"{"target": "PoolRoute|B", "index_range": [0, 3], "key_fraction_range": [0, 1]}"#;
    let broken = r#"{"target": "PoolRoute|missing", "index_range": [0, 3], "key_fraction_range": [0, 1]}"#;
    let route = format!(r#"{{"type": "PoolRoute", "pool": "A", "shadows": [{broken}, {good}, 7]}}"#);
    assert_eq!(total(&asked_by(&route).await, &["b:1"]), 100);
    for none in ["{}", "7", "null", r#""PoolRoute|B""#] {
        for route in [
            format!(r#"{{"type": "PoolRoute", "pool": "A", "shadows": {none}}}"#),
            format!(r#"{{"type": "ShadowRoute", "children": ["PoolRoute|A"], "shadows": {none}}}"#),
        ] {
            let [warning] = &read(&with_route(&route)).warnings[..] else { panic!("{route}") };
            assert_eq!(warning.path, "route.shadows");
            assert!(warning.message.starts_with("there are no shadows: expected a list"), "{warning}");
        }
    }
}

/// A named handle and a pool are parts of the configuration on their own.
#[test]
fn an_error_of_a_named_handle_or_a_pool_of_a_target_refuses() {
    let with = |more: &str, target: &str| {
        format!(
            r#"{{ "pools": {{ "A": {{ "servers": ["a:1"] }}, "broken": {{ "servers": 7 }} }}, {more}
                "route": {{ "type": "PoolRoute", "pool": "A", "shadows": [
                    {{ "target": {target}, "index_range": [0, 1], "key_fraction_range": [0, 1] }} ] }} }}"#
        )
    };
    assert!(refusal(&with("", r#""PoolRoute|broken""#)).contains("pools.broken"));
    let named = r#""named_handles": { "h": "PoolRoute|missing", "g": "PoolRoute|A" },"#;
    let error = refusal(&with(named, r#""h""#).replace(r#", "broken": { "servers": 7 }"#, ""));
    assert!(error.contains("named_handles.h") && !error.contains("errors"), "{error}");
    // The good handle that the skipped target names stays for others.
    let text = with(r#""named_handles": { "g": "PoolRoute|A" },"#, r#"["g", "PoolRoute|missing"]"#);
    let configuration = read(&text.replace(r#", "broken": { "servers": 7 }"#, ""));
    assert_eq!(configuration.named.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["g"]);
    assert_eq!(configuration.warnings.len(), 1);
}

/// What a skipped target has said about TLS counts no more.
#[test]
fn a_skipped_target_leaves_nothing_behind() {
    let text = r#"{ "pools": { "A": { "servers": ["a:1"] } }, "route": { "type": "AllSyncRoute", "children": [
        { "type": "PoolRoute", "pool": "A", "shadows": [
            { "target": { "type": "PoolRoute", "pool": { "servers": ["c:1:ascii:ssl"] }, "hash": "none" },
              "index_range": [0, 1], "key_fraction_range": [0, 1] } ] },
        { "type": "PoolRoute", "pool": { "servers": ["c:1"] } } ] } }"#;
    let configuration = read(text);
    assert_eq!(configuration.warnings.len(), 1, "{:?}", configuration.warnings);
    assert!(configuration.tls_policies.values().all(|policy| policy.security == Security::Plain));
}

/// Each of two shadows names the next handle, and is skipped: twice the work at each level, without a bound.
#[test]
fn nested_skipped_targets_take_no_exponential_time() {
    let handle = |level: usize| {
        let shadow = format!(
            r#"{{ "target": ["h{}", "PoolRoute|missing"], "index_range": [0, 1], "key_fraction_range": [0, 1] }}"#,
            level + 1
        );
        format!(r#""h{level}": {{ "type": "PoolRoute", "pool": "A", "shadows": [{shadow}, {shadow}] }}"#)
    };
    let handles: Vec<String> = (0..40).map(handle).chain([r#""h40": "PoolRoute|A""#.to_owned()]).collect();
    let pools = r#""pools": { "A": { "servers": ["a:1"] } }"#;
    let error = refusal(&format!(r#"{{ {pools}, "named_handles": {{ {} }}, "route": "h0" }}"#, handles.join(",\n")));
    assert!(error.contains("missing"), "{error}");
}

/// Servers that answer when they are permitted to.
struct HeldServers {
    env: Arc<FakeEnvironment>,
    outstanding_max: usize,
    asked: Arc<std::sync::Mutex<Vec<String>>>,
    gate: Arc<tokio::sync::Semaphore>,
}

struct HeldServer(Address, Arc<std::sync::Mutex<Vec<String>>>, Arc<tokio::sync::Semaphore>);

impl Destination for HeldServer {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        Box::pin(async move {
            let keys = batch.iter().map(|request| format!("{} {}", self.0, String::from_utf8_lossy(&request.key)));
            self.1.lock().unwrap().extend(keys);
            std::mem::forget(self.2.acquire().await.unwrap());
            vec![Ok(Reply::Miss); batch.len()]
        })
    }

    fn address(&self) -> &Address {
        &self.0
    }
}

impl Destinations for HeldServers {
    fn destination(&mut self, address: &Address, _: &DestinationSettings) -> Arc<dyn Destination> {
        Arc::new(HeldServer(address.clone(), self.asked.clone(), self.gate.clone()))
    }

    fn environment(&mut self) -> Environment {
        let environment = self.env.environment(100);
        let shadows = ShadowSettings { outstanding_max: self.outstanding_max, ..ShadowSettings::default() };
        Environment { shadows, ..environment }
    }
}

#[tokio::test]
async fn copies_that_a_server_has_not_answered_are_bounded() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (env, asked) = (FakeEnvironment::new(), Arc::default());
    let mut servers = HeldServers { env: env.clone(), outstanding_max: 3, asked, gate: gate.clone() };
    let shadow = r#"{"target": "AllSyncRoute|Pool|S", "index_range": [0, 9], "key_fraction_range": [0, 1]}"#;
    let text = format!(
        r#"{{ "pools": {{ "N": {{ "servers": [] , "error_on_empty": false }}, "S": {{ "servers": ["s:1", "s:2"] }} }},
            "route": {{ "type": "ShadowRoute", "children": ["NullRoute"], "shadows": [{shadow}] }} }}"#
    );
    let configuration = read(&text);
    let root = configuration.build(&mut servers);
    let asked = || {
        let mut asked = std::mem::take(&mut *servers.asked.lock().unwrap());
        asked.sort_unstable();
        asked
    };
    ask(&root, &["get a", "get b"]).await;
    let mut copies = Box::pin(env.run_background());
    assert!(copies.as_mut().now_or_never().is_none());
    assert_eq!(asked(), ["s:1 a", "s:1 b", "s:2 a", "s:2 b"]);
    ask(&root, &["get c", "get d"]).await;
    let mut more = Box::pin(env.run_background());
    assert!(more.as_mut().now_or_never().is_none());
    assert_eq!(asked(), ["s:1 c", "s:2 c"], "for each server one more of two");
    ask(&root, &["get e"]).await;
    assert_eq!(env.run_background().await, 1, "it is dropped at once");
    gate.add_permits(100);
    copies.await;
    more.await;
    ask(&root, &["get f"]).await;
    env.run_background().await;
    assert_eq!(asked(), ["s:1 f", "s:2 f"]);
}
