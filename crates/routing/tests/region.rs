//! The root: which tree a key reaches by its routing prefix, and the reply to a broadcast.

use crate::environment::FakeEnvironment;
use crate::fakes::{Fake, VERBS, ask};
use lookaside_routing::{Background, Failure, RootRoute, Route, RoutingPrefix};
use std::sync::Arc;

fn prefix(text: &str) -> RoutingPrefix {
    RoutingPrefix::parse(text).unwrap()
}

/// Three clusters in two regions; `/east/web/` is the default.
struct Fixture {
    web: Arc<Fake>,
    api: Arc<Fake>,
    west: Arc<Fake>,
    root: RootRoute,
}

fn fixture(web: Arc<Fake>, api: Arc<Fake>, west: Arc<Fake>) -> Fixture {
    let trees: Vec<(Vec<RoutingPrefix>, Arc<dyn Route>)> = vec![
        (vec![prefix("/east/api/"), prefix("/east/mobile/")], api.leaf()),
        (vec![prefix("/east/web/")], web.leaf()),
        (vec![prefix("/west/fallback/")], west.leaf()),
    ];
    let root = RootRoute::new(prefix("/east/web"), trees).unwrap();
    Fixture { web, api, west, root }
}

fn healthy() -> Fixture {
    fixture(Fake::hit("web"), Fake::hit("api"), Fake::hit("west"))
}

/// The clusters that were asked: w(eb), a(pi), W(est).
fn asked(fixture: &Fixture) -> String {
    [(&fixture.web, 'w'), (&fixture.api, 'a'), (&fixture.west, 'W')]
        .into_iter()
        .filter(|(fake, _)| !fake.asked().is_empty())
        .map(|(_, name)| name)
        .collect()
}

#[tokio::test]
async fn each_prefix_reaches_its_trees() {
    let fixture = healthy();
    for (key, expected) in [
        ("k", "w"),
        ("/k", "w"),
        ("/east/k", "w"),
        ("/east/web/k", "w"),
        ("/east/api/k", "a"),
        ("/east/mobile/k", "a"),
        ("/west/anything/k", "W"),
        ("/east/unknown/k", ""),
        ("/north/web/k", ""),
        ("/*/*/k", "waW"),
        ("/east/*/k", "wa"),
        ("/west/*/k", "W"),
        ("/*/api/k", "a"),
        ("/e*/w*/k", "w"),
        ("/north/*/k", ""),
    ] {
        ask(&fixture.root, &[&format!("delete {key}")]).await;
        assert_eq!(asked(&fixture), expected, "{key}");
    }
}

#[tokio::test]
async fn a_broadcast_of_each_verb_reaches_all_or_one() {
    let fixture = healthy();
    for verb in VERBS {
        ask(&fixture.root, &[&format!("{verb} /*/*/k")]).await;
        let one = matches!(verb, "get" | "gets" | "gat" | "gats" | "lease-get" | "metaget" | "cas" | "lease-set");
        assert_eq!(asked(&fixture), if one { "w" } else { "waW" }, "{verb}");
        ask(&fixture.root, &[&format!("{verb} /*/[am]*/k"), &format!("{verb} /*/*i*/k")]).await;
        assert_eq!(asked(&fixture), "a", "{verb}: the default tree does not match");
    }
}

#[tokio::test]
async fn a_tree_with_two_names_is_asked_once_and_gets_no_prefix() {
    let fixture = healthy();
    ask(&fixture.root, &["delete /*/*/k"]).await;
    for fake in [&fixture.web, &fixture.api, &fixture.west] {
        assert_eq!(fake.asked_batches(), [["delete k"]]);
    }
}

#[tokio::test]
async fn a_broadcast_delete_is_acknowledged_only_if_every_cluster_has_done_it() {
    for (web, api, expected) in [
        (Fake::hit("web"), Fake::hit("api"), "Deleted"),
        (Fake::miss("web"), Fake::hit("api"), "Deleted"),
        (Fake::hit("web"), Fake::failing("api", Failure::TimedOut), "server timed out"),
        (Fake::failing("web", Failure::ConnectFailed), Fake::hit("api"), "connection failed"),
    ] {
        let fixture = fixture(web, api, Fake::miss("west"));
        assert_eq!(ask(&fixture.root, &["delete /*/*/k"]).await, [expected]);
        assert_eq!(asked(&fixture), "waW", "a failure in one cluster does not skip another");
    }
}

fn in_background(fixture: Fixture, background: Background) -> Fixture {
    Fixture { root: fixture.root.with_broadcasts_in(Some(background)), ..fixture }
}

#[tokio::test]
async fn a_broadcast_in_the_background_has_the_first_trees_reply_and_reaches_all() {
    for (web, api, expected) in [
        (Fake::hit("web"), Fake::failing("api", Failure::TimedOut), "Deleted"),
        (Fake::miss("web"), Fake::hit("api"), "NotFound"),
        (Fake::failing("web", Failure::ConnectFailed), Fake::hit("api"), "connection failed"),
    ] {
        let env = FakeEnvironment::new();
        let fixture = in_background(fixture(web, api, Fake::miss("west")), env.environment(10).background);
        assert_eq!(ask(&fixture.root, &["delete /*/*/k"]).await, [expected]);
        assert_eq!(asked(&fixture), "w", "the reply is that of the default tree, before the others are asked");
        assert_eq!(env.run_background().await, 1);
        assert_eq!(asked(&fixture), "aW");
        assert_eq!(ask(&fixture.root, &["delete /*/*i*/k", "get k"]).await.len(), 2);
        assert_eq!(asked(&fixture), "wa", "one tree matches: it is awaited");
        assert_eq!(env.run_background().await, 0);
    }
}

#[tokio::test]
async fn broadcasts_in_the_background_keep_the_order_for_each_tree() {
    let env = FakeEnvironment::new();
    let fixture = in_background(healthy(), env.environment(10).background);
    let batch = ["delete /*/*/a", "set /east/api/a", "get /no/where/a", "touch /*/*/a", "get /east/api/a"];
    let nowhere = "RootRoute: No rh found";
    assert_eq!(ask(&fixture.root, &batch).await, ["Deleted", "Stored", nowhere, "Touched", "api"]);
    assert_eq!(fixture.web.asked_batches(), [["delete a", "touch a 0"]]);
    assert_eq!(fixture.api.asked_batches(), [["delete a", "set a 0", "touch a 0", "get a"]], "awaited for its own");
    assert_eq!(asked(&fixture), "");
    env.run_background().await;
    assert_eq!(fixture.west.asked_batches(), [["delete a", "touch a 0"]]);
}

/// Tasks are bounded: without a permit the caller waits, and no delete is dropped.
#[tokio::test]
async fn a_broadcast_without_a_background_permit_is_awaited() {
    let fixture = in_background(healthy(), FakeEnvironment::new().environment(0).background);
    assert_eq!(ask(&fixture.root, &["delete /*/*/k"]).await, ["Deleted"]);
    assert_eq!(asked(&fixture), "waW");
}

#[tokio::test]
async fn a_mixed_batch_has_outcomes_in_order_and_keeps_its_order_for_each_tree() {
    let fixture = healthy();
    let outcomes = ask(
        &fixture.root,
        &["get a", "delete /*/*/a", "get /east/api/a", "get /no/where/a", "set /east/api/a", "get a", "touch /e*/*/a"],
    )
    .await;
    let nowhere = "RootRoute: No rh found";
    assert_eq!(outcomes, ["web", "Deleted", "api", nowhere, "Stored", "web", "Touched"]);
    assert_eq!(fixture.web.asked_batches(), [["get a", "delete a", "get a", "touch a 0"]]);
    assert_eq!(fixture.api.asked_batches(), [["delete a", "get a", "set a 0", "touch a 0"]]);
    assert_eq!(fixture.west.asked_batches(), [["delete a"]]);
}

#[tokio::test]
async fn a_batch_without_prefixes_is_not_split() {
    let fixture = healthy();
    ask(&fixture.root, &["get a", "get /b", "delete c"]).await;
    assert_eq!(fixture.web.asked_batches(), [["get a", "get /b", "delete c"]]);
}

#[test]
fn a_default_prefix_without_a_tree_is_refused() {
    let error = RootRoute::new(RoutingPrefix::default(), vec![(vec![prefix("/a/b/")], Fake::hit("x").leaf())]);
    let message = error.err().expect("refused").to_string();
    assert_eq!(message, "no route is named /././, the default prefix for keys without one");
}
