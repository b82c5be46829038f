//! Drops requests: replies as an empty cache would, and counts.
//!
//! | verb | reply |
//! |---|---|
//! | all | as `null_route.rs`: a miss, `NOT_STORED`, `NOT_FOUND` |
//!
//! No server is asked. Unlike `NullRoute`, which ends a tree by design, this route discards traffic, so it counts it.

use crate::{Batch, BoxFuture, Context, NullRoute, Outcomes, Route, RouteStatistics, configuration::RouteType};
use std::sync::Arc;

/// Drops and counts requests.
#[derive(Default)]
pub struct DevNullRoute {
    statistics: Arc<RouteStatistics>,
}

impl DevNullRoute {
    /// The number of requests that this route, and others of its tree, have dropped.
    pub fn dropped(&self) -> u64 {
        self.statistics.counters.dev_null_requests.value()
    }
}

impl Route for DevNullRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.statistics.counters.dev_null_requests.add(batch.len() as u64);
        NullRoute.route(batch, context)
    }
}

pub(crate) const TYPE: RouteType = RouteType::without_arguments("DevNullRoute", |_, tree| {
    Arc::new(DevNullRoute { statistics: tree.environment().statistics.clone() })
})
.with_mcrouter_name("devnull");
