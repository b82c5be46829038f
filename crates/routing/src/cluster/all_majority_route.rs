//! Asks all children and returns the reply of more than half of them.
//!
//! | verb | sent to | reply |
//! |---|---|---|
//! | all | all, concurrently | the first outcome on which more than half agree; without a majority the worst (`all_sync_route.rs`) |
//!
//! Outcomes agree if they are of one kind: two hits agree, whatever their values; so do all failures, so a majority of
//! timeouts is a failure. So a `cas` or `lease-set`, which only one child can accept, is refused.
//!
//! Once there is a majority, children that have not replied yet continue in the background. Bounded: without a permit
//! the caller waits for all; the reply is the same.

use crate::{
    Batch, BoxFuture, Context, Outcome, Outcomes, Route,
    cluster::support::fan_out::FanOut,
    configuration::RouteType,
    environment::Background,
    outcome::{outcomes_agree, worse},
};
use std::sync::Arc;

/// All children; more than half of them are awaited.
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
                ballot.count_vote(outcome, self.children.len());
            }
            if asked.may_return_early() && ballots.iter().all(|ballot| ballot.decided.is_some()) {
                break;
            }
        }
        ballots.into_iter().map(Ballot::into_outcome).collect()
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

#[derive(Clone, Default)]
struct Ballot {
    /// The first outcome of each kind, and its votes.
    kinds: Vec<(Outcome, usize)>,
    /// The index in `kinds` of the majority; `None` as long as there is none.
    decided: Option<usize>,
}

impl Ballot {
    fn count_vote(&mut self, outcome: Outcome, voters: usize) {
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

    fn into_outcome(mut self) -> Outcome {
        match self.decided {
            Some(at) => self.kinds.swap_remove(at).0,
            None => self.kinds.into_iter().map(|(outcome, _)| outcome).reduce(worse).expect("every child has replied"),
        }
    }
}

pub(crate) const TYPE: RouteType = RouteType::of_children("AllMajorityRoute", |children, tree| {
    let children = tree.build_all(children);
    Arc::new(AllMajorityRoute::new(children, tree.environment().background.clone()))
});
