//! A few threads on one small store, under a scheduler (shuttle) that chooses the next thread at every lock, and at
//! every access without a lock. Runs thousands of schedules of each scene; a failing one is printed and can be
//! replayed.
//!
//! ```text
//! make schedules
//! ```
//! It finds a deadlock (the lock order is at the head of `memory/mod.rs`), an item that is lost, shown torn or under
//! another key, a chunk with no owner or with two, a fill that survives the delete after it.
#![cfg(shuttle)]

use lookaside_protocol::{Direction, StoreMode};
use lookaside_store::{Expiry, KeyHasher, LeaseGet, NewItem, Now, Options, Store, StoreOutcome};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

const NOW: Now = Now { unix_ms: 1_700_000_000_000 };

/// Four of these fill a page.
const LARGE: usize = 900;

/// The number of schedules of each scene: `SCHEDULES`, or as many as take a few seconds.
fn schedules() -> usize {
    std::env::var("SCHEDULES").ok().and_then(|count| count.parse().ok()).unwrap_or(1_000)
}

/// Runs `scene` under random schedules, and under schedules that make threads wait for long.
fn explore(scene: impl Fn() + Send + Sync + Copy + 'static) {
    const PREEMPTIONS: usize = 3;
    shuttle::check_random(scene, schedules());
    shuttle::check_pct(scene, schedules(), PREEMPTIONS);
}

/// The smallest store of several stripes: four, and 64 pages of 4 KiB, so that it is full after 250 large items.
fn store(change: impl FnOnce(&mut Options)) -> Arc<Store> {
    let mut options = Options { memory_bytes_max: 256 << 10, item_bytes_max: 16 << 10, ..Options::default() };
    change(&mut options);
    Arc::new(Store::new(options).expect("the options are fine"))
}

fn after_s(seconds: u64) -> Now {
    Now { unix_ms: NOW.unix_ms + 1000 * seconds }
}

fn name(number: u64) -> String {
    format!("key:{number}")
}

/// Bytes that depend on the key, so that a value under another one, or torn, is detected.
fn value(number: u64, value_bytes: usize) -> Vec<u8> {
    (0..value_bytes).map(|place| (number as usize * 31 + place) as u8).collect()
}

fn set(store: &Store, number: u64, value_bytes: usize, now: Now) {
    let item = NewItem { flags: 0, expiry: Expiry::Never, value: &value(number, value_bytes) };
    let outcome = store.store(KeyHasher::new(0).hash(name(number).as_bytes()), StoreMode::Set, &item, now);
    assert!(matches!(outcome, StoreOutcome::Stored(_)), "{outcome:?}");
}

fn get_and_check(store: &Store, number: u64, now: Now) {
    let name = name(number);
    let reader = store.reader(now);
    let mut key = KeyHasher::new(0).hash(name.as_bytes());
    reader.prefetch(std::slice::from_mut(&mut key));
    reader.get(key, |item| {
        let shown = item.value.to_vec();
        assert_eq!((item.key, &shown), (name.as_bytes(), &value(number, shown.len())));
    });
}

fn fill(store: &Store, items: u64, value_bytes: usize) {
    (0..items).for_each(|number| set(store, number, value_bytes, NOW));
}

/// What one thread does.
type Part = Box<dyn FnOnce(&Store) + Send>;

/// Runs each of `parts` in a thread of its own; then audits the memory.
fn run_threads(store: Arc<Store>, parts: Vec<Part>) {
    let threads = parts.into_iter().map(|part| {
        let store = Arc::clone(&store);
        thread::spawn(move || part(&store))
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().expect("no panic"));
    store.audit();
}

/// Sets in a full store: each evicts an item that another thread may be using.
#[test]
fn eviction_skips_items_in_use() {
    explore(|| {
        let store = store(|_| {});
        fill(&store, 260, LARGE);
        let part = |from: u64| -> Part {
            Box::new(move |store| {
                for number in from..from + 6 {
                    set(store, number, LARGE, NOW);
                    get_and_check(store, 1_001 + number % 2, NOW);
                    set(store, 10 + number % 20, LARGE, NOW);
                    store.delete(KeyHasher::new(0).hash(name(20 + number % 20).as_bytes()), 0, NOW);
                }
            })
        };
        run_threads(store, vec![part(1_000), part(1_002), part(2_000)]);
    });
}

/// Items of several chunks, whose last piece lies in another class than their head: both classes look for victims,
/// while the items are replaced and deleted.
#[test]
fn chained_items_leave_as_a_whole() {
    explore(|| {
        const CHAINED: usize = 2_300;
        const PIECE: usize = 290;
        let store = store(|_| {});
        (0..6).for_each(|number| set(&store, number, CHAINED, NOW));
        (100..130).for_each(|number| set(&store, number, PIECE, NOW));
        (200..430).for_each(|number| set(&store, number, LARGE, NOW));
        let evict = |from: u64, value_bytes: usize| -> Part {
            Box::new(move |store| {
                for number in from..from + 5 {
                    set(store, number, value_bytes, NOW);
                    get_and_check(store, number % 6, NOW);
                }
            })
        };
        let change = Box::new(|store: &Store| {
            set(store, 5, CHAINED, NOW);
            store.delete(KeyHasher::new(0).hash(name(4).as_bytes()), 0, NOW);
            set(store, 3, 3_300, NOW);
        });
        run_threads(store, vec![evict(1_000, LARGE), evict(2_000, PIECE), change]);
    });
}

/// New items have another size than those that fill the memory: pages move between classes while all threads use them.
#[test]
fn pages_move_while_their_items_are_used() {
    explore(|| {
        let store = store(|options| options.age_exponent = 0.0);
        fill(&store, 250, LARGE);
        let part = |from: u64| -> Part {
            Box::new(move |store| {
                for number in from..from + 6 {
                    set(store, number, 300, after_s(60));
                    get_and_check(store, number % 10, after_s(60));
                    set(store, 240 + number % 10, LARGE, after_s(60));
                }
            })
        };
        run_threads(store, vec![part(1_000), part(2_000)]);
    });
}

/// Each thread needs a page for a size that has none, and holds a stripe whose items the others cannot move: all get
/// one.
#[test]
fn concurrent_allocations_all_succeed() {
    explore(|| {
        let store = store(|_| {});
        fill(&store, 250, LARGE);
        let part = |from: u64, value_bytes: usize| -> Part {
            Box::new(move |store| (from..from + 2).for_each(|number| set(store, number, value_bytes, NOW)))
        };
        run_threads(store, vec![part(1_000, 100), part(2_000, 200), part(3_000, 300), part(4_000, 500)]);
    });
}

/// The index grows while other threads look keys up, with and without a hint.
#[test]
fn no_get_misses_while_the_index_grows() {
    explore(|| {
        const KEPT: u64 = 8;
        let store = store(|_| {});
        fill(&store, 420, 1);
        let get_all = |store: &Store| {
            for number in 0..KEPT {
                let name = name(number);
                let reader = store.reader(NOW);
                let mut key = KeyHasher::new(0).hash(name.as_bytes());
                reader.prefetch(std::slice::from_mut(&mut key));
                assert!(reader.get(key, |_| ()).is_some(), "{name}");
            }
        };
        let grow = |from: u64| -> Part {
            Box::new(move |store| (from..from + 40).for_each(|number| set(store, number, 1, NOW)))
        };
        run_threads(store, vec![Box::new(get_all), grow(1_000), grow(2_000)]);
    });
}

/// The rule of §3.2.1: a value that was read before a delete is not in the cache after it.
#[test]
fn a_fill_never_survives_the_delete_after_it() {
    explore(|| {
        let (store, database) = (store(|_| {}), Arc::new(AtomicU64::new(0)));
        let key = || KeyHasher::new(0).hash(b"row");
        let write = |database: Arc<AtomicU64>| -> Part {
            Box::new(move |store| {
                for _ in 0..2 {
                    database.fetch_add(1, Ordering::SeqCst);
                    store.delete(key(), 0, NOW);
                }
            })
        };
        let read = |database: Arc<AtomicU64>| -> Part {
            Box::new(move |store| {
                for _ in 0..3 {
                    let token = store.reader(NOW).lease_get(key(), |reply| match reply {
                        LeaseGet::Hit(_) => None,
                        LeaseGet::Miss { token, .. } => Some(token),
                    });
                    let row = database.load(Ordering::SeqCst).to_string();
                    let item = NewItem { flags: 0, expiry: Expiry::Never, value: row.as_bytes() };
                    token.map(|token| store.lease_set(key(), token, &item, NOW));
                }
            })
        };
        let parts = vec![
            write(Arc::clone(&database)),
            write(Arc::clone(&database)),
            read(Arc::clone(&database)),
            read(Arc::clone(&database)),
        ];
        run_threads(Arc::clone(&store), parts);
        let cached = store.reader(NOW).get(key(), |item| item.value.to_vec());
        let row = database.load(Ordering::SeqCst).to_string();
        assert!(cached.is_none_or(|cached| cached == row.as_bytes()));
    });
}

/// Arithmetic and cas are one step each, and a timer removes only expired items.
#[test]
fn verbs_on_one_key_are_atomic() {
    explore(|| {
        let store = store(|_| {});
        let put = |store: &Store, key: &str, value: &str, expiry| {
            let item = NewItem { flags: 0, expiry, value: value.as_bytes() };
            store.store(KeyHasher::new(0).hash(key.as_bytes()), StoreMode::Set, &item, NOW)
        };
        put(&store, "count", "0", Expiry::Never);
        put(&store, "brief", "x", Expiry::from_exptime(2, NOW));
        let count = || -> Part {
            Box::new(|store| {
                for _ in 0..3 {
                    store.arithmetic(KeyHasher::new(0).hash(b"count"), Direction::Up, 1, NOW);
                }
            })
        };
        let renew = Box::new(move |store: &Store| {
            put(store, "brief", "y", Expiry::Never);
        });
        let tick = Box::new(|store: &Store| store.tick(after_s(3)));
        run_threads(Arc::clone(&store), vec![count(), count(), renew, tick]);
        let shown = |key: &str| {
            store.reader(after_s(4)).get(KeyHasher::new(0).hash(key.as_bytes()), |item| item.value.to_vec())
        };
        assert_eq!(shown("count").as_deref(), Some(&b"6"[..]));
        assert_eq!(shown("brief").as_deref(), Some(&b"y"[..]));
    });
}
