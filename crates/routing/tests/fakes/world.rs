//! A world in which time stands until it is moved, and background work waits until it is told to run.

#![allow(dead_code)] // Each test binary uses its own part.

use lookaside_routing::{Background, Batch, BoxFuture, Clock, Context, Environment, Log, Outcomes, Route, Spawner};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::Semaphore;

/// What happened, and what time it is.
#[derive(Default)]
pub struct World {
    tasks: Mutex<Vec<BoxFuture<'static, ()>>>,
    now: Mutex<Duration>,
    slept: Mutex<Vec<Duration>>,
    lines: Mutex<Vec<String>>,
}

impl World {
    pub fn new() -> Arc<World> {
        Arc::default()
    }

    /// As routes see it, with room for so many tasks.
    pub fn environment(self: &Arc<World>, tasks_max: usize) -> Environment {
        let background = Background::new(self.clone(), tasks_max);
        Environment { clock: self.clone(), background, log: self.clone(), seed: 7, host_id: 3 }
    }

    /// Runs all that was put into the background; how many tasks that were.
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

    pub fn lines(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap())
    }
}

impl Spawner for World {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.tasks.lock().unwrap().push(task);
    }
}

/// Sleeping moves the time on.
impl Clock for World {
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

impl Log for World {
    fn line(&self, line: &str) {
        self.lines.lock().unwrap().push(line.to_owned());
    }
}

/// A child that answers only when it is let.
pub struct Held {
    inner: Arc<dyn Route>,
    gate: Semaphore,
}

impl Held {
    pub fn new(inner: Arc<dyn Route>) -> Arc<Held> {
        Arc::new(Held { inner, gate: Semaphore::new(0) })
    }

    /// Lets one more batch through.
    pub fn let_one(&self) {
        self.gate.add_permits(1);
    }
}

impl Route for Held {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(async move {
            self.gate.acquire().await.unwrap().forget();
            self.inner.route(batch, context).await
        })
    }
}
