//! Copies of some requests to another target, whose replies are ignored: to test a server with real traffic.
//!
//! | verb | normal | shadow |
//! |---|---|---|
//! | lease-get | asked first | asked when the normal target has replied; if both give a token, these are a pair |
//! | lease-set | asked | a copy in the background, with the shadow's token of the pair, or 0 if there is none |
//! | all others | asked; its outcome is returned | the same, in the background |
//!
//! Which requests are copied: `shadow_route/shadow.rs`. A copy outlives its caller. If the background is full, copies
//! are dropped and counted.

mod shadow;
mod shadowed_keys;
mod token_pairs;

use crate::{
    Batch, BoxFuture, Context, Environment, Outcome, Outcomes, Route, RouteStatistics, Verb,
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder},
    environment::{Background, SharedRng},
    outcome::{error_kind, verb},
};
use bytes::Bytes;
use lookaside_protocol::{LeaseToken, Operation, Reply, Request};
pub(crate) use shadow::{Shadow, parse_shadows};
pub use shadowed_keys::ShadowedKeys;
use std::sync::Arc;
use token_pairs::TokenPairs;

/// The token of a copy without a pair: no server issues it.
const NO_TOKEN: LeaseToken = LeaseToken(0);

/// A target, and shadows that get copies.
pub struct ShadowRoute {
    normal: Arc<dyn Route>,
    shadows: Vec<Arc<Copies>>,
    background: Background,
    statistics: Arc<RouteStatistics>,
}

/// Requests for leases that a shadow gets, each with its index in the batch.
type LeaseGets = Vec<(usize, Request<Bytes>)>;

impl ShadowRoute {
    /// Sends requests to `normal`, and copies to each of `shadows`.
    pub fn new(normal: Arc<dyn Route>, shadows: Vec<Copies>, environment: &Environment) -> Self {
        let (background, statistics) = (environment.background.clone(), environment.statistics.clone());
        ShadowRoute { normal, shadows: shadows.into_iter().map(Arc::new).collect(), background, statistics }
    }

    fn send_copies(&self, copies: &Copies, batch: Batch, context: &Context) {
        let (target, context, statistics) = (copies.target.clone(), context.for_shadow(), self.statistics.clone());
        self.background.spawn_or_drop(async move {
            let verbs: Vec<Verb> = batch.iter().map(verb).collect();
            let outcomes = target.route(batch, &context).await;
            verbs
                .into_iter()
                .zip(&outcomes)
                .for_each(|(verb, outcome)| statistics.count_extra(verb, error_kind(outcome)));
        });
    }

    /// Asks the normal target for leases, then each shadow for its own.
    async fn route_and_pair(
        &self,
        batch: Batch,
        leases: Vec<(&Arc<Copies>, LeaseGets)>,
        context: &Context,
    ) -> Outcomes {
        let outcomes = self.normal.route(batch, context).await;
        for (copies, requests) in leases {
            let requests = requests.into_iter().map(|(at, request)| (request, token_of(&outcomes[at]))).collect();
            let (copies, context, statistics) = (copies.clone(), context.for_shadow(), self.statistics.clone());
            self.background.spawn_or_drop(async move { copies.take_leases(requests, &context, &statistics).await });
        }
        outcomes
    }
}

impl Route for ShadowRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        let mut leases = Vec::new();
        for copies in &self.shadows {
            let (lease_gets, others): (Vec<_>, Vec<_>) =
                copies.choose(&batch).partition(|(_, request)| request.operation == Operation::LeaseGet);
            if !others.is_empty() {
                let batch = others.into_iter().map(|(_, request)| copies.copy_of(request)).collect();
                self.send_copies(copies, batch, context);
            }
            if !lease_gets.is_empty() {
                let lease_gets: LeaseGets = lease_gets.into_iter().map(|(at, request)| (at, request.clone())).collect();
                leases.push((copies, lease_gets));
            }
        }
        match leases.is_empty() {
            true => self.normal.route(batch, context),
            false => Box::pin(self.route_and_pair(batch, leases, context)),
        }
    }
}

/// The copies that one target gets.
pub struct Copies {
    target: Arc<dyn Route>,
    keys: ShadowedKeys,
    /// The share of the requests for these keys, in 2^32nds.
    share: u64,
    random: SharedRng,
    pairs: Arc<TokenPairs>,
    pairs_max: usize,
}

/// A share of 1.
const ALL_REQUESTS: u64 = 1 << 32;

impl Copies {
    /// Copies of all requests for `keys` to `target`. `seed` is of random numbers.
    pub fn new(target: Arc<dyn Route>, keys: ShadowedKeys, environment: &Environment, seed: u64) -> Self {
        let (share, random, pairs_max) = (ALL_REQUESTS, SharedRng::new(seed), environment.shadows.tokens_max);
        Copies { target, keys, share, random, pairs: Arc::default(), pairs_max }
    }

    /// Copies of a random share of these requests, from 0 to 1.
    #[must_use]
    pub fn of_share(self, share: f64) -> Self {
        Copies { share: (share * ALL_REQUESTS as f64) as u64, ..self }
    }

    /// The requests of a batch that are copied, with their indices.
    fn choose<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = (usize, &'a Request<Bytes>)> {
        let keys = self.keys.now();
        batch.iter().enumerate().filter(move |(_, request)| keys.contains(request) && self.draws())
    }

    fn draws(&self) -> bool {
        self.share == ALL_REQUESTS || (self.random.next_below(ALL_REQUESTS as usize) as u64) < self.share
    }

    /// The request, with the shadow's token.
    fn copy_of(&self, request: &Request<Bytes>) -> Request<Bytes> {
        let mut copy = request.clone();
        if let Operation::LeaseSet { token, .. } = &mut copy.operation {
            *token = self.pairs.take(*token).unwrap_or(NO_TOKEN);
        }
        copy
    }

    /// Asks the target for leases. Each request comes with the token that its client has got.
    async fn take_leases(
        &self,
        requests: Vec<(Request<Bytes>, Option<LeaseToken>)>,
        context: &Context,
        statistics: &RouteStatistics,
    ) {
        let (batch, clients): (Batch, Vec<_>) = requests.into_iter().unzip();
        let outcomes = self.target.route(batch, context).await;
        outcomes.iter().for_each(|outcome| statistics.count_extra(Verb::LeaseGet, error_kind(outcome)));
        for (client, shadow) in clients.into_iter().zip(outcomes.iter().map(token_of)) {
            if let (Some(client), Some(shadow)) = (client, shadow) {
                self.pairs.remember(client, shadow, self.pairs_max);
            }
        }
    }
}

/// The token of a miss that its client may fill.
fn token_of(outcome: &Outcome) -> Option<LeaseToken> {
    match outcome {
        Ok(Reply::Lease { token, .. }) if token.is_held() => Some(*token),
        _ => None,
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("ShadowRoute", parse).with_list(parse_list);

#[derive(Debug, PartialEq)]
struct Config {
    normal: Handle,
    shadows: Vec<Shadow>,
}

/// Each child with its shadows; a child without any stands for itself.
fn parse_list<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Vec<Handle>, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "target", "children", "shadows"]).ignoring(&["shadow_policy"]))?;
    let children = match object.get("target") {
        Some(target) if object.get("children").is_some() => {
            return Err(target.error("expected \"target\" or \"children\", found both"));
        }
        Some(target) => vec![parser.handle(&target)],
        None => parser.children(object, "children")?,
    };
    let shadows = parse_shadows(object, parser);
    let with_shadows = |(at, normal): (usize, Handle)| {
        let shadows: Vec<Shadow> = shadows.iter().filter(|shadow| shadow.is_of_index(at)).cloned().collect();
        if shadows.is_empty() { normal } else { Handle::route(Config { normal, shadows }) }
    };
    Ok(children.into_iter().enumerate().map(with_shadows).collect())
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    let children = parse_list(object, parser)?;
    let count = children.len();
    <[Handle; 1]>::try_from(children).map(|[child]| child).map_err(|_| {
        object.node.error(format!("these are {count} routes: expected one route, such as \"HashRoute\" over them"))
    })
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let normal = tree.build(&self.normal);
        let targets: Vec<_> = self.shadows.iter().map(|shadow| tree.build(&shadow.target)).collect();
        add_shadows(normal, self.shadows.iter().zip(targets), tree)
    }
}

/// `normal` with copies for each of `shadows`, which come with their targets.
pub(crate) fn add_shadows<'a>(
    normal: Arc<dyn Route>,
    shadows: impl Iterator<Item = (&'a Shadow, Arc<dyn Route>)>,
    tree: &mut dyn TreeBuilder,
) -> Arc<dyn Route> {
    let copies = |(shadow, target): (&Shadow, Arc<dyn Route>)| {
        let seed = tree.next_seed();
        shadow.copies(target, tree.environment(), seed)
    };
    let shadows: Vec<Copies> = shadows.map(copies).collect();
    match shadows.is_empty() {
        true => normal,
        false => Arc::new(ShadowRoute::new(normal, shadows, tree.environment())),
    }
}
