//! Lease-gets on their way, and leases that are held. A caller may be dropped at any moment, by a deadline or because
//! its own client has gone. A lease whose holder has gone makes all other clients wait until its interval ends, so what
//! is dropped here is let go.
//!
//! | dropped | effect |
//! |---|---|
//! | [`LookupInFlight`] | what is not sent yet is not sent; else its reply is awaited in the background, and the leases in it are released |
//! | [`HeldLeases`] | its leases are released |
//!
//! To release a lease is to fill with its token a value that has expired already: if a delete has voided the lease,
//! nothing happens. It is tried once, for [`RELEASE_MS_MAX`]; after that the lease expires at the server.

use crate::caller::{Caller, CallerScope};
use crate::tasks::TaskSpawner;
use bytes::Bytes;
use lookaside_protocol::{LeaseToken, Operation, Reply, Request};
use lookaside_routing::{Batch, BoxFuture, Context, Outcomes, Route};
use std::{
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
    time::Duration,
};
use tokio::time::timeout;

/// How long a task in the background waits for the replies to lookups whose caller has gone, and then to their
/// releases, in milliseconds each. Destinations have shorter limits of their own.
const RELEASE_MS_MAX: u64 = 5_000;

/// Waits for a request in the background, and drops its outcomes.
pub(super) fn spawn_bounded(request: impl Future<Output = Outcomes> + Send + 'static) {
    TaskSpawner::current().spawn_if_running(async {
        let _ = timeout(Duration::from_millis(RELEASE_MS_MAX), request).await;
    });
}

/// An exptime in the past.
const EXPIRED: i64 = -1;

/// Sends batches, and releases leases in the background.
#[derive(Clone)]
pub(super) struct Sender {
    pub(super) route: Arc<dyn Route>,
    pub(super) context: Context,
}

impl Sender {
    /// Sends a batch, for a caller that borrows nothing.
    pub(super) fn send(&self, batch: Batch) -> BoxFuture<'static, Outcomes> {
        let sender = self.clone();
        Box::pin(async move {
            let requests = batch.len();
            let outcomes = sender.route.route(batch, &sender.context).await;
            assert_eq!(outcomes.len(), requests, "a route returns one outcome per request");
            outcomes
        })
    }

    /// Releases leases; those that it cannot release expire.
    pub(super) async fn release(self, leases: Vec<(Bytes, LeaseToken)>) {
        let release = |(key, token)| {
            let operation = Operation::LeaseSet { token, flags: 0, exptime: EXPIRED, value: Bytes::new() };
            Request { key, operation }
        };
        let batch: Batch = leases.into_iter().map(release).collect();
        if !batch.is_empty() {
            // Whatever comes of it: the lease ends by itself at the latest.
            let _ = timeout(Duration::from_millis(RELEASE_MS_MAX), self.send(batch)).await;
        }
    }
}

/// Lease-gets that are not answered yet.
pub(super) struct LookupInFlight {
    /// The keys and the reply; `None` once it is there.
    waiting: Option<(Vec<Bytes>, CallerScope<BoxFuture<'static, Outcomes>>)>,
    caller: Caller,
    sender: Sender,
    spawner: TaskSpawner,
}

impl LookupInFlight {
    /// Sends a lease-get of valid keys, once this is polled.
    pub(super) fn new(sender: &Sender, keys: Vec<Bytes>) -> LookupInFlight {
        let batch = keys.iter().map(|key| Request { key: key.clone(), operation: Operation::LeaseGet }).collect();
        let caller = Caller::default();
        let waiting = Some((keys, caller.scope(sender.send(batch))));
        LookupInFlight { waiting, caller, sender: sender.clone(), spawner: TaskSpawner::current() }
    }
}

impl Future for LookupInFlight {
    type Output = Outcomes;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Outcomes> {
        let (_, reply) = self.waiting.as_mut().expect("not polled after it is ready");
        let outcomes = task::ready!(Pin::new(reply).poll(cx));
        self.waiting = None;
        Poll::Ready(outcomes)
    }
}

impl Drop for LookupInFlight {
    fn drop(&mut self) {
        let Some((keys, reply)) = self.waiting.take() else { return };
        self.caller.leave();
        let sender = self.sender.clone();
        self.spawner.spawn_if_running(async move {
            let Ok(outcomes) = timeout(Duration::from_millis(RELEASE_MS_MAX), reply).await else { return };
            let held = keys.into_iter().zip(outcomes).filter_map(|(key, outcome)| match outcome {
                Ok(Reply::Lease { token, .. }) if token.is_held() => Some((key, token)),
                _ => None,
            });
            let held = held.collect();
            sender.release(held).await;
        });
    }
}

/// Leases that this client holds while it loads.
pub(super) struct HeldLeases {
    leases: Vec<(Bytes, LeaseToken)>,
    sender: Sender,
    spawner: TaskSpawner,
}

impl HeldLeases {
    pub(super) fn new(sender: &Sender, leases: Vec<(Bytes, LeaseToken)>) -> HeldLeases {
        HeldLeases { leases, sender: sender.clone(), spawner: TaskSpawner::current() }
    }

    /// The leases have another owner from now on, or are used up.
    pub(super) fn disarm(mut self) {
        self.leases.clear();
    }
}

impl Drop for HeldLeases {
    fn drop(&mut self) {
        if !self.leases.is_empty() {
            let leases = std::mem::take(&mut self.leases);
            self.spawner.spawn_if_running(self.sender.clone().release(leases));
        }
    }
}
