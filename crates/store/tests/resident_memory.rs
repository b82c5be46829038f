//! The memory limit holds for the process: a store that is filled with ten times what fits stays within it.
//!
//! One test in this file, so that the process that is measured does nothing else.
#![cfg(target_os = "linux")]

use lookaside_protocol::StoreMode;
use lookaside_store::{Expiry, KeyHasher, NewItem, Now, Options, Store};
use std::sync::atomic::{AtomicU64, Ordering};

const MEMORY_BYTES_MAX: usize = 32 << 20;
/// Threads, their stacks and heaps, the test itself.
const BASE_BYTES: usize = 2 << 20;
const THREADS: usize = 4;

/// Sizes of values by phase: each must evict the items of the one before.
const PHASES: [(&str, usize, usize); 5] = [
    ("tiny", 50, 250),
    ("small", 100, 2_000),
    ("large", 10_000, 200_000),
    ("mixed", 1, 60_000),
    ("tiny again", 50, 250),
];

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the status has VmRSS");
    let kib = line.split_whitespace().nth(1).expect("VmRSS has a number");
    kib.parse::<usize>().expect("VmRSS is in KiB") * 1024
}

/// Stores `bytes` of values. Every third key is read again, so that some items are hot.
fn fill(store: &Store, thread: usize, phase: usize, bytes: usize, clock_ms: &AtomicU64) {
    let (_, value_bytes_min, value_bytes_max) = PHASES[phase];
    let value = vec![b'x'; value_bytes_max];
    let mut stored_bytes = 0;
    for count in 0u64.. {
        let now = Now { unix_ms: clock_ms.fetch_add(1, Ordering::Relaxed) };
        let key = format!("phase:{phase}:thread:{thread}:{count}");
        // A spread of sizes that needs no random numbers.
        let spread = (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize;
        let value_bytes = value_bytes_min + spread % (value_bytes_max - value_bytes_min);
        let item = NewItem { flags: 0, expiry: Expiry::Never, value: &value[..value_bytes] };
        store.store(KeyHasher::new(0).hash(key.as_bytes()), StoreMode::Set, &item, now);
        stored_bytes += key.len() + value_bytes;
        if count % 3 == 0 {
            store.reader(now).get(KeyHasher::new(0).hash(key.as_bytes()), |_| ());
        }
        if stored_bytes > bytes {
            return;
        }
    }
}

#[test]
fn the_process_stays_within_the_limit() {
    let base_bytes = resident_bytes();
    let store = Store::new(Options { memory_bytes_max: MEMORY_BYTES_MAX, ..Options::default() }).expect("fine");
    let clock_ms = AtomicU64::new(1_700_000_000_000);
    for (phase, (name, ..)) in PHASES.iter().enumerate() {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (store, clock_ms) = (&store, &clock_ms);
                scope.spawn(move || fill(store, thread, phase, MEMORY_BYTES_MAX * 2 / THREADS, clock_ms));
            }
        });
        let resident_bytes = resident_bytes() - base_bytes;
        let counted_bytes = store.statistics().memory_bytes as usize;
        println!("{name}: resident {resident_bytes}, counted {counted_bytes}, limit {MEMORY_BYTES_MAX}");
        assert!(counted_bytes <= MEMORY_BYTES_MAX, "{name}: counted {counted_bytes}");
        assert!(counted_bytes > MEMORY_BYTES_MAX / 10 * 9, "{name}: the memory is not used: {counted_bytes}");
        // Memory is freed by evicting a few items at a time, never by emptying the store.
        let items = store.statistics().items as usize;
        let fitting = MEMORY_BYTES_MAX / (PHASES[phase].2 + 100);
        assert!(items > fitting / 2, "{name}: {items} items, where {fitting} of the largest would fit");
        assert!(resident_bytes < MEMORY_BYTES_MAX / 100 * 103 + BASE_BYTES, "{name}: resident {resident_bytes}");
    }
    assert!(store.statistics().evictions > 0);
}
