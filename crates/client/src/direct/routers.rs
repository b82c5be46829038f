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
//!
//! A direct client may take them from its configuration. Then a new configuration replaces the list: routers that are
//! in both keep their connections, and those that are gone end with the last batch that was sent to them.

use crate::{DestinationOptions, DestinationRole, Network, TcpDestination};
use bytes::Bytes;
use lookaside_protocol::Request;
use lookaside_routing::{
    Address, Batch, BoxFuture, Context, Destination as _, Failure, HealthSettings, Outcome, Outcomes, Route, Verb,
    VerbKind,
};
use lookaside_sync::RwLock;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::Notify;

/// Why a direct client without routers is refused.
pub(super) const NO_ROUTER: &str = "a direct client needs a router of its cluster, for all but gets: name one, or let \
                                    the configuration name those of its routing prefix (\"routers\": [\"HOST:PORT\"])";

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
pub struct Routers {
    network: Arc<dyn Network>,
    options: DestinationOptions,
    list: RwLock<Arc<RouterList>>,
    /// Notified when the list has been replaced. One task waits for it.
    replaced: Notify,
}

/// The routers at one time. Empty only in a direct client that has not read its configuration.
#[derive(Default)]
pub(super) struct RouterList {
    destinations: Vec<Arc<TcpDestination>>,
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
        let routers: Vec<Address> = routers.into_iter().collect();
        assert!(!routers.is_empty(), "a cluster has a router");
        Routers::new_or_none(&routers, network, options)
    }

    /// As [`Routers::new`], but there may be none yet: then requests fail until there are.
    pub(super) fn new_or_none(routers: &[Address], network: Arc<dyn Network>, options: &DestinationOptions) -> Routers {
        // A cluster has few routers, and without them nothing is deleted: one that returns is found soon.
        let health = HealthSettings { probe_initial_ms: 100, probe_max_ms: 1_000, ..options.health };
        let options = DestinationOptions { role: DestinationRole::Router, health, ..options.clone() };
        let created = Routers { network, options, list: RwLock::default(), replaced: Notify::new() };
        created.replace(routers);
        created
    }

    /// Uses these routers from now on, in their order. The one that is used stays so if it is among them. Returns
    /// whether they are others than before. Must be called inside the tokio runtime that serves them.
    pub(super) fn replace(&self, routers: &[Address]) -> bool {
        let mut list = self.list.write();
        if list.addresses().eq(routers) {
            return false;
        }
        let kept = |router: &Address| list.destinations.iter().find(|old| old.address() == router).cloned();
        let connect = |router: &Address| {
            Arc::new(TcpDestination::new(router.clone(), self.network.clone(), self.options.clone()))
        };
        let destinations = routers.iter().map(|router| kept(router).unwrap_or_else(|| connect(router))).collect();
        let used = list.addresses().nth(list.preferred());
        let preferred = used.and_then(|used| routers.iter().position(|router| router == used)).unwrap_or(0);
        *list = Arc::new(RouterList { destinations, preferred: AtomicUsize::new(preferred) });
        self.replaced.notify_one();
        true
    }

    /// Resolves when the list has been replaced since this resolved last.
    pub(super) async fn replaced(&self) {
        self.replaced.notified().await;
    }

    pub(super) fn list(&self) -> Arc<RouterList> {
        self.list.read().clone()
    }

    pub(super) fn network(&self) -> &dyn Network {
        &*self.network
    }

    /// The addresses, in the order in which they were named.
    pub fn addresses(&self) -> Vec<Address> {
        self.list().addresses().cloned().collect()
    }

    /// The addresses, unless another thread replaces them at this moment. A forked child must not wait for that thread,
    /// which it does not have.
    pub fn try_addresses(&self) -> Option<Vec<Address>> {
        Some(self.list.try_read()?.addresses().cloned().collect())
    }

    /// Sends a batch to the preferred router, and what that leaves unanswered to the next ones.
    pub(super) async fn send(&self, batch: Batch) -> Outcomes {
        // Held until all have answered: the connections of a router that is removed end after them.
        let list = self.list();
        list.send(batch).await
    }
}

impl RouterList {
    pub(super) fn count(&self) -> usize {
        self.destinations.len()
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.destinations.iter().map(|router| router.address())
    }

    pub(super) fn address(&self, index: usize) -> &Address {
        self.destinations[index].address()
    }

    /// The index of the router that is used.
    pub(super) fn preferred(&self) -> usize {
        self.preferred.load(Relaxed)
    }

    /// Uses this router from now on.
    pub(super) fn prefer(&self, index: usize) {
        self.preferred.store(index, Relaxed);
    }

    async fn send(&self, batch: Batch) -> Outcomes {
        if let [only] = &self.destinations[..] {
            return only.send(batch).await;
        }
        let first = self.preferred();
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

impl fmt::Debug for Routers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routers").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

/// Whether another router may be sent the request after this outcome.
fn may_repeat(request: &Request<Bytes>, outcome: &Outcome) -> bool {
    match outcome {
        Err(Failure::OfServer { failure, .. }) => may_repeat(request, &Err((**failure).clone())),
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

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_protocol::Operation;
    use lookaside_routing::TkoReason;

    #[test]
    fn a_named_failure_is_repeated_if_it_is_without_its_name() {
        let address = || Address("router:1".into());
        let request = |operation| Request { key: Bytes::from_static(b"k"), operation };
        let get = request(Operation::Get { cas: false });
        let touch = request(Operation::Touch { exptime: 1 });
        for (failure, of_get, of_touch) in [
            (Failure::Tko(TkoReason::ConnectFailed), true, true),
            (Failure::ConnectFailed, true, true),
            (Failure::ConnectTimedOut, true, true),
            (Failure::Busy, true, true),
            (Failure::TooManyPending { server: address(), requests_max: 1 }, true, true),
            (Failure::QueueTimedOut, true, true),
            (Failure::TimedOut, true, false),
            (Failure::ConnectionLost, true, false),
            (Failure::ReadFailed(address()), true, false),
            (Failure::Malformed, true, false),
            (Failure::NoTree, false, false),
        ] {
            let named = Failure::OfServer { server: address(), failure: Box::new(failure.clone()) };
            for failure in [failure, named] {
                let outcome = Err(failure);
                assert_eq!(may_repeat(&get, &outcome), of_get, "{outcome:?}");
                assert_eq!(may_repeat(&touch, &outcome), of_touch, "{outcome:?}");
            }
        }
    }
}
