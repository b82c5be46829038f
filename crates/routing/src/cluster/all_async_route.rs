//! Sends requests to all children and waits for none.
//!
//! | verb | sent to | reply |
//! |---|---|---|
//! | all | all, in the background | that of an empty cache (`null_route.rs`), at once |
//!
//! The reply to a delete is `NOT_FOUND`, whatever its outcome: where deletes matter, route them around this route
//! (`OperationSelectorRoute`). Bounded: without a background permit the caller waits until all children have replied.

use crate::{
    Batch, BoxFuture, Context, Outcomes, Route,
    cluster::null_route::empty_cache_reply,
    configuration::RouteType,
    environment::Background,
    split::{ready_outcomes, route_owned},
};
use futures_util::future::join_all;
use std::sync::Arc;

/// All children, none awaited.
pub struct AllAsyncRoute {
    children: Vec<Arc<dyn Route>>,
    background: Background,
}

impl AllAsyncRoute {
    /// Sends every batch to all of `children`.
    pub fn new(children: Vec<Arc<dyn Route>>, background: Background) -> Self {
        AllAsyncRoute { children, background }
    }
}

impl Route for AllAsyncRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        let outcomes: Outcomes = batch.iter().map(empty_cache_reply).collect();
        if batch.is_empty() {
            return ready_outcomes(outcomes);
        }
        let pending = join_all(self.children.iter().map(|child| route_owned(child, batch.clone(), context)));
        match self.background.try_permit() {
            Some(permit) => {
                permit.spawn_rest(async move { drop(pending.await) });
                ready_outcomes(outcomes)
            }
            None => Box::pin(async move {
                pending.await;
                outcomes
            }),
        }
    }
}

pub(crate) const TYPE: RouteType = RouteType::of_children("AllAsyncRoute", |children, tree| {
    let children = tree.build_all(children);
    Arc::new(AllAsyncRoute::new(children, tree.environment().background.clone()))
});
