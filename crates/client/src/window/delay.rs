//! Finds the size of a window by the delay of replies, before anything is lost: with TCP a lost reply is late, not
//! lost.
//!
//! A reply takes a base time plus its part of a queue, which grows with the requests that are outstanding:
//!
//! ```text
//!  round trip                    /
//!     |                     /          slope: the time that the narrowest link needs for a reply
//!     |                /  .
//!     |           /  .    .
//!     |      / .          .
//!     | base              .
//!     +-------------------|------------  outstanding requests
//!                       window: where the round trip is TOLERANCE times the base
//! ```
//!
//! * The base is the value at 0 of the line through the last round trips (least squares): requests of one page are sent
//!   while few and while many others are outstanding. It is not their minimum: timers, schedulers and batches make most
//!   round trips longer than the shortest one, without any queue. The lowest base of the last [`BASE_HORIZON_MS`]
//!   counts, since other clients' queues raise it.
//! * After each window of replies, the window moves towards `window * TOLERANCE * base / round trip + sqrt(window)`, as
//!   in Netflix's gradient limits. The square root makes clients that share a link equal: the smaller one grows faster.
//! * Once in each half of that time the window is a quarter of its size for a moment ([`DelayControl::is_probing`]), so
//!   that there is a line although all other requests may see a full window.
//! * A queue of a millisecond is accepted in any case.
//! * A reply that takes ten times the base, and 100 ms, was lost and sent again, if half of the window was in use: with
//!   a short queue replies are lost before the delay shows it. The window then has a share of what was outstanding, but
//!   at least half of its size, and does not grow beyond it for a while. A late reply to few requests is that of a
//!   server that was held up, and says nothing about the network.

use std::time::Duration;

/// The round trip that is aimed at, as a multiple of the base: the queue is then as long as what is under way.
const TOLERANCE: f64 = 2.0;
/// A queue of this long is accepted in any case. Where the base is shorter, as in one rack or on one machine, replies
/// wait for processors as long: a smaller window would not shorten that, but cut batches into pieces, which cost more.
const QUEUE_MIN_S: f64 = 0.001;
/// How far the window moves towards its aim in each round.
const STEP: f64 = 0.3;
/// In each round, and after a loss, it shrinks to this share of its size at most.
const SHRINK_MAX: f64 = 0.5;
/// The base is the lowest of this time, in milliseconds, and up to half of it more.
const BASE_HORIZON_MS: u64 = 10_000;
/// Earlier round trips count this much less with each new one: the line is that of the last hundred.
const DECAY: f64 = 0.99;
/// Round trips before there is a line.
const SAMPLES_MIN: f64 = 10.0;
/// The line needs outstanding requests whose deviation is this share of their mean.
const DEVIATION_MIN: f64 = 0.15;
/// Round trips of more than this many bases were held up by a retransmission: they do not count for the line.
const LATE: f64 = 10.0;
/// And more than this: Linux by default waits for at least 200 ms before it sends again. Garbage collections, snapshots
/// and busy hosts hold replies up for less.
const LATE_MIN_S: f64 = 0.1;
/// After such a one the window has this share of what was outstanding then,
const LATE_SHARE: f64 = 0.7;
/// and does not grow beyond it for this many times as long as the late reply took.
const CEILING_TIMES: u32 = 25;

/// A reply to some requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    /// Since the window was made.
    pub(super) at: Duration,
    pub(super) took: Duration,
    /// The number of requests that were sent together.
    pub(super) requests: usize,
    /// All that were outstanding when they had been sent.
    pub(super) outstanding: usize,
    /// Whether that was at least half of the window.
    pub(super) was_half_used: bool,
    /// Whether they were sent after the last loss.
    pub(super) is_after_loss: bool,
}

/// The state of the control.
#[derive(Debug, Default)]
pub(super) struct DelayControl {
    line: Line,
    base: LowestBase,
    /// Round trips of the present round, in requests and in seconds for all of them.
    round_requests: f64,
    round_s: f64,
    /// Replies to requests of the probe until its end; 0 if there is none.
    probe_replies: usize,
    /// When the last probe began: requests that were sent before saw the whole window.
    probe_began_at: Duration,
    /// The largest size until a time; `None` if there was no late reply.
    ceiling: Option<(f64, Duration)>,
}

/// What a round trip tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adjusted {
    /// The new size.
    pub(super) size: f64,
    /// Whether it was lost on its way, and sent again by TCP.
    pub(super) is_late: bool,
}

/// The sums of a least-squares line of seconds by outstanding requests.
#[derive(Debug, Default)]
struct Line {
    count: f64,
    outstanding: f64,
    seconds: f64,
    squares: f64,
    products: f64,
}

/// The lowest base of the present half of the horizon and the one before, in seconds.
#[derive(Debug, Default)]
struct LowestBase {
    halves: [LowestOfHalf; 2],
    /// The number of the present half.
    half: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct LowestOfHalf {
    /// `None` if there was no round trip.
    round_trip: Option<f64>,
    /// `None` if there was no line.
    base: Option<f64>,
}

impl DelayControl {
    /// The size of a window of `size` after a round trip.
    pub(super) fn adjust(&mut self, size: f64, round_trip: RoundTrip) -> Adjusted {
        if round_trip.at.saturating_sub(round_trip.took) >= self.probe_began_at {
            self.probe_replies = self.probe_replies.saturating_sub(round_trip.requests);
        }
        if self.base.advance(round_trip.at) && self.probe_replies == 0 {
            self.probe_replies = (size / 2.0) as usize;
            self.probe_began_at = round_trip.at;
        }
        let seconds = round_trip.took.as_secs_f64();
        if self.base.lowest().is_some_and(|base| seconds > (LATE * base).max(LATE_MIN_S)) {
            return self.shrink_if_late(size, round_trip);
        }
        self.line.add(round_trip.outstanding as f64, seconds);
        self.base.record(seconds, self.line.base());
        let unchanged = Adjusted { size, is_late: false };
        if !round_trip.was_half_used || self.is_probing() {
            return unchanged;
        }
        self.round_requests += round_trip.requests as f64;
        self.round_s += seconds * round_trip.requests as f64;
        if self.round_requests < size {
            return unchanged;
        }
        let mean_s = self.round_s / self.round_requests;
        (self.round_requests, self.round_s) = (0.0, 0.0);
        let gradient = self.base.lowest().map_or(1.0, |base| {
            let aim_s = (TOLERANCE * base).max(base + QUEUE_MIN_S);
            (aim_s / mean_s).clamp(SHRINK_MAX, 1.0)
        });
        let aim = size * gradient + size.sqrt();
        self.ceiling = self.ceiling.filter(|&(_, until)| round_trip.at < until);
        let ceiling = self.ceiling.map_or(f64::MAX, |(ceiling, _)| ceiling.max(size));
        Adjusted { size: (size + STEP * (aim - size)).min(ceiling), is_late: false }
    }

    fn shrink_if_late(&mut self, size: f64, round_trip: RoundTrip) -> Adjusted {
        if !round_trip.is_after_loss || !round_trip.was_half_used {
            return Adjusted { size, is_late: false };
        }
        (self.round_requests, self.round_s) = (0.0, 0.0);
        let ceiling = (LATE_SHARE * round_trip.outstanding as f64).clamp(SHRINK_MAX * size, size);
        self.ceiling = Some((ceiling, round_trip.at + CEILING_TIMES * round_trip.took));
        Adjusted { size: ceiling, is_late: true }
    }

    /// Whether only a quarter of the window is to be used for a moment.
    pub(super) fn is_probing(&self) -> bool {
        self.probe_replies > 0
    }
}

impl Line {
    fn add(&mut self, outstanding: f64, seconds: f64) {
        let sums = [&mut self.count, &mut self.outstanding, &mut self.seconds, &mut self.squares, &mut self.products];
        let new = [1.0, outstanding, seconds, outstanding * outstanding, outstanding * seconds];
        for (sum, new) in sums.into_iter().zip(new) {
            *sum = *sum * DECAY + new;
        }
    }

    /// Seconds of a round trip if nothing else is outstanding; `None` if that cannot be known.
    fn base(&self) -> Option<f64> {
        let (mean, mean_s) = (self.outstanding / self.count, self.seconds / self.count);
        let variance = self.squares / self.count - mean * mean;
        if self.count < SAMPLES_MIN || variance < (DEVIATION_MIN * mean).powi(2) {
            return None;
        }
        let slope = ((self.products / self.count - mean * mean_s) / variance).max(0.0);
        // At one outstanding request, as there is none at none.
        Some((mean_s - slope * (mean - 1.0)).max(0.0))
    }
}

impl LowestBase {
    /// Begins a new half of the horizon if it is time; returns whether it did.
    fn advance(&mut self, at: Duration) -> bool {
        let half = at.as_millis() as u64 / (BASE_HORIZON_MS / 2);
        let is_new = half > self.half;
        if is_new {
            self.half = half;
            self.halves = [LowestOfHalf::default(), self.halves[0]];
        }
        is_new
    }

    fn record(&mut self, round_trip: f64, base: Option<f64>) {
        let lowest = |old: Option<f64>, new: f64| Some(old.map_or(new, |old| old.min(new)));
        let half = &mut self.halves[0];
        half.round_trip = lowest(half.round_trip, round_trip);
        if let Some(base) = base {
            half.base = lowest(half.base, base);
        }
    }

    /// `None` before there is a line. No base is below the shortest round trip.
    fn lowest(&self) -> Option<f64> {
        let lowest = |of: fn(&LowestOfHalf) -> Option<f64>| self.halves.iter().filter_map(of).reduce(f64::min);
        Some(lowest(|half| half.base)?.max(lowest(|half| half.round_trip)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size after many round trips of pages, where all that is wanted is outstanding, as far as the window allows.
    /// A round trip takes `base_us`, and `slope_us` more for each request that is outstanding.
    fn size_after(base_us: f64, slope_us: f64, wanted: usize) -> usize {
        let (mut control, mut size, mut at) = (DelayControl::default(), 100.0, Duration::ZERO);
        for number in 0..5_000 {
            let usable = (if control.is_probing() { size / 4.0 } else { size }) as usize;
            // Some are sent while few others are outstanding.
            let outstanding = wanted.min(usable) / (1 + number % 3);
            let took = Duration::from_secs_f64((base_us + slope_us * outstanding as f64) / 1e6);
            at += took;
            let was_half_used = outstanding * 2 >= size as usize;
            let trip = RoundTrip { at, took, requests: 24, outstanding, was_half_used, is_after_loss: true };
            size = control.adjust(size, trip).size.clamp(4.0, 10_000.0);
        }
        size as usize
    }

    /// Once the window shrank to its minimum where nothing but the client's own processor limits the rate: pages took
    /// seven times as long, since each request was sent by itself.
    #[test]
    fn short_delays_do_not_shrink_the_window() {
        assert!(size_after(60.0, 3.0, 384) >= 300, "{}", size_after(60.0, 3.0, 384));
        assert!(size_after(60.0, 0.5, 384) >= 384, "{}", size_after(60.0, 0.5, 384));
    }

    /// Once the replies to what was outstanding when a probe began ended it, before anything was sent in the small
    /// window.
    #[test]
    fn a_probe_ends_by_replies_to_its_own_requests() {
        let mut control = DelayControl::default();
        let mut reply = |sent_ms: u64, at_ms: u64| {
            let (at, took) = (Duration::from_millis(at_ms), Duration::from_millis(at_ms - sent_ms));
            let trip = RoundTrip { at, took, requests: 20, outstanding: 100, was_half_used: true, is_after_loss: true };
            control.adjust(100.0, trip);
            control.is_probing()
        };
        let begins_at = BASE_HORIZON_MS / 2;
        assert!(!reply(begins_at - 2, begins_at - 1));
        assert!(reply(begins_at - 1, begins_at), "it begins");
        assert!((1..=5).all(|_| reply(begins_at - 1, begins_at + 1)), "the whole window, sent before");
        assert!(reply(begins_at + 1, begins_at + 2) && reply(begins_at + 1, begins_at + 2));
        assert!(!reply(begins_at + 1, begins_at + 2), "half of the window, sent since");
    }

    /// The size, of 400 at first, after pages of 400 keys and then one reply that took `late_ms`, to requests that made
    /// `outstanding` when they were sent.
    fn size_after_late(outstanding: usize, late_ms: u64) -> f64 {
        let (mut control, mut at) = (DelayControl::default(), Duration::ZERO);
        let mut adjust = |took_ms: f64, outstanding: usize| {
            let took = Duration::from_secs_f64(took_ms / 1_000.0);
            at += took;
            let was_half_used = outstanding >= 200;
            let trip = RoundTrip { at, took, requests: 24, outstanding, was_half_used, is_after_loss: true };
            control.adjust(400.0, trip)
        };
        for number in 0..1_000 {
            let outstanding = 400 / (1 + number % 3);
            assert!(!adjust(0.5 + outstanding as f64 / 400.0, outstanding).is_late);
        }
        adjust(late_ms as f64, outstanding).size
    }

    /// Once a single get of an idle client that a busy server held up for 30 ms left a window of 4 of 400, for a
    /// second.
    #[test]
    fn only_a_late_reply_to_many_requests_is_a_loss() {
        assert_eq!(size_after_late(1, 30), 400.0);
        assert_eq!(size_after_late(1, 250), 400.0);
        assert_eq!(size_after_late(199, 250), 400.0);
        assert!(size_after_late(400, 60) > 280.0, "nothing is sent again as soon");
        assert_eq!(size_after_late(400, 250), 280.0);
        assert_eq!(size_after_late(220, 250), 200.0, "half of it is left");
    }

    #[test]
    fn long_ones_do() {
        // 100 requests take ten times the base.
        assert!(size_after(2_000.0, 180.0, 384) < 60, "{}", size_after(2_000.0, 180.0, 384));
    }
}
