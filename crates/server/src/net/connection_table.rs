//! The open connections by file descriptor, with their phase and last activity: for `stats conns` and the search for
//! idle connections.
//!
//! ```text
//!   slots, by file descriptor:   | 0 | 0 | ... | seconds + 1 : 29, phase : 3 | ... |      0: no connection
//! ```
//!
//! A worker writes a connection's slot when the second or the phase has changed, so at most a few times a second. A
//! reader reads all slots. Addresses are not stored: the kernel has them ([`crate::net::peer_address`]).
//!
//! Accepted: a slot may be read while its connection closes and another one gets the same descriptor. The row may then
//! show either connection.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Slots for descriptors that are not connections: listeners, epolls, UDP ports.
const SLOTS_RESERVED: usize = 8192;

const STATE_BITS: u32 = 3;

/// The event that a connection waits for, in memcached's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionPhase {
    /// A command.
    Read,
    /// The rest of a command.
    Nread,
    /// Its client to read.
    Mwrite,
    /// Events: it is a watcher.
    Watch,
}

/// A slot for every possible connection.
pub(crate) struct ConnectionTable {
    slots: Box<[AtomicU32]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionEntry {
    pub(crate) descriptor: RawFd,
    /// The time of the last input or output, in seconds since the start.
    pub(crate) active_s: u32,
    pub(crate) phase: ConnectionPhase,
}

impl ConnectionPhase {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ConnectionPhase::Read => "conn_read",
            ConnectionPhase::Nread => "conn_nread",
            ConnectionPhase::Mwrite => "conn_mwrite",
            ConnectionPhase::Watch => "conn_watch",
        }
    }
}

impl ConnectionTable {
    pub(crate) fn new(connections_max: usize) -> ConnectionTable {
        let slots = connections_max + SLOTS_RESERVED;
        ConnectionTable { slots: (0..slots).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Records a connection's phase, and input or output in this second.
    pub(crate) fn set(&self, descriptor: RawFd, active_s: u32, phase: ConnectionPhase) {
        let Some(slot) = self.slots.get(descriptor as usize) else { return };
        let word = (active_s + 1) << STATE_BITS | phase as u32;
        if slot.load(Ordering::Relaxed) != word {
            slot.store(word, Ordering::Relaxed);
        }
    }

    pub(crate) fn remove(&self, descriptor: RawFd) {
        if let Some(slot) = self.slots.get(descriptor as usize) {
            slot.store(0, Ordering::Relaxed);
        }
    }

    /// The time of the last input or output; `None` if there is no connection.
    pub(crate) fn active_s(&self, descriptor: RawFd) -> Option<u32> {
        let word = self.slots.get(descriptor as usize)?.load(Ordering::Relaxed);
        (word >> STATE_BITS).checked_sub(1)
    }

    /// All connections, in the order of their descriptors.
    pub(crate) fn entries(&self) -> impl Iterator<Item = ConnectionEntry> {
        self.slots.iter().enumerate().filter_map(|(descriptor, slot)| {
            let word = slot.load(Ordering::Relaxed);
            let phases =
                [ConnectionPhase::Read, ConnectionPhase::Nread, ConnectionPhase::Mwrite, ConnectionPhase::Watch];
            let phase = phases.into_iter().find(|phase| *phase as u32 == word & ((1 << STATE_BITS) - 1));
            let active_s = (word >> STATE_BITS).checked_sub(1)?;
            Some(ConnectionEntry { descriptor: descriptor as RawFd, active_s, phase: phase? })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_set_read_and_removed() {
        let table = ConnectionTable::new(10);
        table.set(5, 0, ConnectionPhase::Read);
        table.set(7, 100, ConnectionPhase::Mwrite);
        table.set(i32::MAX, 1, ConnectionPhase::Read);
        let entries: Vec<ConnectionEntry> = table.entries().collect();
        let first = ConnectionEntry { descriptor: 5, active_s: 0, phase: ConnectionPhase::Read };
        assert_eq!(entries, [first, ConnectionEntry { descriptor: 7, active_s: 100, phase: ConnectionPhase::Mwrite }]);
        table.remove(5);
        assert_eq!((table.active_s(5), table.active_s(7)), (None, Some(100)));
    }
}
