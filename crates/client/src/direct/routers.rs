//! The routers of a direct client's cluster, for everything that it does not read directly. One of them is used; if it
//! does not answer, the next one.
//!
//! | a router's outcome | get, lease-get, delete | all others |
//! |---|---|---|
//! | a reply, also an error line | returned | returned |
//! | nothing was sent | sent to the next router | sent to the next router |
//! | no reply, a lost connection | sent to the next router | returned: it may have been executed |
//!
//! So a request may take a server timeout for each router.

use crate::TcpDestination;
use bytes::Bytes;
use lookaside_protocol::Request;
use lookaside_routing::{Address, Batch, Destination as _, Failure, Outcome, Outcomes, Verb, VerbKind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(super) struct Routers {
    /// Not empty.
    destinations: Vec<TcpDestination>,
    /// The index of the one that is used.
    preferred: AtomicUsize,
}

impl Routers {
    /// The routers of `destinations`, of which there is at least one.
    pub(super) fn new(destinations: Vec<TcpDestination>) -> Routers {
        assert!(!destinations.is_empty(), "a cluster has a router");
        Routers { destinations, preferred: AtomicUsize::new(0) }
    }

    pub(super) fn count(&self) -> usize {
        self.destinations.len()
    }

    pub(super) fn address(&self, index: usize) -> &Address {
        self.destinations[index].address()
    }

    /// Uses this router from now on.
    pub(super) fn prefer(&self, index: usize) {
        self.preferred.store(index, Relaxed);
    }

    /// Sends a batch to the preferred router, and what that leaves unanswered to the next ones.
    pub(super) async fn send(&self, batch: Batch) -> Outcomes {
        let first = self.preferred.load(Relaxed);
        if self.count() == 1 {
            return self.destinations[0].send(batch).await;
        }
        let mut outcomes: Outcomes = vec![Err(Failure::Tko); batch.len()];
        let mut left: Vec<(usize, Request<Bytes>)> = batch.into_iter().enumerate().collect();
        for offset in 0..self.count() {
            let router = &self.destinations[(first + offset) % self.count()];
            let sent = left.iter().map(|(_, request)| request.clone()).collect();
            let replies = router.send(sent).await;
            let mut unanswered = Vec::new();
            for ((at, request), outcome) in left.into_iter().zip(replies) {
                let is_repeated = may_repeat(&request, &outcome);
                outcomes[at] = outcome;
                if is_repeated {
                    unanswered.push((at, request));
                }
            }
            left = unanswered;
            if left.is_empty() {
                break;
            }
        }
        outcomes
    }
}

/// Whether another router may be sent the request after this outcome.
fn may_repeat(request: &Request<Bytes>, outcome: &Outcome) -> bool {
    match outcome {
        Ok(_) | Err(Failure::NoRoute(_) | Failure::Spooled) => false,
        Err(Failure::Tko | Failure::ConnectFailed | Failure::ConnectTimedOut | Failure::Busy) => true,
        Err(Failure::TimedOut | Failure::ConnectionLost | Failure::Malformed) => {
            Verb::of(&request.operation).kind() != VerbKind::Update
        }
    }
}
