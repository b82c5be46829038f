//! The end of every path: one server.
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the server, under the key without its routing prefix |
//! | all but delete, if the batch has a time limit | the same; after that time [`Failure::TimedOut`] |
//! | those that read, if only they have a limit | the same |
//! | copies for a shadow beyond the server's limit on these | dropped |
//!
//! The prefix is removed here and not at the root, because pools differ: `keep_routing_prefix` is for a "server" that
//! is a router itself, and a broadcast keeps one copy of a key for all its clusters.
//!
//! A time limit ([`Context::time_limit`], [`Context::read_time_limit`]) ends here and not at the route that sets it, so
//! that the servers of a pool that reply in time do so.

use crate::{
    Background, Batch, BoxFuture, Clock, Context, Destination, Environment, Failure, Outcomes, Route, VerbKind,
    key::prefix_bytes, outcome::verb,
};
use bytes::Buf;
use futures_util::future::{Either, select};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// Sends batches to one [`Destination`].
pub struct DestinationRoute {
    destination: Arc<dyn Destination>,
    keep_routing_prefix: bool,
    /// `None`: time limits are ignored.
    clock: Option<Arc<dyn Clock>>,
    /// `None`: copies for shadows have no limit.
    shadow_limit: Option<ShadowLimit>,
}

/// The limit on the copies for shadows that a server has not answered. Clones count together.
#[derive(Clone)]
pub(crate) struct ShadowLimit {
    outstanding: Arc<AtomicUsize>,
    outstanding_max: usize,
    background: Background,
}

impl ShadowLimit {
    pub(crate) fn of(environment: &Environment) -> ShadowLimit {
        let (outstanding_max, background) = (environment.shadows.outstanding_max, environment.background.clone());
        ShadowLimit { outstanding: Arc::default(), outstanding_max, background }
    }

    /// Removes the requests that are too many. The permit is for the others.
    fn admit(&self, batch: &mut Batch) -> ShadowPermit {
        let before = self.outstanding.fetch_add(batch.len(), Relaxed);
        let admitted = self.outstanding_max.saturating_sub(before).min(batch.len());
        let dropped = batch.split_off(admitted).len();
        self.outstanding.fetch_sub(dropped, Relaxed);
        self.background.count_dropped(dropped);
        ShadowPermit { outstanding: self.outstanding.clone(), requests: admitted }
    }
}

/// Copies that are not answered; returned when dropped.
struct ShadowPermit {
    outstanding: Arc<AtomicUsize>,
    requests: usize,
}

impl Drop for ShadowPermit {
    fn drop(&mut self) {
        self.outstanding.fetch_sub(self.requests, Relaxed);
    }
}

impl DestinationRoute {
    /// A leaf over `destination`. With `keep_routing_prefix` keys arrive there as the client wrote them.
    pub fn new(destination: Arc<dyn Destination>, keep_routing_prefix: bool) -> Self {
        DestinationRoute { destination, keep_routing_prefix, clock: None, shadow_limit: None }
    }

    /// Observes time limits by `clock`.
    pub(crate) fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        DestinationRoute { clock: Some(clock), ..self }
    }

    /// Limits copies for shadows.
    pub(crate) fn with_shadow_limit(self, limit: ShadowLimit) -> Self {
        DestinationRoute { shadow_limit: Some(limit), ..self }
    }

    fn send<'a>(&'a self, batch: Batch, context: &Context) -> BoxFuture<'a, Outcomes> {
        match (time_limit(&batch, context), &self.clock) {
            (Some(limit), Some(clock)) => Box::pin(self.send_within(batch, limit, &**clock)),
            _ => self.destination.send(batch),
        }
    }

    async fn send_copies(&self, mut batch: Batch, limit: &ShadowLimit, context: &Context) -> Outcomes {
        let requests = batch.len();
        let _permit = limit.admit(&mut batch);
        let mut outcomes = if batch.is_empty() { Outcomes::new() } else { self.send(batch, context).await };
        outcomes.resize(requests, Err(Failure::Busy));
        outcomes
    }

    async fn send_within(&self, batch: Batch, limit: Duration, clock: &dyn Clock) -> Outcomes {
        let requests = batch.len();
        match select(self.destination.send(batch), clock.sleep(limit)).await {
            Either::Left((outcomes, _)) => outcomes,
            // The server may still execute them.
            Either::Right(_) => vec![Err(Failure::TimedOut); requests],
        }
    }
}

impl Route for DestinationRoute {
    fn route<'a>(&'a self, mut batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        if !self.keep_routing_prefix {
            for request in &mut batch {
                match prefix_bytes(request) {
                    0 => {}
                    prefix => request.key.advance(prefix),
                }
            }
        }
        match &self.shadow_limit {
            Some(limit) if context.is_shadow => Box::pin(self.send_copies(batch, limit, context)),
            _ => self.send(batch, context),
        }
    }
}

/// The limit for a whole batch: its outcomes come together, so its reads may take as long as its updates and deletes.
fn time_limit(batch: &Batch, context: &Context) -> Option<Duration> {
    if context.time_limit.is_none() && context.read_time_limit.is_none() {
        return None;
    }
    let has = |kind| batch.iter().any(|request| verb(request).kind() == kind);
    if has(VerbKind::Delete) {
        return None;
    }
    context.time_limit(!has(VerbKind::Update))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;
    use bytes::Bytes;
    use lookaside_protocol::{Operation, Reply, Request, StoreMode};
    use tokio::time::Instant;

    const SLOW: Duration = Duration::from_secs(3);
    const LIMIT: Duration = Duration::from_millis(50);

    /// Replies after [`SLOW`].
    struct SlowServer(Address);

    impl Destination for SlowServer {
        fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
            Box::pin(async move {
                tokio::time::sleep(SLOW).await;
                vec![Ok(Reply::Ok); batch.len()]
            })
        }

        fn address(&self) -> &Address {
            &self.0
        }
    }

    struct TokioClock;

    impl Clock for TokioClock {
        fn now(&self) -> Duration {
            Duration::ZERO
        }

        fn unix_s(&self) -> u64 {
            0
        }

        fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
            Box::pin(tokio::time::sleep(duration))
        }
    }

    fn batch(verbs: &str) -> Batch {
        let request = |(at, verb)| {
            let operation = match verb {
                'g' => Operation::Get { cas: false },
                'd' => Operation::Delete { hold_off_ms: 0 },
                _ => Operation::Store { mode: StoreMode::Set, flags: 0, exptime: 0, value: Bytes::new(), cas: false },
            };
            Request { key: Bytes::from(format!("k{at}")), operation }
        };
        verbs.chars().enumerate().map(request).collect()
    }

    /// For each request `t` if it timed out or `.` if it was answered, and the time.
    async fn route(verbs: &str, context: &Context) -> (String, Duration) {
        let server = Arc::new(SlowServer(Address("a:1".into())));
        let route = DestinationRoute::new(server, true).with_clock(Arc::new(TokioClock));
        let start = Instant::now();
        let outcomes = route.route(batch(verbs), context).await;
        let letter = |outcome: &crate::Outcome| if *outcome == Err(Failure::TimedOut) { 't' } else { '.' };
        (outcomes.iter().map(letter).collect(), start.elapsed())
    }

    /// An update that is given up early may still be executed: a slower link would make all of them fail.
    #[tokio::test(start_paused = true)]
    async fn limit_of_reads_spares_updates_and_deletes() {
        let limited = Context { read_time_limit: Some(LIMIT), ..Context::default() };
        assert_eq!(route("gg", &limited).await, ("tt".into(), LIMIT));
        assert_eq!(route("s", &limited).await, (".".into(), SLOW));
        assert_eq!(route("gsg", &limited).await, ("...".into(), SLOW), "the batch waits for its update anyway");
        assert_eq!(route("gd", &limited).await, ("..".into(), SLOW));
        let shorter = Context { time_limit: Some(LIMIT / 2), ..limited.clone() };
        assert_eq!(route("gs", &shorter).await, ("tt".into(), LIMIT / 2));
        assert_eq!(route("g", &shorter).await, ("t".into(), LIMIT / 2));
        assert_eq!(route("gd", &shorter).await, ("..".into(), SLOW));
    }
}
