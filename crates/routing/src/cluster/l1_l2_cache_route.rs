//! A small near cache (L1) in front of a large far one (L2). L2 is the authority, L1 holds copies.
//!
//! | verb | L1 | L2 |
//! |---|---|---|
//! | get | asked first | asked after a miss or an error of L1; a hit is added to L1 in the background |
//! | lease-get | asked first, with a `get` | asked after a miss: its lease, its token; a hit is added to L1 |
//! | gets gat gats metaget | - | asked: CAS unique and exptime are L2's |
//! | set add replace append prepend cas lease-set touch incr decr | deleted, after L2 has replied | asked; its outcome |
//! | delete | deleted, after L2 | asked; an error if either failed, `DELETED` if either held the key |
//! | meta commands | deleted after those that write; its reply does not count | asked; its outcome |
//!
//! **With `l1_only_writes`** L2 is fed otherwise, as in mcrouter:
//!
//! | verb | L1 | L2 |
//! |---|---|---|
//! | get gets gat gats metaget, meta get | asked first | asked after a miss or an error of L1; a value of the first four is added to L1 in the background |
//! | lease-get | asked first | asked after a miss, with a `get`; a hit is added to L1. After a second miss the lease is L1's |
//! | all others | asked | - |
//!
//! **Negative cache**: with an `ncacheUpdatePeriod`, L1 stores a miss of both on a read, but for a lease, and answers
//! later reads with a miss; every `ncacheUpdatePeriod`-th of them asks L2 in the background, and its reply replaces the
//! negative entry. That is the value [`NEGATIVE_VALUE`] with the flag [`NEGATIVE_FLAG`], as in mcrouter, for
//! `ncacheExptime`. A `lease-get` ignores it unless `l1_only_writes`: it needs a token.
//!
//! Deletes reach L2 first: in the other order, a read in between would add the old value again. An accepted race: a
//! value read from L2 before a write may be added to L1 after it; keep its lifetime `upgradingL1Exptime` short.
//!
//! A failure of L1 does not fail reads. If the delete of a copy fails, only a `delete` fails with it; after other
//! writes the copy stays until its exptime. Fills of L1 outlive their caller; if the background is full, they are
//! dropped.
//!
//! Reads and writes that a client pipelined are executed in order, so that a get after a set sees it.
//!
//! A direct client asks L1 itself, and for what L1 does not have a router, which fills L1 ([`filled_by_router`]).

use crate::{
    Batch, BoxFuture, Context, Outcome, Outcomes, Route,
    cluster::{
        modify_exptime_route::EXPTIME_RELATIVE_S_MAX,
        null_route::empty_cache_reply,
        support::filled_by_router::{FirstChild, filled_by_router},
    },
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder},
    environment::Background,
    key::is_encoded,
    outcome::{as_get, as_store, is_error, is_miss, verb, worse},
    split::route_some,
    verb::VerbKind,
};
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request, StoreMode};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// The client flag of a negative entry.
pub const NEGATIVE_FLAG: u32 = 0x1_0000;

/// The value of a negative entry: L2 does not have the key.
pub const NEGATIVE_VALUE: &[u8] = b"ncache";

/// The lifetimes of entries in L1, and where writes go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct L1L2Settings {
    /// The exptime of a copy in L1, in seconds; 0: never expires.
    pub l1_exptime_s: u32,
    /// The exptime of a negative entry, in seconds; 0: never expires.
    pub negative_exptime_s: u32,
    /// Every n-th hit of a negative entry asks L2, too; 0: no negative cache.
    pub negative_update_period: u32,
    /// Whether L2 is only read.
    pub writes_l1_only: bool,
}

/// Two caches, one in front of the other.
pub struct L1L2CacheRoute {
    l1: Arc<dyn Route>,
    l2: Arc<dyn Route>,
    settings: L1L2Settings,
    negative_hits: AtomicU64,
    background: Background,
}

impl L1L2CacheRoute {
    /// `l1` in front of `l2`.
    pub fn new(l1: Arc<dyn Route>, l2: Arc<dyn Route>, settings: L1L2Settings, background: Background) -> Self {
        L1L2CacheRoute { l1, l2, settings, negative_hits: AtomicU64::new(0), background }
    }

    async fn route_runs(&self, batch: Batch, context: &Context) -> Outcomes {
        let mut outcomes = Outcomes::with_capacity(batch.len());
        let mut rest = batch.into_iter().peekable();
        while let Some(first) = rest.next() {
            let is_l1_read = self.reads_l1(&first);
            let mut run = vec![first];
            while let Some(next) = rest.next_if(|next| self.reads_l1(next) == is_l1_read) {
                run.push(next);
            }
            outcomes.extend(match is_l1_read {
                true => self.read(run, context).await,
                false if self.settings.writes_l1_only => self.l1.route(run, context).await,
                false => self.route_to_l2(run, context).await,
            });
        }
        outcomes
    }

    fn reads_l1(&self, request: &Request<Bytes>) -> bool {
        match self.settings.writes_l1_only {
            true => verb(request).kind() == VerbKind::Read,
            false => matches!(request.operation, Operation::Get { cas: false } | Operation::LeaseGet),
        }
    }

    async fn read(&self, batch: Batch, context: &Context) -> Outcomes {
        let of_l1 = match self.settings.writes_l1_only {
            true => batch.clone(),
            false => batch.iter().map(as_get).collect(),
        };
        let mut outcomes = self.l1.route(of_l1, context).await;
        assert_eq!(outcomes.len(), batch.len(), "a route answers every request once");
        let (mut asked, mut due) = (Vec::new(), Batch::new());
        for (at, (request, outcome)) in batch.iter().zip(&mut outcomes).enumerate() {
            if !is_negative_entry(outcome) {
                if is_miss(outcome) || is_error(outcome) {
                    asked.push((at, self.request_to_l2(request, outcome)));
                }
            } else if matches!(request.operation, Operation::LeaseGet) && !self.settings.writes_l1_only {
                asked.push((at, request.clone()));
            } else {
                *outcome = empty_cache_reply(request);
                due.extend((self.is_update_due() && !is_encoded(request)).then(|| as_get(request)));
            }
        }
        let mut fills = Batch::new();
        for (at, outcome) in route_some(&*self.l2, asked, context).await {
            let mode = if is_negative_entry(&outcomes[at]) { StoreMode::Set } else { StoreMode::Add };
            // A negative entry would void a lease of L1.
            if !matches!(batch[at].operation, Operation::LeaseGet) || !is_miss(&outcome) {
                fills.extend(fill(&self.settings, &batch[at], &outcome, mode));
            }
            // The client fills a lease of L1 there.
            let is_leased = matches!(outcomes[at], Ok(Reply::Lease { .. }));
            if !is_leased || matches!(outcome, Ok(Reply::Value { .. })) {
                outcomes[at] = outcome;
            }
        }
        if !fills.is_empty() {
            let (l1, context) = (self.l1.clone(), context.without_misses());
            self.background.spawn_or_drop(async move { drop(l1.route(fills, &context).await) });
        }
        self.update_negative_entries(due, context);
        outcomes
    }

    /// The request to L2 after an outcome of L1. A lease of L1 needs no second one.
    fn request_to_l2(&self, request: &Request<Bytes>, of_l1: &Outcome) -> Request<Bytes> {
        match of_l1 {
            Ok(Reply::Lease { .. }) => as_get(request),
            _ => request.clone(),
        }
    }

    /// Counts a hit of a negative entry. Returns whether L2 must be asked.
    fn is_update_due(&self) -> bool {
        let period = u64::from(self.settings.negative_update_period);
        period > 0 && (self.negative_hits.fetch_add(1, Relaxed) + 1).is_multiple_of(period)
    }

    /// Asks L2 for keys that have a negative entry, and replaces that by the reply, in the background.
    fn update_negative_entries(&self, due: Batch, context: &Context) {
        if due.is_empty() {
            return;
        }
        let (l1, l2, settings, context) = (self.l1.clone(), self.l2.clone(), self.settings, context.without_misses());
        self.background.spawn_or_drop(async move {
            let of_l2 = l2.route(due.clone(), &context).await;
            let fill = |(request, of_l2)| fill(&settings, request, of_l2, StoreMode::Set);
            let fills: Batch = due.iter().zip(&of_l2).filter_map(fill).collect();
            if !fills.is_empty() {
                l1.route(fills, &context).await;
            }
        });
    }

    async fn route_to_l2(&self, batch: Batch, context: &Context) -> Outcomes {
        let invalidates_l1 = |request: &Request<Bytes>| verb(request).kind() != VerbKind::Read && !is_encoded(request);
        let copies = batch.iter().enumerate().filter(|(_, request)| invalidates_l1(request));
        let delete = |(at, request): (usize, &Request<Bytes>)| {
            let is_delete = matches!(request.operation, Operation::Delete { .. });
            let operation = if is_delete { request.operation.clone() } else { Operation::Delete { hold_off_ms: 0 } };
            (at, Request { key: request.key.clone(), operation })
        };
        let copies: Vec<_> = copies.map(delete).collect();
        let is_delete: Vec<bool> =
            batch.iter().map(|request| matches!(request.operation, Operation::Delete { .. })).collect();
        let mut outcomes = self.l2.route(batch, context).await;
        for (at, of_l1) in route_some(&*self.l1, copies, context).await {
            if is_delete[at] {
                let of_l2 = std::mem::replace(&mut outcomes[at], Ok(Reply::NotFound));
                outcomes[at] = worse(of_l2, of_l1);
            }
        }
        outcomes
    }
}

impl Route for L1L2CacheRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(self.route_runs(batch, context))
    }
}

/// Whether L1 has a negative entry. The reply to a meta get need not have the flags.
fn is_negative_entry(outcome: &Outcome) -> bool {
    match outcome {
        Ok(Reply::Value { flags, value, .. }) => flags & NEGATIVE_FLAG != 0 && value == NEGATIVE_VALUE,
        Ok(Reply::Meta(meta)) => meta.value.as_deref() == Some(NEGATIVE_VALUE),
        _ => false,
    }
}

/// Whether L1 has a copy of the value.
fn is_copy(outcome: &Outcome) -> bool {
    matches!(outcome, Ok(Reply::Value { .. })) && !is_negative_entry(outcome)
}

/// The request that stores a reply of L2 in L1; `None` if there is nothing to store.
fn fill(settings: &L1L2Settings, request: &Request<Bytes>, of_l2: &Outcome, mode: StoreMode) -> Option<Request<Bytes>> {
    match of_l2 {
        Ok(Reply::Miss) if settings.negative_update_period > 0 => {
            let (exptime, value) = (settings.negative_exptime_s.into(), Bytes::from_static(NEGATIVE_VALUE));
            let operation = Operation::Store { mode, flags: NEGATIVE_FLAG, exptime, value, cas: false };
            Some(Request { key: request.key.clone(), operation })
        }
        of_l2 => as_store(request, of_l2, mode, settings.l1_exptime_s.into()),
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("L1L2CacheRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    l1: Handle,
    l2: Handle,
    settings: L1L2Settings,
}

const KEYS: Keys = Keys::known(&[
    "type",
    "name",
    "l1",
    "l2",
    "upgradingL1Exptime",
    "ncacheExptime",
    "ncacheUpdatePeriod",
    "l1_only_writes",
]);

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&KEYS)?;
    let l1_exptime = object.require("upgradingL1Exptime", "the exptime of copies in L1, in seconds")?;
    let settings = L1L2Settings {
        l1_exptime_s: l1_exptime.integer("seconds", 0, EXPTIME_RELATIVE_S_MAX)? as u32,
        negative_exptime_s: object.integer_or("ncacheExptime", "seconds", EXPTIME_RELATIVE_S_MAX, 0)? as u32,
        negative_update_period: object.integer_or("ncacheUpdatePeriod", "misses", u32::MAX.into(), 0)? as u32,
        writes_l1_only: object.flag("l1_only_writes")?,
    };
    if settings.negative_update_period == 0
        && let Some(node) = object.get("ncacheExptime")
    {
        node.warn("no miss is cached without \"ncacheUpdatePeriod\"");
    }
    Ok(Handle::route(Config {
        l1: parser.parse_required(object, "l1")?,
        l2: parser.parse_required(object, "l2")?,
        settings,
    }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn mcrouter_name(&self) -> String {
        "l1l2-cache".to_owned()
    }

    /// Deletes do not show which keys L2 has.
    fn changes_keys(&self) -> bool {
        self.settings.writes_l1_only
    }

    fn fills_on_reads(&self) -> bool {
        true
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let (l1, l2) = (tree.build(&self.l1), tree.build(&self.l2));
        if self.settings.writes_l1_only {
            tree.store_undeleted(&l2);
        }
        let environment = tree.environment();
        let route = L1L2CacheRoute::new(l1.clone(), l2, self.settings, environment.background.clone());
        filled_by_router(Arc::new(route), Some(FirstChild { route: l1, is_value: is_copy }), environment)
    }
}
