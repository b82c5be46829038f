//! The environment of routes: time, background work, random numbers, and a log. All of it is handed in, so that the
//! simulation runs the same routes on its own clock.
//!
//! **Background work.** Some routes reply before all their children have. The others must be asked to the end: a client
//! that disconnects must not decide whether a copy is deleted. So that work is handed to a [`Spawner`], at most
//! [`BACKGROUND_TASKS_MAX`] batches at a time. Without a permit,
//!
//! * work that changes the content of a cache (`AllAsyncRoute`, `AllInitialRoute`, `AllFastestRoute`,
//!   `AllMajorityRoute`, `RootRoute` with broadcasts in the background) is awaited by its caller and dropped with it,
//!   before any reply;
//! * copies on which no client relies (shadows, fills of a cache in front of another) are dropped and counted.
//!
//! A task counts until it ends or its spawner drops it. A request is explained without a spawner: all is awaited.

use crate::{BoxFuture, Route, RouteStatistics, RuntimeVariables};
use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// The maximum number of batches in one [`Background`].
pub const BACKGROUND_TASKS_MAX: usize = 1_000;

/// The maximum number of pairs of lease tokens that a shadow remembers, unless an environment has another.
pub const SHADOW_TOKENS_MAX: usize = 1_024;

/// The maximum number of copies for shadows that a server has not answered, unless an environment has another.
pub const SHADOW_OUTSTANDING_MAX: usize = 1_000;

/// The clock.
pub trait Clock: Send + Sync {
    /// The time since some fixed moment; monotonic.
    fn now(&self) -> Duration;
    /// The wall clock, in seconds since 1970.
    fn unix_s(&self) -> u64;
    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Runs futures to completion, independently of their callers.
pub trait Spawner: Send + Sync {
    /// Runs `task` to completion.
    fn spawn(&self, task: BoxFuture<'static, ()>);
}

/// The log of `LoggingRoute` and of other routes.
pub trait Log: Send + Sync {
    /// Writes one line, given without a line break.
    fn line(&self, line: &str);
}

/// The environment of one tree of routes.
#[derive(Clone)]
pub struct Environment {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Work that outlives its caller.
    pub background: Background,
    /// The log.
    pub log: Arc<dyn Log>,
    /// The seed of random numbers.
    pub seed: u64,
    /// By this, `HostIdRoute` and similar routes spread hosts over children.
    pub host_id: u32,
    /// How long the further children of a failover may take in all after one has timed out; `None`: as long as each
    /// may.
    pub failover_timeout: Option<Duration>,
    /// What shadows need besides the configuration.
    pub shadows: ShadowSettings,
    /// What the routes count.
    pub statistics: Arc<RouteStatistics>,
    /// A router, for the tree of a client that sends servers nothing but reads: a route that would store elsewhere what
    /// a read has found sends the read there. `None`: routes store what they find themselves.
    pub filling_router: Option<Arc<dyn Route>>,
    /// Whether the tree is there to find the places of keys, by deletes: a route that limits rates then limits nothing.
    /// Default false.
    pub finds_places: bool,
}

/// Settings of all shadows. Clones share the variables.
#[derive(Clone, Debug)]
pub struct ShadowSettings {
    /// Variables that change while the routes are in use.
    pub variables: RuntimeVariables,
    /// The maximum number of pairs of lease tokens that each shadow remembers.
    pub tokens_max: usize,
    /// The maximum number of copies for shadows that a server has not answered; further ones are dropped.
    pub outstanding_max: usize,
}

impl Default for ShadowSettings {
    fn default() -> Self {
        ShadowSettings {
            variables: RuntimeVariables::default(),
            tokens_max: SHADOW_TOKENS_MAX,
            outstanding_max: SHADOW_OUTSTANDING_MAX,
        }
    }
}

impl Environment {
    /// An environment without time, background work or log: everything is awaited by its caller.
    pub fn none() -> Self {
        let nothing = Arc::new(Nothing);
        Environment {
            clock: nothing.clone(),
            background: Background::none(),
            log: nothing,
            seed: 0,
            host_id: 0,
            failover_timeout: None,
            shadows: ShadowSettings::default(),
            statistics: Arc::default(),
            filling_router: None,
            finds_places: false,
        }
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
    blocked: AtomicU64,
    dropped: AtomicU64,
}

/// Counters of a background since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackgroundStatistics {
    /// Tasks that are running now.
    pub running: usize,
    /// Batches to several children of which some continued after the reply to the caller.
    pub fan_outs: u64,
    /// Copies without a waiting caller: shadows, fills of a cache in front of another.
    pub copies: u64,
    /// Batches whose caller had to wait, as there was no permit.
    pub blocked: u64,
    /// Copies that were dropped, as there was no permit, or the server had too many.
    pub dropped: u64,
}

impl Background {
    /// At most `running_max` tasks at a time, run by `spawner`.
    pub fn new(spawner: Arc<dyn Spawner>, running_max: usize) -> Self {
        Self::with_spawner(Some(spawner), running_max)
    }

    /// No background: callers wait.
    pub fn none() -> Self {
        Self::with_spawner(None, 0)
    }

    fn with_spawner(spawner: Option<Arc<dyn Spawner>>, running_max: usize) -> Self {
        Background(Arc::new(Tasks { spawner, running_max, ..Tasks::default() }))
    }

    /// Its counters.
    pub fn statistics(&self) -> BackgroundStatistics {
        let tasks = &self.0;
        BackgroundStatistics {
            running: self.running(),
            fan_outs: tasks.fan_outs.load(Relaxed),
            copies: tasks.copies.load(Relaxed),
            blocked: tasks.blocked.load(Relaxed),
            dropped: self.dropped(),
        }
    }

    /// As [`BackgroundStatistics::running`].
    pub fn running(&self) -> usize {
        self.0.running.load(Relaxed)
    }

    /// As [`BackgroundStatistics::dropped`].
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Relaxed)
    }

    /// A permit for one task on which a client relies. Without one, the caller waits.
    pub(crate) fn try_permit(&self) -> Option<BackgroundPermit> {
        let permit = self.try_acquire();
        if permit.is_none() {
            self.0.blocked.fetch_add(1, Relaxed);
        }
        permit
    }

    fn try_acquire(&self) -> Option<BackgroundPermit> {
        let running = self.0.running.fetch_add(1, Relaxed);
        let permit = BackgroundPermit(self.0.clone());
        (running < self.0.running_max).then_some(permit)
    }

    /// Counts copies that were dropped for another reason.
    pub(crate) fn count_dropped(&self, copies: usize) {
        self.0.dropped.fetch_add(copies as u64, Relaxed);
    }

    /// Spawns a task on which no client relies, or drops and counts it.
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

/// The permit of one task; returned when dropped.
pub(crate) struct BackgroundPermit(Arc<Tasks>);

impl BackgroundPermit {
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

/// Random numbers from a seed, shared by threads (SplitMix64).
pub(crate) struct SharedRng(AtomicU64);

impl SharedRng {
    pub(crate) fn new(seed: u64) -> Self {
        SharedRng(AtomicU64::new(seed))
    }

    /// A random number below `bound`, which is not 0.
    pub(crate) fn next_below(&self, bound: usize) -> usize {
        let state = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ mixed >> 31) * bound as u128) >> 64) as usize
    }
}
