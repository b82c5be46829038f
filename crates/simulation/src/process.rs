//! Whether a process runs or hangs: it was stopped by a signal, say, or its host swaps.
//!
//! A hung process keeps its sockets. It neither accepts, connects, reads nor writes, and it closes nothing; other
//! hosts may still connect to it and send to it, because its kernel does that. When it resumes, it goes on where it
//! was, and what has arrived meanwhile is there to be read. Its timers are not stopped, only what they lead to: a
//! request that it would have given up is given up, and nobody hears of it before the process resumes.

use crate::stream::Pipe;
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
    /// Pipes of connections that it has dropped while it hung.
    dropped: Vec<Arc<Mutex<Pipe>>>,
}

impl Process {
    /// Stops it.
    pub fn hang(&self) {
        self.state().is_hung = true;
    }

    /// Lets it go on.
    pub fn resume(&self) {
        let ProcessState { waiting, dropped, .. } = std::mem::take(&mut *self.state());
        dropped.iter().for_each(|pipe| Pipe::end(pipe));
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

    /// Ends a pipe of a connection that the process closes: at once if it runs, or else when it resumes.
    pub(crate) fn close(&self, pipe: &Arc<Mutex<Pipe>>) {
        let mut state = self.state();
        if state.is_hung {
            return state.dropped.push(pipe.clone());
        }
        drop(state);
        Pipe::end(pipe);
    }

    fn state(&self) -> MutexGuard<'_, ProcessState> {
        self.0.lock().expect("one thread runs a simulation")
    }
}
