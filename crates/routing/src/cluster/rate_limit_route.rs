//! So many requests a second, by kind: for instance what a gutter may take over (§3.3 of the paper).
//!
//! | verb | bucket | with a token | without |
//! |---|---|---|---|
//! | get gets gat gats lease-get metaget | `gets` | handed on | the fallback; without one a miss |
//! | set add replace append prepend cas lease-set touch incr decr | `sets` | handed on | the fallback; without one `NOT_STORED` or `NOT_FOUND` |
//! | delete | `deletes` | handed on | the fallback; without one the failure "too many requests outstanding" |
//!
//! A kind without a rate has no limit. mcrouter answers a delete over the limit as not found; here it fails, since
//! nobody must take it for done.
//!
//! A bucket fills at `rate` tokens a second up to `burst`, by a clock that is handed in. A request that fails has spent
//! its token.

use crate::{
    Batch, BoxFuture, Context, Failure, NullRoute, Outcomes, Route,
    environment::Clock,
    outcome::verb,
    split::{ask_some, split},
    verb::Kind,
};
use bytes::Bytes;
use lookaside_protocol::Request;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// A limit: tokens a second, and how many may be saved up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests a second.
    pub per_s: u32,
    /// Requests at once after a quiet time; at least 1.
    pub burst: u32,
}

/// The limits by kind; none where not said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// For verbs that read.
    pub gets: Option<Rate>,
    /// For verbs that change a value.
    pub sets: Option<Rate>,
    /// For `delete`.
    pub deletes: Option<Rate>,
}

/// A target that is asked so much and no more.
pub struct RateLimitRoute {
    /// The target, and where the rest goes.
    children: [Arc<dyn Route>; 2],
    buckets: [Option<Bucket>; 3],
    clock: Arc<dyn Clock>,
}

const TARGET: usize = 0;
const FALLBACK: usize = 1;

impl RateLimitRoute {
    /// Hands on to `target` what `rates` allow, and the rest to `fallback`.
    pub fn new(target: Arc<dyn Route>, fallback: Option<Arc<dyn Route>>, rates: Rates, clock: Arc<dyn Clock>) -> Self {
        let now = clock.now();
        let bucket = |rate: Option<Rate>| rate.map(|rate| Bucket::full(rate, now));
        let buckets = [bucket(rates.gets), bucket(rates.sets), bucket(rates.deletes)];
        let fallback = fallback.unwrap_or_else(|| Arc::new(Refuse));
        RateLimitRoute { children: [target, fallback], buckets, clock }
    }

    fn choose(&self, request: &Request<Bytes>, now: Duration) -> usize {
        match &self.buckets[kind_index(verb(request).kind())] {
            Some(bucket) if !bucket.take(now) => FALLBACK,
            _ => TARGET,
        }
    }
}

impl Route for RateLimitRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        let now = self.clock.now();
        split(&self.children, batch, context, |request| self.choose(request, now))
    }
}

fn kind_index(kind: Kind) -> usize {
    match kind {
        Kind::Read => 0,
        Kind::Update => 1,
        Kind::Delete => 2,
    }
}

/// Tokens, in billionths so that every nanosecond counts.
pub(crate) struct Bucket {
    rate: Rate,
    state: Mutex<(u128, Duration)>,
}

const TOKEN: u128 = 1_000_000_000;

impl Bucket {
    pub(crate) fn full(rate: Rate, now: Duration) -> Self {
        Bucket { rate, state: Mutex::new((u128::from(rate.burst) * TOKEN, now)) }
    }

    /// Takes one token, if there is one.
    pub(crate) fn take(&self, now: Duration) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (tokens, filled) = &mut *state;
        let passed = now.saturating_sub(*filled).as_nanos();
        *tokens = (*tokens + passed * u128::from(self.rate.per_s)).min(u128::from(self.rate.burst) * TOKEN);
        *filled = now.max(*filled);
        let has_one = *tokens >= TOKEN;
        if has_one {
            *tokens -= TOKEN;
        }
        has_one
    }
}

/// What is over the limit and has no fallback.
struct Refuse;

impl Route for Refuse {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(async move {
            let mut outcomes: Outcomes = batch.iter().map(|_| Err(Failure::Busy)).collect();
            let not_deletes = batch.into_iter().enumerate().filter(|(_, request)| verb(request).kind() != Kind::Delete);
            for (at, outcome) in ask_some(&NullRoute, not_deletes.collect(), context).await {
                outcomes[at] = outcome;
            }
            outcomes
        })
    }
}
