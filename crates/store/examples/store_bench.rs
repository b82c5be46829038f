//! The cost of a get, a set and an item, in process. Prints figures and compares nothing.
//!
//! ```text
//! cargo run --release -p lookaside-store --example store_bench
//! ```
//! * Nanoseconds per get of random ones of 4 million items (24 B keys, 32 B values): one at a time, in batches of 24
//!   with prefetch, by one thread and by two.
//! * Sets of 4 million new keys, and of the same keys again; the longest single set while the index grows.
//! * Resident bytes per item beside key and value, with a million items.
//!
//! Keys are made before the clock starts. Each figure is the best of five rounds: the machine may have other work.

use lookaside_protocol::StoreMode;
use lookaside_store::{Expiry, NewItem, Now, Options, Store};

const ITEMS: u64 = 4_000_000;
const BATCH: usize = 24;
const GETS: usize = 2_400_000;
const ROUNDS: usize = 5;
const NOW: Now = Now { unix_ms: 1_700_000_000_000 };

type Key = [u8; 24];

fn name(number: u64) -> Key {
    let mut key = *b"bench:item:0000000000000";
    let mut rest = number;
    for place in key[11..].iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

fn store(memory_bytes_max: usize) -> Store {
    Store::new(Options { memory_bytes_max, ..Options::default() }).expect("the options are fine")
}

fn set(store: &Store, number: u64) {
    let item = NewItem { flags: 0, expiry: Expiry::Never, value: &[b'v'; 32] };
    store.store(store.hasher().hash(&name(number)), StoreMode::Set, &item, NOW);
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or("VmRSS: 0 kB");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).unwrap_or(0) * 1024
}

/// Random keys, so that the lines of every get are not in the processor's caches.
fn keys(seed: u64) -> Vec<Key> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) % ITEMS
    };
    (0..GETS).map(|_| name(next())).collect()
}

fn get_singly(store: &Store, keys: &[Key]) -> usize {
    let reader = store.reader(NOW);
    keys.iter().filter_map(|key| reader.get(store.hasher().hash(key), |item| item.value.value_bytes())).sum()
}

fn get_in_batches(store: &Store, keys: &[Key]) -> usize {
    let mut bytes = 0;
    for batch in keys.chunks(BATCH) {
        let reader = store.reader(NOW);
        let mut hashed = [store.hasher().hash(&batch[0]); BATCH];
        for (place, key) in batch.iter().enumerate() {
            hashed[place] = store.hasher().hash(key);
        }
        reader.prefetch(&mut hashed[..batch.len()]);
        for &key in &hashed[..batch.len()] {
            // The value is copied, as a server does.
            let mut reply = [0u8; 32];
            bytes += reader
                .get(key, |item| item.value.pieces().for_each(|piece| reply.copy_from_slice(piece)))
                .map_or(0, |()| 1);
            std::hint::black_box(&reply);
        }
    }
    bytes
}

/// The bound that the machine sets: a table of places and an array of items, read at random in the same way.
struct Arrays {
    places: Vec<[u64; 8]>,
    items: Vec<[u64; 9]>,
}

impl Arrays {
    fn new() -> Arrays {
        let spread = |at: u64| at.wrapping_mul(2_654_435_761) % ITEMS;
        Arrays {
            places: (0..ITEMS / 4).map(|at| [spread(at); 8]).collect(),
            items: (0..ITEMS).map(|at| [at; 9]).collect(),
        }
    }

    fn read(&self, keys: &[Key]) -> usize {
        let mut sum = 0;
        for batch in keys.chunks(BATCH) {
            // The processor overlaps independent reads, as it does prefetches.
            let mut places = [0u64; BATCH];
            for (place, key) in batch.iter().enumerate() {
                let hash = key.iter().fold(0u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
                places[place] = self.places[(hash % (ITEMS / 4)) as usize][7];
            }
            sum += places.iter().map(|&place| self.items[place as usize][8] as usize).sum::<usize>();
        }
        sum
    }
}

/// Nanoseconds of processor time of this thread.
fn running_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Processor time per get, the best of some rounds.
fn best_ns(keys: &[Vec<Key>], run: impl Fn(&[Key]) -> usize + Sync) -> f64 {
    let measure = |keys: &[Key]| {
        let start_ns = running_ns();
        assert!(std::hint::black_box(run(keys)) > 0);
        running_ns() - start_ns
    };
    let round = || -> u64 {
        std::thread::scope(|scope| {
            let threads: Vec<_> = keys.iter().map(|keys| scope.spawn(|| measure(keys))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        })
    };
    let best = (0..ROUNDS).map(|_| round()).min().expect("there are rounds");
    best as f64 / (keys.len() * GETS) as f64
}

fn overhead() {
    const COUNT: u64 = 1_000_000;
    let before = resident_bytes();
    let store = store(256 << 20);
    (0..COUNT).for_each(|number| set(&store, number));
    let bytes = resident_bytes() - before;
    assert_eq!(store.statistics().items, COUNT);
    let counted = store.statistics().memory_bytes as f64 / COUNT as f64 - 56.0;
    println!(
        "bytes per item beside key and value, 1M items: {:.1} resident, {counted:.1} counted",
        bytes as f64 / COUNT as f64 - 56.0
    );
}

/// Sets of new keys, timed as a whole: reading the clock costs as much as a set.
fn fill() -> Store {
    let store = store(1 << 30);
    let began_ns = running_ns();
    (0..ITEMS).for_each(|number| set(&store, number));
    let new_ns = (running_ns() - began_ns) as f64 / ITEMS as f64;
    let began_ns = running_ns();
    (0..ITEMS).for_each(|number| set(&store, number));
    let again_ns = (running_ns() - began_ns) as f64 / ITEMS as f64;
    println!(
        "set of {ITEMS} new keys while the index grows: {new_ns:.0} ns each; all of them once more: {again_ns:.0} ns"
    );
    assert_eq!(store.statistics().items, ITEMS);
    store
}

fn longest_sets() {
    let store = store(1 << 30);
    let mut took_ns = Vec::with_capacity(ITEMS as usize);
    for number in 0..ITEMS {
        let began_ns = running_ns();
        set(&store, number);
        took_ns.push(running_ns() - began_ns);
    }
    took_ns.sort_unstable_by(|one, other| other.cmp(one));
    let longest = [0, 1, 10, 100, ITEMS as usize / 1000].map(|place| format!("{:.1}", took_ns[place] as f64 / 1000.0));
    println!("the longest set, second, 11th, 101st and 1 in 1000, in microseconds: {}", longest.join(", "));
}

fn main() {
    overhead();
    let store = fill();
    longest_sets();
    let keys = [keys(1), keys(2)];
    let single = best_ns(&keys[..1], |keys| get_singly(&store, keys));
    println!("get, one at a time, one thread: {single:.0} ns");
    let arrays = Arrays::new();
    let reference = best_ns(&keys[..1], |keys| arrays.read(keys));
    let reference_two = best_ns(&keys, |keys| arrays.read(keys));
    let one = best_ns(&keys[..1], |keys| get_in_batches(&store, keys));
    let two = best_ns(&keys, |keys| get_in_batches(&store, keys));
    println!(
        "get, in batches of {BATCH}, one thread: {one:.0} ns; two plain arrays read in the same way: {reference:.0} ns"
    );
    println!(
        "two threads: {two:.0} ns each, {:.2} times one; the arrays {reference_two:.0} ns, {:.2} times",
        2.0 * one / two,
        2.0 * reference / reference_two
    );
}
