//! How many batches of a pipeline may be in flight. A router answers a connection in order, so a server that hangs
//! holds up the answers to all batches behind its own, although other servers have applied them. Batches go on being
//! sent meanwhile, at a bounded pace.
//!
//! ```text
//! |<-- slow: sent more than BATCH_SLOW_AFTER ago -->|<-- prompt: at most `prompt_max` -->|
//!   batch 1   batch 2   batch 3   batch 4  ...          batch 17   batch 18   batch 19
//! ```
//!
//! Invariants:
//! * At most `prompt_max` batches are in flight that were sent within [`BATCH_SLOW_AFTER`]. So without slow batches
//!   keys that arrive meanwhile share the next batch, and with them the next batch leaves within that time.
//! * Of several prompt batches one is left to fresh keys: retries are likely to be slow. For the same reason slow
//!   retries do not keep other retries from being sent.
//! * While no router of the cluster answers, one batch of the retry queue is in flight: more would fail as it does, and
//!   each key in flight costs as much memory as in the queue.
//! * At most [`BATCHES_MAX`] are in flight, and [`RETRY_BATCHES_MAX`] of the retry queue. Their keys are pending keys,
//!   which bounds their bytes.

use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

/// A batch without an answer for this long does not keep others from being sent.
pub(super) const BATCH_SLOW_AFTER: Duration = Duration::from_millis(10);
/// The most batches without an answer: with the default of four prompt batches, those of 2.5 s.
pub(super) const BATCHES_MAX: usize = 1_024;

/// The most batches of the retry queue without an answer: the others are left to fresh keys.
pub(super) const RETRY_BATCHES_MAX: usize = BATCHES_MAX / 2;

/// Identifies a batch in flight.
pub(super) type BatchNumber = u64;

/// The batches in flight, and when each was sent.
#[derive(Debug, Default)]
pub(super) struct BatchWindow {
    prompt_max: usize,
    batches: BTreeMap<BatchNumber, Instant>,
    /// Those of `batches` that are of the retry queue.
    retries: BTreeMap<BatchNumber, Instant>,
    next_number: BatchNumber,
    is_reachable: bool,
}

impl BatchWindow {
    pub fn new(prompt_max: usize) -> BatchWindow {
        BatchWindow { prompt_max, is_reachable: true, ..BatchWindow::default() }
    }

    /// Records whether any router of the cluster answers.
    pub fn set_reachable(&mut self, is_reachable: bool) {
        self.is_reachable = is_reachable;
    }

    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Whether a batch may be sent.
    pub fn may_send(&self, now: Instant) -> bool {
        self.next_send_at(now).is_some_and(|at| at <= now)
    }

    /// When a batch may be sent if none is answered before; `None` if none may.
    pub fn next_send_at(&self, now: Instant) -> Option<Instant> {
        next_at(&self.batches, self.prompt_max, BATCHES_MAX, now)
    }

    /// Whether a batch of fresh keys is unanswered and not slow.
    pub fn has_prompt_fresh(&self, now: Instant) -> bool {
        let mut prompt = self.batches.iter().rev().take_while(|(_, sent_at)| now < **sent_at + BATCH_SLOW_AFTER);
        prompt.any(|(number, _)| !self.retries.contains_key(number))
    }

    /// Whether a batch of the retry queue may be sent, if any may.
    pub fn may_retry(&self, now: Instant) -> bool {
        self.next_retry_at(now).is_some_and(|at| at <= now)
    }

    /// As [`BatchWindow::next_send_at`], for a batch of the retry queue if any may be sent.
    pub fn next_retry_at(&self, now: Instant) -> Option<Instant> {
        if !self.is_reachable && !self.retries.is_empty() {
            return None;
        }
        next_at(&self.retries, (self.prompt_max - 1).max(1), RETRY_BATCHES_MAX, now)
    }

    /// Adds a batch that is sent at `now`.
    pub fn add(&mut self, now: Instant, is_retry: bool) -> BatchNumber {
        self.next_number += 1;
        self.batches.insert(self.next_number, now);
        if is_retry {
            self.retries.insert(self.next_number, now);
        }
        self.next_number
    }

    /// Removes a batch that has been answered.
    pub fn remove(&mut self, number: BatchNumber) {
        self.batches.remove(&number).expect("a batch is answered once");
        self.retries.remove(&number);
    }
}

/// When one more batch may be sent: at most `prompt_max` are prompt, and at most `all_max` in flight.
fn next_at(sent: &BTreeMap<BatchNumber, Instant>, prompt_max: usize, all_max: usize, now: Instant) -> Option<Instant> {
    if sent.len() >= all_max {
        return None;
    }
    let oldest_prompt = sent.values().nth_back(prompt_max - 1);
    Some(oldest_prompt.map_or(now, |&sent_at| sent_at + BATCH_SLOW_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_batches_do_not_count_up_to_a_limit() {
        let (mut window, start) = (BatchWindow::new(2), Instant::now());
        let first = window.add(start, false);
        let second = window.add(start + Duration::from_millis(4), false);
        let now = start + Duration::from_millis(9);
        assert!(!window.may_send(now));
        assert_eq!(window.next_send_at(now), Some(start + BATCH_SLOW_AFTER));
        assert!(window.may_send(start + BATCH_SLOW_AFTER), "the first is slow");
        window.remove(second);
        assert!(window.may_send(now), "one place is free");
        window.remove(first);
        assert!(window.is_empty());
        let mut now = start;
        while window.may_send(now) {
            window.add(now, false);
            now += BATCH_SLOW_AFTER;
        }
        assert_eq!((window.batches.len(), window.next_send_at(now)), (BATCHES_MAX, None));
    }

    #[test]
    fn one_place_is_left_to_fresh_keys() {
        let (mut window, now) = (BatchWindow::new(3), Instant::now());
        let retry = window.add(now, true);
        window.add(now, true);
        assert!(!window.may_retry(now) && window.may_send(now));
        window.remove(retry);
        assert!(window.may_retry(now));
        let mut single = BatchWindow::new(1);
        assert!(single.may_retry(now));
        single.add(now, true);
        assert!(!single.may_retry(now) && !single.may_send(now));
    }

    #[test]
    fn one_retry_is_in_flight_while_no_router_answers() {
        let (mut window, now) = (BatchWindow::new(4), Instant::now());
        window.set_reachable(false);
        let retry = window.add(now, true);
        let later = now + 2 * BATCH_SLOW_AFTER;
        assert_eq!(window.next_retry_at(later), None);
        assert!(window.may_send(later), "of fresh keys");
        window.set_reachable(true);
        assert!(window.may_retry(later));
        window.set_reachable(false);
        window.remove(retry);
        assert!(window.may_retry(later));
    }

    #[test]
    fn slow_retries_leave_places_to_other_retries_and_to_fresh_keys() {
        let (mut window, mut now) = (BatchWindow::new(2), Instant::now());
        while window.may_retry(now) {
            window.add(now, true);
            assert!(!window.may_retry(now) && window.may_send(now));
            now += BATCH_SLOW_AFTER;
        }
        assert_eq!((window.retries.len(), window.next_retry_at(now)), (RETRY_BATCHES_MAX, None));
        assert!(window.may_send(now));
    }
}
