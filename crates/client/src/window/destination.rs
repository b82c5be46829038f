//! A destination behind a window.

use super::Window;
use bytes::Bytes;
use lookaside_protocol::Request;
use lookaside_routing::{Address, Batch, BoxFuture, Destination, Failure, Outcomes};
use std::sync::Arc;
use tokio::time::Instant;

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

    /// Sends a part of a batch that came at `since`, once it fits into the window.
    async fn send_part(&self, part: Batch, since: Instant) -> Result<Outcomes, Failure> {
        let permit = self.window.acquire(part.len(), since).await?;
        let outcomes = self.inner.send(part).await;
        permit.adjust_window(&outcomes);
        Ok(outcomes)
    }
}

impl Destination for WindowedDestination {
    fn send(&self, mut batch: Batch) -> BoxFuture<'_, Outcomes> {
        Box::pin(async move {
            let (since, requests) = (Instant::now(), batch.len());
            let mut outcomes = Outcomes::with_capacity(requests);
            while !batch.is_empty() {
                let part = self.window.part_of(batch.len());
                let rest: Vec<Request<Bytes>> = batch.split_off(part);
                match self.send_part(batch, since).await {
                    Ok(of_part) => outcomes.extend(of_part),
                    Err(_) => break,
                }
                if !rest.is_empty() && self.window.wait_left(since).is_zero() {
                    break;
                }
                batch = rest;
            }
            outcomes.resize(requests, Err(Failure::Busy));
            outcomes
        })
    }

    fn address(&self) -> &Address {
        self.inner.address()
    }
}
