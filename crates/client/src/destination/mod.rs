//! A leaf of the routing tree that is a server: one connection, shared by all who ask it something. Serves every path.
//!
//! The handle that callers hold only queues batches; a task of its own per destination owns the connection, writes
//! all that has queued up at once, and matches the answers (see `pipeline`). So thousands of client connections are
//! coalesced into one per server (§3.1 of the paper), and the busier a server is, the larger are the writes it gets.
//!
//! Invariants:
//! * Every batch gets exactly one outcome a request, and within `connect_timeout_ms + server_timeout_ms`.
//! * Nothing is sent twice. A set or delete whose connection ended after it was written is `ConnectionLost`: what
//!   became of it is unknown, and who asked must decide.
//! * At most `outstanding_requests_max` requests are queued or sent and not answered.
//!
//! Values are slices of the block they were read in: nothing is copied, but a value that is kept keeps its block of
//! [`crate::READ_BYTES`] (or the size of the largest value in it) in memory. Who keeps values for long copies them.

mod connection;
mod driver;
mod meta_translation;
mod pipeline;
mod reresolve;

pub use connection::READ_BYTES;

use crate::{Network, TkoTrackers, tko::TkoTracker};
use driver::Driver;
use lookaside_routing::{Address, Batch, BoxFuture, Destination, Failure, HealthSettings, Outcomes, Protocol, Verb};
use pipeline::Job;
use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Settings of a [`TcpDestination`].
#[derive(Clone, Debug)]
pub struct DestinationOptions {
    /// How long a batch may wait for its replies once there is a connection, in milliseconds. Default 1,000. Too
    /// short, and a busy server is taken out; too long, and a dead one holds its callers up.
    pub server_timeout_ms: u64,
    /// How long connecting may take, in milliseconds. Default `None`: as `server_timeout_ms`.
    pub connect_timeout_ms: Option<u64>,
    /// Requests that may be queued or sent and not answered; one more is [`Failure::Busy`]. Default 100,000. A batch
    /// larger than this is always refused.
    pub outstanding_requests_max: usize,
    /// Requests that timed out and are kept in step for; one more ends the connection. Default 10,000.
    pub late_requests_max: usize,
    /// The largest value that is taken from the server, in bytes. Default 128 MiB. A larger one is malformed.
    pub value_bytes_max: usize,
    /// In which words the server is asked. Default text: a run of gets is one line there, so it costs less.
    pub protocol: Protocol,
    /// When the server is taken out, and how it is probed.
    pub health: HealthSettings,
    /// Where destinations at one address tell each other that the server is taken out or back. Default `None`: this
    /// one keeps it to itself.
    pub tko_trackers: Option<Arc<TkoTrackers>>,
    /// Whether to connect before the first batch, and again after a connection has ended, and so to find out about a dead
    /// server before anybody waits for it. Default false: nothing is connected that is not used.
    pub connect_eagerly: bool,
    /// How often a server that is known by a name is looked up while it is connected to, in milliseconds, give or take a
    /// quarter. Default 30,000; `None`: only when a connection is made. Too long, and a server that has moved is used
    /// where it was.
    pub resolve_interval_ms: Option<u64>,
    /// What the jitter of probes is drawn from. Default 0.
    pub seed: u64,
}

impl Default for DestinationOptions {
    fn default() -> Self {
        DestinationOptions {
            server_timeout_ms: 1_000,
            connect_timeout_ms: None,
            outstanding_requests_max: 100_000,
            late_requests_max: 10_000,
            value_bytes_max: 128 << 20,
            protocol: Protocol::Text,
            health: HealthSettings::default(),
            tko_trackers: None,
            connect_eagerly: false,
            resolve_interval_ms: Some(30_000),
            seed: 0,
        }
    }
}

/// What has happened at a destination since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DestinationStatistics {
    /// Requests that were handed in and not refused.
    pub requests: u64,
    /// Requests refused because too many were outstanding.
    pub busy: u64,
    /// Requests refused because the server was taken out, or fenced off.
    pub refused_taken_out: u64,
    /// Requests queued or sent and not answered, now.
    pub outstanding: u64,
    /// Writes to the connection: `requests / writes` says how well batching works.
    pub writes: u64,
    /// Batches that were answered in time.
    pub answered_batches: u64,
    /// Batches that timed out.
    pub timed_out_batches: u64,
    /// Batches whose answer came after they had timed out.
    pub late_answers: u64,
    /// Connections made.
    pub connects: u64,
    /// Connections that could not be made.
    pub connect_failures: u64,
    /// Connections that ended with requests outstanding.
    pub connections_lost: u64,
    /// Connections ended because of an answer that made no sense.
    pub malformed: u64,
    /// Probes sent.
    pub probes: u64,
    /// How often this destination found that the server must be taken out.
    pub taken_out: u64,
    /// How often it followed the server's name to another address.
    pub relocations: u64,
}

/// A server reached over a [`Network`]. Dropping it ends its task and its connection.
pub struct TcpDestination {
    address: Address,
    queue: mpsc::UnboundedSender<Job>,
    shared: Arc<Shared>,
    outstanding_requests_max: usize,
}

/// What a destination's handle and its task both see.
#[derive(Debug)]
pub(crate) struct Shared {
    outstanding: AtomicUsize,
    /// Whether the first attempt to connect is over, or there is to be none before it is needed.
    pub(crate) is_settled: watch::Sender<bool>,
    pub(crate) standing: Arc<TkoTracker>,
    pub(crate) counters: Counters,
}

/// One field for each of [`DestinationStatistics`] that is counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) busy: AtomicU64,
    pub(crate) refused_taken_out: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) answered_batches: AtomicU64,
    pub(crate) timed_out_batches: AtomicU64,
    pub(crate) late_answers: AtomicU64,
    pub(crate) connects: AtomicU64,
    pub(crate) connect_failures: AtomicU64,
    pub(crate) connections_lost: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) probes: AtomicU64,
    pub(crate) taken_out: AtomicU64,
    pub(crate) moves: AtomicU64,
}

/// Room among the outstanding requests; given back when dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    shared: Arc<Shared>,
    requests: usize,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.shared.outstanding.fetch_sub(self.requests, Ordering::Relaxed);
    }
}

impl TcpDestination {
    /// A destination at `address`. Nothing is connected before the first batch, unless it `connect_eagerly`. Must be called
    /// inside a tokio runtime, on which its task then runs.
    pub fn new(address: Address, network: Arc<dyn Network>, options: DestinationOptions) -> TcpDestination {
        let (queue, jobs) = mpsc::unbounded_channel();
        let standing =
            options.tko_trackers.as_ref().map_or_else(Arc::default, |tko_trackers| tko_trackers.of(&address));
        let is_settled = watch::Sender::new(!options.connect_eagerly);
        let shared = Shared { outstanding: AtomicUsize::new(0), is_settled, standing, counters: Counters::default() };
        let shared = Arc::new(shared);
        let outstanding_requests_max = options.outstanding_requests_max;
        let driver = Driver::new(address.clone(), network, options, jobs, shared.clone());
        tokio::spawn(driver.run());
        TcpDestination { address, queue, shared, outstanding_requests_max }
    }

    /// Resolves when the first attempt to connect is over, if there is one before the first batch: within
    /// `connect_timeout_ms`, or at once if the server is known to be out.
    pub async fn ready(&self) {
        // The sender lives as long as this handle.
        let _ = self.shared.is_settled.subscribe().wait_for(|is_settled| *is_settled).await;
    }

    /// Whether the server is taken out (TKO) at this moment.
    pub fn is_tko(&self) -> bool {
        self.shared.standing.is_out()
    }

    /// Whether it is taken out because a connection could not be made (hard TKO), not because replies were late.
    pub fn is_taken_out_hard(&self) -> bool {
        self.shared.standing.is_out_hard()
    }

    /// Whether the server owes deletes and is not read for it (see [`crate::Fence`]).
    pub fn is_fenced(&self) -> bool {
        self.shared.standing.is_fenced()
    }

    /// How long the server has not been read for what it owes; nothing if it is read.
    pub fn fenced_for(&self) -> Duration {
        self.shared.standing.fenced_for()
    }

    /// What has happened so far.
    pub fn statistics(&self) -> DestinationStatistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.shared.counters;
        DestinationStatistics {
            requests: read(&counters.requests),
            busy: read(&counters.busy),
            refused_taken_out: read(&counters.refused_taken_out),
            outstanding: self.shared.outstanding.load(Ordering::Relaxed) as u64,
            writes: read(&counters.writes),
            answered_batches: read(&counters.answered_batches),
            timed_out_batches: read(&counters.timed_out_batches),
            late_answers: read(&counters.late_answers),
            connects: read(&counters.connects),
            connect_failures: read(&counters.connect_failures),
            connections_lost: read(&counters.connections_lost),
            malformed: read(&counters.malformed),
            probes: read(&counters.probes),
            taken_out: read(&counters.taken_out),
            relocations: read(&counters.moves),
        }
    }

    /// Queues a batch, or says why not.
    fn queue(&self, batch: Batch) -> Result<oneshot::Receiver<Outcomes>, Failure> {
        let requests = batch.len();
        let counters = &self.shared.counters;
        if self.is_tko() || (self.is_fenced() && !only_deletes(&batch)) {
            count(&counters.refused_taken_out, requests as u64);
            return Err(Failure::Tko);
        }
        let before = self.shared.outstanding.fetch_add(requests, Ordering::Relaxed);
        let ticket = Ticket { shared: self.shared.clone(), requests };
        if before + requests > self.outstanding_requests_max {
            count(&counters.busy, requests as u64);
            return Err(Failure::Busy);
        }
        count(&counters.requests, requests as u64);
        let (reply, outcomes) = oneshot::channel();
        // The task ends before this handle only when its runtime does.
        self.queue.send(Job { batch, reply, ticket }).map_err(|_| Failure::ConnectFailed)?;
        Ok(outcomes)
    }
}

/// Whether a batch does nothing but delete: that never hurts a server that owes deletes.
fn only_deletes(batch: &Batch) -> bool {
    batch.iter().all(|request| Verb::of(&request.operation) == Verb::Delete)
}

/// Adds to a counter. Relaxed: counters order nothing.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Destination for TcpDestination {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        Box::pin(async move {
            let requests = batch.len();
            if requests == 0 {
                return Vec::new();
            }
            match self.queue(batch) {
                Ok(outcomes) => outcomes.await.unwrap_or_else(|_| vec![Err(Failure::ConnectionLost); requests]),
                Err(failure) => vec![Err(failure); requests],
            }
        })
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

impl std::fmt::Debug for TcpDestination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpDestination").field("address", &self.address).finish_non_exhaustive()
    }
}
