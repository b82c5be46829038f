//! Split shards: the keys that each host uses, and the deletes of all of them.

use crate::environment::FakeEnvironment;
use crate::fakes::{Fake, VERBS, ask, meta};
use crate::parsing::*;
use lookaside_protocol::{
    Reply,
    meta::{MetaReply, MetaStatus, MetaVerb},
};
use lookaside_routing::{
    Configuration, Context, Defaults, FAN_OUT_REQUESTS_MAX, Failure, Route, ShardSplit, ShardSplitRoute, ShardSplits,
};
use std::sync::Arc;
use std::time::Duration;

fn split_route(
    server: &Arc<Fake>,
    split: ShardSplit,
    host_id: u32,
    env: &Arc<FakeEnvironment>,
    tasks_max: usize,
) -> ShardSplitRoute {
    let splits = ShardSplits::new([("10".to_owned(), split)]);
    let background = env.environment(tasks_max).background;
    ShardSplitRoute::new(server.leaf(), splits, host_id, env.clone(), background)
}

#[tokio::test]
async fn each_host_has_its_own_split_for_every_verb() {
    let (server, env) = (Fake::hit("s"), FakeEnvironment::new());
    for (host_id, size, expected) in [
        (0, 677, "k:10:x"),
        (1, 677, "k:10aa:x"),
        (26, 677, "k:10za:x"),
        (27, 677, "k:10ab:x"),
        (676, 677, "k:10zz:x"),
        (677, 677, "k:10:x"),
        (7, 3, "k:10aa:x"),
        (7, 1, "k:10:x"),
    ] {
        let route = split_route(&server, ShardSplit::constant(size, false), host_id, &env, 9);
        for verb in VERBS {
            ask(&route, &[&format!("{verb} k:10:x")]).await;
            let keys: Vec<_> = server.requests().into_iter().map(|request| request.key).collect();
            assert_eq!(keys, [expected], "{verb} at host {host_id} of {size}");
        }
    }
}

#[tokio::test]
async fn other_keys_are_not_split() {
    let (server, env) = (Fake::hit("s"), FakeEnvironment::new());
    let route = split_route(&server, ShardSplit::constant(9, true), 2, &env, 9);
    let longest = format!("k:10:{}", "x".repeat(243));
    let too_long = format!("{longest}x");
    let keys = ["k", "k:10", "k:11:x", "k|#|:10:x", "k:10|#|:x", &too_long];
    let requests: Vec<String> = keys.iter().map(|key| format!("delete {key}")).collect();
    ask(&route, &requests.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(server.asked(), requests);
    ask(&route, &[&format!("get {longest}"), "get /r/c/k:10:x|#|y", "get k:11:x"]).await;
    assert_eq!(
        server.asked(),
        [format!("get k:10ba:{}", "x".repeat(243)), "get k:10ba:x|#|y".to_owned(), "get k:11:x".to_owned()]
    );
    route.route(vec![meta(MetaVerb::Get, "azoxMDp4", "v b")], &Context::default()).await;
    assert_eq!(server.asked(), ["get azoxMDp4"], "k:10:x in base64");
}

#[tokio::test]
async fn a_reply_has_the_clients_key() {
    let (env, server) = (
        FakeEnvironment::new(),
        Fake::new("s", |request| {
            let flags = [b"k", &request.key[..]].concat().into();
            Ok(Reply::Meta(MetaReply { status: MetaStatus::Done, flags, value: None }))
        }),
    );
    let route = split_route(&server, ShardSplit::constant(9, true), 2, &env, 9);
    let answer = route.route(vec![meta(MetaVerb::Get, "k:10:x", "k")], &Context::default()).await;
    assert!(matches!(&answer[0], Ok(Reply::Meta(reply)) if reply.flags == "kk:10:x"), "{answer:?}");
}

#[tokio::test]
async fn a_delete_reaches_all_splits_and_waits_for_its_own() {
    let (server, env) = (Fake::hit("s"), FakeEnvironment::new());
    let route = split_route(&server, ShardSplit::constant(4, true), 2, &env, 9);
    assert_eq!(ask(&route, &["set k:10:x", "delete k:10:x", "get k:10:x", "delete k"]).await.len(), 4);
    assert_eq!(server.asked_batches(), [["set k:10ba:x 0", "delete k:10ba:x", "get k:10ba:x", "delete k"]]);
    assert_eq!(env.run_background().await, 1);
    assert_eq!(server.asked_batches(), [["delete k:10:x", "delete k:10aa:x", "delete k:10ca:x"]]);
    let own = split_route(&server, ShardSplit::constant(4, false), 2, &env, 9);
    ask(&own, &["delete k:10:x"]).await;
    assert_eq!((server.asked(), env.run_background().await), (vec!["delete k:10ba:x".to_owned()], 0));

    let no_background = split_route(&server, ShardSplit::constant(3, true), 2, &env, 0);
    ask(&no_background, &["delete k:10:x"]).await;
    assert_eq!(
        server.asked(),
        ["delete k:10ba:x", "delete k:10:x", "delete k:10aa:x"],
        "without a permit all are awaited"
    );
    let others_fail = Fake::new("s", |request| match &request.key[..] {
        b"k:10:x" => Ok(Reply::Deleted),
        _ => Err(Failure::TimedOut),
    });
    for (host_id, expected) in [(0, "Deleted"), (1, "server timed out")] {
        let route = split_route(&others_fail, ShardSplit::constant(3, true), host_id, &env, 9);
        assert_eq!(ask(&route, &["delete k:10:x"]).await, [expected], "the own split's reply");
    }
}

#[tokio::test]
async fn deletes_of_many_splits_are_sent_in_parts() {
    let (server, env) = (Fake::hit("s"), FakeEnvironment::new());
    let route = split_route(&server, ShardSplit::constant(677, true), 0, &env, 9);
    ask(&route, &["delete k:10:x", "delete k:10:y", "delete k:10:z"]).await;
    assert_eq!(server.asked().len(), 3);
    env.run_background().await;
    let sizes: Vec<usize> = server.asked_batches().iter().map(Vec::len).collect();
    assert_eq!(sizes, [FAN_OUT_REQUESTS_MAX, 3 * 676 - FAN_OUT_REQUESTS_MAX]);
}

#[tokio::test]
async fn hosts_migrate_over_time_and_deletes_cover_both_sizes() {
    let (server, env) = (Fake::hit("s"), FakeEnvironment::new());
    let split =
        ShardSplit { old_size: 2, new_size: 4, start_unix_s: 1_000, migration_s: 16_384, fans_out_deletes: true };
    let early = split_route(&server, split, 3, &env, 0);
    let late = split_route(&server, split, 16_383, &env, 0);
    let key_of = async |route: &ShardSplitRoute| {
        ask(route, &["get k:10:x"]).await;
        server.asked().remove(0)
    };
    for (unix_s, of_early, of_late) in [
        (999, "get k:10aa:x", "get k:10aa:x"),
        (1_003, "get k:10aa:x", "get k:10aa:x"),
        (1_004, "get k:10ca:x", "get k:10aa:x"),
        (17_383, "get k:10ca:x", "get k:10aa:x"),
        (17_384, "get k:10ca:x", "get k:10ca:x"),
    ] {
        env.advance(Duration::from_secs(unix_s) - lookaside_routing::Clock::now(&*env));
        assert_eq!((&*key_of(&early).await, &*key_of(&late).await), (of_early, of_late), "at {unix_s}");
        ask(&late, &["delete k:10:x"]).await;
        assert_eq!(server.asked().len(), 4, "at {unix_s}");
    }
}

#[tokio::test]
async fn a_pool_and_a_route_are_configured_alike() {
    let pools = r#""pools": { "A": { "servers": ["a:1"] } }"#;
    let splits = r#""shard_splits": { "1": 5, "2": { "new_split_size": 3, "fanout_deletes": false } }, "split_shard_fanout": true"#;
    for route in [
        format!(r#"{{ "type": "PoolRoute", "pool": "A", {splits} }}"#),
        format!(r#"{{ "type": "PoolRoute", "pool": "A", "rates": {{}}, {splits} }}"#),
        format!(r#"{{ "type": "ShardSplitRoute", "destination": "PoolRoute|A", {splits} }}"#),
    ] {
        let text = format!("{{ {pools}, \"route\": {route} }}");
        let (root, fakes) = build(&text);
        // Without an environment the host's id is 0, and all splits are awaited.
        ask(&root, &["delete k:1:x", "delete k:2:x", "delete k:3:x"]).await;
        let asked = fakes.asked("a:1");
        let of_1 = ["delete k:1aa:x", "delete k:1ba:x", "delete k:1ca:x", "delete k:1da:x"];
        assert_eq!(asked, [&["delete k:1:x", "delete k:2:x", "delete k:3:x"][..], &of_1].concat(), "{route}");

        let disabled = Defaults { splits_shards: false, ..Defaults::default() };
        let mut fakes = FakeDestinations::default();
        let root = Configuration::parse(&text, &disabled).expect("it is valid").build(&mut fakes);
        ask(&root, &["delete k:1:x"]).await;
        assert_eq!(fakes.asked("a:1"), ["delete k:1:x"], "--disable-shard-split-route");
    }
    let odd = format!(
        r#"{{ {pools}, "route": {{ "type": "PoolRoute", "pool": "A", "shard_splits": {{ "x": 2, "a:1": 2 }} }} }}"#
    );
    let warnings: Vec<String> = read(&odd).warnings.iter().map(|warning| warning.message.clone()).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings.iter().all(|warning| warning.contains("an id ends in a digit")), "{warnings:?}");
}
