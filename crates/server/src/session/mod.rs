//! The protocol state machine of one client, sans-I/O: bytes in, bytes out, over a store and a given time.
//!
//! The server uses a session in two passes: [`Session::scan`] parses what has arrived into a [`Batch`] shared with
//! other connections, and [`Batch::execute`] answers. A caller with one client at a time (a simulation, a test) calls
//! [`Session::serve`], which does both.
//!
//! | file | |
//! |---|---|
//! | [`batch`] | parsed commands with hashed keys; prefetching |
//! | [`execute`] | text and meta commands against the store |
//! | [`binary`] | the binary protocol |
//! | [`reply`] | replies, rendered from the item |
//! | [`auth`] | users and passwords |
//! | [`admin_command`], [`crawl`] | an operator's commands; listings of all keys |
//! | [`context`] | what every call gets: store, counters, limits |
//!
//! A session's state is small: its client's protocol, the progress of authentication, how many bytes of a refused value
//! are still to be swallowed, and rarely an unfinished crawl. Everything else is in the caller's buffers. The first
//! byte selects the protocol for the whole connection.

pub(crate) mod admin_command;
pub(crate) mod auth;
pub(crate) mod batch;
pub(crate) mod binary;
pub(crate) mod context;
pub(crate) mod crawl;
pub(crate) mod execute;
pub(crate) mod reply;

use admin_command::AdminCommand;
use auth::Authentication;
use auth::ascii::{AsciiAuth, parse_login};
use batch::{Batch, Progress};
use binary::Scanned;
use context::{Protocols, SessionContext};
use crawl::CrawlCommand;
use lookaside_protocol::Command;
use lookaside_protocol::binary::REQUEST_MAGIC;
use lookaside_protocol::text::{Parsed, parse_command};
use lookaside_store::Now;
use lookaside_upgrade::SavedSession;

/// The state of one client between two reads.
#[derive(Debug, Default)]
pub struct Session {
    swallow_bytes: usize,
    /// The protocols of its listener; `None`: the server's.
    protocols: Option<Protocols>,
    /// `None` before the first byte.
    protocol: Option<Protocol>,
    authentication: Authentication,
    /// An unfinished crawl, while its command waits to be scanned again.
    crawl: Option<Box<CrawlCommand>>,
}

/// The protocol that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// The text protocol, with leases and meta commands.
    Text,
    /// The binary protocol.
    Binary,
}

/// Whether the connection stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// More commands may come.
    Open,
    /// The client has quit, or cannot be understood any more: send the reply, then disconnect.
    Close,
}

/// How far [`Session::scan`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The batch is full, or must be executed before the next command: continue here with an empty batch.
    Full {
        /// The first byte not scanned.
        input_at: usize,
    },
    /// No whole command is left.
    Finished {
        /// The first byte not scanned: the start of a partial command, or the end.
        input_at: usize,
        /// The number of bytes needed from there on before the next scan is worthwhile.
        needed_bytes: usize,
    },
}

impl Session {
    /// A session before the client's first byte.
    pub fn new() -> Self {
        Session::default()
    }

    /// A session whose listener accepts these protocols; `None`: those of the context.
    pub(crate) fn with_protocols(protocols: Option<Protocols>) -> Self {
        Session { protocols, ..Session::default() }
    }

    /// Parses the whole commands in `input` from `input_at` on into `batch`, until that is full.
    pub fn scan<'b>(
        &mut self,
        input: &'b [u8],
        mut input_at: usize,
        context: &SessionContext<'_>,
        now: Now,
        batch: &mut Batch<'b>,
    ) -> Scan {
        loop {
            let swallowed = self.swallow_bytes.min(input.len() - input_at);
            self.swallow_bytes -= swallowed;
            input_at += swallowed;
            if input_at == input.len() {
                return Scan::Finished { input_at, needed_bytes: 1 };
            }
            if batch.is_full() {
                return Scan::Full { input_at };
            }
            let rest = &input[input_at..];
            let scanned = match self.protocol(rest[0], self.protocols.unwrap_or(context.protocols)) {
                Protocol::Binary => self.scan_binary(rest, input_at, context, now, batch),
                Protocol::Text if context.text_users.is_some() && !self.authentication.is_done() => {
                    self.scan_login(rest, input_at, context, now, batch)
                }
                Protocol::Text => self.scan_text(rest, input_at, context, batch),
            };
            match scanned {
                Ok(consumed) => input_at += consumed,
                Err(stop) => return stop,
            }
        }
    }

    /// Scans the text command at the start of `rest`; returns its length, or why scanning stops before it.
    #[inline]
    fn scan_text<'b>(
        &mut self,
        rest: &'b [u8],
        input_at: usize,
        context: &SessionContext<'_>,
        batch: &mut Batch<'b>,
    ) -> Result<usize, Scan> {
        match parse_command(rest, &context.limits) {
            Parsed::Incomplete { needed_bytes } => Err(Scan::Finished { input_at, needed_bytes }),
            Parsed::Command { command, consumed } => {
                let crawl_command = match command {
                    Command::Stats { .. } => AdminCommand::parse_stats_crawl(&rest[..consumed]),
                    _ => None,
                };
                match crawl_command {
                    Some(command) => batch.push_admin_command(input_at, command, self.crawl.take()),
                    None => batch.push_command(input_at, command),
                }
                Ok(consumed)
            }
            Parsed::Bad { line, consumed, swallow, close, key_to_delete } => {
                // To the parser, an operator's command is an unknown verb.
                match AdminCommand::parse(&rest[..consumed]) {
                    Some(command) => batch.push_admin_command(input_at, command, self.crawl.take()),
                    None => {
                        batch.push_refusal(input_at, line, close, key_to_delete);
                        self.swallow_bytes = swallow;
                    }
                }
                Ok(consumed)
            }
        }
    }

    /// As [`Session::scan_text`], for a client that has not authenticated.
    fn scan_login<'b>(
        &mut self,
        rest: &'b [u8],
        input_at: usize,
        context: &SessionContext<'_>,
        now: Now,
        batch: &mut Batch<'b>,
    ) -> Result<usize, Scan> {
        if batch.steps_count() > 0 {
            return Err(Scan::Full { input_at });
        }
        match parse_login(rest, context, now) {
            AsciiAuth::Incomplete { needed_bytes } => Err(Scan::Finished { input_at, needed_bytes }),
            AsciiAuth::Authenticated { consumed } => {
                self.authentication = Authentication::Done;
                batch.push_refusal(input_at, Some("STORED"), false, None);
                Ok(consumed)
            }
            AsciiAuth::Refused { line, consumed, swallow } => {
                batch.push_refusal(input_at, Some(line), false, None);
                self.swallow_bytes = swallow;
                Ok(consumed)
            }
            AsciiAuth::Close => {
                batch.push_refusal(input_at, None, true, None);
                Ok(rest.len())
            }
        }
    }

    /// As [`Session::scan_text`], for the binary protocol.
    #[inline]
    fn scan_binary<'b>(
        &mut self,
        rest: &'b [u8],
        input_at: usize,
        context: &SessionContext<'_>,
        now: Now,
        batch: &mut Batch<'b>,
    ) -> Result<usize, Scan> {
        let is_batch_empty = batch.steps_count() == 0;
        match binary::scan(rest, &mut self.authentication, is_batch_empty, context, now) {
            Scanned::Incomplete { needed_bytes } => Err(Scan::Finished { input_at, needed_bytes }),
            Scanned::NeedsOwnBatch => Err(Scan::Full { input_at }),
            Scanned::Step { step, key_to_delete, consumed, swallow } => {
                batch.push_binary(input_at, step, key_to_delete);
                self.swallow_bytes = swallow;
                Ok(consumed)
            }
        }
    }

    /// The client's protocol. If the server accepts both, the first byte decides.
    fn protocol(&mut self, first_byte: u8, protocols: Protocols) -> Protocol {
        *self.protocol.get_or_insert(match protocols {
            Protocols::Text => Protocol::Text,
            Protocols::Binary => Protocol::Binary,
            Protocols::Both if first_byte == REQUEST_MAGIC => Protocol::Binary,
            Protocols::Both => Protocol::Text,
        })
    }

    /// The state to hand over to another process; `None` in the middle of a crawl.
    pub(crate) fn handover_state(&self) -> Option<SavedSession> {
        let protocol = match self.protocol {
            None => 0,
            Some(Protocol::Text) => 1,
            Some(Protocol::Binary) => 2,
        };
        let authentication = match self.authentication {
            Authentication::None => 0,
            Authentication::InProgress => 1,
            Authentication::Done => 2,
        };
        let saved = SavedSession { protocol, authentication, swallow_bytes: self.swallow_bytes };
        self.crawl.is_none().then_some(saved)
    }

    /// Restores a session that another process handed over; `None` if its client speaks a protocol that is not accepted
    /// here.
    pub(crate) fn from_handover(
        saved: SavedSession,
        listener_protocols: Option<Protocols>,
        default_protocols: Protocols,
    ) -> Option<Session> {
        let protocol = match (saved.protocol, listener_protocols.unwrap_or(default_protocols)) {
            (0, _) => None,
            (1, Protocols::Both | Protocols::Text) => Some(Protocol::Text),
            (2, Protocols::Both | Protocols::Binary) => Some(Protocol::Binary),
            _ => return None,
        };
        let authentication = match saved.authentication {
            0 => Authentication::None,
            1 => Authentication::InProgress,
            _ => Authentication::Done,
        };
        let swallow_bytes = saved.swallow_bytes;
        Some(Session { swallow_bytes, protocol, authentication, ..Session::with_protocols(listener_protocols) })
    }

    /// Prepares for scanning again, from a command's start, what was scanned but not executed.
    pub fn rewind(&mut self) {
        self.swallow_bytes = 0;
    }

    /// As [`Session::rewind`]; `crawl` is the crawl that the first of these commands has started.
    pub(crate) fn rewind_to(&mut self, crawl: Option<Box<CrawlCommand>>) {
        self.rewind();
        self.crawl = crawl;
    }

    /// Answers every whole command in `input`, removes them from it, and appends the replies to `out`.
    pub fn serve(
        &mut self,
        input: &mut Vec<u8>,
        context: &SessionContext<'_>,
        now: Now,
        out: &mut Vec<u8>,
    ) -> SessionState {
        let mut batch = Batch::default();
        let mut from = 0;
        let consumed = loop {
            batch.clear();
            let scan = self.scan(input, from, context, now, &mut batch);
            loop {
                match batch.execute(context, now, batch.steps_count(), usize::MAX, out) {
                    Progress::Close => return SessionState::Close,
                    Progress::Yield => {}
                    Progress::Done | Progress::Full => break,
                }
            }
            match scan {
                Scan::Full { input_at } => from = input_at,
                Scan::Finished { input_at, .. } => break input_at,
            }
        };
        input.drain(..consumed);
        SessionState::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::counters::Counters;
    use crate::session::batch::Unexecuted;
    use lookaside_store::{Options, Store};

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
                if progress == Progress::Full {
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
    fn flush_all_at_once_and_later() {
        let harness = Harness::new();
        let (replies, _) = harness
            .serve_in_pieces(b"set a 0 0 1\r\nx\r\nflush_all 10\r\nget a\r\nflush_all noreply\r\nget a\r\n", 100);
        assert_eq!(replies, "STORED\r\nOK\r\nVALUE a 0 1\r\nx\r\nEND\r\nEND\r\n");
        assert_eq!(harness.counters.snapshot().cmd_flush, 2);
    }
}
