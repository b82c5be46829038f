//! What one server owes, and the protocol between those who add to it and the one who works it off.
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
//!
//! * A server may be **held** for other routers too, which owe it something ([`super::peers`]): then the fence stays up
//!   until each has released it, or has been silent for so long that the server is made to forget instead.
//!
//! No file is touched here and nothing waits under the lock.

use super::disk::Disk;
use super::peers::Debt;
use super::record::HEADER;
use lookaside_client::Fence;
use lookaside_routing::Address;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::time::Instant;

/// A segment of so many bytes is closed. It is read whole to be replayed.
pub(super) const SEGMENT_BYTES_MAX: u64 = 4 << 20;

/// A router with a spool, over its restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner(pub(super) u64);

/// Another router owes the server something.
#[derive(Clone, Copy, Debug)]
struct Hold {
    /// Of the owner's messages: what comes late is not taken for what is new.
    sequence: u64,
    until: Instant,
}

/// Routers whose last release is remembered, for each server.
const RELEASED_MAX: usize = 1_000;

/// Bytes that all servers together owe.
pub(super) type TotalBytes = AtomicU64;

/// One server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: Address,
    pub(super) folder: String,
    fence: Fence,
    state: Mutex<State>,
    /// The writer has let go of a segment.
    settled: Notify,
    /// Somebody cannot wait for the next attempt.
    hurried: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The oldest first.
    segments: VecDeque<Segment>,
    next_number: u64,
    /// The segment that the writer is about to extend.
    writing: Option<u64>,
    /// Whether there is a task that works it off.
    is_replayed: bool,
    /// Routers that owe it something.
    holds: BTreeMap<Owner, Hold>,
    /// The number of the message by which each released it last.
    released: BTreeMap<Owner, u64>,
    /// Whether a configuration of this run names the server.
    is_configured: bool,
}

#[derive(Clone, Debug)]
struct Segment {
    number: u64,
    bytes: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Deletes {
        records: u64,
        is_closed: bool,
    },
    /// `is_durable`: a file says so, whatever happens. `is_begun`: the server may be about to forget.
    Forget {
        is_durable: bool,
        is_begun: bool,
    },
}

/// Where the writer puts something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nowhere: all will be forgotten.
    Covered,
    /// Behind the `at` bytes of this segment; at 0 it is a new one.
    Segment { number: u64, at: u64 },
    /// A new segment that is one forget: what is owed has become too much.
    Forget { number: u64 },
}

/// What the replayer does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Send the records in the first `bytes` of this segment.
    Deletes { number: u64, bytes: u64 },
    /// Tell the server to forget.
    Forget { number: u64 },
    /// Wait until the writer has let go.
    Wait,
    /// Nothing is owed, and the fence is down unless others owe something.
    Done,
}

/// What was found on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A segment with so many deletes.
    Deletes { records: u64, bytes: u64 },
    /// A segment whose content stands for all that came before; is it sure to be found so again?
    Forget { is_durable: bool, bytes: u64 },
}

/// How much a server owes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// Deletes that are kept.
    pub records: u64,
    /// Their bytes on disk.
    pub bytes: u64,
    /// Whether all that it holds is to be forgotten.
    pub forget: bool,
}

impl Owed {
    /// Whether the server may be read.
    pub fn is_nothing(&self) -> bool {
        self.records == 0 && !self.forget
    }
}

/// The name of a segment's file.
pub(super) fn file_name(number: u64) -> String {
    format!("{number:016}.deletes")
}

/// The number in a segment's name.
pub(super) fn file_number(name: &str) -> Option<u64> {
    name.strip_suffix(".deletes").filter(|digits| digits.len() == 16)?.parse().ok()
}

impl Server {
    pub(super) fn new(address: Address, folder: String, fence: Fence) -> Arc<Server> {
        let (settled, hurried) = (Notify::new(), Notify::new());
        Arc::new(Server { address, folder, fence, state: Mutex::default(), settled, hurried })
    }

    /// Nothing panics under the lock; if it did, the state is still whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether deletes go to the spool without asking the server.
    pub(super) fn is_fenced(&self) -> bool {
        self.fence.is_raised()
    }

    pub(super) fn owed(&self) -> Owed {
        let state = self.state();
        let mut owed = Owed::default();
        for segment in &state.segments {
            owed.bytes += segment.bytes;
            match segment.kind {
                Kind::Deletes { records, .. } => owed.records += records,
                Kind::Forget { .. } => owed.forget = true,
            }
        }
        owed
    }

    /// What peers are told of it.
    pub(super) fn debt(&self) -> Debt {
        let state = self.state();
        match (state.segments.is_empty(), state.is_configured) {
            (true, _) => Debt::Nothing,
            (false, true) => Debt::Owed,
            (false, false) => Debt::Abandoned,
        }
    }

    /// Takes up what was found on disk, before anybody is served.
    pub(super) fn find(&self, number: u64, found: Found, total: &TotalBytes) {
        let mut state = self.state();
        state.next_number = state.next_number.max(number + 1);
        let (bytes, kind) = match found {
            Found::Deletes { records, bytes } => (bytes, Kind::Deletes { records, is_closed: true }),
            Found::Forget { is_durable, bytes } => (bytes, Kind::Forget { is_durable, is_begun: false }),
        };
        state.segments.push_back(Segment { number, bytes, kind });
        total.fetch_add(bytes, Relaxed);
        self.fence.raise();
    }

    /// Another router owes the server something, says its message `sequence`, which counts until `until`.
    pub(super) fn hold(&self, owner: Owner, sequence: u64, until: Instant) {
        let mut state = self.state();
        let hold = state.holds.entry(owner).or_insert(Hold { sequence, until });
        if hold.sequence <= sequence {
            *hold = Hold { sequence, until };
        }
        self.fence.raise();
    }

    /// Whether the owner has taken back since what it says in its message `sequence`.
    pub(super) fn is_outdated(&self, owner: Owner, sequence: u64) -> bool {
        self.state().released.get(&owner).is_some_and(|released| sequence < *released)
    }

    /// Whether it is held for `owner`.
    pub(super) fn is_held_for(&self, owner: Owner) -> bool {
        self.state().holds.contains_key(&owner)
    }

    /// For how many other routers it is held.
    pub(super) fn holds(&self) -> usize {
        self.state().holds.len()
    }

    /// The other router owes nothing more, says its message `sequence`. False if something newer was said.
    pub(super) fn release(&self, owner: Owner, sequence: u64) -> bool {
        let mut state = self.state();
        let is_newest = state.holds.get(&owner).is_some_and(|hold| hold.sequence < sequence);
        if is_newest {
            state.holds.remove(&owner);
            if state.released.len() >= RELEASED_MAX {
                // A message that was held up so long is no worse than a router that is silent: the server forgets.
                state.released.clear();
            }
            state.released.insert(owner, sequence);
            self.lower_if_free(&state);
        }
        is_newest
    }

    /// The server will forget, so the hold of a router that is still silent counts no more. False if it has spoken since.
    pub(super) fn expire(&self, owner: Owner, now: Instant) -> bool {
        let mut state = self.state();
        let is_silent = state.holds.get(&owner).is_some_and(|hold| hold.until <= now);
        if is_silent {
            state.holds.remove(&owner);
            self.lower_if_free(&state);
        }
        is_silent
    }

    /// Routers that have been silent for too long.
    pub(super) fn overdue(&self, now: Instant) -> Vec<Owner> {
        self.state().holds.iter().filter(|(_, hold)| hold.until <= now).map(|(owner, _)| *owner).collect()
    }

    fn lower_if_free(&self, state: &State) {
        if state.segments.is_empty() && state.holds.is_empty() {
            self.fence.lower();
        }
    }

    /// The number of the next segment.
    pub(super) fn skip_number(&self, number: u64) {
        let mut state = self.state();
        state.next_number = state.next_number.max(number + 1);
    }

    /// A configuration names the server. True if somebody must begin to work off what it owes.
    pub(super) fn configure(&self) -> bool {
        let mut state = self.state();
        state.is_configured = true;
        state.must_begin()
    }

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

    /// Resolves when the writer has let go of a segment, perhaps before this was called.
    pub(super) async fn settled(&self) {
        self.settled.notified().await;
    }

    /// Makes the next attempt come at once.
    pub(super) fn hurry(&self) {
        self.hurried.notify_one();
    }

    /// Resolves when somebody cannot wait.
    pub(super) async fn hurried(&self) {
        self.hurried.notified().await;
    }

    /// Removes what is of no use. That a file stays is only a nuisance: it is sent once more after a restart.
    pub(super) fn remove(&self, disk: &dyn Disk, numbers: &[u64]) {
        for &number in numbers {
            if let Err(error) = disk.remove(&self.folder, &file_name(number)) {
                tracing::warn!(server = %self.address, %error, "a file of the spool that is done with stays");
            }
        }
    }
}

impl State {
    fn must_begin(&mut self) -> bool {
        let begins = self.is_configured && !self.is_replayed && !self.segments.is_empty();
        self.is_replayed |= begins;
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_client::Standings;
    use std::collections::BTreeMap;

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
            let fence = Standings::new().fence(&address);
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
    fn of_two_messages_of_a_router_the_newer_counts_whichever_comes_last() {
        let server = Play::new(u64::MAX).server;
        let (owner, until) = (Owner(7), Instant::now() + std::time::Duration::from_secs(1));
        server.hold(owner, 3, until);
        assert!(!server.release(owner, 2), "held up on an old connection");
        assert!(server.is_fenced());
        assert!(server.release(owner, 4) && !server.is_fenced());
        assert!(server.is_outdated(owner, 3) && !server.is_outdated(owner, 5));
        server.hold(owner, 5, until);
        assert!(!server.expire(owner, Instant::now()) && server.is_fenced(), "it has spoken lately");
        assert!(server.expire(owner, until) && !server.is_fenced());
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
