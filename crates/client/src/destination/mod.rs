//! A leaf of the routing tree that is a server: one connection, shared by all its callers. Serves every path.
//!
//! The handle only queues batches. One task per destination owns the connection, writes all that has queued up at once,
//! and matches the replies. So thousands of client connections are coalesced into one per server (§3.1 of the paper),
//! and a busier server gets larger writes.
//!
//! ```text
//! TcpDestination --PendingBatch--> driver --> connection --> pipeline --> server
//!       |                            |  '--> reresolve (follows the host name)
//!       '--------- shared -----------'-----> connect   (connects, probes)
//! ```
//!
//! Invariants:
//! * Every batch gets exactly one outcome per request, within `connect_timeout_ms + server_timeout_ms`.
//! * Nothing is sent twice. A set or delete whose connection ended after it was written is `ConnectionLost`: the server
//!   may or may not have executed it, and the caller must decide.
//! * At most `outstanding_requests_max` requests are queued or sent and not answered.
//!
//! Values are slices of the block that they were read into, and keep that block of [`crate::READ_BYTES`] (or the size
//! of its largest value) in memory: callers that keep values for long copy them.

mod cas_support;
mod connect;
mod connection;
mod driver;
mod meta_translation;
mod options;
mod pipeline;
mod reresolve;
mod results;
mod sent_line;
mod shared;
mod timer;

pub use connection::READ_BYTES;
pub use options::{DestinationOptions, DestinationRole};
pub use results::{ResultCounters, ResultCounts, ServerResult};
pub use shared::{ConnectionState, DestinationReport, DestinationStatistics, RetiredCounts};

use crate::{network::Network, tasks::spawn};
use driver::Driver;
use lookaside_routing::{Address, Batch, BoxFuture, Destination, Failure, Outcome, Outcomes, TkoReason, Verb};
use pipeline::PendingBatch;
use shared::DestinationShared;
use std::{future::ready, sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot};

/// A server reached over a [`Network`]. Dropping it ends its task and its connection.
pub struct TcpDestination {
    address: Address,
    queue: mpsc::UnboundedSender<PendingBatch>,
    shared: Arc<DestinationShared>,
    outstanding_requests_max: usize,
    inflight_requests_max: usize,
}

impl TcpDestination {
    /// A destination at `address`. It connects with the first batch, or at once with `connect_eagerly`. Must be called
    /// inside a tokio runtime, on which its task then runs.
    pub fn new(address: Address, network: Arc<dyn Network>, options: DestinationOptions) -> TcpDestination {
        let (queue, batches) = mpsc::unbounded_channel();
        let trackers = options.tko_trackers.as_ref();
        let tracker = trackers.map_or_else(Arc::default, |trackers| trackers.tracker(&address));
        let name = options.names_failures.then(|| address.clone());
        let shared = DestinationShared::new(tracker, !options.connect_eagerly, options.retired.clone(), name);
        let DestinationOptions { outstanding_requests_max, inflight_requests_max, .. } = options;
        let driver = Driver::new(address.clone(), network, options, batches, shared.clone());
        spawn(driver.run());
        TcpDestination { address, queue, shared, outstanding_requests_max, inflight_requests_max }
    }

    /// Resolves when the first attempt to connect is over, if one is made before the first batch: within
    /// `connect_timeout_ms`, or at once if the server is known to be TKO.
    pub async fn ready(&self) {
        // The sender lives as long as this handle.
        let _ = self.shared.is_ready.subscribe().wait_for(|is_ready| *is_ready).await;
    }

    /// A failure of the server as its callers get it.
    pub(crate) fn name_failure(&self, failure: Failure) -> Failure {
        self.shared.name_failure(failure)
    }

    /// Whether the server is TKO.
    pub fn is_tko(&self) -> bool {
        self.shared.tracker.is_tko()
    }

    /// Whether it is TKO because a connection could not be made (hard TKO), not because replies were late.
    pub fn is_hard_tko(&self) -> bool {
        self.shared.tracker.is_hard_tko()
    }

    /// Whether a [`crate::Fence`] keeps the server from being read.
    pub fn is_fenced(&self) -> bool {
        self.shared.tracker.is_fenced()
    }

    /// How long the server has been fenced; zero if it is not.
    pub fn fenced_for(&self) -> Duration {
        self.shared.tracker.fenced_for()
    }

    /// Its counters.
    pub fn statistics(&self) -> DestinationStatistics {
        self.shared.statistics()
    }

    /// What mcrouter reports of it.
    pub fn report(&self) -> DestinationReport {
        self.shared.report()
    }

    async fn send_queued(&self, requests: Batch) -> Outcomes {
        let count = requests.len();
        match self.queue(requests) {
            Ok(outcomes) => {
                outcomes.await.unwrap_or_else(|_| vec![Err(self.shared.name_failure(Failure::ConnectionLost)); count])
            }
            Err(failure) => vec![Err(self.shared.name_failure(failure)); count],
        }
    }

    /// Sends a batch that is larger than the number of requests that may be in flight, in parts. A server that answers
    /// nothing of a part in time is not sent the others: they would wait as long, each part after the one before it.
    async fn send_in_parts(&self, mut rest: Batch) -> Outcomes {
        let mut outcomes = Outcomes::with_capacity(rest.len());
        while !rest.is_empty() {
            let later = rest.split_off(rest.len().min(self.inflight_requests_max));
            let part = self.send_queued(std::mem::replace(&mut rest, later)).await;
            let timeout = common_timeout(&part);
            outcomes.extend(part);
            if let Some(failure) = timeout {
                self.shared.count_failure(&failure, rest.len());
                outcomes.resize(outcomes.len() + rest.len(), Err(self.shared.name_failure(failure)));
                break;
            }
        }
        outcomes
    }

    /// Queues a batch, unless the server is TKO or fenced, or too many requests are outstanding.
    fn queue(&self, requests: Batch) -> Result<oneshot::Receiver<Outcomes>, Failure> {
        let count = requests.len();
        let counters = &self.shared.counters;
        let refusal = self.shared.tracker.reason();
        if let Some(reason) = refusal
            && !(reason == TkoReason::Fenced && is_only_deletes(&requests))
        {
            counters.refused_tko.add(count as u64);
            let failure = Failure::Tko(reason);
            self.shared.count_failure(&failure, count);
            return Err(failure);
        }
        let (permit, before) = self.shared.acquire(count);
        if before + count > self.outstanding_requests_max {
            counters.busy.add(count as u64);
            let (server, requests_max) = (self.address.clone(), self.outstanding_requests_max);
            let failure = Failure::TooManyPending { server, requests_max };
            self.shared.count_failure(&failure, count);
            return Err(failure);
        }
        counters.requests.add(count as u64);
        let (reply, outcomes) = oneshot::channel();
        // The task ends before this handle only when its runtime does.
        self.queue.send(PendingBatch { requests, reply, permit }).map_err(|_| Failure::ConnectFailed)?;
        Ok(outcomes)
    }
}

/// The failure of requests that wait behind a part of which every request has timed out; `None` if one has not. They
/// were not sent, so that they may be repeated elsewhere.
fn common_timeout(part: &Outcomes) -> Option<Failure> {
    let is_timeout = |outcome: &Outcome| outcome.as_ref().is_err_and(Failure::is_timeout);
    match part.last().map(|outcome| outcome.as_ref().map_err(Failure::unnamed)) {
        Some(Err(Failure::ConnectTimedOut)) if part.iter().all(is_timeout) => Some(Failure::ConnectTimedOut),
        Some(Err(_)) if part.iter().all(is_timeout) => Some(Failure::QueueTimedOut),
        _ => None,
    }
}

/// Whether a batch only deletes: a fenced server still takes deletes.
fn is_only_deletes(batch: &Batch) -> bool {
    batch.iter().all(|request| Verb::of(&request.operation) == Verb::Delete)
}

impl Destination for TcpDestination {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        match batch.len() {
            0 => Box::pin(ready(Outcomes::new())),
            requests if requests > self.inflight_requests_max => Box::pin(self.send_in_parts(batch)),
            _ => Box::pin(self.send_queued(batch)),
        }
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
