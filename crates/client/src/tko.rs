//! TKO ("technical knock-out"): which servers have failed and are not sent requests. One state per server address and
//! process, shared by all destinations at that address, on every thread. Serves every path; §3.3 of the paper.
//!
//! A state per thread would be wrong: after a partition one thread could read a server for which another still refuses
//! deletes, and serve stale values.
//!
//! ```text
//!   one word    | TKO count : 62 bits | 0 up, 1 soft TKO, 2 or 3 hard TKO: connecting failed, or took too long |
//!
//!   destination A   sees up, count 7      marks it TKO: 8, hard   probes ...   answered: up, count 8
//!   destination B   connected at 7        refuses                              makes a new connection: 7 is not 8
//! ```
//!
//! Invariants:
//! * The destination that marks a server TKO probes it, and only that one clears the state. If it is dropped, the
//!   server counts as up until another destination fails to connect: TKO for ever would be worse.
//! * Only evidence newer than the last TKO marks a server: requests and connections from an earlier epoch do not count.
//!   A compare-and-swap picks one of the destinations that see the same outage.
//! * A connection from before a TKO is not used after it: it may stay silent for minutes.
//!
//! State changes wake no task: a task reads the word when it gets a batch. So a get costs one atomic load and no
//! lock, and a simulation has no order of wake-ups to fix.
//!
//! **Fail open.** When many servers of a pool fail at once, the cause is rather this host's network or a short timeout,
//! and giving them up would send the whole load to the gutter or the databases. With a [`PoolTkoLimit`], no further
//! server is marked from `enter` TKO servers on, until at most `exit` are left. TKO servers stay so until a probe is
//! answered.

use lookaside_routing::{Address, TkoReason};
use lookaside_sync::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

const STATE_BITS: u32 = 2;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const UP: u64 = 0;
const SOFT_TKO: u64 = 1;
const HARD_TKO: u64 = 2;
const HARD_TKO_BY_TIMEOUT: u64 = 3;

/// The TKO state of every server that a process reaches. Destinations that are made with it
/// ([`crate::DestinationOptions::tko_trackers`]) share the state of their address.
#[derive(Debug, Default)]
pub struct TkoTrackers {
    trackers: Mutex<BTreeMap<Address, Weak<TkoTracker>>>,
    /// Locked before `trackers`, if both are.
    pool_limits: Mutex<BTreeMap<String, (PoolTkoLimit, IsFailOpen)>>,
}

/// Whether a pool has reached its limit.
type IsFailOpen = bool;

/// How many servers of a pool may be TKO at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolTkoLimit {
    /// The pool's servers.
    pub servers: Vec<Address>,
    /// With this many TKO servers no further one is marked,
    pub enter: usize,
    /// until at most this many are TKO.
    pub exit: usize,
}

impl TkoTrackers {
    /// No servers yet.
    pub fn new() -> Arc<TkoTrackers> {
        Arc::default()
    }

    /// Walks over all trackers: only for when destinations are made.
    pub(crate) fn tracker(&self, address: &Address) -> Arc<TkoTracker> {
        let mut trackers = self.trackers.lock();
        trackers.retain(|_, tracker| tracker.strong_count() > 0);
        let known = trackers.get(address).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let tracker = Arc::<TkoTracker>::default();
            trackers.insert(address.clone(), Arc::downgrade(&tracker));
            tracker
        })
    }

    /// The servers that destinations, fences or observers exist for and that `has` holds for.
    pub(crate) fn servers_that(&self, has: impl Fn(&TkoTracker) -> bool) -> BTreeSet<Address> {
        let trackers = self.trackers.lock();
        let existing = trackers.iter().filter_map(|(address, tracker)| Some((address, tracker.upgrade()?)));
        existing.filter(|(_, tracker)| has(tracker)).map(|(address, _)| address.clone()).collect()
    }

    /// An observer of whether the server at `address` can be read.
    pub fn observe(&self, address: &Address) -> ReadabilityObserver {
        ReadabilityObserver(self.tracker(address))
    }

    /// Sets the limits of all pools, by their names. Pools that are not named have none.
    pub fn set_pool_limits(&self, limits: impl IntoIterator<Item = (String, PoolTkoLimit)>) {
        let mut known = self.pool_limits.lock();
        let was_open = |name: &String| known.get(name).is_some_and(|(_, is_open)| *is_open);
        let limits = limits.into_iter().map(|(name, limit)| {
            let is_open = was_open(&name);
            (name, (limit, is_open))
        });
        *known = limits.collect();
    }

    /// The pools that have reached their limit.
    pub fn fail_open_pools(&self) -> Vec<String> {
        let mut limits = self.pool_limits.lock();
        limits.iter_mut().filter_map(|(name, limit)| self.update_fail_open(name, limit).then(|| name.clone())).collect()
    }

    /// As [`TkoTracker::mark_tko`]; false also if a pool of the server has reached its limit.
    pub(crate) fn mark_tko(&self, address: &Address, tracker: &TkoTracker, epoch: TkoEpoch, reason: TkoReason) -> bool {
        // Held to the end, so that of many servers that fail at once no more than the limit are marked.
        let mut limits = self.pool_limits.lock();
        for (name, limit) in limits.iter_mut().filter(|(_, (limit, _))| limit.servers.contains(address)) {
            if self.update_fail_open(name, limit) {
                return false;
            }
        }
        tracker.mark_tko(epoch, reason)
    }

    /// Servers that are hard TKO, and servers that are soft TKO.
    pub(crate) fn totals(&self) -> (usize, usize) {
        let tko = self.servers_that(TkoTracker::is_tko).len();
        let hard = self.servers_that(TkoTracker::is_hard_tko).len();
        (hard, tko.saturating_sub(hard))
    }

    fn update_fail_open(&self, name: &str, (limit, is_open): &mut (PoolTkoLimit, IsFailOpen)) -> IsFailOpen {
        let is_tko = |address: &&Address| self.find_tracker(address).is_some_and(|tracker| tracker.is_tko());
        let tko = limit.servers.iter().filter(is_tko).count();
        let was_open = *is_open;
        *is_open = if was_open { tko > limit.exit } else { tko >= limit.enter };
        match (was_open, *is_open) {
            (false, true) => tracing::error!(
                pool = name,
                tko,
                "pool reached its TKO limit: further servers stay in use; check this host's network"
            ),
            (true, false) => tracing::info!(pool = name, tko, "pool is below its TKO limit again"),
            _ => {}
        }
        *is_open
    }

    fn find_tracker(&self, address: &Address) -> Option<Arc<TkoTracker>> {
        self.trackers.lock().get(address).and_then(Weak::upgrade)
    }
}

/// The TKO state of one server, and whether it is fenced ([`crate::Fence`]).
#[derive(Debug, Default)]
pub(crate) struct TkoTracker {
    word: AtomicU64,
    is_fenced: AtomicBool,
    /// `None` if the server is not fenced.
    fenced_since: Mutex<Option<Instant>>,
}

/// Tells whether a server can be read. While it exists, the server's TKO state is kept.
#[derive(Clone, Debug)]
pub struct ReadabilityObserver(Arc<TkoTracker>);

impl ReadabilityObserver {
    /// Whether the server is neither TKO nor fenced.
    pub fn is_readable(&self) -> bool {
        !self.0.is_tko() && !self.0.is_fenced()
    }
}

/// The word of a server that was up: proof of how often it had been TKO, and that it was not TKO then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TkoEpoch(u64);

impl TkoEpoch {
    pub(crate) fn was_tko(self) -> bool {
        self.0 >> STATE_BITS > 0
    }
}

impl TkoTracker {
    /// The current epoch; `None` while the server is TKO.
    pub(crate) fn epoch(&self) -> Option<TkoEpoch> {
        let word = self.word.load(Ordering::Acquire);
        (word & STATE_MASK == UP).then_some(TkoEpoch(word))
    }

    pub(crate) fn is_tko(&self) -> bool {
        self.epoch().is_none()
    }

    pub(crate) fn is_hard_tko(&self) -> bool {
        self.word.load(Ordering::Acquire) & STATE_MASK >= HARD_TKO
    }

    /// Why the server may not be sent all requests; `None` if it may.
    pub(crate) fn reason(&self) -> Option<TkoReason> {
        match self.word.load(Ordering::Acquire) & STATE_MASK {
            SOFT_TKO => Some(TkoReason::TimedOut),
            HARD_TKO => Some(TkoReason::ConnectFailed),
            HARD_TKO_BY_TIMEOUT => Some(TkoReason::ConnectTimedOut),
            _ => self.is_fenced().then_some(TkoReason::Fenced),
        }
    }

    /// Whether the server has been up ever since `epoch`.
    pub(crate) fn is_current(&self, epoch: TkoEpoch) -> bool {
        self.word.load(Ordering::Acquire) == epoch.0
    }

    /// Marks the server TKO on evidence from `epoch`. True if this call did it: then its caller must probe the server.
    pub(crate) fn mark_tko(&self, epoch: TkoEpoch, reason: TkoReason) -> bool {
        let state = match reason {
            TkoReason::TimedOut | TkoReason::Fenced => SOFT_TKO,
            TkoReason::ConnectFailed => HARD_TKO,
            TkoReason::ConnectTimedOut => HARD_TKO_BY_TIMEOUT,
        };
        let tko = epoch.0 + (1 << STATE_BITS) + state;
        self.word.compare_exchange(epoch.0, tko, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Only for the destination that marked the server.
    pub(crate) fn clear_tko(&self) -> TkoEpoch {
        let up = self.word.load(Ordering::Acquire) & !STATE_MASK;
        self.word.store(up, Ordering::Release);
        TkoEpoch(up)
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::SeqCst)
    }

    pub(crate) fn set_fenced(&self, is_fenced: bool) {
        let was_fenced = self.is_fenced.swap(is_fenced, Ordering::SeqCst);
        if !is_fenced {
            *self.fenced_since.lock() = None;
        } else if !was_fenced {
            *self.fenced_since.lock() = Some(Instant::now());
        }
    }

    /// How long the server has been fenced; zero if it is not. Takes a lock: for statistics, not for requests.
    pub(crate) fn fenced_for(&self) -> Duration {
        self.fenced_since.lock().map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_many_that_see_an_outage_marks_the_server() {
        let tracker = TkoTracker::default();
        let first = tracker.epoch().expect("up at first");
        assert!(tracker.mark_tko(first, TkoReason::ConnectFailed));
        assert!(!tracker.mark_tko(first, TkoReason::TimedOut), "it is TKO already");
        assert!(tracker.is_tko() && tracker.is_hard_tko());
        assert_eq!(tracker.reason(), Some(TkoReason::ConnectFailed));
        let second = tracker.clear_tko();
        assert_eq!(tracker.epoch(), Some(second));
        assert!(!tracker.mark_tko(first, TkoReason::TimedOut), "evidence from before the TKO is old");
        assert!(!tracker.is_current(first) && tracker.is_current(second));
        assert!(tracker.mark_tko(second, TkoReason::TimedOut));
        assert!(tracker.is_tko() && !tracker.is_hard_tko());
        assert_eq!(tracker.reason(), Some(TkoReason::TimedOut));
        let third = tracker.clear_tko();
        assert!(tracker.mark_tko(third, TkoReason::ConnectTimedOut) && tracker.is_hard_tko());
        assert_eq!(tracker.reason(), Some(TkoReason::ConnectTimedOut));
        tracker.clear_tko();
        assert_eq!(tracker.reason(), None);
        tracker.set_fenced(true);
        assert_eq!(tracker.reason(), Some(TkoReason::Fenced));
    }

    #[test]
    fn pool_never_has_more_tko_servers_than_its_limit() {
        let trackers = TkoTrackers::new();
        let servers: Vec<Address> = (0..4).map(|server| Address(format!("s{server}:1").into())).collect();
        let limit = |enter, exit| ("A".to_owned(), PoolTkoLimit { servers: servers.clone(), enter, exit });
        trackers.set_pool_limits([limit(2, 0)]);
        let held: Vec<_> = servers.iter().map(|address| trackers.tracker(address)).collect();
        let mark_tko = |server: usize| {
            let epoch = held[server].epoch().expect("up");
            trackers.mark_tko(&servers[server], &held[server], epoch, TkoReason::ConnectFailed)
        };
        assert_eq!([0, 1, 2, 3].map(mark_tko), [true, true, false, false]);
        assert!(!held[2].is_tko() && trackers.fail_open_pools() == ["A"]);
        held[0].clear_tko();
        assert!(!mark_tko(2), "one is TKO, and the pool fails open until none is");
        held[1].clear_tko();
        assert!(trackers.fail_open_pools().is_empty() && mark_tko(2));
        assert!(mark_tko(3) && !mark_tko(0), "the limit holds again");
        trackers.set_pool_limits([limit(2, 0)]);
        assert!(!mark_tko(0), "also after a change of the configuration");
        trackers.set_pool_limits([]);
        assert!(mark_tko(0), "unless the change removes the limit");
    }

    #[test]
    fn address_has_one_tracker_for_as_long_as_a_handle_exists() {
        let trackers = TkoTrackers::new();
        let [here, there] = ["here:1", "there:1"].map(|address| Address(address.into()));
        let first = trackers.tracker(&here);
        assert!(Arc::ptr_eq(&first, &trackers.tracker(&here)));
        assert!(!Arc::ptr_eq(&first, &trackers.tracker(&there)));
        drop(first);
        trackers.tracker(&there);
        assert_eq!(trackers.trackers.lock().len(), 1, "the first has no handle left");
    }
}
