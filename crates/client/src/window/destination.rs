//! A destination behind a window.

use super::Window;
use bytes::Bytes;
use lookaside_protocol::Request;
use lookaside_routing::{Address, Batch, BoxFuture, Destination, Outcomes};
use std::sync::Arc;

/// A destination whose requests wait for a window that it shares with others.
pub struct WindowedDestination {
    inner: Arc<dyn Destination>,
    window: Arc<Window>,
}

impl WindowedDestination {
    /// Puts `window` in front of `inner`.
    pub fn new(inner: Arc<dyn Destination>, window: Arc<Window>) -> WindowedDestination {
        WindowedDestination { inner, window }
    }

    async fn send_part(&self, batch: Batch) -> Outcomes {
        match self.window.acquire(batch.len()).await {
            Ok(permit) => {
                let outcomes = self.inner.send(batch).await;
                permit.adjust_window(&outcomes);
                outcomes
            }
            Err(failure) => vec![Err(failure); batch.len()],
        }
    }
}

impl Destination for WindowedDestination {
    fn send(&self, mut batch: Batch) -> BoxFuture<'_, Outcomes> {
        Box::pin(async move {
            let mut outcomes = Outcomes::with_capacity(batch.len());
            if batch.is_empty() {
                return outcomes;
            }
            loop {
                let part = self.window.part_of(batch.len());
                let rest: Vec<Request<Bytes>> = batch.split_off(part);
                outcomes.extend(self.send_part(batch).await);
                if rest.is_empty() {
                    return outcomes;
                }
                batch = rest;
            }
        })
    }

    fn address(&self) -> &Address {
        self.inner.address()
    }
}
