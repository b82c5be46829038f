//! The world that a tree of routes lives in: tokio's clock, tokio's tasks, and the log. No request passes here.
//!
//! Everything but the wall clock and the host's id is the runtime's, so that a paused runtime pauses the routes too. What
//! a tree leaves in the background runs on its thread, also when the client is gone and when another tree is in force: all
//! trees of a thread share one [`Backyard`]. It ends with the thread, which waits for it for a while.

use crate::{DRAIN_MAX, Fleet};
use lookaside_routing::{
    BACKGROUND_TASKS_MAX, Background, BackgroundStatistics, BoxFuture, Clock, Environment, Log, Spawner,
};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// The host as routes need to know it.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Tells this host from others.
    pub id: u32,
    /// The wall clock, in seconds since 1970 ...
    pub unix_s: u64,
    /// ... and when it was read.
    pub at: Instant,
}

impl Host {
    /// A host of that name, at that time on the wall clock.
    pub fn named(name: &str, unix_s: u64) -> Host {
        // FNV-1a: any spread will do, as long as it is the same after every restart.
        let id = name.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        Host { id, unix_s, at: Instant::now() }
    }

    /// The wall clock now, in seconds since 1970.
    pub(crate) fn unix_s_now(&self) -> u64 {
        self.unix_s + self.at.elapsed().as_secs()
    }
}

/// The surroundings of one thread's tree.
pub(crate) fn environment(host: Host, seed: u64, backyard: &Backyard) -> Environment {
    let runtime = Arc::new(Runtime { host, started: Instant::now() });
    let background = backyard.background.clone();
    Environment { clock: runtime.clone(), background, log: runtime, seed, host_id: host.id }
}

/// Where the trees of one thread leave what nobody waits for.
#[derive(Clone)]
pub(crate) struct Backyard {
    background: Background,
    tasks: Tasks,
}

impl Backyard {
    /// An empty one.
    pub(crate) fn new() -> Backyard {
        let tasks = Tasks { running: Arc::new(watch::Sender::new(0)) };
        Backyard { background: Background::new(Arc::new(tasks.clone()), BACKGROUND_TASKS_MAX), tasks }
    }

    /// Waits until nothing is left to do, for at most [`DRAIN_MAX`].
    pub(crate) async fn drain(&self) {
        let mut running = self.tasks.running.subscribe();
        if timeout(DRAIN_MAX, running.wait_for(|running| *running == 0)).await.is_err() {
            let (seconds, left) = (DRAIN_MAX.as_secs(), *self.tasks.running.borrow());
            tracing::warn!(left, seconds, "batches in the background were not done in time before the end");
        }
    }
}

/// What all threads have left in the background.
pub(crate) fn background(fleet: &Fleet) -> BackgroundStatistics {
    let mut sum = BackgroundStatistics::default();
    for router in fleet.routers() {
        let BackgroundStatistics { running, fan_outs, copies, awaited, dropped } =
            router.tree().backyard().background.statistics();
        sum.running += running;
        sum.fan_outs += fan_outs;
        sum.copies += copies;
        sum.awaited += awaited;
        sum.dropped += dropped;
    }
    sum
}

/// Tasks on tokio's runtime, counted.
#[derive(Clone)]
struct Tasks {
    running: Arc<watch::Sender<usize>>,
}

impl Spawner for Tasks {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.running.send_modify(|running| *running += 1);
        let ended = Ended(self.running.clone());
        tokio::spawn(async move {
            let _until_done = ended;
            task.await;
        });
    }
}

/// A task that is over when this is dropped.
struct Ended(Arc<watch::Sender<usize>>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

struct Runtime {
    host: Host,
    started: Instant,
}

impl Clock for Runtime {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn unix_s(&self) -> u64 {
        self.host.unix_s_now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

impl Log for Runtime {
    fn line(&self, line: &str) {
        tracing::info!(target: "route", "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[tokio::test(start_paused = true)]
    async fn time_and_tasks_are_the_runtimes() {
        let yard = Backyard::new();
        let world = environment(Host::named("a", 1_000), 0, &yard);
        let done = Arc::new(AtomicBool::new(false));
        let (told, sleep) = (done.clone(), world.clock.sleep(Duration::from_secs(5)));
        yard.tasks.spawn(Box::pin(async move {
            sleep.await;
            told.store(true, Relaxed);
        }));
        assert!(timeout(Duration::from_secs(4), yard.drain()).await.is_err(), "one is left");
        yard.drain().await;
        assert!(done.load(Relaxed));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((world.clock.unix_s(), world.clock.now().as_secs()), (1_006, 6));
        assert_ne!(Host::named("a", 0).id, Host::named("b", 0).id);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_no_end_is_not_waited_for_for_ever() {
        let (yard, begun) = (Backyard::new(), Instant::now());
        yard.drain().await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "nothing was left");
        yard.tasks.spawn(Box::pin(std::future::pending()));
        yard.drain().await;
        assert!(begun.elapsed() >= DRAIN_MAX && begun.elapsed() < DRAIN_MAX * 2);
    }
}
