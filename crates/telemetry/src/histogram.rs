//! Histograms of durations: buckets that double, from a microsecond to half a second.

use lookaside_sync::Counter;

/// Bucket n counts durations of up to 2^n microseconds; the last one counts the rest, beyond half a second.
pub const BUCKETS: usize = 21;

/// One thread's durations; only that thread may record.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    sum_us: Counter,
}

/// The sum of several histograms, for example over threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistogramSum {
    /// The count of each bucket.
    pub buckets: [u64; BUCKETS],
    /// The sum of all durations, in microseconds.
    pub sum_us: u64,
}

impl Histogram {
    /// Records a duration of `duration_us` microseconds.
    pub fn record(&self, duration_us: u64) {
        self.buckets[bucket_of(duration_us)].add(1);
        self.sum_us.add(duration_us);
    }
}

impl HistogramSum {
    /// Adds a histogram's values at this moment.
    pub fn add(&mut self, histogram: &Histogram) {
        for (sum, own) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += own.value();
        }
        self.sum_us += histogram.sum_us.value();
    }

    /// The number of recorded durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

fn bucket_of(duration_us: u64) -> usize {
    let doublings = u64::BITS - duration_us.saturating_sub(1).leading_zeros();
    (doublings as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_counts_durations_up_to_its_bound() {
        for (duration_us, bucket) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (524_288, 19), (524_289, 20)] {
            assert_eq!(bucket_of(duration_us), bucket, "{duration_us} us");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn histograms_are_summed() {
        let (one, other) = (Histogram::default(), Histogram::default());
        one.record(3);
        one.record(1_000_000);
        other.record(3);
        let mut sum = HistogramSum::default();
        sum.add(&one);
        sum.add(&other);
        assert_eq!((sum.count(), sum.buckets[2], sum.buckets[BUCKETS - 1], sum.sum_us), (3, 2, 1, 1_000_006));
    }
}
