//! Routes that change keys, and copies of hot keys. Which servers are asked, and what is returned.

use crate::fakes::{Fake, VERBS, ask, meta};
use bytes::Bytes;
use lookaside_protocol::{
    Reply,
    meta::{MetaReply, MetaStatus, MetaVerb},
};
use lookaside_routing::{Context, Failure, KeyChange, KeySplitRoute, ModifyKeyRoute, Route, RoutingPrefix};
use std::sync::Arc;

#[tokio::test]
async fn keys_change_for_every_verb() {
    let server = Fake::hit("s");
    let with_prefix = Arc::new(lookaside_routing::DestinationRoute::new(server.clone(), true)) as Arc<dyn Route>;
    let change = KeyChange {
        routing_prefix: Some(Some(RoutingPrefix::parse("/r/c/").unwrap())),
        ensure_prefix: "new:".into(),
        replace_prefix: Some("old:".into()),
        suffix: "!".into(),
        is_in_place: false,
    };
    let route = ModifyKeyRoute::new(with_prefix.clone(), change);
    ask(&route, &["get old:1", "get /a/b/new:2", "get x"]).await;
    assert_eq!(server.asked(), ["get /r/c/new:1!", "get /r/c/new:2!", "get /r/c/new:x!"]);
    for verb in VERBS {
        ask(&route, &[&format!("{verb} k")]).await;
        assert!(server.asked()[0].starts_with(&format!("{verb} /r/c/new:k!")), "{verb}");
    }
    let off = ModifyKeyRoute::new(with_prefix, KeyChange { routing_prefix: Some(None), ..KeyChange::default() });
    ask(&off, &["get /a/b/k", "get k"]).await;
    assert_eq!(server.asked(), ["get k", "get k"]);
    let too_long = "k".repeat(245);
    let outcomes = ask(&route, &[&format!("get {too_long}"), "get k"]).await;
    assert!(outcomes[0].contains("too long") && outcomes[1] == "s", "{outcomes:?}");
    assert_eq!(server.asked().len(), 1);
}

/// A prefix that takes the place of the first bytes leaves the length as it is.
#[tokio::test]
async fn a_prefix_overwrites_the_first_bytes_of_keys_that_are_long_enough() {
    let server = Fake::hit("s");
    let change = KeyChange { ensure_prefix: "new:".into(), is_in_place: true, ..KeyChange::default() };
    let route = ModifyKeyRoute::new(server.leaf(), change.clone());
    ask(&route, &["get user:1", "get /a/b/user:1", "get abcd", "get abc", "get new:x", "get old|#|x"]).await;
    assert_eq!(
        server.asked(),
        ["get new::1", "get new::1", "get new:", "get new:abc", "get new:x", "get new:#|x"],
        "the shorter key gets it in front"
    );
    let with_suffix = ModifyKeyRoute::new(server.leaf(), KeyChange { suffix: "!".into(), ..change.clone() });
    let longest = "k".repeat(249);
    ask(&with_suffix, &["set user:1 9", &format!("get {longest}")]).await;
    assert_eq!(server.asked(), ["set new::1! 9".to_owned(), format!("get new:{}!", &longest[4..])]);
    let in_front = ModifyKeyRoute::new(server.leaf(), KeyChange { is_in_place: false, ..change });
    ask(&in_front, &["get user:1"]).await;
    assert_eq!(server.asked(), ["get new:user:1"]);
}

#[tokio::test]
async fn a_reply_for_a_changed_key_has_the_clients_key() {
    let tag = Fake::new("s", |request| {
        let flags = [b"k", &request.key[..], b" O7"].concat().into();
        Ok(Reply::Meta(MetaReply { status: MetaStatus::Done, flags, value: None }))
    });
    let change = KeyChange { ensure_prefix: "p:".into(), ..KeyChange::default() };
    let route = ModifyKeyRoute::new(tag.leaf(), change);
    let answer = route.route(vec![meta(MetaVerb::Get, "key", "k O7")], &Context::default()).await;
    assert!(matches!(&answer[0], Ok(Reply::Meta(reply)) if reply.flags == "kkey O7"), "{answer:?}");
    assert_eq!(tag.requests()[0].key, "p:key");
}

#[tokio::test]
async fn hot_keys_have_copies_and_a_delete_removes_all() {
    let server = Fake::hit("s");
    let own_copy = KeySplitRoute::new(server.leaf(), 3, 4, false, false);
    let synced = KeySplitRoute::new(server.leaf(), 3, 4, true, false);
    for verb in VERBS {
        for (route, all_sync) in [(&own_copy, false), (&synced, true)] {
            ask(route, &[&format!("{verb} k|#|x")]).await;
            let keys: Vec<Bytes> = server.requests().into_iter().map(|request| request.key).collect();
            let is_read = ["get", "gets", "gat", "gats", "lease-get", "metaget", "cas", "lease-set"].contains(&verb);
            let all = verb == "delete" || all_sync && !is_read;
            let expected = if all { vec!["k|#|x", "k::1|#|x", "k::2|#|x"] } else { vec!["k::1|#|x"] };
            assert_eq!(keys, expected, "{verb}");
        }
    }
    let one_fails = Fake::new("s", |request| match request.key.ends_with(b"::2") {
        true => Err(Failure::TimedOut),
        false => Ok(Reply::Deleted),
    });
    assert_eq!(
        ask(&KeySplitRoute::new(one_fails.leaf(), 3, 0, false, false), &["delete k"]).await,
        ["server timed out"]
    );
}

#[tokio::test]
async fn after_a_miss_of_the_own_copy_the_first_hit_of_the_others_is_returned() {
    let server = Fake::new("s", |request| match &request.key[..] {
        b"k" => Err(Failure::TimedOut),
        b"k::2" => Ok(Reply::Value { flags: 0, cas: None, value: "found".into() }),
        _ => Ok(Reply::Miss),
    });
    let route = KeySplitRoute::new(server.leaf(), 4, 0, false, true);
    assert_eq!(ask(&route, &["get k"]).await, ["found"]);
    assert_eq!(server.asked_batches(), [vec!["get k"], vec!["get k::1", "get k::2", "get k::3"]]);
    assert_eq!(ask(&KeySplitRoute::new(server.leaf(), 4, 0, false, false), &["get k"]).await, ["server timed out"]);
}
