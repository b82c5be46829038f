//! State shared by a destination's handle and its task: TKO, counters, and the number of outstanding requests.

use crate::tko::TkoTracker;
use lookaside_sync::{SharedCounter, counters};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct DestinationShared {
    outstanding: AtomicUsize,
    /// Whether the first attempt to connect is over, or none is made before the first batch.
    pub(super) is_ready: watch::Sender<bool>,
    pub(super) tracker: Arc<TkoTracker>,
    pub(super) counters: DestinationCounters,
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
    pub(super) fn new(tracker: Arc<TkoTracker>, is_ready: bool) -> Arc<DestinationShared> {
        Arc::new(DestinationShared {
            outstanding: AtomicUsize::new(0),
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

    pub(super) fn statistics(&self) -> DestinationStatistics {
        DestinationStatistics { outstanding: self.outstanding.load(Relaxed) as u64, ..self.counters.snapshot() }
    }
}

/// Counts some requests as outstanding until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    shared: Arc<DestinationShared>,
    requests: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.outstanding.fetch_sub(self.requests, Relaxed);
    }
}
