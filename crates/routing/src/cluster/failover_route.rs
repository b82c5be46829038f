//! The first child; where that fails, the next one, and so on (§3.3 of the paper).
//!
//! | verb | after a failure that counts | answer |
//! |---|---|---|
//! | get gets gat gats lease-get metaget | the next child, until one answers | that child's, or the last one's failure |
//! | set add replace append prepend cas lease-set touch incr decr | the same | the same |
//! | delete | every further child, as each may hold a copy | **the first child's failure stands**; a kept delete gives way to what is worse |
//!
//! Failures only: a miss does not fail over. Which failures count is in `failover_errors.rs`.
//!
//! A failed delete stays failed: the first child still holds the value that was to go, and whoever hears "done" will
//! not ask again. One that is kept for its server ([`Failure::Spooled`]) is as good as done there, but meanwhile it is the
//! others that are read: so they are asked too, and it is done when they have done it or keep it.
//!
//! A lease follows by itself: its token is unknown everywhere but on the server that handed it out, so a fill that
//! arrives elsewhere after a failover is refused.
//!
//! Cost: a second copy of the batch's handles (not of its bytes) until the first child has answered.

use crate::{
    Batch, BoxFuture, Context, FailoverErrors, Failure, Outcomes, Route,
    cluster::all_sync_route::worse,
    verb::{Kind, Verb},
};
use bytes::Bytes;
use lookaside_protocol::Request;
use std::sync::Arc;

/// Children in order of preference.
pub struct FailoverRoute {
    first: Arc<dyn Route>,
    others: Vec<Arc<dyn Route>>,
    errors: FailoverErrors,
}

impl FailoverRoute {
    /// Asks `first`, and `others` in order where it fails with one of `errors`.
    pub fn new(first: Arc<dyn Route>, others: Vec<Arc<dyn Route>>, errors: FailoverErrors) -> Self {
        FailoverRoute { first, others, errors }
    }

    async fn ask_in_order(&self, batch: Batch, context: &Context) -> Outcomes {
        let kept = batch.clone();
        let mut outcomes = self.first.route(batch, context).await;
        for child in &self.others {
            let failed = self.failed(&kept, &outcomes);
            if failed.is_empty() {
                break;
            }
            let again = failed.iter().map(|&at| kept[at].clone()).collect();
            let answers = child.route(again, context).await;
            assert_eq!(answers.len(), failed.len(), "a route answers every request once");
            for (at, answer) in failed.into_iter().zip(answers) {
                if kind(&kept[at]) != Kind::Delete {
                    outcomes[at] = answer;
                } else if outcomes[at] == Err(Failure::Spooled) {
                    outcomes[at] = worse(Err(Failure::Spooled), answer);
                }
            }
        }
        outcomes
    }

    /// Indices of the requests that the next child is to be asked.
    fn failed(&self, batch: &Batch, outcomes: &Outcomes) -> Vec<usize> {
        let asked = batch.iter().zip(outcomes).enumerate();
        asked.filter(|(_, (request, outcome))| self.errors.count(kind(request), outcome)).map(|(at, _)| at).collect()
    }
}

impl Route for FailoverRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        if self.others.is_empty() {
            return self.first.route(batch, context);
        }
        Box::pin(self.ask_in_order(batch, context))
    }
}

fn kind(request: &Request<Bytes>) -> Kind {
    Verb::of(&request.operation).kind()
}
