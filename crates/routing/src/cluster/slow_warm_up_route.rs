//! A server that has lost its cache gets its share of gets gradually, so that its misses do not all hit the database at
//! once; meanwhile the rest goes to another target. A pool puts one around each server (`slow_warmup`).
//!
//! | verb | while the server is cold |
//! |---|---|
//! | get gets | a share of them is sent to the server; the others to the failover target, whose outcome is returned |
//! | lease-get | of the others, a `get` to the failover target; after a miss there, the server is asked and grants the lease |
//! | all others | sent to the server |
//!
//! ```text
//!   hit rate of the server, over its last gets    below `enable_threshold`: cold; above `disable_threshold`: warm
//!   share of gets while cold                      start + step x hit rate, at most all of them
//! ```
//!
//! The hit rate is a moving average over about `min_requests` gets; before that number it is not used. A failure is not
//! a miss. Deletes must reach the failover target, too.

use crate::{
    Batch, BoxFuture, Context, Outcomes, Route,
    configuration::{ConfigurationError, Handle, Keys, Node, Parser, TreeBuilder},
    environment::SharedRng,
    outcome::{as_get, is_error, is_miss},
    split::route_some,
};
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request};
use lookaside_sync::Mutex;
use std::sync::Arc;

/// When a server is cold, and its share of gets then; all as parts of 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowWarmUp {
    /// Below this hit rate a server is cold.
    pub enable_threshold: f64,
    /// Above this hit rate it is warm again.
    pub disable_threshold: f64,
    /// The share of gets at a hit rate of 0.
    pub start: f64,
    /// The increase for a hit rate of 1.
    pub step: f64,
    /// The number of gets before the hit rate is used.
    pub min_requests: u32,
}

impl Default for SlowWarmUp {
    /// mcrouter's defaults.
    fn default() -> Self {
        SlowWarmUp { enable_threshold: 0.7, disable_threshold: 0.9, start: 0.1, step: 1.0, min_requests: 100 }
    }
}

/// A server with reduced traffic while it is cold.
pub struct SlowWarmUpRoute {
    server: Arc<dyn Route>,
    failover: Arc<dyn Route>,
    settings: SlowWarmUp,
    recent: Mutex<HitRate>,
    rng: SharedRng,
}

#[derive(Debug, Default)]
struct HitRate {
    gets: u32,
    average: f64,
    is_cold: bool,
}

const WHOLE: usize = 1_000_000;

impl SlowWarmUpRoute {
    /// Sends gets to `failover` while `server` is cold, chosen by random numbers from `seed`.
    pub fn new(server: Arc<dyn Route>, failover: Arc<dyn Route>, settings: SlowWarmUp, seed: u64) -> Self {
        SlowWarmUpRoute { server, failover, settings, recent: Mutex::default(), rng: SharedRng::new(seed) }
    }

    /// One around each of `servers`, all with the same failover target.
    pub(crate) fn around_each(
        servers: Vec<Arc<dyn Route>>,
        failover: &Handle,
        settings: SlowWarmUp,
        tree: &mut dyn TreeBuilder,
    ) -> Vec<Arc<dyn Route>> {
        let failover = tree.build(failover);
        let around = |server| {
            Arc::new(SlowWarmUpRoute::new(server, failover.clone(), settings, tree.next_seed())) as Arc<dyn Route>
        };
        servers.into_iter().map(around).collect()
    }

    /// The share of gets that is sent to the server, in parts of [`WHOLE`]; `None` while it is warm.
    fn server_share(&self) -> Option<usize> {
        let recent = self.recent.lock();
        let share = (self.settings.start + self.settings.step * recent.average).clamp(0.0, 1.0);
        recent.is_cold.then_some((share * WHOLE as f64) as usize)
    }

    /// Updates the hit rate from replies of the server.
    fn record_gets(&self, batch: &Batch, outcomes: &Outcomes) {
        let SlowWarmUp { enable_threshold, disable_threshold, min_requests, .. } = self.settings;
        let mut recent = self.recent.lock();
        for (_, outcome) in batch.iter().zip(outcomes).filter(|(get, outcome)| is_get(get) && !is_error(outcome)) {
            let hit = if is_miss(outcome) { 0.0 } else { 1.0 };
            recent.gets = recent.gets.saturating_add(1);
            recent.average += (hit - recent.average) / f64::from(recent.gets.min(min_requests.max(1)));
        }
        if recent.gets >= min_requests {
            let bound = if recent.is_cold { disable_threshold } else { enable_threshold };
            recent.is_cold = recent.average < bound;
        }
    }

    async fn route_batch(&self, batch: Batch, share: Option<usize>, context: &Context) -> Outcomes {
        let is_spared =
            |get: &Request<Bytes>| share.is_some_and(|share| is_get(get) && self.rng.next_below(WHOLE) >= share);
        let (elsewhere, mut here): (Vec<_>, Vec<_>) =
            batch.into_iter().enumerate().partition(|(_, get)| is_spared(get));
        let mut outcomes: Outcomes = vec![Ok(Reply::Miss); elsewhere.len() + here.len()];
        let asked = elsewhere.iter().map(|(at, get)| (*at, as_get_of_lease(get))).collect();
        let found = route_some(&*self.failover, asked, context).await;
        for ((at, request), (_, outcome)) in elsewhere.into_iter().zip(found) {
            match matches!(outcome, Ok(Reply::Value { .. })) || request.operation != Operation::LeaseGet {
                true => outcomes[at] = outcome,
                false => here.push((at, request)),
            }
        }
        here.sort_by_key(|(at, _)| *at);
        let (places, batch): (Vec<usize>, Batch) = here.into_iter().unzip();
        if !batch.is_empty() {
            let requests: Batch = batch.clone();
            let of_server = self.server.route(batch, context).await;
            assert_eq!(of_server.len(), requests.len(), "a route answers every request once");
            self.record_gets(&requests, &of_server);
            places.into_iter().zip(of_server).for_each(|(at, outcome)| outcomes[at] = outcome);
        }
        outcomes
    }
}

impl Route for SlowWarmUpRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match batch.iter().any(is_get) {
            true => Box::pin(self.route_batch(batch, self.server_share(), context)),
            false => self.server.route(batch, context),
        }
    }
}

fn is_get(request: &Request<Bytes>) -> bool {
    matches!(request.operation, Operation::Get { .. } | Operation::LeaseGet)
}

fn as_get_of_lease(request: &Request<Bytes>) -> Request<Bytes> {
    match request.operation {
        Operation::LeaseGet => as_get(request),
        _ => request.clone(),
    }
}

/// More gets than this take hours.
const MIN_REQUESTS_MAX: i64 = 10_000_000;

/// Parses the `slow_warmup` of a pool: `{failoverTarget, settings}`.
pub(crate) fn parse_slow_warm_up<'a>(
    node: &Node<'a>,
    parser: &mut Parser<'a>,
) -> Result<(Handle, SlowWarmUp), ConfigurationError> {
    let object = node.object("a slow warm-up: an object with a \"failoverTarget\"")?;
    object.check(&Keys::known(&["failoverTarget", "settings"]))?;
    let failover = parser.parse_required(&object, "failoverTarget")?;
    let mut settings = SlowWarmUp::default();
    if let Some(node) = object.get("settings") {
        let object = node.object("an object with \"enable_threshold\" and others")?;
        object.check(&Keys::known(&["enable_threshold", "disable_threshold", "start", "step", "min_requests"]))?;
        let part = |key, default| object.get(key).map_or(Ok(default), |node| node.number("a part of 1", 0.0, 1.0));
        settings = SlowWarmUp {
            enable_threshold: part("enable_threshold", settings.enable_threshold)?,
            disable_threshold: part("disable_threshold", settings.disable_threshold)?,
            start: part("start", settings.start)?,
            step: object.get("step").map_or(Ok(settings.step), |node| node.number("a step", 0.0, 1_000.0))?,
            min_requests: object.integer_or("min_requests", "gets", MIN_REQUESTS_MAX, settings.min_requests.into())?
                as u32,
        };
        if settings.disable_threshold < settings.enable_threshold {
            let why = "the thresholds overlap: expected \"disable_threshold\" to be at least \"enable_threshold\"";
            return Err(node.error(why));
        }
    }
    Ok((failover, settings))
}
