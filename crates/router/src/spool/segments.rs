//! What one server owes this router's clients, and the protocol between those who add to it and the one who works it off.
//!
//! ```text
//!   writer     begin: where to?  ->  write, sync  ->  end: count it, raise the fence  ->  acknowledge
//!   replayer   take the oldest segment  ->  send it, all acknowledged, remove the file  ->  done: drop it
//!                  '- nothing left: lower the fence and stop, under the same lock
//! ```
//!
//! Invariants:
//! * The fence is raised before a kept delete is acknowledged, and lowered only while nothing is owed: both under one
//!   lock, so no order of the two sides leaves a delete owed behind a lowered fence.
//! * A segment that is replayed is not written to any more. What is written to is not replayed: its replayer waits.
//! * One forget stands for all that was owed before it. What is added before the server is told to forget needs no
//!   record, as it will be forgotten too; what is added from then on does.

use super::record::HEADER;
use super::server_log::{Kind, Place, Segment, Server, TotalBytes, Turn};
use std::io;
use std::sync::atomic::Ordering::Relaxed;

/// A segment of so many bytes is closed. It is read whole to be replayed.
const SEGMENT_BYTES_MAX: u64 = 4 << 20;

impl Server {
    /// The writer is about to keep `bytes` more.
    pub(super) fn begin(&self, bytes: u64, bytes_max: u64, total: &TotalBytes, total_bytes_max: u64) -> Place {
        let mut state = self.state();
        let owed: u64 = state.segments.iter().map(|segment| segment.bytes).sum();
        let place = match state.segments.back() {
            Some(Segment { kind: Kind::Forget { is_durable: true, is_begun: false }, .. }) => return Place::Covered,
            _ if owed + bytes > bytes_max || total.load(Relaxed) + bytes > total_bytes_max => {
                Place::Forget { number: state.next_number }
            }
            Some(Segment { number, bytes: at, kind: Kind::Deletes { is_closed: false, .. } })
                if *at < SEGMENT_BYTES_MAX =>
            {
                Place::Segment { number: *number, at: *at }
            }
            _ => Place::Segment { number: state.next_number, at: 0 },
        };
        match place {
            Place::Segment { number, at } if at > 0 => state.writing = Some(number),
            _ => state.next_number += 1,
        }
        place
    }

    /// The writer is about to let a forget stand for all that is owed.
    pub(super) fn begin_forget(&self) -> Place {
        let mut state = self.state();
        if let Some(Segment { kind: Kind::Forget { is_durable: true, is_begun: false }, .. }) = state.segments.back() {
            return Place::Covered;
        }
        let number = state.next_number;
        state.next_number += 1;
        Place::Forget { number }
    }

    /// The writer is done. On success the fence is up, and `true` says that somebody must begin to work it off. What
    /// has become of no use is put into `dropped`: the numbers of segments to remove.
    pub(super) fn end(
        &self,
        place: Place,
        written: Result<(u64, u64), &io::Error>,
        total: &TotalBytes,
        dropped: &mut Vec<u64>,
    ) -> bool {
        let mut state = self.state();
        state.writing = None;
        self.settled.notify_one();
        match (place, written) {
            // The fence is up for the forget that covers it; or no more, and then the server has forgotten since.
            (Place::Covered, _) => return false,
            (Place::Forget { .. } | Place::Segment { at: 0, .. }, Err(_)) => {}
            (Place::Segment { number, at: 0 }, Ok((records, bytes))) => {
                let kind = Kind::Deletes { records, is_closed: false };
                let bytes = bytes + HEADER.len() as u64;
                total.fetch_add(bytes, Relaxed);
                state.segments.push_back(Segment { number, bytes, kind });
            }
            (Place::Segment { number, .. }, written) => {
                let segment = state.segments.iter_mut().find(|segment| segment.number == number);
                let segment = segment.expect("who replays does not drop a segment that is written to");
                let Kind::Deletes { records, is_closed } = &mut segment.kind else { unreachable!("deletes go there") };
                match written {
                    Ok((more, bytes)) => {
                        *records += more;
                        segment.bytes += bytes;
                        total.fetch_add(bytes, Relaxed);
                    }
                    // What lies behind the good bytes now is not known, so nothing may follow it.
                    Err(_) => *is_closed = true,
                }
            }
            (Place::Forget { number }, Ok((_, bytes))) => {
                let bytes = bytes + HEADER.len() as u64;
                let freed: u64 = state.segments.iter().map(|segment| segment.bytes).sum();
                dropped.extend(state.segments.drain(..).map(|segment| segment.number));
                total.fetch_sub(freed, Relaxed);
                total.fetch_add(bytes, Relaxed);
                let kind = Kind::Forget { is_durable: true, is_begun: false };
                state.segments.push_back(Segment { number, bytes, kind });
            }
        }
        if written.is_ok() {
            self.fence.raise();
        }
        state.must_begin()
    }

    /// What to do next. At [`Turn::Done`] the task ends; whoever adds something later begins a new one.
    pub(super) fn turn(&self) -> Turn {
        let mut state = self.state();
        let writing = state.writing;
        if !state.is_configured && writing.is_none() {
            state.is_replayed = false;
            self.lower_if_free(&state);
            return Turn::Done;
        }
        match state.segments.front_mut() {
            None => {
                state.is_replayed = false;
                self.lower_if_free(&state);
                Turn::Done
            }
            Some(segment) if Some(segment.number) == writing => Turn::Wait,
            Some(Segment { number, bytes, kind: Kind::Deletes { is_closed, .. } }) => {
                *is_closed = true;
                Turn::Deletes { number: *number, bytes: *bytes }
            }
            Some(Segment { number, kind: Kind::Forget { is_begun, .. }, .. }) => {
                *is_begun = true;
                Turn::Forget { number: *number }
            }
        }
    }

    /// The server may not have forgotten: what is added from now on will be, at the next attempt.
    pub(super) fn forget_failed(&self, number: u64) {
        for segment in &mut self.state().segments {
            if let Kind::Forget { is_begun, .. } = &mut segment.kind
                && segment.number == number
            {
                *is_begun = false;
            }
        }
    }

    /// A segment cannot be read any more: nobody knows what is owed.
    pub(super) fn lose(&self, number: u64) {
        for segment in &mut self.state().segments {
            if segment.number == number {
                segment.kind = Kind::Forget { is_durable: false, is_begun: false };
            }
        }
    }

    /// A segment is worked off. False if it had been dropped meanwhile.
    pub(super) fn done(&self, number: u64, total: &TotalBytes) -> bool {
        let mut state = self.state();
        match state.segments.front() {
            Some(segment) if segment.number == number => {
                total.fetch_sub(segment.bytes, Relaxed);
                state.segments.pop_front();
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::server_log::Owed;
    use lookaside_client::TkoTrackers;
    use lookaside_routing::Address;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    /// Three appends and their replay, step by step, in the order that a schedule says: every order is tried.
    struct Play {
        server: Arc<Server>,
        total: TotalBytes,
        bytes_max: u64,
        /// What a segment's file holds: the numbers of appends; and which segments are forgets.
        files: BTreeMap<u64, Vec<usize>>,
        forgets: Vec<u64>,
        writing: Option<(usize, Place)>,
        next_append: usize,
        /// Of each append.
        is_acknowledged: [bool; APPENDS],
        is_carried_out: [bool; APPENDS],
        /// Begun before the server was told to forget, so forgotten with all else.
        is_replaying: bool,
        sending: Option<Turn>,
    }

    const APPENDS: usize = 3;
    const APPEND_BYTES: u64 = 100;

    impl Play {
        fn new(bytes_max: u64) -> Play {
            let address = Address("here:1".into());
            let fence = TkoTrackers::new().fence(&address);
            let server = Server::new(address, "here".into(), fence);
            assert!(!server.configure(), "nothing is owed yet");
            Play {
                server,
                total: TotalBytes::new(0),
                bytes_max,
                files: BTreeMap::new(),
                forgets: Vec::new(),
                writing: None,
                next_append: 0,
                is_acknowledged: [false; APPENDS],
                is_carried_out: [false; APPENDS],
                is_replaying: false,
                sending: None,
            }
        }

        /// False when the writer has nothing left to do.
        fn write(&mut self) -> bool {
            match self.writing.take() {
                None if self.next_append == APPENDS => return false,
                None => {
                    let place = self.server.begin(APPEND_BYTES, self.bytes_max, &self.total, u64::MAX);
                    match place {
                        Place::Covered => {}
                        Place::Segment { number, .. } => self.files.entry(number).or_default().push(self.next_append),
                        Place::Forget { number } => self.forgets.push(number),
                    }
                    self.writing = Some((self.next_append, place));
                    self.next_append += 1;
                }
                Some((append, place)) => {
                    let mut dropped = Vec::new();
                    self.is_replaying |= self.server.end(place, Ok((1, APPEND_BYTES)), &self.total, &mut dropped);
                    dropped.iter().for_each(|number| drop(self.files.remove(number)));
                    self.is_acknowledged[append] = true;
                }
            }
            true
        }

        /// False when the replayer has nothing to do.
        fn replay(&mut self) -> bool {
            if !self.is_replaying {
                return false;
            }
            match self.sending.take() {
                None => match self.server.turn() {
                    Turn::Done => self.is_replaying = false,
                    Turn::Wait => return false,
                    turn => self.sending = Some(turn),
                },
                Some(Turn::Deletes { number, .. }) => {
                    let in_file = self.files.remove(&number).unwrap_or_default();
                    in_file.into_iter().for_each(|append| self.is_carried_out[append] = true);
                    self.server.done(number, &self.total);
                }
                Some(Turn::Forget { number }) => {
                    // All that was acknowledged before the server was asked has no file of its own any more.
                    let kept: Vec<usize> = self.files.values().flatten().copied().collect();
                    for append in (0..APPENDS).filter(|append| !kept.contains(append)) {
                        self.is_carried_out[append] |= self.is_acknowledged[append] || self.is_covered(append);
                    }
                    self.server.done(number, &self.total);
                }
                Some(Turn::Done | Turn::Wait) => unreachable!("nothing to send"),
            }
            true
        }

        fn is_covered(&self, append: usize) -> bool {
            matches!(self.writing, Some((writing, Place::Covered)) if writing == append)
        }

        fn check(&self, schedule: u32) {
            for append in 0..APPENDS {
                let is_owed = self.is_acknowledged[append] && !self.is_carried_out[append];
                assert!(!is_owed || self.server.is_fenced(), "append {append} is owed unfenced: {schedule:b}");
            }
        }
    }

    #[test]
    fn in_every_order_what_is_owed_is_fenced_and_what_is_not_is_free() {
        for bytes_max in [u64::MAX, 2 * APPEND_BYTES, 1] {
            for schedule in 0..1_u32 << 16 {
                let mut play = Play::new(bytes_max);
                for step in 0..16 {
                    let moved = if schedule & 1 << step == 0 { play.write() } else { play.replay() };
                    play.check(schedule);
                    if !moved && play.next_append == APPENDS && !play.is_replaying {
                        break;
                    }
                }
                while play.write() || play.replay() {
                    play.check(schedule);
                }
                assert_eq!(play.is_carried_out, [true; APPENDS], "{bytes_max} {schedule:b}");
                assert!(!play.server.is_fenced(), "nothing is owed and it is not read: {bytes_max} {schedule:b}");
                assert_eq!((play.server.owed(), play.total.load(Relaxed)), (Owed::default(), 0));
            }
        }
    }

    #[test]
    fn a_segment_that_could_not_be_written_to_is_not_written_to_again() {
        let play = Play::new(u64::MAX);
        let (server, total) = (&play.server, &play.total);
        let (mut dropped, full) = (Vec::new(), io::Error::from(io::ErrorKind::StorageFull));
        let first = server.begin(100, u64::MAX, total, u64::MAX);
        assert!(!server.end(first, Err(&full), total, &mut dropped), "nothing is owed");
        assert!(!server.is_fenced());
        let second = server.begin(100, u64::MAX, total, u64::MAX);
        assert_eq!(second, Place::Segment { number: 1, at: 0 });
        assert!(server.end(second, Ok((1, 100)), total, &mut dropped));
        let third = server.begin(100, u64::MAX, total, u64::MAX);
        assert_eq!(third, Place::Segment { number: 1, at: 108 });
        assert_eq!(server.turn(), Turn::Wait);
        server.end(third, Err(&full), total, &mut dropped);
        assert_eq!(server.begin(100, u64::MAX, total, u64::MAX), Place::Segment { number: 2, at: 0 });
        assert_eq!(server.turn(), Turn::Deletes { number: 1, bytes: 108 });
        assert_eq!(server.owed(), Owed { records: 1, bytes: 108, forget: false });
    }

    #[test]
    fn only_deletes_that_come_before_the_server_is_told_are_covered_by_a_forget() {
        let play = Play::new(u64::MAX);
        let (server, total, mut dropped) = (&play.server, &play.total, Vec::new());
        let place = server.begin(100, 1, total, u64::MAX);
        assert_eq!(place, Place::Forget { number: 0 });
        server.end(place, Ok((1, 9)), total, &mut dropped);
        assert_eq!(server.begin(100, 1_000, total, u64::MAX), Place::Covered);
        assert_eq!(server.turn(), Turn::Forget { number: 0 });
        assert_eq!(server.begin(100, 1_000, total, u64::MAX), Place::Segment { number: 1, at: 0 });
        server.forget_failed(0);
        assert_eq!(server.begin(100, 1_000, total, u64::MAX), Place::Covered);
    }
}
