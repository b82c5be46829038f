use super::*;
use lookaside_client::DestinationOptions;
use lookaside_routing::Defaults;

fn placement(text: &str) -> Placement {
    let config = RouterConfig::parse(text, &Defaults::default(), &DestinationOptions::default());
    Placement::of(&config.expect("the configuration is valid"))
}

fn places(placement: &Placement, key: &'static str) -> Vec<(String, String)> {
    let request = Request { key: Bytes::from_static(key.as_bytes()), operation: Operation::LeaseGet };
    let places = placement.places_of(&request, &Context::default()).expect("no route refuses it");
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).expect("text");
    places.iter().map(|place| (place.server.to_string(), text(&place.delete.key))).collect()
}

fn is_at(placement: &Placement, server: &str, key: &'static str) -> bool {
    is_misplaced(placement, &[], server, key)
}

fn is_misplaced(former: &Placement, kept: &[Placement], server: &str, key: &'static str) -> bool {
    former.misplaces(&Address(server.into()), &Bytes::from_static(key.as_bytes()), kept)
}

const GUTTERED: &str = r#"{
    "pools": { "main": { "servers": ["a:1", "b:1", "c:1"] }, "gutter": { "servers": ["g:1"] } },
    "route": {
        "type": "OperationSelectorRoute",
        "default_policy": {
            "type": "FailoverWithExptimeRoute", "normal": "PoolRoute|main", "failover": "PoolRoute|gutter"
        },
        "operation_policies": {
            "delete": { "type": "AllSyncRoute", "children": ["PoolRoute|main", "PoolRoute|gutter"] }
        }
    }
}"#;

#[test]
fn a_key_is_placed_where_its_deletes_go() {
    let placement = placement(GUTTERED);
    for key in ["user:1", "user:2", "user:3", "user:4"] {
        let of_key = places(&placement, key);
        let [(server, stored), (gutter, _)] = &of_key[..] else { panic!("{of_key:?}") };
        assert_eq!((gutter.as_str(), stored.as_str()), ("g:1", key));
        for other in ["a:1", "b:1", "c:1"] {
            assert_eq!(is_at(&placement, other, key), server == other, "{key} at {other}");
        }
        assert!(is_at(&placement, "g:1", key));
    }
}

#[test]
fn a_server_that_is_only_read_is_no_place() {
    let placement = placement(
        r#"{
            "pools": { "cold": { "servers": ["c:1"] }, "warm": { "servers": ["w:1"] } },
            "route": { "type": "WarmUpRoute", "cold": "PoolRoute|cold", "warm": "PoolRoute|warm", "exptime": 60 }
        }"#,
    );
    assert_eq!(places(&placement, "k"), [("c:1".to_owned(), "k".to_owned())]);
    assert!(!is_at(&placement, "w:1", "k"));
}

#[test]
fn stored_keys_are_found_in_every_tree_and_below_routes_that_change_keys() {
    let placement = placement(
        r#"{
            "pools": { "A": { "servers": ["a:1"] }, "B": { "servers": ["b:1"] }, "C": { "servers": ["c:1", "d:1"] } },
            "routes": [
                { "aliases": ["/././"], "route": "PoolRoute|A" },
                { "aliases": ["/east/web/"], "route": "PoolRoute|B" },
                { "aliases": ["/east/split/"], "route": {
                    "type": "ModifyKeyRoute", "ensure_key_prefix": "x:", "set_key_suffix": ":y", "target": "PoolRoute|C"
                } }
            ]
        }"#,
    );
    assert_eq!(places(&placement, "k"), [("a:1".to_owned(), "k".to_owned())]);
    assert_eq!(places(&placement, "/east/web/k"), [("b:1".to_owned(), "k".to_owned())]);
    assert_eq!(places(&placement, "/east/none/k"), []);
    let stored = places(&placement, "/east/split/k");
    let [(server, key)] = &stored[..] else { panic!("{stored:?}") };
    assert_eq!(key, "x:k:y");
    assert!(is_at(&placement, "a:1", "k") && is_at(&placement, "b:1", "k"));
    assert!(is_at(&placement, server, "x:k:y"));
    assert!(!is_at(&placement, if server == "c:1" { "d:1" } else { "c:1" }, "x:k:y"));
}

/// One route that changes keys made every key count as placed at each server of the other ones: copies that had moved
/// were not purged, and were read again after a change back.
#[test]
fn keys_that_no_route_changes_are_placed_where_their_deletes_go() {
    let placement = placement(
        r#"{
            "pools": { "A": { "servers": ["a:1", "b:1"] }, "C": { "servers": ["c:1"] }, "D": { "servers": ["d:1"] } },
            "named_handles": { "changing": { "type": "ModifyKeyRoute", "set_key_suffix": ":y", "target": "PoolRoute|D" } },
            "route": { "type": "PrefixSelectorRoute", "wildcard": "NullRoute", "policies": {
                "d": { "type": "HashRoute", "children": ["changing", "changing"] },
                "c": "PoolRoute|C",
                "h": { "type": "HashRoute", "children": "Pool|A" }
            } }
        }"#,
    );
    let servers = ["a:1", "b:1", "c:1", "d:1"];
    for key in ["c1", "h1", "h2", "h3", "h4", "h5"] {
        let [(of_delete, _)] = &places(&placement, key)[..] else { panic!("{key} has one place") };
        let placed: Vec<_> = servers.into_iter().filter(|server| is_at(&placement, server, key)).collect();
        assert_eq!(placed, [of_delete.as_str()], "{key}");
    }
    assert!(is_at(&placement, "d:1", "d1:y") && !is_at(&placement, "d:1", "c1:y"));
    assert_eq!(placement.key_changes.len(), 1, "the handle counts once");
}

/// All named handles are built, also those that no tree refers to.
#[test]
fn a_handle_that_no_tree_refers_to_keeps_nothing() {
    let is_at_l2 = |route: &str| {
        let text = r#"{
            "pools": { "A": { "servers": ["a:1"] }, "L2": { "servers": ["b:1"] } },
            "named_handles": {
                "outer": { "type": "LoggingRoute", "target": "inner" },
                "inner": { "type": "L1L2SizeSplitRoute", "l1": "PoolRoute|A", "l2": "PoolRoute|L2", "threshold": 100 }
            },
            "route": ROUTE
        }"#;
        is_at(&placement(&text.replace("ROUTE", route)), "b:1", "k|==|17")
    };
    assert!(!is_at_l2(r#""PoolRoute|A""#));
    assert!(is_at_l2(r#""outer""#));
    assert!(is_at_l2(r#"{ "type": "AllSyncRoute", "children": ["outer", "PoolRoute|A"] }"#));
}

const POOL: &str = r#""PoolRoute|A""#;
const SUFFIXED: &str = r#"{ "type": "ModifyKeyRoute", "set_key_suffix": ":y", "target": "PoolRoute|A" }"#;
const PREFIXED: &str = r#"{ "type": "ModifyKeyRoute", "ensure_key_prefix": "x:", "target": "PoolRoute|A" }"#;
const REPLACED: &str = r#"{
    "type": "ModifyKeyRoute", "replace_key_prefix": "v:", "ensure_key_prefix": "x:", "target": "PoolRoute|A"
}"#;
const SPLIT: &str = r#"{ "type": "PrefixSelectorRoute", "wildcard": "PoolRoute|A", "policies": {
    "hot": { "type": "KeySplitRoute", "replicas": 4, "destination": "PoolRoute|A" }
} }"#;
const SPLIT_SHARD: &str = r#"{
    "type": "ShardSplitRoute", "shard_splits": { "7": { "new_split_size": 3, "fanout_deletes": true } },
    "destination": "PoolRoute|A"
}"#;
const SPLIT_AND_SUFFIXED: &str = r#"{ "type": "KeySplitRoute", "replicas": 4, "destination": {
    "type": "ModifyKeyRoute", "set_key_suffix": ":y", "target": "PoolRoute|A"
} }"#;

const SPLIT_AND_SHORTENED: &str = r#"{ "type": "KeySplitRoute", "replicas": 4, "destination": {
    "type": "ModifyKeyRoute", "replace_key_prefix": "kkkkkkkkkkkk", "ensure_key_prefix": "x:", "target": "PoolRoute|A"
} }"#;
const IN_PLACE: &str = r#"{
    "type": "ModifyKeyRoute", "ensure_key_prefix": "x:", "modify_inplace": true, "target": "PoolRoute|A"
}"#;
const SELECTED_IN_PLACE: &str = r#"{ "type": "PrefixSelectorRoute", "wildcard": "PoolRoute|A", "policies": { "y:": {
    "type": "ModifyKeyRoute", "ensure_key_prefix": "x:", "modify_inplace": true, "target": "PoolRoute|A"
} } }"#;

fn routed(route: &str) -> Placement {
    placement(&format!(r#"{{ "pools": {{ "A": {{ "servers": ["a:1", "b:1", "c:1"] }} }}, "route": {route} }}"#))
}

/// Every copy that one stores, at its servers.
fn copies(route: &str, key: &'static str) -> Vec<(String, String)> {
    places(&routed(route), key)
}

/// Each pair was kept as long as the servers below such routes stayed: the copies got no deletes, and were read again
/// when the change was taken back.
#[test]
fn a_copy_is_misplaced_if_its_client_s_deletes_do_not_reach_it_any_more() {
    for (former, kept, key, is_kept) in [
        (POOL, POOL, "k", true),
        // A client's key is stored under another name.
        (POOL, SUFFIXED, "k", false),
        (POOL, PREFIXED, "k", false),
        (SUFFIXED, POOL, "k", false),
        (PREFIXED, POOL, "k", false),
        (SUFFIXED, PREFIXED, "k", false),
        (SUFFIXED, SUFFIXED, "k", true),
        (PREFIXED, PREFIXED, "k", true),
        // Deletes of "x:k" reach it, but not those of "k", which is stored there, too.
        (PREFIXED, POOL, "x:k", false),
        (POOL, PREFIXED, "x:k", true),
        (REPLACED, PREFIXED, "v:k", false),
        (REPLACED, PREFIXED, "x:k", false),
        (REPLACED, REPLACED, "v:k", true),
        (PREFIXED, REPLACED, "k", true),
        // The other copies of a split key have no owner but the route.
        (POOL, SPLIT, "hot:1", true),
        (SPLIT, POOL, "cold:1", true),
        (SPLIT, SPLIT, "hot:1", true),
        (POOL, SPLIT_SHARD, "user:7:x", true),
        (SPLIT_SHARD, POOL, "user:8:x", true),
        (SPLIT_SHARD, SPLIT_SHARD, "user:7:x", true),
        (SPLIT_AND_SUFFIXED, SPLIT_AND_SUFFIXED, "k", true),
        (SPLIT_AND_SUFFIXED, POOL, "k", false),
        (IN_PLACE, IN_PLACE, "y:k", true),
        (IN_PLACE, POOL, "y:k", false),
        (IN_PLACE, PREFIXED, "y:k", false),
        (SELECTED_IN_PLACE, SELECTED_IN_PLACE, "y:k", true),
        (SELECTED_IN_PLACE, POOL, "y:k", false),
    ] {
        let copies = copies(former, key);
        assert!(!copies.is_empty());
        let (former, kept) = (routed(former), [routed(kept)]);
        for (server, stored) in copies {
            let stored: &'static str = stored.leak();
            assert!(is_at(&former, &server, stored), "{key}: {stored} at {server}");
            assert_eq!(is_misplaced(&former, &kept, &server, stored), !is_kept, "{key}: {stored} at {server}");
        }
    }
    for (former, key) in [(SPLIT, "hot:1"), (SPLIT_SHARD, "user:7:x")] {
        let without_route = [routed(POOL)];
        let misplaced = |(server, stored): (String, String)| {
            is_misplaced(&routed(former), &without_route, &server, stored.clone().leak()).then_some(stored)
        };
        let of_key: Vec<_> = copies(former, key).into_iter().map(|(_, stored)| stored).collect();
        let misplaced: Vec<_> = copies(former, key).into_iter().filter_map(misplaced).collect();
        assert_eq!(misplaced.len() + 1, of_key.len(), "{of_key:?}: all but the key itself");
        assert!(of_key.len() > 2 && !misplaced.contains(&key.to_owned()), "{misplaced:?}");
    }
}

/// With the prefix of all trees a changed key may be too long for its route, and without it not.
#[test]
fn long_keys_are_found_below_routes_that_change_them() {
    for bytes in [200, 242, 243, 244, 247, 248] {
        let key: &'static str = "k".repeat(bytes).leak();
        for route in [SUFFIXED, PREFIXED, SPLIT_AND_SUFFIXED, SPLIT_AND_SHORTENED] {
            let copies = copies(route, key);
            assert!(!copies.is_empty(), "{bytes} bytes: {route}");
            for (server, stored) in copies {
                assert!(is_at(&routed(route), &server, stored.leak()), "{bytes} bytes at {server}: {route}");
            }
        }
    }
}

#[test]
fn a_copy_that_no_delete_reaches_stays_while_such_a_route_places_it_there() {
    let l1_l2 = |l2: &str| {
        placement(&format!(
            r#"{{
                "pools": {{ "L1": {{ "servers": ["l:1"] }}, "L2": {{ "servers": [{l2}] }} }},
                "route": {{ "type": "L1L2SizeSplitRoute", "l1": "PoolRoute|L1", "l2": "PoolRoute|L2", "threshold": 100 }}
            }}"#
        ))
    };
    let (two, three) = (l1_l2(r#""a:1", "b:1""#), [l1_l2(r#""a:1", "b:1", "c:1""#)]);
    let keys: Vec<&'static str> = (0..64).map(|at| &*format!("k{at}|==|{at}").leak()).collect();
    let of_former = |key: &&'static str| if is_at(&two, "a:1", key) { "a:1" } else { "b:1" };
    let moved = keys.iter().filter(|key| is_misplaced(&two, &three, of_former(key), key)).count();
    assert!((10..34).contains(&moved), "{moved} of 64: a third of them");
    assert!(keys.iter().all(|key| is_at(&two, "a:1", key) != is_at(&two, "b:1", key)));
}

#[test]
fn a_copy_that_no_delete_reaches_is_found_below_a_route_that_changes_its_key() {
    let placement = placement(
        r#"{
            "pools": { "L1": { "servers": ["l:1"] }, "L2": { "servers": ["a:1"] } },
            "route": {
                "type": "L1L2SizeSplitRoute", "threshold": 100, "l1": "PoolRoute|L1",
                "l2": { "type": "ModifyKeyRoute", "set_key_suffix": ":y", "target": "PoolRoute|L2" }
            }
        }"#,
    );
    assert!(is_at(&placement, "a:1", "k:y") && is_at(&placement, "a:1", "k|==|17:y"));
}

/// As while a cluster is out of service: its tree has the pool of another one, which keeps its copies afterwards.
#[test]
fn a_copy_is_kept_while_any_tree_brings_deletes_to_it() {
    let trees = |one: &str, two: &str| {
        placement(&format!(
            r#"{{
                "pools": {{ "A": {{ "servers": ["a:1"] }}, "B": {{ "servers": ["b:1"] }} }},
                "routes": [
                    {{ "aliases": ["/././"], "route": "PoolRoute|{one}" }},
                    {{ "aliases": ["/region/two/"], "route": "PoolRoute|{two}" }}
                ]
            }}"#
        ))
    };
    let (in_service, drained) = (trees("A", "B"), trees("B", "B"));
    for key in ["k", "/k", "/k/k/k"] {
        assert!(is_at(&drained, "b:1", key) && !is_at(&drained, "a:1", key), "{key}");
        assert!(is_misplaced(&in_service, &[trees("B", "B")], "a:1", key), "{key}");
        assert!(!is_misplaced(&drained, &[trees("A", "B")], "b:1", key), "{key}");
    }
}

/// No route changes a key in base64.
#[test]
fn the_copy_of_a_key_in_base64_is_found_below_a_route_that_changes_others() {
    let former = routed(SUFFIXED);
    let servers = ["a:1", "b:1", "c:1"];
    let placed = |key: &'static str| servers.iter().filter(|server| is_at(&former, server, key)).count();
    assert_eq!((placed("k"), placed("k:y")), (1, 1));
    let server = servers.into_iter().find(|server| is_at(&former, server, "k")).expect("it has a place");
    assert!(!is_misplaced(&former, &[routed(SUFFIXED)], server, "k"));
    assert!(is_misplaced(&former, &[placement(r#"{ "route": "NullRoute" }"#)], server, "k"));
}

/// Each of them may have made each key, but no key passes two.
#[test]
fn routes_side_by_side_are_not_tried_one_after_the_other() {
    let policy = |at: usize| {
        format!(
            r#""s{at}:": {{
                "type": "ModifyKeyRoute", "replace_key_prefix": "s{at}:", "ensure_key_prefix": "",
                "target": "PoolRoute|A"
            }}"#
        )
    };
    let policies: Vec<String> = (0..20).map(policy).collect();
    let route = format!(
        r#"{{ "type": "PrefixSelectorRoute", "wildcard": "PoolRoute|A", "policies": {{ {} }} }}"#,
        policies.join(", ")
    );
    let placement = routed(&route);
    assert_eq!((placement.key_changes.len(), placement.key_changes_deep), (20, 1));
    assert_eq!(placement.keys_changed_to(&"k".into()).ok().map(|keys| keys.len()), Some(21));
    let [(server, _)] = &copies(&route, "s7:k")[..] else { panic!("one place") };
    assert!(!is_misplaced(&placement, &[routed(&route)], server, "k"));
    assert!(is_misplaced(&placement, &[routed(POOL)], server, "k"), "deletes of s7:k do not reach it");
}

#[test]
fn a_copy_counts_as_misplaced_while_its_places_are_unknown() {
    struct WaitingRoute;

    impl Route for WaitingRoute {
        fn route<'a>(&'a self, _: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
            Box::pin(std::future::pending())
        }
    }

    let waiting = || Placement { root: Arc::new(WaitingRoute), ..routed(POOL) };
    let server = copies(POOL, "k")[0].0.clone();
    assert!(!is_misplaced(&routed(POOL), &[routed(POOL)], &server, "k"));
    assert!(is_misplaced(&routed(POOL), &[waiting()], &server, "k"));
    assert!(is_misplaced(&waiting(), &[routed(r#""NullRoute""#)], &server, "k"), "it may have placed it there");
}

/// Once the search for places took from the limit. Beyond it the places were those of the fallback: copies at servers of
/// the target stayed there without deletes, and without a fallback nearly all copies were removed.
#[test]
fn limits_of_deletes_do_not_limit_the_search_for_places() {
    let rates = r#""rates": { "deletes_rate": 0, "deletes_burst": 1 }"#;
    let limited = routed(&format!(r#"{{ "type": "RateLimitRoute", {rates}, "target": "PoolRoute|A" }}"#));
    for key in ["k1", "k2", "k3", "k4"] {
        let expected = places(&routed(POOL), key);
        assert_eq!(places(&limited, key), expected);
        for (server, _) in &expected {
            assert!(is_misplaced(&limited, &[routed(r#""NullRoute""#)], server, key), "a copy that it has placed");
            assert!(!is_misplaced(&limited, &[routed(POOL)], server, key));
            assert!(!is_misplaced(&routed(POOL), std::slice::from_ref(&limited), server, key));
        }
    }
}

/// Sets beyond a limit go to the fallback, deletes to the target.
#[test]
fn a_fallback_has_copies_and_keeps_none() {
    const G: &str = r#"{ "type": "PoolRoute", "pool": { "servers": ["g:1"] } }"#;
    for rates in [r#"{ "sets_rate": 1 }"#, r#"{ "gets_rate": 1 }"#, r#"{ "deletes_rate": 0, "deletes_burst": 1 }"#] {
        let limited = |target: &str, fallback: &str| {
            routed(&format!(
                r#"{{ "type": "RateLimitRoute", "rates": {rates}, "target": {target}, "fallback": {fallback} }}"#
            ))
        };
        let with_fallback = limited(POOL, G);
        for key in ["k1", "k2", "k3"] {
            assert_eq!(places(&with_fallback, key), places(&routed(POOL), key), "{rates}: deletes go to the target");
            let is_at_g = |former: &Placement, kept: Placement| is_misplaced(former, &[kept], "g:1", key);
            assert!(is_at_g(&with_fallback, routed(POOL)), "{rates}: it may have placed one there");
            assert!(!is_at_g(&with_fallback, limited(POOL, G)), "{rates}: it stays where it is");
            assert!(is_at_g(&routed(G), limited(POOL, G)), "{rates}: no delete of it would reach it");
            assert!(is_at_g(&limited(G, POOL), limited(POOL, G)), "{rates}: nor if they change places");
        }
    }
}

#[test]
fn the_place_of_an_encoded_key_is_deleted_by_the_same_encoding() {
    let placement = placement(r#"{ "pools": { "A": { "servers": ["a:1"] } }, "route": "PoolRoute|A" }"#);
    let meta = MetaOperation { verb: MetaVerb::Delete, flags: "b I q C5".into(), value: None };
    let request = Request { key: "AP8=".into(), operation: Operation::Meta(meta) };
    let places = placement.places_of(&request, &Context::default()).expect("a place");
    let unconditional = MetaOperation { verb: MetaVerb::Delete, flags: "b".into(), value: None };
    assert_eq!(places[0].delete, Request { key: "AP8=".into(), operation: Operation::Meta(unconditional) });
}
