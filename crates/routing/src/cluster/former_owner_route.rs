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
//! | metaget, meta get with `N`, base64 keys, all others | the pool |
//!
//! **Why a lease.** The former owner gets every delete before the new owner does. So if the copy is read after the lease
//! was issued, either it is newer than a delete, or that delete is still to come at the new owner, and voids the lease. A
//! value that was read before is only returned. A server without leases is never filled.
//!
//! **Which copies.** A live value, with its flags and remaining time to live. Never a stale one, and none of a server
//! that deletes of the key do not reach: the caller tells ([`Owners::is_owned`]).
//!
//! Everything is bounded: a former owner that fails or takes longer than [`FORMER_OWNER_TIMEOUT`] is not asked for
//! [`FORMER_OWNER_RETRY`], background tasks have permits, and a key is copied once at a time.

use crate::{
    Address, Batch, BoxFuture, Context, Destination, DestinationRoute, Environment, KeyHash, Outcome, Outcomes, Picker,
    Route, Verb, VerbKind,
    cluster::modify_exptime_route::EXPTIME_RELATIVE_S_MAX,
    key::{is_encoded, stored_key},
    outcome::{is_error, is_miss, verb},
    split::{route_some, scatter},
};
use bytes::Bytes;
use lookaside_protocol::{
    LeaseToken, Operation, Reply, Request, StoreMode,
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
    /// Values that former owners had after a miss.
    pub hits: SharedCounter,
    /// Keys that former owners did not have, either.
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
    /// Whether deletes of a stored key reach its former owner, given first, and its new one.
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
    /// A new owner has no leases, so nothing is copied.
    is_refused: AtomicBool,
    counters: Arc<FormerOwnerCounters>,
    environment: Environment,
}

/// A read that missed: its index in the batch, its request, and the index of the former owner.
struct Moved {
    at: usize,
    request: Request<Bytes>,
    former: usize,
}

/// A value of a former owner.
#[derive(Clone)]
struct Copy {
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
        let leaf = |server: &Arc<dyn Destination>| {
            let leaf = DestinationRoute::new(server.clone(), false).with_clock(environment.clock.clone());
            Arc::new(leaf) as Arc<dyn Route>
        };
        FormerOwnerRoute(Arc::new(Shared {
            pool,
            picker: hash.picker_for(servers.len()).expect("a hash that fits its servers"),
            servers,
            former_picker: former_hash.picker_for(former.len()).expect("a hash that fits its servers"),
            former_servers: former.iter().map(|server| server.address().clone()).collect(),
            retry_at_ms: former.iter().map(|_| AtomicU64::new(0)).collect(),
            former: former.iter().map(leaf).collect(),
            is_owned,
            unleased_after,
            copying: Mutex::default(),
            is_refused: AtomicBool::new(false),
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
        let moved: Vec<Moved> = missed.filter_map(|(at, request)| shared.moved(at, request)).collect();
        if moved.is_empty() {
            return outcomes;
        }
        let copies = shared.read_former(&moved, context).await;
        let (mut leased, mut background, mut asked_again) = (Vec::new(), Vec::new(), Vec::new());
        for (moved, copy) in moved.into_iter().zip(copies) {
            let Some(copy) = copy else { continue };
            let value = Ok(Reply::Value { flags: copy.flags, cas: None, value: copy.value.clone() });
            match (&moved.request.operation, &outcomes[moved.at]) {
                (Operation::LeaseGet, Ok(Reply::Lease { token, .. })) => {
                    if token.is_held() {
                        leased.push((*token, moved.request.key.clone(), copy));
                    }
                    outcomes[moved.at] = value;
                }
                (Operation::Get { cas: false }, _) => {
                    outcomes[moved.at] = value;
                    background.push(moved);
                }
                _ => asked_again.push(moved),
            }
        }
        shared.store(leased, context).await;
        Shared::copy_in_background(shared, background);
        self.copy_and_ask_again(asked_again, context, &mut outcomes).await;
        outcomes
    }

    async fn copy_and_ask_again(&self, moved: Vec<Moved>, context: &Context, outcomes: &mut Outcomes) {
        if moved.is_empty() {
            return;
        }
        let shared = &self.0;
        shared.copy(&moved, context).await;
        let mut again: Vec<_> = moved.into_iter().map(|moved| (moved.at, moved.request)).collect();
        for wait in FILL_WAITS {
            for (at, outcome) in route_some(&*shared.pool, again.clone(), context).await {
                if !is_error(&outcome) {
                    outcomes[at] = outcome;
                }
            }
            // Another client copies it.
            again.retain(|(at, _)| is_miss(&outcomes[*at]));
            if again.is_empty() {
                return;
            }
            shared.environment.clock.sleep(wait).await;
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
    verb.kind() == VerbKind::Read && verb != Verb::Metaget && !is_encoded(request)
}

impl Shared {
    /// `None` if the key has not moved, or its former owner must not be asked.
    fn moved(&self, at: usize, request: Request<Bytes>) -> Option<Moved> {
        let former = self.former_picker.pick_for(&request);
        let (former_owner, owner) = (&self.former_servers[former], &self.servers[self.picker.pick_for(&request)]);
        if former_owner == owner || self.now_ms() < self.retry_at_ms[former].load(Relaxed) {
            return None;
        }
        let stored = Bytes::copy_from_slice(&stored_key(&request));
        (self.is_owned)(former_owner, owner, &stored).then_some(Moved { at, request, former })
    }

    fn now_ms(&self) -> u64 {
        self.environment.clock.now().as_millis() as u64
    }

    /// Reads each key from its former owner; `None` if that has no live value.
    async fn read_former(&self, moved: &[Moved], context: &Context) -> Vec<Option<Copy>> {
        let get = |moved: &Moved| {
            let meta = MetaOperation { verb: MetaVerb::Get, flags: Bytes::from_static(b"f t v"), value: None };
            Request { key: moved.request.key.clone(), operation: Operation::Meta(meta) }
        };
        let choices = moved.iter().map(|moved| moved.former as u32).collect();
        let limit = context.time_limit.map_or(FORMER_OWNER_TIMEOUT, |limit| limit.min(FORMER_OWNER_TIMEOUT));
        let context = Context { time_limit: Some(limit), ..*context };
        let outcomes = scatter(&self.former, moved.iter().map(get).collect(), &context, choices).await;
        moved.iter().zip(outcomes).map(|(moved, outcome)| self.copy_of(moved.former, outcome)).collect()
    }

    /// Counts a former owner's reply, and returns its value.
    fn copy_of(&self, former: usize, outcome: Outcome) -> Option<Copy> {
        let copy = match outcome {
            Ok(Reply::Meta(reply)) => copy_of(&reply, self.environment.clock.unix_s()),
            _ => {
                self.counters.errors.add(1);
                let retry_at_ms = self.now_ms() + FORMER_OWNER_RETRY.as_millis() as u64;
                self.retry_at_ms[former].store(retry_at_ms, Relaxed);
                return None;
            }
        };
        match copy {
            Some(_) => self.counters.hits.add(1),
            None => self.counters.misses.add(1),
        }
        copy
    }

    fn copy_in_background(this: &Arc<Shared>, mut moved: Vec<Moved>) {
        if this.is_refused.load(Relaxed) {
            return;
        }
        let mut copying = this.copying.lock();
        moved.retain(|moved| copying.insert(moved.request.key.clone()));
        drop(copying);
        if moved.is_empty() {
            return;
        }
        let task = BackgroundCopy { shared: this.clone(), moved };
        this.environment.background.spawn_or_drop(async move {
            task.shared.copy(&task.moved, &Context::default()).await;
        });
    }

    /// Copies values from former owners to new ones.
    async fn copy(&self, moved: &[Moved], context: &Context) {
        let lease_get = |moved: &Moved| Request { key: moved.request.key.clone(), operation: Operation::LeaseGet };
        let leases = route_some(&*self.pool, moved.iter().map(lease_get).enumerate().collect(), context).await;
        let (mut leased, mut tokens) = (Vec::new(), Vec::new());
        for (moved, (_, lease)) in moved.iter().zip(leases) {
            match lease {
                Ok(Reply::Lease { token, .. }) if token.is_held() => {
                    leased.push(Moved { at: moved.at, request: moved.request.clone(), former: moved.former });
                    tokens.push(token);
                }
                Ok(Reply::Error(_)) => self.log_refusal(moved),
                // Another client fills it, or has.
                _ => {}
            }
        }
        if leased.is_empty() {
            return;
        }
        // The value must be read again, after the lease was issued.
        let copies = self.read_former(&leased, context).await;
        let (mut stores, mut released) = (Vec::new(), Vec::new());
        for ((token, moved), copy) in tokens.into_iter().zip(leased).zip(copies) {
            match copy {
                Some(copy) => stores.push((token, moved.request.key, copy)),
                // A delete makes way for a client's lease.
                None => {
                    released.push(Request { key: moved.request.key, operation: Operation::Delete { hold_off_ms: 0 } })
                }
            }
        }
        self.store(stores, context).await;
        route_some(&*self.pool, released.into_iter().enumerate().collect(), context).await;
    }

    /// Stores copies at new owners, as far as their leases are valid.
    async fn store(&self, leased: Vec<(LeaseToken, Bytes, Copy)>, context: &Context) {
        let lease_set = |(token, key, copy): (LeaseToken, Bytes, Copy)| {
            let Copy { flags, exptime, value } = copy;
            let operation = match self.unleased_after {
                None => Operation::LeaseSet { token, flags, exptime, value },
                Some(_) => Operation::Store { mode: StoreMode::Set, flags, exptime, value },
            };
            Request { key, operation }
        };
        if let Some(delay) = self.unleased_after {
            self.environment.clock.sleep(delay).await;
        }
        let stores = leased.into_iter().map(lease_set).enumerate().collect();
        let outcomes = route_some(&*self.pool, stores, context).await;
        let stored = outcomes.iter().filter(|(_, outcome)| matches!(outcome, Ok(Reply::Stored))).count();
        self.counters.fills.add(stored as u64);
    }

    fn log_refusal(&self, moved: &Moved) {
        if !self.is_refused.swap(true, Relaxed) {
            let server = &self.servers[self.picker.pick_for(&moved.request)];
            self.environment.log.line(&format!(
                "{server} refuses lease-get, so keys that have moved to it are read from their former owners, and not \
                 copied; remove \"resize_warm_up_s\" from pools whose servers have no leases"
            ));
        }
    }
}

/// Keys that are copied in the background.
struct BackgroundCopy {
    shared: Arc<Shared>,
    moved: Vec<Moved>,
}

impl Drop for BackgroundCopy {
    fn drop(&mut self) {
        let mut copying = self.shared.copying.lock();
        for moved in &self.moved {
            copying.remove(&moved.request.key);
        }
    }
}

/// The live value in a reply to `mg` with `f t v`.
fn copy_of(reply: &MetaReply<Bytes>, unix_s: u64) -> Option<Copy> {
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
    Some(Copy { flags: number(b'f')?.try_into().ok()?, exptime, value })
}
