//! What routes need of the world and may not take by themselves: time, a place for work that outlives its caller,
//! chance, and somewhere to log to. All of it is handed in, so that the simulation runs the same routes on its own
//! clock.
//!
//! **Background work.** Some routes answer before all their children have: the others must go on even if the caller's
//! future is dropped, since a client that hangs up has no say in whether a copy is deleted. So that work is handed to a
//! [`Spawner`], and counted: at most [`BACKGROUND_TASKS_MAX`] batches at a time. Where there is no place left,
//!
//! * work that changes what a cache holds (`AllAsyncRoute`, `AllInitialRoute`, `AllFastestRoute`, `AllMajorityRoute`)
//!   is awaited by its caller: slower, and dropped with a caller that was not answered yet, who so knows nothing of it;
//! * copies that nobody relies on (shadows, fills of a cache in front of another) are left out and counted.
//!
//! A task counts until it ends or its spawner drops it. Without a spawner there is never a place, so everything is
//! awaited: that is how a tree is traced.

use crate::BoxFuture;
use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// Batches in the background at a time, for what shares one [`Background`]. Above it, callers wait and shadows are left
/// out.
pub const BACKGROUND_TASKS_MAX: usize = 1_000;

/// Time, and waiting for it.
pub trait Clock: Send + Sync {
    /// How long since some fixed moment; never runs backwards.
    fn now(&self) -> Duration;
    /// The wall clock, in seconds since 1970.
    fn unix_s(&self) -> u64;
    /// Done when `duration` has passed.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Runs futures to their end, whoever asked for them.
pub trait Spawner: Send + Sync {
    /// Runs `task` until it is done.
    fn spawn(&self, task: BoxFuture<'static, ()>);
}

/// Where lines go that `LoggingRoute` writes.
pub trait Log: Send + Sync {
    /// Takes one line, without its end.
    fn line(&self, line: &str);
}

/// The world as one tree of routes sees it.
#[derive(Clone)]
pub struct Environment {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// A place for work that outlives its caller.
    pub background: Background,
    /// Where lines go.
    pub log: Arc<dyn Log>,
    /// What chance is drawn from.
    pub seed: u64,
    /// Tells this host from others: `HostIdRoute` and its like spread hosts over children by it.
    pub host_id: u32,
}

impl Environment {
    /// A world in which no time passes and nothing stays behind: everything is awaited by its caller, at once.
    pub fn none() -> Self {
        let nothing = Arc::new(Nothing);
        Environment { clock: nothing.clone(), background: Background::none(), log: nothing, seed: 0, host_id: 0 }
    }
}

struct Nothing;

impl Clock for Nothing {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn unix_s(&self) -> u64 {
        0
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(ready(()))
    }
}

impl Log for Nothing {
    fn line(&self, _: &str) {}
}

/// A bounded number of tasks that outlive their callers.
#[derive(Clone)]
pub struct Background(Arc<Tasks>);

#[derive(Default)]
struct Tasks {
    spawner: Option<Arc<dyn Spawner>>,
    running: AtomicUsize,
    running_max: usize,
    fan_outs: AtomicU64,
    copies: AtomicU64,
    awaited: AtomicU64,
    dropped: AtomicU64,
}

/// What a background has had to do since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackgroundStatistics {
    /// Tasks that are not done yet.
    pub running: usize,
    /// Batches of several children of which some went on when their caller had its answer.
    pub fan_outs: u64,
    /// Copies that nobody waited for: shadows, fills of a cache in front of another.
    pub copies: u64,
    /// Batches whose caller had to wait, as there was no place.
    pub awaited: u64,
    /// Copies that were left out, as there was no place.
    pub dropped: u64,
}

impl Background {
    /// At most `running_max` tasks at a time, run by `spawner`.
    pub fn new(spawner: Arc<dyn Spawner>, running_max: usize) -> Self {
        Self::of(Some(spawner), running_max)
    }

    /// Room for nothing: callers wait.
    pub fn none() -> Self {
        Self::of(None, 0)
    }

    fn of(spawner: Option<Arc<dyn Spawner>>, running_max: usize) -> Self {
        Background(Arc::new(Tasks { spawner, running_max, ..Tasks::default() }))
    }

    /// What it has had to do.
    pub fn statistics(&self) -> BackgroundStatistics {
        let tasks = &self.0;
        BackgroundStatistics {
            running: self.running(),
            fan_outs: tasks.fan_outs.load(Relaxed),
            copies: tasks.copies.load(Relaxed),
            awaited: tasks.awaited.load(Relaxed),
            dropped: self.dropped(),
        }
    }

    /// Tasks that are not done yet.
    pub fn running(&self) -> usize {
        self.0.running.load(Relaxed)
    }

    /// Copies that were left out because there was no place, since the start.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Relaxed)
    }

    /// A place for one task that somebody relies on. Without one, the caller waits.
    pub(crate) fn try_permit(&self) -> Option<BackgroundPermit> {
        let permit = self.try_acquire();
        if permit.is_none() && self.0.spawner.is_some() {
            self.0.awaited.fetch_add(1, Relaxed);
        }
        permit
    }

    fn try_acquire(&self) -> Option<BackgroundPermit> {
        let running = self.0.running.fetch_add(1, Relaxed);
        let permit = BackgroundPermit(self.0.clone());
        (running < self.0.running_max).then_some(permit)
    }

    /// Runs a task that nobody relies on, or counts it as left out.
    pub(crate) fn spawn_or_drop(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self.try_acquire() {
            Some(permit) => {
                self.0.copies.fetch_add(1, Relaxed);
                permit.spawn(task);
            }
            None => {
                self.0.dropped.fetch_add(1, Relaxed);
            }
        }
    }
}

/// One task's place; given back when dropped.
pub(crate) struct BackgroundPermit(Arc<Tasks>);

impl BackgroundPermit {
    /// Runs what is left of a task that somebody relies on.
    pub(crate) fn spawn_rest(self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.fan_outs.fetch_add(1, Relaxed);
        self.spawn(task);
    }

    fn spawn(self, task: impl Future<Output = ()> + Send + 'static) {
        let Some(spawner) = self.0.spawner.clone() else { return };
        spawner.spawn(Box::pin(async move {
            let _permit = self;
            task.await;
        }));
    }
}

impl Drop for BackgroundPermit {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
    }
}

/// Numbers from a seed, for many threads (SplitMix64).
pub(crate) struct SharedRng(AtomicU64);

impl SharedRng {
    pub(crate) fn new(seed: u64) -> Self {
        SharedRng(AtomicU64::new(seed))
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&self, bound: usize) -> usize {
        let state = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ mixed >> 31) * bound as u128) >> 64) as usize
    }
}
