//! Asks all children and answers with whatever comes first and is no error.
//!
//! | verb | sent to | answer |
//! |---|---|---|
//! | all | all, at the same time | of each request the first outcome that is no error; the last error if all failed |
//!
//! A miss is no error: the fastest child's miss is the answer, even if another child holds the key. A lease's token
//! works only where the route of the `lease-set` leads to the child that was fastest: select leases away.
//!
//! Children that are still at work when the answer is there go on in the background, also when the caller is gone.
//! Bounded: without a place there the caller waits for all; the answer is the same.

use crate::{
    Batch, BoxFuture, Context, Failure, Outcome, Outcomes, Route,
    cluster::support::fan_out::FanOut,
    configuration::{Handle, RouteConfig, RouteType, TreeBuilder},
    environment::Background,
    outcome::is_error,
};
use std::sync::Arc;

/// All children, the fastest awaited.
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

pub(crate) const TYPE: RouteType = RouteType::new("AllFastestRoute", |object, parser| {
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
        let children = tree.build_all(&self.children);
        Arc::new(AllFastestRoute::new(children, tree.environment().background.clone()))
    }
}
