//! The reads of a direct client through a route that stores what it reads elsewhere. Such a client sends servers
//! nothing but reads, so a router is sent the reads after which something is to be stored, and stores it: the router's
//! own tree has the same route.
//!
//! ```text
//!   get k, lease-get k    --> first: get k --> a value, or a lost datagram
//!                               anything else --> router: get k, lease-get k
//!   all others                                --> the route itself
//! ```
//!
//! Without a first child all these reads are the router's. `gets` is the router's, too: CAS unique and exptime may be
//! those of another child than the first.
//!
//! A lost datagram is a miss that is not filled (§3.1 of the paper): datagrams are lost where replies come faster than
//! a switch can pass them on, and to ask a router at once, by TCP, would add to them.
//!
//! The first child is asked without the client's misses: the router has the last word on whether a key is missing, and
//! gives the lease.

use crate::{
    Batch, BoxFuture, Context, Environment, Failure, Outcome, Outcomes, Route, outcome::as_get, split::route_some,
};
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request};
use std::sync::Arc;

/// A child that is asked before the router.
pub(crate) struct FirstChild {
    pub(crate) route: Arc<dyn Route>,
    /// Whether what it replies to a get is the value of the key.
    pub(crate) is_value: fn(&Outcome) -> bool,
}

/// `route`, or in a direct client what takes its place: reads that `first` does not answer go through a router.
pub(crate) fn filled_by_router(
    route: Arc<dyn Route>,
    first: Option<FirstChild>,
    environment: &Environment,
) -> Arc<dyn Route> {
    match environment.filling_router.clone() {
        None => route,
        Some(router) => Arc::new(FilledByRouter { route, first, router }),
    }
}

struct FilledByRouter {
    route: Arc<dyn Route>,
    first: Option<FirstChild>,
    router: Arc<dyn Route>,
}

impl FilledByRouter {
    async fn read(&self, batch: Batch, context: &Context) -> Outcomes {
        let mut outcomes: Outcomes = vec![Ok(Reply::Miss); batch.len()];
        let mut is_answered = vec![false; batch.len()];
        if let Some(FirstChild { route, is_value }) = &self.first {
            let may_answer = |request: &Request<Bytes>| !matches!(request.operation, Operation::Get { cas: true });
            let asked = batch.iter().enumerate().filter(|(_, request)| may_answer(request));
            let asked = asked.map(|(at, request)| (at, as_get(request))).collect();
            for (at, outcome) in route_some(&**route, asked, &context.without_misses()).await {
                is_answered[at] = is_value(&outcome) || matches!(outcome, Err(Failure::DatagramLost { .. }));
                outcomes[at] = outcome;
            }
        }
        let left = batch.into_iter().enumerate().filter(|(at, _)| !is_answered[*at]).collect();
        for (at, outcome) in route_some(&*self.router, left, context).await {
            outcomes[at] = outcome;
        }
        outcomes
    }
}

impl Route for FilledByRouter {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        let is_read =
            |request: &Request<Bytes>| matches!(request.operation, Operation::Get { .. } | Operation::LeaseGet);
        match batch.iter().all(is_read) {
            true => Box::pin(self.read(batch, context)),
            false => self.route.route(batch, context),
        }
    }
}
