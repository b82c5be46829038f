//! Limits the rate of requests, by kind: for instance what a gutter may take over (§3.3 of the paper).
//!
//! | verb | bucket | with a token | without |
//! |---|---|---|---|
//! | get gets gat gats lease-get metaget | `gets` | sent to the target | the fallback; without one a miss |
//! | set add replace append prepend cas lease-set touch incr decr | `sets` | sent to the target | the fallback; without one `NOT_STORED` or `NOT_FOUND` |
//! | delete | `deletes` | sent to the target | the fallback; without one the failure "too many requests outstanding" |
//!
//! A kind without a rate is not limited. mcrouter answers a delete beyond the limit with `NOT_FOUND`; here it fails,
//! since no client must take it for done.
//!
//! In a tree that is there to find the places of keys ([`Environment::finds_places`](crate::Environment::finds_places))
//! nothing is limited: all go to the target, and the fallback has copies that no delete is sure to reach.
//!
//! A bucket fills at `rate` tokens per second up to `burst`, by a clock that is handed in. A failed request has used
//! its token.

use crate::{
    Batch, BoxFuture, Context, Failure, KeyHash, NullRoute, Outcomes, Route,
    cluster::support::token_bucket::{Rate, TokenBucket},
    configuration::{ConfigurationError, Handle, Keys, Node, Object, Parser, RouteConfig, RouteType, TreeBuilder},
    environment::Clock,
    outcome::verb,
    split::{route_some, split},
    verb::VerbKind,
};
use bytes::Bytes;
use lookaside_protocol::Request;
use std::{sync::Arc, time::Duration};

/// The limits by kind; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// For verbs that read.
    pub gets: Option<Rate>,
    /// For verbs that change a value.
    pub sets: Option<Rate>,
    /// For `delete`.
    pub deletes: Option<Rate>,
}

/// A target with limited rates.
pub struct RateLimitRoute {
    /// The target, and the fallback.
    children: [Arc<dyn Route>; 2],
    buckets: [Option<TokenBucket>; 3],
    clock: Arc<dyn Clock>,
}

const TARGET: usize = 0;
const FALLBACK: usize = 1;

impl RateLimitRoute {
    /// Sends requests within `rates` to `target`, and the rest to `fallback`.
    pub fn new(target: Arc<dyn Route>, fallback: Option<Arc<dyn Route>>, rates: Rates, clock: Arc<dyn Clock>) -> Self {
        let now = clock.now();
        let bucket = |rate: Option<Rate>| rate.map(|rate| TokenBucket::new(rate, now));
        let buckets = [bucket(rates.gets), bucket(rates.sets), bucket(rates.deletes)];
        let fallback = fallback.unwrap_or_else(|| Arc::new(RefuseRoute));
        RateLimitRoute { children: [target, fallback], buckets, clock }
    }

    fn choose(&self, request: &Request<Bytes>, now: Duration) -> usize {
        match &self.buckets[kind_index(verb(request).kind())] {
            Some(bucket) if !bucket.try_take(now) => FALLBACK,
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

fn kind_index(kind: VerbKind) -> usize {
    match kind {
        VerbKind::Read => 0,
        VerbKind::Update => 1,
        VerbKind::Delete => 2,
    }
}

/// Replies to requests beyond the limit if there is no fallback.
struct RefuseRoute;

impl Route for RefuseRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(async move {
            let mut outcomes: Outcomes = batch.iter().map(|_| Err(Failure::Busy)).collect();
            let not_deletes =
                batch.into_iter().enumerate().filter(|(_, request)| verb(request).kind() != VerbKind::Delete);
            for (at, outcome) in route_some(&NullRoute, not_deletes.collect(), context).await {
                outcomes[at] = outcome;
            }
            outcomes
        })
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("RateLimitRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    target: Handle,
    fallback: Option<Handle>,
    rates: Rates,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "target", "rates", "fallback"]))?;
    Ok(Handle::route(Config {
        rates: parse_rates(&object.require("rates", "an object with \"gets_rate\" and others")?)?,
        fallback: parser.optional(object, "fallback"),
        target: parser.parse_required(object, "target")?,
    }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let Rates { gets, sets, deletes } = self.rates;
        let of_kind = |(rate, rate_name, burst_name): (Option<Rate>, _, _)| {
            rate.map(|rate| [(rate_name, rate.per_s.to_string()), (burst_name, rate.burst.to_string())])
        };
        [
            (gets, "gets_rate", "gets_burst"),
            (sets, "sets_rate", "sets_burst"),
            (deletes, "deletes_rate", "deletes_burst"),
        ]
        .into_iter()
        .filter_map(of_kind)
        .flatten()
        .collect()
    }

    fn key_hash(&self) -> Option<(&KeyHash, usize)> {
        match &self.target {
            Handle::Route(target) => target.key_hash(),
            _ => None,
        }
    }

    fn passes_reads(&self) -> bool {
        true
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let (target, fallback) = (tree.build(&self.target), tree.build_optional(&self.fallback));
        if tree.environment().finds_places {
            // A set beyond the limit is stored there, and the deletes that follow go to the target.
            fallback.iter().for_each(|fallback| tree.store_undeleted(fallback));
            return target;
        }
        Arc::new(RateLimitRoute::new(target, fallback, self.rates, tree.environment().clock.clone()))
    }
}

/// A node that limits the rates of `target`, without a fallback.
pub(crate) fn limit_rates(target: Handle, rates: Rates) -> Handle {
    Handle::route(Config { target, fallback: None, rates })
}

const RATES: Keys =
    Keys::known(&["gets_rate", "gets_burst", "sets_rate", "sets_burst", "deletes_rate", "deletes_burst"]);

/// Parses `{gets_rate, gets_burst, ...}`.
pub(crate) fn parse_rates(node: &Node<'_>) -> Result<Rates, ConfigurationError> {
    let object = node.object("rates: an object with \"gets_rate\", \"sets_rate\" or \"deletes_rate\"")?;
    object.check(&RATES)?;
    let rate = |rate: &str, burst: &str| match (object.get(rate), object.get(burst)) {
        (None, None) => Ok(None),
        (None, Some(node)) => Err(node.error(format!("{burst:?} needs its rate: expected {rate:?} too"))),
        (Some(rate), burst) => Ok(Some(Rate::parse(&rate, burst.as_ref())?)),
    };
    Ok(Rates {
        gets: rate("gets_rate", "gets_burst")?,
        sets: rate("sets_rate", "sets_burst")?,
        deletes: rate("deletes_rate", "deletes_burst")?,
    })
}
