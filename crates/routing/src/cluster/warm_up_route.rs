//! Cold cluster warm-up (§4.3 of the paper): on a miss, a new cluster reads from a warm one instead of the database.
//!
//! ```text
//!   get k --> cold: miss --> warm: value --> cold: add k --+--> stored: the value
//!                              miss: miss                  +--> refused: cold is asked again, and its reply stands
//! ```
//!
//! | verb | sent to |
//! |---|---|
//! | get | cold; after a miss warm; a value found there is added to cold before it is returned |
//! | lease-get | the same; after a refused add the lease is returned: its holder reads the database. **A hot miss stays one**: its client waits for the holder |
//! | gets gat gats, meta get | the same; then cold is asked again, since CAS unique and exptime are its own |
//! | metaget | cold; after a miss warm, whose reply is returned; nothing is copied |
//! | meta get of a tool that compares caches ([`OBSERVER_OPAQUE`](lookaside_protocol::meta::OBSERVER_OPAQUE)) | cold |
//! | delete | cold, with a hold-off of at least `hold_off_ms` (2 s); a meta delete is followed by a plain one that carries it |
//! | set add replace append prepend cas lease-set touch incr decr | cold |
//!
//! Why an add and a hold-off: after a client has changed the database and deleted the key here, another may read the
//! old value from warm, where the invalidation has not arrived yet. The hold-off refuses its add. Then cold is asked
//! again, as the refusal may come from a faster fill; a second miss is returned, so that the client reads the database.
//! A fill under a lease is an add, too; mcrouter uses the token, but one issued after the delete would bypass the
//! hold-off.
//!
//! An error or a timeout of cold is returned. An error of warm is a miss; so is a failed add, as the value may have
//! been held off.
//!
//! A copy lives for `exptime`; a get does not return the remaining time to live. With `enable_metaget` and no `exptime`
//! warm is asked for it (`mg k t`), at the price of another round trip for each fill. If it is not known, or has
//! passed, nothing is copied and the read misses: without an add a value that was held off would be returned. The copy
//! of a `gat` has the exptime of the request. A base64 key is not warmed up.
//!
//! The warm-up ends by itself (`warm_up_progress.rs`). Deletes keep their hold-off: other routers may still fill cold.

use crate::{
    Batch, BoxFuture, Context, Environment, Outcome, Outcomes, Route,
    cluster::{
        modify_exptime_route::EXPTIME_RELATIVE_S_MAX,
        staging_route::{time_left_request, time_left_s},
        support::filled_by_router::filled_by_router,
        support::warm_up_progress::{Reads, WarmUpEnd, WarmUpProgress},
    },
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder, TreeState},
    environment::{Clock, Log},
    key::is_encoded,
    meta::is_of_observer,
    outcome::{as_get, as_store, is_error, is_miss, verb},
    split::route_some,
    verb::{Verb, VerbKind},
};
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request, StoreMode, meta::MetaVerb};
use std::sync::Arc;

/// The paper's hold-off, in milliseconds: longer than nearly every invalidation takes to reach the warm cluster.
pub const WARM_UP_HOLD_OFF_MS: u32 = 2_000;

/// A cold cluster and a warm one.
pub struct WarmUpRoute {
    cold: Arc<dyn Route>,
    warm: Arc<dyn Route>,
    exptime: CopyExptime,
    hold_off_ms: u32,
    end: Option<EndCondition>,
}

/// How long a copy in the cold cluster lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyExptime {
    /// For this many seconds; 0: for ever.
    Seconds(i64),
    /// As long as the value in the warm cluster, which is asked.
    OfWarm,
}

/// When the warm-up ends, and where that is logged.
struct EndCondition {
    when: WarmUpEnd,
    progress: Arc<WarmUpProgress>,
    clock: Arc<dyn Clock>,
    log: Arc<dyn Log>,
}

impl WarmUpRoute {
    /// Fills `cold` from `warm` with values that expire by `exptime`. Deletes hold off adds for `hold_off_ms`. 0 is for
    /// servers without hold-offs; then an old value may be added again.
    pub fn new(cold: Arc<dyn Route>, warm: Arc<dyn Route>, exptime: CopyExptime, hold_off_ms: u32) -> Self {
        WarmUpRoute { cold, warm, exptime, hold_off_ms, end: None }
    }

    /// Ends by itself according to `progress`; without this, it never ends.
    pub fn with_end(
        mut self,
        when: WarmUpEnd,
        progress: Arc<WarmUpProgress>,
        clock: Arc<dyn Clock>,
        log: Arc<dyn Log>,
    ) -> Self {
        self.end = Some(EndCondition { when, progress, clock, log });
        self
    }

    fn is_over(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.progress.is_over())
    }

    fn record_reads(&self, reads: Reads) {
        let Some(EndCondition { when, progress, clock, log }) = &self.end else { return };
        if progress.record(reads, *when, clock.unix_s()) {
            let WarmUpEnd { share, after_s } = when;
            log.line(&format!(
                "warm-up ended: the warm cluster filled at most {share} of all reads for {after_s} s; remove WarmUpRoute \
                 from the configuration when all routers have logged this"
            ));
        }
    }

    /// Adds the hold-off to deletes, and a plain delete behind each meta delete. Returns the requests, and for each
    /// whether it is the client's.
    fn add_hold_offs(&self, batch: &Batch) -> (Batch, Vec<bool>) {
        let (mut held, mut is_clients) = (Batch::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for request in batch {
            let mut request = request.clone();
            let mut follower = None;
            match &mut request.operation {
                Operation::Delete { hold_off_ms } => *hold_off_ms = self.hold_off_ms.max(*hold_off_ms),
                Operation::Meta(meta) if meta.verb == MetaVerb::Delete && self.hold_off_ms > 0 => {
                    let operation = Operation::Delete { hold_off_ms: self.hold_off_ms };
                    follower = Some(Request { key: request.key.clone(), operation });
                }
                _ => {}
            }
            let follower = follower.filter(|_| !is_encoded(&request));
            held.push(request);
            is_clients.push(true);
            if let Some(follower) = follower {
                held.push(follower);
                is_clients.push(false);
            }
        }
        (held, is_clients)
    }

    async fn route_batch(&self, batch: Batch, context: &Context) -> Outcomes {
        let (held, is_clients) = self.add_hold_offs(&batch);
        let all_outcomes = self.cold.route(held, context).await;
        let mut outcomes: Outcomes = all_outcomes
            .into_iter()
            .zip(is_clients)
            .filter(|(_, clients)| *clients)
            .map(|(outcome, _)| outcome)
            .collect();
        assert_eq!(outcomes.len(), batch.len(), "a route answers every request once");

        if self.is_over() {
            return outcomes;
        }
        self.read_metadata(&batch, &mut outcomes, context).await;
        let missed = (0..batch.len()).filter(|&at| should_ask_warm(&batch[at], &outcomes[at]));
        let missed: Vec<_> = missed.map(|at| (at, as_get(&batch[at]))).collect();
        let is_answered_read = |at: &usize| verb(&batch[*at]).kind() == VerbKind::Read && !is_error(&outcomes[*at]);
        let answered = (0..batch.len()).filter(is_answered_read).count() as u64;
        let mut reads = Reads { answered, asked: missed.len() as u64, ..Reads::default() };
        let mut found = route_some(&*self.warm, missed, context).await;
        reads.failed = found.iter().filter(|(_, outcome)| is_error(outcome)).count() as u64;
        found.retain(|(_, outcome)| matches!(outcome, Ok(Reply::Value { .. })));

        let found = self.with_exptimes(&batch, found, context).await;
        let add = |(at, value, exptime): &(usize, Outcome, i64)| {
            Some((*at, as_store(&batch[*at], value, StoreMode::Add, *exptime)?))
        };
        let added = route_some(&*self.cold, found.iter().filter_map(add).collect(), context).await;
        // A refused value is no benefit: otherwise a cluster with many deletes would never end its warm-up.
        reads.filled = added.iter().filter(|(_, added)| matches!(added, Ok(Reply::Stored))).count() as u64;
        self.record_reads(reads);

        let mut again = Vec::new();
        for ((at, value, _), (_, added)) in found.into_iter().zip(added) {
            let verb = verb(&batch[at]);
            let is_plain = matches!(batch[at].operation, Operation::Get { cas: false } | Operation::LeaseGet);
            match added {
                Ok(Reply::Stored) if is_plain => outcomes[at] = value,
                added if is_error(&added) => {}
                _ if verb == Verb::LeaseGet => again.push((at, as_get(&batch[at]))),
                _ => again.push((at, batch[at].clone())),
            }
        }
        for (at, outcome) in route_some(&*self.cold, again, context).await {
            if !is_miss(&outcome) && !is_error(&outcome) {
                outcomes[at] = outcome;
            }
        }
        outcomes
    }

    /// Asks warm for the metadata of keys that cold misses. An error of warm is a miss.
    async fn read_metadata(&self, batch: &Batch, outcomes: &mut Outcomes, context: &Context) {
        let is_missed = |at: &usize| verb(&batch[*at]) == Verb::Metaget && is_miss(&outcomes[*at]);
        let missed = (0..batch.len()).filter(is_missed).map(|at| (at, batch[at].clone())).collect();
        for (at, outcome) in route_some(&*self.warm, missed, context).await {
            if !is_error(&outcome) {
                outcomes[at] = outcome;
            }
        }
    }

    /// The values that were found in warm, each with the exptime of its copy, without those that must not be copied.
    async fn with_exptimes(
        &self,
        batch: &Batch,
        found: Vec<(usize, Outcome)>,
        context: &Context,
    ) -> Vec<(usize, Outcome, i64)> {
        let known = |at: usize| match (&batch[at].operation, self.exptime) {
            (Operation::GetAndTouch { exptime, .. }, _) => Some(*exptime),
            (_, CopyExptime::Seconds(seconds)) => Some(seconds),
            (_, CopyExptime::OfWarm) => None,
        };
        let mut exptimes: Vec<Option<i64>> = found.iter().map(|(at, _)| known(*at)).collect();
        let unknown = found.iter().enumerate().filter(|(index, _)| exptimes[*index].is_none());
        let asked = unknown.map(|(index, (at, _))| (index, time_left_request(&batch[*at]))).collect();
        for (index, left) in route_some(&*self.warm, asked, context).await {
            exptimes[index] = time_left_s(&left);
        }
        let with_exptime = |((at, value), exptime): (_, Option<i64>)| Some((at, value, exptime?));
        found.into_iter().zip(exptimes).filter_map(with_exptime).collect()
    }
}

impl Route for WarmUpRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        let is_over = self.is_over();
        let is_plain = |request: &Request<Bytes>| match verb(request).kind() {
            VerbKind::Update => true,
            VerbKind::Read => is_over,
            VerbKind::Delete => false,
        };
        match batch.iter().all(is_plain) {
            true => self.cold.route(batch, context),
            false => Box::pin(self.route_batch(batch, context)),
        }
    }
}

fn should_ask_warm(request: &Request<Bytes>, outcome: &Outcome) -> bool {
    let is_hot_miss = matches!(outcome, Ok(Reply::Lease { token, .. }) if !token.is_held());
    let verb = verb(request);
    let may_fill = verb.kind() == VerbKind::Read && verb != Verb::Metaget && !is_encoded(request);
    may_fill && is_miss(outcome) && !is_hot_miss && !is_of_observer(request)
}

pub(crate) const TYPE: RouteType = RouteType::new("WarmUpRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    cold: Handle,
    warm: Handle,
    exptime: CopyExptime,
    hold_off_ms: u32,
    /// When it ends, and its progress; `None` if it does not end by itself.
    end: Option<(WarmUpEnd, TreeState<WarmUpProgress>)>,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(
        &Keys::known(&["type", "name", "cold", "warm", "exptime", "hold_off_ms", "end_share", "end_after"])
            .and(&["enable_metaget"]),
    )?;
    let exptime = match (object.get("exptime"), object.flag("enable_metaget")?) {
        (Some(node), _) => CopyExptime::Seconds(node.integer("seconds", 0, EXPTIME_RELATIVE_S_MAX)?),
        (None, true) => CopyExptime::OfWarm,
        (None, false) => {
            object.node.warn("\"exptime\" is missing: copies from the warm cluster never expire");
            CopyExptime::Seconds(0)
        }
    };
    let hold_off_ms = parse_hold_off_ms(object)?;
    let default = WarmUpEnd::default();
    let share =
        object.get("end_share").map_or(Ok(default.share), |node| node.number("a part of all reads", 0.0, 1.0))?;
    let after_s = object.integer_or("end_after", "seconds", EXPTIME_RELATIVE_S_MAX, default.after_s as i64)? as u64;
    Ok(Handle::route(Config {
        end: (share > 0.0).then(|| (WarmUpEnd { share, after_s }, TreeState::default())),
        exptime,
        hold_off_ms,
        cold: parser.parse_required(object, "cold")?,
        warm: parser.parse_required(object, "warm")?,
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
        let (cold, warm) = (tree.build(&self.cold), tree.build(&self.warm));
        let route = WarmUpRoute::new(cold, warm, self.exptime, self.hold_off_ms);
        let environment = tree.environment();
        let Environment { clock, log, .. } = environment;
        let route = match &self.end {
            Some((when, TreeState(progress))) => route.with_end(*when, progress.clone(), clock.clone(), log.clone()),
            None => route,
        };
        // Not after a miss of cold only: the routers end the warm-up by the share of all reads that warm fills.
        filled_by_router(Arc::new(route), None, environment)
    }
}

/// A minute: a longer hold-off keeps the cluster cold.
const HOLD_OFF_MS_MAX: i64 = 60_000;

pub(crate) fn parse_hold_off_ms(object: &Object<'_>) -> Result<u32, ConfigurationError> {
    let default = WARM_UP_HOLD_OFF_MS.into();
    Ok(object.integer_or("hold_off_ms", "milliseconds", HOLD_OFF_MS_MAX, default)? as u32)
}
