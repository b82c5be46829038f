//! Each route of one cluster: which children are asked, and what is returned.

use crate::fakes::{Fake, VERBS, ask, request, server_error};
use bytes::Bytes;
use lookaside_protocol::{
    ErrorReply, Operation, Reply, Request,
    meta::{MetaOperation, MetaVerb, encode_key},
};
use lookaside_routing::{
    Address, AllSyncRoute, DatagramLoss, DestinationRoute, ErrorRoute, ExptimeAction, FailoverError, FailoverErrorSet,
    FailoverErrors, FailoverRoute, FailoverWithExptimeRoute, Failure, HashFunction, KeyHash, ModifyExptimeRoute,
    NullRoute, OperationSelectorRoute, PoolRoute, PrefixSelectorRoute, Route, TkoReason, Verb,
};
use std::{collections::BTreeMap, sync::Arc};

const DOWN: Failure = Failure::Tko(TkoReason::ConnectFailed);

fn all_verbs_on(key: &str) -> Vec<String> {
    VERBS.iter().map(|verb| format!("{verb} {key}")).collect()
}

#[tokio::test]
async fn a_destination_sees_keys_without_their_prefix() {
    let server = Fake::hit("s");
    let (stripped, kept) = (server.leaf(), DestinationRoute::new(server.clone(), true));
    let requests = ["get /east/web/a", "delete /*/*/b", "get /c", "get d"];
    ask(&*stripped, &requests).await;
    assert_eq!(server.asked_batches(), [["get a", "delete b", "get /c", "get d"]]);
    ask(&kept, &requests).await;
    assert_eq!(server.asked(), requests);
}

#[tokio::test]
async fn a_pool_asks_each_server_once_and_outcomes_are_in_order() {
    let servers: Vec<Arc<Fake>> = (0..4).map(|n| Fake::hit(&format!("s{n}"))).collect();
    let destinations = servers.iter().map(|server| server.clone() as _).collect();
    let hash = KeyHash { function: HashFunction::Crc32, ..KeyHash::default() };
    let pool = PoolRoute::new(destinations, false, hash.clone());
    let picker = hash.picker_for(4).unwrap();
    let keys: Vec<String> = (0..24).map(|n| format!("key:{n}")).collect();
    let requests: Vec<String> = keys.iter().map(|key| format!("get {key}")).collect();
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();

    let expected: Vec<String> = keys.iter().map(|key| format!("s{}", picker.pick(key.as_bytes()))).collect();
    assert_eq!(ask(&pool, &requests).await, expected);
    for (n, server) in servers.iter().enumerate() {
        let its_own = requests.iter().zip(&expected).filter(|(_, name)| **name == format!("s{n}"));
        let its_own: Vec<&str> = its_own.map(|(request, _)| *request).collect();
        assert!(its_own.len() > 1, "the test needs servers with several keys");
        assert_eq!(server.asked_batches(), [its_own], "one batch, in the client's order");
    }
}

#[tokio::test]
async fn a_batch_for_one_server_does_not_reach_others() {
    let servers: Vec<Arc<Fake>> = (0..3).map(|n| Fake::hit(&format!("s{n}"))).collect();
    let pool = PoolRoute::new(servers.iter().map(|server| server.clone() as _).collect(), false, KeyHash::default());
    ask(&pool, &["get a|#|1", "set a|#|2", "delete a|#|1"]).await;
    let asked: Vec<_> = servers.iter().map(|server| server.asked_batches()).filter(|asked| !asked.is_empty()).collect();
    assert_eq!(asked, [[["get a|#|1", "set a|#|2 0", "delete a|#|1"]]]);
}

#[tokio::test]
async fn an_empty_batch_has_no_outcomes() {
    let (a, b) = (Fake::hit("a"), Fake::hit("b"));
    let routes: Vec<Arc<dyn Route>> = vec![
        Arc::new(PoolRoute::new(vec![a.clone(), b.clone()], false, KeyHash::default())),
        Arc::new(AllSyncRoute::new(vec![a.leaf(), b.leaf()])),
        Arc::new(FailoverRoute::new(a.leaf(), vec![b.leaf()], FailoverErrors::default())),
        Arc::new(OperationSelectorRoute::new(Some(a.leaf()), [(Verb::Delete, b.leaf())])),
        Arc::new(NullRoute),
    ];
    for route in routes {
        assert!(ask(&*route, &[]).await.is_empty());
    }
}

#[tokio::test]
async fn a_miss_does_not_fail_over_for_any_verb() {
    let (first, second) = (Fake::miss("first"), Fake::hit("second"));
    let route = FailoverRoute::new(first.leaf(), vec![second.leaf()], FailoverErrors::default());
    for verb in VERBS {
        ask(&route, &[&format!("{verb} k")]).await;
        assert_eq!(first.asked().len(), 1, "{verb}");
        assert!(second.asked().is_empty(), "{verb}");
    }
}

#[tokio::test]
async fn every_failure_and_server_error_fails_over_but_no_other_error_line_and_no_lost_datagram() {
    let fails_over = [
        Err(Failure::Tko(TkoReason::ConnectFailed)),
        Err(Failure::ConnectFailed),
        Err(Failure::ConnectTimedOut),
        Err(Failure::Busy),
        Err(Failure::NoRoute("nowhere".into())),
        Err(Failure::TimedOut),
        Err(Failure::ConnectionLost),
        Err(Failure::Malformed),
        server_error("out of memory storing object"),
        Ok(Reply::Error(ErrorReply::Unknown)),
        Err(Failure::QueueTimedOut),
        Err(Failure::NoTree),
    ];
    let stays = [
        Ok(Reply::Error(ErrorReply::Client(Bytes::from_static(b"bad data chunk")))),
        Ok(Reply::NotStored),
        Err(Failure::DatagramLost { server: Address("a:1".into()), loss: DatagramLoss::LostOrLate }),
    ];
    let outcomes = fails_over.map(|outcome| (outcome, true)).into_iter().chain(stays.map(|outcome| (outcome, false)));
    for (outcome, moves) in outcomes {
        let (reply, second) = (outcome.clone(), Fake::hit("second"));
        let first = Fake::new("first", move |_| reply.clone());
        let route = FailoverRoute::new(first.leaf(), vec![second.leaf()], FailoverErrors::default());
        ask(&route, &["set k"]).await;
        assert_eq!(!second.asked().is_empty(), moves, "{outcome:?}");
    }
}

#[tokio::test]
async fn failover_asks_in_order_only_for_failed_requests() {
    let first = Fake::new("first", |request| match request.key.ends_with(b"1") {
        true => Ok(Reply::Miss),
        false => Err(DOWN),
    });
    let second = Fake::new("second", |request| match request.key.ends_with(b"2") {
        true => Ok(Reply::Stored),
        false => Err(Failure::TimedOut),
    });
    let (third, fourth) = (Fake::hit("third"), Fake::hit("fourth"));
    let others = vec![second.leaf(), third.leaf(), fourth.leaf()];
    let route = FailoverRoute::new(first.leaf(), others, FailoverErrors::default());
    assert_eq!(ask(&route, &["get k3", "get k1", "set k2", "get k4"]).await, ["third", "Miss", "Stored", "third"]);
    assert_eq!(first.asked(), ["get k3", "get k1", "set k2 0", "get k4"]);
    assert_eq!(second.asked(), ["get k3", "set k2 0", "get k4"]);
    assert_eq!(third.asked(), ["get k3", "get k4"]);
    assert!(fourth.asked().is_empty());
}

#[tokio::test]
async fn if_all_fail_the_last_failure_is_returned() {
    let (first, last) = (Fake::failing("first", DOWN), Fake::failing("last", Failure::TimedOut));
    let route = FailoverRoute::new(first.leaf(), vec![last.leaf()], FailoverErrors::default());
    assert_eq!(ask(&route, &["get k"]).await, ["server timed out"]);
}

/// If a delete that only the gutter executed were acknowledged, the dead server would keep the old value.
#[tokio::test]
async fn a_failed_delete_reaches_every_child_and_stays_failed() {
    let (normal, gutter, spare) = (Fake::failing("normal", DOWN), Fake::hit("gutter"), Fake::hit("spare"));
    let others = vec![gutter.leaf(), spare.leaf()];
    let route = FailoverWithExptimeRoute::new(normal.leaf(), others, 10, FailoverErrors::default());
    let outcomes = ask(&route, &["get a", "delete b", "set c"]).await;
    assert_eq!(outcomes, ["gutter", "server is TKO after failures", "Stored"]);
    assert_eq!(gutter.asked(), ["get a", "delete b", "set c 10"]);
    assert_eq!(spare.asked(), ["delete b"]);
}

#[tokio::test]
async fn failover_errors_count_by_kind_of_verb() {
    let errors = FailoverErrors {
        gets: [FailoverError::Tko].into_iter().collect(),
        updates: FailoverErrorSet::ALL,
        deletes: FailoverErrorSet::NONE,
    };
    for (failure, expected) in [
        (Failure::Tko(TkoReason::ConnectFailed), vec!["get a", "set b 0", "touch d 0"]),
        (Failure::TimedOut, vec!["set b 0", "touch d 0"]),
    ] {
        let (first, second) = (Fake::failing("first", failure), Fake::hit("second"));
        let route = FailoverRoute::new(first.leaf(), vec![second.leaf()], errors);
        ask(&route, &["get a", "set b", "delete c", "touch d"]).await;
        assert_eq!(second.asked(), expected);
    }
}

#[tokio::test]
async fn values_in_the_gutter_are_short_lived() {
    let (normal, gutter) = (Fake::failing("normal", DOWN), Fake::hit("gutter"));
    let route = FailoverWithExptimeRoute::new(normal.leaf(), vec![gutter.leaf()], 10, FailoverErrors::default());
    let requests = [
        "set a",
        "set a 5",
        "set a 99",
        "set a -1",
        "lease-set a",
        "add a 99",
        "cas a 99",
        "touch a",
        "gat a 99",
        "gats a 5",
        "incr a",
        "lease-get a",
        "set a 4000000000",
    ];
    ask(&route, &requests).await;
    let normal_saw = normal.asked();
    assert_eq!(
        (&*normal_saw[0], &*normal_saw[2]),
        ("set a 0", "set a 99"),
        "the normal child gets the exptime unchanged"
    );
    assert_eq!(
        gutter.asked(),
        [
            "set a 10",
            "set a 5",
            "set a 10",
            "set a -1",
            "lease-set a 10",
            "add a 10",
            "cas a 10",
            "touch a 10",
            "gat a 10",
            "gats a 5",
            "incr a",
            "lease-get a",
            "set a 10",
        ]
    );
}

#[tokio::test]
async fn an_exptime_can_be_replaced_or_kept() {
    let server = Fake::hit("s");
    let requests = ["set a 5", "touch a 99", "get a", "lease-set a 5", "lease-set a -1"];
    ask(&ModifyExptimeRoute::new(server.leaf(), 7, ExptimeAction::Set), &requests).await;
    let released = "lease-set a -1";
    assert_eq!(server.asked(), ["set a 7", "touch a 7", "get a", "lease-set a 7", released], "not stored for 7 s");
    ask(&ModifyExptimeRoute::new(server.leaf(), 0, ExptimeAction::Min), &["set a 5", "set a 0"]).await;
    assert_eq!(server.asked(), ["set a 5", "set a 0"]);
}

#[tokio::test]
async fn all_sync_sends_every_verb_to_all_children() {
    let (a, b) = (Fake::hit("a"), Fake::hit("b"));
    let route = AllSyncRoute::new(vec![a.leaf(), b.leaf()]);
    let requests = all_verbs_on("k");
    ask(&route, &requests.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let asked = a.asked();
    assert_eq!(asked.len(), VERBS.len());
    assert_eq!(asked, b.asked());
}

#[tokio::test]
async fn all_sync_returns_the_worst_reply_but_deleted_beats_not_found() {
    let (hit, miss, down) = (Fake::hit("hit"), Fake::miss("miss"), Fake::failing("down", DOWN));
    let broken = Fake::new("broken", |_| server_error("no"));
    let requests = ["delete k", "set k", "get k", "touch k", "lease-get k"];
    let tko = "server is TKO after failures";
    for (children, expected) in [
        ([&hit, &miss], ["Deleted", "NotStored", "Miss", "NotFound", "Lease 7"]),
        ([&miss, &hit], ["Deleted", "NotStored", "Miss", "NotFound", "Lease 7"]),
        ([&miss, &miss], ["NotFound", "NotStored", "Miss", "NotFound", "Lease 7"]),
        ([&hit, &hit], ["Deleted", "Stored", "hit", "Touched", "hit"]),
        ([&hit, &broken], ["SERVER_ERROR no"; 5]),
        ([&broken, &down], ["SERVER_ERROR no"; 5]),
        ([&down, &hit], [tko; 5]),
    ] {
        let route = AllSyncRoute::new(children.iter().map(|child| child.leaf()).collect());
        assert_eq!(ask(&route, &requests).await, expected);
    }
}

#[tokio::test]
async fn the_longest_prefix_wins_and_other_keys_use_the_wildcard() {
    let names = ["a", "ab", "abc", "b", "user:", "user:4"];
    let servers: BTreeMap<&str, Arc<Fake>> = names.iter().map(|name| (*name, Fake::hit(name))).collect();
    let wild = Fake::hit("*");
    let policies = servers.iter().map(|(name, server)| (name.to_string(), server.leaf())).collect();
    let route = PrefixSelectorRoute::new(policies, Some(wild.leaf()));
    for (key, expected) in [
        ("a", "a"),
        ("aa", "a"),
        ("ab", "ab"),
        ("abb", "ab"),
        ("abcd", "abc"),
        ("abd", "ab"),
        ("az", "a"),
        ("b", "b"),
        ("c", "*"),
        ("A", "*"),
        ("user", "*"),
        ("user:42", "user:4"),
        ("user:52", "user:"),
        ("/east/web/user:42", "user:4"),
        ("user|#|:42", "*"),
    ] {
        assert_eq!(ask(&route, &[&format!("get {key}")]).await, [expected], "{key}");
    }
    assert_eq!(ask(&route, &["get abx", "get zz", "get b", "get aby"]).await, ["ab", "*", "b", "ab"]);
    assert!(servers["abc"].asked_batches().len() == 1);
}

#[tokio::test]
async fn without_a_wildcard_other_keys_have_no_route() {
    let server = Fake::hit("a");
    let route = PrefixSelectorRoute::new(BTreeMap::from([("a".to_string(), server.leaf())]), None);
    let outcomes = ask(&route, &["get a", "set b"]).await;
    assert_eq!(outcomes, ["a", "no route: no prefix fits the key, and no wildcard"]);
}

#[tokio::test]
async fn each_verb_has_its_own_policy_or_the_default() {
    for verb in VERBS {
        let (default, special) = (Fake::hit("default"), Fake::hit("special"));
        let policy = (Verb::from_name(verb).unwrap(), special.leaf());
        let route = OperationSelectorRoute::new(Some(default.leaf()), [policy]);
        let requests: Vec<String> = VERBS.iter().map(|verb| format!("{verb} k-{verb}")).collect();
        ask(&route, &requests.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let asked = special.asked();
        assert_eq!(asked.len(), 1);
        assert!(asked[0].starts_with(&format!("{verb} k-")), "{verb}: {asked:?}");
        assert_eq!(default.asked().len(), VERBS.len() - 1);
    }
    let route = OperationSelectorRoute::new(None, [(Verb::Get, Fake::hit("a").leaf())]);
    let nowhere = "no route: no policy for this operation, and no default";
    assert_eq!(ask(&route, &["get k", "set k"]).await, ["a", nowhere]);
}

/// A client that pipelines `delete k`, `get k` must not read the deleted value, though the two take different paths.
#[tokio::test]
async fn verbs_on_one_key_keep_their_order_across_policies() {
    let server = Fake::hit("s");
    let route = OperationSelectorRoute::new(Some(server.leaf()), [(Verb::Delete, server.leaf())]);
    ask(&route, &["set a", "delete a", "get a", "get b", "delete b", "delete a", "set c", "get a"]).await;
    let asked = server.asked();
    let about = |key: &str| -> Vec<&str> {
        asked.iter().filter(|line| line.split(' ').nth(1) == Some(key)).map(String::as_str).collect()
    };
    assert_eq!(about("a"), ["set a 0", "delete a", "get a", "delete a", "get a"]);
    assert_eq!(about("b"), ["get b", "delete b"]);
    assert_eq!(about("c"), ["set c 0"]);
}

#[tokio::test]
async fn different_keys_do_not_wait_for_each_other() {
    let server = Fake::hit("s");
    let route = OperationSelectorRoute::new(Some(server.leaf()), [(Verb::Delete, server.leaf())]);
    ask(&route, &["get a", "delete b", "get c", "delete d"]).await;
    assert_eq!(server.asked_batches(), [["get a", "get c"], ["delete b", "delete d"]], "one round");
}

#[tokio::test]
async fn null_replies_as_an_empty_cache_and_error_with_an_error() {
    for verb in VERBS {
        let expected = match verb {
            "get" | "gets" | "gat" | "gats" | "lease-get" | "metaget" => "Miss",
            "delete" | "incr" | "decr" | "touch" => "NotFound",
            _ => "NotStored",
        };
        assert_eq!(ask(&NullRoute, &[&format!("{verb} k")]).await, [expected], "{verb}");
        let refused = ask(&ErrorRoute::new("closed\r\nfor repair"), &[&format!("{verb} k")]).await;
        assert_eq!(refused, ["closed  for repair"], "{verb}");
    }
}

/// The children wait for each other, so the test ends only if they are asked concurrently.
#[tokio::test]
async fn children_are_asked_concurrently() {
    struct Meeting(tokio::sync::Barrier);
    impl Route for Meeting {
        fn route<'a>(
            &'a self,
            batch: lookaside_routing::Batch,
            _: &'a lookaside_routing::Context,
        ) -> lookaside_routing::BoxFuture<'a, lookaside_routing::Outcomes> {
            Box::pin(async move {
                self.0.wait().await;
                vec![Ok(Reply::Ok); batch.len()]
            })
        }
    }
    let child: Arc<dyn Route> = Arc::new(Meeting(tokio::sync::Barrier::new(3)));
    let context = lookaside_routing::Context::default();
    let batch = || (0..30).map(|n| request(&format!("get {n}"))).collect();
    let all = AllSyncRoute::new(vec![child.clone(), child.clone(), child.clone()]);
    assert_eq!(all.route(batch(), &context).await.len(), 30);
    let pool = PoolRoute::from_routes(vec![child.clone(), child.clone(), child], KeyHash::default());
    assert_eq!(pool.route(batch(), &context).await.len(), 30);
}

/// If an `md` with an encoded key went to another server, the value that a plain `set` stored would stay.
#[tokio::test]
async fn an_encoded_key_is_on_the_same_server_as_the_plain_key() {
    let servers: Vec<Arc<Fake>> = (0..7).map(|n| Fake::hit(&format!("s{n}"))).collect();
    let pool = PoolRoute::new(servers.iter().map(|server| server.clone() as _).collect(), false, KeyHash::default());
    for key in 0..50 {
        let key = format!("user:{key}");
        let mut encoded = Vec::new();
        encode_key(key.as_bytes(), &mut encoded);
        let meta = MetaOperation { verb: MetaVerb::Delete, flags: "q b".into(), value: None };
        let delete = Request { key: encoded.into(), operation: Operation::Meta(meta) };
        let batch = vec![request(&format!("set {key}")), delete];
        pool.route(batch, &lookaside_routing::Context::default()).await;
        let asked: Vec<_> = servers.iter().map(|server| server.asked().len()).filter(|asked| *asked > 0).collect();
        assert_eq!(asked, [2], "{key}");
    }
}
