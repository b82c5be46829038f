//! How requests fare at one pool or one server: one thread's counts, noted around it. Serves every path.
//!
//! What is timed is a batch, from its handing over to its last outcome: waiting in the queue, connecting and failing over
//! within the pool included. That is what a client of the router waits for.

use lookaside_protocol::Reply;
use lookaside_routing::{
    Address, Batch, BoxFuture, Context, Destination, DestinationSettings, Failure, Outcome, Outcomes, Route,
};
use lookaside_telemetry::{Counter, Histogram, HistogramSum};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;

/// Why a request brought no answer, or none to its question, in the words of labels.
pub(crate) const FAILURES: [&str; 10] = [
    "taken_out",
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

/// One thread's counts for one pool or server; only that thread notes.
#[derive(Debug, Default)]
pub(crate) struct Measure {
    requests: Counter,
    failures: [Counter; FAILURES.len()],
    latency: Histogram,
}

/// Measures added up, over threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct MeasureSum {
    pub(crate) requests: u64,
    pub(crate) failures: [u64; FAILURES.len()],
    pub(crate) latency: HistogramSum,
}

impl Measure {
    fn note(&self, outcomes: &Outcomes, begun: Instant) {
        if outcomes.is_empty() {
            return;
        }
        self.requests.add(outcomes.len() as u64);
        outcomes.iter().filter_map(failure_of).for_each(|failure| self.failures[failure].add(1));
        self.latency.record(u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
}

impl MeasureSum {
    pub(crate) fn add(&mut self, measure: &Measure) {
        self.requests += measure.requests.value();
        for (sum, own) in self.failures.iter_mut().zip(&measure.failures) {
            *sum += own.value();
        }
        self.latency.add(&measure.latency);
    }
}

/// The place in [`FAILURES`] of what went wrong, if anything did.
fn failure_of(outcome: &Outcome) -> Option<usize> {
    match outcome {
        Ok(Reply::Error(_)) => Some(9),
        Ok(_) => None,
        Err(failure) => Some(match failure {
            Failure::Tko => 0,
            Failure::ConnectFailed => 1,
            Failure::ConnectTimedOut => 2,
            Failure::Busy => 3,
            Failure::NoRoute(_) => 4,
            Failure::TimedOut => 5,
            Failure::ConnectionLost => 6,
            Failure::Malformed => 7,
            Failure::Spooled => 8,
        }),
    }
}

/// One tree's measures. A server or pool that the next configuration names too keeps its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measures {
    pub(crate) servers: BTreeMap<(Address, DestinationSettings), Arc<Measure>>,
    pub(crate) pools: BTreeMap<String, PoolMeasure>,
}

/// One pool's.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolMeasure {
    pub(crate) measure: Arc<Measure>,
    pub(crate) servers: Vec<Address>,
}

impl Measures {
    /// Puts a measure around a server.
    pub(crate) fn around_server(
        &mut self,
        server: Arc<dyn Destination>,
        settings: &DestinationSettings,
        old: Option<&Measures>,
    ) -> Arc<dyn Destination> {
        let identity = (server.address().clone(), *settings);
        let kept = old.and_then(|old| old.servers.get(&identity)).cloned().unwrap_or_default();
        let measure = self.servers.entry(identity).or_insert(kept).clone();
        Arc::new(MeasuredServer { inner: server, measure })
    }

    /// Puts a measure around a pool's route; the same one wherever the tree names the pool.
    pub(crate) fn around_pool(
        &mut self,
        name: &str,
        servers: &[Address],
        route: Arc<dyn Route>,
        old: Option<&Measures>,
    ) -> Arc<dyn Route> {
        let kept = || old.and_then(|old| old.pools.get(name)).map(|pool| pool.measure.clone()).unwrap_or_default();
        let make = || PoolMeasure { measure: kept(), servers: servers.to_vec() };
        let measure = self.pools.entry(name.to_owned()).or_insert_with(make).measure.clone();
        Arc::new(MeasuredPool { inner: route, measure })
    }
}

struct MeasuredServer {
    inner: Arc<dyn Destination>,
    measure: Arc<Measure>,
}

impl Destination for MeasuredServer {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        Box::pin(async move {
            let begun = Instant::now();
            let outcomes = self.inner.send(batch).await;
            self.measure.note(&outcomes, begun);
            outcomes
        })
    }

    fn address(&self) -> &Address {
        self.inner.address()
    }
}

struct MeasuredPool {
    inner: Arc<dyn Route>,
    measure: Arc<Measure>,
}

impl Route for MeasuredPool {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(async move {
            let begun = Instant::now();
            let outcomes = self.inner.route(batch, context).await;
            self.measure.note(&outcomes, begun);
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
    async fn a_server_is_measured_on_through_a_change_of_the_configuration() {
        let settings = DestinationSettings {
            server_timeout_ms: 1,
            connect_timeout_ms: 1,
            asynclog: true,
            protocol: Protocol::Text,
            security: Security::Plain,
        };
        let slow = || Arc::new(Slow(Address("a:1".into())));
        let mut first = Measures::default();
        assert_eq!(first.around_server(slow(), &settings, None).send(gets(4)).await.len(), 4);
        let mut second = Measures::default();
        second.around_server(slow(), &settings, Some(&first)).send(gets(1)).await;
        let mut sum = MeasureSum::default();
        second.servers.values().for_each(|measure| sum.add(measure));
        assert_eq!((sum.requests, sum.latency.count(), sum.latency.sum_us), (5, 2, 6_000));
        let told: Vec<_> = FAILURES.iter().zip(sum.failures).filter(|(_, count)| *count > 0).collect();
        assert_eq!(told, [(&"timed_out", 3), (&"error_reply", 1)]);
    }
}
