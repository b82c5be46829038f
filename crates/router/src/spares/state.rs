//! One server's position in a pool: whether the server and its spares are readable, and the next action that follows.

use super::prepare::{self, MARK_INTERVAL};
use crate::timeouts::READY_MAX;
use lookaside_client::{ReadabilityObserver, TkoTrackers};
use lookaside_routing::{Address, Pool, Serving, Slot};
use lookaside_sync::Mutex;
use lookaside_telemetry::OnChange;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// How long a server must have been readable to serve again: one that has just answered a probe, or whose state was
/// lost in a reload, may fail again at once.
const BACK_AFTER: Duration = Duration::from_secs(1);
/// How old a position must be before a spare serves it: threads replace their trees one by one, and each must delete
/// at the spare by then.
const AGE_MIN: Duration = READY_MAX.saturating_add(Duration::from_secs(1));
/// How long a spare that could not be prepared is not tried again.
const REFUSED_WAIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Position {
    pub(super) pool: String,
    /// The index of the server in the pool.
    pub(super) index: usize,
    pub(super) server: Address,
    pub(super) spares: Vec<Address>,
    pub(super) spare_after: Duration,
    /// The mark of spares that were flushed for this pool.
    pub(super) mark: String,
    /// Held by the trees that have this position.
    pub(super) slot: Weak<Slot>,
    server_observer: ReadabilityObserver,
    spare_observers: Vec<ReadabilityObserver>,
    created_at: Instant,
    /// A configuration has removed one of its spares.
    pub(super) is_removed: AtomicBool,
    /// Whether a [`BusyPosition`] exists.
    is_busy: AtomicBool,
    state: Mutex<PositionState>,
}

/// A position that is being checked. It is not checked again before this is dropped.
#[derive(Debug)]
pub(super) struct BusyPosition(Arc<Position>);

impl BusyPosition {
    pub(super) fn position(&self) -> &Position {
        &self.0
    }
}

impl Drop for BusyPosition {
    fn drop(&mut self) {
        self.0.state().preparing = None;
        self.0.is_busy.store(false, Relaxed);
    }
}

#[derive(Debug, Default)]
pub(super) struct PositionState {
    /// Since when the server has been unreadable. `None` if it is readable.
    unreadable_since: Option<Instant>,
    /// Since when the server has been readable. `None` if it is not.
    readable_since: Option<Instant>,
    /// Since when the serving spare has been unreadable. `None` if it is readable.
    pub(super) spare_unreadable_since: Option<Instant>,
    /// When the serving spare was last marked.
    pub(super) marked_at: Option<Instant>,
    /// The spare that is being prepared, which no other position may choose. `None` if there is none.
    pub(super) preparing: Option<usize>,
    /// Whether the server is unreadable and no spare can serve.
    pub(super) lacks_spare: OnChange<bool>,
    /// Spares that could not be prepared, and when.
    refused: BTreeMap<usize, Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// Let a spare serve.
    Replace,
    /// Let the server itself serve again.
    Restore,
}

impl Position {
    pub(super) fn new(pool: &Pool, index: usize, slot: &Arc<Slot>, tko_trackers: &Arc<TkoTrackers>) -> Position {
        let observe = |address| tko_trackers.observe(address);
        let server = &pool.servers[index];
        Position {
            pool: pool.name.clone(),
            index,
            server: server.clone(),
            spares: pool.spares.clone(),
            spare_after: Duration::from_millis(pool.spare_after_ms),
            mark: prepare::mark_key(pool),
            slot: Arc::downgrade(slot),
            server_observer: observe(server),
            spare_observers: pool.spares.iter().map(observe).collect(),
            created_at: Instant::now(),
            is_removed: AtomicBool::new(false),
            is_busy: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// `None` if it is being checked already.
    pub(super) fn begin_check(self: &Arc<Self>) -> Option<BusyPosition> {
        (!self.is_busy.swap(true, Relaxed)).then(|| BusyPosition(self.clone()))
    }

    pub(super) fn is_removed(&self) -> bool {
        self.is_removed.load(Relaxed)
    }

    pub(super) fn matches(&self, pool: &Pool, index: usize) -> bool {
        self.pool == pool.name
            && self.index == index
            && self.server == pool.servers[index]
            && self.spares == pool.spares
            && self.spare_after == Duration::from_millis(pool.spare_after_ms)
            && self.mark == prepare::mark_key(pool)
    }

    /// The spare that serves it. `None` if the server does.
    pub(super) fn serving_spare(&self) -> Option<Address> {
        match self.slot.upgrade()?.serving() {
            Serving::Own => None,
            Serving::Spare(spare) => self.spares.get(spare).cloned(),
        }
    }

    /// The spare that is being prepared. `None` if there is none.
    pub(super) fn preparing_spare(&self) -> Option<Address> {
        self.state().preparing.and_then(|spare| self.spares.get(spare).cloned())
    }

    /// The serving spare if its mark is to be renewed now, which is recorded. `None` if not.
    pub(super) fn spare_to_mark(&self, serving: Serving) -> Option<usize> {
        let Serving::Spare(spare) = serving else { return None };
        let mut state = self.state();
        let is_due = state.marked_at.is_none_or(|at| at.elapsed() >= MARK_INTERVAL) && self.is_spare_readable(spare);
        is_due.then(|| {
            state.marked_at = Some(Instant::now());
            spare
        })
    }

    /// Whether a spare is neither TKO nor fenced.
    pub(super) fn is_spare_readable(&self, spare: usize) -> bool {
        self.spare_observers[spare].is_readable()
    }

    /// Records which servers are readable at `now`, and returns the action that follows.
    pub(super) fn next_action(&self, serving: Serving, now: Instant) -> Action {
        let mut state = self.state();
        if self.server_observer.is_readable() {
            state.unreadable_since = None;
            state.lacks_spare.update(false);
            let since = *state.readable_since.get_or_insert(now);
            return match serving != Serving::Own && now - since >= BACK_AFTER {
                true => Action::Restore,
                false => Action::Nothing,
            };
        }
        state.readable_since = None;
        let server_since = *state.unreadable_since.get_or_insert(now);
        let since = match serving {
            Serving::Own => server_since,
            Serving::Spare(spare) if self.is_spare_readable(spare) => {
                state.spare_unreadable_since = None;
                return Action::Nothing;
            }
            Serving::Spare(_) => *state.spare_unreadable_since.get_or_insert(now),
        };
        match now - since >= self.spare_after && now - self.created_at >= AGE_MIN {
            true => Action::Replace,
            false => Action::Nothing,
        }
    }

    /// Records that a spare could not be prepared. True if that is to be logged: no outage of all spares was.
    pub(super) fn refuse_spare(&self, spare: usize) -> bool {
        let mut state = self.state();
        state.refused.insert(spare, Instant::now());
        !*state.lacks_spare.value()
    }

    /// The spares that are not tried for now.
    pub(super) fn refused_spares(&self) -> BTreeSet<usize> {
        let mut state = self.state();
        state.refused.retain(|_, at| at.elapsed() < REFUSED_WAIT);
        state.refused.keys().copied().collect()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, PositionState> {
        self.state.lock()
    }
}
