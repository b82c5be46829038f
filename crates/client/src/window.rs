//! One sliding window over all that a client, or one thread of a router, has outstanding, whatever the server. Serves
//! every verb; §3.1 of the paper ("incast congestion").
//!
//! A page's keys are spread over all servers, and all of them answer at once: more than the last switch can hold, so
//! that answers are lost. The window bounds how much is asked for at a time. As in TCP's congestion control it grows by
//! one request for each window that is answered, and is halved when a request goes unanswered; unlike TCP's there is
//! one for all servers, since it is their sum that floods the link.
//!
//! ```text
//!   batches in order   [ 24 ] [ 3 ] [ 24 ] [ 7 ]  ->  outstanding <= size  ->  server A, B, C ...
//!                       waiting, first come first served
//! ```
//!
//! Invariants:
//! * What is outstanding is at most the size, but for one batch larger than it, which then goes alone. A
//!   [`WindowedDestination`] cuts its batches so that this needs a window that shrank meanwhile.
//! * Order among batches to one destination is the order in which they came; of one that is cut, each part but the first
//!   stands in line once the part before it is answered.
//! * A caller waits at most [`WindowSettings::wait_ms_max`], in a queue of at most
//!   [`WindowSettings::waiting_requests_max`] requests; then its requests are [`Failure::Busy`], and were not sent.
//! * One loss halves the window once: what was sent before it was halved says nothing about the new size.
//! * A window that is not used does not grow: only an answer to what was sent while at least half of it was in use says
//!   that the network bears more.

use bytes::Bytes;
use lookaside_protocol::Request;
use lookaside_routing::{Address, Batch, BoxFuture, Destination, Failure, Outcome, Outcomes};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::oneshot, time::timeout};

/// How a [`Window`] moves and how long callers wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSettings {
    /// The size at the beginning, in requests. Default 100.
    pub initial: usize,
    /// It never shrinks below this, in requests. Default 10. With `max` the same, the window is fixed.
    pub min: usize,
    /// It never grows beyond this, in requests. Default 10,000.
    pub max: usize,
    /// Requests that may wait for room; one more is refused. Default 100,000.
    pub waiting_requests_max: usize,
    /// How long a batch may wait for room, in milliseconds. Default 1,000.
    pub wait_ms_max: u64,
}

impl Default for WindowSettings {
    fn default() -> Self {
        WindowSettings { initial: 100, min: 10, max: 10_000, waiting_requests_max: 100_000, wait_ms_max: 1_000 }
    }
}

impl WindowSettings {
    /// A window that always has this size, in requests.
    pub fn fixed(size: usize) -> WindowSettings {
        WindowSettings { initial: size, min: size, max: size, ..WindowSettings::default() }
    }
}

/// The window; see the module's description.
#[derive(Debug)]
pub struct Window {
    settings: WindowSettings,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// In requests. Not whole, as each answer adds a part of one.
    size: f64,
    outstanding: usize,
    waiting_requests: usize,
    waiting: VecDeque<Waiter>,
    /// How many permits have been given so far.
    given: u64,
    /// Permits from this one on were given since the window was last halved.
    given_at_halving: u64,
}

#[derive(Debug)]
struct Waiter {
    requests: usize,
    admitted: oneshot::Sender<Permit>,
}

/// Room for some requests; given back when dropped.
#[derive(Debug)]
struct Permit {
    /// `None` once given back.
    window: Option<Arc<Window>>,
    requests: usize,
    number: u64,
    /// Whether at least half of the window was in use.
    was_used: bool,
}

/// What a window looks like at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowStatistics {
    /// Its size, in requests.
    pub size: usize,
    /// Requests that were let through and not answered.
    pub outstanding: usize,
    /// Requests that wait for room.
    pub waiting: usize,
}

impl State {
    fn has_room(&self, requests: usize) -> bool {
        self.outstanding == 0 || self.outstanding + requests <= self.size as usize
    }
}

impl Window {
    /// A window with nothing outstanding.
    ///
    /// # Panics
    /// Unless `1 <= min <= initial <= max`.
    pub fn new(settings: WindowSettings) -> Arc<Window> {
        let WindowSettings { initial, min, max, .. } = settings;
        assert!(1 <= min && min <= initial && initial <= max, "no window begins at {initial} within {min} and {max}");
        let state = State {
            size: initial as f64,
            outstanding: 0,
            waiting_requests: 0,
            waiting: VecDeque::new(),
            given: 0,
            given_at_halving: 0,
        };
        Arc::new(Window { settings, state: Mutex::new(state) })
    }

    /// What it looks like now.
    pub fn statistics(&self) -> WindowStatistics {
        let state = self.lock();
        WindowStatistics { size: state.size as usize, outstanding: state.outstanding, waiting: state.waiting_requests }
    }

    /// Waits for room for `requests`.
    async fn room(self: &Arc<Self>, requests: usize) -> Result<Permit, Failure> {
        let admitted = {
            let mut state = self.lock();
            if state.waiting.is_empty() && state.has_room(requests) {
                return Ok(self.give(&mut state, requests));
            }
            if state.waiting_requests + requests > self.settings.waiting_requests_max {
                return Err(Failure::Busy);
            }
            let (admitted, permit) = oneshot::channel();
            state.waiting_requests += requests;
            state.waiting.push_back(Waiter { requests, admitted });
            permit
        };
        let waited = timeout(Duration::from_millis(self.settings.wait_ms_max), admitted).await;
        waited.map_err(|_| Failure::Busy)?.map_err(|_| Failure::Busy)
    }

    fn give(self: &Arc<Self>, state: &mut State, requests: usize) -> Permit {
        let number = state.given;
        state.given += 1;
        state.outstanding += requests;
        let was_used = state.outstanding as f64 * 2.0 >= state.size;
        Permit { window: Some(self.clone()), requests, number, was_used }
    }

    /// Lets in who waits, as far as there is room. Nobody is told under the lock: who has gone away meanwhile would give
    /// the permit back there.
    fn admit(self: &Arc<Self>) {
        loop {
            let (waiter, permit) = {
                let mut state = self.lock();
                let Some(waiter) = state.waiting.front() else { return };
                let requests = waiter.requests;
                if !state.has_room(requests) {
                    return;
                }
                let waiter = state.waiting.pop_front().expect("it has just been looked at");
                state.waiting_requests -= requests;
                let permit = self.give(&mut state, requests);
                (waiter, permit)
            };
            if let Err(mut permit) = waiter.admitted.send(permit) {
                permit.give_back();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under the lock; if it did, the numbers are still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// Moves the window by what came of the requests.
    fn note(&self, outcomes: &[Outcome]) {
        let Some(window) = &self.window else { return };
        let settings = window.settings;
        let mut state = window.lock();
        if outcomes.iter().any(|outcome| matches!(outcome, Err(Failure::TimedOut | Failure::ConnectionLost))) {
            if self.number >= state.given_at_halving {
                state.size = (state.size / 2.0).max(settings.min as f64);
                state.given_at_halving = state.given;
            }
        } else if self.was_used && outcomes.iter().all(Result::is_ok) {
            state.size = (state.size + self.requests as f64 / state.size).min(settings.max as f64);
        }
    }

    /// Gives the room back without letting anybody in.
    fn give_back(&mut self) -> Option<Arc<Window>> {
        let window = self.window.take()?;
        window.lock().outstanding -= self.requests;
        Some(window)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(window) = self.give_back() {
            window.admit();
        }
    }
}

/// A destination whose requests wait for room in a window that it shares with others.
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
        match self.window.room(batch.len()).await {
            Ok(permit) => {
                let outcomes = self.inner.send(batch).await;
                permit.note(&outcomes);
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
                let part_max = self.window.statistics().size.max(1);
                let rest: Vec<Request<Bytes>> = batch.split_off(part_max.min(batch.len()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_protocol::{Operation, Reply};
    use tokio::sync::{mpsc, watch};

    fn gets(count: usize) -> Batch {
        let request =
            |number| Request { key: format!("key:{number}").into(), operation: Operation::Get { cas: false } };
        (0..count).map(request).collect()
    }

    /// A server that says how many it was asked, and answers when it is told to, with what it is told.
    struct Told {
        address: Address,
        asked: mpsc::UnboundedSender<usize>,
        reply: watch::Receiver<Option<Outcome>>,
    }

    impl Destination for Told {
        fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
            Box::pin(async move {
                self.asked.send(batch.len()).expect("the test listens");
                let mut reply = self.reply.clone();
                let outcome = reply.wait_for(Option::is_some).await.expect("the test answers").clone();
                vec![outcome.expect("some"); batch.len()]
            })
        }

        fn address(&self) -> &Address {
            &self.address
        }
    }

    struct Scene {
        window: Arc<Window>,
        server: Arc<WindowedDestination>,
        asked: mpsc::UnboundedReceiver<usize>,
        reply: watch::Sender<Option<Outcome>>,
    }

    fn scene(settings: WindowSettings) -> Scene {
        let window = Window::new(settings);
        let (to, asked) = mpsc::unbounded_channel();
        let (reply, answers) = watch::channel(None);
        let inner = Told { address: Address("a:1".into()), asked: to, reply: answers };
        let server = Arc::new(WindowedDestination::new(Arc::new(inner), window.clone()));
        Scene { window, server, asked, reply }
    }

    impl Scene {
        fn send(&self, count: usize) -> tokio::task::JoinHandle<Outcomes> {
            let server = self.server.clone();
            tokio::spawn(async move { server.send(gets(count)).await })
        }

        async fn settle(&mut self) -> Vec<usize> {
            tokio::time::sleep(Duration::from_millis(1)).await;
            std::iter::from_fn(|| self.asked.try_recv().ok()).collect()
        }
    }

    const MISS: Option<Outcome> = Some(Ok(Reply::Miss));

    #[tokio::test(start_paused = true)]
    async fn no_more_than_the_window_is_outstanding_and_the_rest_comes_in_order() {
        let mut scene = scene(WindowSettings::fixed(10));
        let sent = [scene.send(6), scene.send(4), scene.send(3), scene.send(1)];
        assert_eq!(scene.settle().await, [6, 4], "one more would fit nowhere, and nobody overtakes");
        assert_eq!(scene.window.statistics(), WindowStatistics { size: 10, outstanding: 10, waiting: 4 });
        scene.reply.send_replace(MISS);
        assert_eq!(scene.settle().await, [3, 1]);
        for (sent, count) in sent.into_iter().zip([6, 4, 3, 1]) {
            assert_eq!(sent.await.unwrap().len(), count);
        }
        assert_eq!(scene.window.statistics(), WindowStatistics { size: 10, outstanding: 0, waiting: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_larger_than_the_window_goes_in_parts() {
        let mut scene = scene(WindowSettings::fixed(10));
        scene.reply.send_replace(MISS);
        assert_eq!(scene.send(24).await.unwrap(), vec![Ok(Reply::Miss); 24]);
        assert_eq!(scene.settle().await, [10, 10, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_nothing_waits_for_nobody() {
        let mut scene = scene(WindowSettings::fixed(4));
        let _sent = [scene.send(4), scene.send(1)];
        assert_eq!(scene.settle().await, [4]);
        let now = tokio::time::Instant::now();
        assert_eq!(scene.send(0).await.unwrap(), Outcomes::new());
        assert_eq!(now.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn it_grows_by_one_for_each_window_that_is_answered() {
        let scene = scene(WindowSettings { initial: 10, min: 2, max: 12, ..WindowSettings::default() });
        scene.reply.send_replace(MISS);
        let sent = [scene.send(5), scene.send(5)];
        for sent in sent {
            sent.await.unwrap();
        }
        scene.send(10).await.unwrap();
        assert_eq!(scene.window.statistics().size, 11);
        for _ in 0..100 {
            scene.send(10).await.unwrap();
        }
        assert_eq!(scene.window.statistics().size, 12, "its largest");
        let idle = self::scene(WindowSettings { initial: 10, min: 2, max: 100, ..WindowSettings::default() });
        idle.reply.send_replace(MISS);
        for _ in 0..100 {
            idle.send(1).await.unwrap();
        }
        assert_eq!(idle.window.statistics().size, 10, "one at a time says nothing about more");
    }

    #[tokio::test(start_paused = true)]
    async fn one_loss_halves_it_once_and_never_below_its_smallest() {
        let mut scene = scene(WindowSettings { initial: 16, min: 3, max: 100, ..WindowSettings::default() });
        let sent: Vec<_> = (0..4).map(|_| scene.send(4)).collect();
        assert_eq!(scene.settle().await, [4; 4]);
        scene.reply.send_replace(Some(Err(Failure::TimedOut)));
        for sent in sent {
            sent.await.unwrap();
        }
        assert_eq!(scene.window.statistics().size, 8, "all four were sent before it was halved");
        for expected in [4, 3, 3] {
            scene.send(1).await.unwrap();
            assert_eq!(scene.window.statistics().size, expected);
        }
        scene.reply.send_replace(Some(Err(Failure::Tko)));
        scene.send(3).await.unwrap();
        assert_eq!(scene.window.statistics().size, 3, "what was not sent says nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_or_behind_too_many_is_told_so() {
        let settings = WindowSettings { waiting_requests_max: 5, wait_ms_max: 50, ..WindowSettings::fixed(4) };
        let mut scene = scene(settings);
        let first = scene.send(4);
        assert_eq!(scene.settle().await, [4]);
        let (second, third) = (scene.send(3), scene.send(3));
        assert_eq!(third.await.unwrap(), vec![Err(Failure::Busy); 3], "three wait already, and six would be too many");
        assert_eq!(second.await.unwrap(), vec![Err(Failure::Busy); 3], "50 ms are over");
        scene.reply.send_replace(MISS);
        first.await.unwrap();
        assert_eq!(scene.send(2).await.unwrap(), vec![Ok(Reply::Miss); 2], "nobody who went away is waited for");
        assert_eq!(scene.window.statistics(), WindowStatistics { size: 4, outstanding: 0, waiting: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_go_away_leave_nothing_behind() {
        let mut scene = scene(WindowSettings::fixed(4));
        let sent: Vec<_> = (0..5).map(|_| scene.send(2)).collect();
        assert_eq!(scene.settle().await, [2, 2]);
        for sent in &sent[..4] {
            sent.abort();
        }
        assert_eq!(scene.settle().await, [2], "the last one is let in");
        sent[4].abort();
        scene.settle().await;
        assert_eq!(scene.window.statistics(), WindowStatistics { size: 4, outstanding: 0, waiting: 0 });
    }
}
