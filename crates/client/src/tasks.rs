//! Spawns the tasks of a process.
//!
//! A simulated region runs many processes on one runtime. A process that a signal has stopped does nothing at all, so a
//! simulation must be able to withhold the processor from all tasks of one process: it gives them a [`TaskGate`], which
//! every task inherits from the task that spawns it. Without a gate, as in the daemons, [`spawn`] and [`spawn_in`] are
//! tokio's functions.

use std::{
    cell::RefCell,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::{
    runtime::Handle,
    task::{AbortHandle, JoinHandle, JoinSet},
};

thread_local! {
    /// The gate of the task that is polled now; `None` if it has none.
    static CURRENT: RefCell<Option<Arc<dyn TaskGate>>> = const { RefCell::new(None) };
}

/// Decides whether the tasks of a process are polled.
pub trait TaskGate: Send + Sync {
    /// Ready while the process runs. Otherwise it wakes the task when the process runs again.
    fn poll_running(&self, cx: &mut Context<'_>) -> Poll<()>;
}

/// Spawns a task of the process to which the current task belongs.
pub fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    match current_gate() {
        None => tokio::spawn(task),
        Some(gate) => tokio::spawn(GatedTask::new(gate, task)),
    }
}

/// Spawns a task, as [`spawn`] does, in a set. The handle may be dropped.
pub fn spawn_in<T, F>(tasks: &mut JoinSet<T>, task: F) -> AbortHandle
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    match current_gate() {
        None => tasks.spawn(task),
        Some(gate) => tasks.spawn(GatedTask::new(gate, task)),
    }
}

/// Spawns tasks of the process in which it was made, also while a task of it is dropped, when there is no current task.
#[derive(Clone)]
pub(crate) struct TaskSpawner {
    gate: Option<Arc<dyn TaskGate>>,
}

impl TaskSpawner {
    /// Spawns for the process of the current task.
    pub(crate) fn current() -> TaskSpawner {
        TaskSpawner { gate: current_gate() }
    }

    /// Spawns a task; drops it if there is no runtime any more.
    pub(crate) fn spawn_if_running(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = Handle::try_current() else { return };
        match self.gate.clone() {
            None => runtime.spawn(task),
            Some(gate) => runtime.spawn(GatedTask::new(gate, task)),
        };
    }
}

fn current_gate() -> Option<Arc<dyn TaskGate>> {
    CURRENT.with_borrow(Clone::clone)
}

/// A task that is polled only while its gate says so. Tasks that it spawns get the same gate.
pub struct GatedTask<F> {
    gate: Arc<dyn TaskGate>,
    task: Pin<Box<F>>,
}

impl<F> GatedTask<F> {
    /// Puts `gate` in front of `task`.
    pub fn new(gate: Arc<dyn TaskGate>, task: F) -> GatedTask<F> {
        GatedTask { gate, task: Box::pin(task) }
    }
}

impl<F: Future> Future for GatedTask<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        ready!(self.gate.poll_running(cx));
        let _until_polled = CurrentGate::set(self.gate.clone());
        self.task.as_mut().poll(cx)
    }
}

/// The current gate until this is dropped, which restores the one before.
struct CurrentGate {
    before: Option<Arc<dyn TaskGate>>,
}

impl CurrentGate {
    fn set(gate: Arc<dyn TaskGate>) -> CurrentGate {
        CurrentGate { before: CURRENT.replace(Some(gate)) }
    }
}

impl Drop for CurrentGate {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        future::pending,
        sync::{
            Mutex,
            atomic::{AtomicBool, Ordering},
        },
        task::Waker,
        time::Duration,
    };
    use tokio::time::{sleep, timeout};

    /// More than any timer of a test.
    const LONG: Duration = Duration::from_secs(60);

    #[derive(Default)]
    struct TestGate {
        is_closed: AtomicBool,
        waiting: Mutex<Vec<Waker>>,
    }

    impl TestGate {
        fn open(&self) {
            self.is_closed.store(false, Ordering::Relaxed);
            std::mem::take(&mut *self.waiting.lock().unwrap()).into_iter().for_each(Waker::wake);
        }
    }

    impl TaskGate for TestGate {
        fn poll_running(&self, cx: &mut Context<'_>) -> Poll<()> {
            if !self.is_closed.load(Ordering::Relaxed) {
                return Poll::Ready(());
            }
            self.waiting.lock().unwrap().push(cx.waker().clone());
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_a_gated_task_spawns_stop_and_continue_with_it() {
        let gate = Arc::new(TestGate::default());
        let task = GatedTask::new(gate.clone(), async {
            let mut set = JoinSet::new();
            spawn_in(&mut set, sleep(Duration::from_secs(1)));
            spawn(async move { set.join_next().await }).await.expect("it ends")
        });
        let mut task = tokio::spawn(task);
        tokio::task::yield_now().await;
        gate.is_closed.store(true, Ordering::Relaxed);
        assert!(timeout(LONG, &mut task).await.is_err(), "its timer has fired, and it has not run");
        gate.open();
        let ended = timeout(Duration::from_millis(1), task).await.expect("at once");
        assert!(matches!(ended, Ok(Some(Ok(())))), "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn other_tasks_have_no_gate() {
        let gate = Arc::new(TestGate::default());
        let gated = tokio::spawn(GatedTask::new(gate.clone(), pending::<()>()));
        tokio::task::yield_now().await;
        gate.is_closed.store(true, Ordering::Relaxed);
        timeout(LONG, spawn(sleep(Duration::from_secs(1)))).await.expect("in time").expect("it ends");
        gated.abort();
    }
}
