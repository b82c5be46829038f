//! The world that a tree of routes lives in: tokio's clock, tokio's tasks, and the log. No request passes here.
//!
//! Everything but the wall clock and the host's id is the runtime's, so that a paused runtime pauses the routes too. What
//! a tree leaves in the background runs on its thread, also when the client is gone and when another tree is in force;
//! it ends with the thread.

use lookaside_routing::{BACKGROUND_TASKS_MAX, Background, BoxFuture, Clock, Log, Spawner, Surroundings};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

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
pub(crate) fn surroundings(host: Host, seed: u64) -> Surroundings {
    let runtime = Arc::new(Runtime { host, started: Instant::now() });
    let background = Background::new(runtime.clone(), BACKGROUND_TASKS_MAX);
    Surroundings { clock: runtime.clone(), background, log: runtime, seed, host_id: host.id }
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

impl Spawner for Runtime {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
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
        let world = surroundings(Host::named("a", 1_000), 0);
        let done = Arc::new(AtomicBool::new(false));
        let (told, sleep) = (done.clone(), world.clock.sleep(Duration::from_secs(5)));
        Runtime { host: Host::named("a", 0), started: Instant::now() }.spawn(Box::pin(async move {
            sleep.await;
            told.store(true, Relaxed);
        }));
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(done.load(Relaxed));
        assert_eq!((world.clock.unix_s(), world.clock.now().as_secs()), (1_006, 6));
        assert_ne!(Host::named("a", 0).id, Host::named("b", 0).id);
    }
}
