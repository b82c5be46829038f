//! Whether a process runs or hangs: it was stopped by a signal, say, or its host swaps.
//!
//! A hung process keeps its sockets. It neither accepts, connects, reads nor writes, and it closes nothing; other
//! hosts may still connect to it and send to it, because its kernel does that. When it resumes, everything is as it
//! was, and the bytes that have arrived meanwhile are there to be read. Its timers are not stopped, only their effects
//! on others: a request that times out while its client hangs is given up, and no other host sees that before the
//! client resumes.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
};

/// One process. Clones share it.
#[derive(Clone, Default)]
pub struct Process(Arc<Mutex<ProcessState>>);

#[derive(Default)]
struct ProcessState {
    is_hung: bool,
    /// Tasks that wait for the process to resume.
    waiting: Vec<Waker>,
    /// What it did meanwhile that takes effect when it resumes.
    deferred: Vec<Box<dyn FnOnce() + Send>>,
}

impl Process {
    /// Stops it.
    pub fn hang(&self) {
        self.state().is_hung = true;
    }

    /// Lets it run again.
    pub fn resume(&self) {
        let ProcessState { waiting, deferred, .. } = std::mem::take(&mut *self.state());
        deferred.into_iter().for_each(|action| action());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Resolves when it runs.
    pub async fn running(&self) {
        poll_fn(|cx| self.poll_running(cx)).await;
    }

    pub(crate) fn poll_running(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if !state.is_hung {
            return Poll::Ready(());
        }
        state.waiting.push(cx.waker().clone());
        Poll::Pending
    }

    /// Does `action` at once if the process runs, or else when it resumes.
    pub(crate) fn when_running(&self, action: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        if state.is_hung {
            return state.deferred.push(Box::new(action));
        }
        drop(state);
        action();
    }

    fn state(&self) -> MutexGuard<'_, ProcessState> {
        self.0.lock().expect("one thread runs a simulation")
    }
}
