//! A random child for each batch.
//!
//! | verb | effect |
//! |---|---|
//! | all | the whole batch goes to one child; all are equally likely |
//!
//! mcrouter chooses for each request; here a multiget stays whole, and pipelined requests for one key stay in order. A
//! delete reaches one child only, and a `lease-set` rarely the child that issued the token: this route is for reads of
//! copies. A child's failure is returned.

use crate::{Batch, BoxFuture, Context, Outcomes, Route, configuration::RouteType, environment::SharedRng};
use std::sync::Arc;

/// Interchangeable children.
pub struct RandomRoute {
    children: Vec<Arc<dyn Route>>,
    rng: SharedRng,
}

impl RandomRoute {
    /// Chooses among `children`, by random numbers from `seed`.
    ///
    /// # Panics
    /// Without a child.
    pub fn new(children: Vec<Arc<dyn Route>>, seed: u64) -> Self {
        assert!(!children.is_empty(), "no child to ask");
        RandomRoute { children, rng: SharedRng::new(seed) }
    }
}

impl Route for RandomRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.children[self.rng.next_below(self.children.len())].route(batch, context)
    }
}

pub(crate) const TYPE: RouteType = RouteType::of_children("RandomRoute", |children, tree| {
    let seed = tree.next_seed();
    Arc::new(RandomRoute::new(tree.build_all(children), seed))
});
