//! The four pools of §7.2 of the paper as workloads: their rates of gets, sets and deletes (Table 2), the sizes of
//! their values (Table 3), and churn of keys.
//!
//! The paper gives the rates relative to each other, the miss rate, and the sizes. The rest is assumed:
//!
//! * Popularity is Zipf's over a number of ranks. The exponent and the number are chosen so that a cache of 64 MiB
//!   misses about as often as the paper's servers did.
//! * Churn: every rank has its object for `lifetime_requests`, then a new one; ranks change at different times.
//!   "Content that is accessed for a few hours and then fades away in popularity in favor of newer content" (§7.2).
//! * At first every object is read once, the most popular last: a cache that has run for long holds them all.
//! * Sets of Table 2 beyond those that fill a miss are updates, as popular as gets. Deletes come from the database,
//!   where most rows are in no cache: the share `delete_reach` of them falls, evenly, on the objects that are read.
//!
//! One seed gives one trace, on every machine.

use crate::population::Population;
use crate::sizes::Sizes;
use crate::trace::{Trace, Verb};
use crate::zipf::Zipf;
use fastrand::Rng;

/// The length of keys: as in real applications.
const POOL_KEY_BYTES: usize = 24;

/// One of the paper's pools.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    /// The paper's name.
    pub name: &'static str,
    /// Thousands a second on one server (Table 2).
    pub gets: f64,
    /// Thousands a second on one server (Table 2).
    pub sets: f64,
    /// Thousands a second on one server (Table 2).
    pub deletes: f64,
    /// The share of gets that missed (Table 2).
    pub miss_ratio: f64,
    /// The sizes of the values (Table 3).
    pub sizes: Sizes,
    /// The number of objects that are read at one time.
    pub ranks: usize,
    /// The Zipf exponent of their popularity.
    pub zipf_exponent: f64,
    /// The number of requests for which an object keeps its rank.
    pub lifetime_requests: usize,
    /// The share of deletes of objects that are read.
    pub delete_reach: f64,
    /// Requests in each second of the workload.
    pub requests_per_s: u32,
    /// The number of requests of a run: in the first quarter the cache fills and becomes steady.
    pub requests: usize,
}

/// The pools of Tables 2 and 3.
#[expect(clippy::approx_constant, reason = "6.28 thousand deletes a second are not a circle")]
pub const POOLS: [Pool; 4] = [
    Pool {
        name: "wildcard",
        gets: 262.0,
        sets: 8.26,
        deletes: 21.2,
        miss_ratio: 0.0176,
        sizes: Sizes { mean: 1_110.0, percentiles: [77.0, 102.0, 169.0, 363.0, 3_650.0, 18_300.0] },
        ranks: 110_000,
        zipf_exponent: 1.1,
        lifetime_requests: 40_000_000,
        delete_reach: 0.05,
        requests_per_s: 4_000,
        requests: 4_000_000,
    },
    Pool {
        name: "app",
        gets: 96.5,
        sets: 11.9,
        deletes: 6.28,
        miss_ratio: 0.0785,
        sizes: Sizes { mean: 881.0, percentiles: [103.0, 247.0, 269.0, 337.0, 1_680.0, 10_400.0] },
        ranks: 100_000,
        zipf_exponent: 0.9,
        lifetime_requests: 3_000_000,
        delete_reach: 0.1,
        requests_per_s: 4_000,
        requests: 4_000_000,
    },
    Pool {
        name: "replicated",
        gets: 710.0,
        sets: 1.75,
        deletes: 3.22,
        miss_ratio: 0.000_53,
        sizes: Sizes { mean: 66.0, percentiles: [62.0, 68.0, 68.0, 68.0, 68.0, 68.0] },
        ranks: 1_000_000,
        zipf_exponent: 1.5,
        lifetime_requests: 1_000_000_000,
        delete_reach: 0.02,
        requests_per_s: 6_000,
        requests: 6_000_000,
    },
    Pool {
        name: "regional",
        gets: 9.1,
        sets: 0.79,
        deletes: 35.9,
        miss_ratio: 0.0635,
        sizes: Sizes { mean: 31_800.0, percentiles: [231.0, 824.0, 5_310.0, 24_000.0, 158_000.0, 381_000.0] },
        ranks: 4_500,
        zipf_exponent: 1.1,
        lifetime_requests: 2_000_000,
        delete_reach: 0.001,
        requests_per_s: 1_500,
        requests: 1_500_000,
    },
];

impl Pool {
    /// The pool with this name.
    pub fn named(name: &str) -> Option<Pool> {
        POOLS.into_iter().find(|pool| pool.name == name)
    }

    /// A trace of `requests` requests.
    pub fn trace(&self, requests: usize, seed: u64) -> Trace {
        let mut rng = Rng::with_seed(seed);
        let popularity = Zipf::new(self.ranks, self.zipf_exponent);
        let mut population = Population::new(self.ranks, self.lifetime_requests, &self.sizes, POOL_KEY_BYTES, &mut rng);
        let updates = self.sets - self.miss_ratio * self.gets;
        let total = self.gets + updates + self.deletes;
        let mut trace = Trace {
            requests: Vec::new(),
            verbs: Vec::new(),
            object_bytes: Vec::new(),
            object_exptime_s: Vec::new(),
            requests_per_s: Vec::new(),
            key_bytes: POOL_KEY_BYTES,
        };
        for index in 0..requests {
            let sample = rng.f64() * total;
            let (verb, rank) = if index < self.ranks {
                (Verb::Get, self.ranks - 1 - index)
            } else if sample < self.gets + updates {
                let verb = if sample < self.gets { Verb::Get } else { Verb::Set };
                (verb, popularity.rank(rng.f64()))
            } else if rng.f64() < self.delete_reach {
                (Verb::Delete, rng.usize(..self.ranks))
            } else {
                (Verb::Delete, population.unread_rank())
            };
            trace.requests.push(population.object(rank, index, &mut rng));
            trace.verbs.push(verb);
        }
        trace.object_bytes = population.into_object_bytes();
        let whole_seconds = requests / self.requests_per_s as usize;
        trace.requests_per_s = vec![self.requests_per_s; whole_seconds];
        trace.requests_per_s.push((requests % self.requests_per_s as usize) as u32);
        trace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_has_the_rates_and_sizes_of_the_paper() {
        const REQUESTS: usize = 200_000;
        for pool in POOLS {
            const RANKS: usize = 5_000;
            let trace = Pool { ranks: RANKS, ..pool }.trace(REQUESTS, 1);
            // The first gets, one for each object, do not count.
            let count = |verb| trace.verbs[RANKS..].iter().filter(|&&other| other == verb).count() as f64;
            let deletes_per_get = count(Verb::Delete) / count(Verb::Get);
            let wanted = pool.deletes / pool.gets;
            assert!((deletes_per_get / wanted - 1.0).abs() < 0.1, "{}: {deletes_per_get}, not {wanted}", pool.name);
            assert_eq!(trace.requests_per_s.iter().sum::<u32>() as usize, REQUESTS);
            let mut sizes: Vec<u32> = trace.object_bytes.clone();
            sizes.sort_unstable();
            let median = f64::from(sizes[sizes.len() / 2]) - POOL_KEY_BYTES as f64;
            assert!((median / pool.sizes.percentiles[2] - 1.0).abs() < 0.2, "{}: median {median}", pool.name);
        }
    }

    #[test]
    fn ranks_change_their_objects() {
        let pool = Pool { ranks: 100, lifetime_requests: 5_000, ..POOLS[0] };
        let trace = pool.trace(50_000, 7);
        // Every popular rank had ten objects or eleven.
        assert!((800..1_200).contains(&trace.object_bytes.len()), "{} objects", trace.object_bytes.len());
        assert_eq!(trace, pool.trace(50_000, 7));
        assert_ne!(trace, pool.trace(50_000, 8));
    }
}
