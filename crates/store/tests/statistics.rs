//! What is counted: the bytes of items, gets of items that have expired or were flushed, refused stores, and what a
//! crawl removes. And a memory limit that is raised above that of the start.

use lookaside_protocol::{Direction, StoreMode};
use lookaside_store::{
    Expiry, HashedKey, KeyHasher, LeaseGet, MetaGet, NewItem, Now, Options, Statistics, Store, StoreOutcome,
};

const START: Now = Now { unix_ms: 1_700_000_000_000 };
const HEADER_BYTES: u64 = 16;

fn after_s(seconds: u64) -> Now {
    Now { unix_ms: START.unix_ms + 1_000 * seconds }
}

fn key(name: &str) -> HashedKey<'_> {
    KeyHasher::new(0).hash(name.as_bytes())
}

fn store_with(change: impl FnOnce(&mut Options)) -> Store {
    let mut options = Options { stale_ms: 0, ..Options::default() };
    change(&mut options);
    Store::new(options).expect("the options are fine")
}

fn set(store: &Store, name: &str, value_bytes: usize, expiry: Expiry, now: Now) -> StoreOutcome {
    store.store(key(name), StoreMode::Set, &NewItem { flags: 0, expiry, value: &vec![b'v'; value_bytes] }, now)
}

fn has(store: &Store, name: &str, now: Now) -> bool {
    store.reader(now).get(key(name), |_| ()).is_some()
}

/// The gets of items that had expired, and of items that were flushed.
fn gets_of_removed(store: &Store) -> [u64; 2] {
    let Statistics { gets_expired, gets_flushed, .. } = store.statistics();
    [gets_expired, gets_flushed]
}

fn expires_after_s(seconds: i64) -> Expiry {
    Expiry::from_exptime(seconds, START)
}

#[test]
fn bytes_are_those_of_headers_keys_and_values() {
    let store = store_with(|_| {});
    let items_bytes = || store.statistics().items_bytes;
    assert_eq!(items_bytes(), 0, "an empty store has none, whatever its index takes");
    set(&store, "key", 100, Expiry::Never, START);
    assert_eq!(items_bytes(), HEADER_BYTES + 103);
    set(&store, "key", 50, Expiry::Never, START);
    assert_eq!(items_bytes(), HEADER_BYTES + 53, "in place of the old value");
    store.store(key("key"), StoreMode::Append, &NewItem { flags: 0, expiry: Expiry::Never, value: b"1234567" }, START);
    assert_eq!(items_bytes(), HEADER_BYTES + 60);
    set(&store, "large", 300_000, Expiry::Never, START);
    let large_bytes = items_bytes() - HEADER_BYTES - 60;
    assert!((300_005..300_100).contains(&large_bytes), "{large_bytes} bytes in several chunks");
    store.delete(key("large"), 0, START);
    set(&store, "brief", 10, expires_after_s(5), START);
    store.tick(after_s(6));
    assert_eq!(items_bytes(), HEADER_BYTES + 60, "one was deleted, the other has expired");
    assert!(store.flush_all(START, after_s(6)));
    assert_eq!(items_bytes(), 0);
}

#[test]
fn evictions_and_page_moves_keep_the_sum() {
    let store = store_with(|options| (options.memory_bytes_max, options.item_bytes_max) = (1 << 20, 64 << 10));
    for round in 0..20_000 {
        let value_bytes = [10, 40, 500, 30_000][round % 4] * (1 + round / 7_000);
        set(&store, &format!("key:{round}"), value_bytes.min(60_000), Expiry::Never, after_s(round as u64 / 100));
    }
    let statistics = store.statistics();
    assert!(statistics.evictions > 1_000 && statistics.items_bytes < statistics.memory_bytes, "{statistics:?}");
    // Compares the sums with the items that there are.
    store.audit();
}

#[test]
fn a_class_counts_items_in_several_chunks_whole() {
    let store = store_with(|_| {});
    (0..33).for_each(|number| {
        assert!(matches!(set(&store, &format!("key:{number}"), 60_000, Expiry::Never, START), StoreOutcome::Stored(_)))
    });
    let classes = store.class_statistics(START);
    let sum: usize = classes.iter().map(|class| class.items_bytes).sum();
    assert_eq!(sum as u64, store.statistics().items_bytes);
    assert!((33 * 60_000..33 * 60_100).contains(&sum), "{sum}");
}

#[test]
fn a_get_of_an_item_that_has_expired_is_counted_once() {
    // With timers, which remove an item in its last second, and without.
    for transient_s in [60, 0] {
        let store = store_with(|options| options.transient_s = transient_s);
        for name in ["get", "lease-get", "gat", "meta", "touched", "deleted", "again", "live"] {
            set(&store, name, 10, expires_after_s(if name == "live" { 100 } else { 5 }), START);
        }
        let now = after_s(6);
        store.tick(now);
        assert!(!has(&store, "get", now) && !has(&store, "get", now) && has(&store, "live", now));
        assert_eq!(gets_of_removed(&store), [1, 0]);
        store.reader(now).lease_get(key("lease-get"), |reply| assert!(matches!(reply, LeaseGet::Miss { .. })));
        assert!(store.reader(now).get_and_touch(key("gat"), Expiry::Never, |_| ()).is_none());
        assert!(store.reader(now).meta_get(key("meta"), &MetaGet::default(), |_| ()).is_none());
        assert_eq!(gets_of_removed(&store), [3, 0], "a look that is no get is not counted");
        if transient_s == 60 {
            let counted = MetaGet { counts_miss: true, ..MetaGet::default() };
            assert!(store.reader(now).meta_get(key("meta"), &counted, |_| ()).is_none());
            assert_eq!(gets_of_removed(&store), [4, 0]);
        }
        let before = gets_of_removed(&store);
        assert!(!store.reader(now).touch(key("touched"), Expiry::Never));
        assert_eq!(gets_of_removed(&store), before, "a touch is no get");
        // A later item of the key takes the place of what was known.
        set(&store, "again", 10, Expiry::Never, now);
        store.delete(key("again"), 0, now);
        assert!(!has(&store, "again", now) && !has(&store, "never", now));
        assert_eq!(gets_of_removed(&store), before);
        store.audit();
    }
}

#[test]
fn a_get_of_an_item_that_was_flushed_is_counted_once() {
    let store = store_with(|_| {});
    (0..1_000).for_each(|number| {
        assert!(matches!(set(&store, &format!("key:{number}"), 10, Expiry::Never, START), StoreOutcome::Stored(_)))
    });
    assert!(store.flush_all(START, START));
    for number in 0..2_000 {
        assert!(!has(&store, &format!("key:{number}"), START));
    }
    assert_eq!(gets_of_removed(&store), [0, 1_000]);
    assert!(!has(&store, "key:1", START));
    assert_eq!(gets_of_removed(&store), [0, 1_000]);
    // The slots that know of flushed items are as good as empty ones.
    (0..1_000).for_each(|number| {
        assert!(matches!(set(&store, &format!("key:{number}"), 10, Expiry::Never, START), StoreOutcome::Stored(_)))
    });
    assert!(store.flush_all(START, START));
    (1_000..21_000).for_each(|number| {
        assert!(matches!(set(&store, &format!("key:{number}"), 10, Expiry::Never, START), StoreOutcome::Stored(_)))
    });
    assert_eq!((store.statistics().items, store.statistics().evictions), (20_000, 0));
    store.audit();
}

#[test]
fn a_deleted_value_whose_stale_time_is_over_has_not_expired() {
    let store = store_with(|options| options.stale_ms = 2_000);
    set(&store, "key", 10, expires_after_s(100), START);
    store.delete(key("key"), 0, START);
    assert!(!has(&store, "key", START) && !has(&store, "key", after_s(3)));
    set(&store, "other", 10, expires_after_s(100), START);
    store.delete(key("other"), 0, START);
    assert!(store.flush_all(START, START));
    assert!(!has(&store, "other", START));
    assert_eq!(gets_of_removed(&store), [0, 0]);
}

#[test]
fn stores_that_are_refused_for_their_size_are_counted() {
    let store = store_with(|_| {});
    assert_eq!(set(&store, "key", 1 << 20, Expiry::Never, START), StoreOutcome::TooLarge);
    assert!(matches!(set(&store, "key", 600_000, Expiry::Never, START), StoreOutcome::Stored(_)));
    let piece = NewItem { flags: 0, expiry: Expiry::Never, value: &vec![b'v'; 500_000] };
    assert_eq!(store.store(key("key"), StoreMode::Append, &piece, START), StoreOutcome::TooLarge);
    assert_eq!(store.statistics().stores_too_large, 2);
}

#[test]
fn a_crawl_removes_what_has_expired() {
    let store = store_with(|options| options.transient_s = 0);
    (0..500).for_each(|number| {
        assert!(matches!(
            set(&store, &format!("brief:{number}"), 10, expires_after_s(5), START),
            StoreOutcome::Stored(_)
        ))
    });
    (0..500).for_each(|number| {
        assert!(matches!(
            set(&store, &format!("large:{number}"), 4_000, expires_after_s(5), START),
            StoreOutcome::Stored(_)
        ))
    });
    (0..500).for_each(|number| {
        assert!(matches!(set(&store, &format!("lasting:{number}"), 10, Expiry::Never, START), StoreOutcome::Stored(_)))
    });
    let large_class =
        store.class_statistics(START).iter().filter(|class| class.items > 0).map(|class| class.number).max();
    let crawl = |wants_class: &dyn Fn(usize) -> bool| {
        let mut crawl = store.start_crawl(1, after_s(6)).expect("no other crawl");
        let (mut checked, mut reclaimed) = (0, 0);
        loop {
            let (counts, has_more) = store.reclaim_expired(&mut crawl, 16, after_s(6), wants_class);
            (checked, reclaimed) = (checked + counts.checked, reclaimed + counts.reclaimed);
            if !has_more {
                break (checked, reclaimed);
            }
        }
    };
    assert_eq!(crawl(&|class| Some(class) == large_class), (500, 500));
    assert_eq!(crawl(&|_| true), (1_000, 500));
    let statistics = store.statistics();
    assert_eq!((statistics.items, statistics.expirations, statistics.evictions), (500, 1_000, 0));
    assert!(!has(&store, "brief:1", after_s(6)) && has(&store, "lasting:1", after_s(6)));
    assert_eq!(gets_of_removed(&store), [1, 0], "a get says why the item is gone");
    store.audit();
}

#[test]
fn the_limit_can_be_raised_to_what_was_reserved() {
    const MEGABYTE: usize = 1 << 20;
    let store = store_with(|options| {
        (options.memory_bytes_max, options.item_bytes_max) = (8 * MEGABYTE, 64 << 10);
        options.memory_bytes_reserved = 32 * MEGABYTE;
    });
    let fill = |from: usize, megabytes: usize| {
        (0..megabytes * 1_100).for_each(|number| {
            set(&store, &format!("key:{}", from + number), 950, Expiry::Never, after_s(number as u64 / 1_000));
        });
    };
    let memory_bytes = || store.statistics().memory_bytes as usize;
    fill(0, 10);
    assert!(store.statistics().evictions > 0 && memory_bytes() <= 8 * MEGABYTE);
    assert!(!store.set_memory_limit(33 * MEGABYTE));
    assert!(store.set_memory_limit(24 * MEGABYTE));
    let evictions_before = store.statistics().evictions;
    fill(100_000, 13);
    assert_eq!(store.statistics().evictions, evictions_before, "there was room for it");
    assert!(memory_bytes() > 20 * MEGABYTE && memory_bytes() <= 24 * MEGABYTE, "{}", memory_bytes());
    store.audit();
    assert!(store.set_memory_limit(4 * MEGABYTE));
    (0..100).for_each(|tick| store.tick(after_s(100 + tick)));
    assert!(memory_bytes() <= 4 * MEGABYTE, "{}", memory_bytes());
    assert!(store.set_memory_limit(32 * MEGABYTE));
    fill(200_000, 40);
    assert!(memory_bytes() > 31 * MEGABYTE && memory_bytes() <= 32 * MEGABYTE, "{}", memory_bytes());
    store.audit();
}

#[test]
fn a_number_that_finds_no_memory_is_a_refused_store() {
    let store = store_with(|options| {
        (options.memory_bytes_max, options.item_bytes_max, options.evictions) = (1 << 20, 64 << 10, false);
    });
    // With its header and one digit it fills a chunk of 64 bytes.
    let number = "n".repeat(47);
    let item = NewItem { flags: 0, expiry: Expiry::Never, value: b"9" };
    assert!(matches!(store.store(key(&number), StoreMode::Set, &item, START), StoreOutcome::Stored(_)));
    let filled = (0..10_000)
        .find(|name| set(&store, &format!("fill:{name}"), 900, Expiry::Never, START) == StoreOutcome::OutOfMemory);
    assert!(filled.is_some());
    let before = store.statistics().stores_out_of_memory;
    store.arithmetic(key(&number), Direction::Up, 1, START);
    assert_eq!(store.statistics().stores_out_of_memory, before + 1);
}
