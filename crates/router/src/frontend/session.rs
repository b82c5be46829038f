//! One client's connection: read the bytes that have arrived, route them as one batch, write all replies at once,
//! repeat. A batch whose values could be too many bytes to hold is routed in chunks (`flow_control`).
//!
//! A get and a delete both pass here. All that arrives while a batch is being routed becomes the next batch, so the
//! busier a client, the larger its batches (§3.1: many client connections become few to servers). Batches that have
//! only deletes do not wait for each other ([`deletes`]).
//!
//! | state | it waits for | buffers |
//! |---|---|---|
//! | idle | bytes from the client, or a shutdown, or the idle timeout | none: the pool has them ([`super::buffer_pool`]) |
//! | inside a command | the rest of it; if it is large, for a bounded time ([`io`]) | its own, counted if large |
//! | batch | outcomes of the tree of routes | its own |
//! | writing | the client, for a bounded time ([`io`]) | its own, counted if large |
//!
//! Invariants: replies leave in the order of the requests. The next bytes are read only after the last reply has been
//! written, unless all requests before them are deletes; so a client that sends without reading delays only itself and
//! holds a bounded amount of memory. The mutations of a batch are executed even if the client has disconnected: a
//! delete is not dropped for a broken connection.
//!
//! If clients must authenticate, [`login`] executes what they may do before, and for how long.
//!
//! On handover to another process ([`crate::handover`]) a session is suspended with its unparsed input and unsent
//! output. A batch that has begun is answered first.
//!
//! Absent on purpose: knowledge of where keys go (the tree) and of sockets ([`Stream`]).

mod batch;
mod binary;
mod deletes;
mod io;
mod leases;
mod login;
mod metaget;

pub use deletes::{DELETES_BYTES_MAX, TOTAL_DELETES_BYTES_MAX};

use super::bad_input::BAD_KEY;
use super::buffer_pool::SessionBuffers;
use super::context::SessionContext;
use super::flow_control::ValueSizeEstimator;
use super::limits::{Settings, WRITE_STALL_MAX};
use super::parse::{Accepted, LocalCommand, ParsedBatch, PendingReply, parse_batch, parse_binary_batch};
use super::reply::ReplyWriter;
use super::session_lru::SessionActivity;
use crate::admin_key::is_admin_key;
use crate::shared::HeldBytesPermit;
use crate::stats::command_class::CommandClass;
use batch::BatchInProgress;
use bytes::{Bytes, BytesMut};
use lookaside_authentication::Authentication;
use lookaside_client::Stream;
use lookaside_protocol::{Keys, Reply, binary::REQUEST_MAGIC, meta::MetaVerb, text::compose_reply};
use lookaside_routing::{Batch, Context, Outcome};
use lookaside_upgrade::{ConnectionState, SavedSession};
use std::mem;
use std::pin::{Pin, pin};
use std::task::Waker;
use tokio::sync::watch;
use tokio::time::Instant;

/// The first size of a read, in bytes; it doubles with each read that is full.
pub const READ_BYTES_MIN: usize = 2 << 10;
/// The largest read, in bytes.
pub const READ_BYTES_MAX: usize = 64 << 10;
/// Replies are written once there are this many bytes of them, even if the batch has more.
pub const WRITE_BYTES_MAX: usize = 1 << 20;
/// The capacity for replies that a session keeps between two batches, in bytes.
pub const WRITE_BYTES_KEPT: usize = 16 << 10;
/// A client that takes longer for its replies, or for a large command, than [`WRITE_STALL_MAX`] and a second for each
/// of this many bytes is disconnected, too: with a byte now and then it would hold them for ever.
pub const TRANSFER_BYTES_PER_S_MIN: usize = 64 << 10;

/// Why a session ended.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The client closed the connection, or it broke.
    Gone,
    /// The client sent `quit`, or bytes after which no command can be found.
    Closed,
    /// The client did not read its replies, or did not send a large command, in time.
    Stalled,
    /// The client sent nothing for the idle timeout.
    Idle,
    /// The client's unread replies need more than is left of what all clients may hold.
    OutputBound,
    /// The client's input needs more than is left of what all clients may hold.
    InputBound,
    /// The client has too many unread replies to be handed over to another process.
    TooSlowForHandover,
    /// The client did not log in in time.
    LoginTimedOut,
    /// The router shuts down.
    Shutdown,
}

/// A client's connection between two batches: a new one, or one that has been suspended.
pub(crate) struct ClientSession {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) connection_state: ConnectionState,
}

impl ClientSession {
    pub(crate) fn new(stream: Box<dyn Stream>) -> ClientSession {
        ClientSession { stream, connection_state: ConnectionState::default() }
    }
}

/// Whether the protocol is binary, by the number that [`ConnectionState`] has for it.
const PROTOCOLS: [Option<bool>; 3] = [None, Some(false), Some(true)];

/// Serves one client until it disconnects, or until `shutdown` turns true and the batch that has begun is answered. If
/// the router then hands its clients over, the session is returned to be served again.
pub(crate) async fn serve(
    context: &SessionContext,
    client: ClientSession,
    activity: &SessionActivity,
    mut shutdown: watch::Receiver<bool>,
) -> (SessionEnd, Option<ClientSession>) {
    let mut session = Session::new(context, client, activity, shutdown.clone());
    // One future for the whole session: it costs a read nothing unless the read has to wait.
    let mut stop = shutdown.clone();
    let mut stopped = pin!(shutdown_requested(&mut stop));
    let mut is_new = true;
    let end = loop {
        if is_shutting_down(&mut shutdown) {
            break SessionEnd::Shutdown;
        }
        // A session that is served again after a failed handover may have bytes that its TLS stream still holds.
        let stepped = match (mem::take(&mut is_new), session.login_deadline) {
            (true, _) => session.flush().await,
            (false, None) => session.step(stopped.as_mut()).await,
            (false, Some(deadline)) => session.step_before_login(deadline, stopped.as_mut()).await,
        };
        if let Err(end) = stepped {
            break end;
        }
    };
    // Otherwise the connection is closed at once.
    let is_kept = end == SessionEnd::Shutdown && context.shared.is_handing_over();
    (end, is_kept.then(|| session.suspend()))
}

/// Resolves when the shutdown begins, or when its sender is gone.
pub(crate) async fn shutdown_requested(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|&is_down| is_down).await;
}

/// Whether the shutdown has begun. Reads one word unless something has changed.
fn is_shutting_down(shutdown: &mut watch::Receiver<bool>) -> bool {
    shutdown.has_changed().map_or(true, |has_changed| has_changed && *shutdown.borrow_and_update())
}

struct Session<'a> {
    context: &'a SessionContext,
    activity: &'a SessionActivity,
    stream: Box<dyn Stream>,
    client: Context,
    input: BytesMut,
    read_bytes: usize,
    needed_bytes: usize,
    swallow_bytes: usize,
    /// Whether the protocol is binary; `None` before the first byte.
    is_binary: Option<bool>,
    authentication: Authentication,
    /// `None` if the client need not log in, has logged in, or has no deadline for it.
    login_deadline: Option<Instant>,
    /// The number of requests in the last batch. The next is likely to be as large.
    requests_last: usize,
    out: Vec<u8>,
    /// The client has sent `quit`, and has not read all of its replies.
    is_closing: bool,
    stop: watch::Receiver<bool>,
    /// The waker that a change of `stop` wakes; `None` if there is none.
    stop_waker: Option<Waker>,
    /// For `input`, if it is large.
    input_permit: Option<HeldBytesPermit>,
    /// When the large command that is half received must be whole.
    input_deadline: Option<Instant>,
    /// When the session began to wait for the rest of a command; `None` if no part of one has arrived.
    part_since: Option<Instant>,
    /// Whether `input` and `out` are from the pool, or this session's own.
    has_buffers: bool,
    value_sizes: ValueSizeEstimator,
}

impl<'a> Session<'a> {
    fn new(
        context: &'a SessionContext,
        client: ClientSession,
        activity: &'a SessionActivity,
        stop: watch::Receiver<bool>,
    ) -> Session<'a> {
        let ClientSession { stream, connection_state } = client;
        let default_protocol = context.settings.users.as_ref().and_then(|users| users.is_binary());
        let ConnectionState { session, input, input_needed_bytes, output, is_closing, .. } = connection_state;
        let authentication = Authentication::from_saved(session.authentication);
        let address = stream.peer();
        let misses = leases::misses_at_start(context, address, session.has_misses);
        let login_timeout = context.settings.login_timeout.filter(|_| !authentication.is_done());
        Session {
            context,
            activity,
            client: Context { client: address, misses, ..Context::default() },
            stream,
            input: BytesMut::from(&input[..]),
            read_bytes: READ_BYTES_MIN,
            needed_bytes: input_needed_bytes,
            swallow_bytes: session.swallow_bytes,
            is_binary: PROTOCOLS.get(usize::from(session.protocol)).copied().flatten().or(default_protocol),
            authentication,
            login_deadline: context.settings.users.as_ref().and(login_timeout).map(|timeout| Instant::now() + timeout),
            requests_last: 0,
            has_buffers: !input.is_empty() || !output.is_empty(),
            out: output,
            is_closing,
            stop,
            stop_waker: None,
            input_permit: None,
            input_deadline: None,
            part_since: None,
            value_sizes: ValueSizeEstimator::new(),
        }
    }

    fn suspend(self) -> ClientSession {
        let protocol = PROTOCOLS.iter().position(|protocol| *protocol == self.is_binary).expect("all are listed") as u8;
        let connection_state = ConnectionState {
            session: SavedSession {
                protocol,
                authentication: self.authentication.to_saved(),
                swallow_bytes: self.swallow_bytes,
                has_misses: self.may_have_misses(),
            },
            input: self.input.to_vec(),
            input_needed_bytes: self.needed_bytes,
            output: self.out,
            is_paused: false,
            is_closing: self.is_closing,
        };
        ClientSession { stream: self.stream, connection_state }
    }

    /// One round: at most one read and one batch.
    async fn step(&mut self, mut stopped: Pin<&mut impl Future<Output = ()>>) -> Result<(), SessionEnd> {
        if !self.out.is_empty() {
            // Replies of the process that handed this session over.
            self.write().await?;
            return self.end_if_closing();
        }
        if self.is_incomplete() {
            self.begin_waiting();
            let read = self.read(stopped.as_mut()).await;
            self.activity.end_waiting(self.context.uses.next());
            read?;
        }
        self.swallow();
        if self.is_incomplete() {
            return Ok(());
        }
        let is_binary = *self.is_binary.get_or_insert(self.input[0] == REQUEST_MAGIC);
        let Settings { limits, users, requests_max, .. } = &self.context.settings;
        if let Some(users) = users
            && self.needs_login(is_binary)
        {
            return Box::pin(self.log_in(users, is_binary)).await;
        }
        let unparsed_bytes = self.input.len();
        let mut parsed = match is_binary {
            true => parse_binary_batch(&mut self.input, limits, *requests_max, Accepted::All),
            false => parse_batch(&mut self.input, limits, self.requests_last, *requests_max, Accepted::All),
        };
        if self.input.len() < unparsed_bytes {
            self.input_deadline = None;
            self.part_since = None;
        }
        self.requests_last = parsed.batch.len();
        self.needed_bytes = parsed.needed_bytes;
        self.swallow_bytes = parsed.swallow_bytes;
        self.is_closing = parsed.close;
        if let Some(reason) = parsed.close_reason {
            self.context.counters.count_close(reason);
        }
        let mut batch = match parsed.has_only_deletes() {
            true => match self.route_deletes(&mut parsed, stopped).await? {
                Some(outcomes) => BatchInProgress::of_outcomes(outcomes),
                None => return self.end_if_closing(),
            },
            false => BatchInProgress::new(parsed.batch),
        };
        let mut written = self.compose_replies(parsed.replies, &mut batch, WRITE_BYTES_MAX).await;
        if written.is_ok() {
            written = self.write().await;
        }
        if written.is_err() {
            Box::pin(self.execute_mutations(batch)).await;
            return written;
        }
        self.end_if_closing()
    }

    /// Whether the input has no whole command.
    fn is_incomplete(&self) -> bool {
        self.input.is_empty() || self.input.len() < self.needed_bytes
    }

    fn end_if_closing(&self) -> Result<(), SessionEnd> {
        match self.is_closing && self.out.is_empty() {
            true => Err(SessionEnd::Closed),
            false => Ok(()),
        }
    }

    /// Routes a batch and composes its replies, in order. Writes them only once there are `write_bytes_max`.
    async fn compose_replies(
        &mut self,
        replies: Vec<PendingReply>,
        batch: &mut BatchInProgress,
        write_bytes_max: usize,
    ) -> Result<(), SessionEnd> {
        for reply in replies {
            match reply {
                PendingReply::Retrieve { keys, may_have_admin_key, class, has_bad_key } => {
                    let error_line = has_bad_key.then(|| format!("{BAD_KEY}\r\n").into_bytes());
                    self.reply_to_get(&keys, may_have_admin_key, class, error_line, batch).await?;
                }
                PendingReply::Metaget(keys) => Box::pin(self.reply_to_metaget(&keys, batch)).await?,
                PendingReply::Single { key, noreply, quiet } => {
                    let outcome = self.next_outcome_or_route(batch).await;
                    let silent = noreply || quiet.is_some_and(|verb| is_silent(verb, &outcome));
                    self.reply_writer().write_single(&key, silent, outcome);
                }
                PendingReply::RefusedStore { key, line } => {
                    let outcome = self.next_outcome_or_route(batch).await;
                    self.reply_writer().write_single(&key, true, outcome);
                    self.write_refusal(line);
                }
                PendingReply::Local(command) => self.execute_local(command).await,
                PendingReply::Bad(line) => self.write_refusal(line),
                PendingReply::Binary(reply) => self.reply_to_binary(reply, batch).await,
            }
            if self.out.len() >= write_bytes_max {
                self.write().await?;
            }
        }
        Ok(())
    }

    async fn reply_to_get(
        &mut self,
        keys: &[u8],
        may_have_admin_key: bool,
        class: CommandClass,
        mut error_line: Option<Vec<u8>>,
        batch: &mut BatchInProgress,
    ) -> Result<(), SessionEnd> {
        // Counted once for all.
        let mut hits = 0;
        for key in Keys::from_checked(keys) {
            if may_have_admin_key && is_admin_key(key) {
                let reply = self.read_admin_key(key).await;
                self.reply_writer().write_admin_item(key, &reply);
            } else {
                let outcome = match batch.outcomes.next() {
                    Some(outcome) => outcome,
                    None => self.next_outcome_or_route(batch).await,
                };
                match &outcome {
                    Ok(hit @ Reply::Value { .. }) => {
                        hits += 1;
                        compose_reply(key, hit, &mut self.out);
                    }
                    _ => {
                        let line = self.reply_writer().write_item(key, class, outcome);
                        error_line = error_line.or(line);
                    }
                }
            }
            if self.out.len() >= WRITE_BYTES_MAX {
                self.reply_writer().count_hits(class, mem::take(&mut hits));
                self.write().await?;
            }
        }
        let mut writer = self.reply_writer();
        writer.count_hits(class, hits);
        writer.end_get(error_line);
        Ok(())
    }

    async fn read_admin_key(&mut self, key: &[u8]) -> Reply<Bytes> {
        match Box::pin(self.context.admin().value(key, &self.client)).await {
            Some(value) => Reply::Value { flags: 0, cas: None, value: value.into() },
            None => Reply::Miss,
        }
    }

    async fn execute_local(&mut self, command: LocalCommand) {
        match command {
            LocalCommand::Version => {
                let line = format!("VERSION {}", self.context.settings.version);
                self.write_line(&line);
            }
            LocalCommand::Verbosity { level, noreply } => {
                self.context.set_verbosity(level);
                if !noreply {
                    self.write_line("OK");
                }
            }
            LocalCommand::MetaNoop => self.write_line("MN"),
            LocalCommand::Stats(arguments) => self.context.write_stats(&arguments, &mut self.out),
            LocalCommand::FlushAll { delay_s, noreply } => {
                self.context.counters.cmd_flush.add(1);
                let line = match self.context.flush_all(delay_s).await {
                    Ok(()) => "OK".to_owned(),
                    Err(why) => format!("SERVER_ERROR {why}"),
                };
                if !noreply {
                    self.write_line(&line);
                }
            }
        }
    }

    fn write_refusal(&mut self, line: Option<&str>) {
        self.context.counters.bad_commands.add(1);
        if let Some(line) = line {
            self.write_line(line);
        }
    }

    fn write_line(&mut self, line: &str) {
        self.out.extend_from_slice(line.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    fn reply_writer(&mut self) -> ReplyWriter<'_> {
        ReplyWriter {
            out: &mut self.out,
            counters: &self.context.counters,
            results: &self.context.results,
            miss_on_get_errors: self.context.settings.miss_on_get_errors,
            group_remote_errors: self.context.settings.group_remote_errors,
        }
    }

    fn count_batch(&self, batch: &Batch) {
        self.context.counters.batches.add(1);
        self.context.counters.batched_requests.add(batch.len() as u64);
    }
}

/// Whether the reply to a meta command with `q` is left out: it is the one that the client expects.
fn is_silent(verb: MetaVerb, outcome: &Outcome) -> bool {
    matches!(outcome, Ok(Reply::Meta(reply)) if reply.status.is_silent(verb))
}

#[cfg(test)]
mod tests;
