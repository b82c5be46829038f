//! The window against a model that remembers every delete that was ever owed: random commits, batches that come back
//! in any order, and failures.

use lookaside_invalidator::{
    Commit, Position,
    pipeline::pending::{Limits, OutBatch, Window},
};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

/// What is owed, by the plainest rule: a delete that succeeds pays for what had been admitted when it was sent.
#[derive(Default)]
struct Model {
    /// By number of the commit, from 1 on.
    owed: BTreeMap<u64, BTreeSet<String>>,
    admitted: u64,
}

impl Model {
    fn paid(&mut self, key: &str, upto: u64) {
        for keys in self.owed.range_mut(..=upto).map(|(_, keys)| keys) {
            keys.remove(key);
        }
        self.owed.retain(|_, keys| !keys.is_empty());
    }

    /// The newest commit before which nothing is owed.
    fn position(&self) -> u64 {
        self.owed.first_key_value().map_or(self.admitted, |(oldest, _)| oldest - 1)
    }
}

struct Travelling {
    batch: OutBatch,
    keys: Vec<String>,
    upto: u64,
}

fn send(window: &mut Window, model: &Model, now: Instant, retries: bool) -> Option<Travelling> {
    let batch = window.batch(now, retries)?;
    let keys = batch.keys().iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    Some(Travelling { batch, keys, upto: model.admitted })
}

fn run(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let limits = Limits {
        keys_max: 16,
        failing_keys_max: rng.usize(1..8),
        failing_bytes_max: 1_000,
        batch_keys_max: rng.usize(1..6),
        batch_bytes_max: 1_000,
        retry_min: Duration::from_millis(10),
        retry_max: Duration::from_millis(100),
    };
    let (mut window, mut model) = (Window::new(limits, Position("0".into())), Model::default());
    let (mut now, mut travelling) = (Instant::now(), Vec::new());
    let failing_percent = rng.u32(0..100);
    let steps = 400;
    for step in 0..10_000 {
        let (draining, fails) = (step >= steps, if step >= steps { 0 } else { failing_percent });
        match rng.u32(0..10) {
            0..4 if !draining => {
                let keys: BTreeSet<String> = (0..rng.usize(0..4)).map(|_| format!("k{}", rng.u32(0..6))).collect();
                if window.has_room(keys.len()) {
                    model.admitted += 1;
                    window.admit(Commit {
                        position: Position(model.admitted.to_string()),
                        keys: keys.iter().map(|key| key.clone().into_bytes()).collect(),
                        committed_at: SystemTime::UNIX_EPOCH,
                    });
                    model.owed.extend((!keys.is_empty()).then_some((model.admitted, keys)));
                }
            }
            4..7 if travelling.len() < 4 => travelling.extend(send(&mut window, &model, now, rng.bool())),
            7..9 if !travelling.is_empty() => {
                let Travelling { batch, keys, upto } = travelling.swap_remove(rng.usize(..travelling.len()));
                let settled: Vec<bool> = keys.iter().map(|_| rng.u32(0..100) >= fails).collect();
                for (key, _) in keys.iter().zip(&settled).filter(|(_, settled)| **settled) {
                    model.paid(key, upto);
                }
                window.settle(batch, &settled, now);
            }
            _ => now += Duration::from_millis(rng.u64(0..50)),
        }
        let position: u64 = window.position().0.parse().expect("a number");
        // A repeated delete may be still owed that the model knows is needless: behind is allowed, ahead never.
        assert!(position <= model.position(), "seed {seed}: {position} passed what is owed: {:?}", model.owed);
        assert!(window.failing().0 <= limits.failing_keys_max + limits.keys_max, "seed {seed}");
        if draining && travelling.is_empty() && window.keys() == 0 {
            break;
        }
    }
    assert_eq!((window.keys(), window.failing()), (0, (0, 0)), "seed {seed}: all is paid in the end");
    assert_eq!(window.position().0, model.admitted.to_string(), "seed {seed}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_position_never_passes_what_is_owed_and_reaches_all_that_is_paid(seed in any::<u64>()) {
        run(seed);
    }
}
