//! The schedules of the model: when clients read and write, configurations change and routers crash. And the tests.

use super::*;

impl World {
    pub(super) fn schedule_requests(&mut self, interval_ms: usize) {
        for router in 0..self.routers.len() {
            self.at(0, Event::Poll { router, run: 0 });
        }
        for at in (0..END_MS).step_by(interval_ms) {
            // A late fill is refused if its key was written meanwhile.
            let writes = if self.has_late_fills { 6 } else { 85 };
            let event = if self.random.u8(..) < writes { Event::Write } else { Event::Read };
            self.at(at, event);
        }
    }

    pub(super) fn schedule_faults(&mut self) {
        self.schedule_requests(40);
        // All of one pool, or also those with another name for it.
        let configs = if self.random.bool() { KNOWN_CONFIGS } else { 4 };
        // The server that is in no configuration at first holds old copies.
        self.copies = (0..KEYS).map(|key| ((3, key), 0)).collect();
        if self.hanging == 0 {
            return self.schedule_calm_changes(configs);
        }
        let mut at = 0;
        while at < END_MS * 2 / 3 {
            at += if self.random.bool() { self.random.u64(0..1_000) } else { self.random.u64(1_000..14_000) };
            let config = self.random.usize(..configs);
            for router in 0..self.routers.len() {
                let delay = if self.random.u8(..4) == 0 { self.random.u64(..9_000) } else { self.random.u64(..500) };
                self.at(at + delay, Event::Source { router, config });
            }
        }
        self.schedule_crashes();
    }

    pub(super) fn schedule_crashes(&mut self) {
        for _ in 0..self.random.usize(..3) {
            let (at, router) = (self.random.u64(..END_MS), self.random.usize(..self.routers.len()));
            self.at(at, Event::Crash { router });
        }
    }

    /// Instead of all other changes, keys move to and fro or on while routers warm up. Each router sees the second
    /// change at a moment of its own.
    fn with_second_changes(mut self) -> World {
        (self.warm_up, self.has_slow_deletes) = (WARM_UP, true);
        self.queue.clear();
        self.events.clear();
        self.schedule_requests(15);
        self.schedule_crashes();
        for at in (1_000..END_MS).step_by(15_000) {
            for router in 0..self.routers.len() {
                for (config, earliest) in [(1, at), (2, at + 1_500), (0, at + 7_500)] {
                    let at = earliest + self.random.u64(..3_000);
                    self.at(at, Event::Source { router, config });
                }
            }
        }
        self
    }

    /// Two configurations in turn, each for long enough that the other is released.
    fn schedule_calm_changes(&mut self, configs: usize) {
        let pair = [self.random.usize(..configs), self.random.usize(..configs)];
        for (turn, at) in (1_000..END_MS).step_by(9_000).enumerate() {
            for router in 0..self.routers.len() {
                let delay = self.random.u64(..500);
                self.at(at + delay, Event::Source { router, config: pair[turn % 2] });
            }
        }
    }
}

/// Of ten.
const MOST_POLLS: u8 = 7;

/// The first seed below `seeds` that fails, with the reason.
fn first_failure(rules: Rules, seeds: u64) -> Option<(u64, String)> {
    first_failure_of(seeds, |seed| World::new(seed, rules))
}

pub(super) fn first_failure_of(seeds: u64, world: impl Fn(u64) -> World) -> Option<(u64, String)> {
    (0..seeds).find_map(|seed| world(seed).run().err().map(|why| (seed, why)))
}

#[test]
fn no_acknowledged_delete_is_undone_by_a_change() {
    let (mut hits, mut changes, mut released, mut former_hits, mut former_fills) = (0, 0, 0, 0, 0);
    let seeds = std::env::var("COVERAGE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200);
    for seed in 0..seeds {
        let world = World::new(seed, Rules::ALL);
        // Many keys move twice within one change, and are not copied.
        let warm_up = if seed.is_multiple_of(4) { world.warm_up } else { WARM_UP };
        let lost_polls = if seed.is_multiple_of(5) { MOST_POLLS } else { 1 };
        let mut world = World { warm_up, lost_polls, ..world };
        world.run().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        hits += world.hits;
        changes += world.changes_of_reads;
        released += world.released;
        former_hits += world.former_hits;
        former_fills += world.former_fills;
    }
    let per_seed = |count: u64| count / seeds;
    assert!(per_seed(hits) > 100 && per_seed(changes) >= 5 && per_seed(released) >= 3, "{hits} {changes} {released}");
    assert!(per_seed(former_hits) >= 3 && per_seed(former_fills) >= 2, "{former_hits} {former_fills}");
}

#[test]
fn each_rule_is_needed() {
    const SEEDS: u64 = 1_000;
    for (name, rules) in [
        ("agree", Rules { agree: false, ..Rules::ALL }),
        ("empty", Rules { empty: false, ..Rules::ALL }),
        ("empty renamed", Rules { empty_renamed: false, ..Rules::ALL }),
        ("drain", Rules { drain: false, ..Rules::ALL }),
        ("purge", Rules { purge: false, ..Rules::ALL }),
        ("remember departed", Rules { remember_departed: false, ..Rules::ALL }),
        ("order", Rules { order: false, ..Rules::ALL }),
    ] {
        let failure = first_failure(rules, SEEDS);
        println!("without {name:?}: {failure:?}");
        assert!(failure.is_some(), "the model does not need {name:?}");
    }
    // A peer must have changed after the last report of it that arrived.
    let rules = Rules { release_in_two_steps: false, ..Rules::ALL };
    let failure = first_failure_of(SEEDS, |seed| World { lost_polls: MOST_POLLS, ..World::new(seed, rules) });
    println!("without \"release in two steps\": {failure:?}");
    assert!(failure.is_some(), "the model does not need \"release in two steps\"");
}

#[test]
fn copies_from_former_owners_need_leases_and_the_order_of_deletes() {
    const SEEDS: u64 = 500;
    // Routers were upgraded one by one.
    let with_earlier =
        |is_earlier_known| move |seed| World { earlier: Some(0), is_earlier_known, ..World::new(seed, Rules::ALL) };
    assert_eq!(first_failure_of(SEEDS, with_earlier(true)), None);
    let without_leases = |seed| World { leases_copies: false, ..World::new(seed, Rules::ALL) };
    let without_order = |seed| World { is_in_order: false, ..World::new(seed, Rules::ALL) };
    for (name, failure) in [
        ("leases", first_failure_of(SEEDS, without_leases)),
        ("the order of deletes", first_failure_of(SEEDS, without_order)),
        ("the earlier version's report", first_failure_of(SEEDS, with_earlier(false))),
    ] {
        println!("without {name:?}: {failure:?}");
        assert!(failure.is_some(), "the model does not need {name}");
    }
}

/// Routers that warm up from different configurations copy a value from and to the same server.
#[test]
fn copies_from_former_owners_need_keys_that_move_once() {
    const SEEDS: u64 = 200;
    let world = |copies_once| move |seed| World { copies_once, ..World::new(seed, Rules::ALL).with_second_changes() };
    let fills = |seed| {
        let mut world = world(true)(seed);
        world.run().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        world.former_fills
    };
    assert!((0..SEEDS).map(fills).sum::<u64>() >= SEEDS);
    let failure = first_failure_of(SEEDS, world(false));
    println!("with keys that move twice: {failure:?}");
    assert!(failure.is_some(), "the model does not need keys that move once");
}
