//! Drops requests: replies as an empty cache would, and counts.
//!
//! | verb | reply |
//! |---|---|
//! | all | as `null_route.rs`: a miss, `NOT_STORED`, `NOT_FOUND` |
//!
//! No server is asked. Unlike `NullRoute`, which ends a tree by design, this route discards traffic, so it counts it.

use crate::{Batch, BoxFuture, Context, NullRoute, Outcomes, Route, configuration::RouteType};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Drops and counts requests.
#[derive(Default)]
pub struct DevNullRoute {
    dropped: AtomicU64,
}

impl DevNullRoute {
    /// The number of dropped requests.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

impl Route for DevNullRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.dropped.fetch_add(batch.len() as u64, Relaxed);
        NullRoute.route(batch, context)
    }
}

pub(crate) const TYPE: RouteType =
    RouteType::without_arguments("DevNullRoute", |_, _| Arc::new(DevNullRoute::default()));
