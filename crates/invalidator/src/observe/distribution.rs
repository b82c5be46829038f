//! Counts by size, from which both quantiles (`stats`) and buckets (Prometheus) are read.

use hdrhistogram::Histogram;

/// Latencies above an hour are recorded as an hour.
pub(super) const LATENCY_US_MAX: u64 = 3_600_000_000;
/// Two digits: an error of 1 %, and 30 kB for latencies.
const DIGITS: u8 = 2;

/// Recorded values.
#[derive(Debug)]
pub(super) struct Distribution {
    histogram: Histogram<u64>,
    sum: u64,
}

impl Distribution {
    /// No values yet. Those above `max` will count as `max`.
    pub fn new(max: u64) -> Distribution {
        let histogram = Histogram::new_with_bounds(1, max, DIGITS).expect("the bounds are in order");
        Distribution { histogram, sum: 0 }
    }

    pub fn record(&mut self, value: u64) {
        self.histogram.saturating_record(value);
        self.sum = self.sum.saturating_add(value);
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    pub fn quantile(&self, share: f64) -> u64 {
        self.histogram.value_at_quantile(share)
    }

    pub fn max(&self) -> u64 {
        self.histogram.max()
    }

    /// How many values are at most `bound`, to the precision of the histogram.
    pub fn count_up_to(&self, bound: u64) -> u64 {
        self.histogram.count_between(0, bound)
    }
}
