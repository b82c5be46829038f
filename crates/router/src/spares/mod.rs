//! Remediation: a server that is dead for long is replaced by a spare in its place of the hash, until it is back (§3.3 of
//! the paper). No request passes here; `routing`'s `SpareRoute` asks one word, the [`Slot`], that is written here.
//!
//! ```text
//!            not readable for spare_after_ms                the spare is emptied, if need be
//!   own  ------------------------------------>  choose  ------------------------------------->  spare serves
//!    ^                                             ^                                              |     |
//!    |                                             '---- the spare itself is not readable for --'     |
//!    '---- the server can be read, and owes nothing, for a second --------------------------------------'
//! ```
//!
//! "Readable" is neither taken out (TKO) nor fenced off for the deletes that it owes: a server that answers and may not
//! be read is of no more use than a dead one.
//!
//! Invariants, and who keeps them:
//! * Nobody reads what was deleted: every delete of the pool goes to the server and to all of its spares, whoever
//!   serves, and is acknowledged when each has applied it or has it kept (`SpareRoute`, `spool`). So it does not matter that
//!   routers disagree for a while on who is dead, and choose for themselves, without a word to each other.
//! * A server that returns is read when it has carried out what is kept for it: until then it is not readable.
//! * A spare may hold values from before it was a spare of this pool, when deletes did not reach it. So it is emptied before
//!   it serves, unless it bears the pool's mark ([`visit`]): then another router, or this one before a restart, has
//!   emptied it and is reading it, and to empty it again would only cost hits.
//! * A spare that a configuration takes from its pool gets no deletes from then on. So its mark is taken off, and whoever saw
//!   that does not believe the mark any more, should the pool get it back, until it has emptied the spare itself
//!   ([`Spares::configure`]).
//! * A place is not looked after before all threads have its tree ([`AGE_MIN`]): each of them must delete in the spare.
//!
//! Accepted: two routers that see servers die in different orders may choose different spares, and each warms its own. While
//! a configuration that takes away a spare which serves comes into force, for at most two seconds, one thread may read
//! there what another has deleted.
//!
//! Absent on purpose: filling the spare from elsewhere (it warms as any cold server), and agreement among routers.

mod visit;

use crate::timeouts::READY_MAX;
use lookaside_client::{Network, Observer, TkoTrackers};
use lookaside_routing::{Address, Pool, Serving, Slot, choose_spare};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// How often it is looked who is dead.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// A server that has been readable for so long is back: one whose probe was answered, or that a reload has forgotten all
/// about, may be gone again at once.
const BACK_AFTER: Duration = Duration::from_secs(1);
/// How old a place must be before a spare serves it: its threads change their trees one by one.
const AGE_MIN: Duration = READY_MAX.saturating_add(Duration::from_secs(1));
/// How long a spare that could not be emptied is left alone.
const REFUSED_WAIT: Duration = Duration::from_secs(5);
/// Spares that are remembered to have been taken from their pools; with more, no mark is believed any more.
const DOUBTS_MAX: usize = 10_000;

/// The places of all pools with spares, in one process.
#[derive(Debug)]
pub struct Spares {
    tko_trackers: Arc<TkoTrackers>,
    /// Locked before `trust`, where both are.
    places: Mutex<Vec<Arc<Place>>>,
    trust: Mutex<Trust>,
    /// There is a place to look after, or a mark to take off.
    added: Notify,
    takeovers: AtomicU64,
    returns: AtomicU64,
    refusals: AtomicU64,
}

/// What has come of the spares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SparesStatistics {
    /// Spares that serve now.
    pub in_use: u64,
    /// How often one began to.
    pub takeovers: u64,
    /// How often a server got its place back.
    pub returns: u64,
    /// How often a spare could not be emptied, and so was not used.
    pub refusals: u64,
}

/// Which marks are believed.
#[derive(Debug, Default)]
struct Trust {
    /// The pools of the configuration in force.
    configured: BTreeMap<String, Arc<Pool>>,
    /// Pools and their spares that another configuration did without, so that deletes were missed.
    doubted: BTreeSet<(String, Address)>,
    doubts_all: bool,
    /// Marks to be taken off, for the routers that have not seen it.
    withdrawn: Vec<(Address, String)>,
}

impl Trust {
    fn doubts(&self, pool: &str, spare: &Address) -> bool {
        self.doubts_all || self.doubted.contains(&(pool.to_owned(), spare.clone()))
    }
}

/// One server's place in a pool.
#[derive(Debug)]
struct Place {
    pool: String,
    at: usize,
    server: Address,
    spares: Vec<Address>,
    after: Duration,
    /// What spares bear that were emptied for this pool.
    mark: String,
    /// Held by the trees that have this place.
    slot: Weak<Slot>,
    own: Observer,
    of_spares: Vec<Observer>,
    made: Instant,
    /// A configuration has taken one of its spares away.
    is_gone: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Since when the server could not be read.
    unreadable_since: Option<Instant>,
    /// Since when it could.
    readable_since: Option<Instant>,
    /// Since when the spare that serves could not be read.
    spare_unreadable_since: Option<Instant>,
    /// When the spare that serves was marked last.
    marked_at: Option<Instant>,
    /// It was said that there is no spare.
    is_stuck: bool,
    /// Spares that could not be emptied, and when.
    refused: BTreeMap<usize, Instant>,
}

/// What is to be done about a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remedy {
    Nothing,
    /// Find a spare that serves.
    Replace,
    /// Let the server itself serve.
    Undo,
}

impl Spares {
    /// None in use. `tko_trackers` are those of the destinations.
    pub fn new(tko_trackers: Arc<TkoTrackers>) -> Arc<Spares> {
        Arc::new(Spares {
            tko_trackers,
            places: Mutex::default(),
            trust: Mutex::default(),
            added: Notify::new(),
            takeovers: AtomicU64::new(0),
            returns: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        })
    }

    /// Who serves the place `at` of `pool`: the same for all trees. After a change of the pool a spare that serves goes on,
    /// if it is still one.
    pub(crate) fn slot(&self, pool: &Pool, at: usize) -> Arc<Slot> {
        let mut places = self.places();
        places.retain(|place| place.slot.strong_count() > 0);
        let same = places.iter().find(|place| !place.is_gone.load(Relaxed) && place.is(pool, at));
        if let Some(slot) = same.and_then(|place| place.slot.upgrade()) {
            return slot;
        }
        let server = &pool.servers[at];
        let before = places.iter().filter(|place| place.pool == pool.name && place.server == *server);
        let spare = before.filter_map(|place| place.spare()).find(|spare| !self.trust().doubts(&pool.name, spare));
        let slot = Arc::new(Slot::default());
        if let Some(spare) = spare.and_then(|spare| pool.spares.iter().position(|other| *other == spare)) {
            slot.serve(Serving::Spare(spare));
        }
        let observe = |address| self.tko_trackers.observe(address);
        places.push(Arc::new(Place {
            pool: pool.name.clone(),
            at,
            server: server.clone(),
            spares: pool.spares.clone(),
            after: Duration::from_millis(pool.spare_after_ms),
            mark: visit::mark(pool),
            slot: Arc::downgrade(&slot),
            own: observe(server),
            of_spares: pool.spares.iter().map(observe).collect(),
            made: Instant::now(),
            is_gone: AtomicBool::new(false),
            state: Mutex::default(),
        }));
        self.added.notify_one();
        slot
    }

    /// Takes note of the pools that are configured from now on. To be called before any tree is built from them: a spare
    /// that one of them does without misses deletes from then on.
    pub fn configure(&self, pools: BTreeMap<String, Arc<Pool>>) {
        let keeps = |name: &str, spare: &Address| pools.get(name).is_some_and(|pool| pool.spares.contains(spare));
        for place in self.places().iter().filter(|place| place.spares.iter().any(|spare| !keeps(&place.pool, spare))) {
            place.is_gone.store(true, Relaxed);
        }
        let mut trust = self.trust();
        let before = std::mem::take(&mut trust.configured);
        for (name, pool) in &before {
            for spare in pool.spares.iter().filter(|spare| !keeps(name, spare)) {
                trust.doubts_all |= trust.doubted.len() >= DOUBTS_MAX;
                if !trust.doubts_all {
                    trust.doubted.insert((name.clone(), spare.clone()));
                    trust.withdrawn.push((spare.clone(), visit::mark(pool)));
                }
            }
        }
        trust.configured = pools;
        self.added.notify_one();
    }

    /// Looks after all places, until it is dropped. One call a process.
    pub async fn run(&self, network: Arc<dyn Network>) {
        loop {
            let withdrawn = std::mem::take(&mut self.trust().withdrawn);
            for (spare, mark) in &withdrawn {
                // Whether or not it succeeds: this router does not believe the mark any more.
                let _ = visit::withdraw(&*network, spare, mark).await;
            }
            let places: Vec<_> = self.places().clone();
            if places.is_empty() && withdrawn.is_empty() {
                self.added.notified().await;
            }
            for place in places.into_iter().filter(|place| !place.is_gone.load(Relaxed)) {
                if let Some(slot) = place.slot.upgrade() {
                    self.look_after(&place, &slot, &*network).await;
                }
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    async fn look_after(&self, place: &Place, slot: &Slot, network: &dyn Network) {
        match place.remedy(slot.serving(), Instant::now()) {
            Remedy::Nothing => self.renew_mark(place, slot, network).await,
            Remedy::Replace => self.replace(place, slot, network).await,
            Remedy::Undo => {
                slot.serve(Serving::Own);
                self.returns.fetch_add(1, Relaxed);
                place.state().spare_unreadable_since = None;
                tracing::info!(
                    pool = place.pool, server = %place.server,
                    "the server is back and owes nothing: it serves its keys again, the spare is free"
                );
            }
        }
    }

    /// Puts a spare in the place, if there is one that can serve.
    async fn replace(&self, place: &Place, slot: &Slot, network: &dyn Network) {
        let now = slot.serving();
        loop {
            let used = self.used(place);
            let refused = place.refused();
            let is_free = |spare: usize| {
                !refused.contains(&spare)
                    && now != Serving::Spare(spare)
                    && place.of_spares[spare].is_readable()
                    && !used.contains(&place.spares[spare])
            };
            let Some(spare) = choose_spare(place.at, place.spares.len(), is_free) else { break };
            let address = &place.spares[spare];
            let is_trusted = !self.trust().doubts(&place.pool, address);
            match visit::prepare(network, address, &place.mark, is_trusted).await {
                // A configuration came in between.
                Ok(_) if place.is_gone.load(Relaxed) => return,
                Ok(was_emptied) => {
                    if was_emptied {
                        self.trust().doubted.remove(&(place.pool.clone(), address.clone()));
                    }
                    slot.serve(Serving::Spare(spare));
                    self.takeovers.fetch_add(1, Relaxed);
                    let mut state = place.state();
                    (state.is_stuck, state.spare_unreadable_since) = (false, None);
                    state.marked_at = Some(Instant::now());
                    tracing::warn!(
                        pool = place.pool, server = %place.server, spare = %address, was_emptied,
                        "the server cannot be read for {:?}: a spare serves its keys until it is back", place.after
                    );
                    return;
                }
                Err(why) => {
                    self.refusals.fetch_add(1, Relaxed);
                    place.state().refused.insert(spare, Instant::now());
                    if !place.state().is_stuck {
                        tracing::warn!(pool = place.pool, spare = %address, why, "the spare cannot be used");
                    }
                }
            }
        }
        if !std::mem::replace(&mut place.state().is_stuck, true) {
            tracing::error!(
                pool = place.pool, server = %place.server,
                "the server cannot be read for {:?}, and no spare is free and well: its keys fail, or go to the gutter",
                place.after
            );
        }
    }

    /// Keeps the mark on the spare that serves, for as long as it does.
    async fn renew_mark(&self, place: &Place, slot: &Slot, network: &dyn Network) {
        let Serving::Spare(spare) = slot.serving() else { return };
        let is_due = |at: Instant| at.elapsed() >= visit::MARK_INTERVAL;
        if place.state().marked_at.is_none_or(is_due) && place.of_spares[spare].is_readable() {
            // Whether or not it succeeds: at worst the spare is emptied once more.
            place.state().marked_at = Some(Instant::now());
            let _ = visit::renew(network, &place.spares[spare], &place.mark).await;
        }
    }

    /// The spares that serve other places of the same pool.
    fn used(&self, place: &Place) -> BTreeSet<Address> {
        let places = self.places();
        let others = places.iter().filter(|other| other.pool == place.pool && other.server != place.server);
        others.filter_map(|other| other.spare()).collect()
    }

    /// How they fare.
    pub fn statistics(&self) -> SparesStatistics {
        SparesStatistics {
            in_use: self.replaced().len() as u64,
            takeovers: self.takeovers.load(Relaxed),
            returns: self.returns.load(Relaxed),
            refusals: self.refusals.load(Relaxed),
        }
    }

    /// Each server whose place a spare has, and the spare.
    pub(crate) fn replaced(&self) -> BTreeSet<(Address, Address)> {
        self.places().iter().filter_map(|place| Some((place.server.clone(), place.spare()?))).collect()
    }

    /// A line for each pool's place that a spare has.
    pub(crate) fn report(&self) -> String {
        let mut lines = String::new();
        for place in self.places().iter() {
            if let Some(spare) = place.spare() {
                write!(lines, "{} {} replaced_by:{spare}\r\n", place.pool, place.server).expect("a string takes all");
            }
        }
        lines
    }

    fn trust(&self) -> MutexGuard<'_, Trust> {
        self.trust.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing panics under the lock; if it did, what it guards is still whole.
    fn places(&self) -> MutexGuard<'_, Vec<Arc<Place>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SparesStatistics {
    /// Every figure with the name that `stats` gives it.
    pub fn named(&self) -> [(&'static str, u64); 4] {
        [
            ("spares_in_use", self.in_use),
            ("spare_takeovers", self.takeovers),
            ("spare_returns", self.returns),
            ("spare_refusals", self.refusals),
        ]
    }
}

impl Place {
    /// Whether this is the place `at` of `pool`.
    fn is(&self, pool: &Pool, at: usize) -> bool {
        self.pool == pool.name
            && self.at == at
            && self.server == pool.servers[at]
            && self.spares == pool.spares
            && self.after == Duration::from_millis(pool.spare_after_ms)
            && self.mark == visit::mark(pool)
    }

    /// The spare that serves it, if one does.
    fn spare(&self) -> Option<Address> {
        match self.slot.upgrade()?.serving() {
            Serving::Own => None,
            Serving::Spare(spare) => self.spares.get(spare).cloned(),
        }
    }

    /// Takes note of who can be read at `now`, and says what follows.
    fn remedy(&self, serving: Serving, now: Instant) -> Remedy {
        let mut state = self.state();
        if self.own.is_readable() {
            state.unreadable_since = None;
            state.is_stuck = false;
            let since = *state.readable_since.get_or_insert(now);
            return match serving != Serving::Own && now - since >= BACK_AFTER {
                true => Remedy::Undo,
                false => Remedy::Nothing,
            };
        }
        state.readable_since = None;
        let dead_since = *state.unreadable_since.get_or_insert(now);
        let since = match serving {
            Serving::Own => dead_since,
            Serving::Spare(spare) if self.of_spares[spare].is_readable() => {
                state.spare_unreadable_since = None;
                return Remedy::Nothing;
            }
            Serving::Spare(_) => *state.spare_unreadable_since.get_or_insert(now),
        };
        match now - since >= self.after && now - self.made >= AGE_MIN {
            true => Remedy::Replace,
            false => Remedy::Nothing,
        }
    }

    /// The spares that are left alone for now.
    fn refused(&self) -> BTreeSet<usize> {
        let mut state = self.state();
        state.refused.retain(|_, at| at.elapsed() < REFUSED_WAIT);
        state.refused.keys().copied().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
