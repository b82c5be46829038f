//! Whether a server may be sent to, as a whole process sees it: what `Health` finds out about one connection, shared by
//! all destinations with the same address, on whatever thread. Serves every path; §3.3 of the paper.
//!
//! Were it each thread's own, then after a partition one thread would serve what the server still holds, while another
//! refuses the invalidator's deletes for as long as its own next probe is away: stale, and for long. As it is, gets and
//! deletes find a server back at the same moment.
//!
//! ```text
//!   one word    | removals so far : 62 bits | 0 up, 1 out (soft), 2 out (hard) |
//!
//!   destination A   sees up, 7 removals   takes it out: 8, hard   probes ...   answered: up, 8
//!   destination B   connected at 7        refuses                              connects anew: 7 is not 8
//! ```
//!
//! Invariants:
//! * Who takes the server out is the one who probes it, and the only one who can bring it back. If it is dropped
//!   meanwhile, the server is up until somebody fails to connect: out for ever would be worse.
//! * A removal needs evidence that is newer than the removal before: what was sent, or begun, before that counts no
//!   more. So a compare-and-swap decides, and at most one of many who see the same outage wins.
//! * A connection from before a removal is not used after it: it may be silent for minutes.
//!
//! Nobody is woken: a task acts when it gets a batch, and reads the word then. So it costs a get one atomic load, takes
//! no lock, and a simulation has no order of waking to fix.
//!
//! Beside the word stands a **fence**: the server owes deletes, which somebody else ([`Fence`]) sees to. It is a reason
//! of its own not to be read: a probe that is answered brings the server back up, and does not lower the fence.
//!
//! **Fail open.** When many servers of a pool seem dead at once, it is rather this host's network, or a timeout that is too
//! short, and to give them all up would send the whole load to the gutter or the databases. So a pool may bound how
//! many are taken out ([`PoolTkoLimit`]): from `enter` on no further one is, until no more than `exit` are out. Those that are
//! out stay out until a probe is answered.

use lookaside_routing::{Address, HealthChange};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

const STATE_BITS: u32 = 2;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const UP: u64 = 0;
const OUT_SOFT: u64 = 1;
const OUT_HARD: u64 = 2;

/// The standing of every server that one process reaches. A destination that is made with it
/// ([`crate::DestinationOptions::tko_trackers`]) shares what it learns with all others at its address.
#[derive(Debug, Default)]
pub struct TkoTrackers {
    servers: Mutex<BTreeMap<Address, Weak<TkoTracker>>>,
    /// Locked before `servers`, where both are.
    bounds: Mutex<BTreeMap<String, (PoolTkoLimit, IsOpen)>>,
}

/// Whether a pool has so many servers out that no more are taken out.
type IsOpen = bool;

/// How many servers of a pool may be out at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolTkoLimit {
    /// The pool's servers.
    pub servers: Vec<Address>,
    /// When so many are out, no further one is taken out.
    pub enter: usize,
    /// Until no more than so many are.
    pub exit: usize,
}

impl TkoTrackers {
    /// None known yet.
    pub fn new() -> Arc<TkoTrackers> {
        Arc::default()
    }

    /// The standing of the server at `address`. Costs a walk over all servers: for when destinations are made.
    pub(crate) fn of(&self, address: &Address) -> Arc<TkoTracker> {
        // Nothing panics under the lock; if it did, the map is still whole.
        let mut tko_trackers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        tko_trackers.retain(|_, standing| standing.strong_count() > 0);
        let kept = tko_trackers.get(address).and_then(Weak::upgrade);
        kept.unwrap_or_else(|| {
            let standing = Arc::<TkoTracker>::default();
            tko_trackers.insert(address.clone(), Arc::downgrade(&standing));
            standing
        })
    }

    /// Whether the server at `address` can be read, for one who does not.
    pub fn observe(&self, address: &Address) -> Observer {
        Observer(self.of(address))
    }

    /// From now on these pools, by their names, bound how many of their servers are out, and no others.
    pub fn bound(&self, bounds: impl IntoIterator<Item = (String, PoolTkoLimit)>) {
        let mut known = self.bounds();
        let was_open = |name: &String| known.get(name).is_some_and(|(_, is_open)| *is_open);
        let bounds = bounds.into_iter().map(|(name, bound)| {
            let is_open = was_open(&name);
            (name, (bound, is_open))
        });
        *known = bounds.collect();
    }

    /// The pools that have so many servers out that no more are taken out.
    pub fn fail_open_pools(&self) -> Vec<String> {
        let mut bounds = self.bounds();
        bounds.iter_mut().filter_map(|(name, bound)| self.is_open(name, bound).then(|| name.clone())).collect()
    }

    /// As [`TkoTracker::take_out`], but not where the server's pool has too many out already.
    pub(crate) fn take_out(&self, address: &Address, standing: &TkoTracker, up: Up, change: HealthChange) -> bool {
        // Held to the end, so that of many servers that die at once no more than the bound are taken out.
        let mut bounds = self.bounds();
        for (name, bound) in bounds.iter_mut().filter(|(_, (bound, _))| bound.servers.contains(address)) {
            if self.is_open(name, bound) {
                return false;
            }
        }
        standing.take_out(up, change)
    }

    fn is_open(&self, name: &str, (bound, is_open): &mut (PoolTkoLimit, IsOpen)) -> IsOpen {
        let is_out = |address: &&Address| self.known(address).is_some_and(|standing| standing.is_out());
        let out = bound.servers.iter().filter(is_out).count();
        let was_open = *is_open;
        *is_open = if was_open { out > bound.exit } else { out >= bound.enter };
        match (was_open, *is_open) {
            (false, true) => tracing::error!(
                pool = name,
                out,
                "so many servers of the pool are taken out that no more will be; is it this host's network?"
            ),
            (true, false) => tracing::info!(pool = name, out, "servers of the pool are taken out again when they fail"),
            _ => {}
        }
        *is_open
    }

    fn known(&self, address: &Address) -> Option<Arc<TkoTracker>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner).get(address).and_then(Weak::upgrade)
    }

    fn bounds(&self) -> MutexGuard<'_, BTreeMap<String, (PoolTkoLimit, IsOpen)>> {
        self.bounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What keeps the server at `address` from being read, lowered at first. While it is held, it is the same for all
    /// destinations at the address, those made later included.
    pub fn fence(&self, address: &Address) -> Fence {
        Fence(self.of(address))
    }
}

/// One server's.
#[derive(Debug, Default)]
pub(crate) struct TkoTracker {
    word: AtomicU64,
    is_fenced: AtomicBool,
    fenced_since: Mutex<Option<Instant>>,
}

/// Keeps a server from being read or filled while it owes deletes. Destinations behind a raised fence refuse all but
/// batches that only delete, with [`Failure::Tko`](lookaside_routing::Failure::TakenOut).
///
/// A request that was handed in before the fence was raised may still be answered: it is older than whatever is
/// acknowledged once the fence is up.
#[derive(Clone, Debug)]
pub struct Fence(Arc<TkoTracker>);

impl Fence {
    /// From now on no destination in this process sends the server a read or an update.
    pub fn raise(&self) {
        if !self.0.is_fenced.swap(true, Ordering::SeqCst) {
            *self.0.fenced_since() = Some(Instant::now());
        }
    }

    /// The server owes nothing more.
    pub fn lower(&self) {
        self.0.is_fenced.store(false, Ordering::SeqCst);
        *self.0.fenced_since() = None;
    }

    /// Whether the server owes deletes.
    pub fn is_raised(&self) -> bool {
        self.0.is_fenced()
    }
}

/// Sees whether a server can be read. While it is held, the server's standing is the same for all destinations.
#[derive(Clone, Debug)]
pub struct Observer(Arc<TkoTracker>);

impl Observer {
    /// Whether the server is neither taken out nor owes deletes.
    pub fn is_readable(&self) -> bool {
        !self.0.is_out() && !self.0.is_fenced()
    }
}

/// That the server was up, and how often it had been taken out before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Up(u64);

impl Up {
    /// Whether the server has ever been taken out.
    pub(crate) fn is_after_removal(self) -> bool {
        self.0 >> STATE_BITS > 0
    }
}

impl TkoTracker {
    /// How long the server has been fenced off; nothing if it is not. For who looks on: no request asks.
    pub(crate) fn fenced_for(&self) -> Duration {
        self.fenced_since().map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn fenced_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.fenced_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the server owes deletes.
    pub(crate) fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::SeqCst)
    }

    /// `None` while the server is out.
    pub(crate) fn up(&self) -> Option<Up> {
        let word = self.word.load(Ordering::Acquire);
        (word & STATE_MASK == UP).then_some(Up(word))
    }

    pub(crate) fn is_out(&self) -> bool {
        self.up().is_none()
    }

    /// Out because a connection could not be made.
    pub(crate) fn is_out_hard(&self) -> bool {
        self.word.load(Ordering::Acquire) & STATE_MASK == OUT_HARD
    }

    /// Whether the server has been up ever since.
    pub(crate) fn is_still(&self, up: Up) -> bool {
        self.word.load(Ordering::Acquire) == up.0
    }

    /// Takes the server out on evidence that was gathered since `up`. True for the one who did: he must probe it.
    pub(crate) fn take_out(&self, up: Up, change: HealthChange) -> bool {
        let state = if change == HealthChange::HardTko { OUT_HARD } else { OUT_SOFT };
        let out = up.0 + (1 << STATE_BITS) + state;
        self.word.compare_exchange(up.0, out, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Brings the server back. Only for the one who took it out.
    pub(crate) fn bring_back(&self) -> Up {
        let up = self.word.load(Ordering::Acquire) & !STATE_MASK;
        self.word.store(up, Ordering::Release);
        Up(up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_many_who_see_an_outage_takes_the_server_out() {
        let standing = TkoTracker::default();
        let seen = standing.up().expect("up at first");
        assert!(standing.take_out(seen, HealthChange::HardTko));
        assert!(!standing.take_out(seen, HealthChange::SoftTko), "somebody has already");
        assert!(standing.is_out() && standing.is_out_hard());
        let back = standing.bring_back();
        assert_eq!(standing.up(), Some(back));
        assert!(!standing.take_out(seen, HealthChange::SoftTko), "what was seen before it came back is old");
        assert!(!standing.is_still(seen) && standing.is_still(back));
        assert!(standing.take_out(back, HealthChange::SoftTko));
        assert!(standing.is_out() && !standing.is_out_hard());
    }

    #[test]
    fn of_a_pool_whose_servers_all_die_no_more_are_taken_out_than_its_bound() {
        let tko_trackers = TkoTrackers::new();
        let servers: Vec<Address> = (0..4).map(|server| Address(format!("s{server}:1").into())).collect();
        let bound = |enter, exit| ("A".to_owned(), PoolTkoLimit { servers: servers.clone(), enter, exit });
        tko_trackers.bound([bound(2, 0)]);
        let held: Vec<_> = servers.iter().map(|address| tko_trackers.of(address)).collect();
        let take_out = |server: usize| {
            let up = held[server].up().expect("up");
            tko_trackers.take_out(&servers[server], &held[server], up, HealthChange::HardTko)
        };
        assert_eq!([0, 1, 2, 3].map(take_out), [true, true, false, false]);
        assert!(!held[2].is_out() && tko_trackers.fail_open_pools() == ["A"]);
        held[0].bring_back();
        assert!(!take_out(2), "one is out, and it closes only at none");
        held[1].bring_back();
        assert!(tko_trackers.fail_open_pools().is_empty() && take_out(2));
        assert!(take_out(3) && !take_out(0), "from the beginning");
        tko_trackers.bound([bound(2, 0)]);
        assert!(!take_out(0), "also over a change of the configuration");
        tko_trackers.bound([]);
        assert!(take_out(0), "unless that takes the bound away");
    }

    #[test]
    fn a_fence_is_one_for_an_address_and_no_probe_lowers_it() {
        let tko_trackers = TkoTrackers::new();
        let address = Address("here:1".into());
        let fence = tko_trackers.fence(&address);
        let standing = tko_trackers.of(&address);
        assert!(!standing.is_fenced());
        fence.raise();
        assert!(standing.is_fenced() && !standing.is_out(), "two reasons, each for itself");
        let seen = standing.up().expect("up");
        assert!(standing.take_out(seen, HealthChange::HardTko));
        standing.bring_back();
        assert!(standing.is_fenced());
        drop(standing);
        assert!(tko_trackers.fence(&address).is_raised(), "who holds the fence keeps it");
        fence.lower();
        assert!(!tko_trackers.of(&address).is_fenced());
    }

    #[test]
    fn an_address_has_one_standing_for_as_long_as_somebody_holds_it() {
        let tko_trackers = TkoTrackers::new();
        let [here, there] = ["here:1", "there:1"].map(|address| Address(address.into()));
        let first = tko_trackers.of(&here);
        assert!(Arc::ptr_eq(&first, &tko_trackers.of(&here)));
        assert!(!Arc::ptr_eq(&first, &tko_trackers.of(&there)));
        drop(first);
        tko_trackers.of(&there);
        assert_eq!(tko_trackers.servers.lock().unwrap().len(), 1, "nobody holds the first");
    }
}
