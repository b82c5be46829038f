//! A purge against a server that lists and deletes keys, in-process and over TCP.

use super::super::coverage::Emptying;
use super::super::new_servers::{Emptied, empty_server};
use super::*;
use lookaside_client::TcpNetwork;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

type Keys = Arc<lookaside_sync::Mutex<BTreeSet<Vec<u8>>>>;

/// A server that holds `keys` and has no leases. `refusal` is its reply to a listing by the index; `None` if it makes
/// one.
async fn serve(keys: Keys, refusal: Option<&'static str>) -> Address {
    serve_with_leases(keys, refusal, ["ERROR"; 2]).await
}

/// A server that holds `keys`, with its replies to `lease-void-all` and to a `lease-get` of a key that is too long.
async fn serve_with_leases(keys: Keys, refusal: Option<&'static str>, leases: [&'static str; 2]) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = Address(listener.local_addr().expect("bound").to_string().into());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_connection(stream, keys.clone(), refusal, leases));
        }
    });
    address
}

async fn serve_connection(
    stream: TcpStream,
    keys: Keys,
    refusal: Option<&'static str>,
    [void_reply, lease_reply]: [&'static str; 2],
) {
    let (input, mut output) = stream.into_split();
    let mut lines = BufReader::new(input).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let words: Vec<&str> = line.split(' ').collect();
        let reply = match (&words[..], refusal) {
            (["lru_crawler", "mgdump", "hash"], Some(refusal)) => format!("{refusal}\r\n"),
            (["lru_crawler", "mgdump", _], _) => listing(&keys),
            (["delete", key], _) => deleted(&keys, key.as_bytes(), ["DELETED", "NOT_FOUND"]),
            (["md", key, "b"], _) => {
                let decoded = decode_key(key.as_bytes(), &mut [0; KEY_BYTES_MAX]).expect("base64").to_vec();
                deleted(&keys, &decoded, ["HD", "NF"])
            }
            (["lease-void-all"], _) => format!("{void_reply}\r\n"),
            (["lease-get", key], _) if key.len() > KEY_BYTES_MAX => format!("{lease_reply}\r\n"),
            (["stats"], _) => format!("STAT pid 1\r\nSTAT curr_items {}\r\nEND\r\n", keys.lock().len()),
            (["flush_all"], _) => {
                keys.lock().clear();
                "OK\r\n".to_owned()
            }
            other => panic!("not expected: {other:?}"),
        };
        output.write_all(reply.as_bytes()).await.expect("the purge reads");
    }
}

fn listing(keys: &Keys) -> String {
    let mut lines = "OK\r\n".to_owned();
    for key in &*keys.lock() {
        match str::from_utf8(key).ok().filter(|_| check_key(key).is_ok()) {
            Some(text) => lines += &format!("mg {text}\r\n"),
            None => {
                let mut encoded = Vec::new();
                encode_key(key, &mut encoded);
                lines += &format!("mg {} b\r\n", String::from_utf8(encoded).expect("base64 is text"));
            }
        }
    }
    lines + "EN\r\n"
}

fn deleted(keys: &Keys, key: &[u8], [there, absent]: [&str; 2]) -> String {
    format!("{}\r\n", if keys.lock().remove(key) { there } else { absent })
}

fn keys(names: impl IntoIterator<Item = Vec<u8>>) -> Keys {
    Arc::new(lookaside_sync::Mutex::new(names.into_iter().collect()))
}

const LIMITS: PurgeLimits = PurgeLimits { keys_per_s_max: 1_000_000 };

#[tokio::test]
async fn misplaced_keys_are_deleted_and_no_others() {
    let binary = binary_key();
    let held = keys((0..2_500).map(|key| format!("key:{key}").into_bytes()).chain([binary.clone()]));
    let server = serve(held.clone(), None).await;
    let is_misplaced = |key: &Bytes| key.ends_with(b"7") || key == &binary;
    let counters = PurgeCounters::default();
    let removed = purge_server(&TcpNetwork, &server, &is_misplaced, LIMITS, &counters).await.expect("purged");
    assert_eq!((removed, counters.keys_checked.value(), counters.keys_removed.value()), (251, 2_501, 251));
    assert_eq!(held.lock().len(), 2_250);
    assert!(held.lock().iter().all(|key| !key.ends_with(b"7")));
}

#[tokio::test]
async fn a_key_that_another_router_has_deleted_is_not_counted() {
    let held = keys([b"a".to_vec(), b"b".to_vec(), binary_key()]);
    let server = serve(held.clone(), None).await;
    // All are gone between the listing and the deletes.
    let is_misplaced = |_: &Bytes| {
        held.lock().clear();
        true
    };
    let counters = PurgeCounters::default();
    let removed = purge_server(&TcpNetwork, &server, &is_misplaced, LIMITS, &counters).await.expect("purged");
    assert_eq!((removed, counters.keys_checked.value(), counters.keys_removed.value()), (0, 3, 0));
}

fn binary_key() -> Vec<u8> {
    b"\0\xff".to_vec()
}

#[tokio::test]
async fn a_server_without_a_listing_by_the_index_lists_by_class() {
    let held = keys([b"a".to_vec(), b"b".to_vec()]);
    let server = serve(held.clone(), Some("BADCLASS invalid class id")).await;
    let counters = PurgeCounters::default();
    let removed = purge_server(&TcpNetwork, &server, &|key| key == "a", LIMITS, &counters).await.expect("purged");
    assert_eq!((removed, held.lock().len()), (1, 1));
}

#[tokio::test]
async fn the_rate_of_a_listing_is_bounded() {
    let held = keys((0..2_000).map(|key| format!("key:{key}").into_bytes()));
    let server = serve(held, None).await;
    let started = Instant::now();
    let limits = PurgeLimits { keys_per_s_max: 10_000 };
    purge_server(&TcpNetwork, &server, &|_| false, limits, &PurgeCounters::default()).await.expect("purged");
    assert!(started.elapsed() >= Duration::from_millis(200), "2,000 keys at 10,000 a second");
}

#[tokio::test]
async fn only_a_server_with_items_is_flushed() {
    let held = keys([b"a".to_vec()]);
    let server = serve(held.clone(), None).await;
    // Nothing is done to it, not even to its leases.
    let asked = serve_with_leases(held.clone(), None, ["nothing else is asked"; 2]).await;
    let checked = empty_server(&TcpNetwork, &asked, Emptying::Check).await.expect("it answers");
    assert_eq!((checked, held.lock().len()), (Emptied::HoldsItems, 1));
    assert_eq!(empty_server(&TcpNetwork, &server, Emptying::Flush).await.expect("it answers"), Emptied::Flushed);
    assert!(held.lock().is_empty());
    for emptying in [Emptying::Flush, Emptying::Check] {
        assert_eq!(empty_server(&TcpNetwork, &server, emptying).await.expect("it answers"), Emptied::WasEmpty);
    }
}

/// Such a server was taken for one without leases: a client that had hung stored its value after the purge, and the
/// key's next delete did not reach the server.
#[tokio::test]
async fn a_server_whose_leases_cannot_be_voided_is_not_purged_and_is_flushed_even_if_it_is_empty() {
    let earlier = ["ERROR", "CLIENT_ERROR bad command line format"];
    let held = keys([b"a".to_vec()]);
    let server = serve_with_leases(held.clone(), None, earlier).await;
    let counters = PurgeCounters::default();
    let purged = purge_server(&TcpNetwork, &server, &|_| true, LIMITS, &counters).await;
    assert!(matches!(purged, Err(PurgeError::LeasesHold)), "{purged:?}");
    assert_eq!((held.lock().len(), counters.keys_checked.value()), (1, 0), "deletes still reach its copies");
    for _ in 0..2 {
        let emptied = empty_server(&TcpNetwork, &server, Emptying::Flush).await.expect("it answers");
        assert_eq!(emptied, Emptied::FlushedWithLeases);
        assert!(held.lock().is_empty());
    }
    let checked = empty_server(&TcpNetwork, &server, Emptying::Check).await.expect("it answers");
    assert_eq!(checked, Emptied::FlushedWithLeases, "it is empty, so this costs nothing");
}

/// A server that replies to one line after the other.
async fn serve_replies(replies: &'static [&'static str]) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = Address(listener.local_addr().expect("bound").to_string().into());
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("the router connects");
        let (input, mut output) = stream.into_split();
        let mut lines = BufReader::new(input).lines();
        for reply in replies {
            lines.next_line().await.expect("readable").expect("a command");
            output.write_all(reply.as_bytes()).await.expect("the router reads");
        }
    });
    address
}

#[tokio::test]
async fn a_server_that_is_filled_meanwhile_or_does_not_count_its_items_is_not_empty() {
    const EMPTY: &str = "STAT curr_items 0\r\nEND\r\n";
    let filled: &[&str] = &[EMPTY, "OK\r\n", "STAT curr_items 1\r\nEND\r\n"];
    // A router.
    let silent: &[&str] = &["STAT pid 1\r\nEND\r\n"];
    for replies in [filled, silent] {
        let server = serve_replies(replies).await;
        let checked = empty_server(&TcpNetwork, &server, Emptying::Check).await.expect("it answers");
        assert_eq!(checked, Emptied::HoldsItems, "{replies:?}");
    }
}

#[tokio::test]
async fn other_replies_about_leases_are_errors() {
    for leases in [["SERVER_ERROR out of memory", "ERROR"], ["ERROR", "LVALUE k 7 0 0"]] {
        let server = serve_with_leases(keys([]), None, leases).await;
        let counters = PurgeCounters::default();
        let purged = purge_server(&TcpNetwork, &server, &|_| true, LIMITS, &counters).await;
        assert!(matches!(purged, Err(PurgeError::Connection(CommandError::Unexpected(_)))), "{leases:?}: {purged:?}");
        assert!(empty_server(&TcpNetwork, &server, Emptying::Flush).await.is_err(), "{leases:?}");
    }
}
