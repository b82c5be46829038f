//! A token bucket: a rate with a burst, by a clock that is handed in.

use crate::configuration::{ConfigurationError, Node};
use lookaside_sync::Mutex;
use std::time::Duration;

/// A limit: tokens per second, and how many can accumulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests per second.
    pub per_s: u32,
    /// Requests at once after an idle time; at least 1.
    pub burst: u32,
}

/// A rate above this limits nothing.
const RATE_MAX: i64 = 1_000_000_000;

impl Rate {
    /// Parses a rate. Without a `burst` it is one second's tokens, and at least 1.
    pub(crate) fn parse(per_s: &Node<'_>, burst: Option<&Node<'_>>) -> Result<Rate, ConfigurationError> {
        let per_s = per_s.integer("requests a second", 0, RATE_MAX)? as u32;
        let burst = burst.map(|node| node.integer("requests", 1, RATE_MAX)).transpose()?;
        Ok(Rate { per_s, burst: burst.map_or(per_s.max(1), |burst| burst as u32) })
    }
}

/// Tokens, in billionths, so that every nanosecond counts.
pub(crate) struct TokenBucket {
    rate: Rate,
    /// The tokens, and when they were counted.
    state: Mutex<(u128, Duration)>,
}

const TOKEN: u128 = 1_000_000_000;

impl TokenBucket {
    pub(crate) fn new(rate: Rate, now: Duration) -> Self {
        TokenBucket { rate, state: Mutex::new((u128::from(rate.burst) * TOKEN, now)) }
    }

    /// Takes one token. Returns whether there was one.
    pub(crate) fn try_take(&self, now: Duration) -> bool {
        let mut state = self.state.lock();
        let (tokens, counted_at) = &mut *state;
        let passed = now.saturating_sub(*counted_at).as_nanos();
        *tokens = (*tokens + passed * u128::from(self.rate.per_s)).min(u128::from(self.rate.burst) * TOKEN);
        *counted_at = now.max(*counted_at);
        let has_one = *tokens >= TOKEN;
        if has_one {
            *tokens -= TOKEN;
        }
        has_one
    }
}
