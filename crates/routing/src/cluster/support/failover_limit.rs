//! The limit on failovers: a share of the requests, with a burst.
//!
//! ```text
//!   burst tokens at the start, and never more    + rate for each request that is seen    - 1 for each failover
//! ```
//!
//! No clock: with few requests there are few failovers, too.

use crate::configuration::{ConfigurationError, Keys, Object};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many requests may fail over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailoverLimit {
    /// The share of all requests, from 0 to 1.
    pub share: f64,
    /// Failovers at once after a time without any; at least 1.
    pub burst: u32,
}

/// mcrouter's default.
const BURST: i64 = 1_000;

/// A burst above this limits nothing.
const BURST_MAX: i64 = 1_000_000_000;

impl FailoverLimit {
    /// Parses `failover_limit`; `None` if there is none.
    pub(crate) fn parse(object: &Object<'_>) -> Result<Option<FailoverLimit>, ConfigurationError> {
        let Some(node) = object.get("failover_limit") else { return Ok(None) };
        let object = node.object("a limit: an object with \"rate\" and \"burst\"")?;
        object.check(&Keys::known(&["rate", "burst"]))?;
        let expected = "the share of requests that may fail over, a number";
        let share = object.require("rate", "a share of requests from 0 to 1")?.number(expected, 0.0, 1.0)?;
        let burst = object.get("burst").map_or(Ok(BURST), |node| node.integer("failovers", 1, BURST_MAX))?;
        Ok(Some(FailoverLimit { share, burst: burst as u32 }))
    }
}

/// The tokens of a limit, in 2^32nds.
pub(crate) struct FailoverTokens {
    gain: u64,
    full: u64,
    tokens: AtomicU64,
}

const TOKEN: u64 = 1 << 32;

impl FailoverTokens {
    pub(crate) fn new(FailoverLimit { share, burst }: FailoverLimit) -> Self {
        let full = u64::from(burst) * TOKEN;
        FailoverTokens { gain: (share * TOKEN as f64) as u64, full, tokens: AtomicU64::new(full) }
    }

    /// Counts requests that are seen. While no request fails over this only reads.
    pub(crate) fn add_requests(&self, requests: usize) {
        let gained = self.gain.saturating_mul(requests as u64);
        let add = |tokens: u64| (tokens < self.full).then(|| tokens.saturating_add(gained).min(self.full));
        let _ = self.tokens.fetch_update(Relaxed, Relaxed, add);
    }

    /// Takes the token of one failover. Returns whether there was one.
    pub(crate) fn try_take(&self) -> bool {
        self.tokens.fetch_update(Relaxed, Relaxed, |tokens| tokens.checked_sub(TOKEN)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same by fractions of a 64th, in which the shares of the test are whole.
    struct Model {
        tokens: u64,
        full: u64,
        gain: u64,
    }

    impl Model {
        fn fail_over(&mut self) -> bool {
            let has_one = self.tokens >= 64;
            self.tokens -= if has_one { 64 } else { 0 };
            has_one
        }
    }

    #[test]
    fn as_the_model_over_a_long_run() {
        let mut rng = fastrand::Rng::with_seed(17);
        for (part, burst) in [(0_u32, 1), (1, 1), (3, 7), (16, 1_000), (32, 2), (64, 1)] {
            let limit = FailoverLimit { share: f64::from(part) / 64.0, burst };
            let tokens = FailoverTokens::new(limit);
            let full = u64::from(burst) * 64;
            let mut model = Model { tokens: full, full, gain: u64::from(part) };
            for step in 0..20_000 {
                let requests = rng.usize(1..4);
                tokens.add_requests(requests);
                model.tokens = (model.tokens + model.gain * requests as u64).min(model.full);
                for _ in 0..rng.usize(0..4) {
                    assert_eq!(tokens.try_take(), model.fail_over(), "{limit:?}, step {step}");
                }
            }
        }
    }

    #[test]
    fn a_burst_first_and_then_the_share() {
        let tokens = FailoverTokens::new(FailoverLimit { share: 0.1, burst: 50 });
        let allowed = |requests: usize| {
            let fails_over = |_| {
                tokens.add_requests(1);
                tokens.try_take()
            };
            (0..requests).map(fails_over).filter(|allowed| *allowed).count()
        };
        assert!((50..=56).contains(&allowed(55)), "the burst");
        let share = allowed(100_000);
        assert!((9_990..=10_010).contains(&share), "{share} of 100000");
        tokens.add_requests(200);
        let left = (0..100).filter(|_| tokens.try_take()).count();
        assert!((19..=21).contains(&left), "{left} after 200 requests without a failure");
        tokens.add_requests(1_000_000);
        assert_eq!((0..100).filter(|_| tokens.try_take()).count(), 50, "no more than the burst");
    }
}
