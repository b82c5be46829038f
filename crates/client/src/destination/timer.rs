//! A timer of a connection: for deadlines, and for the next lookup of the host name. Serves every path.
//!
//! A connection is polled with every batch and every reply, and its timers fire rarely. So a timer that already has the
//! task's waker, and has not fired, is not polled again.

use std::{
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};
use tokio::{
    task::coop::unconstrained,
    time::{Instant, Sleep, sleep_until},
};

#[derive(Debug)]
pub(super) struct Timer {
    sleep: Pin<Box<Sleep>>,
    /// The waker that `sleep` has; `None` if it has none.
    waker: Option<Waker>,
}

impl Timer {
    pub(super) fn new(deadline: Instant) -> Timer {
        Timer { sleep: Box::pin(sleep_until(deadline)), waker: None }
    }

    pub(super) fn reset(&mut self, deadline: Instant) {
        self.waker = None;
        self.sleep.as_mut().reset(deadline);
    }

    /// Ready once the deadline has passed. After that it must be reset.
    #[inline]
    pub(super) fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let will_wake = self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if will_wake && !self.sleep.is_elapsed() {
            return Poll::Pending;
        }
        // Constrained, a task without budget would not leave its waker.
        let elapsed = pin!(unconstrained(self.sleep.as_mut())).poll(cx);
        self.waker = elapsed.is_pending().then(|| cx.waker().clone());
        elapsed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        future::poll_fn,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        task::Wake,
        time::Duration,
    };
    use tokio::{
        task::{consume_budget, coop::has_budget_remaining, yield_now},
        time::advance,
    };

    const SECOND: Duration = Duration::from_secs(1);

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_task_that_polled_last_is_woken_at_each_deadline() {
        let [first, second] = [(); 2].map(|()| Arc::new(CountingWaker::default()));
        let mut timer = Timer::new(Instant::now() + SECOND);
        let poll = |timer: &mut Timer, waker: &Arc<CountingWaker>| {
            timer.poll_elapsed(&mut Context::from_waker(&waker.clone().into())).is_ready()
        };
        for waker in [&first, &first, &second, &second] {
            assert!(!poll(&mut timer, waker));
        }
        advance(SECOND).await;
        yield_now().await;
        assert_eq!([&first, &second].map(|waker| waker.0.load(Relaxed)), [0, 1]);
        assert!(poll(&mut timer, &second));
        timer.reset(Instant::now() + SECOND);
        assert!(!poll(&mut timer, &second) && !poll(&mut timer, &second));
        advance(SECOND).await;
        yield_now().await;
        assert_eq!(second.0.load(Relaxed), 2);
        assert!(poll(&mut timer, &second));
    }

    /// Such a task would not leave its waker, and its timer would be taken for one that has it.
    #[tokio::test(start_paused = true)]
    async fn a_task_without_budget_is_woken_too() {
        let waker = Arc::new(CountingWaker::default());
        let mut timer = Timer::new(Instant::now() + SECOND);
        poll_fn(|cx| {
            while has_budget_remaining() {
                assert!(pin!(consume_budget()).poll(cx).is_ready());
            }
            assert!(timer.poll_elapsed(&mut Context::from_waker(&waker.clone().into())).is_pending());
            Poll::Ready(())
        })
        .await;
        advance(SECOND).await;
        yield_now().await;
        assert_eq!(waker.0.load(Relaxed), 1);
    }
}
