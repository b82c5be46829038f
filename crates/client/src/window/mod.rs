//! One sliding window over all outstanding requests of a client, or of one thread of a router, to all servers. Serves
//! every verb; §3.1 of the paper ("incast congestion").
//!
//! A page's keys are spread over all servers, and all of them answer at once: more than the last switch can buffer, so
//! that replies are lost. As in TCP's congestion control the window is halved when a request goes unanswered; unlike
//! TCP's, one serves all servers, since their sum floods the link. It grows by one request for each window that is
//! answered ([`WindowControl::Loss`]), or finds its size by the delay of replies ([`WindowControl::Delay`], `delay`).
//!
//! ```text
//!   batches in order   [ 24 ] [ 3 ] [ 24 ] [ 7 ]  ->  outstanding <= size  ->  server A, B, C ...
//!                       waiting, first in first out
//! ```
//!
//! Invariants:
//! * The outstanding requests are at most the size, except for one batch larger than it, which then goes alone. A
//!   [`WindowedDestination`] splits its batches, so that this happens only if the window has shrunk since.
//! * Batches to one destination keep their order. Each part of a split batch but the first is queued when the part
//!   before it is answered.
//! * Nothing is sent later than [`WindowSettings::wait_ms_max`] after its batch came, and at most
//!   [`WindowSettings::waiting_requests_max`] requests wait; the others are [`Failure::Busy`], and were not sent.
//! * A waiter whose caller has gone leaves at once, whether its future is dropped or goes on in the background
//!   ([`Caller`]): it takes neither a place among those that wait nor one in the window.
//! * One loss halves the window once: requests that were sent before tell nothing about the new size.
//! * An unused window does not grow: only a reply to requests that were sent while at least half of it was in use
//!   shows that the network can take more.

mod delay;
mod destination;
mod settings;

pub use destination::WindowedDestination;
pub use settings::{WindowControl, WindowSettings};

use crate::caller::Caller;
use delay::{DelayControl, RoundTrip};
use lookaside_routing::{Failure, Outcome};
use lookaside_sync::Mutex;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

/// With a control by delay, the parts of batches that wait are this share of the window.
const PART_SHARE: usize = 4;

/// The window; see the module's description.
#[derive(Debug)]
pub struct Window {
    settings: WindowSettings,
    /// When it was made.
    started: Instant,
    state: Mutex<WindowState>,
}

#[derive(Debug)]
struct WindowState {
    /// In requests. A fraction, as each reply adds a part of one.
    size: f64,
    outstanding: usize,
    waiting_requests: usize,
    /// By their numbers, which increase.
    waiting: BTreeMap<u64, Waiter>,
    next_waiter: u64,
    granted: u64,
    /// `granted` when the window was last halved: permits from this number on were granted since.
    decrease_seq: u64,
    /// `None` with another control.
    delay: Option<DelayControl>,
}

#[derive(Debug)]
struct Waiter {
    requests: usize,
    admitted: oneshot::Sender<WindowPermit>,
}

/// Counts some requests as outstanding until it is dropped.
#[derive(Debug)]
struct WindowPermit {
    /// `None` once released.
    window: Option<Arc<Window>>,
    requests: usize,
    number: u64,
    /// Whether at least half of the window was in use when it was granted.
    was_half_used: bool,
    /// All that was outstanding when it had been granted.
    outstanding: usize,
    /// `None` if the window is not adjusted by delay.
    granted_at: Option<Instant>,
}

/// The state of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowStatistics {
    /// Its size, in requests.
    pub size: usize,
    /// Requests that were sent and not answered.
    pub outstanding: usize,
    /// Requests that wait.
    pub waiting: usize,
}

impl WindowState {
    fn fits(&self, requests: usize) -> bool {
        self.outstanding == 0 || self.outstanding + requests <= self.usable()
    }

    /// Halves the window after a loss of what was sent with this number, unless that was before it was halved last.
    fn halve(&mut self, number: u64, min: usize) {
        if number >= self.decrease_seq {
            self.size = (self.size / 2.0).max(min as f64);
            self.decrease_seq = self.granted;
        }
    }

    /// The size that counts now.
    fn usable(&self) -> usize {
        let is_probing = self.delay.as_ref().is_some_and(DelayControl::is_probing);
        if is_probing { self.size as usize / 4 } else { self.size as usize }
    }
}

impl Window {
    /// A window with nothing outstanding.
    ///
    /// # Panics
    /// Unless `1 <= min <= initial <= max`.
    pub fn new(settings: WindowSettings) -> Arc<Window> {
        let WindowSettings { initial, min, max, .. } = settings;
        assert!(1 <= min && min <= initial && initial <= max, "initial size {initial} is not between {min} and {max}");
        let state = WindowState {
            size: initial as f64,
            outstanding: 0,
            waiting_requests: 0,
            waiting: BTreeMap::new(),
            next_waiter: 0,
            granted: 0,
            decrease_seq: 0,
            delay: (settings.control == WindowControl::Delay).then(DelayControl::default),
        };
        Arc::new(Window { settings, started: Instant::now(), state: Mutex::new(state) })
    }

    /// Its state.
    pub fn statistics(&self) -> WindowStatistics {
        let state = self.state.lock();
        WindowStatistics { size: state.size as usize, outstanding: state.outstanding, waiting: state.waiting_requests }
    }

    /// How many of `requests` to send together. With a control by delay a batch that has to wait is split, so that the
    /// replies of several servers follow each other closely while the window is small.
    fn part_of(&self, requests: usize) -> usize {
        let state = self.state.lock();
        let part_max = match state.delay {
            Some(_) if !state.waiting.is_empty() || !state.fits(requests) => state.size as usize / PART_SHARE,
            _ => state.size as usize,
        };
        requests.min(part_max.max(1))
    }

    /// Waits until `requests` of a batch that came at `since` fit into the window.
    async fn acquire(self: &Arc<Self>, requests: usize, since: Instant) -> Result<WindowPermit, Failure> {
        let caller = Caller::current();
        if caller.as_ref().is_some_and(Caller::is_gone) {
            return Err(Failure::Busy);
        }
        let (mut admitted, _until_admitted) = {
            let mut state = self.state.lock();
            if state.waiting.is_empty() && state.fits(requests) {
                return Ok(self.grant(&mut state, requests));
            }
            if state.waiting_requests + requests > self.settings.waiting_requests_max {
                return Err(Failure::Busy);
            }
            let (admitted, permit) = oneshot::channel();
            let number = state.next_waiter;
            state.next_waiter += 1;
            state.waiting_requests += requests;
            state.waiting.insert(number, Waiter { requests, admitted });
            (permit, WaitingPlace { window: self, number })
        };
        tokio::select! {
            biased;
            () = Caller::gone(caller.as_ref()) => Err(Failure::Busy),
            permit = &mut admitted => permit.map_err(|_| Failure::Busy),
            () = sleep(self.wait_left(since)) => Err(Failure::Busy),
        }
    }

    /// How much longer a batch that came at `since` may wait.
    fn wait_left(&self, since: Instant) -> Duration {
        Duration::from_millis(self.settings.wait_ms_max).saturating_sub(since.elapsed())
    }

    /// The number of the last permit that was granted, for [`Window::record_loss`].
    pub(crate) fn last_permit(&self) -> u64 {
        self.state.lock().granted.saturating_sub(1)
    }

    /// Halves the window, as something was lost that was sent when `last_permit` was the last permit.
    pub(crate) fn record_loss(&self, last_permit: u64) {
        self.state.lock().halve(last_permit, self.settings.min);
    }

    fn grant(self: &Arc<Self>, state: &mut WindowState, requests: usize) -> WindowPermit {
        let number = state.granted;
        state.granted += 1;
        state.outstanding += requests;
        let was_half_used = state.outstanding as f64 * 2.0 >= state.size;
        let (outstanding, granted_at) = (state.outstanding, state.delay.is_some().then(Instant::now));
        WindowPermit { window: Some(self.clone()), requests, number, was_half_used, outstanding, granted_at }
    }

    /// Grants permits to waiters, in order, while they fit. Wake-ups happen outside the lock, because a waiter that
    /// was dropped returns its permit.
    fn admit_waiters(self: &Arc<Self>) {
        loop {
            let (waiter, permit) = {
                let mut state = self.state.lock();
                let Some((_, first)) = state.waiting.first_key_value() else { return };
                let requests = first.requests;
                if !state.fits(requests) {
                    return;
                }
                let (_, waiter) = state.waiting.pop_first().expect("the first waiter exists");
                state.waiting_requests -= requests;
                let permit = self.grant(&mut state, requests);
                (waiter, permit)
            };
            if let Err(mut permit) = waiter.admitted.send(permit) {
                permit.release();
            }
        }
    }
}

/// A place among those that wait, until this is dropped or the waiter is admitted.
struct WaitingPlace<'a> {
    window: &'a Arc<Window>,
    number: u64,
}

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        let was_first = {
            let mut state = self.window.state.lock();
            let was_first = state.waiting.first_key_value().is_some_and(|(first, _)| *first == self.number);
            if let Some(waiter) = state.waiting.remove(&self.number) {
                state.waiting_requests -= waiter.requests;
            }
            was_first
        };
        if was_first {
            // The next one may be smaller.
            self.window.admit_waiters();
        }
    }
}

impl WindowPermit {
    /// Grows or halves the window by the outcomes of the requests.
    fn adjust_window(&self, outcomes: &[Outcome]) {
        let Some(window) = &self.window else { return };
        let settings = window.settings;
        let mut state = window.state.lock();
        if outcomes.iter().any(|outcome| matches!(outcome, Err(Failure::TimedOut | Failure::ConnectionLost))) {
            state.halve(self.number, settings.min);
        } else if outcomes.iter().all(Result::is_ok) {
            let WindowState { size, delay, granted, decrease_seq, .. } = &mut *state;
            let grown = match (delay, self.granted_at) {
                (Some(delay), Some(granted_at)) => {
                    let is_after_loss = self.number >= *decrease_seq;
                    let adjusted = delay.adjust(*size, self.round_trip(window, granted_at, is_after_loss));
                    if adjusted.is_late {
                        *decrease_seq = *granted;
                    }
                    adjusted.size
                }
                _ if self.was_half_used => *size + self.requests as f64 / *size,
                _ => *size,
            };
            *size = grown.clamp(settings.min as f64, settings.max as f64);
        }
    }

    fn round_trip(&self, window: &Window, granted_at: Instant, is_after_loss: bool) -> RoundTrip {
        let now = Instant::now();
        RoundTrip {
            at: now - window.started,
            took: now - granted_at,
            requests: self.requests,
            outstanding: self.outstanding,
            was_half_used: self.was_half_used,
            is_after_loss,
        }
    }

    /// Returns the permit without admitting waiters.
    fn release(&mut self) -> Option<Arc<Window>> {
        let window = self.window.take()?;
        window.state.lock().outstanding -= self.requests;
        Some(window)
    }
}

impl Drop for WindowPermit {
    fn drop(&mut self) {
        if let Some(window) = self.release() {
            window.admit_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_protocol::{Operation, Reply, Request};
    use lookaside_routing::{Address, Batch, BoxFuture, Destination, Outcomes};
    use tokio::sync::{mpsc, watch};

    fn gets(count: usize) -> Batch {
        let request =
            |number| Request { key: format!("key:{number}").into(), operation: Operation::Get { cas: false } };
        (0..count).map(request).collect()
    }

    /// A server that reports the size of each batch, and replies when the test lets it.
    struct ControlledServer {
        address: Address,
        batches: mpsc::UnboundedSender<usize>,
        reply: watch::Receiver<Option<Outcome>>,
    }

    impl Destination for ControlledServer {
        fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
            Box::pin(async move {
                self.batches.send(batch.len()).expect("the test listens");
                let mut reply = self.reply.clone();
                let outcome = reply.wait_for(Option::is_some).await.expect("the test answers").clone();
                vec![outcome.expect("some"); batch.len()]
            })
        }

        fn address(&self) -> &Address {
            &self.address
        }
    }

    /// Replies after 20 ms.
    struct SlowServer(Address);

    impl Destination for SlowServer {
        fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                vec![Ok(Reply::Miss); batch.len()]
            })
        }

        fn address(&self) -> &Address {
            &self.0
        }
    }

    struct Fixture {
        window: Arc<Window>,
        server: Arc<WindowedDestination>,
        batches: mpsc::UnboundedReceiver<usize>,
        reply: watch::Sender<Option<Outcome>>,
    }

    fn fixture(settings: WindowSettings) -> Fixture {
        let window = Window::new(settings);
        let (sender, batches) = mpsc::unbounded_channel();
        let (reply, replies) = watch::channel(None);
        let inner = ControlledServer { address: Address("a:1".into()), batches: sender, reply: replies };
        let server = Arc::new(WindowedDestination::new(Arc::new(inner), window.clone()));
        Fixture { window, server, batches, reply }
    }

    impl Fixture {
        fn send(&self, count: usize) -> tokio::task::JoinHandle<Outcomes> {
            let server = self.server.clone();
            tokio::spawn(async move { server.send(gets(count)).await })
        }

        /// The sizes of the batches that the server has got since the last call, once all tasks wait.
        async fn received(&mut self) -> Vec<usize> {
            tokio::time::sleep(Duration::from_millis(1)).await;
            std::iter::from_fn(|| self.batches.try_recv().ok()).collect()
        }
    }

    const MISS: Option<Outcome> = Some(Ok(Reply::Miss));

    #[tokio::test(start_paused = true)]
    async fn outstanding_requests_fit_the_window_and_the_rest_follows_in_order() {
        let mut fixture = fixture(WindowSettings::fixed(10));
        let sent = [fixture.send(6), fixture.send(4), fixture.send(3), fixture.send(1)];
        assert_eq!(fixture.received().await, [6, 4], "the window is full, and no batch overtakes");
        assert_eq!(fixture.window.statistics(), WindowStatistics { size: 10, outstanding: 10, waiting: 4 });
        fixture.reply.send_replace(MISS);
        assert_eq!(fixture.received().await, [3, 1]);
        for (sent, count) in sent.into_iter().zip([6, 4, 3, 1]) {
            assert_eq!(sent.await.unwrap().len(), count);
        }
        assert_eq!(fixture.window.statistics(), WindowStatistics { size: 10, outstanding: 0, waiting: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn batch_larger_than_the_window_is_split() {
        let mut fixture = fixture(WindowSettings::fixed(10));
        fixture.reply.send_replace(MISS);
        assert_eq!(fixture.send(24).await.unwrap(), vec![Ok(Reply::Miss); 24]);
        assert_eq!(fixture.received().await, [10, 10, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn empty_batch_does_not_wait() {
        let mut fixture = fixture(WindowSettings::fixed(4));
        let _sent = [fixture.send(4), fixture.send(1)];
        assert_eq!(fixture.received().await, [4]);
        let now = tokio::time::Instant::now();
        assert_eq!(fixture.send(0).await.unwrap(), Outcomes::new());
        assert_eq!(now.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn window_grows_by_one_for_each_window_that_is_answered() {
        let fixture = fixture(WindowSettings { initial: 10, min: 2, max: 12, ..WindowSettings::default() });
        fixture.reply.send_replace(MISS);
        let sent = [fixture.send(5), fixture.send(5)];
        for sent in sent {
            sent.await.unwrap();
        }
        fixture.send(10).await.unwrap();
        assert_eq!(fixture.window.statistics().size, 11);
        for _ in 0..100 {
            fixture.send(10).await.unwrap();
        }
        assert_eq!(fixture.window.statistics().size, 12, "the maximum");
        let idle = self::fixture(WindowSettings { initial: 10, min: 2, max: 100, ..WindowSettings::default() });
        idle.reply.send_replace(MISS);
        for _ in 0..100 {
            idle.send(1).await.unwrap();
        }
        assert_eq!(idle.window.statistics().size, 10, "an unused window does not grow");
    }

    #[tokio::test(start_paused = true)]
    async fn one_loss_halves_the_window_once_and_not_below_the_minimum() {
        let mut fixture = fixture(WindowSettings { initial: 16, min: 3, max: 100, ..WindowSettings::default() });
        let sent: Vec<_> = (0..4).map(|_| fixture.send(4)).collect();
        assert_eq!(fixture.received().await, [4; 4]);
        fixture.reply.send_replace(Some(Err(Failure::TimedOut)));
        for sent in sent {
            sent.await.unwrap();
        }
        assert_eq!(fixture.window.statistics().size, 8, "all four were sent before it was halved");
        for expected in [4, 3, 3] {
            fixture.send(1).await.unwrap();
            assert_eq!(fixture.window.statistics().size, expected);
        }
        fixture.reply.send_replace(Some(Err(Failure::Tko)));
        fixture.send(3).await.unwrap();
        assert_eq!(fixture.window.statistics().size, 3, "requests that were not sent do not count");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_too_long_or_behind_too_many_requests_is_busy() {
        let settings = WindowSettings { waiting_requests_max: 5, wait_ms_max: 50, ..WindowSettings::fixed(4) };
        let mut fixture = fixture(settings);
        let first = fixture.send(4);
        assert_eq!(fixture.received().await, [4]);
        let (second, third) = (fixture.send(3), fixture.send(3));
        assert_eq!(
            third.await.unwrap(),
            vec![Err(Failure::Busy); 3],
            "three requests wait already, and six would be too many"
        );
        assert_eq!(second.await.unwrap(), vec![Err(Failure::Busy); 3], "50 ms have passed");
        fixture.reply.send_replace(MISS);
        first.await.unwrap();
        assert_eq!(fixture.send(2).await.unwrap(), vec![Ok(Reply::Miss); 2], "abandoned requests hold no permits");
        assert_eq!(fixture.window.statistics(), WindowStatistics { size: 4, outstanding: 0, waiting: 0 });
    }

    /// Once each part of a batch could wait as long, and a batch of a hundred requests for minutes.
    #[tokio::test(start_paused = true)]
    async fn no_part_of_a_batch_is_sent_late() {
        let window = Window::new(WindowSettings { wait_ms_max: 50, ..WindowSettings::fixed(2) });
        let server = WindowedDestination::new(Arc::new(SlowServer(Address("a:1".into()))), window);
        let outcomes = server.send(gets(8)).await;
        let expected = [vec![Ok(Reply::Miss); 6], vec![Err(Failure::Busy); 2]].concat();
        assert_eq!(outcomes, expected, "after 60 ms nothing more is sent");
    }

    #[tokio::test(start_paused = true)]
    async fn one_burst_of_lost_datagrams_halves_the_window_once() {
        let fixture = fixture(WindowSettings { initial: 16, min: 2, max: 100, ..WindowSettings::default() });
        let sent: Vec<_> = (0..4).map(|_| fixture.send(4)).collect();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let last_permit = fixture.window.last_permit();
        (0..4).for_each(|_| fixture.window.record_loss(last_permit));
        assert_eq!(fixture.window.statistics().size, 8);
        sent.iter().for_each(|sent| sent.abort());
        fixture.send(1);
        tokio::time::sleep(Duration::from_millis(1)).await;
        fixture.window.record_loss(last_permit);
        assert_eq!(fixture.window.statistics().size, 8, "sent before it was halved");
        fixture.window.record_loss(fixture.window.last_permit());
        assert_eq!(fixture.window.statistics().size, 4);
    }

    /// Once those that had gone counted as waiting until they came first, and kept the living from waiting.
    #[tokio::test(start_paused = true)]
    async fn callers_that_have_gone_do_not_wait() {
        let mut fixture = fixture(WindowSettings { waiting_requests_max: 4, ..WindowSettings::fixed(4) });
        let first = fixture.send(4);
        assert_eq!(fixture.received().await, [4]);
        let dropped = fixture.send(4);
        fixture.received().await;
        dropped.abort();
        fixture.received().await;
        assert_eq!(fixture.window.statistics().waiting, 0);
        let caller = Caller::default();
        let left = tokio::spawn({
            let (server, caller) = (fixture.server.clone(), caller.clone());
            async move { caller.scope(server.send(gets(4))).await }
        });
        fixture.received().await;
        caller.leave();
        assert_eq!(left.await.unwrap(), vec![Err(Failure::Busy); 4], "at once");
        assert_eq!(fixture.window.statistics().waiting, 0);
        let living = fixture.send(4);
        fixture.reply.send_replace(MISS);
        assert_eq!(living.await.unwrap(), vec![Ok(Reply::Miss); 4]);
        first.await.unwrap();
        let gone = caller.scope(fixture.server.send(gets(1))).await;
        assert_eq!(gone, vec![Err(Failure::Busy)], "although the window is free");
        assert_eq!(fixture.received().await, [4]);
    }

    /// A smaller waiter fits when the one before it leaves.
    #[tokio::test(start_paused = true)]
    async fn the_next_waiter_is_admitted_when_the_first_one_leaves() {
        let mut fixture = fixture(WindowSettings::fixed(4));
        let _first = fixture.send(2);
        fixture.received().await;
        let (large, _small) = (fixture.send(4), fixture.send(2));
        assert_eq!(fixture.received().await, [] as [usize; 0]);
        large.abort();
        assert_eq!(fixture.received().await, [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_callers_return_their_permits() {
        let mut fixture = fixture(WindowSettings::fixed(4));
        let sent: Vec<_> = (0..5).map(|_| fixture.send(2)).collect();
        assert_eq!(fixture.received().await, [2, 2]);
        for sent in &sent[..4] {
            sent.abort();
        }
        assert_eq!(fixture.received().await, [2], "the last one is admitted");
        sent[4].abort();
        fixture.received().await;
        assert_eq!(fixture.window.statistics(), WindowStatistics { size: 4, outstanding: 0, waiting: 0 });
    }
}
