//! The end of every path: one server.
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the server, under the key without its routing prefix |
//! | all but delete, if the batch has a time limit | the same; after that time [`Failure::TimedOut`] |
//! | those that read, if only they have a limit | the same |
//!
//! The prefix is removed here and not at the root, because pools differ: `keep_routing_prefix` is for a "server" that
//! is a router itself, and a broadcast keeps one copy of a key for all its clusters.
//!
//! A time limit ([`Context::time_limit`], [`Context::read_time_limit`]) ends here and not at the route that sets it, so that the servers of a pool
//! that reply in time do so.

use crate::{
    Batch, BoxFuture, Clock, Context, Destination, Failure, Outcomes, Route, VerbKind, key::prefix_bytes, outcome::verb,
};
use bytes::Buf;
use futures_util::future::{Either, select};
use std::{sync::Arc, time::Duration};

/// Sends batches to one [`Destination`].
pub struct DestinationRoute {
    destination: Arc<dyn Destination>,
    keep_routing_prefix: bool,
    /// `None`: time limits are ignored.
    clock: Option<Arc<dyn Clock>>,
}

impl DestinationRoute {
    /// A leaf over `destination`. With `keep_routing_prefix` keys arrive there as the client wrote them.
    pub fn new(destination: Arc<dyn Destination>, keep_routing_prefix: bool) -> Self {
        DestinationRoute { destination, keep_routing_prefix, clock: None }
    }

    /// Observes time limits by `clock`.
    pub(crate) fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        DestinationRoute { clock: Some(clock), ..self }
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
        match (time_limit(&batch, context), &self.clock) {
            (Some(limit), Some(clock)) => Box::pin(self.send_within(batch, limit, &**clock)),
            _ => self.destination.send(batch),
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
