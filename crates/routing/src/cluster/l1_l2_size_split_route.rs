//! Small values in a replicated or near cache (L1), large ones in another (L2). In the place of a large value L1 has a
//! sentinel: an empty value, or a number, with bit [`SENTINEL_FLAG`] of the flags.
//!
//! ```text
//!   set k, large        L2: k      = value       then L1: k = "",  flags + 0x20
//!   lease-set k, large  L2: k|==|N = value       then L1: k = "N", flags + 0x20      N is random
//! ```
//!
//! | verb | effect |
//! |---|---|
//! | set, lease-set of a small value | L1 |
//! | set, lease-set of a large value, with `both_full_set` | L1; if stored, set in L2 under the plain key, in the background |
//! | set of a large value | set in L2; if stored, the sentinel in L1, whose outcome is returned; else L2's |
//! | lease-set of a large value | set in L2 under the alias; then in L1 the sentinel, or if L2 has not stored it the value itself for at most `failure_ttl` |
//! | get | L1; after an empty sentinel L2's outcome for the plain key; after a number the value under the alias |
//! | gets lease-get | L1; after a sentinel the value of L2, with L1's CAS unique. If L2 misses, the sentinel is removed and L1 asked again, `retries` times |
//! | gat gats cas add replace append prepend delete touch incr decr, meta commands | L1: they see sentinels |
//!
//! A value is small if it is shorter than `threshold`, or its exptime is below `ttl_threshold` (0, "never", is), or its
//! key has no space for an alias. A stale sentinel of a lease is dropped.
//!
//! **A late write cannot be read**: the alias of a fill that was overtaken is in L2, but L1 has another number. So a
//! delete in L1 is enough; what stays in L2 is evicted by age.
//!
//! A sentinel without its value is removed, by a `cas` that leaves a newer value alone: after a miss of L2, and after
//! an error, so that the next lease fills the key again. Then a get returns an error. Bit 5 of the client's flags is
//! reserved.

use crate::{
    Batch, BoxFuture, Context, FailoverErrors, Outcome, Outcomes, Route,
    cluster::modify_exptime_route::EXPTIME_RELATIVE_S_MAX,
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder},
    environment::{Background, Clock, SharedRng},
    outcome::{is_busy, is_error, server_error},
    split::route_some,
    verb::VerbKind,
};
use bytes::Bytes;
use lookaside_protocol::{Cas, ErrorReply, KEY_BYTES_MAX, Operation, Reply, Request, StoreMode};
use std::sync::Arc;

/// The client flag of a sentinel.
pub const SENTINEL_FLAG: u32 = 0x20;

/// Stands between a key and the number of its alias.
const ALIAS_MARK: &[u8] = b"|==|";

/// The digits of the largest number that a sentinel may have.
const DIGITS_MAX: usize = 20;

/// mcrouter's longest key with an alias, in bytes. With the numbers that are drawn here the alias of such a key has at
/// most 245, which servers accept.
const ALIASED_BYTES_MAX: usize = 255;

/// Which values are large, and where they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeSplitSettings {
    /// Values of this size or more are large, in bytes; 0: none is.
    pub threshold_bytes: usize,
    /// Values with a shorter exptime are small, in seconds; 0: the exptime does not matter.
    pub ttl_threshold_s: i64,
    /// The longest life of a large value in L1, in seconds.
    pub failure_ttl_s: i64,
    /// Whether L1 and L2 both get large values, and no sentinels are made.
    pub both_full_set: bool,
    /// How often a read is tried again after a sentinel without its value.
    pub retries: u32,
}

/// Two caches, for small values and for large ones.
pub struct L1L2SizeSplitRoute {
    l1: Arc<dyn Route>,
    l2: Arc<dyn Route>,
    settings: SizeSplitSettings,
    numbers: SharedRng,
    clock: Arc<dyn Clock>,
    background: Background,
}

impl L1L2SizeSplitRoute {
    /// Keeps small values in `l1` and large ones in `l2`; `seed` determines the numbers of aliases.
    pub fn new(
        l1: Arc<dyn Route>,
        l2: Arc<dyn Route>,
        settings: SizeSplitSettings,
        seed: u64,
        clock: Arc<dyn Clock>,
        background: Background,
    ) -> Self {
        L1L2SizeSplitRoute { l1, l2, settings, numbers: SharedRng::new(seed), clock, background }
    }

    /// Whether a request stores a large value: the key, the exptime and the value say so.
    fn is_large(&self, request: &Request<Bytes>) -> bool {
        let Some((exptime, value)) = full_set(request) else { return false };
        let SizeSplitSettings { threshold_bytes, ttl_threshold_s, .. } = self.settings;
        let has_size = threshold_bytes > 0 && value.len() >= threshold_bytes;
        let has_ttl = ttl_threshold_s == 0 || exptime >= ttl_threshold_s;
        has_size && has_ttl && request.key.len() + ALIAS_MARK.len() + DIGITS_MAX <= ALIASED_BYTES_MAX
    }

    /// Whether L2 is asked before L1.
    fn begins_at_l2(&self, request: &Request<Bytes>) -> bool {
        !self.settings.both_full_set && self.is_large(request)
    }

    /// Whether L2 may be asked at all.
    fn may_ask_l2(&self, request: &Request<Bytes>) -> bool {
        reads_sentinels(request) || self.is_large(request)
    }

    async fn route_runs(&self, batch: Batch, context: &Context) -> Outcomes {
        let mut outcomes = Outcomes::with_capacity(batch.len());
        let mut rest = batch.into_iter().peekable();
        while let Some(first) = rest.next() {
            let begins_at_l2 = self.begins_at_l2(&first);
            let mut run = vec![first];
            while let Some(next) = rest.next_if(|next| self.begins_at_l2(next) == begins_at_l2) {
                run.push(next);
            }
            outcomes.extend(match begins_at_l2 {
                true => self.store_large(run, context).await,
                false => self.route_to_l1(run, context).await,
            });
        }
        outcomes
    }

    async fn store_large(&self, batch: Batch, context: &Context) -> Outcomes {
        let sentinels: Vec<Sentinel> = batch.iter().map(|request| self.new_sentinel(request)).collect();
        let of_l2 = batch.iter().zip(&sentinels).map(|(request, sentinel)| store_in_l2(request, sentinel)).collect();
        let mut outcomes = self.l2.route(of_l2, context).await;
        assert_eq!(outcomes.len(), batch.len(), "a route answers every request once");
        let mut of_l1 = Vec::new();
        for (at, (mut request, sentinel)) in batch.into_iter().zip(&sentinels).enumerate() {
            let is_stored = is_stored(&outcomes[at]);
            match &mut request.operation {
                Operation::Store { flags, value, .. } if is_stored => sentinel.replace(flags, value),
                Operation::LeaseSet { flags, value, .. } if is_stored => sentinel.replace(flags, value),
                Operation::LeaseSet { exptime, .. } => *exptime = self.shortened(*exptime),
                _ => continue,
            }
            of_l1.push((at, request));
        }
        for (at, outcome) in route_some(&*self.l1, of_l1, context).await {
            outcomes[at] = outcome;
        }
        outcomes
    }

    fn new_sentinel(&self, request: &Request<Bytes>) -> Sentinel {
        match request.operation {
            Operation::LeaseSet { .. } => Sentinel(self.numbers.next_below(u32::MAX as usize).to_string().into()),
            _ => Sentinel::default(),
        }
    }

    /// The exptime of a large value that L1 has to hold: no longer than `failure_ttl`.
    fn shortened(&self, exptime: i64) -> i64 {
        let left_s = match exptime {
            0 => i64::MAX,
            ..=EXPTIME_RELATIVE_S_MAX => exptime,
            unix_s => unix_s.saturating_sub_unsigned(self.clock.unix_s()),
        };
        if left_s > self.settings.failure_ttl_s { self.settings.failure_ttl_s } else { exptime }
    }

    async fn route_to_l1(&self, batch: Batch, context: &Context) -> Outcomes {
        let requests = batch.clone();
        let mut outcomes = self.l1.route(batch, context).await;
        assert_eq!(outcomes.len(), requests.len(), "a route answers every request once");
        self.copy_to_l2(&requests, &outcomes, context);
        self.follow_sentinels(&requests, &mut outcomes, context).await;
        outcomes
    }

    /// With `both_full_set`, stores in L2 what L1 has stored, in the background.
    fn copy_to_l2(&self, batch: &Batch, outcomes: &Outcomes, context: &Context) {
        if !self.settings.both_full_set {
            return;
        }
        let is_copied = |request: &Request<Bytes>, outcome: &Outcome| self.is_large(request) && is_stored(outcome);
        let stored = batch.iter().zip(outcomes).filter(|(request, outcome)| is_copied(request, outcome));
        let copies: Batch = stored.map(|(request, _)| store_in_l2(request, &Sentinel::default())).collect();
        if !copies.is_empty() {
            let (l2, context) = (self.l2.clone(), context.without_misses());
            self.background.spawn_or_drop(async move { drop(l2.route(copies, &context).await) });
        }
    }

    /// Replaces sentinels in outcomes of L1 by the values of L2.
    async fn follow_sentinels(&self, batch: &Batch, outcomes: &mut Outcomes, context: &Context) {
        let mut open: Vec<usize> = (0..batch.len()).filter(|&at| reads_sentinels(&batch[at])).collect();
        for retries_left in (0..=self.settings.retries).rev() {
            let found: Vec<FoundSentinel> =
                open.iter().filter_map(|&at| FoundSentinel::of(at, &batch[at], &mut outcomes[at])).collect();
            if found.is_empty() {
                return;
            }
            let asked = found.iter().map(|found| (found.at, found.request_to_l2())).collect();
            let (mut removed, mut again) = (Vec::new(), Vec::new());
            for (found, (at, of_l2)) in found.into_iter().zip(route_some(&*self.l2, asked, context).await) {
                let tries_again = !matches!(batch[at].operation, Operation::Get { cas: false }) && retries_left > 0;
                match found.outcome(&batch[at], of_l2) {
                    AfterSentinel::Final(outcome) => outcomes[at] = outcome,
                    AfterSentinel::Failed(outcome) => {
                        let errors = FailoverErrors::default();
                        removed.extend(errors.triggers_failover(VerbKind::Read, &outcome).then_some(found));
                        outcomes[at] = outcome;
                    }
                    AfterSentinel::Lost => {
                        removed.push(found);
                        again.extend(tries_again.then(|| (at, batch[at].clone())));
                        outcomes[at] = server_error("local error");
                    }
                }
            }
            self.remove(removed, context).await;
            open = again.iter().map(|(at, _)| *at).collect();
            for (at, outcome) in route_some(&*self.l1, again, context).await {
                outcomes[at] = outcome;
            }
        }
    }

    /// Removes sentinels from L1, each unless it has been replaced. Failures leave it there.
    async fn remove(&self, sentinels: Vec<FoundSentinel>, context: &Context) {
        let gets = |found: &FoundSentinel| Request { key: found.key.clone(), operation: Operation::Get { cas: true } };
        let read = sentinels.iter().map(gets).enumerate().collect();
        let removals = route_some(&*self.l1, read, context).await.into_iter().filter_map(|(at, outcome)| {
            let FoundSentinel { key, flags, sentinel: Sentinel(number), .. } = &sentinels[at];
            match outcome {
                Ok(Reply::Value { flags: now, cas: Some(cas), value }) if now == *flags && value == *number => {
                    let mode = StoreMode::Cas(cas);
                    let operation = Operation::Store { mode, flags: *flags, exptime: -1, value, cas: false };
                    Some((at, Request { key: key.clone(), operation }))
                }
                _ => None,
            }
        });
        route_some(&*self.l1, removals.collect(), context).await;
    }
}

impl Route for L1L2SizeSplitRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match batch.iter().any(|request| self.may_ask_l2(request)) {
            true => Box::pin(self.route_runs(batch, context)),
            false => self.l1.route(batch, context),
        }
    }
}

/// The value of a sentinel: the number of the alias; empty: the plain key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sentinel(Bytes);

impl Sentinel {
    /// The sentinel that a value of L1 is for `key`; `None` if it is a client's value.
    fn parse(key: &Bytes, flags: u32, value: &Bytes) -> Option<Sentinel> {
        let is_number = value.len() <= DIGITS_MAX && value.iter().all(u8::is_ascii_digit);
        let sentinel = (flags & SENTINEL_FLAG != 0 && is_number).then(|| Sentinel(value.clone()))?;
        (sentinel.key(key).len() <= KEY_BYTES_MAX).then_some(sentinel)
    }

    /// The key of the value in L2.
    fn key(&self, key: &Bytes) -> Bytes {
        match self.0.is_empty() {
            true => key.clone(),
            false => [key, ALIAS_MARK, &self.0].concat().into(),
        }
    }

    /// Turns a value to store into this sentinel.
    fn replace(&self, flags: &mut u32, value: &mut Bytes) {
        *flags |= SENTINEL_FLAG;
        *value = self.0.clone();
    }
}

/// A sentinel that a read has found in L1.
struct FoundSentinel {
    /// The index of the read.
    at: usize,
    key: Bytes,
    flags: u32,
    cas: Option<Cas>,
    sentinel: Sentinel,
}

/// The outcome of a read after L2 has replied.
enum AfterSentinel {
    Final(Outcome),
    /// L2 has failed.
    Failed(Outcome),
    /// L2 does not have the value.
    Lost,
}

impl FoundSentinel {
    /// The sentinel in an outcome of L1, if there is one. A stale one is dropped from a lease.
    fn of(at: usize, request: &Request<Bytes>, outcome: &mut Outcome) -> Option<FoundSentinel> {
        match outcome {
            Ok(Reply::Value { flags, cas, value }) => {
                let sentinel = Sentinel::parse(&request.key, *flags, value)?;
                Some(FoundSentinel { at, key: request.key.clone(), flags: *flags, cas: *cas, sentinel })
            }
            Ok(Reply::Lease { flags, stale, .. }) => {
                let value = stale.clone().unwrap_or_default();
                if Sentinel::parse(&request.key, *flags, &value).is_some() {
                    (*flags, *stale) = (0, None);
                }
                None
            }
            _ => None,
        }
    }

    fn request_to_l2(&self) -> Request<Bytes> {
        Request { key: self.sentinel.key(&self.key), operation: Operation::Get { cas: false } }
    }

    fn outcome(&self, request: &Request<Bytes>, of_l2: Outcome) -> AfterSentinel {
        let is_plain_get = matches!(request.operation, Operation::Get { cas: false });
        match of_l2 {
            of_l2 if is_plain_get && self.sentinel == Sentinel::default() => AfterSentinel::Final(of_l2),
            Ok(Reply::Value { flags, value, .. }) => {
                AfterSentinel::Final(Ok(Reply::Value { flags, cas: self.cas, value }))
            }
            of_l2 if is_error(&of_l2) => AfterSentinel::Failed(without_text(of_l2)),
            _ => AfterSentinel::Lost,
        }
    }
}

fn reads_sentinels(request: &Request<Bytes>) -> bool {
    matches!(request.operation, Operation::Get { .. } | Operation::LeaseGet)
}

/// Exptime and value of a `set` or `lease-set`; `None` for other requests.
fn full_set(request: &Request<Bytes>) -> Option<(i64, &Bytes)> {
    match &request.operation {
        Operation::Store { mode: StoreMode::Set, exptime, value, .. } | Operation::LeaseSet { exptime, value, .. } => {
            Some((*exptime, value))
        }
        _ => None,
    }
}

fn is_stored(outcome: &Outcome) -> bool {
    matches!(outcome, Ok(Reply::Stored | Reply::StoredAs(_)))
}

/// The request that stores the value of a `set` or `lease-set` in L2.
fn store_in_l2(request: &Request<Bytes>, sentinel: &Sentinel) -> Request<Bytes> {
    let operation = match request.operation.clone() {
        Operation::Store { flags, exptime, value, .. } | Operation::LeaseSet { flags, exptime, value, .. } => {
            Operation::Store { mode: StoreMode::Set, flags, exptime, value, cas: false }
        }
        operation => operation,
    };
    Request { key: sentinel.key(&request.key), operation }
}

/// An error of L2 as the client sees it: by name only.
fn without_text(outcome: Outcome) -> Outcome {
    match outcome {
        Ok(Reply::Error(ErrorReply::Server(why))) if is_busy(&why) => server_error("307 busy"),
        Ok(Reply::Error(ErrorReply::Server(_))) => server_error("remote error"),
        outcome => outcome,
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("L1L2SizeSplitRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    l1: Handle,
    l2: Handle,
    settings: SizeSplitSettings,
}

const KEYS: Keys =
    Keys::known(&["type", "name", "l1", "l2", "threshold", "ttl_threshold", "failure_ttl", "both_full_set", "retries"]);

/// mcrouter's default for `failure_ttl`, in seconds.
const FAILURE_TTL_S: i64 = 60;

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&KEYS)?;
    let threshold = object.require("threshold", "the size from which on a value is stored in L2, in bytes")?;
    let failure_ttl = object.get("failure_ttl");
    let retries = object.get("retries");
    let settings = SizeSplitSettings {
        threshold_bytes: threshold.integer("bytes", 0, u32::MAX.into())? as usize,
        ttl_threshold_s: object.integer_or("ttl_threshold", "seconds", i32::MAX.into(), 0)?,
        failure_ttl_s: failure_ttl
            .map_or(Ok(FAILURE_TTL_S), |node| node.integer("seconds", 1, EXPTIME_RELATIVE_S_MAX))?,
        both_full_set: object.flag("both_full_set")?,
        retries: retries.map_or(Ok(1), |node| node.integer("retries", 1, 10))? as u32,
    };
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
        "l1l2-sizesplit".to_owned()
    }

    fn changes_keys(&self) -> bool {
        true
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let (l1, l2, seed) = (tree.build(&self.l1), tree.build(&self.l2), tree.next_seed());
        tree.store_undeleted(&l2);
        let environment = tree.environment();
        let (clock, background) = (environment.clock.clone(), environment.background.clone());
        Arc::new(L1L2SizeSplitRoute::new(l1, l2, self.settings, seed, clock, background))
    }
}
