//! The history that the routers of the model share: one record, replaced by compare-and-swap. A request may arrive
//! late, also when its router has given it up or has crashed, and its reply may be lost.

use super::*;
use crate::resize::history::{HISTORY_CONFIGS_MAX, History, RecordedConfig};

/// When a router gives a request up.
const TIMEOUT_MS: u64 = 3_000;
/// A revision that the history never has.
const NONE: i64 = -1;

#[derive(Default)]
pub(super) struct SharedHistory {
    revision: i64,
    history: History,
    requests: u64,
    /// Whether routers that start read it.
    is_read_at_starts: bool,
    /// How often it was replaced.
    pub(super) replaced: u64,
    /// Routers that start cannot use a configuration, sometimes.
    rolls_back: bool,
    /// That configuration.
    unusable: Option<ConfigId>,
    /// How often one was recorded as lost.
    pub(super) lost: u64,
}

impl SharedHistory {
    /// What a router that starts learns.
    pub(super) fn introduce(&self, coverage: &mut Coverage, now: Duration) {
        coverage.use_history();
        if self.is_read_at_starts {
            coverage.record_history(self.revision, self.history.clone(), now);
        }
    }

    pub(super) fn is_unusable(&self, config: usize) -> bool {
        self.unusable == Some(ConfigId(config as u128))
    }

    /// The programs of all routers are replaced by an earlier version, which cannot use some former configuration, or
    /// by the later one.
    fn roll_back(&mut self, random: &mut fastrand::Rng) {
        let former: Vec<ConfigId> =
            self.history.configs.iter().filter(|config| !config.is_readable).map(|config| config.id).collect();
        self.unusable = match self.unusable {
            None if self.rolls_back => random.choice(former),
            _ => None,
        };
    }

    /// A router that starts records that it cannot use a configuration.
    fn record_lost(&mut self) {
        let Some(id) = self.unusable else { return };
        let before = self.history.clone();
        self.history.set_lost(id);
        if self.history != before {
            self.revision += 1;
            self.lost += 1;
        }
        // A router that could use it has made it readable at the last moment. None can start without it.
        if self.history.is_readable(id) {
            self.unusable = None;
        }
    }
}

impl World {
    /// The routers share a history, and lose all memory at once, some times.
    pub(super) fn with_lost_memories(mut self, is_read_at_starts: bool) -> World {
        let history = SharedHistory { is_read_at_starts, ..SharedHistory::default() };
        for router in &mut self.routers {
            history.introduce(router.coverage.as_mut().expect("all routers are up"), Duration::ZERO);
        }
        self.history = Some(history);
        for earliest in (5_000..END_MS).step_by(11_000) {
            let at = earliest + self.random.u64(..9_000);
            self.at(at, Event::LoseMemory);
        }
        self
    }

    /// The same, and meanwhile routers cannot use a configuration, sometimes.
    fn with_rollbacks(self) -> World {
        let mut world = self.with_lost_memories(true);
        world.history.as_mut().expect("it is shared").rolls_back = true;
        world
    }

    /// The same, and as many configurations as fit are lost from the start, whatever they were.
    fn with_lost_from_the_start(self) -> World {
        let mut world = self.with_rollbacks();
        let history = world.history.as_mut().expect("it is shared");
        let present =
            RecordedConfig { id: ConfigId(world.routers[0].source as u128), is_readable: true, is_lost: false };
        let lost = |number| RecordedConfig { id: ConfigId(100 + number), is_readable: false, is_lost: true };
        history.history.configs = (1..HISTORY_CONFIGS_MAX as u128).map(lost).chain([present]).collect();
        history.revision += 1;
        for router in &mut world.routers {
            history.introduce(router.coverage.as_mut().expect("all routers are up"), Duration::ZERO);
        }
        world
    }

    pub(super) fn lose_memory(&mut self) {
        if let Some(history) = &mut self.history {
            history.roll_back(&mut self.random);
        }
        for router in 0..self.routers.len() {
            self.routers[router].is_memory_lost = true;
            self.crash(router);
        }
    }

    pub(super) fn crash(&mut self, router: usize) {
        if self.routers[router].coverage.take().is_some() {
            self.routers[router].run += 1;
            let delay = self.random.u64(10..3_000);
            self.after(delay, Event::Restart { router });
        }
    }

    /// What a router that starts records, and by which configuration it begins if it cannot use that of its source.
    pub(super) fn record_unusable(&mut self, router: usize) {
        let Some(history) = &mut self.history else { return };
        history.record_lost();
        if history.is_unusable(self.routers[router].source) {
            let mut readable = history.history.configs.iter().filter(|config| config.is_readable);
            self.routers[router].source = readable.next().expect("one is").id.0 as usize;
        }
    }

    pub(super) fn is_unusable(&self, config: usize) -> bool {
        self.history.as_ref().is_some_and(|history| history.is_unusable(config))
    }

    /// What the history says to a router that starts and remembers nothing.
    pub(super) fn history_report(&self, source: usize) -> Option<CoverageReport> {
        let history = self.history.as_ref().filter(|history| history.is_read_at_starts)?;
        history.history.to_report(ConfigId(source as u128))
    }

    /// Asks for the present record, sometimes.
    pub(super) fn read_history(&mut self, router: usize, run: u64) {
        if self.history.is_some() && self.is_up(router, run) && self.random.u8(..4) == 0 {
            self.request_history(router, run, NONE, History::default());
        }
    }

    /// Sends what the coverage of `router` has to record.
    pub(super) fn record_history(&mut self, router: usize, run: u64) {
        let now = Duration::from_millis(self.now);
        let coverage = self.coverage(router);
        let revision = coverage.seen_history().map(|(revision, _)| revision);
        if let (Some(expected), Some(next)) = (revision, coverage.history_to_record(now)) {
            self.request_history(router, run, expected, next);
        }
    }

    fn request_history(&mut self, router: usize, run: u64, expected: i64, next: History) {
        let Some(history) = &mut self.history else { return };
        if self.routers[router].history_request.is_some() {
            return;
        }
        history.requests += 1;
        let request = history.requests;
        self.routers[router].history_request = Some(request);
        let delay = self.delay();
        self.after(delay, Event::ReplaceHistory { router, run, request, expected, next });
        self.after(TIMEOUT_MS, Event::HistoryReply { router, run, request, seen: None });
    }

    pub(super) fn replace_history(&mut self, router: usize, run: u64, request: u64, expected: i64, next: History) {
        let Some(history) = &mut self.history else { return };
        if history.revision == expected {
            // It is stored as text.
            history.history = History::parse(&next.to_json()).expect("a record is read as it is written");
            history.revision += 1;
            history.replaced += 1;
        }
        let seen = Some((history.revision, history.history.clone()));
        if self.random.u8(..16) > 0 {
            let delay = self.delay();
            self.after(delay, Event::HistoryReply { router, run, request, seen });
        }
    }

    pub(super) fn take_history_reply(&mut self, router: usize, request: u64, seen: Option<(i64, History)>) {
        if self.routers[router].history_request != Some(request) {
            return;
        }
        self.routers[router].history_request = None;
        self.change(router, |coverage, now| match seen {
            Some((revision, history)) => coverage.record_history(revision, history, now),
            None => coverage.advance(now),
        });
    }
}

#[test]
fn routers_that_lose_all_memory_continue_from_the_history() {
    let (mut replaced, mut released, mut changes) = (0, 0, 0);
    let seeds = std::env::var("COVERAGE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(150);
    for seed in 0..seeds {
        let mut world = World::new(seed, Rules::ALL).with_lost_memories(true);
        world.run().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        replaced += world.history.expect("it is shared").replaced;
        released += world.released;
        changes += world.changes_of_reads;
    }
    let per_seed = |count: u64| count / seeds;
    assert!(
        per_seed(replaced) > 5 && per_seed(released) > 1 && per_seed(changes) > 3,
        "{replaced} {released} {changes}"
    );
}

#[test]
fn each_rule_of_the_history_is_needed() {
    const SEEDS: u64 = 1_000;
    for (name, is_read_at_starts, rules) in
        [("a history", false, Rules::ALL), ("record first", true, Rules { record_first: false, ..Rules::ALL })]
    {
        let world = |seed| World::new(seed, rules).with_lost_memories(is_read_at_starts);
        let failure = (0..SEEDS).find_map(|seed| world(seed).run().err().map(|why| (seed, why)));
        println!("without {name:?}: {failure:?}");
        assert!(failure.is_some(), "the model does not need {name:?}");
    }
}

/// Routers whose version could not use a former configuration did not start, for ever.
#[test]
fn routers_that_cannot_use_a_former_configuration_read_no_old_copies_of_it() {
    let (mut lost, mut lost_at_ends, mut changes) = (0, 0, 0);
    let seeds = std::env::var("COVERAGE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(150);
    for seed in 0..seeds {
        let mut world = World::new(seed, Rules::ALL).with_rollbacks();
        world.run().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        let history = world.history.expect("it is shared");
        lost += history.lost;
        lost_at_ends += history.history.lost().count() as u64;
        changes += world.changes_of_reads;
    }
    println!("{lost} configurations were lost, {lost_at_ends} of them until the end; {changes} changes");
    assert!(lost > seeds / 4 && lost - lost_at_ends > seeds / 20, "{lost} {lost_at_ends}");
    let rules = Rules { empty_lost: false, ..Rules::ALL };
    let failure = (0..1_000).find_map(|seed| Some((seed, World::new(seed, rules).with_rollbacks().run().err()?)));
    println!("without emptying all servers: {failure:?}");
    assert!(failure.is_some(), "the model does not need to empty all servers");
}

/// A full record that has only lost configurations besides the present one let no further one in.
#[test]
fn a_record_that_is_full_of_lost_configurations_blocks_no_change_and_hides_no_old_copy() {
    let (mut lost_at_ends, mut changes) = (0, 0);
    let seeds = std::env::var("COVERAGE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(150);
    for seed in 0..seeds {
        let mut world = World::new(seed, Rules::ALL).with_lost_from_the_start();
        world.run().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        lost_at_ends += world.history.expect("it is shared").history.lost().filter(|id| id.0 > 100).count() as u64;
        changes += world.changes_of_reads;
    }
    println!("{lost_at_ends} lost configurations stayed; {changes} changes");
    assert!(changes > seeds * 3 && lost_at_ends < seeds * 6, "{changes} {lost_at_ends}");
}
