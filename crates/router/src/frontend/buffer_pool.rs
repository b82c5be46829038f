//! The room that a session reads and answers in, lent to it while it has something to do (§3.1: thousands of client
//! connections for a few to the servers, and most of them are idle at any time).
//!
//! A session that has to wait for its client gives its room back, and takes one when something has come. The last one
//! given back is the next one lent: so that a thread works in the same few kilobytes for all its clients, and neither
//! allocates nor frees for a request.
//!
//! Absent on purpose: what is half read or not yet written. A session that has such keeps its room.

use bytes::BytesMut;
use std::sync::{Mutex, PoisonError};

/// Rooms that are kept for the next session. More are in use only while so many batches are on their way at once.
pub(crate) const ROOMS_KEPT_MAX: usize = 64;

/// A kept room has at most so many bytes to read into.
pub(crate) const ROOM_BYTES_KEPT: usize = 64 << 10;

/// Both empty.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// What is read.
    pub(crate) input: BytesMut,
    /// What is answered.
    pub(crate) out: Vec<u8>,
}

/// The rooms of one thread that nobody is in.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    kept: Mutex<Vec<Room>>,
}

impl Rooms {
    /// The room that was given back last, or an empty one.
    pub(crate) fn take(&self) -> Room {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Keeps a room, unless it is large or there are enough.
    pub(crate) fn give_back(&self, room: Room) {
        assert!(room.input.is_empty() && room.out.is_empty(), "nobody reads what was another's");
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < ROOMS_KEPT_MAX && room.input.capacity() <= ROOM_BYTES_KEPT {
            kept.push(room);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(bytes: usize) -> Room {
        Room { input: BytesMut::with_capacity(bytes), out: Vec::with_capacity(bytes) }
    }

    #[test]
    fn the_last_room_is_lent_first_and_large_or_many_ones_are_not_kept() {
        let rooms = Rooms::default();
        rooms.give_back(room(100));
        rooms.give_back(room(200));
        rooms.give_back(room(ROOM_BYTES_KEPT + 1));
        assert_eq!([rooms.take(), rooms.take(), rooms.take()].map(|room| room.out.capacity()), [200, 100, 0]);
        (0..ROOMS_KEPT_MAX + 5).for_each(|_| rooms.give_back(room(1)));
        assert_eq!(rooms.kept.lock().unwrap().len(), ROOMS_KEPT_MAX);
    }
}
