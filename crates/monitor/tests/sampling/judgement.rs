//! The verdict against a world in which it is known when the value was stored: "old" is never wrong, whatever the
//! clocks and delays, and is found whenever the value is some seconds older than the commit.

use lookaside_invalidator::Position;
use lookaside_monitor::sampling::{
    AgeBounds, Baseline, EndOfLog, EndsOfLog, Look, Moment, Sample, Seen, SeenItem, Verdict, judge,
};
use proptest::prelude::*;
use std::time::SystemTime;

/// The longest time that a value may be older than the commit without being found: between two look-ups of the end of
/// the log, between two marks of the server, and for a part of the time that lies between store and look.
const UNDECIDED_MS_MAX: u64 = 2_100;

/// Times in true microseconds.
#[derive(Clone, Debug)]
struct World {
    commit_us: u64,
    stored_us: u64,
    first_look_us: u64,
    look_us: u64,
    /// How long reading the commit took.
    reading_us: u64,
    /// How long a request and its answer take.
    way_us: [u64; 2],
    look_up_every_us: u64,
    /// How late the database answers a look-up.
    look_up_takes_us: u64,
    mark_every_us: u64,
    /// The first marks of the server; the server was started then.
    marks_from_us: u64,
    /// How much faster the server's clock is than the monitor's, in parts of a million.
    drift_ppm: i64,
    /// How long before a request arrives its server reads the clock.
    stall_us: u64,
}

fn world() -> impl Strategy<Value = World> {
    let seconds = |from: u64, to: u64| from * 1_000_000..to * 1_000_000;
    let commit = seconds(5_000, 5_010);
    let marks = prop_oneof![10_000..50_000_u64, 900_000..1_000_000_u64];
    (
        (commit, prop_oneof![0..100_000_u64, 0..400_000_u64, seconds(0, 20), seconds(0, 4_000)], any::<bool>()),
        (prop_oneof![seconds(0, 3), seconds(0, 4_000)], 0..300_000_u64, 0..50_000_u64, 0..50_000_u64),
        (
            prop_oneof![10_000..50_000_u64, 50_000..1_000_000_u64],
            0..20_000_u64,
            marks,
            seconds(0, 5_000),
            -900..900_i64,
            prop_oneof![Just(0), 0..4_900_000_u64],
        ),
    )
        .prop_map(|((commit_us, distance_us, is_before), (wait_us, reading_us, way_to, way_back), rest)| {
            let (look_up_every_us, look_up_takes_us, mark_every_us, marks_from_us, drift_ppm, stall_us) = rest;
            let stored_us = if is_before { commit_us - distance_us } else { commit_us + distance_us };
            let first_look_us = commit_us + reading_us;
            World {
                commit_us,
                stored_us,
                first_look_us,
                look_us: first_look_us + 100_000 + wait_us,
                reading_us,
                way_us: [way_to, way_back],
                look_up_every_us,
                look_up_takes_us,
                mark_every_us,
                marks_from_us,
                drift_ppm,
                stall_us,
            }
        })
}

fn ms(us: u64) -> Moment {
    Moment { ms: us / 1_000 }
}

impl World {
    fn sample(&self) -> Sample {
        let mut ends = EndsOfLog::default();
        let around = self.commit_us - 10_000_000..self.look_us.min(self.commit_us + 10_000_000);
        for begun_us in around.step_by(self.look_up_every_us as usize) {
            let is_found = begun_us + self.look_up_takes_us >= self.commit_us;
            let position = Position(if is_found { "1" } else { "0" }.into());
            ends.add(EndOfLog { begun_at: ms(begun_us), position });
        }
        let position = Position("1".into());
        Sample {
            key: b"k".to_vec(),
            committed_at: SystemTime::UNIX_EPOCH,
            not_before: ends.not_before(&position, |end, other| end.0 >= other.0),
            read_at: ms(self.commit_us + self.reading_us),
            position,
        }
    }

    /// A look that reaches the server at this time.
    fn look(&self, at_us: u64) -> Look {
        let seen =
            if self.stored_us > at_us { Seen::Absent } else { Seen::Item(SeenItem { cas: 1, age: self.age(at_us) }) };
        let [to, back] = self.way_us;
        Look { from: "s".into(), sent_at: ms(at_us - to), received_at: ms(at_us + back), seen, servers: None }
    }

    /// The age that the server finds with the time that it has read before the request.
    fn age(&self, at_us: u64) -> Option<AgeBounds> {
        let at_us = at_us - self.stall_us;
        let by_server_ms = |from_us: u64| {
            let us = (i128::from(at_us) - i128::from(from_us)).max(0);
            ((us + us * i128::from(self.drift_ppm) / 1_000_000) / 1_000) as u64
        };
        // The first mark at or after the store, and the last one before it.
        let marks_before = self.stored_us.saturating_sub(self.marks_from_us).div_ceil(self.mark_every_us);
        let mark_us = |number: u64| self.marks_from_us + number * self.mark_every_us;
        let later = Some(mark_us(marks_before)).filter(|&mark_us| mark_us <= at_us);
        let earlier = marks_before.checked_sub(1).map(mark_us);
        Some(AgeBounds {
            min_ms: later.map_or(0, |mark_us| by_server_ms(mark_us).saturating_sub(1)),
            max_ms: earlier.map(|mark_us| by_server_ms(mark_us) + 1),
        })
    }

    fn verdict(&self, with_first_look: bool) -> Verdict {
        let first_look = || Baseline::of(&self.look(self.first_look_us + self.way_us[0]));
        let baselines: Vec<Baseline> = with_first_look.then(first_look).flatten().into_iter().collect();
        judge(&self.sample(), &baselines, &[], &self.look(self.look_us + self.way_us[0]))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn old_is_never_wrong_and_new_is_never_wrong(world in world(), with_first_look in any::<bool>()) {
        match world.verdict(with_first_look) {
            Verdict::Old => prop_assert!(world.stored_us < world.commit_us, "called old"),
            Verdict::New => prop_assert!(world.stored_us > world.commit_us, "called new"),
            Verdict::Absent => prop_assert!(world.stored_us > world.look_us, "called absent"),
            Verdict::Undecided => {}
            Verdict::Failed => prop_assert!(false, "there was an answer"),
        }
    }

    #[test]
    fn a_value_that_is_seconds_older_than_the_commit_is_found(world in world()) {
        let older_ms = world.commit_us.saturating_sub(world.stored_us) / 1_000;
        let age_ms = (world.look_us - world.stored_us.min(world.look_us)) / 1_000;
        // The server was started before the value was stored, or long before the commit.
        let is_certain = world.marks_from_us + 3_000_000 < world.commit_us;
        if is_certain && older_ms > UNDECIDED_MS_MAX + age_ms / 500 + world.stall_us / 1_000 {
            prop_assert_eq!(world.verdict(true), Verdict::Old);
        }
    }

    #[test]
    fn a_value_that_was_stored_after_the_first_look_is_new(world in world()) {
        if world.stored_us > world.first_look_us + world.way_us[0] && world.stored_us < world.look_us {
            prop_assert_eq!(world.verdict(true), Verdict::New);
        }
    }
}
