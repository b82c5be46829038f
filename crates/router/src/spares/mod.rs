//! Automated remediation (§3.3 of the paper): a spare replaces a server that is unreadable for long, until the server
//! is back. No request passes here; `routing`'s `SpareRoute` reads one word, the [`Slot`], which is written here.
//!
//! ```text
//!               unreadable for spare_after_ms                 the spare is flushed, if need be
//!   server  ------------------------------------>  choose  ------------------------------------->  spare serves
//!     ^                                               ^                                              |     |
//!     |                                               '---- the spare itself is unreadable for ------'     |
//!     '---- the server has been readable for a second -----------------------------------------------------'
//! ```
//!
//! A server is readable if it is neither TKO nor fenced: one with undelivered deletes is of no more use than one that
//! does not respond.
//!
//! Invariants, and what keeps them:
//! * No deleted value is read: every delete of the pool goes to the server and to all of its spares, whichever serves,
//!   and is acknowledged when each has applied or spooled it (`SpareRoute`, `spool`). So routers may disagree for a
//!   while on which servers are unreadable, and choose spares without an agreement.
//! * A server that returns is read only after its backlog was replayed: until then it is fenced.
//! * A spare may have values from before it was a spare of this pool, when it received no deletes. So it is flushed
//!   before it serves, unless the pool's mark shows that a router has flushed it since ([`prepare`]): another
//!   flush would only cost hits.
//! * A spare that a configuration removes from its pool receives no deletes once the former configuration is no longer
//!   covered ([ADR 012](../../../../docs/adr/012-resize.md)). So its mark is removed, and a router that saw that
//!   configuration does not trust the mark, should the pool get the spare back, until it has flushed the spare itself
//!   ([`trust`]).
//! * No spare serves a position before all threads have its tree ([`state`]): each of them must delete at the spare.
//!
//! * A spare that a configuration removes from its pool ceases to serve before any thread has a tree without it: the
//!   trees of other threads would read there what that one has deleted.
//!
//! Accepted: two routers that detect outages in different orders may choose different spares, and each warms its own.
//!
//! Deliberately absent: filling the spare from elsewhere. It warms like any cold server.
//!
//! Lock order: [`Spares::positions`], then [`Spares::marks`], then the table of TKO trackers in `client`, in which the
//! limits of pools are locked before the trackers. The state of a position is locked alone. Nothing is awaited under
//! any of them.

mod prepare;
mod state;
mod trust;

use futures_util::stream::{self, FuturesUnordered, StreamExt as _};
use lookaside_client::{Network, ServingSpare, TkoTrackers};
use lookaside_routing::{Address, BoxFuture, Pool, Serving, Slot, choose_spare};
use lookaside_sync::Mutex;
use lookaside_telemetry::SharedCounter;
use state::{Action, BusyPosition, Position};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use trust::MarkRegistry;

/// How often positions are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The most spares that are prepared, or whose marks are changed, at a time. Each takes at most a second.
const REQUESTS_MAX: usize = 64;

/// The positions of all pools with spares, in one process.
#[derive(Debug)]
pub struct Spares {
    tko_trackers: Arc<TkoTrackers>,
    positions: Mutex<Vec<Arc<Position>>>,
    marks: Mutex<MarkRegistry>,
    /// There is a new position.
    added: Notify,
    /// There may be marks to remove.
    configured: Notify,
    takeovers: SharedCounter,
    returns: SharedCounter,
    refusals: SharedCounter,
}

/// The counters and gauges of the spares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SparesStats {
    /// Spares that serve now: those that are readable.
    pub in_use: u64,
    /// How often a spare has replaced a server.
    pub takeovers: u64,
    /// How often a server has returned.
    pub returns: u64,
    /// How often a spare could not be prepared and was not used.
    pub refusals: u64,
}

impl Spares {
    /// No spare serves yet. `tko_trackers` are those of the destinations.
    pub fn new(tko_trackers: Arc<TkoTrackers>) -> Arc<Spares> {
        Arc::new(Spares {
            tko_trackers,
            positions: Mutex::default(),
            marks: Mutex::default(),
            added: Notify::new(),
            configured: Notify::new(),
            takeovers: SharedCounter::default(),
            returns: SharedCounter::default(),
            refusals: SharedCounter::default(),
        })
    }

    /// The slot of the position `index` of `pool`, the same for all trees. After a change of the pool a serving spare
    /// keeps serving if it is still one of its spares.
    pub(crate) fn slot(&self, pool: &Pool, index: usize) -> Arc<Slot> {
        let mut positions = self.positions.lock();
        positions.retain(|position| position.slot.strong_count() > 0);
        let same = positions.iter().find(|position| !position.is_removed() && position.matches(pool, index));
        if let Some(slot) = same.and_then(|position| position.slot.upgrade()) {
            return slot;
        }
        let server = &pool.servers[index];
        let before = positions.iter().filter(|position| position.pool == pool.name && position.server == *server);
        let mut serving = before.filter_map(|position| position.serving_spare());
        let spare = serving.find(|spare| self.marks.lock().is_trusted(&pool.name, spare));
        let slot = Arc::new(Slot::default());
        if let Some(spare) = spare.and_then(|spare| pool.spares.iter().position(|other| *other == spare)) {
            slot.serve(Serving::Spare(spare));
        }
        positions.push(Arc::new(Position::new(pool, index, &slot, &self.tko_trackers)));
        self.added.notify_one();
        slot
    }

    /// Sets the pools of a new configuration. Must be called before any tree is built from it, because a spare that the
    /// configuration removes misses deletes from then on: it ceases to serve here, on all trees.
    pub fn configure(&self, pools: BTreeMap<String, Arc<Pool>>) {
        for position in self.positions.lock().iter() {
            let is_leaving = |spare: &Address| !trust::has_spare(&pools, &position.pool, spare);
            if position.spares.iter().any(is_leaving) {
                position.is_removed.store(true, Relaxed);
            }
            if position.serving_spare().is_some_and(|spare| is_leaving(&spare))
                && let Some(slot) = position.slot.upgrade()
            {
                slot.serve(Serving::Own);
            }
        }
        self.marks.lock().set_pools(pools);
        self.configured.notify_one();
    }

    /// Checks all positions until it is dropped. One call at a time for each process.
    pub async fn run(&self, network: Arc<dyn Network>) {
        tokio::join!(self.check_positions(&*network), self.remove_marks(&*network));
    }

    /// A spare that does not reply delays only the position that it is prepared for.
    async fn check_positions(&self, network: &dyn Network) {
        let mut requests = FuturesUnordered::new();
        loop {
            let positions: Vec<_> = self.positions.lock().clone();
            if positions.is_empty() && requests.is_empty() {
                self.added.notified().await;
            }
            for position in positions.into_iter().filter(|position| !position.is_removed()) {
                if let Some(slot) = position.slot.upgrade()
                    && requests.len() < REQUESTS_MAX
                    && let Some(busy) = position.begin_check()
                {
                    requests.extend(self.check_position(busy, slot, network));
                }
            }
            let mut tick = pin!(sleep(CHECK_INTERVAL));
            loop {
                tokio::select! {
                    biased;
                    () = &mut tick => break,
                    Some(()) = requests.next(), if !requests.is_empty() => {}
                }
            }
        }
    }

    async fn remove_marks(&self, network: &dyn Network) {
        loop {
            let marks = self.marks.lock().take_marks_to_remove();
            // A failure is harmless: this router no longer trusts the mark.
            let remove = async |(spare, mark): (Address, String)| {
                let _ = prepare::remove_mark(network, &spare, &mark).await;
            };
            stream::iter(marks).for_each_concurrent(REQUESTS_MAX, remove).await;
            self.configured.notified().await;
        }
    }

    /// What the check of a position needs to ask of a spare; `None` if nothing.
    fn check_position<'a>(
        &'a self,
        busy: BusyPosition,
        slot: Arc<Slot>,
        network: &'a dyn Network,
    ) -> Option<BoxFuture<'a, ()>> {
        let position = busy.position();
        match position.next_action(slot.serving(), Instant::now()) {
            Action::Replace => Some(Box::pin(async move { self.replace_server(&busy, &slot, network).await })),
            Action::Nothing => {
                let spare = position.spare_to_mark(slot.serving())?;
                Some(Box::pin(async move {
                    let position = busy.position();
                    // A failure is harmless: at worst the spare is flushed once more.
                    let _ = prepare::renew_mark(network, &position.spares[spare], &position.mark).await;
                }))
            }
            Action::Restore => {
                slot.serve(Serving::Own);
                self.returns.add(1);
                position.state().spare_unreadable_since = None;
                tracing::info!(
                    pool = position.pool, server = %position.server,
                    "server is readable again and serves its keys; its spare is free"
                );
                None
            }
        }
    }

    /// Lets a spare serve the position, if one is free and can be prepared.
    async fn replace_server(&self, busy: &BusyPosition, slot: &Slot, network: &dyn Network) {
        let (position, now) = (busy.position(), slot.serving());
        loop {
            let used = self.spares_of_other_positions(position);
            let refused = position.refused_spares();
            let is_free = |spare: usize| {
                !refused.contains(&spare)
                    && now != Serving::Spare(spare)
                    && position.is_spare_readable(spare)
                    && !used.contains(&position.spares[spare])
            };
            let Some(spare) = choose_spare(position.index, position.spares.len(), is_free) else { break };
            let address = &position.spares[spare];
            position.state().preparing = Some(spare);
            let is_mark_trusted = self.marks.lock().is_trusted(&position.pool, address);
            match prepare::prepare(network, address, &position.mark, is_mark_trusted).await {
                // A new configuration came into force meanwhile.
                Ok(_) if position.is_removed() => return,
                Ok(was_flushed) => return self.put_into_service(position, slot, spare, was_flushed),
                Err(error) => {
                    self.refusals.add(1);
                    if position.refuse_spare(spare) {
                        tracing::warn!(pool = position.pool, spare = %address, %error, "cannot prepare a spare");
                    }
                }
            }
        }
        if position.state().lacks_spare.update(true) {
            tracing::error!(
                pool = position.pool, server = %position.server,
                "server unreadable for {:?} and no spare is free: requests for its keys fail, or go to the gutter",
                position.spare_after
            );
        }
    }

    fn put_into_service(&self, position: &Position, slot: &Slot, spare: usize, was_flushed: bool) {
        let address = &position.spares[spare];
        if was_flushed {
            self.marks.lock().trust(&position.pool, address);
        }
        slot.serve(Serving::Spare(spare));
        self.takeovers.add(1);
        let mut state = position.state();
        state.lacks_spare.update(false);
        state.spare_unreadable_since = None;
        state.marked_at = Some(Instant::now());
        tracing::warn!(
            pool = position.pool, server = %position.server, spare = %address, was_flushed,
            "server unreadable for {:?}: a spare serves its keys until it is back", position.spare_after
        );
    }

    fn spares_of_other_positions(&self, position: &Position) -> BTreeSet<Address> {
        let positions = self.positions.lock().clone();
        let is_other = |other: &&Arc<Position>| other.pool == position.pool && other.server != position.server;
        let in_use = |other: &Arc<Position>| [other.serving_spare(), other.preparing_spare()];
        positions.iter().filter(is_other).flat_map(in_use).flatten().collect()
    }

    /// A snapshot of the counters and gauges.
    pub fn statistics(&self) -> SparesStats {
        SparesStats {
            in_use: self.replacements_that(Position::is_spare_readable).len() as u64,
            takeovers: self.takeovers.value(),
            returns: self.returns.value(),
            refusals: self.refusals.value(),
        }
    }

    /// Each replaced server and its spare.
    pub fn replacements(&self) -> BTreeSet<(Address, Address)> {
        self.replacements_that(|_, _| true)
    }

    fn replacements_that(&self, counts: impl Fn(&Position, usize) -> bool) -> BTreeSet<(Address, Address)> {
        let replacement = |position: &Arc<Position>| match position.slot.upgrade()?.serving() {
            Serving::Spare(spare) if counts(position, spare) => {
                Some((position.server.clone(), position.spares.get(spare)?.clone()))
            }
            _ => None,
        };
        self.positions.lock().iter().filter_map(replacement).collect()
    }

    /// The positions that spares serve.
    pub(crate) fn serving(&self) -> BTreeSet<ServingSpare> {
        let serving = |position: &Arc<Position>| match position.slot.upgrade()?.serving() {
            Serving::Spare(spare) => Some(ServingSpare { pool: position.pool.clone(), server: position.index, spare }),
            Serving::Own => None,
        };
        self.positions.lock().iter().filter_map(serving).collect()
    }

    /// One line for each position that a spare serves.
    pub(crate) fn report(&self) -> String {
        let mut lines = String::new();
        for position in self.positions.lock().iter() {
            if let Some(spare) = position.serving_spare() {
                write!(lines, "{} {} replaced_by:{spare}\r\n", position.pool, position.server)
                    .expect("writing to a string does not fail");
            }
        }
        lines
    }
}

impl SparesStats {
    /// Every figure with its name in `stats`.
    pub fn entries(&self) -> [(&'static str, u64); 4] {
        [
            ("spares_in_use", self.in_use),
            ("spare_takeovers", self.takeovers),
            ("spare_returns", self.returns),
            ("spare_refusals", self.refusals),
        ]
    }
}
