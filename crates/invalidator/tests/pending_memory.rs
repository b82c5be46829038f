//! The memory of a cluster's pending deletes is bounded, however long the cluster is down.

use lookaside_invalidator::{
    Commit, Position,
    observe::stats::Statistics,
    pipeline::{Options, pending::PendingDeletes},
};
use lookaside_test_support::{CountingAllocator, live_bytes};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};
use tokio::time::Instant;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The daemon is to fit into 64 MiB while a cluster is down. The allocator and the rest of the daemon need half.
const BYTES_MAX: isize = 32 << 20;

/// The allocator counts for all threads.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A position of MySQL after failovers: it names every server that has written to the log. The primary is in the
/// middle.
fn position(number: usize, servers: usize) -> Position {
    let of_server = |server: usize| {
        let newest = if server == servers / 2 { number } else { 1_234_567 };
        format!("3e11fa47-71ca-11e1-9e33-{server:012x}:1-{newest}")
    };
    Position((0..servers).map(of_server).collect::<Vec<_>>().join(","))
}

/// A commit with a key of its own.
fn commit(number: usize, servers: usize) -> Commit {
    Commit {
        position: position(number, servers),
        keys: vec![format!("user:{number}:profile").into_bytes()],
        committed_at: SystemTime::UNIX_EPOCH,
    }
}

/// With a copy of the position before and after each commit, those of 20 servers took 60 MB.
#[test]
fn pending_deletes_of_a_cluster_that_is_down_are_bounded_in_memory() {
    let _alone = alone();
    let limits = Options::default().limits;
    for (is_refused, servers) in [(false, 1), (true, 1), (false, 20), (true, 20)] {
        let before = live_bytes();
        let mut pending = PendingDeletes::new(limits, Position(String::new()));
        pending.set_reachable(false);
        let (mut keys, mut bytes_max) = (0, 0);
        while pending.has_capacity(1) {
            keys += 1;
            pending.admit(commit(keys, servers));
            if is_refused && pending.has_full_batch() {
                let batch = pending.next_batch(Instant::now(), false).expect("keys are unsent");
                let results = vec![false; batch.keys().len()];
                pending.complete(batch, &results, Instant::now());
            }
            bytes_max = bytes_max.max(live_bytes() - before);
        }
        let each = bytes_max / keys as isize;
        let shown =
            format!("{keys} keys take {bytes_max} bytes, {each} each; refused: {is_refused}, {servers} servers");
        println!("{shown}");
        assert!(bytes_max < BYTES_MAX, "{shown}");
        assert!(each < 700, "{shown}");
    }
}

/// The commits that one cluster has applied and another one, which is down, has not: two copies of each position took
/// 130 MB.
#[test]
fn commits_that_are_not_in_all_clusters_are_bounded_in_memory() {
    const BYTES_MAX: isize = 12 << 20;
    let _alone = alone();
    let before = live_bytes();
    let statistics = Statistics::new(["alive", "dead"]);
    for number in 0..100_000 {
        let now = SystemTime::UNIX_EPOCH;
        statistics.record_applied(0, &position(number, 20), now, now);
    }
    let bytes = live_bytes() - before;
    println!("{bytes} bytes");
    assert!(bytes < BYTES_MAX, "{bytes} bytes");
}
