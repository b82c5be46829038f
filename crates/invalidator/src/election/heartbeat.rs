//! The heartbeat of the active invalidator, by which a standby finds within a second that it hangs.
//!
//! ```text
//! active:   takes the next of eight locks beside that of its session, and frees the last one, ten times a second
//! standby:  looks which of them are held; no change for as long as the record states  ->  replaces it
//! ```
//!
//! A beat is no write, so it moves no position. It shows when to try; whether a record is replaced is decided by its
//! version, as ever.
//!
//! Invariants:
//! * The record states for how long beats may be missing: twice the longest time between two beats of the last minutes,
//!   [`HUNG_AFTER_MIN`] at least. So an invalidator on a loaded machine is not taken for hung again and again: each
//!   time that it was wrongly, the next one takes at least twice as long.
//! * Missing beats count only if beats were seen before, of the same session, over the same connection of the standby.
//! * A standby that was hung or slow itself takes no other for hung: it has to look several times in between.

use super::{
    record::{EXPIRES_AFTER, RecordVersion},
    session_lock::{LockSighting, SessionLock},
};
use lookaside_sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// How often the active one shows that it lives, and how often a standby looks.
pub(super) const BEAT_EVERY: Duration = Duration::from_millis(100);
/// The shortest time without a beat after which the active one counts as hung.
const HUNG_AFTER_MIN: Duration = Duration::from_millis(500);
/// How often a standby must have looked in that time.
const LOOKS_MIN: u32 = 3;
/// A pause between beats counts for this long, and up to twice as long.
const PAUSES_COUNT_FOR: Duration = Duration::from_secs(300);

/// The beats of this process: those that it sends while it is active, and the looks at those of another one while it is
/// a standby, which are delayed by the same things.
#[derive(Default)]
pub(super) struct OwnHeartbeat(Mutex<Beats>);

#[derive(Default)]
struct Beats {
    /// `None` after a failure: the time until the next one says nothing about this process.
    last: Option<Instant>,
    /// The last beat or renewal, whatever has failed since; `None` before the first.
    last_sign: Option<Instant>,
    /// The longest pause since the last renewal. One that a failure has ended counts: a standby may have seen it.
    longest_since_renewal: Duration,
    /// The longest pause in this period and in the one before, and when this one began; `None` before the first beat.
    longest: Duration,
    longest_before: Duration,
    period_began_at: Option<Instant>,
}

impl OwnHeartbeat {
    /// There was a beat now.
    pub fn record(&self) {
        let (mut beats, now) = (self.0.lock(), Instant::now());
        let pause = beats.last.replace(now).map(|last| now - last).unwrap_or_default();
        beats.last_sign = Some(now);
        let elapsed = now - *beats.period_began_at.get_or_insert(now);
        if elapsed >= PAUSES_COUNT_FOR {
            beats.longest_before = if elapsed < PAUSES_COUNT_FOR * 2 { beats.longest } else { Duration::ZERO };
            beats.longest = Duration::ZERO;
            beats.period_began_at = Some(now);
        }
        // Whatever the limit, a longer one costs the role.
        if pause < EXPIRES_AFTER {
            beats.longest = beats.longest.max(pause);
        }
        beats.longest_since_renewal = beats.longest_since_renewal.max(pause);
    }

    /// A beat failed, and with it the session.
    pub fn interrupt(&self) {
        let mut beats = self.0.lock();
        // It may have waited for seconds, in which a standby saw no beat.
        let pause = beats.last.take().map(|last| last.elapsed()).unwrap_or_default();
        beats.longest_since_renewal = beats.longest_since_renewal.max(pause);
    }

    /// The record was renewed.
    pub fn record_renewal(&self) {
        let mut beats = self.0.lock();
        beats.longest_since_renewal = Duration::ZERO;
        beats.last_sign = Some(Instant::now());
    }

    /// The longest time without a beat since the last renewal, until now.
    pub fn pause(&self) -> Duration {
        let beats = self.0.lock();
        beats.longest_since_renewal.max(beats.last.map(|last| last.elapsed()).unwrap_or_default())
    }

    /// The same, with the time since a failure, in which no standby can have seen a beat.
    pub fn silence(&self) -> Duration {
        let last_sign = self.0.lock().last_sign;
        self.pause().max(last_sign.map(|at| at.elapsed()).unwrap_or_default())
    }

    /// After which time without a beat a standby may take this process for hung.
    pub fn hung_after(&self) -> Duration {
        let beats = self.0.lock();
        (beats.longest.max(beats.longest_before) * 2).clamp(HUNG_AFTER_MIN, EXPIRES_AFTER)
    }
}

/// What a standby has seen of the active one's beats.
#[derive(Debug, Default)]
pub(super) struct WatchedHeartbeat {
    /// `None` if nothing is known of the session that the record names.
    seen: Option<SeenBeat>,
}

#[derive(Debug)]
struct SeenBeat {
    lock: SessionLock,
    connection: u64,
    /// What showed last that the active one lives: its beat, or a renewal.
    beat: u8,
    version: RecordVersion,
    /// When that was seen, and how often it was seen again.
    since: Instant,
    looks: u32,
    /// Whether a beat was seen over this connection.
    is_beating: bool,
}

impl WatchedHeartbeat {
    /// Takes a sighting of the lock that the record of `version` names; `None` if it could not be looked up. Returns
    /// whether the active one has not shown that it lives for `hung_after`; never if that is `None`.
    pub fn observe(
        &mut self,
        version: &RecordVersion,
        lock: SessionLock,
        hung_after: Option<Duration>,
        sighting: Option<LockSighting>,
    ) -> bool {
        let Some(LockSighting { beat, connection, .. }) = sighting else {
            self.seen = None;
            return false;
        };
        let (version, since) = (version.clone(), Instant::now());
        let first = SeenBeat { lock, connection, beat, version, since, looks: 0, is_beating: false };
        let known = self.seen.take_if(|seen| seen.lock == lock && seen.connection == connection);
        let seen = self.seen.insert(match known {
            None => first,
            Some(seen) if seen.beat != beat => SeenBeat { is_beating: true, ..first },
            Some(seen) if seen.version != first.version => SeenBeat { is_beating: seen.is_beating, ..first },
            Some(seen) => SeenBeat { looks: seen.looks + 1, ..seen },
        });
        let is_missing = |limit| seen.looks >= LOOKS_MIN && seen.since.elapsed() >= limit;
        seen.is_beating && hung_after.is_some_and(is_missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const LIMIT: Option<Duration> = Some(HUNG_AFTER_MIN);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn version(counter: u64) -> RecordVersion {
        RecordVersion { holder: "one".into(), counter }
    }

    fn sighting(beat: u8, connection: u64) -> Option<LockSighting> {
        Some(LockSighting { is_held: true, beat, connection })
    }

    /// Looks every `every_ms`; each look sees a beat over a connection, of a record of a version.
    async fn is_hung(every_ms: u64, hung_after: Option<Duration>, looks: &[(u8, u64, u64)]) -> bool {
        let (mut watched, mut is_hung) = (WatchedHeartbeat::default(), false);
        for (beat, connection, counter) in looks {
            advance(ms(every_ms)).await;
            is_hung = watched.observe(&version(*counter), SessionLock(1), hung_after, sighting(*beat, *connection));
        }
        is_hung
    }

    /// `looks` equal ones after a beat was seen.
    fn after_a_beat(looks: usize) -> Vec<(u8, u64, u64)> {
        [(1, 1, 1)].into_iter().chain(std::iter::repeat_n((2, 1, 1), looks)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn beats_that_stop_show_a_hang() {
        assert!(!is_hung(100, LIMIT, &after_a_beat(5)).await, "400 ms");
        assert!(is_hung(100, LIMIT, &after_a_beat(6)).await, "500 ms");
        assert!(!is_hung(100, None, &after_a_beat(50)).await, "one of an earlier version does not beat");
        assert!(!is_hung(100, LIMIT, &[(2, 1, 1); 50]).await, "no beat was ever seen");
    }

    #[tokio::test(start_paused = true)]
    async fn a_beat_or_a_renewal_is_a_sign_of_life() {
        for sign in [(3, 1, 1), (2, 1, 2)] {
            let mut looks = after_a_beat(5);
            looks.push(sign);
            looks.extend([sign; 4]);
            assert!(!is_hung(100, LIMIT, &looks).await, "{sign:?}");
            looks.push(sign);
            assert!(is_hung(100, LIMIT, &looks).await, "{sign:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn another_connection_or_session_begins_again() {
        let mut looks = after_a_beat(6);
        looks.extend([(2, 2, 1); 50]);
        assert!(!is_hung(100, LIMIT, &looks).await, "the server may be another, which has no such locks");
        let mut watched = WatchedHeartbeat::default();
        for (lock, beat) in [(1, 1), (1, 2), (2, 3), (2, 3), (2, 3), (2, 3), (2, 3), (2, 3), (2, 3)] {
            advance(ms(200)).await;
            assert!(!watched.observe(&version(1), SessionLock(lock), LIMIT, sighting(beat, 1)), "a new session");
        }
        assert!(!watched.observe(&version(1), SessionLock(2), LIMIT, None), "unknown");
    }

    #[tokio::test(start_paused = true)]
    async fn a_standby_that_was_slow_itself_looks_again() {
        assert!(!is_hung(2_000, LIMIT, &after_a_beat(3)).await);
        assert!(is_hung(2_000, LIMIT, &after_a_beat(4)).await);
    }

    /// One that needs 700 ms now and then was replaced for ever.
    #[tokio::test(start_paused = true)]
    async fn the_limit_is_twice_the_longest_pause_of_the_last_minutes() {
        let heartbeat = OwnHeartbeat::default();
        let beat_after = async |pause: Duration| {
            advance(pause).await;
            heartbeat.record();
            heartbeat.hung_after()
        };
        assert_eq!(beat_after(ms(9_000)).await, HUNG_AFTER_MIN, "the first one");
        assert_eq!(beat_after(BEAT_EVERY).await, HUNG_AFTER_MIN);
        assert_eq!(beat_after(ms(700)).await, ms(1_400));
        assert_eq!(beat_after(BEAT_EVERY).await, ms(1_400));
        assert_eq!(heartbeat.pause(), ms(700));
        heartbeat.record_renewal();
        advance(ms(300)).await;
        assert_eq!(heartbeat.pause(), ms(300));
        assert_eq!(beat_after(ms(9_000)).await, ms(1_400), "a hang is no pause");
        assert_eq!(beat_after(ms(2_900)).await, EXPIRES_AFTER);
        for _ in 0..600 {
            beat_after(ms(1_000)).await;
        }
        assert_eq!(heartbeat.hung_after(), ms(2_000), "older ones do not count");
        heartbeat.interrupt();
        assert_eq!(heartbeat.pause(), ms(9_300), "since the renewal");
        heartbeat.record_renewal();
        assert_eq!(beat_after(ms(2_900)).await, ms(2_000), "the database was away");
    }

    /// A beat that waited for two seconds, and then failed, was not counted.
    #[tokio::test(start_paused = true)]
    async fn a_failure_ends_a_pause_which_counts_until_the_renewal() {
        let heartbeat = OwnHeartbeat::default();
        heartbeat.record();
        advance(ms(2_000)).await;
        heartbeat.interrupt();
        assert_eq!(heartbeat.pause(), ms(2_000));
        advance(ms(700)).await;
        heartbeat.interrupt();
        assert_eq!((heartbeat.pause(), heartbeat.silence()), (ms(2_000), ms(2_700)));
        assert_eq!(heartbeat.hung_after(), HUNG_AFTER_MIN, "the database was away, which says nothing of this process");
        heartbeat.record_renewal();
        advance(ms(300)).await;
        assert_eq!((heartbeat.pause(), heartbeat.silence()), (Duration::ZERO, ms(300)));
    }
}
