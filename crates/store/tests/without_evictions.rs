//! A store that evicts nothing (`-M`): what it refuses, and what frees memory.

use lookaside_protocol::{Direction, StoreMode};
use lookaside_store::{ArithmeticOutcome, Expiry, KeyHasher, NewItem, Now, Options, Store, StoreOutcome};

const START_MS: u64 = 1_700_000_000_000;
const MEMORY_BYTES: usize = 1 << 20;

fn store() -> Store {
    let options = Options {
        memory_bytes_max: MEMORY_BYTES,
        item_bytes_max: MEMORY_BYTES / 16,
        evictions: false,
        ..Options::default()
    };
    Store::new(options).expect("the options are fine")
}

fn at_s(s: u64) -> Now {
    Now { unix_ms: START_MS + s * 1000 }
}

fn put(store: &Store, name: &str, mode: StoreMode, value: &[u8], exptime: i64, now: Now) -> StoreOutcome {
    let item = NewItem { flags: 0, expiry: Expiry::from_exptime(exptime, now), value };
    store.store(KeyHasher::new(0).hash(name.as_bytes()), mode, &item, now)
}

fn set(store: &Store, name: &str, value: &[u8], exptime: i64, now: Now) -> StoreOutcome {
    put(store, name, StoreMode::Set, value, exptime, now)
}

fn get(store: &Store, name: &str, now: Now) -> Option<Vec<u8>> {
    store.reader(now).get(KeyHasher::new(0).hash(name.as_bytes()), |item| item.value.to_vec())
}

/// Sets keys of this prefix until one is refused; returns their number.
fn fill(store: &Store, prefix: &str, value_bytes: usize, exptime: i64, now: Now) -> usize {
    let value = vec![b'v'; value_bytes];
    let is_stored = |number: &usize| match set(store, &format!("{prefix}:{number}"), &value, exptime, now) {
        StoreOutcome::Stored(_) => true,
        outcome => {
            assert_eq!(outcome, StoreOutcome::OutOfMemory);
            false
        }
    };
    (0..).take_while(is_stored).count()
}

#[test]
fn a_full_store_keeps_every_item_and_counts_the_refusals() {
    for value_bytes in [10, 1_000, 20_000] {
        let store = store();
        let items = fill(&store, "key", value_bytes, 0, at_s(0));
        assert!(items * (value_bytes + 40) > MEMORY_BYTES / 3, "{items} items of {value_bytes} bytes");
        let value = vec![b'v'; value_bytes];
        for number in 0..500 {
            assert_eq!(set(&store, &format!("more:{number}"), &value, 0, at_s(1)), StoreOutcome::OutOfMemory);
        }
        let lost = (0..items).filter(|number| get(&store, &format!("key:{number}"), at_s(1)).is_none()).count();
        assert_eq!(lost, 0, "of {items} items of {value_bytes} bytes");
        let statistics = store.statistics();
        assert_eq!((statistics.evictions, statistics.stores_out_of_memory), (0, 501));
        assert!(statistics.memory_bytes <= MEMORY_BYTES as u64);
        let refusals: u64 = store.class_statistics(at_s(1)).iter().map(|class| class.refusals).sum();
        assert!(refusals > 0);
        store.audit();
    }
}

#[test]
fn a_delete_frees_memory() {
    let store = store();
    let items = fill(&store, "key", 100, 0, at_s(0));
    for number in 0..items {
        store.delete(KeyHasher::new(0).hash(format!("key:{number}").as_bytes()), 0, at_s(1));
    }
    assert_eq!(set(&store, "other", &[b'v'; 100], 0, at_s(1)), StoreOutcome::Stored(cas_of(&store, "other", at_s(1))));
    // The values that are kept as stale for a while free memory too.
    let again = fill(&store, "again", 100, 0, at_s(1));
    assert!(again + 1 >= items * 9 / 10, "{again} of {items}");
    store.audit();
}

fn cas_of(store: &Store, name: &str, now: Now) -> lookaside_protocol::Cas {
    store.reader(now).get(KeyHasher::new(0).hash(name.as_bytes()), |item| item.cas).expect("it is there")
}

#[test]
fn items_that_have_expired_free_memory() {
    let store = store();
    // Longer than the timers of transient items.
    let lasting = fill(&store, "lasting", 100, 0, at_s(0)) / 2;
    for number in 0..lasting {
        store.delete(KeyHasher::new(0).hash(format!("lasting:{}", number * 2).as_bytes()), 0, at_s(0));
    }
    let passing = fill(&store, "passing", 100, 600, at_s(20));
    assert!(passing > lasting / 2, "{passing} of {lasting}");
    assert_eq!(set(&store, "another", &[b'v'; 100], 0, at_s(600)), StoreOutcome::OutOfMemory);
    let stored = (0..passing)
        .filter(|number| {
            matches!(set(&store, &format!("new:{number}"), &[b'v'; 100], 0, at_s(700)), StoreOutcome::Stored(_))
        })
        .count();
    assert!(stored >= passing * 9 / 10, "{stored} in place of {passing}");
    let lost =
        (0..lasting).filter(|number| get(&store, &format!("lasting:{}", number * 2 + 1), at_s(700)).is_none()).count();
    assert_eq!((lost, store.statistics().evictions), (0, 0));
    store.audit();
}

/// Expired items of one size hold all pages: a page moves to the class of another size.
#[test]
fn items_of_another_size_that_have_expired_free_memory() {
    let store = store();
    let small = fill(&store, "small", 30, 600, at_s(0));
    assert!(small > 1_000);
    assert_eq!(set(&store, "large", &[b'v'; 2_000], 0, at_s(1)), StoreOutcome::OutOfMemory);
    let large = fill(&store, "large", 2_000, 0, at_s(700));
    assert!(large * 2_000 > MEMORY_BYTES / 2, "{large}");
    assert!((0..large).all(|number| get(&store, &format!("large:{number}"), at_s(700)).is_some()));
    assert_eq!(store.statistics().evictions, 0);
    store.audit();
}

#[test]
fn a_refused_set_removes_the_old_value_and_other_verbs_leave_it() {
    let store = store();
    for name in ["set", "replace", "append", "prepend", "number"] {
        assert!(matches!(set(&store, name, b"9", 0, at_s(0)), StoreOutcome::Stored(_)));
    }
    // Every size.
    for value_bytes in [4_000, 400, 40, 0] {
        fill(&store, &format!("{value_bytes}"), value_bytes, 0, at_s(0));
    }
    let large = [b'v'; 3_000];
    for (name, mode) in
        [("replace", StoreMode::Replace), ("append", StoreMode::Append), ("prepend", StoreMode::Prepend)]
    {
        assert_eq!(put(&store, name, mode, &large, 0, at_s(0)), StoreOutcome::OutOfMemory, "{name}");
        assert_eq!(get(&store, name, at_s(0)).as_deref(), Some(&b"9"[..]), "{name}");
    }
    let cas = StoreMode::Cas(cas_of(&store, "replace", at_s(0)));
    assert_eq!(put(&store, "replace", cas, &large, 0, at_s(0)), StoreOutcome::OutOfMemory);
    assert_eq!(get(&store, "replace", at_s(0)).as_deref(), Some(&b"9"[..]));
    assert_eq!(set(&store, "set", &large, 0, at_s(0)), StoreOutcome::OutOfMemory);
    assert_eq!(get(&store, "set", at_s(0)), None);
    // The chunk of the removed value may hold the new number.
    let counted = store.arithmetic(KeyHasher::new(0).hash(b"number"), Direction::Up, 1, at_s(0));
    assert!(matches!(counted, ArithmeticOutcome::Number(10, _) | ArithmeticOutcome::OutOfMemory), "{counted:?}");
    store.audit();
}
