//! An etcd that says what a test wants, on a paused clock: what a real one does too rarely to be waited for.

use super::{EtcdLocation, EtcdWatch};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use lookaside_client::{Listener, Network, Stream};
use lookaside_routing::{Address, BoxFuture};
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::time::{Instant, timeout};

/// What the scripted etcd knows.
#[derive(Default)]
struct Script {
    /// The answer to each range; `None` where the connection is refused. The last one stays.
    ranges: VecDeque<Option<String>>,
    /// The lines of each watch, behind the first; the connection then stays silent. Without any, silence.
    watches: VecDeque<Vec<String>>,
    /// How many watches are refused before those.
    watches_refused: usize,
    /// When it was connected to, and where each watch was to start.
    connects: Vec<Instant>,
    starts: Vec<i64>,
}

#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Script>>);

struct Pipe(DuplexStream);

impl Stream for Pipe {
    fn peer(&self) -> Option<IpAddr> {
        None
    }
}

impl AsyncRead for Pipe {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl Network for Scripted {
    fn connect<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let is_away = {
                let mut script = self.0.lock().unwrap();
                script.connects.push(Instant::now());
                let is_away = script.ranges.front().is_some_and(Option::is_none);
                if is_away && script.ranges.len() > 1 {
                    script.ranges.pop_front();
                }
                is_away
            };
            if is_away {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (ours, theirs) = duplex(1 << 20);
            tokio::spawn(self.clone().serve(ours));
            Ok(Box::new(Pipe(theirs)) as Box<dyn Stream>)
        })
    }

    fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        unimplemented!("nobody listens")
    }
}

impl Scripted {
    async fn serve(self, mut stream: DuplexStream) {
        while let Some((path, body)) = request(&mut stream).await {
            if path == "/v3/kv/range" {
                let answer = {
                    let mut script = self.0.lock().unwrap();
                    let answer = script.ranges.front().cloned().flatten().expect("a range is scripted");
                    if script.ranges.len() > 1 {
                        script.ranges.pop_front();
                    }
                    answer
                };
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
                stream.write_all((head + &answer).as_bytes()).await.unwrap();
                continue;
            }
            assert_eq!(path, "/v3/watch");
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
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

/// The next request's path and body.
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

fn watch(script: Script) -> (Scripted, EtcdWatch) {
    let network = Scripted(Arc::new(Mutex::new(script)));
    let location = EtcdLocation::parse("etcd://a:1/k").unwrap().unwrap();
    let watch = EtcdWatch::new(location, Arc::new(network.clone()), Some("first"), 7);
    (network, watch)
}

#[tokio::test(start_paused = true)]
async fn a_watch_begins_behind_what_was_read_and_tells_the_last_of_some_changes() {
    let (network, mut watch) = watch(Script {
        ranges: [range(41, "first")].into(),
        watches: [vec![put(42, &["first"]), put(44, &["second", "third"])]].into(),
        ..Script::default()
    });
    assert_eq!(watch.changed().await.as_deref(), Ok("third"), "the same value again is no change");
    assert_eq!(network.0.lock().unwrap().starts, [42]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_cut_by_a_compaction_is_made_anew_from_what_is_there_now() {
    let compacted = r#"{"result":{"header":{"revision":"90"},"canceled":true,"compact_revision":"80"}}"#;
    let (network, mut watch) = watch(Script {
        ranges: [range(41, "first"), range(90, "second")].into(),
        watches: [vec![compacted.to_owned()], vec![put(91, &["third"])]].into(),
        ..Script::default()
    });
    let begun = Instant::now();
    assert_eq!(watch.changed().await.as_deref(), Ok("second"));
    assert!(begun.elapsed() < Duration::from_secs(1), "at once, not when the watch is checked");
    assert_eq!(watch.changed().await.as_deref(), Ok("third"));
    assert_eq!(network.0.lock().unwrap().starts, [42, 91]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_dead_without_a_word_is_found_out() {
    let (network, mut watch) = watch(Script {
        ranges: [range(41, "first"), range(42, "second")].into(),
        watches: [vec![], vec![put(43, &["third"])]].into(),
        ..Script::default()
    });
    let begun = Instant::now();
    assert_eq!(watch.changed().await.as_deref(), Ok("second"));
    assert!(begun.elapsed() <= Duration::from_secs(31), "{:?}", begun.elapsed());
    assert_eq!(watch.changed().await.as_deref(), Ok("third"), "and the watch is another one");
    assert_eq!(network.0.lock().unwrap().starts, [42, 43]);
}

#[tokio::test(start_paused = true)]
async fn an_etcd_that_is_away_is_asked_ever_more_rarely() {
    let away = std::iter::repeat_n(None, 12);
    let (network, mut watch) =
        watch(Script { ranges: away.chain([range(50, "second")]).collect(), ..Script::default() });
    assert_eq!(watch.changed().await.as_deref(), Ok("second"));
    let connects = network.0.lock().unwrap().connects.clone();
    let waits: Vec<_> = connects.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    assert_eq!(waits.len(), 12);
    assert!((50..=101).contains(&waits[0]) && waits[11] <= 5_001 && waits[11] >= 2_500, "{waits:?}");
    assert!(waits[6..].windows(2).any(|pair| pair[0] != pair[1]), "no two routers in step: {waits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_key_and_an_answer_that_is_not_etcds_change_nothing() {
    let gone = r#"{"header":{"revision":"60"}}"#.to_owned();
    let deleted = r#"{"result":{"header":{"revision":"61"},"events":[{"type":"DELETE","kv":{}}]}}"#.to_owned();
    let (_, mut watch) = watch(Script {
        ranges: [Some("<html>".to_owned()), Some(gone), range(70, "second")].into(),
        watches: [vec![deleted, "nonsense".to_owned()]].into(),
        ..Script::default()
    });
    assert_eq!(watch.changed().await.as_deref(), Ok("second"));
    assert!(timeout(Duration::from_secs(100), watch.changed()).await.is_err(), "nothing more");
}

#[tokio::test(start_paused = true)]
async fn an_etcd_that_lets_nobody_watch_is_read_again_and_again() {
    let same = std::iter::repeat_n(range(42, "second"), 8);
    let (network, mut watch) = watch(Script {
        ranges: [range(41, "first")].into_iter().chain(same).chain([range(43, "third")]).collect(),
        watches: [vec![put(44, &["fourth"])]].into(),
        watches_refused: 10,
        ..Script::default()
    });
    for value in ["second", "third", "fourth"] {
        let changed = timeout(Duration::from_secs(60), watch.changed()).await;
        assert_eq!(changed.ok(), Some(Ok(value.to_owned())));
    }
    let connects = network.0.lock().unwrap().connects.clone();
    let waits: Vec<_> = connects.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    assert!(waits[0] >= 50 && waits.iter().all(|&wait| wait <= 5_001) && waits[9] >= 2_500, "{waits:?}");
}
