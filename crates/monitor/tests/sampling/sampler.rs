//! The sampler against a model: commits, deletes that arrive or are lost, refills, clusters that do not answer, and
//! restarts. Its counts must be those of the model.

use lookaside_invalidator::{Commit, Commits, Position};
use lookaside_monitor::sampling::{
    AgeBounds, AgeCounts, EndOfLog, Finding, Look, Moment, Sampler, SamplerOptions, SavedSampler, Seen, SeenItem,
    Verdict,
};
use proptest::{collection::vec, prelude::*};
use std::{collections::VecDeque, time::SystemTime};

const AGES_S: [u32; 3] = [1, 10, 60];
const LOG: &str = "log";
/// The last saves that a crash may leave behind.
const SAVES_MAX: usize = 3;
/// How much a crash may delay the time at which a delete is read, and another crash that at which it is asked about.
const CRASH_LATE_MS: u64 = 2 * 50 * (SAVES_MAX as u64 + 1);
/// The time between two crashes: it must not be two that delay the same thing.
const CRASHES_APART_MS: u64 = 4_000;

fn options(pending_max: usize) -> SamplerOptions {
    SamplerOptions { one_in: 1, ages_s: AGES_S.into(), pending_max }
}

fn covers(position: &Position, other: &Position) -> bool {
    let number = |position: &Position| position.0.parse::<u64>().expect("a number");
    number(position) >= number(other)
}

/// What becomes of a key's value in a cluster after the commit of its delete, in milliseconds after the commit.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// The delete arrives, and nothing is filled.
    Deleted { after_ms: u64 },
    /// The delete arrives, and the key is filled again.
    Refilled { deleted_after_ms: u64, filled_after_ms: u64 },
    /// Nothing was cached.
    NeverCached,
    /// The delete is lost.
    Lost,
    /// The servers do not answer.
    Unreachable,
}

/// The verdict of the checker, which knows what was stored when.
fn expected(fate: Fate, age_s: u32, found: &mut AgeCounts) {
    let age_ms = u64::from(age_s) * 1_000;
    let count = match fate {
        Fate::Unreachable => &mut found.failed,
        Fate::NeverCached => &mut found.absent,
        Fate::Lost => &mut found.old,
        Fate::Deleted { after_ms } if after_ms > age_ms => &mut found.old,
        Fate::Deleted { .. } => &mut found.absent,
        Fate::Refilled { deleted_after_ms, .. } if deleted_after_ms > age_ms => &mut found.old,
        Fate::Refilled { filled_after_ms, .. } if filled_after_ms > age_ms => &mut found.absent,
        Fate::Refilled { .. } => &mut found.new,
    };
    *count += 1;
}

/// A look may come `late_ms` after its time at the most.
fn fate(late_ms: u64) -> impl Strategy<Value = Fate> {
    // Not at the very moment of a look.
    let is_between = move |ms: &u64| AGES_S.iter().all(|s| ms.abs_diff(u64::from(*s) * 1_000) > 200 + late_ms);
    let late = move || (5..70_000_u64).prop_filter("at a look", is_between);
    prop_oneof![
        late().prop_map(|after_ms| Fate::Deleted { after_ms }),
        // Filled after the first look.
        (late(), late()).prop_map(move |(a, b)| Fate::Refilled {
            deleted_after_ms: a.min(b),
            filled_after_ms: a.max(b) + 60 + late_ms
        }),
        Just(Fate::NeverCached),
        Just(Fate::Lost),
        Just(Fate::Unreachable),
    ]
}

/// A commit of one key, at a time in milliseconds, and its fate in each cluster.
#[derive(Clone, Debug)]
struct Change {
    at_ms: u64,
    fates: [Fate; 2],
}

impl Change {
    fn look(&self, cluster: usize, now: Moment) -> Look {
        /// The value is a minute old when the commit comes.
        const OLD_FOR_MS: u64 = 60_000;
        let item = |cas: u64, stored_ms: u64| {
            let age_ms = now.ms - stored_ms;
            let age = AgeBounds { min_ms: age_ms.saturating_sub(500), max_ms: Some(age_ms + 500) };
            Seen::Item(SeenItem { cas, age: Some(age) })
        };
        let old = || item(1, self.at_ms - OLD_FOR_MS);
        let seen = match self.fates[cluster] {
            Fate::Unreachable => Seen::Failed("it does not answer".into()),
            Fate::NeverCached => Seen::Absent,
            Fate::Lost => old(),
            Fate::Deleted { after_ms: ms } | Fate::Refilled { deleted_after_ms: ms, .. }
                if now.ms < self.at_ms + ms =>
            {
                old()
            }
            Fate::Refilled { filled_after_ms, .. } if now.ms >= self.at_ms + filled_after_ms => {
                item(2, self.at_ms + filled_after_ms)
            }
            Fate::Deleted { .. } | Fate::Refilled { .. } => Seen::Absent,
        };
        Look { from: format!("router {cluster}"), sent_at: now, received_at: now, seen, servers: None }
    }
}

/// The monitor's world: time goes on in steps of 50 ms, and each is a chance to ask.
struct World {
    changes: Vec<Change>,
    sampler: Sampler,
    /// What was found of old values.
    old: Vec<Finding>,
    /// What was saved at the last steps, the last one first, for a crash.
    saved: VecDeque<SavedSampler>,
}

impl World {
    fn new(changes: Vec<Change>, pending_max: usize) -> World {
        let mut sampler = Sampler::new(options(pending_max), [("one", "east"), ("one", "west")]);
        sampler.start_reading(LOG, &Position("0".into()));
        World { changes, sampler, old: Vec::new(), saved: VecDeque::new() }
    }

    /// What is committed and asked at this time.
    fn step(&mut self, now: Moment) {
        let committed = |ms: u64| self.changes.iter().filter(|change| change.at_ms <= ms).count();
        if now.ms.is_multiple_of(1_000) {
            let position = Position(committed(now.ms).to_string());
            self.sampler.add_end_of_log(LOG, EndOfLog { begun_at: now, position });
        }
        // Behind the position: after a crash also what was read before.
        let read: usize = self.sampler.position().map_or(0, |position| position.0.parse().expect("a number"));
        let new: Vec<Commit> = (read..committed(now.ms))
            .map(|index| Commit {
                position: Position((index + 1).to_string()),
                keys: vec![index.to_string().into_bytes()],
                committed_at: SystemTime::UNIX_EPOCH,
            })
            .collect();
        let position = Position(committed(now.ms).to_string());
        self.sampler.add_commits(&Commits { commits: new, position }, now, &covers);
        for cluster in 0..2 {
            while let Some(batch) = self.sampler.clusters[cluster].due(now, 3) {
                let looks = batch.samples.iter().map(|sample| {
                    let index: usize = String::from_utf8_lossy(&sample.key).parse().expect("a number");
                    vec![self.changes[index].look(cluster, now)]
                });
                let looks = looks.collect();
                let findings = self.sampler.clusters[cluster].record(batch, looks);
                self.old.extend(findings.into_iter().filter(|finding| finding.verdict == Verdict::Old));
            }
        }
    }

    /// Saves the state, as the monitor does from time to time.
    fn save(&mut self) {
        self.saved.push_front(self.sampler.save());
        self.saved.truncate(SAVES_MAX);
    }

    /// The monitor is killed, and starts again with what it has saved some steps before.
    fn crash(&mut self, steps_before: usize) {
        let Some(saved) = self.saved.drain(..).nth(steps_before) else { return };
        self.sampler = Sampler::new(options(100), [("one", "east"), ("one", "west")]);
        self.sampler.restore(saved);
        let position = self.sampler.resume_from(LOG).expect("it has read the log");
        self.sampler.start_reading(LOG, &position);
    }

    /// The monitor is killed, and starts again with what it has saved at last.
    fn restart(&mut self) {
        let saved = serde_json::to_string(&self.sampler.save()).expect("JSON");
        let mut sampler = Sampler::new(options(100), [("one", "east"), ("one", "west")]);
        sampler.restore(serde_json::from_str(&saved).expect("a state"));
        assert_eq!(sampler.resume_from(LOG), self.sampler.resume_from(LOG));
        self.sampler = sampler;
    }

    fn counts(&self, cluster: usize) -> Vec<AgeCounts> {
        self.sampler.clusters[cluster].counts().map(|(_, counts)| *counts).collect()
    }
}

const BEGIN_MS: u64 = 100_000;
const END_MS: u64 = 200_000;

fn steps(from_ms: u64, to_ms: u64) -> impl Iterator<Item = Moment> {
    (from_ms..to_ms).step_by(50).map(|ms| Moment { ms })
}

fn changes(late_ms: u64) -> impl Strategy<Value = Vec<Change>> {
    vec((BEGIN_MS + 2_000..BEGIN_MS + 20_000, [fate(late_ms), fate(late_ms)]), 1..12).prop_map(|mut changes| {
        changes.sort_by_key(|(at_ms, _)| *at_ms);
        changes.into_iter().map(|(at_ms, fates)| Change { at_ms, fates }).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn counts_are_those_of_the_checker(changes in changes(0), restarts_ms in vec(BEGIN_MS..END_MS, 0..3)) {
        let mut world = World::new(changes.clone(), 100);
        for now in steps(BEGIN_MS, END_MS) {
            world.step(now);
            if restarts_ms.iter().any(|ms| (now.ms..now.ms + 50).contains(ms)) {
                world.restart();
            }
        }
        for cluster in 0..2 {
            let mut wanted = vec![AgeCounts::default(); AGES_S.len()];
            for (found, age_s) in wanted.iter_mut().zip(AGES_S) {
                changes.iter().for_each(|change| expected(change.fates[cluster], age_s, found));
            }
            prop_assert_eq!(world.counts(cluster), wanted);
            prop_assert_eq!(world.sampler.clusters[cluster].pending(), 0);
        }
        prop_assert_eq!(world.sampler.counts.sampled, changes.len() as u64);
        let old: u64 = (0..2).flat_map(|cluster| world.counts(cluster)).map(|counts| counts.old).sum();
        prop_assert_eq!(world.old.len() as u64, old);
    }

    /// What was read and asked since the save is read and asked again, and counted once.
    #[test]
    fn a_crash_after_a_save_loses_no_delete_and_counts_none_twice(
        changes in changes(CRASH_LATE_MS),
        // Soon after commits, and at looks, there is most to lose.
        crashes in vec((0..12_usize, 0..AGES_S.len() + 1, 0..400_u64, 0..SAVES_MAX), 1..6),
    ) {
        let mut crashes: Vec<(u64, usize)> = crashes
            .into_iter()
            .map(|(change, age, after_ms, steps_before)| {
                let age_s = age.checked_sub(1).map_or(0, |age| AGES_S[age]);
                (changes[change % changes.len()].at_ms + u64::from(age_s) * 1_000 + after_ms, steps_before)
            })
            .collect();
        crashes.sort_unstable();
        crashes.dedup_by(|later, earlier| later.0 - earlier.0 < CRASHES_APART_MS);
        let mut world = World::new(changes.clone(), 100);
        for now in steps(BEGIN_MS, END_MS) {
            world.step(now);
            let crash = crashes.iter().find(|(at_ms, _)| (now.ms..now.ms + 50).contains(at_ms));
            match crash {
                Some(&(_, steps_before)) => world.crash(steps_before),
                None => world.save(),
            }
        }
        for cluster in 0..2 {
            let mut wanted = vec![AgeCounts::default(); AGES_S.len()];
            for (found, age_s) in wanted.iter_mut().zip(AGES_S) {
                changes.iter().for_each(|change| expected(change.fates[cluster], age_s, found));
            }
            prop_assert_eq!(world.counts(cluster), wanted);
        }
        let counts = world.sampler.counts;
        let number = changes.len() as u64;
        prop_assert_eq!((counts.commits, counts.deletes, counts.sampled, counts.dropped), (number, number, number, 0));
    }
}

fn change(at_ms: u64, fate: Fate) -> Change {
    Change { at_ms, fates: [fate, Fate::NeverCached] }
}

#[test]
fn looks_for_which_it_is_too_late_are_counted_and_not_made() {
    let mut world = World::new(vec![change(BEGIN_MS + 2_010, Fate::Lost)], 100);
    steps(BEGIN_MS, BEGIN_MS + 2_500).for_each(|now| world.step(now));
    // The monitor is stopped over the looks at 1 s and 10 s.
    steps(BEGIN_MS + 30_000, BEGIN_MS + 65_000).for_each(|now| world.step(now));
    let old_and_late: Vec<_> = world.counts(0).iter().map(|counts| (counts.old, counts.late)).collect();
    assert_eq!(old_and_late, [(0, 1), (0, 1), (1, 0)]);
}

#[test]
fn a_commit_that_is_read_late_is_not_asked_about_as_if_it_were_new() {
    let mut world = World::new(vec![change(BEGIN_MS + 2_010, Fate::Lost)], 100);
    steps(BEGIN_MS, BEGIN_MS + 2_000).for_each(|now| world.step(now));
    // It is in the log for 20 s before it is read, as after a restart of the monitor.
    let now = Moment { ms: BEGIN_MS + 22_000 };
    let commit =
        Commit { position: Position("1".into()), keys: vec![b"0".to_vec()], committed_at: SystemTime::UNIX_EPOCH };
    let commits = Commits { commits: vec![commit], position: Position("1".into()) };
    world.sampler.add_commits(&commits, now, &covers);
    steps(BEGIN_MS + 22_050, BEGIN_MS + 90_000).for_each(|now| {
        while let Some(batch) = world.sampler.clusters[0].due(now, 3) {
            let looks = batch.samples.iter().map(|_| vec![world.changes[0].look(0, now)]).collect();
            world.sampler.clusters[0].record(batch, looks);
        }
    });
    let old_and_late: Vec<_> = world.counts(0).iter().map(|counts| (counts.old, counts.late)).collect();
    assert_eq!(old_and_late, [(0, 1), (0, 1), (1, 0)]);
}

/// The look-ups of the log's end failed for hours. Each look at 1 s was late then, each old value was undecided, and
/// the monitor said that it was watching.
#[test]
fn without_look_ups_of_the_end_of_the_log_it_is_not_watching() {
    let mut sampler = Sampler::new(options(10), [("one", "east")]);
    let at = |ms: u64| Moment { ms: BEGIN_MS + ms };
    let look_up = |sampler: &mut Sampler, ms: u64| {
        sampler.add_end_of_log(LOG, EndOfLog { begun_at: at(ms), position: Position("0".into()) });
    };
    sampler.start_reading(LOG, &Position("0".into()));
    assert!(!sampler.is_watching(at(0)));
    look_up(&mut sampler, 0);
    assert!(sampler.is_watching(at(2_500)));
    assert!(!sampler.is_watching(at(2_501)), "a look at 1 s is late by now");
    look_up(&mut sampler, 3_000);
    assert!(sampler.is_watching(at(3_100)));
    // A state of before tells of look-ups that are long past.
    let mut restored = Sampler::new(options(10), [("one", "east")]);
    restored.restore(sampler.save());
    restored.start_reading(LOG, &Position("0".into()));
    assert!(!restored.is_watching(at(60_000)));
    sampler.stop_reading();
    assert!(!sampler.is_watching(at(3_100)));
}

#[test]
fn samples_are_bounded_and_dropped_ones_are_counted() {
    let changes = (0..5).map(|n| change(BEGIN_MS + 2_010 + n, Fate::Lost)).collect();
    let mut world = World::new(changes, 3);
    steps(BEGIN_MS, BEGIN_MS + 4_000).for_each(|now| world.step(now));
    assert_eq!((world.sampler.counts.sampled, world.sampler.counts.dropped), (3, 2));
    assert_eq!(world.counts(0)[0].old, 3);
}

#[test]
fn a_sample_is_saved_once_and_restored_in_every_cluster() {
    // Each cluster had a copy of the key and the position of every sample.
    let names: Vec<String> = (0..200).map(|n| format!("cluster-{n}")).collect();
    let sampler = |names: &[String]| {
        let clusters = names.iter().map(|name| (name.as_str(), "east"));
        Sampler::new(SamplerOptions { pending_max: 10, ..options(10) }, clusters)
    };
    let mut watching = sampler(&names);
    watching.start_reading(LOG, &Position("0".into()));
    let long = "k".repeat(250).into_bytes();
    let commit = Commit { position: Position("1".into()), keys: vec![long], committed_at: SystemTime::UNIX_EPOCH };
    let commits = Commits { commits: vec![commit], position: Position("1".into()) };
    watching.add_commits(&commits, Moment { ms: 1_000 }, &covers);
    let saved = serde_json::to_string(&watching.save()).expect("JSON");
    assert_eq!(saved.matches("kkkk").count(), 250 / 4);
    let mut restored = sampler(&names);
    restored.restore(serde_json::from_str(&saved).expect("a state"));
    assert!(restored.clusters.iter().all(|cluster| cluster.pending() == 1));
    assert_eq!(restored.counts.dropped, 0);
    // An age that is no longer asked at: the sample is dropped once, not once in each cluster.
    let mut batch = |cluster: usize| {
        let batch = watching.clusters[cluster].due(Moment { ms: 1_010 }, 1).expect("the first look is due");
        watching.clusters[cluster].record(batch, vec![Vec::new()]);
    };
    (0..names.len()).for_each(&mut batch);
    let clusters = names.iter().map(|name| (name.as_str(), "east"));
    let mut other_ages = Sampler::new(SamplerOptions { ages_s: vec![7], ..options(10) }, clusters);
    other_ages.restore(watching.save());
    assert_eq!((other_ages.counts.dropped, other_ages.clusters[0].pending()), (1, 0));
}

#[test]
fn a_value_that_comes_back_after_it_was_gone_is_found() {
    // The gutter answered at first: nothing was there. Then the server came back with the old value.
    let mut world = World::new(vec![change(BEGIN_MS + 2_010, Fate::NeverCached)], 100);
    steps(BEGIN_MS, BEGIN_MS + 4_000).for_each(|now| world.step(now));
    assert_eq!(world.counts(0)[0].absent, 1);
    world.changes[0].fates[0] = Fate::Lost;
    steps(BEGIN_MS + 4_000, BEGIN_MS + 15_000).for_each(|now| world.step(now));
    assert_eq!(world.counts(0)[1].old, 1);
}

#[test]
fn samples_of_another_boot_are_dropped_and_counted_and_counts_stay() {
    let mut world = World::new(vec![change(BEGIN_MS + 2_010, Fate::Lost)], 100);
    steps(BEGIN_MS, BEGIN_MS + 4_000).for_each(|now| world.step(now));
    let mut saved = world.sampler.save();
    saved.drop_times();
    let mut sampler = Sampler::new(options(100), [("one", "east"), ("one", "west")]);
    sampler.restore(saved);
    assert_eq!((sampler.counts.sampled, sampler.counts.dropped), (1, 1));
    assert_eq!(sampler.clusters[0].pending(), 0);
    assert_eq!(sampler.clusters[0].counts().next().map(|(_, counts)| counts.old), Some(1));
}

#[test]
fn every_server_of_a_cluster_counts_and_the_worst_is_its_verdict() {
    let mut world = World::new(vec![change(BEGIN_MS + 2_010, Fate::Lost)], 100);
    steps(BEGIN_MS, BEGIN_MS + 2_100).for_each(|now| world.step(now));
    let now = Moment { ms: BEGIN_MS + 4_000 };
    let cluster = &mut world.sampler.clusters[0];
    let batch = cluster.due(now, 3).expect("a look is due");
    let absent = Look { from: "server 0".into(), sent_at: now, received_at: now, seen: Seen::Absent, servers: None };
    let failed = Look { from: "server 1".into(), seen: Seen::Failed("closed".into()), ..absent.clone() };
    let old = Look { from: "server 2".into(), ..world.changes[0].look(0, now) };
    let findings = cluster.record(batch, vec![vec![absent, failed, old]]);
    assert_eq!(findings.iter().map(|finding| finding.verdict).collect::<Vec<_>>(), [Verdict::Old]);
    let looks: Vec<_> = findings[0].looks.iter().map(|(verdict, look)| (*verdict, look.from.as_str())).collect();
    assert_eq!(looks, [(Verdict::Absent, "server 0"), (Verdict::Failed, "server 1"), (Verdict::Old, "server 2")]);
    assert_eq!(cluster.counts().next().map(|(_, counts)| (counts.old, counts.failed)), Some((1, 0)));
}

/// The first look has found nothing. The monitor is restarted, and asks another server, which has had a value all
/// along.
#[test]
fn a_first_look_at_another_server_does_not_make_an_item_new() {
    let mut world = World::new(vec![change(BEGIN_MS + 2_010, Fate::NeverCached)], 100);
    steps(BEGIN_MS, BEGIN_MS + 2_100).for_each(|now| world.step(now));
    world.restart();
    let now = Moment { ms: BEGIN_MS + 4_000 };
    let cluster = &mut world.sampler.clusters[0];
    let batch = cluster.due(now, 3).expect("a look is due");
    let age = AgeBounds { min_ms: 0, max_ms: Some(3_000) };
    let seen = Seen::Item(SeenItem { cas: 1, age: Some(age) });
    let look = Look { from: "another server".into(), sent_at: now, received_at: now, seen, servers: None };
    let findings = cluster.record(batch, vec![vec![look]]);
    assert_eq!(findings.iter().map(|finding| finding.verdict).collect::<Vec<_>>(), [Verdict::Undecided]);
}
