//! One client's connection: read what is there, route it as one batch, write all replies at once, and again. A batch
//! whose replies might be too many bytes to hold goes out in portions (see `budget`).
//!
//! A get and a delete both pass here. All that arrives while a batch is on its way becomes the next batch, so the
//! busier a client, the larger its batches (§3.1: many connections of clients become few to servers).
//!
//! Invariants: replies leave in the order of the requests. The next bytes are read only when the last reply has been
//! written, so a client that asks without reading stalls nobody but itself and holds a bounded amount of memory. What
//! a batch changes is carried out even if its client has gone meanwhile: a delete is not dropped for a broken
//! connection. A session that waits for its client has no buffers ([`crate::frontend::buffer_pool`]).
//!
//! A client whose router leaves it to another process ([`crate::upgrade`]) is parked: with what it has sent and what of its
//! replies it has not taken. A batch that was begun is answered first.
//!
//! Absent on purpose: knowledge of where keys go (the tree) and of sockets ([`Stream`]).

mod binary;

use crate::Router;
use crate::frontend::buffer_pool::Room;
use crate::frontend::flow_control::{Budget, COUNTED_BYTES_MIN, brings_value, value_bytes};
use crate::frontend::parse::{Asked, Intake, Local, Tallied, is_admin, take_batch, take_binary_batch};
use crate::frontend::reply::Answers;
use crate::proxy::{is_told, told};
use crate::shared::{Fleet, Held};
use crate::stats::counters::Tally;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::FutureExt;
use lookaside_client::Stream;
use lookaside_protocol::{Keys, Operation, Reply, Request, binary::REQUEST_MAGIC, meta::MetaVerb};
use lookaside_routing::{Batch, Context, Outcome, Outcomes};
use lookaside_upgrade::{CONNECTION_STATE_BYTES_MAX, ConnectionState, SavedSession};
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{self, Poll};
use std::time::Duration;
use std::vec;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

/// The room for a read on a quiet connection; it doubles with each read that fills it.
pub const READ_BYTES_MIN: usize = 2 << 10;
/// The room for a read on a busy connection.
pub const READ_BYTES_MAX: usize = 64 << 10;
/// Replies are written once so many bytes have gathered, even if the batch has more.
pub const WRITE_BYTES_MAX: usize = 1 << 20;
/// The memory for replies that is kept from one batch to the next.
pub const WRITE_BYTES_KEPT: usize = 16 << 10;
/// A client that takes no byte of its replies for so long is gone.
pub const WRITE_STALL_MAX: Duration = Duration::from_secs(60);

/// Why a session ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The client closed the connection, or it broke.
    Gone,
    /// The client said `quit`, or sent what nothing sensible can follow.
    Closed,
    /// The client took no reply for [`WRITE_STALL_MAX`].
    Stalled,
    /// The router leaves its clients to another process, and this one has too many replies to read still.
    Behind,
    /// The router shuts down.
    Shutdown,
}

/// A client between two batches.
pub(crate) struct Parked {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) connection_state: ConnectionState,
}

impl Parked {
    /// A client that has said nothing yet.
    pub(crate) fn new(stream: Box<dyn Stream>) -> Parked {
        Parked { stream, connection_state: ConnectionState::default() }
    }
}

/// The dialects as [`ConnectionState`] has them.
const DIALECTS: [Option<bool>; 3] = [None, Some(false), Some(true)];

/// Serves one client until it leaves, or until `shutdown` turns true and the batch in hand is answered; then, if the router leaves
/// its clients to another process, it is there to be served again.
pub(crate) async fn go_on(
    router: &Router,
    parked: Parked,
    mut shutdown: watch::Receiver<bool>,
) -> (End, Option<Parked>) {
    let mut session = Session::of(router, parked, shutdown.clone());
    // One future for the whole session: it costs a read nothing unless the read has to wait.
    let mut stop = shutdown.clone();
    let mut stopped = pin!(told(&mut stop));
    let mut is_new = true;
    let end = loop {
        if is_told(&mut shutdown) {
            break End::Shutdown;
        }
        // The first time that may be what a stream with TLS holds since another process was to serve its client, and did not.
        let turned = match std::mem::take(&mut is_new) {
            true => session.flush().await,
            false => session.turn(stopped.as_mut()).await,
        };
        if let Err(end) = turned {
            break end;
        }
    };
    session.count();
    // Else its connection ends now, whatever the others have to wait for.
    let parked = (end == End::Shutdown && router.fleet().is_leaving()).then(|| session.park());
    (end, parked)
}

struct Session<'a> {
    router: &'a Router,
    stream: Box<dyn Stream>,
    context: Context,
    buffer: BytesMut,
    read_bytes: usize,
    needed_bytes: usize,
    swallow_bytes: usize,
    /// Which dialect the first byte has decided on.
    is_binary: Option<bool>,
    /// How many the last batch had: a client asks as it asked before.
    requests_last: usize,
    out: Vec<u8>,
    /// The client has said `quit`, and has not taken all of its replies.
    is_closing: bool,
    stop: watch::Receiver<bool>,
    /// Whether these are of this session's room.
    has_room: bool,
    budget: Budget,
    tally: Tally,
}

/// A batch on its way.
struct Work {
    /// What is not routed yet.
    rest: vec::IntoIter<Request<Bytes>>,
    /// What came of the last portion, and is not written yet.
    outcomes: vec::IntoIter<Outcome>,
    held: Option<Held>,
}

impl Work {
    fn new(batch: Batch) -> Work {
        Work { rest: batch.into_iter(), outcomes: Outcomes::new().into_iter(), held: None }
    }
}

impl<'a> Session<'a> {
    fn of(router: &'a Router, Parked { stream, connection_state }: Parked, stop: watch::Receiver<bool>) -> Session<'a> {
        let ConnectionState { session, input, input_needed_bytes, output, is_closing, .. } = connection_state;
        Session {
            router,
            context: Context { client: stream.peer() },
            stream,
            buffer: BytesMut::from(&input[..]),
            read_bytes: READ_BYTES_MIN,
            needed_bytes: input_needed_bytes,
            swallow_bytes: session.swallow_bytes,
            is_binary: DIALECTS.get(usize::from(session.dialect)).copied().flatten(),
            requests_last: 0,
            // What it brings is its room; who brings nothing is lent one.
            has_room: !input.is_empty() || !output.is_empty(),
            out: output,
            is_closing,
            stop,
            budget: Budget::new(),
            tally: Tally::default(),
        }
    }

    fn park(self) -> Parked {
        let dialect = DIALECTS.iter().position(|dialect| *dialect == self.is_binary).expect("all are there") as u8;
        let connection_state = ConnectionState {
            session: SavedSession { dialect, authentication: 0, swallow_bytes: self.swallow_bytes },
            input: self.buffer.to_vec(),
            input_needed_bytes: self.needed_bytes,
            output: self.out,
            is_paused: false,
            is_closing: self.is_closing,
        };
        Parked { stream: self.stream, connection_state }
    }

    /// One round: at most one read and one batch.
    async fn turn(&mut self, stopped: Pin<&mut impl Future<Output = ()>>) -> Result<(), End> {
        if !self.out.is_empty() {
            // From the process before this one.
            self.write().await?;
            return self.end_if_closing();
        }
        if self.buffer.is_empty() || self.buffer.len() < self.needed_bytes {
            self.read(stopped).await?;
        }
        self.swallow();
        if self.buffer.is_empty() || self.buffer.len() < self.needed_bytes {
            return Ok(());
        }
        let limits = &self.router.settings().limits;
        let intake = match *self.is_binary.get_or_insert(self.buffer[0] == REQUEST_MAGIC) {
            true => take_binary_batch(&mut self.buffer, limits),
            false => take_batch(&mut self.buffer, limits, self.requests_last),
        };
        self.requests_last = intake.batch.len();
        self.needed_bytes = intake.needed_bytes;
        self.swallow_bytes = intake.swallow_bytes;
        self.is_closing = intake.close;
        self.answer(intake).await?;
        self.count();
        self.end_if_closing()
    }

    fn end_if_closing(&self) -> Result<(), End> {
        match self.is_closing && self.out.is_empty() {
            true => Err(End::Closed),
            false => Ok(()),
        }
    }

    async fn read(&mut self, stopped: Pin<&mut impl Future<Output = ()>>) -> Result<(), End> {
        let read = tokio::select! {
            biased;
            read = poll_fn(|waiter| self.poll_read(waiter)) => read,
            () = stopped => return Err(End::Shutdown),
        };
        let bytes = match read {
            Ok(0) | Err(_) => return Err(End::Gone),
            Ok(bytes) => bytes,
        };
        self.tally.bytes_read += bytes as u64;
        if bytes == self.read_bytes {
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        } else if bytes < self.read_bytes / 4 {
            self.read_bytes = (self.read_bytes / 2).max(READ_BYTES_MIN);
        }
        Ok(())
    }

    /// Reads what is there. Who has to wait for it holds no room meanwhile, neither for it nor for replies.
    fn poll_read(&mut self, waiter: &mut task::Context<'_>) -> Poll<io::Result<usize>> {
        if !self.has_room {
            Room { input: self.buffer, out: self.out } = self.router.rooms().take();
            self.has_room = true;
        }
        self.buffer.reserve(self.read_bytes);
        let mut room = (&mut self.buffer).limit(self.read_bytes);
        let read = pin!(self.stream.read_buf(&mut room)).poll(waiter);
        if read.is_pending() && self.buffer.is_empty() && self.out.is_empty() {
            let room = Room { input: std::mem::take(&mut self.buffer), out: std::mem::take(&mut self.out) };
            self.router.rooms().give_back(room);
            self.has_room = false;
        }
        read
    }

    /// Drops what belongs to a data block that was refused.
    fn swallow(&mut self) {
        let dropped_bytes = self.swallow_bytes.min(self.buffer.len());
        self.buffer.advance(dropped_bytes);
        self.swallow_bytes -= dropped_bytes;
    }

    async fn answer(&mut self, intake: Intake) -> Result<(), End> {
        let mut work = Work::new(intake.batch);
        let answered = self.answer_all(intake.asked, &mut work).await;
        if answered.is_err() {
            self.carry_out(work).await;
        }
        answered
    }

    async fn answer_all(&mut self, asked: Vec<Asked>, work: &mut Work) -> Result<(), End> {
        for asked in asked {
            match asked {
                Asked::Retrieve { keys, tallied } => self.retrieved(&keys, tallied, work).await?,
                Asked::Single { key, noreply, quiet } => {
                    let outcome = self.outcome(work).await;
                    let silent = noreply || quiet.is_some_and(|verb| is_expected(verb, &outcome));
                    self.answers().single(&key, silent, outcome);
                }
                Asked::Outdated { key, line } => {
                    let outcome = self.outcome(work).await;
                    self.answers().single(&key, true, outcome);
                    self.refuse(line);
                }
                Asked::Local(local) => self.local(local).await,
                Asked::Bad(line) => self.refuse(line),
                Asked::Binary(asked) => self.binary(asked, work).await,
            }
            if self.is_large() {
                self.write().await?;
            }
        }
        self.write().await
    }

    /// Answers a get verb.
    async fn retrieved(&mut self, keys: &[u8], tallied: Tallied, work: &mut Work) -> Result<(), End> {
        let mut error_line = None;
        for key in Keys::checked(keys).expect("they were parsed as keys") {
            let outcome = match is_admin(key) {
                true => Ok(self.admin_reply(key).await),
                false => match work.outcomes.next() {
                    Some(outcome) => outcome,
                    None => self.outcome(work).await,
                },
            };
            let line = self.answers().item(key, tallied, outcome);
            error_line = error_line.or(line);
            if self.is_large() {
                self.write().await?;
            }
        }
        self.answers().end(error_line);
        Ok(())
    }

    async fn admin_reply(&mut self, key: &[u8]) -> Reply<Bytes> {
        match self.router.admin_value(key, &self.context).await {
            Some(value) => Reply::Value { flags: 0, cas: None, value: value.into() },
            None => Reply::Miss,
        }
    }

    /// What came of the next request of a batch.
    async fn outcome(&mut self, work: &mut Work) -> Outcome {
        if let Some(outcome) = work.outcomes.next() {
            return outcome;
        }
        work.held = None;
        self.route_portion(work).await;
        work.outcomes.next().expect("a batch has a request for each that was asked")
    }

    /// Routes as much of a batch as this session may hold the values of.
    async fn route_portion(&mut self, work: &mut Work) {
        let fleet = self.router.fleet();
        let portion = self.budget.take_portion(&mut work.rest, fleet.reply_bytes());
        let requests = portion.len();
        let values = portion.iter().filter(|request| brings_value(&request.operation)).count();
        self.tally.batches += 1;
        self.tally.batched_requests += requests as u64;
        let tree = self.router.tree();
        let outcomes = tree.route().route(portion, &self.context).await;
        assert_eq!(outcomes.len(), requests, "a route gives exactly one outcome a request");
        let bytes = outcomes.iter().map(value_bytes).sum();
        self.budget.learn(values, bytes);
        work.held = (bytes >= COUNTED_BYTES_MIN).then(|| fleet.hold(bytes));
        work.outcomes = outcomes.into_iter();
    }

    /// Carries out what a batch changes, when nobody is left to be answered.
    async fn carry_out(&mut self, work: Work) {
        let changes = |request: &Request<_>| !matches!(request.operation, Operation::Get { .. } | Operation::LeaseGet);
        let mut changes = Work::new(work.rest.filter(changes).collect());
        drop((work.outcomes, work.held));
        while !changes.rest.as_slice().is_empty() {
            changes.held = None;
            self.route_portion(&mut changes).await;
        }
    }

    async fn local(&mut self, local: Local) {
        match local {
            Local::Version => {
                let line = format!("VERSION {}", self.router.settings().version);
                self.line(&line);
            }
            Local::Verbosity { level, noreply } => {
                self.router.set_verbosity(level);
                if !noreply {
                    self.line("OK");
                }
            }
            Local::MetaNoop => self.line("MN"),
            Local::Stats(arguments) => self.router.write_stats(&arguments, &mut self.out),
            Local::FlushAll { delay_s, noreply } => {
                self.tally.cmd_flush += 1;
                let line = match self.router.flush_all(delay_s).await {
                    Ok(()) => "OK".to_owned(),
                    Err(why) => format!("SERVER_ERROR {why}"),
                };
                if !noreply {
                    self.line(&line);
                }
            }
        }
    }

    fn refuse(&mut self, line: Option<&str>) {
        self.tally.bad_commands += 1;
        if let Some(line) = line {
            self.line(line);
        }
    }

    fn line(&mut self, line: &str) {
        self.out.extend_from_slice(line.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    fn answers(&mut self) -> Answers<'_> {
        Answers {
            out: &mut self.out,
            tally: &mut self.tally,
            results: self.router.results(),
            miss_on_get_errors: self.router.settings().miss_on_get_errors,
        }
    }

    /// Whether so many replies have gathered that they must be written now.
    fn is_large(&self) -> bool {
        self.out.len() >= WRITE_BYTES_MAX
    }

    /// Writes all replies; or, while this process leaves its clients to another, as many as the client takes at once.
    async fn write(&mut self) -> Result<(), End> {
        let mut written_bytes = 0;
        while written_bytes < self.out.len() {
            let rest = &self.out[written_bytes..];
            // Most writes find room at once; only one that has to wait gets a timer.
            let written = match self.stream.write(rest).now_or_never() {
                Some(written) => Ok(written),
                None => tokio::select! {
                    biased;
                    written = tokio::time::timeout(WRITE_STALL_MAX, self.stream.write(rest)) => written,
                    () = left(self.stop.clone(), self.router.fleet()) => match rest.len() <= CONNECTION_STATE_BYTES_MAX {
                        true => break,
                        false => return Err(End::Behind),
                    },
                },
            };
            let written = match written {
                Err(_) => {
                    self.tally.stalled_connections += 1;
                    return Err(End::Stalled);
                }
                Ok(Ok(0) | Err(_)) => return Err(End::Gone),
                Ok(Ok(written)) => written,
            };
            self.tally.bytes_written += written as u64;
            written_bytes += written;
        }
        self.out.drain(..written_bytes);
        self.out.shrink_to(WRITE_BYTES_KEPT);
        self.flush().await
    }

    /// A stream with TLS may hold what it has taken; a plain one never does, and is asked without a look at the clock.
    async fn flush(&mut self) -> Result<(), End> {
        let flushed = match self.stream.flush().now_or_never() {
            Some(flushed) => Ok(flushed),
            None => tokio::select! {
                biased;
                flushed = tokio::time::timeout(WRITE_STALL_MAX, self.stream.flush()) => flushed,
                // What it holds goes out when its client hears farewell.
                () = left(self.stop.clone(), self.router.fleet()) => return Ok(()),
            },
        };
        match flushed {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Gone),
            Err(_) => {
                self.tally.stalled_connections += 1;
                Err(End::Stalled)
            }
        }
    }

    fn count(&mut self) {
        self.router.counters().add(&std::mem::take(&mut self.tally));
    }
}

/// Resolves when this process leaves its clients to another.
async fn left(mut stop: watch::Receiver<bool>, fleet: &Fleet) {
    told(&mut stop).await;
    if !fleet.is_leaving() {
        std::future::pending().await
    }
}

/// Whether a meta command with `q` is not told this: what a client that asks so takes for granted.
fn is_expected(verb: MetaVerb, outcome: &Outcome) -> bool {
    matches!(outcome, Ok(Reply::Meta(reply)) if reply.status.is_silent(verb))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Identity, Settings, Tree};
    use lookaside_routing::{BoxFuture, Route};
    use std::net::IpAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};

    struct Nowhere;

    impl Route for Nowhere {
        fn route<'a>(&'a self, _: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
            Box::pin(async { Outcomes::new() })
        }
    }

    /// Holds what it has taken, as TLS may, while its client takes nothing.
    struct Holding {
        inner: DuplexStream,
        held: Vec<u8>,
        may_go: Arc<AtomicBool>,
    }

    impl AsyncRead for Holding {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut task::Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_read(cx, buf)
        }
    }

    impl AsyncWrite for Holding {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut task::Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.held.extend_from_slice(bytes);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<io::Result<()>> {
            if !self.held.is_empty() && !self.may_go.load(Ordering::Relaxed) {
                return Poll::Pending;
            }
            let held = std::mem::take(&mut self.held);
            let _ = Pin::new(&mut self.inner).poll_write(cx, &held)?;
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl Stream for Holding {
        fn peer(&self) -> Option<IpAddr> {
            None
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_stream_held_goes_out_when_no_other_process_took_over() {
        let fleet = Fleet::new(Identity { pid: 7, started_unix_s: 1 }, "a test");
        let router = Router::new(Settings::default(), fleet.clone(), Tree::of(Arc::new(Nowhere)));
        let (mut client, inner) = duplex(1_000);
        let may_go = Arc::new(AtomicBool::new(false));
        let stream = Holding { inner, held: Vec::new(), may_go: may_go.clone() };
        let (shut, shutdown) = watch::channel(false);
        client.write_all(b"version\r\n").await.unwrap();
        let leave = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            fleet.leave(true);
            shut.send_replace(true);
        };
        let parked = Parked::new(Box::new(stream));
        let ((end, parked), ()) = tokio::join!(go_on(&router, parked, shutdown.clone()), leave);
        assert_eq!(end, End::Shutdown);
        fleet.leave(false);
        shut.send_replace(false);
        may_go.store(true, Ordering::Relaxed);
        let mut reply = [0; 7];
        let read = tokio::time::timeout(WRITE_STALL_MAX, client.read_exact(&mut reply));
        tokio::select! {
            biased;
            (end, _) = go_on(&router, parked.expect("it is to be served again"), shutdown) => panic!("{end:?}"),
            read = read => read.expect("the reply does not wait for the next request").map(drop).unwrap(),
        }
        assert_eq!(&reply, b"VERSION");
    }
}
