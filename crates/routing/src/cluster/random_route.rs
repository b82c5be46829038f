//! A random child for each batch.
//!
//! | verb | effect |
//! |---|---|
//! | all | the whole batch goes to one child; all are equally likely |
//!
//! One choice for each batch, not for each request as in mcrouter: a multiget stays whole, and pipelined requests for
//! one key stay in order. A delete reaches one child only, and a `lease-set` rarely the child that issued the token:
//! this route is for reads of copies. A child's failure is returned.

use crate::{
    Batch, BoxFuture, Context, Outcomes, Route,
    configuration::{Handle, RouteConfig, RouteType, TreeBuilder},
    environment::SharedRng,
};
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

pub(crate) const TYPE: RouteType = RouteType::new("RandomRoute", |object, parser| {
    Ok(Handle::route(Config { children: parser.only_children(object)? }))
})
.with_short_form(|node, argument, parser| {
    let children = parser.short_children(node, argument)?;
    Ok(children.map(|children| Handle::route(Config { children })))
});

#[derive(Debug, PartialEq)]
struct Config {
    children: Vec<Handle>,
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let seed = tree.next_seed();
        Arc::new(RandomRoute::new(tree.build_all(&self.children), seed))
    }
}
