//! Asks all children and returns the first reply that is not an error.
//!
//! | verb | sent to | reply |
//! |---|---|---|
//! | all | all, concurrently | for each request the first outcome that is not an error; the last error if all failed |
//!
//! A miss is not an error: a miss of the fastest child is returned even if another child holds the key. A lease token
//! is valid only if the `lease-set` is routed to the child that was fastest: keep leases out of this route.
//!
//! Children that have not replied yet continue in the background, also if the caller is dropped. Bounded: without a
//! permit the caller waits for all; the reply is the same.

use crate::{
    Batch, BoxFuture, Context, Failure, Outcome, Outcomes, Route, cluster::support::fan_out::FanOut,
    configuration::RouteType, environment::Background, outcome::is_error,
};
use std::sync::Arc;

/// All children; the fastest is awaited.
pub struct AllFastestRoute {
    children: Vec<Arc<dyn Route>>,
    background: Background,
}

impl AllFastestRoute {
    /// Asks every one of `children`.
    ///
    /// # Panics
    /// Without a child.
    pub fn new(children: Vec<Arc<dyn Route>>, background: Background) -> Self {
        assert!(!children.is_empty(), "no child to ask");
        AllFastestRoute { children, background }
    }

    async fn race(&self, batch: Batch, context: &Context) -> Outcomes {
        let mut best: Vec<Outcome> = vec![Err(Failure::TimedOut); batch.len()];
        let mut asked = FanOut::all(&self.children, batch, context, &self.background);
        while let Some(outcomes) = asked.next().await {
            for (best, outcome) in best.iter_mut().zip(outcomes) {
                if is_error(best) {
                    *best = outcome;
                }
            }
            if asked.may_return_early() && !best.iter().any(is_error) {
                break;
            }
        }
        best
    }
}

impl Route for AllFastestRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match &*self.children {
            [only] => only.route(batch, context),
            _ => Box::pin(self.race(batch, context)),
        }
    }
}

pub(crate) const TYPE: RouteType = RouteType::of_children("AllFastestRoute", |children, tree| {
    let children = tree.build_all(children);
    Arc::new(AllFastestRoute::new(children, tree.environment().background.clone()))
});
