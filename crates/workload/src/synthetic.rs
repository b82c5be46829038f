//! A trace from a seed, for measurements where no real one is at hand.
//!
//! It has the statistics that decide over the hit ratio of a cache, close to those of the first three million requests
//! of the public sample of Twitter's cache cluster 52 (Yang et al., OSDI 2020; CC-BY 4.0):
//!
//! | of 3,000,000 requests | the sample |
//! |---|---|
//! | objects | 341,728 |
//! | new objects after the first million | 1 of 10 requests |
//! | requests of the 10, 1,000 and 100,000 most popular objects | 22 %, 53 %, 88 % |
//! | objects that are requested once | 40 % |
//! | size of the objects: median, 95th percentile, mean | 54, 733 and 200 bytes |
//!
//! Popularity is Zipf's over [`RANKS`] ranks; each rank gets a new object every [`LIFETIME_REQUESTS`] requests, and the
//! share [`ONE_TIME_SHARE`] of the requests is for objects that are never requested again. The sample as it is packed
//! has no exptimes: the shares of [`EXPTIMES`] are assumed.
//!
//! One seed gives one trace, on every machine.

use crate::population::Population;
use crate::sizes::Sizes;
use crate::trace::{KEY_BYTES, Trace};
use crate::zipf::Zipf;
use fastrand::Rng;

/// The longest synthetic trace, in requests, limited by memory.
pub const SYNTHETIC_REQUESTS_MAX: usize = 100_000_000;

/// The sample's mean rate.
const REQUESTS_PER_S: usize = 1_932;
const ONE_TIME_SHARE: f64 = 0.01;
const RANKS: usize = 200_000;
const ZIPF_EXPONENT: f64 = 1.0;
const LIFETIME_REQUESTS: usize = 2_000_000;
/// Values, in bytes.
const SIZES: Sizes = Sizes { mean: 190.0, percentiles: [6.0, 44.0, 44.0, 292.0, 723.0, 1_169.0] };
/// Shares of the objects and their exptime in seconds; the others do not expire.
const EXPTIMES: [(f64, u32); 2] = [(0.1, 600), (0.2, 3_600)];

/// A trace of this many requests.
pub fn synthetic(requests: usize, seed: u64) -> Trace {
    let mut rng = Rng::with_seed(seed);
    let popularity = Zipf::new(RANKS, ZIPF_EXPONENT);
    let mut population = Population::new(RANKS, LIFETIME_REQUESTS, &SIZES, KEY_BYTES, &mut rng);
    let objects = (0..requests)
        .map(|index| {
            if rng.f64() < ONE_TIME_SHARE {
                population.new_object(&mut rng)
            } else {
                let rank = popularity.rank(rng.f64());
                population.object(rank, index, &mut rng)
            }
        })
        .collect();
    let object_bytes = population.into_object_bytes();
    let object_exptime_s = object_bytes.iter().map(|_| exptime_s(rng.f64())).collect();
    let mut requests_per_s = vec![REQUESTS_PER_S as u32; requests / REQUESTS_PER_S];
    requests_per_s.push((requests % REQUESTS_PER_S) as u32);
    Trace { requests: objects, verbs: Vec::new(), object_bytes, object_exptime_s, requests_per_s, key_bytes: KEY_BYTES }
}

/// The exptime at a place between 0 and 1 that is drawn evenly.
fn exptime_s(mut place: f64) -> u32 {
    for (share, exptime_s) in EXPTIMES {
        if place < share {
            return exptime_s;
        }
        place -= share;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_close_to_the_samples() {
        const REQUESTS: usize = 3_000_000;
        let trace = synthetic(REQUESTS, 1);
        let close = |what: &str, found: f64, expected: f64, tolerance: f64| {
            assert!((found / expected - 1.0).abs() < tolerance, "{what} is {found}; of the sample: {expected}");
        };
        let objects = trace.object_bytes.len();
        close("the number of objects", objects as f64, 341_728.0, 0.1);
        let mut counts = vec![0u32; objects];
        let mut early = 0;
        for (index, &object) in trace.requests.iter().enumerate() {
            early += usize::from(index < 1_000_000 && counts[object as usize] == 0);
            counts[object as usize] += 1;
        }
        close("the share of new objects later", (objects - early) as f64 / 2e6, 0.099, 0.15);
        let once = counts.iter().filter(|&&count| count == 1).count();
        close("the share of objects that are requested once", once as f64 / objects as f64, 0.404, 0.2);
        counts.sort_unstable_by(|one, other| other.cmp(one));
        for (most, expected) in [(10, 0.219), (1_000, 0.531), (100_000, 0.877)] {
            let requests: u32 = counts[..most].iter().sum();
            close(&format!("the share of the {most} most popular"), f64::from(requests) / 3e6, expected, 0.2);
        }
        let mut sizes = trace.object_bytes.clone();
        sizes.sort_unstable();
        close("the median size", f64::from(sizes[objects / 2]), 54.0, 0.05);
        close("the 95th percentile of the sizes", f64::from(sizes[objects * 95 / 100]), 733.0, 0.05);
        let bytes: f64 = sizes.iter().map(|&bytes| f64::from(bytes)).sum();
        close("the mean size", bytes / objects as f64, 200.0, 0.1);
        let expiring = trace.object_exptime_s.iter().filter(|&&exptime_s| exptime_s > 0).count();
        close("the share of objects that expire", expiring as f64 / objects as f64, 0.3, 0.05);
        assert_eq!(trace.requests_per_s.iter().sum::<u32>() as usize, REQUESTS);
    }

    #[test]
    fn seed_gives_one_trace() {
        assert_eq!(synthetic(10_000, 7), synthetic(10_000, 7));
        assert_ne!(synthetic(10_000, 7), synthetic(10_000, 8));
    }
}
