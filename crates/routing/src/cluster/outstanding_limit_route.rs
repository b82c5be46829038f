//! A window: at most N outstanding requests, so that replies do not arrive all at once (§3.1 of the paper, incast
//! congestion).
//!
//! | verb | effect |
//! |---|---|
//! | all | sent while at most `max_outstanding` requests are unanswered; the others queue |
//! | all, with [`OUTSTANDING_WAITING_MAX`] requests in the queue | fails at once with "too many requests outstanding" |
//!
//! The queue is first in, first out, by batches. A client has one batch in flight at a time, so clients take turns; a
//! batch larger than the window is sent in parts that fit, each of which queues again, so that it does not lock out the
//! rest. Every outcome returns the permit, and so does a dropped caller.

use crate::{
    Batch, BoxFuture, Context, Failure, Outcomes, Route,
    configuration::{ConfigurationError, Handle, Keys, Node, Object, Parser, RouteConfig, RouteType, TreeBuilder},
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use tokio::sync::Semaphore;

/// The maximum number of requests that queue for one target: mcrouter's target-max-pending.
pub const OUTSTANDING_WAITING_MAX: usize = 100_000;

/// A child with a window.
pub struct OutstandingLimitRoute {
    target: Arc<dyn Route>,
    outstanding_max: u32,
    window: Semaphore,
    waiting: AtomicUsize,
    waiting_max: usize,
}

impl OutstandingLimitRoute {
    /// Lets at most `outstanding_max` requests to `target` be unanswered, and `waiting_max` queue.
    ///
    /// # Panics
    /// With a window of 0.
    pub fn new(target: Arc<dyn Route>, outstanding_max: u32, waiting_max: usize) -> Self {
        assert!(outstanding_max > 0, "a window of 0 admits no request");
        let window = Semaphore::new(outstanding_max as usize);
        OutstandingLimitRoute { target, outstanding_max, window, waiting: AtomicUsize::new(0), waiting_max }
    }

    async fn route_in_window(&self, batch: Batch, context: &Context) -> Outcomes {
        let mut outcomes = Outcomes::with_capacity(batch.len());
        let mut rest = batch;
        while !rest.is_empty() {
            let later = rest.split_off(rest.len().min(self.outstanding_max as usize));
            let part = std::mem::replace(&mut rest, later);
            let Some(queued) = QueuePermit::try_enter(&self.waiting, part.len(), self.waiting_max) else {
                outcomes.extend(part.iter().map(|_| Err(Failure::Busy)));
                continue;
            };
            let requests = part.len() as u32; // At most the window, which is a u32.
            let permit = self.window.acquire_many(requests).await.expect("the window is never closed");
            drop(queued);
            outcomes.extend(self.target.route(part, context).await);
            drop(permit);
        }
        outcomes
    }
}

impl Route for OutstandingLimitRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(self.route_in_window(batch, context))
    }
}

/// Requests in the queue; dropping the permit removes them.
struct QueuePermit<'a> {
    waiting: &'a AtomicUsize,
    requests: usize,
}

impl<'a> QueuePermit<'a> {
    fn try_enter(waiting: &'a AtomicUsize, requests: usize, waiting_max: usize) -> Option<Self> {
        let queued = QueuePermit { waiting, requests };
        (waiting.fetch_add(requests, Relaxed) + requests <= waiting_max).then_some(queued)
    }
}

impl Drop for QueuePermit<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.requests, Relaxed);
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("OutstandingLimitRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    target: Handle,
    outstanding_max: u32,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "target", "max_outstanding"]))?;
    let window = object.require("max_outstanding", "the number of requests that may be unanswered")?;
    let target = parser.parse_required(object, "target")?;
    Ok(Handle::route(Config { target, outstanding_max: parse_outstanding_max(&window)? }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        vec![("limit", self.outstanding_max.to_string())]
    }

    fn passes_reads(&self) -> bool {
        true
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let target = tree.build(&self.target);
        Arc::new(OutstandingLimitRoute::new(target, self.outstanding_max, OUTSTANDING_WAITING_MAX))
    }
}

/// A larger window limits nothing.
const OUTSTANDING_MAX: i64 = 1_000_000;

pub(crate) fn parse_outstanding_max(node: &Node<'_>) -> Result<u32, ConfigurationError> {
    Ok(node.integer("requests", 1, OUTSTANDING_MAX)? as u32)
}
