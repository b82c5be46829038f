//! The connection whose commands a thread executes at the moment, and that connection's request to become a watcher.

use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

/// Datagrams have no connection.
const NO_CONNECTION: i32 = -1;

/// Set in a watch request beside the kinds of events: these may be none.
const REQUESTED: u8 = 1 << 6;

#[derive(Debug)]
pub(crate) struct CurrentConnection {
    descriptor: AtomicI32,
    /// 0, or [`REQUESTED`] and the kinds of events to watch.
    watch_request: AtomicU8,
}

impl CurrentConnection {
    pub(crate) const fn new() -> CurrentConnection {
        CurrentConnection { descriptor: AtomicI32::new(NO_CONNECTION), watch_request: AtomicU8::new(0) }
    }

    /// Sets the connection whose commands are executed from now on; `None` for commands from datagrams. Drops a pending
    /// watch request of the previous connection, which has been closed.
    pub(crate) fn set(&self, descriptor: Option<i32>) {
        self.watch_request.store(0, Ordering::Relaxed);
        self.descriptor.store(descriptor.unwrap_or(NO_CONNECTION), Ordering::Relaxed);
    }

    /// The connection whose commands are being executed, or scanned where that may matter.
    pub(crate) fn descriptor(&self) -> Option<i32> {
        Some(self.raw_descriptor()).filter(|&descriptor| descriptor != NO_CONNECTION)
    }

    /// As [`CurrentConnection::descriptor`]; -1 if there is none.
    pub(crate) fn raw_descriptor(&self) -> i32 {
        self.descriptor.load(Ordering::Relaxed)
    }

    /// Requests that the connection becomes a watcher of these kinds of events; false if there is no connection.
    pub(crate) fn request_watch(&self, kinds: u8) -> bool {
        let is_connected = self.raw_descriptor() != NO_CONNECTION;
        if is_connected {
            self.watch_request.store(kinds | REQUESTED, Ordering::Relaxed);
        }
        is_connected
    }

    /// Takes the request of the connection that has just been served.
    pub(crate) fn take_watch_request(&self) -> Option<u8> {
        if self.watch_request.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(self.watch_request.swap(0, Ordering::Relaxed) & !REQUESTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_can_become_a_watcher() {
        let current = CurrentConnection::new();
        assert!(!current.request_watch(1));
        current.set(Some(7));
        assert!(current.request_watch(0));
        assert_eq!((current.take_watch_request(), current.take_watch_request()), (Some(0), None));
    }

    /// A client that sent `watch` and disconnected before the reply left its request to the next client that quit.
    #[test]
    fn a_watch_request_ends_with_its_connection() {
        let current = CurrentConnection::new();
        current.set(Some(7));
        assert!(current.request_watch(1));
        current.set(Some(8));
        assert_eq!(current.take_watch_request(), None);
    }
}
