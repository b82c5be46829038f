//! The routers of a client's cluster: for all requests, or, in a direct client, for those that it does not send to
//! servers itself. One of them is used; if it does not answer, the next one.
//!
//! | a router's outcome | get, lease-get, delete | all others |
//! |---|---|---|
//! | a reply, also an error line | returned | returned |
//! | nothing was sent | sent to the next router | sent to the next router |
//! | no reply, a lost connection | sent to the next router | returned: it may have been executed |
//!
//! So a request may take a server timeout for each router.

use crate::{DestinationOptions, DestinationRole, Network, TcpDestination};
use bytes::Bytes;
use lookaside_protocol::Request;
use lookaside_routing::{
    Address, Batch, BoxFuture, Context, Destination as _, Failure, HealthSettings, Outcome, Outcomes, Route, Verb,
    VerbKind,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The routers of a cluster, as the route of a [`Client`](crate::Client). A request goes to the first router that
/// answers, in the order in which they are named; an update is not sent again if it may have been executed.
///
/// ```no_run
/// # async fn example() {
/// use lookaside_client::{Client, DestinationOptions, Routers, TcpNetwork};
/// use lookaside_routing::Address;
/// use std::sync::Arc;
/// let routers = ["10.0.0.1:5000", "10.0.0.2:5000"].map(|router| Address(router.into()));
/// let routers = Routers::new(routers, Arc::new(TcpNetwork), &DestinationOptions::default());
/// let client = Client::new(Arc::new(routers));
/// # }
/// ```
#[derive(Debug)]
pub struct Routers {
    /// Not empty.
    destinations: Vec<TcpDestination>,
    /// The index of the one that is used.
    preferred: AtomicUsize,
}

impl Routers {
    /// Routers that are connected to when they are needed, over `network`. Must be called inside the tokio runtime that
    /// will serve them.
    ///
    /// # Panics
    /// If there is no router.
    pub fn new(
        routers: impl IntoIterator<Item = Address>,
        network: Arc<dyn Network>,
        options: &DestinationOptions,
    ) -> Routers {
        // A cluster has few routers, and without them nothing is deleted: one that returns is found soon.
        let health = HealthSettings { probe_initial_ms: 100, probe_max_ms: 1_000, ..options.health };
        let options = DestinationOptions { role: DestinationRole::Router, health, ..options.clone() };
        let connect = |router| TcpDestination::new(router, network.clone(), options.clone());
        let destinations: Vec<TcpDestination> = routers.into_iter().map(connect).collect();
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
        let mut outcomes: Outcomes = vec![Err(Failure::ConnectFailed); batch.len()];
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

impl Route for Routers {
    fn route<'a>(&'a self, batch: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(self.send(batch))
    }
}

/// Whether another router may be sent the request after this outcome.
fn may_repeat(request: &Request<Bytes>, outcome: &Outcome) -> bool {
    match outcome {
        Ok(_) | Err(Failure::NoRoute(_) | Failure::NoTree | Failure::Refused { .. } | Failure::Spooled) => false,
        Err(
            Failure::Tko(_)
            | Failure::ConnectFailed
            | Failure::ConnectTimedOut
            | Failure::Busy
            | Failure::TooManyPending { .. }
            | Failure::QueueTimedOut,
        ) => true,
        Err(
            Failure::TimedOut
            | Failure::ConnectionLost
            | Failure::ReadFailed(_)
            | Failure::Malformed
            | Failure::DatagramLost { .. },
        ) => Verb::of(&request.operation).kind() != VerbKind::Update,
    }
}
