//! The memory of a cluster's pending deletes is bounded, however long the cluster is down.

use lookaside_invalidator::{
    Commit, Position,
    pipeline::{Options, pending::PendingDeletes},
};
use lookaside_test_support::{CountingAllocator, live_bytes};
use std::time::SystemTime;
use tokio::time::Instant;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The daemon is to fit into 64 MiB while a cluster is down. The allocator and the rest of the daemon need half.
const BYTES_MAX: isize = 32 << 20;

/// A commit of MySQL, whose positions are long, with a key of its own.
fn commit(number: usize) -> Commit {
    Commit {
        position: Position(format!("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{number}")),
        keys: vec![format!("user:{number}:profile").into_bytes()],
        committed_at: SystemTime::UNIX_EPOCH,
    }
}

#[test]
fn pending_deletes_of_a_cluster_that_is_down_are_bounded_in_memory() {
    let limits = Options::default().limits;
    for is_refused in [false, true] {
        let before = live_bytes();
        let mut pending = PendingDeletes::new(limits, Position(String::new()));
        pending.set_reachable(false);
        let (mut keys, mut bytes_max) = (0, 0);
        while pending.has_capacity(1) {
            keys += 1;
            pending.admit(commit(keys));
            if is_refused && pending.has_full_batch() {
                let batch = pending.next_batch(Instant::now(), false).expect("keys are unsent");
                let results = vec![false; batch.keys().len()];
                pending.complete(batch, &results, Instant::now());
            }
            bytes_max = bytes_max.max(live_bytes() - before);
        }
        assert!(bytes_max < BYTES_MAX, "{keys} keys take {bytes_max} bytes; refused: {is_refused}");
        assert!(bytes_max / (keys as isize) < 700, "{} bytes a key", bytes_max / keys as isize);
    }
}
