//! Requests, failures and latencies of each pool and each server: one thread's counts, recorded around it. Serves every
//! path.
//!
//! The latency is that of a batch, from its start to its last outcome: it includes waiting in the queue, connecting,
//! and failover within the pool. That is the time that a client of the router waits.

use lookaside_protocol::Reply;
use lookaside_routing::{
    Address, Batch, BoxFuture, Context, Destination, DestinationSettings, Failure, Outcome, Outcomes, Route,
};
use lookaside_telemetry::{Counter, Histogram, HistogramSum};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;

/// Why a request failed, by the label in metrics.
pub(crate) const FAILURES: [&str; 10] = [
    "tko",
    "connect_failed",
    "connect_timed_out",
    "busy",
    "no_route",
    "timed_out",
    "connection_lost",
    "malformed",
    "delete_spooled",
    "error_reply",
];

/// One thread's counts for one pool or server. Only that thread writes them.
#[derive(Debug, Default)]
pub(crate) struct TargetStats {
    requests: Counter,
    failures: [Counter; FAILURES.len()],
    latency: Histogram,
}

/// The counts of all threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct TargetStatsSum {
    pub(crate) requests: u64,
    pub(crate) failures: [u64; FAILURES.len()],
    pub(crate) latency: HistogramSum,
}

impl TargetStats {
    fn record(&self, outcomes: &Outcomes, started: Instant) {
        if outcomes.is_empty() {
            return;
        }
        self.requests.add(outcomes.len() as u64);
        outcomes.iter().filter_map(failure_of).for_each(|failure| self.failures[failure].add(1));
        self.latency.record(u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
}

impl TargetStatsSum {
    pub(crate) fn add(&mut self, stats: &TargetStats) {
        self.requests += stats.requests.value();
        for (sum, own) in self.failures.iter_mut().zip(&stats.failures) {
            *sum += own.value();
        }
        self.latency.add(&stats.latency);
    }
}

/// The index in [`FAILURES`] of a failure; `None` for a success.
fn failure_of(outcome: &Outcome) -> Option<usize> {
    match outcome {
        Ok(Reply::Error(_)) => Some(9),
        Ok(_) => None,
        Err(failure) => Some(index_of(failure)),
    }
}

fn index_of(failure: &Failure) -> usize {
    match failure {
        Failure::Tko(_) => 0,
        Failure::ConnectFailed => 1,
        Failure::ConnectTimedOut => 2,
        Failure::Busy | Failure::TooManyPending { .. } => 3,
        Failure::NoRoute(_) | Failure::NoTree | Failure::Refused { .. } => 4,
        Failure::TimedOut | Failure::QueueTimedOut | Failure::DatagramLost { .. } => 5,
        Failure::ConnectionLost | Failure::ReadFailed(_) => 6,
        Failure::Malformed => 7,
        Failure::Spooled => 8,
        Failure::OfServer { failure, .. } => index_of(failure),
    }
}

/// One tree's counts. A server or pool that the next configuration also names keeps its counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerTargetStats {
    pub(crate) servers: BTreeMap<(Address, DestinationSettings), Arc<TargetStats>>,
    pub(crate) pools: BTreeMap<String, PoolStats>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PoolStats {
    pub(crate) stats: Arc<TargetStats>,
    pub(crate) servers: Vec<Address>,
}

impl PerTargetStats {
    /// A destination that counts the requests to `server`.
    pub(crate) fn wrap_destination(
        &mut self,
        server: Arc<dyn Destination>,
        settings: &DestinationSettings,
        old: Option<&PerTargetStats>,
    ) -> Arc<dyn Destination> {
        let identity = (server.address().clone(), *settings);
        let kept = old.and_then(|old| old.servers.get(&identity)).cloned().unwrap_or_default();
        let stats = self.servers.entry(identity).or_insert(kept).clone();
        Arc::new(MeasuredDestination { inner: server, stats })
    }

    /// A route that counts the requests to a pool. All places where the tree names the pool share the counts.
    pub(crate) fn wrap_pool(
        &mut self,
        name: &str,
        servers: &[Address],
        route: Arc<dyn Route>,
        old: Option<&PerTargetStats>,
    ) -> Arc<dyn Route> {
        let kept = || old.and_then(|old| old.pools.get(name)).map(|pool| pool.stats.clone()).unwrap_or_default();
        let make = || PoolStats { stats: kept(), servers: servers.to_vec() };
        let stats = self.pools.entry(name.to_owned()).or_insert_with(make).stats.clone();
        Arc::new(MeasuredPoolRoute { inner: route, stats })
    }
}

struct MeasuredDestination {
    inner: Arc<dyn Destination>,
    stats: Arc<TargetStats>,
}

impl Destination for MeasuredDestination {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        Box::pin(async move {
            let started = Instant::now();
            let outcomes = self.inner.send(batch).await;
            self.stats.record(&outcomes, started);
            outcomes
        })
    }

    fn address(&self) -> &Address {
        self.inner.address()
    }
}

struct MeasuredPoolRoute {
    inner: Arc<dyn Route>,
    stats: Arc<TargetStats>,
}

impl Route for MeasuredPoolRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(async move {
            let started = Instant::now();
            let outcomes = self.inner.route(batch, context).await;
            self.stats.record(&outcomes, started);
            outcomes
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use lookaside_protocol::{ErrorReply, Operation, Request};
    use lookaside_routing::{Protocol, Security};
    use std::time::Duration;

    struct Slow(Address);

    impl Destination for Slow {
        fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(3)).await;
                let failures = [Err(Failure::TimedOut), Ok(Reply::Miss), Ok(Reply::Error(ErrorReply::Unknown))];
                failures.into_iter().cycle().take(batch.len()).collect()
            })
        }

        fn address(&self) -> &Address {
            &self.0
        }
    }

    fn gets(count: usize) -> Batch {
        vec![Request { key: Bytes::from_static(b"k"), operation: Operation::Get { cas: false } }; count]
    }

    #[tokio::test(start_paused = true)]
    async fn counts_of_a_server_survive_a_reload() {
        let settings = DestinationSettings {
            server_timeout_ms: 1,
            connect_timeout_ms: 1,
            asynclog: true,
            protocol: Protocol::Text,
            security: Security::Plain,
        };
        let slow = || Arc::new(Slow(Address("a:1".into())));
        let mut first = PerTargetStats::default();
        assert_eq!(first.wrap_destination(slow(), &settings, None).send(gets(4)).await.len(), 4);
        let mut second = PerTargetStats::default();
        second.wrap_destination(slow(), &settings, Some(&first)).send(gets(1)).await;
        let mut sum = TargetStatsSum::default();
        second.servers.values().for_each(|stats| sum.add(stats));
        assert_eq!((sum.requests, sum.latency.count(), sum.latency.sum_us), (5, 2, 6_000));
        let failures: Vec<_> = FAILURES.iter().zip(sum.failures).filter(|(_, count)| *count > 0).collect();
        assert_eq!(failures, [(&"timed_out", 3), (&"error_reply", 1)]);
    }
}
