//! Pools under new names in the model. Their servers may hold old copies of the cluster's keys, of routers that are
//! forgotten. The operator empties such a server, or says that it may be flushed, and sometimes takes the configuration
//! back first.

use super::schedule::first_failure_of;
use super::*;

/// How long the operator takes.
const DECISION_MS_MAX: u64 = 5_000;
/// Between two attempts of a router.
const RETRY_MS: u64 = 1_000;

impl World {
    /// Instead of all other changes, those between all configurations.
    fn with_new_pools(mut self) -> World {
        self.queue.clear();
        self.events.clear();
        self.schedule_requests(40);
        self.schedule_crashes();
        for server in 4..=6 {
            if self.random.bool() {
                self.copies.extend((0..KEYS).map(|key| ((server, key), 0)));
            }
        }
        let mut at = 0;
        while at < END_MS * 2 / 3 {
            at += self.random.u64(500..9_000);
            let config = self.random.usize(..CONFIGS.len());
            for router in 0..self.routers.len() {
                let delay = if self.random.u8(..4) == 0 { self.random.u64(..4_000) } else { self.random.u64(..500) };
                self.at(at + delay, Event::Source { router, config });
            }
        }
        self
    }

    pub(super) fn holds_no_copies(&self, server: usize) -> bool {
        !self.copies.keys().any(|(at, _)| *at == server)
    }

    pub(super) fn record_not_empty(&mut self, router: usize, run: u64, config: ConfigId, server: usize) {
        self.change(router, |coverage, now| coverage.record_items(config, &address(server), now));
        self.after(RETRY_MS, Event::RetryEmpty { router, run, config, server });
    }

    /// Once for each configuration.
    pub(super) fn ask_operator(&mut self, router: usize) {
        let coverage = self.coverage(router);
        let Some(target) = coverage.target().filter(|_| !coverage.servers_with_items().is_empty()) else { return };
        let config = target.0 as usize;
        if self.asked.insert(config) {
            let delay = self.random.u64(..DECISION_MS_MAX);
            self.after(delay, Event::Decide { config });
        }
    }

    /// Empties the servers, or changes the setting in the files that have the configuration then.
    pub(super) fn decide(&mut self, config: usize) {
        if self.random.bool() {
            CONFIGS[config].1.iter().for_each(|server| self.flush(*server));
            // Routers may find items again.
            self.asked.remove(&config);
            return;
        }
        self.flushed.insert(config);
        for router in 0..self.routers.len() {
            if self.routers[router].source == config {
                let delay = self.random.u64(..500);
                self.after(delay, Event::Source { router, config });
            }
        }
    }
}

#[test]
fn servers_of_pools_under_new_names_are_read_only_if_they_are_empty() {
    let (mut asked, mut read, mut changes) = (0, 0, 0);
    let seeds = std::env::var("COVERAGE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200);
    for seed in 0..seeds {
        let world = World::new(seed, Rules::ALL).with_new_pools();
        let mut world = if seed.is_multiple_of(3) { world.with_lost_memories(true) } else { world };
        world.run().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        asked += world.asked.len() as u64;
        read += world.new_pools_read;
        changes += world.changes_of_reads;
    }
    println!("{asked} pools had items until the end; {read} of {changes} changes were to new pools");
    assert!(asked > seeds / 10 && read > seeds && changes > seeds * 3, "{asked} {read} {changes}");
    let rules = Rules { empty_new: false, ..Rules::ALL };
    let failure = first_failure_of(1_000, |seed| World::new(seed, rules).with_new_pools());
    println!("without emptying new pools: {failure:?}");
    assert!(failure.is_some(), "the model does not need empty new pools");
}
