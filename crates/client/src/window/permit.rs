//! What a batch holds from the moment that it is sent until its outcomes are known: its requests count as outstanding,
//! and its outcomes grow or halve the window.

use super::delay::RoundTrip;
use super::{Window, WindowState};
use lookaside_routing::{Failure, Outcome};
use std::sync::Arc;
use tokio::time::Instant;

/// Counts some requests as outstanding until it is dropped.
#[derive(Debug)]
pub(super) struct WindowPermit {
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

impl WindowPermit {
    /// Counts `requests` as outstanding.
    pub(super) fn grant(window: &Arc<Window>, state: &mut WindowState, requests: usize) -> WindowPermit {
        let number = state.granted;
        state.granted += 1;
        state.outstanding += requests;
        let was_half_used = state.outstanding as f64 * 2.0 >= state.size;
        let (outstanding, granted_at) = (state.outstanding, state.delay.is_some().then(Instant::now));
        WindowPermit { window: Some(window.clone()), requests, number, was_half_used, outstanding, granted_at }
    }

    /// Grows or halves the window by the outcomes of the requests.
    pub(super) fn adjust_window(&self, outcomes: &[Outcome]) {
        let Some(window) = &self.window else { return };
        let settings = window.settings;
        let mut state = window.state.lock();
        if outcomes.iter().any(|outcome| outcome.as_ref().is_err_and(is_overload)) {
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
    pub(super) fn release(&mut self) -> Option<Arc<Window>> {
        let window = self.window.take()?;
        window.state.lock().outstanding -= self.requests;
        Some(window)
    }
}

/// Whether requests were lost, or took longer than they may, behind too many others.
fn is_overload(failure: &Failure) -> bool {
    use Failure::{ConnectionLost, QueueTimedOut, ReadFailed, TimedOut};
    matches!(failure.unnamed(), TimedOut | QueueTimedOut | ConnectionLost | ReadFailed(_))
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
    use lookaside_routing::Address;

    #[test]
    fn a_named_failure_is_an_overload_if_it_is_one_without_its_name() {
        for (failure, expected) in [
            (Failure::TimedOut, true),
            (Failure::QueueTimedOut, true),
            (Failure::ConnectionLost, true),
            (Failure::ReadFailed(Address("a:1".into())), true),
            (Failure::Malformed, false),
            (Failure::ConnectFailed, false),
        ] {
            let named = Failure::OfServer { server: Address("a:1".into()), failure: Box::new(failure.clone()) };
            assert_eq!((is_overload(&failure), is_overload(&named)), (expected, expected), "{failure:?}");
        }
    }
}
