//! Threads that read, replace, delete and evict each other's items, in few enough steps for Miri:
//!
//! ```text
//! make miri
//! ```
//! Miri reports a payload that one thread writes while another reads it, a read of uninitialized memory, and a
//! dangling reference: it checks the rules at the head of `memory/region.rs` on which `unsafe` rests. Without Miri
//! this is one more small stress test.

use lookaside_protocol::StoreMode;
use lookaside_store::{Expiry, KeyHasher, LeaseGet, NewItem, Now, Options, Store};

const NOW: Now = Now { unix_ms: 1_700_000_000_000 };
/// Four of these fill a page of the store below.
const LARGE: usize = 900;
const THREADS: u64 = 3;
const STEPS: u64 = 120;

fn value(number: u64, value_bytes: usize) -> Vec<u8> {
    vec![number as u8; value_bytes]
}

fn set(store: &Store, number: u64, value_bytes: usize) {
    let item = NewItem { flags: number as u32 % 2, expiry: Expiry::Never, value: &value(number, value_bytes) };
    store.store(KeyHasher::new(0).hash(format!("key:{number}").as_bytes()), StoreMode::Set, &item, NOW);
}

fn check(number: u64, shown: &[u8]) {
    assert_eq!(shown, value(number, shown.len()));
}

fn step(store: &Store, number: u64, kind: u64) {
    let name = format!("key:{number}");
    let reader = store.reader(NOW);
    match kind {
        0 => set(store, number, LARGE),
        // Chained, and of another class.
        1 => set(store, number, 2_300),
        2 => set(store, number, 100),
        3 => drop(store.delete(KeyHasher::new(0).hash(name.as_bytes()), 0, NOW)),
        4 => reader.lease_get(KeyHasher::new(0).hash(name.as_bytes()), |reply| match reply {
            LeaseGet::Hit(item) => check(number, &item.value.to_vec()),
            LeaseGet::Miss { stale, .. } => stale.into_iter().for_each(|item| check(number, &item.value.to_vec())),
        }),
        _ => {
            let mut key = KeyHasher::new(0).hash(name.as_bytes());
            reader.prefetch(std::slice::from_mut(&mut key));
            reader.get(key, |item| check(number, &item.value.to_vec()));
        }
    }
}

#[test]
fn no_thread_reads_what_another_writes() {
    let options = Options { memory_bytes_max: 256 << 10, item_bytes_max: 16 << 10, ..Options::default() };
    let store = Store::new(options).expect("the options are fine");
    (0..250).for_each(|number| set(&store, number, LARGE));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                for count in 0..STEPS {
                    let dice = (thread * STEPS + count).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                    step(store, dice % 8, dice >> 8 & 7);
                }
            });
        }
    });
    assert!(store.statistics().evictions > 0);
    store.audit();
}
