//! Splits a batch among children and restores the order of the outcomes: the base of every route that chooses.
//!
//! ```text
//!   batch      a b c d e            choices  0 1 0 2 1
//!   parts      0: a c   1: b e   2: d           each child asked once, all concurrently
//!   outcomes   for each choice, the next outcome of the chosen child
//! ```
//!
//! Invariants: each child gets its requests in the order of the batch; a batch for one child is passed on without a
//! copy or an allocation; children are polled by the caller's own task, so nothing outlives the batch but what
//! [`route_owned`] asks.

use crate::{Batch, BoxFuture, Context, Outcome, Outcomes, Route};
use bytes::Bytes;
use futures_util::future::join_all;
use lookaside_protocol::Request;
use std::{future::ready, sync::Arc, vec};

pub(crate) type Children = [Arc<dyn Route>];

pub(crate) fn ready_outcomes<'a>(outcomes: Outcomes) -> BoxFuture<'a, Outcomes> {
    Box::pin(ready(outcomes))
}

pub(crate) enum Choices {
    /// The whole batch goes to one child.
    Whole(usize),
    /// The index of a child for each request.
    Each(Vec<u32>),
}

impl Choices {
    /// Calls `choose` once for each request.
    pub(crate) fn of(batch: &Batch, choose: impl Fn(&Request<Bytes>) -> usize) -> Choices {
        let Some((first, rest)) = batch.split_first() else { return Choices::Whole(0) };
        let child = choose(first);
        for (at, request) in rest.iter().enumerate() {
            let other = choose(request);
            if other != child {
                let mut each = Vec::with_capacity(batch.len());
                each.resize(at + 1, child as u32);
                each.push(other as u32);
                each.extend(rest[at + 1..].iter().map(|request| choose(request) as u32));
                return Choices::Each(each);
            }
        }
        Choices::Whole(child)
    }
}

pub(crate) fn split<'a>(
    children: &'a Children,
    batch: Batch,
    context: &'a Context,
    choose: impl Fn(&Request<Bytes>) -> usize,
) -> BoxFuture<'a, Outcomes> {
    match Choices::of(&batch, choose) {
        _ if batch.is_empty() => ready_outcomes(Outcomes::new()),
        Choices::Whole(child) => children[child].route(batch, context),
        Choices::Each(choices) => Box::pin(scatter(children, batch, context, choices)),
    }
}

/// Sends request `i` to child `choices[i]`, all children concurrently.
pub(crate) async fn scatter(children: &Children, batch: Batch, context: &Context, choices: Vec<u32>) -> Outcomes {
    let mut counts = vec![0_u32; children.len()];
    choices.iter().for_each(|&child| counts[child as usize] += 1);
    let mut parts: Vec<Part> = Vec::with_capacity(counts.iter().filter(|&&count| count > 0).count());
    let mut part_of_child = counts;
    for (child, slot) in part_of_child.iter_mut().enumerate().filter(|(_, slot)| **slot > 0) {
        let batch = Batch::with_capacity(*slot as usize);
        *slot = parts.len() as u32;
        parts.push(Part { child, batch });
    }
    for (request, &child) in batch.into_iter().zip(&choices) {
        parts[part_of_child[child as usize] as usize].batch.push(request);
    }
    let mut outcomes = route_parts(children, parts, context).await;
    choices.iter().map(|&child| next(&mut outcomes[part_of_child[child as usize] as usize])).collect()
}

pub(crate) struct Part {
    pub(crate) child: usize,
    pub(crate) batch: Batch,
}

/// Sends parts to several children concurrently. Returns their outcomes in the order of `parts`.
pub(crate) async fn route_parts(
    children: &Children,
    parts: Vec<Part>,
    context: &Context,
) -> Vec<vec::IntoIter<Outcome>> {
    let pending = parts.into_iter().map(|Part { child, batch }| route_checked(&*children[child], batch, context));
    join_all(pending).await.into_iter().map(Vec::into_iter).collect()
}

/// Sends a batch to one child, and asserts its contract: an outcome for each request.
fn route_checked<'a>(
    child: &'a dyn Route,
    batch: Batch,
    context: &'a Context,
) -> impl Future<Output = Outcomes> + Send + 'a {
    let requests = batch.len();
    let outcomes = child.route(batch, context);
    async move {
        let outcomes = outcomes.await;
        assert_eq!(outcomes.len(), requests, "a route answers every request once");
        outcomes
    }
}

/// Sends a batch to one child in a future of its own, which can outlive the caller's.
pub(crate) fn route_owned(child: &Arc<dyn Route>, batch: Batch, context: &Context) -> BoxFuture<'static, Outcomes> {
    let (child, context) = (child.clone(), context.clone());
    Box::pin(async move { route_checked(&*child, batch, &context).await })
}

/// Sends some requests of a batch to one child. Requests and outcomes have their index in the batch.
pub(crate) async fn route_some(
    child: &dyn Route,
    some: Vec<(usize, Request<Bytes>)>,
    context: &Context,
) -> Vec<(usize, Outcome)> {
    if some.is_empty() {
        return Vec::new();
    }
    let (at, batch): (Vec<usize>, Batch) = some.into_iter().unzip();
    at.into_iter().zip(route_checked(child, batch, context).await).collect()
}

/// The next outcome of a child; `route_checked` asserts that there is one.
pub(crate) fn next(outcomes: &mut vec::IntoIter<Outcome>) -> Outcome {
    outcomes.next().expect("one outcome for each request that was sent")
}
