//! Keeps a server from being read while it has undelivered deletes. Serves gets and updates; §5 of the paper.
//!
//! A fence is independent of the server's TKO state: an answered probe does not lower it. The router's spool raises it
//! before it acknowledges a delete that the server missed, and lowers it once the server has executed all of them.

use crate::tko::{TkoTracker, TkoTrackers};
use lookaside_routing::Address;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The fence of one server. While it is raised, destinations refuse all batches that do not only delete, with
/// [`Failure::Tko`](lookaside_routing::Failure::Tko).
///
/// A request that was queued before the fence was raised may still be answered: it is older than the deletes that are
/// acknowledged behind the fence.
#[derive(Clone, Debug)]
pub struct Fence(Arc<TkoTracker>);

impl TkoTrackers {
    /// The fence of the server at `address`, lowered at first. While a `Fence` exists, it holds for all destinations
    /// at the address, later ones included.
    pub fn fence(&self, address: &Address) -> Fence {
        Fence(self.tracker(address))
    }

    /// The servers whose fences are raised.
    pub fn fenced(&self) -> BTreeSet<Address> {
        self.servers_that(TkoTracker::is_fenced)
    }
}

impl Fence {
    /// Raises the fence: no destination in this process sends the server a read or an update any more.
    pub fn raise(&self) {
        self.0.set_fenced(true);
    }

    /// Lowers the fence: the server has no undelivered deletes.
    pub fn lower(&self) {
        self.0.set_fenced(false);
    }

    /// How long the fence has been raised; zero if it is not, or was raised at this moment.
    pub fn raised_for(&self) -> Duration {
        self.0.fenced_for()
    }

    /// Whether the fence is raised.
    pub fn is_raised(&self) -> bool {
        self.0.is_fenced()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_routing::TkoReason;

    #[test]
    fn fence_is_one_for_an_address_and_no_probe_lowers_it() {
        let trackers = TkoTrackers::new();
        let address = Address("here:1".into());
        let fence = trackers.fence(&address);
        let tracker = trackers.tracker(&address);
        assert!(!tracker.is_fenced());
        fence.raise();
        assert!(tracker.is_fenced() && !tracker.is_tko(), "two independent states");
        let epoch = tracker.epoch().expect("up");
        assert!(tracker.mark_tko(epoch, TkoReason::ConnectFailed));
        tracker.clear_tko();
        assert!(tracker.is_fenced());
        drop(tracker);
        assert!(trackers.fence(&address).is_raised(), "the first handle keeps it");
        fence.lower();
        assert!(!trackers.tracker(&address).is_fenced());
    }
}
