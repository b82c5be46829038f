//! A destination behind a window.

use super::Window;
use crate::tasks::TaskSpawner;
use bytes::Bytes;
use lookaside_protocol::Request;
use lookaside_routing::{Address, Batch, BoxFuture, Destination, Failure, Outcomes};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
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
        let inner = self.inner.clone();
        let sent: BoxFuture<'static, Outcomes> = Box::pin(async move {
            let outcomes = inner.send(part).await;
            permit.adjust_window(&outcomes);
            outcomes
        });
        Ok(SentPart { sent: Some(sent), tasks: TaskSpawner::current() }.await)
    }
}

/// A part that is outstanding. If the caller drops it, it continues in the background: the replies arrive all the same,
/// so they take up the window until then. A destination bounds the time.
struct SentPart {
    /// `None` once it has outcomes.
    sent: Option<BoxFuture<'static, Outcomes>>,
    tasks: TaskSpawner,
}

impl Future for SentPart {
    type Output = Outcomes;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcomes> {
        let sent = self.sent.as_mut().expect("it is not polled after its end");
        let outcomes = ready!(sent.as_mut().poll(cx));
        self.sent = None;
        Poll::Ready(outcomes)
    }
}

impl Drop for SentPart {
    fn drop(&mut self) {
        if let Some(sent) = self.sent.take() {
            self.tasks.spawn_if_running(async move { _ = sent.await });
        }
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
