//! Whether the routers take leases for plain clients, as far as they have said lately; and since when other keys are
//! leased.

use lookaside_sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tokio::time::Instant;

/// How long a router's reply that it takes no leases is valid, from the moment at which it was asked: far longer than a
/// permit, so that nothing changes for clients of routers without leases while these are too slow to give permits.
const UNLEASED_FOR: Duration = Duration::from_secs(10);

/// What the routers have replied last about leases for plain clients.
#[derive(Default)]
pub(super) struct RouterLeases {
    /// Until when plain requests may be sent as they are: a router has said that it takes no leases. `None` if none
    /// has, or one has said since that it does.
    unleased_until: RwLock<Option<Instant>>,
    /// Increases with each reply that said so, and when a configuration leases other keys. Misses of requests that are
    /// sent as they are are not remembered, so not all are known after that
    /// ([`Leasing::version`](lookaside_routing::Leasing::version)).
    version: AtomicU64,
}

impl RouterLeases {
    /// A router has said whether it takes leases for plain clients, in reply to a request that was sent at
    /// `requested_at`.
    pub(super) fn record(&self, takes_leases: bool, requested_at: Instant) {
        if !takes_leases {
            // First: a plain request that is sent as it is has seen the reply.
            self.increase_version();
        }
        *self.unleased_until.write() = (!takes_leases).then(|| requested_at + UNLEASED_FOR);
    }

    /// Misses from before are not all known.
    pub(super) fn increase_version(&self) {
        self.version.fetch_add(1, SeqCst);
    }

    /// Whether plain requests need leases of the client's own: routers take leases for plain clients, or none has said
    /// lately that it does not.
    pub(super) fn are_needed(&self) -> bool {
        self.unleased_until.read().is_none_or(|until| Instant::now() >= until)
    }

    /// Not all misses are known of plain requests that were sent while it was smaller.
    pub(super) fn version(&self) -> u64 {
        self.version.load(SeqCst)
    }
}
