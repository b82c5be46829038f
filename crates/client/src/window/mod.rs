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
//! * What was sent takes up the window until its outcomes are known, even if its caller has gone.
//! * One loss halves the window once: requests that were sent before tell nothing about the new size.
//! * An unused window does not grow: only a reply to requests that were sent while at least half of it was in use
//!   shows that the network can take more.

mod delay;
mod destination;
mod permit;
mod settings;

pub use destination::WindowedDestination;
pub use settings::{WindowControl, WindowSettings};

use crate::caller::Caller;
use delay::DelayControl;
use lookaside_routing::Failure;
use lookaside_sync::Mutex;
use permit::WindowPermit;
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
                return Ok(WindowPermit::grant(self, &mut state, requests));
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
                let permit = WindowPermit::grant(self, &mut state, requests);
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

#[cfg(test)]
mod tests;
