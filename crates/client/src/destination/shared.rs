//! State shared by a destination's handle and its task: TKO, counters, and the number of outstanding requests.

use super::results::{ResultCounters, ResultCounts};
use crate::tko::TkoTracker;
use lookaside_routing::{Address, Failure};
use lookaside_sync::{MovingAverage, SharedCounter, counters};
use std::sync::{
    Arc,
    atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed},
};
use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct DestinationShared {
    outstanding: AtomicUsize,
    /// Requests written and not answered, as of the last read or write.
    pub(super) in_flight: AtomicUsize,
    connection: AtomicU8,
    /// Failures since the last reply: timeouts, connections that could not be made, and requests that failed with them.
    failures_in_a_row: AtomicU32,
    pub(super) latency_us: MovingAverage,
    pub(super) results: ResultCounters,
    /// Where the results are added when the destination is dropped; `None`: nowhere.
    retired: Option<Arc<RetiredCounts>>,
    /// The name that failures have ([`Failure::OfServer`]); `None`: they have none.
    name: Option<Address>,
    /// Whether the first attempt to connect is over, or none is made before the first batch.
    pub(super) is_ready: watch::Sender<bool>,
    pub(super) tracker: Arc<TkoTracker>,
    pub(super) counters: DestinationCounters,
}

/// The state of a destination's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// No connection has been tried yet.
    New,
    /// There is one.
    Up,
    /// The last one has ended, and the next request makes another.
    Closed,
    /// The server is TKO, or the last attempt to connect has failed.
    Down,
}

impl ConnectionState {
    /// All, in the order of their numbers.
    pub const ALL: [ConnectionState; 4] =
        [ConnectionState::New, ConnectionState::Up, ConnectionState::Closed, ConnectionState::Down];

    /// mcrouter's name.
    pub fn name(self) -> &'static str {
        match self {
            ConnectionState::New => "new",
            ConnectionState::Up => "up",
            ConnectionState::Closed => "closed",
            ConnectionState::Down => "down",
        }
    }
}

/// What destinations that exist no more have counted.
#[derive(Debug, Default)]
pub struct RetiredCounts {
    /// Their results.
    pub results: ResultCounters,
    /// The connections that they made.
    pub connects: SharedCounter,
    /// Those of them that have ended: all.
    pub disconnects: SharedCounter,
}

/// What mcrouter reports of a destination.
#[derive(Clone, Copy, Debug)]
pub struct DestinationReport {
    /// The state of its connection.
    pub connection: ConnectionState,
    /// Failures since the last reply.
    pub failures_in_a_row: u32,
    /// Requests that wait to be written.
    pub pending: u64,
    /// Requests written and not answered.
    pub in_flight: u64,
    /// The average time from a batch's arrival at the connection to its last reply, of some of the last batches.
    pub latency_us: f64,
    /// Its results.
    pub results: ResultCounts,
}

counters! {
    /// `outstanding` is not counted here.
    pub(super) struct DestinationCounters(SharedCounter);

    /// Events at a destination since it was made. `outstanding` is a present value.
    pub struct DestinationStatistics;

    /// Requests that were sent to the destination and not refused.
    requests,
    /// Requests refused because too many were outstanding.
    busy,
    /// Requests refused because the server was TKO or fenced.
    refused_tko,
    /// Requests queued or sent and not answered.
    outstanding,
    /// Writes to the connection: `requests / writes` tells how well batching works.
    writes,
    /// Batches that were answered in time.
    answered_batches,
    /// Batches that timed out.
    timed_out_batches,
    /// Batches whose replies came after they had timed out.
    late_batches,
    /// Connections that were made and have ended. Read before those that were made, so that it is never above them.
    disconnects,
    /// Connections made.
    connects,
    /// Connections that could not be made.
    connect_failures,
    /// Connections that ended with requests outstanding.
    connections_lost,
    /// Connections ended because of a malformed reply.
    malformed,
    /// Probes sent.
    probes,
    /// How often this destination marked the server TKO.
    tko_marks,
    /// How often it followed the server's name to another address.
    relocations,
}

impl DestinationShared {
    pub(super) fn new(
        tracker: Arc<TkoTracker>,
        is_ready: bool,
        retired: Option<Arc<RetiredCounts>>,
        name: Option<Address>,
    ) -> Arc<DestinationShared> {
        Arc::new(DestinationShared {
            outstanding: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            connection: AtomicU8::new(ConnectionState::New as u8),
            failures_in_a_row: AtomicU32::new(0),
            latency_us: MovingAverage::default(),
            results: ResultCounters::default(),
            retired,
            name,
            is_ready: watch::Sender::new(is_ready),
            tracker,
            counters: DestinationCounters::default(),
        })
    }

    /// A permit for `requests`, and the number of requests that were outstanding before it.
    pub(super) fn acquire(self: &Arc<Self>, requests: usize) -> (Permit, usize) {
        let before = self.outstanding.fetch_add(requests, Relaxed);
        (Permit { shared: self.clone(), requests }, before)
    }

    pub(super) fn set_connection(&self, state: ConnectionState) {
        self.connection.store(state as u8, Relaxed);
    }

    /// The failure as its caller gets it.
    pub(super) fn name_failure(&self, failure: Failure) -> Failure {
        match &self.name {
            Some(server) => Failure::OfServer { server: server.clone(), failure: Box::new(failure) },
            None => failure,
        }
    }

    /// Counts requests that have failed, and a failure in a row for each that the server is to blame for.
    pub(super) fn count_failure(&self, failure: &Failure, requests: usize) {
        self.results.count_failure(failure, requests);
        if !matches!(failure, Failure::Tko(_) | Failure::Busy | Failure::TooManyPending { .. }) {
            self.add_failures_in_a_row(requests);
        }
    }

    pub(super) fn add_failures_in_a_row(&self, failures: usize) {
        self.failures_in_a_row.fetch_add(u32::try_from(failures).unwrap_or(u32::MAX), Relaxed);
    }

    /// A reply has come.
    pub(super) fn end_failures_in_a_row(&self) {
        if self.failures_in_a_row.load(Relaxed) != 0 {
            self.failures_in_a_row.store(0, Relaxed);
        }
    }

    pub(super) fn report(&self) -> DestinationReport {
        let state = ConnectionState::ALL[usize::from(self.connection.load(Relaxed))];
        let (outstanding, in_flight) = (self.outstanding.load(Relaxed), self.in_flight.load(Relaxed));
        DestinationReport {
            connection: if self.tracker.is_tko() { ConnectionState::Down } else { state },
            failures_in_a_row: self.failures_in_a_row.load(Relaxed),
            pending: outstanding.saturating_sub(in_flight) as u64,
            in_flight: in_flight as u64,
            latency_us: self.latency_us.value(),
            results: self.results.snapshot(),
        }
    }

    pub(super) fn statistics(&self) -> DestinationStatistics {
        DestinationStatistics { outstanding: self.outstanding.load(Relaxed) as u64, ..self.counters.snapshot() }
    }
}

impl Drop for DestinationShared {
    fn drop(&mut self) {
        if let Some(retired) = &self.retired {
            retired.results.add(&self.results.snapshot());
            retired.connects.add(self.counters.connects.value());
            retired.disconnects.add(self.counters.disconnects.value());
        }
    }
}

/// Counts a connection as ended when it is dropped.
pub(super) struct OpenConnection(Arc<DestinationShared>);

impl OpenConnection {
    /// Counts a connection that has been made.
    pub(super) fn begin(shared: &Arc<DestinationShared>) -> OpenConnection {
        shared.counters.connects.add(1);
        OpenConnection(shared.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.counters.disconnects.add(1);
    }
}

/// Counts some requests as outstanding until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    shared: Arc<DestinationShared>,
    requests: usize,
}

impl Permit {
    /// Counts the failure of some of them.
    pub(super) fn count_failure(&self, failure: &Failure, requests: usize) {
        self.shared.count_failure(failure, requests);
    }

    /// The failure as its caller gets it.
    pub(super) fn name_failure(&self, failure: &Failure) -> Failure {
        self.shared.name_failure(failure.clone())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.outstanding.fetch_sub(self.requests, Relaxed);
    }
}
