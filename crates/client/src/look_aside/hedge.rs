//! A second request for a lookup that is late (Dean and Barroso, "The Tail at Scale"). Serves lookups of a
//! [`Client`](crate::Client) with [`with_hedging`](crate::Client::with_hedging), and, with
//! [`HedgeSettings::plain_gets`], plain gets of a [`TypedClient`](crate::TypedClient) on it.
//!
//! ```text
//!  lease-get ---> the route ----------------------(late)--->  leases, values, errors
//!             after the delay:
//!  get      ----> the replicas' route ---> all hits: the answer
//!                                          else: wait for the first; hits replace its errors
//! ```
//!
//! The second request is a plain get, since a lease is good at the server only that gave it. A miss at a replica
//! decides nothing. If the replica wins, the first request goes on in the background, and the leases in its reply are
//! released.
//!
//! Plain gets are hedged in the same way. If a replica wins, the first get goes on in the background, too, without a
//! caller: where leases are taken for plain requests, its miss is withdrawn and its token returned
//! (`direct/plain_leases`). A plain get whose caller gives up is dropped instead: a caller without a reply may store
//! what it reads then, and a miss that is remembered later must not let it.
//!
//! | hedged | the replicas must get (`AllSyncRoute`) |
//! |---|---|
//! | lookups | every delete that the route gets. Their keys change in the database, and a change deletes them, so that a replica's value is as new as any |
//! | plain gets | every update: set, add, incr, decr, touch and delete. Their keys are sessions, counters and locks, too, which change without a delete; a replica without these updates returns a value that is older than the client's own last `set` |
//!
//! Invariant: hedges are at most [`HedgeSettings::share_max`] of all lookups, and a burst of [`HEDGE_BURST`], so that
//! servers that are slow because they are loaded are not loaded twice.

use super::{
    lookup::{LookupInFlight, Sender, spawn_bounded},
    stats::CallCounters,
};
use crate::caller::Caller;
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request};
use lookaside_routing::{Batch, Outcomes, Route};
use lookaside_sync::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, timeout};

/// Hedges that may be sent at once after a time without any.
pub(crate) const HEDGE_BURST: f64 = 10.0;

/// Lookups that are measured before a quantile is used.
const SAMPLES_MIN: u32 = 100;
/// The counts of latencies are halved when they reach this, so that old ones fade.
const SAMPLES_MAX: u32 = 2_000;
/// The quantile is computed again after this number of lookups.
const SAMPLES_PER_UPDATE: u32 = 64;
/// Latencies are counted in eight buckets for each power of two of microseconds, up to a minute.
const BUCKETS_PER_DOUBLING: f64 = 8.0;
const BUCKETS: usize = 26 * 8;

/// When a lookup is late.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HedgeDelay {
    /// After this time.
    Fixed(Duration),
    /// When it takes longer than this share of the last lookups did: 0.95, say. Not before a hundred of them have been
    /// measured.
    Quantile(f64),
}

/// How lookups are hedged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HedgeSettings {
    /// When a lookup is late. Default: longer than 95 % of the last ones took.
    pub delay: HedgeDelay,
    /// The largest share of the lookups that may be sent twice. Default 0.05. At 1 the servers get up to twice the
    /// load when they are slow.
    pub share_max: f64,
    /// Whether plain gets, those of [`TypedClient::get`](crate::TypedClient::get), are hedged as well. Default false.
    /// Where replicas do not get every update that the route gets, a get with it may return a value that is older than
    /// the client's own last `set`.
    pub plain_gets: bool,
}

impl Default for HedgeSettings {
    fn default() -> HedgeSettings {
        HedgeSettings { delay: HedgeDelay::Quantile(0.95), share_max: 0.05, plain_gets: false }
    }
}

/// Sends lookups, and late ones a second time if there is a route for that.
#[derive(Clone)]
pub(super) struct HedgedSender {
    sender: Sender,
    hedge: Option<Arc<Hedge>>,
}

struct Hedge {
    replicas: Arc<dyn Route>,
    settings: HedgeSettings,
    state: Mutex<HedgeState>,
}

struct HedgeState {
    /// Hedges that may be sent now.
    credit: f64,
    latencies: Latencies,
}

impl HedgedSender {
    pub(super) fn new(sender: Sender) -> HedgedSender {
        HedgedSender { sender, hedge: None }
    }

    pub(super) fn with_hedging(&self, replicas: Arc<dyn Route>, settings: HedgeSettings) -> HedgedSender {
        let state = HedgeState { credit: HEDGE_BURST, latencies: Latencies::default() };
        let hedge = Hedge { replicas, settings, state: Mutex::new(state) };
        HedgedSender { sender: self.sender.clone(), hedge: Some(Arc::new(hedge)) }
    }

    pub(super) fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Sends a lease-get of valid keys.
    pub(super) async fn look_up(&self, keys: Vec<Bytes>, counters: &CallCounters) -> Outcomes {
        let Some(hedge) = &self.hedge else { return LookupInFlight::new(&self.sender, keys).await };
        let gets = plain_gets(keys.iter().cloned());
        let first = LookupInFlight::new(&self.sender, keys);
        // Dropped, it goes on in the background.
        self.send_hedged(hedge, first, gets, counters).await.0
    }

    /// Sends a plain get of valid keys.
    pub(super) async fn get(&self, keys: Vec<Bytes>, counters: &CallCounters) -> Outcomes {
        let gets = plain_gets(keys);
        let Some(hedge) = self.hedge.as_ref().filter(|hedge| hedge.settings.plain_gets) else {
            let Sender { route, context } = &self.sender;
            return route.route(gets, context).await;
        };
        let caller = Caller::default();
        let first = caller.scope(self.sender.send(gets.clone()));
        let (outcomes, unanswered) = self.send_hedged(hedge, first, gets, counters).await;
        if let Some(first) = unanswered {
            caller.leave();
            spawn_bounded(first);
        }
        outcomes
    }

    /// The outcomes of a request, or of `gets` from replicas if it is late; then with the request, if it is not
    /// answered.
    async fn send_hedged<F>(
        &self,
        hedge: &Hedge,
        mut first: F,
        gets: Batch,
        counters: &CallCounters,
    ) -> (Outcomes, Option<F>)
    where
        F: Future<Output = Outcomes> + Unpin,
    {
        let started = Instant::now();
        let delay = hedge.begin();
        let sent = self.send_when_late(hedge, delay, &mut first, gets, counters).await;
        hedge.state.lock().latencies.record(started.elapsed());
        match sent {
            Answer::OfFirst(outcomes) => (outcomes, None),
            Answer::OfReplica(outcomes) => (outcomes, Some(first)),
        }
    }

    async fn send_when_late(
        &self,
        hedge: &Hedge,
        delay: Option<Duration>,
        first: &mut (impl Future<Output = Outcomes> + Unpin),
        gets: Batch,
        counters: &CallCounters,
    ) -> Answer {
        let Some(delay) = delay else { return Answer::OfFirst(first.await) };
        if let Ok(outcomes) = timeout(delay, &mut *first).await {
            return Answer::OfFirst(outcomes);
        }
        if !hedge.use_credit() {
            counters.add(|counters| &counters.hedges_withheld, 1);
            return Answer::OfFirst(first.await);
        }
        counters.add(|counters| &counters.hedges, 1);
        let mut second = hedge.replicas.route(gets, &self.sender.context);
        let from_replica = tokio::select! {
            biased;
            outcomes = &mut *first => return Answer::OfFirst(outcomes),
            outcomes = &mut second => outcomes,
        };
        let is_hit = |outcome: &_| matches!(outcome, Ok(Reply::Value { .. }));
        if from_replica.iter().all(is_hit) {
            counters.add(|counters| &counters.hedges_won, 1);
            return Answer::OfReplica(from_replica);
        }
        let mut outcomes = first.await;
        for (outcome, other) in outcomes.iter_mut().zip(from_replica) {
            // Also one of the server: the replica may be well.
            if matches!(outcome, Err(_) | Ok(Reply::Error(_))) && is_hit(&other) {
                *outcome = other;
            }
        }
        Answer::OfFirst(outcomes)
    }
}

/// The outcomes of a request that may have been sent twice.
enum Answer {
    OfFirst(Outcomes),
    /// The first is not answered yet.
    OfReplica(Outcomes),
}

fn plain_gets(keys: impl IntoIterator<Item = Bytes>) -> Batch {
    keys.into_iter().map(|key| Request { key, operation: Operation::Get { cas: false } }).collect()
}

impl Hedge {
    /// Counts a lookup; returns when it is late. `None` if that is not known yet.
    fn begin(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        state.credit = (state.credit + self.settings.share_max).min(HEDGE_BURST);
        match self.settings.delay {
            HedgeDelay::Fixed(delay) => Some(delay),
            HedgeDelay::Quantile(quantile) => state.latencies.quantile(quantile),
        }
    }

    fn use_credit(&self) -> bool {
        let mut state = self.state.lock();
        let is_allowed = state.credit >= 1.0;
        state.credit -= f64::from(u8::from(is_allowed));
        is_allowed
    }
}

/// The latencies of the last lookups.
struct Latencies {
    buckets: [u32; BUCKETS],
    samples: u32,
    /// Samples since the quantile was computed.
    new_samples: u32,
    /// `None` if it was not computed yet.
    quantile: Option<Duration>,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { buckets: [0; BUCKETS], samples: 0, new_samples: 0, quantile: None }
    }
}

impl Latencies {
    fn record(&mut self, latency: Duration) {
        let us = latency.as_micros().max(1) as f64;
        let bucket = (us.log2() * BUCKETS_PER_DOUBLING) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.samples += 1;
        self.new_samples += 1;
        if self.samples >= SAMPLES_MAX {
            self.buckets.iter_mut().for_each(|count| *count /= 2);
            self.samples = self.buckets.iter().sum();
        }
    }

    /// The upper end of the bucket in which the quantile lies; `None` before there are enough samples.
    fn quantile(&mut self, quantile: f64) -> Option<Duration> {
        let is_old = self.quantile.is_none() || self.new_samples >= SAMPLES_PER_UPDATE;
        if is_old && self.samples >= SAMPLES_MIN {
            self.new_samples = 0;
            let wanted = (f64::from(self.samples) * quantile).ceil() as u32;
            let mut counted = 0;
            let bucket = self.buckets.iter().position(|&count| {
                counted += count;
                counted >= wanted
            });
            let bucket = bucket.unwrap_or(BUCKETS - 1);
            let us = ((bucket + 1) as f64 / BUCKETS_PER_DOUBLING).exp2();
            self.quantile = Some(Duration::from_micros(us.ceil() as u64));
        }
        self.quantile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_is_within_a_bucket_and_follows_changes() {
        let mut latencies = Latencies::default();
        for us in 1..=99 {
            latencies.record(Duration::from_micros(us * 10));
        }
        assert_eq!(latencies.quantile(0.95), None, "too few");
        latencies.record(Duration::from_micros(1_000));
        let p95 = latencies.quantile(0.95).expect("enough");
        assert!((950..1_060).contains(&p95.as_micros()), "{p95:?}");
        for _ in 0..10_000 {
            latencies.record(Duration::from_millis(20));
        }
        let p95 = latencies.quantile(0.95).expect("enough");
        assert!((20_000..22_000).contains(&p95.as_micros()), "{p95:?}");
        latencies.record(Duration::MAX);
        latencies.record(Duration::ZERO);
    }
}
