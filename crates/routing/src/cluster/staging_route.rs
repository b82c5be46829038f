//! Fills a staging cluster beside the warm one that serves; replies never come from staging.
//!
//! | verb | warm | staging |
//! |---|---|---|
//! | get gets gat gats lease-get | asked; its outcome is returned | a value that was found is added, in the background, with its remaining time to live |
//! | set add replace append prepend cas lease-set touch incr decr | asked; its outcome is returned | a delete, awaited, whatever the outcome |
//! | delete | asked | asked; the worse outcome of both is returned |
//! | meta get, metaget | asked; its outcome is returned | nothing |
//!
//! Staging never keeps a value that warm has replaced: every change deletes it there, and the delete holds off adds for
//! `hold_off_ms`, so that a fill that was read before the change is refused (§4.3 has the same race). `mg k t` asks
//! warm for the remaining time to live; if that is not known, there is no fill.
//!
//! Accepted: if a value is changed and more than `hold_off_ms` pass between its read and its add in staging (a server
//! that hangs, a router that is stopped), staging has the old value until it is changed again or expires. The add is
//! one round trip after the read, so that takes an outage; a longer hold-off makes it rarer (§4.3).
//!
//! A failure of staging fails deletes only. Changes that staging missed while unreachable stay missed: flush it before
//! it serves. A base64 key is not filled. Bounded: fills are dropped and counted if the background is full.

use crate::{
    Batch, BoxFuture, Context, Outcome, Outcomes, Route,
    cluster::{
        modify_exptime_route::EXPTIME_RELATIVE_S_MAX, support::filled_by_router::filled_by_router,
        warm_up_route::parse_hold_off_ms,
    },
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder},
    environment::Background,
    key::is_encoded,
    outcome::{as_store, verb, worse},
    split::route_some,
    verb::VerbKind,
};
use bytes::Bytes;
use futures_util::future::join;
use lookaside_protocol::{
    Operation, Reply, Request, StoreMode,
    meta::{MetaOperation, MetaStatus, MetaVerb, meta_flags},
};
use std::sync::Arc;

/// A cluster that serves, and one that is being filled.
pub struct StagingRoute {
    warm: Arc<dyn Route>,
    staging: Arc<dyn Route>,
    hold_off_ms: u32,
    background: Background,
}

impl StagingRoute {
    /// Replies from `warm` and fills `staging`; deletes hold off adds for `hold_off_ms`.
    pub fn new(warm: Arc<dyn Route>, staging: Arc<dyn Route>, hold_off_ms: u32, background: Background) -> Self {
        StagingRoute { warm, staging, hold_off_ms, background }
    }

    async fn route_batch(&self, batch: Batch, context: &Context) -> Outcomes {
        let deletes = batch.iter().enumerate().filter(|(_, request)| verb(request).kind() != VerbKind::Read);
        let deletes = deletes.map(|(at, request)| (at, self.staging_delete(request))).collect();
        let requests = batch.clone();
        let asked = join(self.warm.route(batch, context), route_some(&*self.staging, deletes, context));
        let (mut outcomes, of_staging) = asked.await;
        assert_eq!(outcomes.len(), requests.len(), "a route answers every request once");
        for (at, outcome) in of_staging {
            if verb(&requests[at]).kind() == VerbKind::Delete {
                let of_warm = std::mem::replace(&mut outcomes[at], Ok(Reply::NotFound));
                outcomes[at] = worse(of_warm, outcome);
            }
        }
        self.fill(&requests, &outcomes, context);
        outcomes
    }

    /// The request to staging after a change: a delete that holds off adds. The flags of a meta delete are for warm
    /// only.
    fn staging_delete(&self, request: &Request<Bytes>) -> Request<Bytes> {
        let asked_ms = match request.operation {
            Operation::Delete { hold_off_ms } => hold_off_ms,
            _ => 0,
        };
        // An encoded key stays encoded: only a meta command can delete it.
        let operation = match is_encoded(request) {
            true => Operation::Meta(MetaOperation { verb: MetaVerb::Delete, flags: "b".into(), value: None }),
            false => Operation::Delete { hold_off_ms: asked_ms.max(self.hold_off_ms) },
        };
        Request { key: request.key.clone(), operation }
    }

    fn fill(&self, batch: &Batch, outcomes: &Outcomes, context: &Context) {
        let found = batch.iter().zip(outcomes).filter(|(_, outcome)| matches!(outcome, Ok(Reply::Value { .. })));
        let found: Vec<(Request<Bytes>, Outcome)> =
            found.map(|(request, outcome)| (request.clone(), outcome.clone())).collect();
        if found.is_empty() {
            return;
        }
        let (warm, staging, context) = (self.warm.clone(), self.staging.clone(), context.without_misses());
        self.background.spawn_or_drop(async move {
            let left = found.iter().map(|(request, _)| time_left_request(request)).enumerate().collect();
            let left = route_some(&*warm, left, &context).await;
            let add = |(at, left): (usize, Outcome)| {
                let (request, value) = &found[at];
                as_store(request, value, StoreMode::Add, time_left_s(&left)?)
            };
            let fills: Batch = left.into_iter().filter_map(add).collect();
            if !fills.is_empty() {
                staging.route(fills, &context).await;
            }
        });
    }
}

impl Route for StagingRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(self.route_batch(batch, context))
    }
}

pub(crate) fn time_left_request(request: &Request<Bytes>) -> Request<Bytes> {
    let operation = Operation::Meta(MetaOperation { verb: MetaVerb::Get, flags: "t".into(), value: None });
    Request { key: request.key.clone(), operation }
}

/// The exptime for a copy; `None` if the value is gone or its time to live is not known.
pub(crate) fn time_left_s(outcome: &Outcome) -> Option<i64> {
    let Ok(Reply::Meta(reply)) = outcome else { return None };
    if !matches!(reply.status, MetaStatus::Done | MetaStatus::Value) {
        return None;
    }
    let left = meta_flags(&reply.flags).find(|flag| flag.letter == b't')?.token;
    match str::from_utf8(left).ok()?.parse::<i64>().ok()? {
        -1 => Some(0),
        seconds @ 1.. => Some(seconds.min(EXPTIME_RELATIVE_S_MAX)),
        _ => None,
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("StagingRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    warm: Handle,
    staging: Handle,
    hold_off_ms: u32,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "warm", "staging", "hold_off_ms"]))?;
    Ok(Handle::route(Config {
        hold_off_ms: parse_hold_off_ms(object)?,
        warm: parser.parse_required(object, "warm")?,
        staging: parser.parse_required(object, "staging")?,
    }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn fills_on_reads(&self) -> bool {
        true
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let (warm, staging) = (tree.build(&self.warm), tree.build(&self.staging));
        let environment = tree.environment();
        let route = StagingRoute::new(warm, staging, self.hold_off_ms, environment.background.clone());
        // Every hit of warm is stored in staging.
        filled_by_router(Arc::new(route), None, environment)
    }
}
