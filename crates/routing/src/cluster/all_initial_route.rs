//! Asks all children and returns the first child's reply; the others continue in the background.
//!
//! | verb | sent to | reply |
//! |---|---|---|
//! | all | all: the first child by the caller, the others in the background | the first child's, whatever it is |
//!
//! A miss, an error or a timeout of the first child is returned; the outcomes of the others are dropped. That includes
//! their refusal of a `cas` or `lease-set` whose CAS unique or token is the first child's. For deletes that must reach
//! every copy use `AllSyncRoute`. Bounded: without a background permit the caller waits for all.

use crate::{
    Batch, BoxFuture, Context, Outcomes, Route,
    configuration::RouteType,
    environment::Background,
    split::{Children, route_owned},
};
use futures_util::future::{join, join_all};
use std::sync::Arc;

/// All children; the first is awaited.
pub struct AllInitialRoute {
    children: Vec<Arc<dyn Route>>,
    background: Background,
}

impl AllInitialRoute {
    /// Asks every one of `children`.
    ///
    /// # Panics
    /// Without a child.
    pub fn new(children: Vec<Arc<dyn Route>>, background: Background) -> Self {
        assert!(!children.is_empty(), "no child to ask");
        AllInitialRoute { children, background }
    }
}

impl Route for AllInitialRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        let (first, others): (_, &Children) = self.children.split_first().expect("at least one child");
        if others.is_empty() || batch.is_empty() {
            return first.route(batch, context);
        }
        let pending = join_all(others.iter().map(|child| route_owned(child, batch.clone(), context)));
        match self.background.try_permit() {
            Some(permit) => {
                permit.spawn_rest(async move { drop(pending.await) });
                first.route(batch, context)
            }
            None => Box::pin(async move { join(first.route(batch, context), pending).await.0 }),
        }
    }
}

pub(crate) const TYPE: RouteType = RouteType::of_children("AllInitialRoute", |children, tree| {
    let children = tree.build_all(children);
    Arc::new(AllInitialRoute::new(children, tree.environment().background.clone()))
});
