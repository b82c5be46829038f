//! [`PendingDeletes`] against a model that records every pending delete: random commits, batches that complete in any
//! order, and failures.

use lookaside_invalidator::{
    Commit, Position,
    pipeline::pending::{InFlightBatch, Limits, PendingDeletes},
};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

/// The pending deletes by the simplest rule: a delete that succeeds covers the commits admitted when it was sent.
#[derive(Default)]
struct Model {
    /// By number of the commit, from 1 on.
    pending: BTreeMap<u64, BTreeSet<String>>,
    admitted: u64,
}

impl Model {
    fn acknowledge(&mut self, key: &str, newest_commit: u64) {
        for keys in self.pending.range_mut(..=newest_commit).map(|(_, keys)| keys) {
            keys.remove(key);
        }
        self.pending.retain(|_, keys| !keys.is_empty());
    }

    /// The newest commit before which nothing is pending.
    fn safe_position(&self) -> u64 {
        self.pending.first_key_value().map_or(self.admitted, |(oldest, _)| oldest - 1)
    }
}

struct InFlight {
    batch: InFlightBatch,
    keys: Vec<String>,
    newest_commit: u64,
}

fn send(pending: &mut PendingDeletes, model: &Model, now: Instant, may_retry: bool) -> Option<InFlight> {
    let batch = pending.next_batch(now, may_retry)?;
    let keys = batch.keys().iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    Some(InFlight { batch, keys, newest_commit: model.admitted })
}

fn run(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let limits = Limits {
        keys_max: 16,
        retry_queue_keys_max: rng.usize(1..8),
        retry_queue_bytes_max: 1_000,
        batch_keys_max: rng.usize(1..6),
        batch_bytes_max: 1_000,
        retry_delay_min: Duration::from_millis(10),
        retry_delay_max: Duration::from_millis(100),
    };
    let (mut pending, mut model) = (PendingDeletes::new(limits, Position("0".into())), Model::default());
    let (mut now, mut in_flight) = (Instant::now(), Vec::new());
    let failing_percent = rng.u32(0..100);
    let steps = 400;
    for step in 0..10_000 {
        let (draining, fails) = (step >= steps, if step >= steps { 0 } else { failing_percent });
        match rng.u32(0..10) {
            0..4 if !draining => {
                let keys: BTreeSet<String> = (0..rng.usize(0..4)).map(|_| format!("k{}", rng.u32(0..6))).collect();
                if pending.has_capacity(keys.len()) {
                    model.admitted += 1;
                    pending.admit(Commit {
                        position: Position(model.admitted.to_string()),
                        keys: keys.iter().map(|key| key.clone().into_bytes()).collect(),
                        committed_at: SystemTime::UNIX_EPOCH,
                    });
                    model.pending.extend((!keys.is_empty()).then_some((model.admitted, keys)));
                }
            }
            4..7 if in_flight.len() < 4 => in_flight.extend(send(&mut pending, &model, now, rng.bool())),
            7..9 if !in_flight.is_empty() => {
                let InFlight { batch, keys, newest_commit } = in_flight.swap_remove(rng.usize(..in_flight.len()));
                let is_final: Vec<bool> = keys.iter().map(|_| rng.u32(0..100) >= fails).collect();
                for (key, _) in keys.iter().zip(&is_final).filter(|(_, is_final)| **is_final) {
                    model.acknowledge(key, newest_commit);
                }
                pending.complete(batch, &is_final, now);
            }
            _ => now += Duration::from_millis(rng.u64(0..50)),
        }
        let position: u64 = pending.safe_position().0.parse().expect("a number");
        // A repeated delete may be pending that the model knows to be superfluous. So the position may lag, but never
        // lead.
        assert!(
            position <= model.safe_position(),
            "seed {seed}: {position} passed pending deletes: {:?}",
            model.pending
        );
        assert!(pending.retry_queue_size().0 <= limits.retry_queue_keys_max + limits.keys_max, "seed {seed}");
        if draining && in_flight.is_empty() && pending.keys() == 0 {
            break;
        }
    }
    assert_eq!(
        (pending.keys(), pending.retry_queue_size()),
        (0, (0, 0)),
        "seed {seed}: all is acknowledged in the end"
    );
    assert_eq!(pending.safe_position().0, model.admitted.to_string(), "seed {seed}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn safe_position_never_passes_a_pending_delete_and_reaches_the_end(seed in any::<u64>()) {
        run(seed);
    }
}
