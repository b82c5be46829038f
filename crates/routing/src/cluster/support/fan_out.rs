//! Sends a batch to several children of which not all are awaited: the base of the `All...Route`s.
//!
//! Children that have not replied when the caller returns or is dropped continue in the background. A permit for that
//! is taken before they are asked; without one the caller waits for all (`environment.rs` explains why).

use crate::{
    Batch, BoxFuture, Context, Outcomes,
    environment::{Background, BackgroundPermit},
    split::{Children, route_owned},
};
use futures_util::stream::{FuturesUnordered, StreamExt};

/// A batch that was sent to several children.
pub(crate) struct FanOut {
    pending: FuturesUnordered<BoxFuture<'static, Outcomes>>,
    permit: Option<BackgroundPermit>,
}

impl FanOut {
    /// Sends `batch` to all of `children`.
    pub(crate) fn all(children: &Children, batch: Batch, context: &Context, background: &Background) -> Self {
        let pending = children.iter().map(|child| route_owned(child, batch.clone(), context)).collect();
        FanOut { pending, permit: background.try_permit() }
    }

    /// Whether the caller may return before all have replied.
    pub(crate) fn may_return_early(&self) -> bool {
        self.permit.is_some()
    }

    /// The outcomes of the next child that replies.
    pub(crate) async fn next(&mut self) -> Option<Outcomes> {
        self.pending.next().await
    }
}

impl Drop for FanOut {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take()
            && !self.pending.is_empty()
        {
            let mut pending = std::mem::take(&mut self.pending);
            permit.spawn_rest(async move { while pending.next().await.is_some() {} });
        }
    }
}
