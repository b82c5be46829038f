//! Drops requests: replies as an empty cache would, and counts.
//!
//! | verb | reply |
//! |---|---|
//! | all | as `null_route.rs`: a miss, `NOT_STORED`, `NOT_FOUND` |
//!
//! No server is asked. Unlike `NullRoute`, which ends a tree by design, this route discards traffic, so it counts it.

use crate::{
    Batch, BoxFuture, Context, NullRoute, Outcomes, Route,
    configuration::{Handle, Keys, RouteConfig, RouteType, TreeBuilder},
};
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

pub(crate) const TYPE: RouteType = RouteType::new("DevNullRoute", |object, _| {
    object.check(&Keys::known(&["type", "name"]))?;
    Ok(Handle::route(Config))
})
.with_short_form(|_, argument, _| Ok(argument.is_none().then(|| Handle::route(Config))));

#[derive(Debug, PartialEq)]
struct Config;

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn build(&self, _: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        Arc::new(DevNullRoute::default())
    }
}
