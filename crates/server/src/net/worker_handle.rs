//! The part of a worker that other threads use: its counters and events, and the mailbox in which it gets connections.

use crate::net::buffer_accounting::BufferAccounting;
use crate::net::connection::Connection;
use crate::observe::counters::Counters;
use crate::observe::event_log::EventSink;
use crate::observe::metrics::Sampler;
use crate::session::context::Protocols;
use lookaside_sync::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustls::ServerConfig;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A connection on its way to its worker.
pub(crate) enum AssignedConnection {
    /// A new one.
    Accepted {
        socket: OwnedFd,
        /// `None` if it does not use TLS.
        tls: Option<Arc<ServerConfig>>,
        /// `None` if its listener has the server's protocols.
        protocols: Option<Protocols>,
    },
    /// One that a worker has served before, in this process or in its predecessor.
    Restored(Connection),
}

/// Whether a worker goes on after it has emptied its mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    Serve,
    Stop,
}

pub(crate) struct WorkerHandle {
    pub(crate) counters: Counters,
    pub(crate) events: EventSink,
    /// `None` without `--metrics-address`.
    pub(crate) sampler: Option<Sampler>,
    pub(crate) buffers: BufferAccounting,
    /// Includes connections that wait in the mailbox.
    pub(crate) connections_open: AtomicUsize,
    mailbox: Mutex<Vec<AssignedConnection>>,
    pub(super) wake_fd: OwnedFd,
    is_stopping: AtomicBool,
}

impl WorkerHandle {
    pub(crate) fn new(sampler: Option<Sampler>, buffers: BufferAccounting) -> io::Result<WorkerHandle> {
        Ok(WorkerHandle {
            counters: Counters::default(),
            events: EventSink::new(),
            sampler,
            buffers,
            connections_open: AtomicUsize::new(0),
            mailbox: Mutex::new(Vec::new()),
            wake_fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_stopping: AtomicBool::new(false),
        })
    }

    /// Puts connections into the mailbox, and wakes the worker.
    pub(crate) fn dispatch(&self, assigned: impl IntoIterator<Item = AssignedConnection>) {
        let mut mailbox = self.mailbox.lock();
        let before = mailbox.len();
        mailbox.extend(assigned);
        self.connections_open.fetch_add(mailbox.len() - before, Ordering::Relaxed);
        drop(mailbox);
        self.wake();
    }

    /// Undoes [`WorkerHandle::stop`], before the worker starts again.
    pub(crate) fn reset(&self) {
        self.connections_open.store(0, Ordering::Relaxed);
        self.is_stopping.store(false, Ordering::Release);
    }

    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes the worker. If the eventfd is full, the worker is about to wake anyway.
    fn wake(&self) {
        let _ = rustix::io::write(&self.wake_fd, &1u64.to_ne_bytes());
    }

    pub(super) fn take_mailbox(&self) -> (Vec<AssignedConnection>, NextStep) {
        let _ = rustix::io::read(&self.wake_fd, &mut [0u8; 8]);
        // The flag is read before the mailbox: a thread that stops the worker has dispatched everything by then. It is
        // read after the eventfd: a stop that is missed here wakes the worker once more.
        let next_step = if self.is_stopping.load(Ordering::Acquire) { NextStep::Stop } else { NextStep::Serve };
        (std::mem::take(&mut *self.mailbox.lock()), next_step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// A worker emptied its mailbox, then a connection arrived followed by the stop, then the worker saw the stop and
    /// ended: the connection stayed in the mailbox, and an upgrade closed it instead of handing it over.
    #[test]
    fn a_worker_that_sees_the_stop_has_all_connections_dispatched_before_it() {
        for _ in 0..500 {
            let handle = WorkerHandle::new(None, BufferAccounting::default()).expect("an eventfd");
            let (socket, _client) = UnixStream::pair().expect("a pair");
            let assigned = AssignedConnection::Accepted { socket: socket.into(), tls: None, protocols: None };
            let mut received = 0;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    handle.dispatch([assigned]);
                    handle.stop();
                });
                loop {
                    let (assigned, next_step) = handle.take_mailbox();
                    received += assigned.len();
                    if next_step == NextStep::Stop {
                        break;
                    }
                }
            });
            assert_eq!(received, 1);
        }
    }
}
