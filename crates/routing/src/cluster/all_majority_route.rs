//! Asks all children and answers with what more than half of them say.
//!
//! | verb | sent to | answer |
//! |---|---|---|
//! | all | all, at the same time | the first outcome that more than half agree on; without one the worst (`all_sync_route.rs`) |
//!
//! Outcomes agree if they are of one kind: two hits do, whatever their values; all failures do, so that a majority of
//! timeouts is a failure. A `cas` or `lease-set`, which only one child can accept, is so refused.
//!
//! Children that are still at work when a majority has spoken go on in the background. Bounded: without a place there
//! the caller waits for all; the answer is the same.

use crate::{
    Batch, BoxFuture, Context, Outcome, Outcomes, Route,
    cluster::support::fan_out::FanOut,
    configuration::{Handle, RouteConfig, RouteType, TreeBuilder},
    environment::Background,
    outcome::{outcomes_agree, worse},
};
use std::sync::Arc;

/// All children, more than half of them awaited.
pub struct AllMajorityRoute {
    children: Vec<Arc<dyn Route>>,
    background: Background,
}

impl AllMajorityRoute {
    /// Asks every one of `children`.
    ///
    /// # Panics
    /// Without a child.
    pub fn new(children: Vec<Arc<dyn Route>>, background: Background) -> Self {
        assert!(!children.is_empty(), "no child to ask");
        AllMajorityRoute { children, background }
    }

    async fn vote(&self, batch: Batch, context: &Context) -> Outcomes {
        let mut ballots = vec![Ballot::default(); batch.len()];
        let mut asked = FanOut::all(&self.children, batch, context, &self.background);
        while let Some(outcomes) = asked.next().await {
            for (ballot, outcome) in ballots.iter_mut().zip(outcomes) {
                ballot.count(outcome, self.children.len());
            }
            if asked.may_return_early() && ballots.iter().all(|ballot| ballot.decided.is_some()) {
                break;
            }
        }
        ballots.into_iter().map(Ballot::result).collect()
    }
}

impl Route for AllMajorityRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match &*self.children {
            [only] => only.route(batch, context),
            _ => Box::pin(self.vote(batch, context)),
        }
    }
}

/// What was said about one request.
#[derive(Clone, Default)]
struct Ballot {
    /// The first outcome of each kind, and how many said so.
    kinds: Vec<(Outcome, usize)>,
    /// Which of `kinds` more than half agree on.
    decided: Option<usize>,
}

impl Ballot {
    fn count(&mut self, outcome: Outcome, voters: usize) {
        let at = match self.kinds.iter().position(|(kind, _)| outcomes_agree(kind, &outcome)) {
            Some(at) => at,
            None => {
                self.kinds.push((outcome, 0));
                self.kinds.len() - 1
            }
        };
        self.kinds[at].1 += 1;
        if self.kinds[at].1 > voters / 2 {
            self.decided = Some(at);
        }
    }

    fn result(mut self) -> Outcome {
        match self.decided {
            Some(at) => self.kinds.swap_remove(at).0,
            None => self.kinds.into_iter().map(|(outcome, _)| outcome).reduce(worse).expect("every child has spoken"),
        }
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("AllMajorityRoute", |object, parser| {
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
        Arc::new(AllMajorityRoute::new(children, tree.environment().background.clone()))
    }
}
