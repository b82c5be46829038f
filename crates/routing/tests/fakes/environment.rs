//! An environment in which time advances only by a call, and background work waits until a test runs it.

use lookaside_routing::{
    Background, Batch, BoxFuture, Clock, Context, Environment, Log, Outcomes, Route, RouteStatistics, Spawner,
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::Semaphore;

/// A fake clock, spawner and log.
#[derive(Default)]
pub struct FakeEnvironment {
    tasks: Mutex<Vec<BoxFuture<'static, ()>>>,
    now: Mutex<Duration>,
    slept: Mutex<Vec<Duration>>,
    lines: Mutex<Vec<String>>,
    statistics: Arc<RouteStatistics>,
}

impl FakeEnvironment {
    pub fn new() -> Arc<FakeEnvironment> {
        Arc::default()
    }

    /// The environment for routes, with at most `tasks_max` background tasks.
    pub fn environment(self: &Arc<FakeEnvironment>, tasks_max: usize) -> Environment {
        let background = Background::new(self.clone(), tasks_max);
        let (clock, log, statistics) = (self.clone(), self.clone(), self.statistics.clone());
        Environment { clock, background, log, seed: 7, host_id: 3, statistics, ..Environment::none() }
    }

    /// Runs all background tasks. Returns their number.
    pub async fn run_background(&self) -> usize {
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap());
        let count = tasks.len();
        for task in tasks {
            task.await;
        }
        count
    }

    pub fn advance(&self, by: Duration) {
        *self.now.lock().unwrap() += by;
    }

    pub fn slept(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.slept.lock().unwrap())
    }

    /// What the routes have counted.
    pub fn statistics(&self) -> &RouteStatistics {
        &self.statistics
    }

    pub fn lines(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap())
    }
}

impl Spawner for FakeEnvironment {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.tasks.lock().unwrap().push(task);
    }
}

/// A sleep advances the time.
impl Clock for FakeEnvironment {
    fn now(&self) -> Duration {
        *self.now.lock().unwrap()
    }

    fn unix_s(&self) -> u64 {
        self.now().as_secs()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.slept.lock().unwrap().push(duration);
        self.advance(duration);
        Box::pin(std::future::ready(()))
    }
}

impl Log for FakeEnvironment {
    fn line(&self, line: &str) {
        self.lines.lock().unwrap().push(line.to_owned());
    }
}

/// A child that waits for a permit before each batch.
pub struct HeldRoute {
    inner: Arc<dyn Route>,
    gate: Semaphore,
}

impl HeldRoute {
    pub fn new(inner: Arc<dyn Route>) -> Arc<HeldRoute> {
        Arc::new(HeldRoute { inner, gate: Semaphore::new(0) })
    }

    /// Permits one more batch.
    pub fn release_one(&self) {
        self.gate.add_permits(1);
    }
}

impl Route for HeldRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(async move {
            std::mem::forget(self.gate.acquire().await.unwrap());
            self.inner.route(batch, context).await
        })
    }
}
