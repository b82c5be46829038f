//! The store against a plain map, under random commands and a clock that only the test moves.
//!
//! * With ample memory every reply must be the model's.
//! * With scarce memory, a value may be missing, and a token may be issued early or refused; but every value shown is
//!   the one that was last stored, no fill that the model refuses is accepted, no hold-off is lost, and the memory
//!   limit holds after every command.
//! * With scarce memory and without evictions, no live value may be missing; stores may be refused.
//! * A store in a region may be saved and restored between any two commands: it loses only leases.

mod model {
    pub mod command;
    #[path = "mod.rs"]
    mod map;
    pub mod pair;
    mod scratch_region;
    pub use map::*;
}

use lookaside_store::Options;
use model::command::{Command, commands};
use model::pair::Pair;
use proptest::prelude::*;

fn options_with_ample_memory() -> impl Strategy<Value = Options> {
    let interval_ms = prop_oneof![Just(10_000u32), Just(0u32), 1u32..3_000];
    let stale_ms = prop_oneof![Just(10_000u32), Just(0u32), 1u32..3_000];
    (interval_ms, stale_ms, any::<bool>(), any::<u64>()).prop_map(|(interval_ms, stale_ms, to_the_letter, seed)| {
        Options {
            memory_bytes_max: 8 << 20,
            lease_interval_ms: interval_ms,
            lease_interval_outlasts_delete: to_the_letter,
            stale_ms,
            seed,
            ..Options::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn with_ample_memory_it_is_the_map(options in options_with_ample_memory(), commands in commands(4, 300, 250)) {
        let mut pair = Pair::new(options, false);
        for (key, command) in commands {
            pair.run(key, command)?;
        }
        pair.store().audit();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// In a store of this size a chunk holds 4 KiB at most: most values lie in several.
    #[test]
    fn values_in_many_pieces_are_the_same_map(commands in commands(4, 30_000, 150)) {
        let mut pair = Pair::new(Options { memory_bytes_max: 1 << 20, item_bytes_max: 256 << 10, ..Options::default() }, false);
        for (key, command) in commands {
            pair.run(key, command)?;
        }
        pair.store().audit();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn with_scarce_memory_it_is_never_wrong(commands in commands(200, 4_000, 1_500)) {
        let options = Options { memory_bytes_max: 64 << 10, item_bytes_max: 8 << 10, ..Options::default() };
        let mut pair = Pair::new(options, true);
        for (count, (key, command)) in commands.into_iter().enumerate() {
            // With as many flushes as above, the store would never be short of memory.
            if count % 50 == 0 || !matches!(command, Command::Flush { .. }) {
                pair.run(key, command)?;
            }
        }
        pair.store().audit();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn without_evictions_no_live_value_is_lost(commands in commands(200, 4_000, 1_500)) {
        let options =
            Options { memory_bytes_max: 64 << 10, item_bytes_max: 8 << 10, evictions: false, ..Options::default() };
        let mut pair = Pair::new(options, true);
        for (count, (key, command)) in commands.into_iter().enumerate() {
            if count % 50 == 0 || !matches!(command, Command::Flush { .. }) {
                pair.run(key, command)?;
            }
        }
        pair.check_nothing_is_lost()?;
        pair.store().audit();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn restarted_at_any_time_it_is_the_map(options in options_with_ample_memory(), commands in commands(4, 300, 250)) {
        let mut pair = Pair::restartable(options, false);
        for (key, command) in commands {
            pair.run(key, command)?;
        }
        pair.store().audit();
    }

    #[test]
    fn restarted_with_values_in_many_pieces_it_is_the_map(commands in commands(4, 30_000, 100)) {
        let options = Options { memory_bytes_max: 1 << 20, item_bytes_max: 256 << 10, ..Options::default() };
        let mut pair = Pair::restartable(options, false);
        for (key, command) in commands {
            pair.run(key, command)?;
        }
        pair.store().audit();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn restarted_with_scarce_memory_it_is_never_wrong(commands in commands(200, 4_000, 1_500)) {
        let options = Options { memory_bytes_max: 128 << 10, item_bytes_max: 8 << 10, ..Options::default() };
        let mut pair = Pair::restartable(options, true);
        for (count, (key, command)) in commands.into_iter().enumerate() {
            if count % 50 == 0 || !matches!(command, Command::Flush { .. }) {
                pair.run(key, command)?;
            }
        }
        pair.store().audit();
    }
}
