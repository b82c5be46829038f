//! Split values: joined for every verb that reads, a miss if a chunk is missing, never a mix of two values.

use crate::fakes::{Fake, ask, request};
use crate::parsing::{read, with_route};
use bytes::Bytes;
use lookaside_protocol::meta::{MetaReply, MetaStatus};
use lookaside_protocol::{Cas, LeaseToken, Operation, Reply, Request, StoreMode};
use lookaside_routing::{
    BIG_VALUE_FLAG, BigValueRoute, BigValueSettings, CHUNKS_MAX, Context, Failure, Outcome, Route,
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

type Items = Arc<Mutex<BTreeMap<Bytes, (u32, Bytes)>>>;

/// A server that stores at most 30 bytes, and fails for keys that contain `failing`, unless that is empty.
fn server(failing: &'static str) -> (Arc<Fake>, Items) {
    let items = Items::default();
    let of_server = items.clone();
    let fake = Fake::new("s", move |request| {
        if !failing.is_empty() && String::from_utf8_lossy(&request.key).contains(failing) {
            return Err(Failure::TimedOut);
        }
        let mut items = of_server.lock().unwrap();
        let found = items.get(&request.key).cloned();
        let value = found.clone().map(|(flags, value)| Reply::Value { flags, cas: None, value });
        Ok(match &request.operation {
            Operation::Get { .. } | Operation::GetAndTouch { .. } => value.unwrap_or(Reply::Miss),
            Operation::LeaseGet => value.unwrap_or(Reply::Lease {
                token: LeaseToken(7),
                flags: BIG_VALUE_FLAG,
                stale: Some("1-2-3".into()),
            }),
            Operation::Store { mode: StoreMode::Add, .. } if found.is_some() => Reply::NotStored,
            Operation::Store { mode: StoreMode::Replace, .. } if found.is_none() => Reply::NotStored,
            Operation::Store { flags, value, .. } | Operation::LeaseSet { flags, value, .. } => {
                assert!(value.len() <= 30, "{} bytes are too many", value.len());
                items.insert(request.key.clone(), (*flags, value.clone()));
                Reply::Stored
            }
            Operation::Delete { .. } if items.remove(&request.key).is_some() => Reply::Deleted,
            _ => Reply::NotFound,
        })
    });
    (fake, items)
}

fn with_value(text: &str, value: &'static str) -> Request<Bytes> {
    let mut request = request(text);
    if let Operation::Store { flags, value: of_request, .. } | Operation::LeaseSet { flags, value: of_request, .. } =
        &mut request.operation
    {
        *of_request = Bytes::from_static(value.as_bytes());
        *flags = 5;
    }
    request
}

/// Settings by which clients get the flags that they have stored.
fn hiding_above(split_threshold_bytes: usize) -> BigValueSettings {
    BigValueSettings { hides_flag: true, ..BigValueSettings::above(split_threshold_bytes) }
}

async fn one(route: &BigValueRoute, request: Request<Bytes>) -> Outcome {
    route.route(vec![request], &Context::default()).await.remove(0)
}

const BIG: &str = "0123456789abcdefghijABCDE";
const NEW: &str = "one two three four five six seven";

fn value(text: &'static str) -> Outcome {
    Ok(Reply::Value { flags: 5, cas: None, value: Bytes::from_static(text.as_bytes()) })
}

#[tokio::test]
async fn every_verb_that_stores_splits_and_every_one_that_reads_joins() {
    for verb in ["set", "add", "replace", "cas", "lease-set"] {
        let (server, _) = server("");
        let route = BigValueRoute::new(server.leaf(), hiding_above(10));
        if verb == "replace" {
            one(&route, with_value("set k", "x")).await.unwrap();
            server.asked();
        }
        assert_eq!(one(&route, with_value(&format!("{verb} k 60"), BIG)).await, Ok(Reply::Stored), "{verb}");
        let asked = server.asked();
        assert_eq!(asked.len(), 4);
        for (n, line) in asked[..3].iter().enumerate() {
            assert!(line.starts_with(&format!("set k:{n}:")) && line.ends_with(" 60"), "{verb}: {line}");
        }
        assert_eq!(asked[3], format!("{verb} k 60"), "the manifest is stored last");
        for read in ["get", "gets", "gat", "gats", "lease-get"] {
            assert_eq!(one(&route, request(&format!("{read} k 30"))).await, value(BIG), "{verb} {read}");
            let asked = server.asked();
            let chunks = if read.starts_with("gat") { "gat k:" } else { "get k:" };
            assert_eq!(asked.iter().filter(|line| line.starts_with(chunks)).count(), 3, "{asked:?}");
        }
        assert_eq!(one(&route, request("delete k")).await, Ok(Reply::Deleted));
        assert_eq!(server.asked(), ["delete k"]);
        assert_eq!(one(&route, request("get k")).await, Ok(Reply::Miss));
    }
}

#[tokio::test]
async fn small_values_are_not_split() {
    let (server, _) = server("");
    let route = BigValueRoute::new(server.leaf(), hiding_above(10));
    for verb in ["set", "add", "replace", "append", "prepend", "cas", "lease-set"] {
        one(&route, with_value(&format!("{verb} k 0"), "0123456789")).await.unwrap();
        let asked = server.asked();
        let gets = usize::from(verb.ends_with("pend"));
        assert_eq!(asked[gets..], [format!("{verb} k 0")]);
        assert_eq!(asked[..gets], vec!["gets k"; gets]);
    }
    for verb in ["append", "prepend"] {
        one(&route, with_value(&format!("{verb} k 0"), BIG)).await.unwrap();
        assert_eq!(server.asked(), ["gets k".to_owned(), format!("{verb} k 0")], "not split");
    }
    assert_eq!(one(&route, request("get k")).await, value(BIG), "the last one, as if the route were not there");
    // The client uses the flag for a value that is not a manifest.
    for not_manifest in ["", "1-2", "2-3-4", "1-0-5", "1-1001-5", "1-x-5", "1-2-3-4", "1-2-\u{e4}"] {
        let mut own = with_value("set own", not_manifest);
        if let Operation::Store { flags, .. } = &mut own.operation {
            *flags = BIG_VALUE_FLAG;
        }
        one(&route, own).await.unwrap();
        let expected = Reply::Value { flags: BIG_VALUE_FLAG, cas: None, value: not_manifest.into() };
        assert_eq!(one(&route, request("get own")).await, Ok(expected), "{not_manifest}");
    }
}

#[tokio::test]
async fn a_missing_chunk_is_a_miss_or_a_lease() {
    let (server, items) = server("");
    let route = BigValueRoute::new(server.leaf(), hiding_above(10));
    for (read, expected) in [("get", "Miss"), ("gets", "Miss"), ("gat", "Miss"), ("lease-get", "Lease 7")] {
        one(&route, with_value("set k", BIG)).await.unwrap();
        items.lock().unwrap().retain(|key, _| !key.starts_with(b"k:1:"));
        server.asked();
        assert_eq!(ask(&route, &[&format!("{read} k")]).await, [expected], "{read}");
        let deletes = server.asked().iter().filter(|line| line.starts_with("delete")).count();
        assert_eq!(deletes, usize::from(read == "lease-get"), "only a lease needs the delete of the manifest");
    }
    let outcome = one(&route, request("lease-get k")).await;
    assert_eq!(outcome, Ok(Reply::Lease { token: LeaseToken(7), flags: 0, stale: None }), "no stale manifest");
}

#[tokio::test]
async fn a_failure_of_a_chunk_is_returned() {
    let (first, _) = server(":2:");
    let route = BigValueRoute::new(first.leaf(), hiding_above(10));
    assert_eq!(one(&route, with_value("set k", BIG)).await, Err(Failure::TimedOut));
    assert!(first.asked().iter().all(|line| line.starts_with("set k:")), "no manifest without its chunks");

    let (whole, items) = server("");
    one(&BigValueRoute::new(whole.leaf(), hiding_above(10)), with_value("set k", BIG)).await.unwrap();
    let (failing, of_failing) = server(":1:");
    of_failing.lock().unwrap().extend(items.lock().unwrap().clone());
    of_failing.lock().unwrap().retain(|key, _| !key.starts_with(b"k:0:"));
    let route = BigValueRoute::new(failing.leaf(), hiding_above(10));
    assert_eq!(one(&route, request("get k")).await, Err(Failure::TimedOut), "a failure, not the miss before it");
}

/// A manifest is replaced while a second client writes: a reader gets one value or the other.
#[tokio::test]
async fn old_and_new_chunks_never_mix() {
    let (server, items) = server("");
    let route = BigValueRoute::new(server.leaf(), hiding_above(10));
    one(&route, with_value("set k", BIG)).await.unwrap();
    let old_manifest = items.lock().unwrap()[&Bytes::from("k")].clone();
    one(&route, with_value("set k", NEW)).await.unwrap();
    assert_eq!(one(&route, request("get k")).await, value(NEW));
    items.lock().unwrap().insert("k".into(), old_manifest);
    assert_eq!(one(&route, request("get k")).await, value(BIG));
}

#[tokio::test]
async fn a_batch_keeps_its_order() {
    let (server, _) = server("");
    let route = BigValueRoute::new(server.leaf(), hiding_above(10));
    let batch = vec![
        with_value("set a", BIG),
        request("get a"),
        request("get none"),
        with_value("set b", "small"),
        with_value("set a", NEW),
        request("get a"),
        request("get b"),
    ];
    let outcomes = route.route(batch, &Context::default()).await;
    let stored = || Ok(Reply::Stored);
    assert_eq!(outcomes, [stored(), value(BIG), Ok(Reply::Miss), stored(), stored(), value(NEW), value("small")]);
}

/// Chunks of other values do not wait.
#[tokio::test]
async fn some_chunks_of_each_value_are_sent_at_a_time() {
    for (batch_size, rounds) in [(0, vec![7]), (1, vec![2, 2, 2, 1]), (2, vec![4, 3]), (3, vec![6, 1]), (4, vec![7])] {
        let (server, _) = server("");
        let settings = BigValueSettings { batch_size, ..hiding_above(10) };
        let route = BigValueRoute::new(server.leaf(), settings);
        let batch = || vec![with_value("set a", BIG), with_value("set b", NEW)];
        assert_eq!(route.route(batch(), &Context::default()).await, [Ok(Reply::Stored), Ok(Reply::Stored)]);
        let sizes = || server.asked_batches().iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(), [rounds.clone(), vec![2]].concat(), "batch_size {batch_size}");
        let gets = vec![request("get a"), request("get b")];
        assert_eq!(route.route(gets, &Context::default()).await, [value(BIG), value(NEW)]);
        assert_eq!(sizes(), [vec![2], rounds].concat(), "batch_size {batch_size}");
    }
}

#[tokio::test]
async fn clients_see_the_flag_only_if_they_are_to() {
    for (hides_flag, seen) in [(true, 5), (false, 5 | BIG_VALUE_FLAG)] {
        let (server, _) = server("");
        let route = BigValueRoute::new(server.leaf(), BigValueSettings { hides_flag, ..BigValueSettings::above(10) });
        one(&route, with_value("set k", BIG)).await.unwrap();
        let expected = Reply::Value { flags: seen, cas: None, value: BIG.into() };
        assert_eq!(one(&route, request("get k")).await, Ok(expected));
    }
}

/// A client of mcrouter may look for the flag.
#[test]
fn a_configuration_leaves_the_flag_by_default() {
    let tree = |more: &str| {
        let route = format!(r#"{{"type": "BigValueRoute", "target": "NullRoute", "split_threshold": 10{more}}}"#);
        read(&with_route(&route)).trees
    };
    assert_eq!(tree(""), tree(r#", "hide_reply_flag": false"#));
    assert_ne!(tree(""), tree(r#", "hide_reply_flag": true"#));
}

#[tokio::test]
async fn a_value_that_cannot_be_split_is_sent_to_the_server() {
    let server = Fake::hit("s");
    let route = BigValueRoute::new(server.leaf(), hiding_above(1));
    let key = "k".repeat(240);
    one(&route, with_value(&format!("set {key} 0"), BIG)).await.unwrap();
    assert_eq!(server.asked(), [format!("set {key} 0")]);
    let mut request = request("set k 0");
    if let Operation::Store { value, .. } = &mut request.operation {
        *value = vec![b'x'; CHUNKS_MAX + 1].into();
    }
    one(&route, request).await.unwrap();
    assert_eq!(server.asked(), ["set k 0"]);
}

/// A value with its flags, its exptime and its CAS unique.
type Versioned = Arc<Mutex<BTreeMap<Bytes, (u32, i64, u64, Bytes)>>>;

/// A server with CAS uniques, appends and exptimes. `meddle` is called before every store by CAS.
fn appending_server(meddle: impl Fn(&Versioned) + Send + Sync + 'static) -> (Arc<Fake>, Versioned) {
    let items = Versioned::default();
    let of_server = items.clone();
    let fake = Fake::new("s", move |request| {
        if matches!(request.operation, Operation::Store { mode: StoreMode::Cas(_), .. }) {
            meddle(&of_server);
        }
        let mut items = of_server.lock().unwrap();
        let next = items.values().map(|item| item.2).max().unwrap_or(0) + 1;
        let found = items.get(&request.key).cloned();
        let Operation::Store { mode, flags, exptime, value, .. } = &request.operation else {
            return Ok(match (&request.operation, found) {
                (Operation::Get { cas }, Some((flags, _, unique, value))) => {
                    Reply::Value { flags, cas: cas.then_some(Cas(unique)), value }
                }
                (Operation::Get { .. }, None) => Reply::Miss,
                (Operation::Meta(_), Some((_, 0, ..))) => time_left("t-1"),
                (Operation::Meta(_), Some((_, exptime, ..))) => time_left(&format!("t{exptime}")),
                _ => Reply::NotFound,
            });
        };
        let new = match (mode, found) {
            (StoreMode::Set, _) => (*flags, *exptime, next, value.clone()),
            (StoreMode::Append, Some((flags, exptime, _, old))) => {
                (flags, exptime, next, [&old[..], value].concat().into())
            }
            (StoreMode::Cas(unique), Some((_, _, now, _))) if unique.0 == now => {
                (*flags, *exptime, next, value.clone())
            }
            (StoreMode::Cas(_), Some(_)) => return Ok(Reply::Exists),
            (StoreMode::Cas(_), None) => return Ok(Reply::NotFound),
            _ => return Ok(Reply::NotStored),
        };
        items.insert(request.key.clone(), new);
        Ok(Reply::Stored)
    });
    (fake, items)
}

fn time_left(flags: &str) -> Reply<Bytes> {
    Reply::Meta(MetaReply { status: MetaStatus::Done, flags: Bytes::copy_from_slice(flags.as_bytes()), value: None })
}

/// Regression: the server appended to the manifest, and gets returned that as the value.
#[tokio::test]
async fn appends_to_a_split_value_become_part_of_it() {
    let (server, items) = appending_server(|_| {});
    let route = BigValueRoute::new(server.leaf(), hiding_above(10));
    for exptime in [0, 60] {
        one(&route, with_value(&format!("set k {exptime}"), BIG)).await.unwrap();
        one(&route, with_value("set small 7", "0123")).await.unwrap();
        let appends = ["append k", "append small", "prepend k", "get k", "append gone", "get small"];
        let appends = appends.map(|line| with_value(line, "xyz")).to_vec();
        let outcomes = route.route(appends, &Context::default()).await;
        let stored = Ok(Reply::Stored);
        assert_eq!(outcomes[..3], [stored.clone(), stored.clone(), stored]);
        assert_eq!(outcomes[3..], [value("xyz0123456789abcdefghijABCDExyz"), Ok(Reply::NotStored), value("0123xyz")]);
        assert_eq!(items.lock().unwrap()[&b"k"[..]].1, exptime, "the exptime is unchanged");
        assert_eq!(items.lock().unwrap()[&b"small"[..]].1, 7);
    }
    items.lock().unwrap().retain(|key, _| !key.starts_with(b"k:1:"));
    assert_eq!(one(&route, with_value("append k", "xyz")).await, Ok(Reply::NotStored), "a chunk is missing");
}

#[tokio::test]
async fn an_append_undoes_no_concurrent_change() {
    let meddle = |times: u64| {
        let done = AtomicU64::new(0);
        move |items: &Versioned| {
            if done.fetch_add(1, Relaxed) < times {
                items.lock().unwrap().get_mut(&b"k"[..]).expect("it is there").2 += 1_000;
            }
        }
    };
    let (server, _) = appending_server(meddle(2));
    let route = BigValueRoute::new(server.leaf(), hiding_above(10));
    one(&route, with_value("set k", BIG)).await.unwrap();
    assert_eq!(one(&route, with_value("append k", "xyz")).await, Ok(Reply::Stored), "tried again");
    assert_eq!(one(&route, request("get k")).await, value("0123456789abcdefghijABCDExyz"));

    let (server, _) = appending_server(meddle(u64::MAX));
    let route = BigValueRoute::new(server.leaf(), hiding_above(10));
    one(&route, with_value("set k", BIG)).await.unwrap();
    let refused = one(&route, with_value("append k", "xyz")).await;
    assert!(matches!(refused, Ok(Reply::Error(_))), "{refused:?}");
    assert_eq!(one(&route, request("get k")).await, value(BIG));

    let (server, _) = appending_server(|items| drop(items.lock().unwrap().remove(&b"k"[..])));
    let route = BigValueRoute::new(server.leaf(), hiding_above(10));
    one(&route, with_value("set k", BIG)).await.unwrap();
    assert_eq!(one(&route, with_value("append k", "xyz")).await, Ok(Reply::NotStored), "it was deleted");
}
