//! Whether a process runs or hangs: it was stopped by a signal, say, or its host swaps.
//!
//! A hung process does nothing: none of its tasks is polled ([`TaskGate`]). Its kernel does what needs no process: it
//! keeps its sockets, lets others connect to them, and buffers what arrives. Timers that expire meanwhile take effect
//! when the process resumes, all at once, together with the bytes that have arrived.

use lookaside_client::{GatedTask, TaskGate};
use std::{
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
};

/// One process. Clones share it.
#[derive(Clone, Default)]
pub struct Process(Arc<ProcessGate>);

#[derive(Default)]
struct ProcessGate(Mutex<ProcessState>);

#[derive(Default)]
struct ProcessState {
    is_hung: bool,
    /// Tasks that wait for the process to resume.
    waiting: Vec<Waker>,
}

impl Process {
    /// A task of this process, which runs only while the process does. Tasks that it spawns belong to the process, too.
    pub fn task<F: Future>(&self, task: F) -> GatedTask<F> {
        GatedTask::new(self.0.clone(), task)
    }

    /// Stops it.
    pub fn hang(&self) {
        self.0.state().is_hung = true;
    }

    /// Lets it run again.
    pub fn resume(&self) {
        let ProcessState { waiting, .. } = std::mem::take(&mut *self.0.state());
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl ProcessGate {
    fn state(&self) -> MutexGuard<'_, ProcessState> {
        self.0.lock().expect("one thread runs a simulation")
    }
}

impl TaskGate for ProcessGate {
    fn poll_running(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if !state.is_hung {
            return Poll::Ready(());
        }
        state.waiting.push(cx.waker().clone());
        Poll::Pending
    }
}
