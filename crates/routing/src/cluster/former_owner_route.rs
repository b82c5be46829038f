//! A pool whose servers were changed a moment ago: a key that has moved is read from its former owner after a miss
//! ([ADR 012](../../../../docs/adr/012-resize.md)), and copied to its new one.
//!
//! ```text
//!   get k --> new owner: miss --> former owner: value --> client
//!                                                   \--> copied in the background
//!   copy:  lease-get at the new owner --> get at the former owner --> lease-set at the new owner
//! ```
//!
//! | verb | effect |
//! |---|---|
//! | get | the pool; after a miss the former owner; its value is returned, and copied in the background |
//! | lease-get | the same; the client's own lease is used for the copy. A hot miss gets the value, and copies nothing |
//! | gets gat gats, meta get | the same; the value is copied first, and the pool is asked again, since CAS unique and exptime are its own |
//! | metaget, meta get with `N`, base64 keys, reads of an observer, all others | the pool |
//!
//! **Why a lease.** The former owner gets every delete before the new owner does. So if the copy is read after the
//! lease was issued, either it is newer than a delete, or that delete is still to come at the new owner, and voids the
//! lease. A value that was read before is only returned. A server without leases is never filled. A lease that is not
//! used is returned by a `lease-set` of an expired value, which leaves what a client has stored meanwhile.
//!
//! **Which copies.** A live value, with its flags and remaining time to live. Never a stale one, and none of a server
//! that deletes of the key do not reach, or that the key could be copied to ([`Owners::is_owned`]).
//!
//! Everything is bounded: a former owner that fails or takes longer than [`FORMER_OWNER_TIMEOUT`] is not asked for
//! [`FORMER_OWNER_RETRY`], background tasks have permits, and a key is copied once at a time.

mod copying;

use crate::{
    Address, Batch, BoxFuture, Context, Destination, DestinationRoute, Environment, KeyHash, Outcome, Outcomes, Picker,
    Route, Verb, VerbKind,
    cluster::modify_exptime_route::EXPTIME_RELATIVE_S_MAX,
    key::{is_encoded, stored_key},
    meta::is_of_observer,
    outcome::{is_error, is_miss, verb},
    split::{route_some, scatter},
};
use bytes::Bytes;
use copying::CopyState;
use lookaside_protocol::{
    ErrorReply, Operation, Reply, Request,
    meta::{MetaOperation, MetaReply, MetaStatus, MetaVerb},
};
use lookaside_sync::{Mutex, SharedCounter};
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// The limit on a former owner's reply: waiting longer is no better than reading the database.
pub const FORMER_OWNER_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a former owner that has failed is not asked.
pub const FORMER_OWNER_RETRY: Duration = Duration::from_secs(1);
/// The waits for another client's fill, before a miss is returned for a verb that the new owner must answer.
const FILL_WAITS: [Duration; 3] = [Duration::from_millis(5), Duration::from_millis(10), Duration::from_millis(20)];

/// The counters of all former owners.
#[derive(Debug, Default)]
pub struct FormerOwnerCounters {
    /// Reads that missed and found a value at a former owner.
    pub hits: SharedCounter,
    /// Reads that found none there, either.
    pub misses: SharedCounter,
    /// Reads that former owners did not answer.
    pub errors: SharedCounter,
    /// Values that were stored at new owners.
    pub fills: SharedCounter,
}

/// The servers of a pool before and after a change.
pub struct Owners {
    /// The pool as it is.
    pub servers: Vec<Address>,
    /// Its hash.
    pub hash: KeyHash,
    /// The servers of the pool as it was.
    pub former: Vec<Arc<dyn Destination>>,
    /// The hash of the pool as it was.
    pub former_hash: KeyHash,
    /// Whether a stored key has moved from its former owner, given first, to its new one, so that deletes reach both in
    /// this order, and no router copies it to the former one.
    pub is_owned: IsOwned,
    /// Stores copies without a lease, after this time: for a simulation that shows why leases are needed. `None` if
    /// copies have leases.
    pub unleased_after: Option<Duration>,
}

/// As [`Owners::is_owned`].
pub type IsOwned = Box<dyn Fn(&Address, &Address, &Bytes) -> bool + Send + Sync>;

/// Reads keys from former owners.
pub struct FormerOwnerRoute(Arc<Shared>);

/// What copies in the background share with the route.
struct Shared {
    pool: Arc<dyn Route>,
    servers: Vec<Address>,
    picker: Picker,
    former: Vec<Arc<dyn Route>>,
    former_servers: Vec<Address>,
    former_picker: Picker,
    is_owned: IsOwned,
    unleased_after: Option<Duration>,
    /// For each former owner, when it may be asked again, in milliseconds of the clock.
    retry_at_ms: Vec<AtomicU64>,
    /// Keys that are copied in the background.
    copying: Mutex<BTreeSet<Bytes>>,
    /// For each new owner, whether it has no leases, so nothing is copied to it.
    is_refused: Vec<AtomicBool>,
    counters: Arc<FormerOwnerCounters>,
    environment: Environment,
}

/// A read of a key that has moved.
#[derive(Clone)]
struct MovedRead {
    /// Its index in the batch.
    at: usize,
    request: Request<Bytes>,
    /// The index of the former owner.
    former: usize,
    /// The index of the new one.
    owner: usize,
}

/// A value of a former owner.
struct FormerValue {
    flags: u32,
    /// For a store.
    exptime: i64,
    value: Bytes,
}

impl FormerOwnerRoute {
    /// `pool` with the former owners of its keys.
    ///
    /// # Panics
    /// If a hash cannot spread keys over its servers (see [`KeyHash::picker_for`]).
    pub fn new(
        pool: Arc<dyn Route>,
        owners: Owners,
        counters: Arc<FormerOwnerCounters>,
        environment: Environment,
    ) -> FormerOwnerRoute {
        let Owners { servers, hash, former, former_hash, is_owned, unleased_after } = owners;
        let route_to = |server: &Arc<dyn Destination>| {
            let route = DestinationRoute::new(server.clone(), false).with_clock(environment.clock.clone());
            Arc::new(route) as Arc<dyn Route>
        };
        let is_refused = servers.iter().map(|_| AtomicBool::new(false)).collect();
        FormerOwnerRoute(Arc::new(Shared {
            pool,
            picker: hash.picker_for(servers.len()).expect("a hash that fits its servers"),
            servers,
            former_picker: former_hash.picker_for(former.len()).expect("a hash that fits its servers"),
            former_servers: former.iter().map(|server| server.address().clone()).collect(),
            retry_at_ms: former.iter().map(|_| AtomicU64::new(0)).collect(),
            former: former.iter().map(route_to).collect(),
            is_owned,
            unleased_after,
            copying: Mutex::default(),
            is_refused,
            counters,
            environment,
        }))
    }

    async fn read(&self, batch: Batch, context: &Context) -> Outcomes {
        let shared = &self.0;
        let reads: Vec<_> = batch
            .iter()
            .enumerate()
            .filter(|(_, request)| may_move(request))
            .map(|(at, read)| (at, read.clone()))
            .collect();
        let mut outcomes = shared.pool.route(batch, context).await;
        let missed = reads.into_iter().filter(|(at, _)| is_miss(&outcomes[*at]));
        let moved: Vec<MovedRead> = missed.filter_map(|(at, request)| shared.find_former_owner(at, request)).collect();
        if moved.is_empty() {
            return outcomes;
        }
        let values = shared.read_former(&moved, context).await;
        let (mut leased, mut background, mut asked_again) = (Vec::new(), Vec::new(), Vec::new());
        for (read, value) in moved.into_iter().zip(values) {
            let Some(former) = shared.count(value) else { continue };
            let value = Ok(Reply::Value { flags: former.flags, cas: None, value: former.value.clone() });
            match (&read.request.operation, &outcomes[read.at]) {
                (Operation::LeaseGet, Ok(Reply::Lease { token, .. })) => {
                    if token.is_held() {
                        leased.push((*token, read.request.key.clone(), former));
                    }
                    outcomes[read.at] = value;
                }
                (Operation::Get { cas: false }, _) => {
                    outcomes[read.at] = value;
                    background.push(read);
                }
                _ => asked_again.push(read),
            }
        }
        shared.store(leased, context).await;
        Shared::copy_in_background(shared, background);
        self.copy_and_ask_again(asked_again, context, &mut outcomes).await;
        outcomes
    }

    async fn copy_and_ask_again(&self, moved: Vec<MovedRead>, context: &Context, outcomes: &mut Outcomes) {
        if moved.is_empty() {
            return;
        }
        let shared = &self.0;
        let states = shared.copy(&moved, context).await;
        let copied = moved.into_iter().zip(states).filter(|(_, state)| *state != CopyState::NotCopied);
        let mut again: Vec<_> = copied.map(|(read, state)| (read.at, read.request, state)).collect();
        let mut waits = FILL_WAITS.iter();
        while !again.is_empty() {
            let asked = again.iter().map(|(at, request, _)| (*at, request.clone())).collect();
            for (at, outcome) in route_some(&*shared.pool, asked, context).await {
                if !is_error(&outcome) {
                    outcomes[at] = outcome;
                }
            }
            // Only what another client copies may come later.
            again.retain(|(at, _, state)| *state == CopyState::Hot && is_miss(&outcomes[*at]));
            match waits.next() {
                Some(wait) if !again.is_empty() => shared.environment.clock.sleep(*wait).await,
                _ => return,
            }
        }
    }
}

impl Route for FormerOwnerRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match batch.iter().any(may_move) {
            true => Box::pin(self.read(batch, context)),
            false => self.0.pool.route(batch, context),
        }
    }
}

/// Whether a former owner may be asked after a miss.
fn may_move(request: &Request<Bytes>) -> bool {
    let verb = verb(request);
    verb.kind() == VerbKind::Read && verb != Verb::Metaget && !is_encoded(request) && !is_of_observer(request)
}

/// Whether only the new owner can answer, after a copy.
fn needs_copy(request: &Request<Bytes>) -> bool {
    !matches!(request.operation, Operation::Get { cas: false } | Operation::LeaseGet)
}

/// A former owner has not answered.
struct Unanswered;

impl Shared {
    /// `None` if the key has not moved, or asking its former owner is not allowed or of no use.
    fn find_former_owner(&self, at: usize, request: Request<Bytes>) -> Option<MovedRead> {
        let (former, owner) = (self.former_picker.pick_for(&request), self.picker.pick_for(&request));
        let (former_server, server) = (&self.former_servers[former], &self.servers[owner]);
        if former_server == server || self.now_ms() < self.retry_at_ms[former].load(Relaxed) {
            return None;
        }
        let read = MovedRead { at, request, former, owner };
        if needs_copy(&read.request) && self.is_refused(&read) {
            return None;
        }
        let stored = Bytes::copy_from_slice(&stored_key(&read.request));
        (self.is_owned)(former_server, server, &stored).then_some(read)
    }

    fn now_ms(&self) -> u64 {
        self.environment.clock.now().as_millis() as u64
    }

    /// Reads each key from its former owner; `None` if that has no live value.
    async fn read_former(
        &self,
        moved: &[MovedRead],
        context: &Context,
    ) -> Vec<Result<Option<FormerValue>, Unanswered>> {
        let get = |read: &MovedRead| {
            let meta = MetaOperation { verb: MetaVerb::Get, flags: Bytes::from_static(b"f t v"), value: None };
            Request { key: read.request.key.clone(), operation: Operation::Meta(meta) }
        };
        let choices = moved.iter().map(|read| read.former as u32).collect();
        let limit = context.time_limit.map_or(FORMER_OWNER_TIMEOUT, |limit| limit.min(FORMER_OWNER_TIMEOUT));
        let context = Context { time_limit: Some(limit), ..context.clone() };
        let outcomes = scatter(&self.former, moved.iter().map(get).collect(), &context, choices).await;
        moved.iter().zip(outcomes).map(|(read, outcome)| self.former_value(read.former, outcome)).collect()
    }

    /// The value in a former owner's reply. A failure of the server pauses it.
    fn former_value(&self, former: usize, outcome: Outcome) -> Result<Option<FormerValue>, Unanswered> {
        match outcome {
            Ok(Reply::Meta(reply)) => return Ok(live_value(&reply, self.environment.clock.unix_s())),
            // Of this key.
            Ok(Reply::Error(ErrorReply::Server(_) | ErrorReply::Client(_))) => {}
            _ => {
                let retry_at_ms = self.now_ms() + FORMER_OWNER_RETRY.as_millis() as u64;
                self.retry_at_ms[former].store(retry_at_ms, Relaxed);
            }
        }
        self.counters.errors.add(1);
        Err(Unanswered)
    }

    /// Counts the result of a client's read.
    fn count(&self, value: Result<Option<FormerValue>, Unanswered>) -> Option<FormerValue> {
        match &value {
            Ok(Some(_)) => self.counters.hits.add(1),
            Ok(None) => self.counters.misses.add(1),
            Err(Unanswered) => {}
        }
        value.ok().flatten()
    }
}

/// The live value in a reply to `mg` with `f t v`.
fn live_value(reply: &MetaReply<Bytes>, unix_s: u64) -> Option<FormerValue> {
    let value = reply.value.clone().filter(|_| reply.status == MetaStatus::Value)?;
    let number = |letter| str::from_utf8(reply.flag(letter)?).ok()?.parse::<i64>().ok();
    // Stale, or a placeholder.
    if [b'X', b'W', b'Z'].into_iter().any(|letter| reply.flag(letter).is_some()) {
        return None;
    }
    let exptime = match number(b't')? {
        -1 => 0,
        ttl_s @ 1..=EXPTIME_RELATIVE_S_MAX => ttl_s,
        ttl_s if ttl_s > EXPTIME_RELATIVE_S_MAX => unix_s as i64 + ttl_s,
        // It expires within this second.
        _ => return None,
    };
    Some(FormerValue { flags: number(b'f')?.try_into().ok()?, exptime, value })
}
