//! Delays the replies of a child, to test its callers.
//!
//! | verb | effect |
//! |---|---|
//! | all | waits `before`, asks the child, waits `after`, and then until `total` has passed since the start |
//!
//! A batch waits once. Errors and misses are delayed like hits. The clock is handed in. If the caller is dropped during
//! the first wait, the child is not asked.

use crate::{
    Batch, BoxFuture, Context, Outcomes, Route,
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder},
    environment::Clock,
};
use std::{sync::Arc, time::Duration};

/// The delays of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Before the child is asked.
    pub before: Duration,
    /// After it has replied.
    pub after: Duration,
    /// The minimum in total.
    pub total: Duration,
}

/// A child with delayed replies.
pub struct LatencyInjectionRoute {
    child: Arc<dyn Route>,
    latency: Latency,
    clock: Arc<dyn Clock>,
}

impl LatencyInjectionRoute {
    /// Delays the replies of `child` by `latency`.
    pub fn new(child: Arc<dyn Route>, latency: Latency, clock: Arc<dyn Clock>) -> Self {
        LatencyInjectionRoute { child, latency, clock }
    }

    async fn wait(&self, duration: Duration) {
        if !duration.is_zero() {
            self.clock.sleep(duration).await;
        }
    }

    async fn route_delayed(&self, batch: Batch, context: &Context) -> Outcomes {
        let start = self.clock.now();
        self.wait(self.latency.before).await;
        let outcomes = self.child.route(batch, context).await;
        self.wait(self.latency.after).await;
        let spent = self.clock.now().saturating_sub(start);
        self.wait(self.latency.total.saturating_sub(spent)).await;
        outcomes
    }
}

impl Route for LatencyInjectionRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(self.route_delayed(batch, context))
    }
}

/// A minute: every client has given up by then.
const LATENCY_MS_MAX: i64 = 60_000;

pub(crate) const TYPE: RouteType = RouteType::new("LatencyInjectionRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    child: Handle,
    latency: Latency,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    let known = &["type", "name", "child", "before_latency_ms", "after_latency_ms", "total_latency_ms"];
    object.check(&Keys::known(known).refusing(&["request_payload_latency"]))?;
    let latency = |key| {
        let ms = object.integer_or(key, "milliseconds", LATENCY_MS_MAX, 0)?;
        Ok::<_, ConfigurationError>(Duration::from_millis(ms as u64))
    };
    let latency = Latency {
        before: latency("before_latency_ms")?,
        after: latency("after_latency_ms")?,
        total: latency("total_latency_ms")?,
    };
    Ok(Handle::route(Config { child: parser.parse_required(object, "child")?, latency }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let child = tree.build(&self.child);
        Arc::new(LatencyInjectionRoute::new(child, self.latency, tree.environment().clock.clone()))
    }
}
