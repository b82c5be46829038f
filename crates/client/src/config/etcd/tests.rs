//! The watcher and the record against a scripted etcd on a paused clock, for events that are too rare with a real one.

use super::{EtcdError, EtcdLocation, EtcdRecord, EtcdValue, EtcdWatcher};
use crate::{Listener, Network, Stream};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use lookaside_routing::{Address, BoxFuture};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{Instant, timeout};

#[derive(Default)]
struct Script {
    /// The reply to each range; `None` if the connection is refused. The last one repeats.
    ranges: VecDeque<Option<String>>,
    /// The lines of each watch, after the first; then the connection stays open and silent.
    watches: VecDeque<Vec<String>>,
    /// Watches that are refused before those.
    watches_refused: usize,
    /// The status and body of the reply to each transaction; `None` if the connection is closed instead.
    txns: VecDeque<Option<(u16, String)>>,
    /// The bodies of the transactions.
    txn_requests: Vec<serde_json::Value>,
    /// The time of each connection.
    connects: Vec<Instant>,
    /// Endpoints that refuse connections, and those that accept them and never reply.
    refusing: Vec<&'static str>,
    hanging: Vec<&'static str>,
    /// The connections to those.
    hung: Vec<DuplexStream>,
    /// The revision that each watch starts from.
    starts: Vec<i64>,
}

#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Script>>);

impl Network for Scripted {
    fn connect<'a>(&'a self, endpoint: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let (ours, theirs) = duplex(1 << 20);
            let is_unreachable = {
                let mut script = self.0.lock().unwrap();
                script.connects.push(Instant::now());
                if script.hanging.contains(&&*endpoint.0) {
                    script.hung.push(ours);
                    return Ok(Box::new(theirs) as Box<dyn Stream>);
                }
                let is_refusing = script.refusing.contains(&&*endpoint.0);
                let is_unreachable = is_refusing || script.ranges.front().is_some_and(Option::is_none);
                if is_unreachable && script.ranges.len() > 1 {
                    script.ranges.pop_front();
                }
                is_unreachable
            };
            if is_unreachable {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            tokio::spawn(self.clone().serve(ours));
            Ok(Box::new(theirs) as Box<dyn Stream>)
        })
    }

    fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        unimplemented!("the watcher does not listen")
    }
}

impl Scripted {
    async fn serve(self, mut stream: DuplexStream) {
        while let Some((path, body)) = request(&mut stream).await {
            if path == "/v3/kv/range" {
                let reply = {
                    let mut script = self.0.lock().unwrap();
                    let reply = script.ranges.front().cloned().flatten().expect("a range is scripted");
                    if script.ranges.len() > 1 {
                        script.ranges.pop_front();
                    }
                    reply
                };
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", reply.len());
                stream.write_all((head + &reply).as_bytes()).await.unwrap();
                continue;
            }
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            if path == "/v3/kv/txn" {
                let reply = {
                    let mut script = self.0.lock().unwrap();
                    script.txn_requests.push(body);
                    script.txns.pop_front().expect("a transaction is scripted")
                };
                let Some((status, reply)) = reply else { return };
                let head = format!("HTTP/1.1 {status} Scripted\r\nContent-Length: {}\r\n\r\n", reply.len());
                stream.write_all((head + &reply).as_bytes()).await.unwrap();
                continue;
            }
            assert_eq!(path, "/v3/watch");
            let start = body["create_request"]["start_revision"].as_str().unwrap().parse().unwrap();
            let lines = {
                let mut script = self.0.lock().unwrap();
                script.starts.push(start);
                match script.watches_refused {
                    0 => Some(script.watches.pop_front().unwrap_or_default()),
                    _ => {
                        script.watches_refused -= 1;
                        None
                    }
                }
            };
            let Some(lines) = lines else {
                stream.write_all(b"HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\n\r\n").await.unwrap();
                continue;
            };
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await.unwrap();
            for line in [r#"{"result":{"header":{"revision":"1"},"created":true}}"#.to_owned()].into_iter().chain(lines)
            {
                stream.write_all(format!("{:x}\r\n{line}\n\r\n", line.len() + 1).as_bytes()).await.unwrap();
            }
        }
    }
}

async fn request(stream: &mut DuplexStream) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let bytes = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
    let mut body = vec![0; bytes];
    stream.read_exact(&mut body).await.ok()?;
    Some((head.split(' ').nth(1).unwrap().to_owned(), body))
}

fn range(revision: i64, value: &str) -> Option<String> {
    let value = BASE64.encode(value);
    Some(format!(r#"{{"header":{{"revision":"{revision}"}},"kvs":[{{"value":"{value}"}}],"count":"1"}}"#))
}

fn put(revision: i64, values: &[&str]) -> String {
    let events: Vec<_> =
        values.iter().map(|value| format!(r#"{{"kv":{{"value":"{}"}}}}"#, BASE64.encode(value))).collect();
    format!(r#"{{"result":{{"header":{{"revision":"{revision}"}},"events":[{}]}}}}"#, events.join(","))
}

fn record(script: Script) -> (Scripted, EtcdRecord) {
    record_at("etcd://a:1,b:2/k", script)
}

fn record_at(location: &str, script: Script) -> (Scripted, EtcdRecord) {
    let network = Scripted(Arc::new(Mutex::new(script)));
    let location = EtcdLocation::parse(location).unwrap().unwrap();
    (network.clone(), EtcdRecord::new(location, Arc::new(network)))
}

fn made(revision: i64) -> Option<(u16, String)> {
    Some((200, format!(r#"{{"header":{{"revision":"{revision}"}},"succeeded":true}}"#)))
}

/// A router that started asked one endpoint, and took itself for the first of its cluster if that one was down.
#[tokio::test(start_paused = true)]
async fn an_endpoint_that_is_down_or_hangs_is_replaced_by_the_others() {
    for (refusing, hanging, asked_after_ms) in
        [(vec!["a:1"], vec![], 0), (vec![], vec!["a:1"], 500), (vec!["a:1"], vec!["b:2"], 500)]
    {
        let txns = [made(3), made(4)].into();
        let (network, record) =
            record_at("etcd://a:1,b:2,c:3/k", Script { txns, refusing, hanging, ..Script::default() });
        let started = Instant::now();
        assert_eq!(record.replace(2, "ours", &[], &[]).await.map(|value| value.revision), Ok(3));
        assert!(started.elapsed() <= Duration::from_millis(asked_after_ms + 1), "{:?}", started.elapsed());
        let started = Instant::now();
        assert_eq!(record.replace(3, "ours", &[], &[]).await.map(|value| value.revision), Ok(4));
        assert!(started.elapsed() < Duration::from_millis(1), "its connection is kept");
        assert!(network.0.lock().unwrap().txns.is_empty(), "each was sent once");
    }
}

#[tokio::test(start_paused = true)]
async fn each_endpoint_is_asked_once() {
    let (refusing, hanging) = (vec!["a:1", "c:3"], vec!["b:2"]);
    let (network, record) = record_at("etcd://a:1,b:2,c:3/k", Script { refusing, hanging, ..Script::default() });
    let Err(EtcdError::Unavailable(why)) = record.replace(2, "ours", &[], &[]).await else { panic!("none replies") };
    assert!(["a:1: ", "b:2: no reply within", "c:3: "].iter().all(|part| why.contains(part)), "{why}");
    assert_eq!(network.0.lock().unwrap().connects.len(), 3);
}

/// A refusal is etcd's own reply, by its members' agreement: another one would say the same.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_not_asked_for_twice() {
    let refusal = Some((403, r#"{"message":"etcdserver: permission denied"}"#.to_owned()));
    let (network, record) = record(Script { txns: [refusal].into(), ..Script::default() });
    assert!(matches!(record.replace(2, "ours", &[], &[]).await, Err(EtcdError::Refused(_))));
    assert_eq!(network.0.lock().unwrap().connects.len(), 1);
}

/// A proxy in front of one member does not let the request pass, or has lost its member. That counted as etcd's reply.
#[tokio::test(start_paused = true)]
async fn a_refusal_by_something_else_than_etcd_is_no_reply_of_it() {
    for (status, body) in [(404, "404 page not found\n"), (403, "<html>"), (400, r#"{"message":"no route"}"#)] {
        let foreign = || Some((status, body.to_owned()));
        let (network, record) =
            record_at("etcd://a:1,b:2/k", Script { txns: [foreign(), made(3)].into(), ..Script::default() });
        assert!(record.replace(2, "ours", &[], &[]).await.is_ok(), "another endpoint is asked");
        assert_eq!(network.0.lock().unwrap().connects.len(), 2);
        let script = Script { txns: [foreign(), foreign()].into(), ..Script::default() };
        let (_, record) = record_at("etcd://a:1,b:2/k", script);
        let refused = record.replace(2, "ours", &[], &[]).await;
        assert!(matches!(&refused, Err(EtcdError::Foreign(why)) if why.contains("b:2: ")), "{refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_is_replaced_if_it_is_unchanged() {
    let made = r#"{"header":{"revision":"13"},"succeeded":true,"responses":[{"response_put":{}}]}"#;
    let present = format!(
        r#"{{"header":{{"revision":"15"}},"responses":[{{"response_range":{{"kvs":[{{"value":"{}","mod_revision":"14"}}]}}}}]}}"#,
        BASE64.encode("theirs")
    );
    let absent = r#"{"header":{"revision":"16"},"responses":[{"response_range":{}}]}"#;
    let replies = [made, &present, absent].map(|reply| Some((200, reply.to_owned())));
    let (network, record) = record(Script { txns: replies.into(), ..Script::default() });
    let value = |text: Option<&str>, revision| Ok(EtcdValue { text: text.map(str::to_owned), revision });
    let texts = [("new".to_owned(), Arc::<str>::from("text"))];
    assert_eq!(record.replace(12, "ours", &texts, &["old".to_owned()]).await, value(Some("ours"), 13));
    assert_eq!(record.replace(13, "ours", &[], &[]).await, value(Some("theirs"), 14));
    assert_eq!(record.replace(14, "ours", &[], &[]).await, value(None, 0));
    let script = network.0.lock().unwrap();
    assert_eq!(script.connects.len(), 1, "the connection is kept");
    let encode = |text: &str| BASE64.encode(text);
    let expected = serde_json::json!({
        "compare": [{ "key": encode("k"), "target": "MOD", "result": "EQUAL", "mod_revision": "12" }],
        "success": [
            { "request_put": { "key": encode("k"), "value": encode("ours") } },
            { "request_put": { "key": encode("k/new"), "value": encode("text") } },
            { "request_delete_range": { "key": encode("k/old") } },
        ],
        "failure": [{ "request_range": { "key": encode("k") } }],
    });
    assert_eq!(script.txn_requests[0], expected);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_differs_from_an_outage() {
    let refusal = |status, why: &str| Some((status, format!(r#"{{"message":"etcdserver: {why}"}}"#)));
    let made = || made(3);
    let replies = [
        refusal(403, "permission denied"),
        refusal(400, "user name is empty"),
        refusal(400, "request is too large"),
        Some((429, r#"{"message":"grpc: received message larger than max (2500045 vs. 2097152)"}"#.to_owned())),
        refusal(429, "mvcc: database space exceeded"),
        refusal(400, "revision of auth store is old"),
        refusal(401, "invalid auth token"),
        refusal(503, "no leader"),
        made(),
        // The connection that was kept is closed, which a new one is not.
        None,
        made(),
        None,
        None,
    ];
    let (network, record) = record_at("etcd://a:1/k", Script { txns: replies.into(), ..Script::default() });
    let mut outcomes = Vec::new();
    for _ in 0..11 {
        outcomes.push(match record.replace(2, "ours", &[], &[]).await {
            Ok(_) => "made",
            Err(EtcdError::Refused(why)) if why.contains("a:1: ") => "refused",
            Err(EtcdError::Unavailable(_)) => "away",
            Err(error) => panic!("{error:?} names no endpoint"),
        });
    }
    let expected = "refused refused refused refused away away away away made made away";
    assert_eq!(outcomes.join(" "), expected);
    assert!(network.0.lock().unwrap().txns.is_empty());
}

fn watch(script: Script) -> (Scripted, EtcdWatcher) {
    let network = Scripted(Arc::new(Mutex::new(script)));
    let location = EtcdLocation::parse("etcd://a:1/k").unwrap().unwrap();
    let watch = EtcdWatcher::new(location, Arc::new(network.clone()), Some("first"), 7);
    (network, watch)
}

#[tokio::test(start_paused = true)]
async fn watch_starts_after_the_read_revision_and_reports_the_last_of_several_changes() {
    let (network, mut watch) = watch(Script {
        ranges: [range(41, "first")].into(),
        watches: [vec![put(42, &["first"]), put(44, &["second", "third"])]].into(),
        ..Script::default()
    });
    assert_eq!(watch.next_change().await.as_deref(), Ok("third"), "the same value is not a change");
    assert_eq!(network.0.lock().unwrap().starts, [42]);
}

#[tokio::test(start_paused = true)]
async fn watch_restarts_from_the_current_revision_after_a_compaction() {
    let compacted = r#"{"result":{"header":{"revision":"90"},"canceled":true,"compact_revision":"80"}}"#;
    let (network, mut watch) = watch(Script {
        ranges: [range(41, "first"), range(90, "second")].into(),
        watches: [vec![compacted.to_owned()], vec![put(91, &["third"])]].into(),
        ..Script::default()
    });
    let started = Instant::now();
    assert_eq!(watch.next_change().await.as_deref(), Ok("second"));
    assert!(started.elapsed() < Duration::from_secs(1), "at once, not when the watch is checked");
    assert_eq!(watch.next_change().await.as_deref(), Ok("third"));
    assert_eq!(network.0.lock().unwrap().starts, [42, 91]);
}

#[tokio::test(start_paused = true)]
async fn silently_failed_watch_is_detected() {
    let (network, mut watch) = watch(Script {
        ranges: [range(41, "first"), range(42, "second")].into(),
        watches: [vec![], vec![put(43, &["third"])]].into(),
        ..Script::default()
    });
    let started = Instant::now();
    assert_eq!(watch.next_change().await.as_deref(), Ok("second"));
    assert!(started.elapsed() <= Duration::from_secs(31), "{:?}", started.elapsed());
    assert_eq!(watch.next_change().await.as_deref(), Ok("third"), "by a new watch");
    assert_eq!(network.0.lock().unwrap().starts, [42, 43]);
}

#[tokio::test(start_paused = true)]
async fn unreachable_etcd_is_asked_with_exponential_backoff() {
    let unreachable = std::iter::repeat_n(None, 12);
    let (network, mut watch) =
        watch(Script { ranges: unreachable.chain([range(50, "second")]).collect(), ..Script::default() });
    assert_eq!(watch.next_change().await.as_deref(), Ok("second"));
    let connects = network.0.lock().unwrap().connects.clone();
    let waits: Vec<_> = connects.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    assert_eq!(waits.len(), 12);
    assert!((50..=101).contains(&waits[0]) && waits[11] <= 5_001 && waits[11] >= 2_500, "{waits:?}");
    assert!(waits[6..].windows(2).any(|pair| pair[0] != pair[1]), "waits are random: {waits:?}");
}

#[tokio::test(start_paused = true)]
async fn deleted_key_and_malformed_replies_change_nothing() {
    let gone = r#"{"header":{"revision":"60"}}"#.to_owned();
    let deleted = r#"{"result":{"header":{"revision":"61"},"events":[{"type":"DELETE","kv":{}}]}}"#.to_owned();
    let (_, mut watch) = watch(Script {
        ranges: [Some("<html>".to_owned()), Some(gone), range(70, "second")].into(),
        watches: [vec![deleted, "nonsense".to_owned()]].into(),
        ..Script::default()
    });
    assert_eq!(watch.next_change().await.as_deref(), Ok("second"));
    assert!(timeout(Duration::from_secs(100), watch.next_change()).await.is_err(), "no further change");
}

#[tokio::test(start_paused = true)]
async fn key_is_read_repeatedly_if_it_cannot_be_watched() {
    let same = std::iter::repeat_n(range(42, "second"), 8);
    let (network, mut watch) = watch(Script {
        ranges: [range(41, "first")].into_iter().chain(same).chain([range(43, "third")]).collect(),
        watches: [vec![put(44, &["fourth"])]].into(),
        watches_refused: 10,
        ..Script::default()
    });
    for value in ["second", "third", "fourth"] {
        let changed = timeout(Duration::from_secs(60), watch.next_change()).await;
        assert_eq!(changed.ok(), Some(Ok(value.to_owned())));
    }
    let connects = network.0.lock().unwrap().connects.clone();
    let waits: Vec<_> = connects.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    assert!(waits[0] >= 50 && waits.iter().all(|&wait| wait <= 5_001) && waits[9] >= 2_500, "{waits:?}");
}
