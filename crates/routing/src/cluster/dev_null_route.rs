//! Swallows requests: answers as an empty cache would, and counts.
//!
//! | verb | answer |
//! |---|---|
//! | all | as `null_route.rs`: a miss, `NOT_STORED`, `NOT_FOUND` |
//!
//! Nobody is asked. Unlike `NullRoute`, which is a tree's end by design, this is where traffic is sent to be got rid of,
//! so it can be asked how much that was.

use crate::{Batch, BoxFuture, Context, NullRoute, Outcomes, Route};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Nowhere, counted.
#[derive(Default)]
pub struct DevNullRoute {
    swallowed: AtomicU64,
}

impl DevNullRoute {
    /// Requests that came here.
    pub fn swallowed(&self) -> u64 {
        self.swallowed.load(Relaxed)
    }
}

impl Route for DevNullRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.swallowed.fetch_add(batch.len() as u64, Relaxed);
        NullRoute.route(batch, context)
    }
}
