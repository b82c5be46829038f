//! Who is connected, for the two who ask: `stats conns`, and the look for idle connections.
//!
//! ```text
//!   places, by file descriptor:   | 0 | 0 | ... | seconds + 1 : 29, state : 3 | ... |      0: no connection
//! ```
//!
//! A worker writes a connection's place when the second or the state has changed, so at most a few times a second; who
//! asks reads all places. Addresses are not kept: the kernel knows them ([`crate::net::peer_address`]).
//!
//! Accepted: a place is read while its connection ends and another takes its number. The answer is then that of either.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Descriptors beyond those of connections that have a place: listeners, epolls, UDP ports.
const PLACES_BESIDE: usize = 8192;

const STATE_BITS: u32 = 3;

/// What a connection is at, in memcached's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Waiting for a command.
    Read,
    /// Waiting for the rest of one.
    Nread,
    /// Waiting for its client to read.
    Mwrite,
    /// Watching.
    Watch,
}

/// A place for every connection that there may be.
pub(crate) struct Roster {
    places: Box<[AtomicU32]>,
}

/// What a place says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) descriptor: RawFd,
    /// When something last came or went, in seconds since the start.
    pub(crate) active_s: u32,
    pub(crate) state: State,
}

impl State {
    /// memcached's word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Read => "conn_read",
            State::Nread => "conn_nread",
            State::Mwrite => "conn_mwrite",
            State::Watch => "conn_watch",
        }
    }
}

impl Roster {
    pub(crate) fn new(connections_max: u32) -> Roster {
        let places = connections_max as usize + PLACES_BESIDE;
        Roster { places: (0..places).map(|_| AtomicU32::new(0)).collect() }
    }

    /// The connection's state, and that something has come or gone in this second.
    pub(crate) fn note(&self, descriptor: RawFd, active_s: u32, state: State) {
        let Some(place) = self.places.get(descriptor as usize) else { return };
        let word = (active_s + 1) << STATE_BITS | state as u32;
        if place.load(Ordering::Relaxed) != word {
            place.store(word, Ordering::Relaxed);
        }
    }

    /// The connection is over.
    pub(crate) fn forget(&self, descriptor: RawFd) {
        if let Some(place) = self.places.get(descriptor as usize) {
            place.store(0, Ordering::Relaxed);
        }
    }

    /// When something last came or went; `None` without a connection.
    pub(crate) fn active_s(&self, descriptor: RawFd) -> Option<u32> {
        let word = self.places.get(descriptor as usize)?.load(Ordering::Relaxed);
        (word >> STATE_BITS).checked_sub(1)
    }

    /// Every connection, by descriptor.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        self.places.iter().enumerate().filter_map(|(descriptor, place)| {
            let word = place.load(Ordering::Relaxed);
            let states = [State::Read, State::Nread, State::Mwrite, State::Watch];
            let state = states.into_iter().find(|state| *state as u32 == word & ((1 << STATE_BITS) - 1));
            let active_s = (word >> STATE_BITS).checked_sub(1)?;
            Some(Entry { descriptor: descriptor as RawFd, active_s, state: state? })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_read_and_left() {
        let roster = Roster::new(10);
        roster.note(5, 0, State::Read);
        roster.note(7, 100, State::Mwrite);
        roster.note(i32::MAX, 1, State::Read);
        let entries: Vec<Entry> = roster.entries().collect();
        let first = Entry { descriptor: 5, active_s: 0, state: State::Read };
        assert_eq!(entries, [first, Entry { descriptor: 7, active_s: 100, state: State::Mwrite }]);
        roster.forget(5);
        assert_eq!((roster.active_s(5), roster.active_s(7)), (None, Some(100)));
    }
}
