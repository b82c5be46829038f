//! One session at a time over a small store, with input in pieces and replies in several parts.

use super::*;
use crate::observe::counters::Counters;
use crate::session::batch::Unexecuted;
use crate::session::context::ServerControl;
use lookaside_store::{Crawl, Options, Store};

const KEYS_OF_SEVERAL_BATCHES: usize = 200;
const NOW: Now = Now { unix_ms: 1_700_000_000_000 };

/// A store, and what a session needs with it.
struct Harness {
    store: Store,
    options: Options,
    counters: Counters,
}

impl Harness {
    fn new() -> Harness {
        let options = Options { item_bytes_max: 4096, seed: 7, ..Options::default() };
        let store = Store::new(options.clone()).expect("the options are fine");
        Harness { store, options, counters: Counters::default() }
    }

    fn context(&self) -> SessionContext<'_> {
        SessionContext::new(&self.store, &self.options, &self.counters)
    }

    /// All replies of a new session to bytes that arrive in pieces of `piece_bytes`.
    fn serve_in_pieces(&self, bytes: &[u8], piece_bytes: usize) -> (String, SessionState) {
        let (mut session, mut input, mut out) = (Session::new(), Vec::new(), Vec::new());
        for piece in bytes.chunks(piece_bytes) {
            input.extend_from_slice(piece);
            if session.serve(&mut input, &self.context(), NOW, &mut out) == SessionState::Close {
                return (String::from_utf8(out).expect("text"), SessionState::Close);
            }
        }
        (String::from_utf8(out).expect("text"), SessionState::Open)
    }

    /// One exchange of a new session, `seconds` later.
    fn serve_after(&self, seconds: u64, bytes: &[u8]) -> String {
        let now = Now { unix_ms: NOW.unix_ms + seconds * 1_000 };
        let (mut input, mut out) = (bytes.to_vec(), Vec::new());
        Session::new().serve(&mut input, &self.context(), now, &mut out);
        String::from_utf8(out).expect("text")
    }

    /// As the server does it: bytes arrive in pieces, a reply is sent when it reaches `reply_bytes_max`, and what
    /// was not executed by then is scanned again.
    fn serve_with_pauses(&self, bytes: &[u8], piece_bytes: usize, reply_bytes_max: usize) -> String {
        let (mut session, mut input, mut all) = (Session::new(), Vec::new(), Vec::new());
        for piece in bytes.chunks(piece_bytes) {
            input.extend_from_slice(piece);
            loop {
                match self.execute_until_full(&mut session, &input, reply_bytes_max, &mut all) {
                    Ok(input_at) => {
                        input.drain(..input_at);
                        break;
                    }
                    Err(rest) => input = [&rest.prefix[..], &input[rest.input_at..]].concat(),
                }
            }
        }
        String::from_utf8(all).expect("text")
    }

    /// Where a partial command begins, or what a full reply leaves unexecuted.
    fn execute_until_full(
        &self,
        session: &mut Session,
        input: &[u8],
        reply_bytes_max: usize,
        all: &mut Vec<u8>,
    ) -> Result<usize, Unexecuted> {
        let (mut batch, mut from) = (Batch::default(), 0);
        loop {
            batch.clear();
            let scan = session.scan(input, from, &self.context(), NOW, &mut batch);
            let (steps, mut out) = (batch.steps_count(), Vec::new());
            let progress = batch.execute(&self.context(), NOW, steps, reply_bytes_max, &mut out);
            assert!(out.len() < reply_bytes_max + 4096 + 300, "a reply of {} bytes", out.len());
            all.extend_from_slice(&out);
            if progress == BatchProgress::Full {
                session.rewind();
                return Err(batch.unexecuted(steps, input).expect("a full reply leaves something"));
            }
            match scan {
                Scan::Full { input_at } => from = input_at,
                Scan::Finished { input_at, .. } => return Ok(input_at),
            }
        }
    }
}

const EXCHANGE: &[u8] = b"set a 1 0 3\r\nabc\r\nset b 2 0 2\r\nde\r\nget a b none a\r\nnonsense\r\ngat 0 a b\r\n\
    set big 0 0 5000\r\n";

fn exchange() -> (Vec<u8>, String) {
    let mut bytes = EXCHANGE.to_vec();
    bytes.extend_from_slice(&[b'\n'; 5000]);
    bytes.extend_from_slice(b"\r\ndelete b\r\nset c 0 0 1 noreply\r\nx\r\nlease-get c\r\nincr c 1\r\nversion\r\n");
    let hits = "VALUE a 1 3\r\nabc\r\nVALUE b 2 2\r\nde\r\n";
    let replies = format!(
        "STORED\r\nSTORED\r\n{hits}VALUE a 1 3\r\nabc\r\nEND\r\nERROR\r\n{hits}END\r\n\
         SERVER_ERROR object too large for cache\r\nDELETED\r\nVALUE c 0 1\r\nx\r\nEND\r\n\
         CLIENT_ERROR cannot increment or decrement non-numeric value\r\nVERSION {}\r\n",
        crate::session::execute::VERSION
    );
    (bytes, replies)
}

/// Against the built server such a test would depend on when a second ends.
#[test]
fn seconds_are_counted_from_the_last_access_and_to_the_expiry() {
    let harness = Harness::new();
    assert_eq!(harness.serve_after(0, b"ms foo 2 T100\r\nab\r\nmg foo l t\r\n"), "HD\r\nHD l0 t100\r\n");
    assert_eq!(harness.serve_after(7, b"mg foo l t\r\n"), "HD l7 t93\r\n");
    assert_eq!(harness.serve_after(9, b"mg foo l t\r\n"), "HD l2 t91\r\n");
    assert_eq!(harness.serve_after(100, b"mg foo l t\r\n"), "EN\r\n");
}

#[test]
fn the_same_replies_wherever_the_bytes_are_cut() {
    let (bytes, replies) = exchange();
    for piece_bytes in (1..70).chain([1000, bytes.len()]) {
        assert_eq!(Harness::new().serve_in_pieces(&bytes, piece_bytes), (replies.clone(), SessionState::Open));
    }
}

#[test]
fn the_same_replies_wherever_execution_pauses() {
    let (bytes, replies) = exchange();
    for (reply_bytes_max, piece_bytes) in (1..100).flat_map(|max| [(max, 97), (max, 1000), (max, bytes.len())]) {
        let got = Harness::new().serve_with_pauses(&bytes, piece_bytes, reply_bytes_max);
        assert_eq!(got, replies, "pieces of {piece_bytes}, replies of {reply_bytes_max}");
    }
}

#[test]
fn more_keys_than_a_batch_takes() {
    let harness = Harness::new();
    let (mut bytes, mut replies) = (Vec::new(), String::new());
    for n in 0..KEYS_OF_SEVERAL_BATCHES {
        bytes.extend_from_slice(format!("set k{n} 0 0 4\r\n{n:04}\r\n").as_bytes());
        replies += "STORED\r\n";
    }
    bytes.extend_from_slice(b"get");
    for n in 0..KEYS_OF_SEVERAL_BATCHES {
        bytes.extend_from_slice(format!(" k{n} absent{n}").as_bytes());
        replies += &format!("VALUE k{n} 0 4\r\n{n:04}\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    replies += "END\r\n";
    assert_eq!(harness.serve_in_pieces(&bytes, usize::MAX), (replies.clone(), SessionState::Open));
    assert_eq!(harness.serve_with_pauses(&bytes, usize::MAX, 100), replies);
    let counters = harness.counters.snapshot();
    assert_eq!((counters.get_hits, counters.get_misses), (2 * 200, 2 * 200));
}

#[test]
fn quit_ends_it_and_nothing_after_it_counts() {
    let harness = Harness::new();
    let (replies, handover_state) =
        harness.serve_in_pieces(b"set a 0 0 1\r\nx\r\nquit\r\nset a 0 0 1\r\ny\r\n", usize::MAX);
    assert_eq!((replies.as_str(), handover_state), ("STORED\r\n", SessionState::Close));
    assert_eq!(harness.serve_in_pieces(b"get a\r\n", 100).0, "VALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn a_fill_after_a_delete_is_refused_and_shows_as_stale_only() {
    let harness = Harness::new();
    let (reply, _) = harness.serve_in_pieces(b"lease-get k\r\n", 100);
    let token: u64 = reply.split(' ').nth(2).and_then(|token| token.parse().ok()).expect("a token");
    let (reply, _) =
        harness.serve_in_pieces(format!("delete k\r\nlease-set k {token} 0 0 1\r\nv\r\nget k\r\n").as_bytes(), 100);
    assert_eq!(reply, "NOT_FOUND\r\nNOT_STORED\r\nEND\r\n");
    harness.serve_in_pieces(b"set k 3 0 3\r\nold\r\ndelete k\r\n", 100);
    let (reply, _) = harness.serve_in_pieces(b"get k\r\nlease-get k\r\nlease-get k\r\n", 100);
    let (first, rest) = reply.split_once("END\r\nLVALUE k ").expect("a miss, then a lease");
    let (token, rest) = rest.split_once(' ').expect("a token");
    assert!(first.is_empty() && token.parse::<u64>().expect("a number") > 1);
    assert_eq!(rest, "3 3\r\nold\r\nEND\r\nLVALUE k 1 3 3\r\nold\r\nEND\r\n");
}

#[test]
fn void_leases_fill_nothing_and_items_stay() {
    let harness = Harness::new();
    let (reply, _) = harness.serve_in_pieces(b"set a 0 0 1\r\nx\r\nlease-get k\r\n", 100);
    let token = reply.split_once("LVALUE k ").and_then(|(_, rest)| rest.split(' ').next()).expect("a token");
    let late =
        format!("lease-void-all\r\nlease-set k {token} 0 0 1\r\nv\r\nget a k\r\nlease-void-all noreply\r\nmn\r\n");
    let (replies, _) = harness.serve_in_pieces(late.as_bytes(), 100);
    assert_eq!(replies, "OK\r\nNOT_STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\nMN\r\n");
    assert_eq!(harness.counters.snapshot().cmd_lease_void_all, 2);
}

#[test]
fn flush_all_at_once_and_later() {
    let harness = Harness::new();
    let (replies, _) =
        harness.serve_in_pieces(b"set a 0 0 1\r\nx\r\nflush_all 10\r\nget a\r\nflush_all noreply\r\nget a\r\n", 100);
    assert_eq!(replies, "STORED\r\nOK\r\nVALUE a 0 1\r\nx\r\nEND\r\nEND\r\n");
    assert_eq!(harness.counters.snapshot().cmd_flush, 2);
}

/// A control of a server with `-o track_sizes`.
struct TracksSizes;

impl ServerControl for TracksSizes {
    fn stats(&self, _arguments: &[u8], _now: Now, _out: &mut Vec<u8>) {}

    fn tracks_sizes(&self) -> bool {
        true
    }
}

/// Starts as many crawls as the store allows.
fn start_all_crawls(store: &Store, now: Now) -> Vec<Crawl> {
    std::iter::from_fn(|| store.start_crawl(1, now)).collect()
}

#[test]
fn sizes_reply_with_an_error_while_too_many_crawls_are_under_way() {
    let harness = Harness::new();
    let context = SessionContext { control: &TracksSizes, ..harness.context() };
    let crawls = start_all_crawls(&harness.store, NOW);
    let (mut input, mut out) = (b"stats sizes\r\n".to_vec(), Vec::new());
    Session::new().serve(&mut input, &context, NOW, &mut out);
    let refusal = "STAT sizes_status error\r\nSTAT sizes_error too many crawls are under way\r\nEND\r\n";
    assert_eq!(String::from_utf8_lossy(&out), refusal);
    drop(crawls);
    out.clear();
    Session::new().serve(&mut b"stats sizes\r\n".to_vec(), &context, NOW, &mut out);
    assert_eq!(String::from_utf8_lossy(&out), "END\r\n");
}

#[test]
fn a_crawl_whose_client_does_not_read_is_given_up_for_another() {
    const GIVE_UP_MS: u64 = 60_000;
    let harness = Harness::new();
    let (mut session, mut batch, mut out) = (Session::new(), Batch::default(), Vec::new());
    session.scan(b"lru_crawler metadump all\r\n", 0, &harness.context(), NOW, &mut batch);
    assert_eq!(batch.execute(&harness.context(), NOW, 1, 1, &mut out), BatchProgress::Yield, "the reply is full");
    assert_eq!(String::from_utf8_lossy(&out), "OK\r\n");
    let later = Now { unix_ms: NOW.unix_ms + GIVE_UP_MS };
    let _others = start_all_crawls(&harness.store, later);
    out.clear();
    assert_eq!(batch.execute(&harness.context(), later, 1, usize::MAX, &mut out), BatchProgress::Done);
    let refusal = "SERVER_ERROR crawl given up: its client has read nothing for 60 s\r\n";
    assert_eq!(String::from_utf8_lossy(&out), refusal);
}
