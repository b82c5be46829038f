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
//! | [`admin_command`], [`crawl`] | an operator's commands; listings of all keys |
//! | [`context`] | what every call gets: store, counters, limits |
//!
//! A session's state is small: its client's protocol, the progress of authentication, how many bytes of a refused value
//! are still to be swallowed, and rarely an unfinished crawl. Everything else is in the caller's buffers. The first
//! byte selects the protocol for the whole connection.

pub(crate) mod admin_command;
pub(crate) mod batch;
pub(crate) mod binary;
pub(crate) mod context;
pub(crate) mod crawl;
pub(crate) mod execute;
pub(crate) mod reply;

use admin_command::AdminCommand;
use batch::{Batch, BatchProgress};
use binary::Scanned;
use context::{Protocols, SessionContext};
use crawl::CrawlCommand;
use lookaside_authentication::ascii::{AsciiAuth, parse_login};
use lookaside_authentication::{Authentication, LoginAttempt};
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
    /// When the time for the login began, in seconds since the server's start; 0 if it is not limited.
    login_began_s: u32,
    /// The client has sent what no memcached client sends.
    is_refused: bool,
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
                    None => batch.push_command(context.store.hasher(), input_at, command),
                }
                Ok(consumed)
            }
            Parsed::Bad { line, consumed, swallow, close, key_to_delete, is_too_large } => {
                // To the parser, an operator's command is an unknown verb.
                match AdminCommand::parse(&rest[..consumed]).filter(|_| close.is_none()) {
                    Some(command) => batch.push_admin_command(input_at, command, self.crawl.take()),
                    None => {
                        match is_too_large {
                            true => batch.push_too_large(context.store.hasher(), input_at, line, key_to_delete),
                            false => batch.push_line(input_at, line, close),
                        }
                        self.swallow_bytes = swallow;
                        self.is_refused |= close.is_some();
                    }
                }
                Ok(consumed)
            }
        }
    }

    /// As [`Session::scan_text`], for a client that has not authenticated. A login is not scanned a second time, as a
    /// plain `set`: only a reply that has reached its bound makes bytes be scanned again, and the refusals for one read
    /// are far below that.
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
        match parse_login(rest, context.text_users, now.unix_ms) {
            AsciiAuth::Incomplete { needed_bytes } => Err(Scan::Finished { input_at, needed_bytes }),
            AsciiAuth::Authenticated { consumed } => {
                self.authentication = Authentication::Done;
                context.record_login(LoginAttempt::Accepted, now);
                batch.push_line(input_at, Some("STORED"), None);
                Ok(consumed)
            }
            AsciiAuth::Refused { line, consumed, attempt } => {
                if let Some(attempt) = attempt {
                    context.record_login(attempt, now);
                }
                batch.push_line(input_at, Some(line), None);
                Ok(consumed)
            }
            AsciiAuth::Quit => {
                batch.push_command(context.store.hasher(), input_at, Command::Quit);
                Ok(rest.len())
            }
            AsciiAuth::Close { reason } => {
                batch.push_line(input_at, None, Some(reason));
                self.is_refused = true;
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
                batch.push_binary(context.store.hasher(), input_at, step, key_to_delete);
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

    /// Begins the time for the login, unless the client has logged in. Returns whether it has begun.
    pub(crate) fn begin_login_time(&mut self, now_s: u32) -> bool {
        self.login_began_s = now_s;
        !self.authentication.is_done()
    }

    /// Whether the time for the login began before `before_s`, and the client has not logged in.
    pub(crate) fn is_login_overdue(&self, before_s: u32) -> bool {
        self.login_began_s < before_s && !self.authentication.is_done()
    }

    /// The state to hand over to another process; `None` in the middle of a crawl.
    pub(crate) fn handover_state(&self) -> Option<SavedSession> {
        let protocol = match self.protocol {
            None => 0,
            Some(Protocol::Text) => 1,
            Some(Protocol::Binary) => 2,
        };
        let authentication = self.authentication.to_saved();
        let saved = SavedSession { protocol, authentication, swallow_bytes: self.swallow_bytes, has_misses: false };
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
        let authentication = Authentication::from_saved(saved.authentication);
        let swallow_bytes = saved.swallow_bytes;
        Some(Session { swallow_bytes, protocol, authentication, ..Session::with_protocols(listener_protocols) })
    }

    /// Why the connection is closed after its last reply, in memcached's words.
    pub(crate) fn close_reason(&self) -> &'static str {
        if self.is_refused { "error" } else { "normal" }
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
                    BatchProgress::Close => return SessionState::Close,
                    BatchProgress::Yield => {}
                    BatchProgress::Done | BatchProgress::Full => break,
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
mod tests;
