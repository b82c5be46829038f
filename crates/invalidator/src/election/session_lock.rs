//! The lock of the active invalidator's session. A standby that has seen it held and finds it free knows that the
//! session has ended, as it does when the process is killed, and need not wait until the record expires.
//!
//! ```text
//! active:   takes lock 5     record {me, 17, lock 5}   renewed over the session that holds the lock
//! standby:  reads it;  5 is held   ...   5 is free, over the same connection  ->  {me, 18} if it is still {other, 17}
//! ```
//!
//! The lock says when to try; whether a record is replaced is decided by its version, as ever. So a lock that is lost
//! while its holder lives costs a needless takeover, and no delete.
//!
//! Invariants:
//! * A record names a lock only if the session that stores it held that lock just before. Each session has another
//!   lock, so one that ends late, after its process has reconnected, is not the one that the record names.
//! * A lock counts as freed only over the connection over which it was seen held: a server that was restarted has no
//!   locks, and another one never had them.
//! * Both look only over sessions that are their own: behind a proxy that shares its sessions, locks are not used.
//! * Beside its lock a session takes one of [`BEAT_LOCKS`] others after the other, to show that its process lives
//!   ([`super::heartbeat`]).
//! * An invalidator that finds its lock gone, or that was replaced although it had just renewed, takes no lock any
//!   more. So each process is replaced needlessly once at most.

/// How many locks a session takes in turn beside its own. A standby that looks rarely could miss one whole round; with
/// as many as these, and a renewal every second, it cannot miss several in a row.
pub(super) const BEAT_LOCKS: u64 = 8;

/// A lock, by its number. No other session has one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLock(pub u64);

impl SessionLock {
    /// The lock that the session takes with its beat `number`, beside this one.
    pub(super) fn of_beat(self, number: u64) -> SessionLock {
        SessionLock(self.0.wrapping_add(1 + number % BEAT_LOCKS))
    }

    /// The locks of all beats, in order.
    pub(super) fn of_beats(self) -> impl Iterator<Item = SessionLock> {
        (0..BEAT_LOCKS).map(move |number| self.of_beat(number))
    }

    /// As in a record: 16 hexadecimal digits.
    pub(super) fn text(self) -> String {
        format!("{:016x}", self.0)
    }

    /// Parses [`SessionLock::text`]; `None` if it is anything else.
    pub(super) fn parse(text: &str) -> Option<SessionLock> {
        let is_number = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(text, 16).ok().filter(|_| is_number).map(SessionLock)
    }
}

/// Whether the session of this invalidator holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockAttempt {
    /// It does.
    Held(SessionLock),
    /// It does not, for this reason.
    Refused(String),
}

impl LockAttempt {
    /// What the database reports when it is asked whether the session holds `lock`.
    pub(super) fn new(lock: SessionLock, looked: Looked) -> LockAttempt {
        match (looked.is_own_session, looked.is_true) {
            (false, _) => LockAttempt::Refused("a proxy between this and the database shares its sessions".into()),
            (true, false) => LockAttempt::Refused("the session does not hold its lock".into()),
            (true, true) => LockAttempt::Held(lock),
        }
    }
}

/// The answer of a database to a question about a lock.
pub(super) struct Looked {
    pub is_true: bool,
    /// As in [`LockSighting`]; 0 if that was not asked.
    pub beat: u8,
    /// Whether the session that answered is the one that the handshake named. A proxy that shares its sessions names
    /// one of its own there.
    pub is_own_session: bool,
}

impl Looked {
    /// What a standby has seen over its connection `number`; `None` if that says nothing.
    pub fn sighting(self, number: u64) -> Option<LockSighting> {
        let Looked { is_true, beat, is_own_session } = self;
        is_own_session.then_some(LockSighting { is_held: is_true, beat, connection: number })
    }
}

/// A bit for each of `conditions`, of which there are [`BEAT_LOCKS`] at most.
pub(super) fn bits(conditions: impl Iterator<Item = bool>) -> u8 {
    conditions.enumerate().fold(0, |bits, (index, is_true)| bits | u8::from(is_true) << index)
}

/// What a look-up of a lock shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockSighting {
    /// Whether a session holds it.
    pub is_held: bool,
    /// Which of the locks of its beats are held, a bit for each. Changes with every beat.
    pub beat: u8,
    /// The number of the connection over which it was looked up: another one after each reconnection.
    pub connection: u64,
}

/// What a standby has seen of the active one's lock.
#[derive(Debug, Default)]
pub(super) struct WatchedLock {
    /// The lock that was seen held, and over which connection; `None` if that says nothing about the one of the record.
    held: Option<(SessionLock, u64)>,
    is_free: bool,
}

impl WatchedLock {
    /// Takes a sighting of the lock that the record names, `None` if it could not be looked up. Returns whether the
    /// session that held it has ended.
    pub fn observe(&mut self, lock: SessionLock, sighting: Option<LockSighting>) -> bool {
        let seen = sighting.map(|sighting| (lock, sighting.connection));
        self.is_free = sighting.is_some_and(|sighting| !sighting.is_held);
        self.held = match self.is_free {
            true => self.held.filter(|held| seen == Some(*held)),
            false => seen,
        };
        self.is_free && self.held.is_some()
    }

    /// Whether the lock was held when it was looked up last.
    pub fn is_held(&self) -> bool {
        self.held.is_some() && !self.is_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(is_held: bool, connection: u64) -> Option<LockSighting> {
        Some(LockSighting { is_held, beat: 0, connection })
    }

    #[test]
    fn a_session_has_ended_if_its_lock_was_held_over_the_same_connection() {
        let (one, two) = (SessionLock(1), SessionLock(2));
        let ends = |sightings: &[(SessionLock, Option<LockSighting>)]| {
            let (mut watched, mut has_ended) = (WatchedLock::default(), None);
            for (lock, sighting) in sightings {
                has_ended = Some(watched.observe(*lock, *sighting));
            }
            has_ended
        };
        assert_eq!(ends(&[(one, seen(true, 1)), (one, seen(false, 1))]), Some(true));
        // The record may have been renewed once more before the end.
        assert_eq!(ends(&[(one, seen(true, 1)), (one, seen(false, 1)), (one, seen(false, 1))]), Some(true));
        assert_eq!(ends(&[(one, seen(true, 1))]), Some(false), "it is held");
        assert_eq!(ends(&[(one, seen(false, 1))]), Some(false), "it was never seen held");
        assert_eq!(ends(&[(one, seen(true, 1)), (one, seen(false, 2))]), Some(false), "the server may be another");
        assert_eq!(ends(&[(one, seen(true, 1)), (one, seen(false, 2)), (one, seen(false, 1))]), Some(false));
        assert_eq!(ends(&[(one, seen(true, 1)), (two, seen(false, 1))]), Some(false), "its holder has reconnected");
        assert_eq!(ends(&[(one, seen(true, 1)), (one, None), (one, seen(false, 1))]), Some(false), "unknown between");
    }

    #[test]
    fn a_lock_is_shown_as_seen_only_while_it_is_held() {
        let mut watched = WatchedLock::default();
        assert!(!watched.is_held());
        watched.observe(SessionLock(1), seen(true, 1));
        assert!(watched.is_held());
        watched.observe(SessionLock(1), seen(false, 1));
        assert!(!watched.is_held());
    }

    #[test]
    fn a_number_is_written_as_it_is_read() {
        for number in [0, 5, u64::MAX] {
            assert_eq!(SessionLock::parse(&SessionLock(number).text()), Some(SessionLock(number)));
        }
        for text in ["", "5", "000000000000000g", "+00000000000000f", "00000000000000000"] {
            assert_eq!(SessionLock::parse(text), None, "{text}");
        }
    }
}
