//! What is counted while a load is measured.

use crate::outstanding::Answered;
use hdrhistogram::Histogram;

/// The resolution of short latencies, in nanoseconds.
const LATENCY_NS_MIN: u64 = 100;
/// Longer latencies are recorded as this, in nanoseconds.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
const LATENCY_DIGITS: u8 = 3;

/// The counts of a time of measurement.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Requests that were answered.
    pub requests: u64,
    /// Keys of these requests.
    pub keys: u64,
    /// Keys of gets that got no value.
    pub misses: u64,
    /// Requests by UDP without a whole reply in time.
    pub lost: u64,
    /// Nanoseconds from when a request was sent, or due in open loop, to its whole reply.
    pub latency_ns: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Tally {
        let latency_ns = Histogram::new_with_bounds(LATENCY_NS_MIN, LATENCY_NS_MAX, LATENCY_DIGITS);
        let latency_ns = latency_ns.expect("the bounds are valid");
        Tally { requests: 0, keys: 0, misses: 0, lost: 0, latency_ns }
    }
}

impl Tally {
    /// Counts a request that was answered at `now_ns`.
    pub fn record(&mut self, answered: Answered, now_ns: u64) {
        self.requests += 1;
        self.keys += u64::from(answered.keys);
        self.misses += u64::from(answered.misses);
        self.latency_ns.saturating_record(now_ns.saturating_sub(answered.since_ns));
    }
}
