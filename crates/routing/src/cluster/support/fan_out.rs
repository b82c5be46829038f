//! Asking several children of which not all are waited for: what the `All...Route`s stand on.
//!
//! Children that have not answered when the caller has heard enough, or when the caller itself is dropped, go on in the
//! background. Their place there is taken before they are asked; without one the caller waits for all
//! (`environment.rs` says why).

use crate::{
    Batch, BoxFuture, Context, Outcomes, Route,
    environment::{Background, Place},
    split::Children,
};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;

/// Asks a child in a future of its own, which can outlive the caller's.
pub(crate) fn owned(child: &Arc<dyn Route>, batch: Batch, context: &Context) -> BoxFuture<'static, Outcomes> {
    let (child, context, asked) = (child.clone(), *context, batch.len());
    Box::pin(async move {
        let outcomes = child.route(batch, &context).await;
        assert_eq!(outcomes.len(), asked, "a route answers every request once");
        outcomes
    })
}

/// Children that were asked.
pub(crate) struct Asked {
    pending: FuturesUnordered<BoxFuture<'static, Outcomes>>,
    place: Option<Place>,
}

impl Asked {
    /// Asks all of `children` the same.
    pub(crate) fn all(children: &Children, batch: Batch, context: &Context, background: &Background) -> Self {
        let pending = children.iter().map(|child| owned(child, batch.clone(), context)).collect();
        Asked { pending, place: background.place() }
    }

    /// Whether the caller may leave before all have answered.
    pub(crate) fn may_leave(&self) -> bool {
        self.place.is_some()
    }

    /// The answer of the child that is the next to have one.
    pub(crate) async fn next(&mut self) -> Option<Outcomes> {
        self.pending.next().await
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(place) = self.place.take()
            && !self.pending.is_empty()
        {
            let mut pending = std::mem::take(&mut self.pending);
            place.run(async move { while pending.next().await.is_some() {} });
        }
    }
}
