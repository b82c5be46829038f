//! The environment of routes: tokio's clock, tokio's tasks, and the log. No request passes here.
//!
//! Everything but the wall clock and the host's id is the runtime's, so that a paused runtime pauses the routes too.
//! The background tasks of a tree run on its thread, also after the client has disconnected and after a reload: all
//! trees of a thread share one [`BackgroundTasks`]. They end with the thread.

use super::host::HostInfo;
use crate::spawn;
use lookaside_routing::{
    BACKGROUND_TASKS_MAX, Background, BackgroundStatistics, BoxFuture, Clock, Environment, Log, RouteStatistics,
    Spawner,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// The environment of the routes of a tree, on the current runtime. `seed` determines random choices.
pub fn environment(
    host: HostInfo,
    seed: u64,
    background: &BackgroundTasks,
    failover_timeout: Option<Duration>,
) -> Environment {
    let runtime = Arc::new(TokioRuntime { host, started: Instant::now() });
    let (background, statistics) = (background.background.clone(), background.route_statistics.clone());
    let (clock, log) = (runtime.clone(), runtime);
    Environment { clock, background, log, seed, host_id: host.id, failover_timeout, statistics, ..Environment::none() }
}

/// The background tasks of the routes of a thread's trees. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct BackgroundTasks {
    background: Background,
    tasks: CountedTasks,
    route_statistics: Arc<RouteStatistics>,
}

impl Default for BackgroundTasks {
    fn default() -> BackgroundTasks {
        let tasks = CountedTasks { running: Arc::new(watch::Sender::new(RunningTasks::default())) };
        let background = Background::new(Arc::new(tasks.clone()), BACKGROUND_TASKS_MAX);
        BackgroundTasks { background, tasks, route_statistics: Arc::default() }
    }
}

impl BackgroundTasks {
    /// Waits until all have ended, for at most `limit`.
    pub async fn drain(&self, limit: Duration) {
        let mut running = self.tasks.running.subscribe();
        if timeout(limit, running.wait_for(|running| running.ids.is_empty())).await.is_err() {
            let (seconds, running) = (limit.as_secs(), self.tasks.running.borrow().ids.len());
            tracing::warn!(running, seconds, "background batches still running at shutdown");
        }
    }

    /// Resolves when the tasks that run now have ended.
    pub fn running_ended(&self) -> impl Future<Output = ()> + use<> {
        let mut running = self.tasks.running.subscribe();
        async move {
            let next = running.borrow().next_id;
            let _ = running.wait_for(|running| running.ids.first().is_none_or(|oldest| *oldest >= next)).await;
        }
    }

    /// What the routes of the trees have counted.
    pub fn route_statistics(&self) -> &Arc<RouteStatistics> {
        &self.route_statistics
    }

    /// How many run, and how many have been started or refused.
    pub fn statistics(&self) -> BackgroundStatistics {
        self.background.statistics()
    }
}

/// Spawns tasks on tokio's runtime, and counts those that run.
#[derive(Clone)]
struct CountedTasks {
    running: Arc<watch::Sender<RunningTasks>>,
}

/// The tasks that run, by numbers in the order of their starts.
#[derive(Default)]
struct RunningTasks {
    next_id: u64,
    ids: BTreeSet<u64>,
}

impl Spawner for CountedTasks {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let mut id = 0;
        self.running.send_modify(|running| {
            id = running.next_id;
            running.next_id += 1;
            running.ids.insert(id);
        });
        let guard = TaskGuard { id, running: self.running.clone() };
        spawn(async move {
            let _until_done = guard;
            task.await;
        });
    }
}

/// A task that runs until this is dropped.
struct TaskGuard {
    id: u64,
    running: Arc<watch::Sender<RunningTasks>>,
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.running.send_modify(|running| _ = running.ids.remove(&self.id));
    }
}

struct TokioRuntime {
    host: HostInfo,
    started: Instant,
}

impl Clock for TokioRuntime {
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

impl Log for TokioRuntime {
    fn line(&self, line: &str) {
        tracing::info!(target: "route", "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    const DRAIN_MAX: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn clock_and_tasks_are_the_runtimes() {
        let background = BackgroundTasks::default();
        let environment = environment(HostInfo::from_name("a", 1_000), 0, &background, None);
        let done = Arc::new(AtomicBool::new(false));
        let (done_in_task, sleep) = (done.clone(), environment.clock.sleep(Duration::from_secs(5)));
        background.tasks.spawn(Box::pin(async move {
            sleep.await;
            done_in_task.store(true, Relaxed);
        }));
        assert!(timeout(Duration::from_secs(4), background.drain(DRAIN_MAX)).await.is_err(), "one task runs");
        background.drain(DRAIN_MAX).await;
        assert!(done.load(Relaxed));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((environment.clock.unix_s(), environment.clock.now().as_secs()), (1_006, 6));
        assert_ne!(HostInfo::from_name("a", 0).id, HostInfo::from_name("b", 0).id);
    }

    #[tokio::test(start_paused = true)]
    async fn drain_is_bounded() {
        let (background, started) = (BackgroundTasks::default(), Instant::now());
        background.drain(DRAIN_MAX).await;
        assert_eq!(started.elapsed(), Duration::ZERO, "no task runs");
        background.tasks.spawn(Box::pin(std::future::pending()));
        background.drain(DRAIN_MAX).await;
        assert!(started.elapsed() >= DRAIN_MAX && started.elapsed() < DRAIN_MAX * 2);
    }
}
