//! The first child; if that fails, the next one, and so on (§3.3 of the paper).
//!
//! | verb | after a failure that counts | reply |
//! |---|---|---|
//! | get gets gat gats lease-get metaget | the next child, until one replies | that child's, or the last one's failure |
//! | set add replace append prepend cas lease-set touch incr decr | the same | the same |
//! | delete | every further child, as each may hold a copy | **the first child's failure stands**; a spooled delete yields to a worse outcome |
//!
//! Only failures: a miss does not fail over. `failover_errors.rs` lists the failures that count; `failover_policy.rs`
//! defines the order of the children and how many are asked.
//!
//! A failed delete stays failed: the first child still holds the value, and a client that reads "done" does not retry.
//! A spooled delete ([`Failure::Spooled`]) is as good as done at the first child, but meanwhile reads go to the others:
//! they must do or spool it, too.
//!
//! With `enable_lease_pairing` a fill is sent to the child that issued its token (`lease_pairing.rs`), whose failure is
//! returned: any other child would refuse it.
//!
//! Beyond `failover_limit`, a share of the requests, a failure is returned, so that the failover pool is not overloaded
//! as well. A failover costs nothing from a child that is TKO, nor for a delete. With `failover_tag`, keys that have a
//! `|#|` reach the other children with the suffix `:failover=1`: a delete on another path than this route must append
//! it, too.
//!
//! Timeouts do not add up: once a child has timed out, all further ones together may take the environment's
//! `failover_timeout`, except with deletes. So while a server and its gutter both hang, a page of keys costs one server
//! timeout and that.
//!
//! Cost: a second copy of the batch's handles (not of its bytes) until the first child has replied.

use crate::{
    Batch, BoxFuture, Clock, Context, Environment, FailoverError, FailoverErrors, FailoverLimit, Failure, Outcome,
    Outcomes, Route, RouteStatistics,
    cluster::support::{
        failover_limit::FailoverTokens,
        failover_options::{FAILOVER_KEYS, FailoverOptions},
        failover_policy::{ChildOrder, FailoverPolicy},
        lease_pairing::LeasePairs,
    },
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder, TreeState},
    key::{is_encoded, stored_key, with_failover_tag},
    outcome::{error_kind, worse},
    split::{Choices, Part, next, route_parts, scatter},
    verb::{Verb, VerbKind},
};
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Children in order of preference.
pub struct FailoverRoute {
    children: Vec<Arc<dyn Route>>,
    errors: FailoverErrors,
    policy: FailoverPolicy,
    limit: Option<FailoverTokens>,
    pairing: Option<(Arc<LeasePairs>, Arc<dyn Clock>)>,
    has_tag: bool,
    timeout: Option<(Duration, Arc<dyn Clock>)>,
    statistics: Arc<RouteStatistics>,
}

impl FailoverRoute {
    /// Asks `first`, and `others` in order where it fails with one of `errors`.
    pub fn new(first: Arc<dyn Route>, others: Vec<Arc<dyn Route>>, errors: FailoverErrors) -> Self {
        let children = std::iter::once(first).chain(others).collect();
        Self::by_policy(children, errors, FailoverPolicy::in_order())
    }

    /// Asks `children`, at least one, in the order of `policy`.
    pub fn by_policy(children: Vec<Arc<dyn Route>>, errors: FailoverErrors, policy: FailoverPolicy) -> Self {
        assert!(!children.is_empty(), "no child to ask");
        FailoverRoute {
            children,
            errors,
            policy,
            limit: None,
            pairing: None,
            has_tag: false,
            timeout: None,
            statistics: Arc::default(),
        }
    }

    /// Asks `children` according to `options`.
    pub(crate) fn with_options(
        children: Vec<Arc<dyn Route>>,
        options: &FailoverOptions,
        environment: &Environment,
    ) -> Self {
        let clock = &environment.clock;
        let policy = options.policy(children.len());
        let mut route = Self::by_policy(children, options.errors, policy).with_timeout_of(environment);
        route.statistics = environment.statistics.clone();
        if let Some(limit) = options.limit {
            route = route.with_limit(limit);
        }
        if let Some(TreeState(pairs)) = &options.pairs {
            route = route.with_lease_pairing(pairs.clone(), clock.clone());
        }
        if options.has_tag { route.with_tag() } else { route }
    }

    /// Limits the time of further children as the environment says.
    pub(crate) fn with_timeout_of(self, environment: &Environment) -> Self {
        let timeout = environment.failover_timeout.map(|timeout| (timeout, environment.clock.clone()));
        FailoverRoute { timeout, ..self }
    }

    /// Limits the share of requests that fail over.
    pub fn with_limit(mut self, limit: FailoverLimit) -> Self {
        self.limit = Some(FailoverTokens::new(limit));
        self
    }

    /// Remembers in `pairs` the child that issued a lease.
    pub fn with_lease_pairing(mut self, pairs: Arc<LeasePairs>, clock: Arc<dyn Clock>) -> Self {
        self.pairing = Some((pairs, clock));
        self
    }

    /// Tags keys for children other than the first.
    pub fn with_tag(mut self) -> Self {
        self.has_tag = true;
        self
    }

    async fn route_batch(&self, batch: Batch, context: &Context) -> Outcomes {
        if let Some(limit) = &self.limit {
            limit.add_requests(batch.len());
        }
        let requests = batch.clone();
        let paired = self.find_paired_fills(&batch);
        let mut outcomes = match Self::first_choices(&batch, &paired) {
            Choices::Whole(child) => self.children[child].route(batch, context).await,
            Choices::Each(choices) => scatter(&self.children, batch, context, choices).await,
        };
        assert_eq!(outcomes.len(), requests.len(), "a route answers every request once");
        let mut pending = Vec::new();
        for (at, (request, outcome)) in requests.iter().zip(&outcomes).enumerate() {
            if !paired.is_empty() && paired.contains_key(&at) {
                continue;
            }
            let triggers_failover = self.errors.triggers_failover(kind(request), outcome);
            self.policy.record_outcome(FIRST, triggers_failover);
            self.count_failure(outcome, triggers_failover);
            if triggers_failover {
                let tries = u32::from(self.policy.counts_as_try(outcome));
                let order = self.policy.order(request, self.children.len());
                pending.push(Pending { at, order, next: 1, tries, is_spooled: *outcome == Err(Failure::Spooled) });
            }
        }
        let mut timed_out_at = None;
        loop {
            pending.retain(|pending| self.should_retry(pending, &requests[pending.at]));
            let only_reads = pending.iter().all(|pending| kind(&requests[pending.at]) == VerbKind::Read);
            let limit = context.time_limit(only_reads);
            let time_limit = self.time_left(&mut timed_out_at, &pending, &outcomes, limit);
            if time_limit == Some(Duration::ZERO) {
                pending.retain(|pending| kind(&requests[pending.at]) == VerbKind::Delete);
            }
            pending.retain(|pending| self.take_failover_token(&requests[pending.at], &outcomes[pending.at]));
            if pending.is_empty() {
                return outcomes;
            }
            let time_limit = time_limit.or(context.time_limit);
            self.route_to_next(&mut pending, &requests, &mut outcomes, &Context { time_limit, ..context.clone() })
                .await;
        }
    }

    /// The time that the next children may take; `None` if there is no limit, or if no child has timed out yet.
    /// `timed_out_at` is when the first one has, `limit` that of the batch.
    fn time_left(
        &self,
        timed_out_at: &mut Option<Duration>,
        pending: &[Pending],
        outcomes: &Outcomes,
        limit: Option<Duration>,
    ) -> Option<Duration> {
        let (timeout, clock) = self.timeout.as_ref()?;
        let timeout = limit.unwrap_or(*timeout).min(*timeout);
        let has_timed_out = |pending: &Pending| outcomes[pending.at].as_ref().is_err_and(Failure::is_timeout);
        if timed_out_at.is_none() && pending.iter().any(has_timed_out) {
            *timed_out_at = Some(clock.now());
        }
        Some(timeout.saturating_sub(clock.now().saturating_sub((*timed_out_at)?)))
    }

    /// For each fill with a remembered token: its index in the batch and the child that issued the token.
    fn find_paired_fills(&self, batch: &Batch) -> BTreeMap<usize, u32> {
        let Some((pairs, clock)) = &self.pairing else { return BTreeMap::new() };
        let paired = |(at, request): (usize, &Request<Bytes>)| match request.operation {
            Operation::LeaseSet { token, .. } => {
                Some((at, pairs.remove_pair(token, &stored_key(request), clock.unix_s())?))
            }
            _ => None,
        };
        let has_child = |(_, child): &(usize, u32)| (*child as usize) < self.children.len();
        let paired: BTreeMap<usize, u32> = batch.iter().enumerate().filter_map(paired).filter(has_child).collect();
        if !paired.is_empty() {
            self.statistics.counters.redirected_lease_set_count.add(paired.len() as u64);
        }
        paired
    }

    fn first_choices(batch: &Batch, paired: &BTreeMap<usize, u32>) -> Choices {
        match paired.is_empty() {
            true => Choices::Whole(FIRST),
            false => Choices::Each((0..batch.len()).map(|at| *paired.get(&at).unwrap_or(&(FIRST as u32))).collect()),
        }
    }

    /// Takes a token of the limit for another child after `outcome`; false if there is none.
    fn take_failover_token(&self, request: &Request<Bytes>, outcome: &Outcome) -> bool {
        let Some(limit) = &self.limit else { return true };
        let is_free = kind(request) == VerbKind::Delete || FailoverError::of(outcome) == Some(FailoverError::Tko);
        let is_allowed = is_free || limit.try_take();
        if !is_allowed {
            self.statistics.counters.failover_conditional.add(1);
            self.statistics.counters.failover_rate_limited.add(1);
        }
        is_allowed
    }

    /// Counts the outcome of a child if it is a failure.
    fn count_failure(&self, outcome: &Outcome, triggers_failover: bool) {
        match error_kind(outcome) {
            Some(error) if triggers_failover => self.statistics.count_policy_error(error),
            Some(_) if FailoverError::of(outcome).is_some() => self.statistics.counters.failover_conditional.add(1),
            _ => {}
        }
    }

    fn should_retry(&self, pending: &Pending, request: &Request<Bytes>) -> bool {
        pending.next < pending.order.children.len()
            && (kind(request) == VerbKind::Delete || self.policy.allows_try(pending.tries))
    }

    /// Sends each pending request to its next child, concurrently. Requests that fail stay pending.
    async fn route_to_next(
        &self,
        pending: &mut Vec<Pending>,
        requests: &Batch,
        outcomes: &mut Outcomes,
        context: &Context,
    ) {
        let mut of_child: BTreeMap<usize, Batch> = BTreeMap::new();
        for pending in &*pending {
            of_child.entry(pending.child()).or_default().push(self.tag_request(&requests[pending.at]));
        }
        let (children, parts): (Vec<usize>, Vec<Part>) =
            of_child.into_iter().map(|(child, batch)| (child, Part { child, batch })).unzip();
        let outcomes_of_children = route_parts(&self.children, parts, context).await;
        let mut outcomes_of_children: BTreeMap<usize, _> = children.into_iter().zip(outcomes_of_children).collect();
        pending.retain_mut(|pending| {
            let (request, child) = (&requests[pending.at], pending.child());
            let outcome =
                next(outcomes_of_children.get_mut(&child).expect("the child of each pending request was asked"));
            let (verb, draws) = (Verb::of(&request.operation), pending.order.draws(pending.next));
            self.statistics.count_failover(verb, error_kind(&outcome), self.policy.kind(), draws);
            let triggers_failover = self.errors.triggers_failover(kind(request), &outcome);
            self.count_failure(&outcome, triggers_failover);
            self.policy.record_outcome(child, triggers_failover);
            self.remember_lease(request, &outcome, child);
            pending.tries += u32::from(self.policy.counts_as_try(&outcome));
            pending.next += 1;
            match kind(request) {
                VerbKind::Delete if pending.is_spooled => {
                    let so_far = std::mem::replace(&mut outcomes[pending.at], Err(Failure::Spooled));
                    outcomes[pending.at] = worse(so_far, outcome);
                    true
                }
                VerbKind::Delete => true,
                _ => {
                    outcomes[pending.at] = outcome;
                    triggers_failover
                }
            }
        });
    }

    /// A copy of a request for a child other than the first.
    fn tag_request(&self, request: &Request<Bytes>) -> Request<Bytes> {
        let mut request = request.clone();
        if self.has_tag && !is_encoded(&request) {
            request.key = with_failover_tag(request.key);
        }
        request
    }

    fn remember_lease(&self, request: &Request<Bytes>, outcome: &Outcome, child: usize) {
        if let Some((pairs, clock)) = &self.pairing
            && let Ok(Reply::Lease { token, .. }) = outcome
            && token.is_held()
        {
            pairs.remember(*token, &stored_key(request), child as u32, clock.unix_s());
        }
    }
}

/// The index of the first child.
const FIRST: usize = 0;

struct Pending {
    at: usize,
    order: ChildOrder,
    /// The next child, by index into the children of `order`.
    next: usize,
    tries: u32,
    /// Whether it is a delete that is spooled for the first child.
    is_spooled: bool,
}

impl Pending {
    fn child(&self) -> usize {
        self.order.children[self.next] as usize
    }
}

impl Route for FailoverRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match &*self.children {
            [only] => only.route(batch, context),
            _ => Box::pin(self.route_batch(batch, context)),
        }
    }
}

fn kind(request: &Request<Bytes>) -> VerbKind {
    Verb::of(&request.operation).kind()
}

pub(crate) const TYPE: RouteType = RouteType::new("FailoverRoute", parse).with_short_form(|node, argument, parser| {
    let children = parser.short_children(node, argument)?;
    Ok(children.map(|children| Handle::route(Config { children, options: FailoverOptions::default() })))
});

#[derive(Debug, PartialEq)]
struct Config {
    children: Vec<Handle>,
    options: FailoverOptions,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "children"]).and(FAILOVER_KEYS))?;
    let children = parser.children(object, "children")?;
    let options = FailoverOptions::parse(object, &children, parser)?;
    Ok(Handle::route(Config { children, options }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    /// With a tag the key is another one at the further children.
    fn passes_reads(&self) -> bool {
        !self.options.has_tag
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let children = tree.build_all(&self.children);
        Arc::new(FailoverRoute::with_options(children, &self.options, tree.environment()))
    }
}
