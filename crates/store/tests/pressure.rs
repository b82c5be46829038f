//! Many more items than fit, of many sizes, from many threads: every value shown is the one that was stored, the
//! memory's invariants and its limit hold, and pages move to the classes that need them.

use lookaside_protocol::StoreMode;
use lookaside_store::{CrawlItem, Expiry, KeyHasher, LeaseGet, NewItem, Now, Options, Store, StoreOutcome};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const START_MS: u64 = 1_700_000_000_000;

fn store(memory_bytes_max: usize, change: impl FnOnce(&mut Options)) -> Store {
    let mut options = Options { memory_bytes_max, item_bytes_max: memory_bytes_max / 16, ..Options::default() };
    change(&mut options);
    Store::new(options).expect("the options are fine")
}

fn at_ms(ms: u64) -> Now {
    Now { unix_ms: START_MS + ms }
}

fn spread(number: u64) -> u64 {
    let mixed = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

fn set(store: &Store, name: &str, value: &[u8], expiry: Expiry, now: Now) {
    let outcome =
        store.store(KeyHasher::new(0).hash(name.as_bytes()), StoreMode::Set, &NewItem { flags: 0, expiry, value }, now);
    assert!(matches!(outcome, StoreOutcome::Stored(_)), "{name}: {outcome:?}");
}

fn has(store: &Store, name: &str, now: Now) -> bool {
    store.reader(now).get(KeyHasher::new(0).hash(name.as_bytes()), |_| ()).is_some()
}

/// Bytes that depend on the key, so that a value under the wrong key, or torn, is detected.
fn value(key: u64, value_bytes: usize) -> Vec<u8> {
    (0..value_bytes).map(|place| (spread(key ^ (place as u64 / 8) << 32) >> (place % 8 * 8)) as u8).collect()
}

fn check(key: u64, pieces: Vec<u8>) {
    assert_eq!(pieces, value(key, pieces.len()), "key {key}");
}

/// A hint is out of date as soon as other threads write: the look-up must check it.
#[test]
fn a_hint_that_is_out_of_date_does_no_harm() {
    const KEYS: u64 = 3_000;
    let (store, other) = (store(1 << 20, |_| {}), store(1 << 20, |_| {}));
    let names: Vec<String> = (0..2 * KEYS).map(|number| format!("key:{number}")).collect();
    let put = |store: &Store, number: u64, length: usize| {
        set(store, &names[number as usize], &value(number, length), Expiry::Never, at_ms(0));
    };
    let value_of = |store: &Store, key| store.reader(at_ms(0)).get(key, |item| item.value.to_vec());
    (0..KEYS).for_each(|number| put(&store, number, 20));
    let reader = store.reader(at_ms(0));
    let mut hinted: Vec<_> = names.iter().map(|name| KeyHasher::new(0).hash(name.as_bytes())).collect();
    reader.prefetch(&mut hinted);
    // A third is deleted, a third moves to larger chunks, and enough new items come to grow the index and displace
    // items.
    for number in 0..KEYS {
        match number % 3 {
            0 => drop(store.delete(KeyHasher::new(0).hash(names[number as usize].as_bytes()), 0, at_ms(0))),
            1 => put(&store, number, 40),
            _ => {}
        }
    }
    (KEYS..2 * KEYS).for_each(|number| put(&store, number, 30));
    let mut hits = 0;
    for (number, &key) in (0..).zip(&hinted) {
        let plain = value_of(&store, KeyHasher::new(0).hash(key.key()));
        assert_eq!(value_of(&store, key), plain, "{number}");
        assert_eq!(value_of(&other, key), None, "{number} was never in the other store");
        hits += u64::from(plain.is_some_and(|found| {
            check(number, found);
            true
        }));
    }
    assert!(hits > KEYS, "most are still there: {hits}");
    store.audit();
}

/// One thread under memory pressure: every verb, keys that all threads share, sizes from nothing to many pieces.
fn run_random_verbs(store: &Store, thread: u64, steps: u64, clock_ms: &AtomicU64) {
    for step in 0..steps {
        let dice = spread(thread << 40 | step);
        let number = dice % 2_000;
        let name = format!("key:{number}");
        let key = KeyHasher::new(0).hash(name.as_bytes());
        let now = at_ms(clock_ms.fetch_add(1, Ordering::Relaxed));
        let value_bytes_max = if dice >> 20 & 15 == 0 { 30_000 } else { 600 };
        let value = value(number, (dice >> 32) as usize % value_bytes_max);
        let expiry = match dice >> 24 & 3 {
            0 => Expiry::from_exptime(2, now),
            _ => Expiry::Never,
        };
        let item = NewItem { flags: (dice >> 28 & 1) as u32, expiry, value: &value };
        match dice >> 16 & 15 {
            0 => drop(store.delete(key, 5, now)),
            1 => drop(store.reader(now).get_and_touch(key, expiry, |view| check(number, view.value.to_vec()))),
            2 | 3 => {
                let token = store.reader(now).lease_get(key, |reply| match reply {
                    LeaseGet::Hit(view) => {
                        check(number, view.value.to_vec());
                        None
                    }
                    LeaseGet::Miss { token, stale } => {
                        stale.into_iter().for_each(|view| check(number, view.value.to_vec()));
                        Some(token)
                    }
                });
                token.map(|token| store.lease_set(key, token, &item, now));
            }
            4..8 => drop(store.store(key, StoreMode::Set, &item, now)),
            _ => drop(store.reader(now).get(key, |view| check(number, view.value.to_vec()))),
        }
    }
}

#[test]
fn threads_under_pressure_keep_the_memory_whole() {
    const STEPS: u64 = if cfg!(miri) { 40 } else { 10_000 };
    // Small enough that pages move, values are chained and timers compete with items all the time.
    let sizes: &[usize] = if cfg!(miri) { &[128 << 10] } else { &[128 << 10, 1 << 20, 2 << 20] };
    for &memory_bytes_max in sizes {
        let store = store(memory_bytes_max, |options| options.item_bytes_max = 40_000);
        let clock_ms = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (store, clock_ms) = (&store, &clock_ms);
                scope.spawn(move || run_random_verbs(store, thread, STEPS, clock_ms));
            }
        });
        store.audit();
        let statistics = store.statistics();
        assert!(statistics.memory_bytes <= memory_bytes_max as u64, "{statistics:?}");
        assert!(cfg!(miri) || statistics.evictions > 0 && statistics.transient_expirations > 0, "{statistics:?}");
        let now = at_ms(clock_ms.load(Ordering::Relaxed));
        assert!(store.flush_all(now, now));
        store.tick(at_ms(clock_ms.load(Ordering::Relaxed)));
        store.audit();
        assert_eq!(store.statistics().items, 0);
    }
}

#[test]
fn the_index_grows_and_loses_nothing() {
    const ITEMS: u64 = if cfg!(miri) { 300 } else { 400_000 };
    let store = store(if cfg!(miri) { 128 << 10 } else { 64 << 20 }, |_| {});
    for number in 0..ITEMS {
        set(&store, &format!("{number}"), b"", Expiry::Never, at_ms(0));
        assert!(has(&store, &format!("{}", spread(number) % (number + 1)), at_ms(0)), "after {number}");
    }
    store.audit();
    assert_eq!((store.statistics().items, store.statistics().evictions), (ITEMS, 0));
    assert!((0..ITEMS).all(|number| has(&store, &format!("{number}"), at_ms(0))));
}

#[test]
fn a_crawl_sees_every_item_that_stays() {
    const ITEMS: u64 = if cfg!(miri) { 100 } else { 20_000 };
    let store = store(if cfg!(miri) { 128 << 10 } else { 16 << 20 }, |_| {});
    for number in 0..ITEMS {
        set(&store, &format!("{number}"), b"value", Expiry::Never, at_ms(0));
    }
    store.delete(KeyHasher::new(0).hash(b"0"), 0, at_ms(0));
    let crawl_all = |is_growing: bool| {
        let (mut seen, mut steps) = (BTreeSet::new(), 0);
        let mut crawl = store.start_crawl(1, at_ms(0)).expect("there is no other crawl");
        let mut record = |crawled: CrawlItem<'_>| {
            assert!(crawled.item_bytes > crawled.item.value.value_bytes() && crawled.slab_class >= 1);
            seen.insert(crawled.item.key.to_vec());
        };
        while store.crawl(&mut crawl, 16, at_ms(0), &mut record) {
            steps += 1;
            // Enough for the index to grow and for full buckets to displace items.
            for another in 0..if is_growing { 40 } else { 0 } {
                set(&store, &format!("another:{steps}:{another}"), b"value", Expiry::Never, at_ms(0));
            }
        }
        assert!(steps >= ITEMS / (16 * 8), "{steps} steps are not enough for all items");
        assert!(!seen.contains(&b"0"[..]), "a stale value is not shown");
        (1..ITEMS).filter(|number| !seen.contains(number.to_string().as_bytes())).count() as u64
    };
    assert_eq!(crawl_all(false), 0, "not seen");
    let missed = crawl_all(true);
    assert_eq!(
        (missed, store.statistics().evictions),
        (0, 0),
        "all are seen although the index grew, and none was evicted"
    );
}

#[test]
fn a_crawl_over_a_sample_sees_the_same_one_in_n() {
    let store = store(8 << 20, |_| ());
    for number in 0..10_000u64 {
        set(&store, &number.to_string(), b"value", Expiry::Never, at_ms(0));
    }
    let crawl_sample = || {
        let (mut seen, mut crawl) =
            (BTreeSet::new(), store.start_crawl(16, at_ms(0)).expect("there is no other crawl"));
        while store.crawl(&mut crawl, 64, at_ms(0), |crawled| assert!(seen.insert(crawled.item.key.to_vec()))) {}
        seen
    };
    let sample = crawl_sample();
    assert!((500..750).contains(&sample.len()), "{} of 10,000", sample.len());
    assert_eq!(crawl_sample(), sample);
}

#[test]
fn crawls_are_limited_and_one_that_ends_frees_its_place() {
    let store = store(1 << 20, |_| ());
    let mut crawls: Vec<_> = std::iter::from_fn(|| store.start_crawl(1, at_ms(0))).take(100).collect();
    assert!(crawls.len() < 100);
    crawls.pop();
    assert!(store.start_crawl(1, at_ms(0)).is_some());
}

/// Once clients that did not read their listings held all places for as long as they were connected.
#[test]
fn a_crawl_that_is_idle_for_a_minute_loses_its_place() {
    let store = store(1 << 20, |_| ());
    let mut crawls: Vec<_> = std::iter::from_fn(|| store.start_crawl(1, at_ms(0))).take(100).collect();
    assert!(store.crawl(&mut crawls[0], 1, at_ms(30_000), |_| ()));
    assert!(store.start_crawl(1, at_ms(59_999)).is_none());
    assert!(!crawls[1].is_given_up());
    assert!(store.start_crawl(1, at_ms(60_000)).is_some());
    assert!(crawls[1].is_given_up() && !store.crawl(&mut crawls[1], 1, at_ms(60_000), |_| ()));
    assert!(!crawls[0].is_given_up() && store.crawl(&mut crawls[0], 1, at_ms(60_000), |_| ()), "this one made a step");
}

#[test]
fn class_statistics_count_items_and_removals() {
    let store = store(1 << 20, |_| ());
    assert_eq!(store.class_statistics(at_ms(0)), []);
    set(&store, "small", b"x", Expiry::Never, at_ms(0));
    set(&store, "large", &[b'x'; 300], Expiry::At { unix_s: (START_MS / 1000) as u32 + 3 }, at_ms(0));
    let classes = store.class_statistics(at_ms(2_000));
    let contents: Vec<_> =
        classes.iter().map(|class| (class.pages, class.chunks_used, class.items, class.items_bytes)).collect();
    assert_eq!(contents, [(1, 1, 1, 16 + 5 + 1), (1, 1, 1, 16 + 5 + 300)]);
    assert!(classes.iter().all(|class| class.chunks_used + class.chunks_free == class.pages * class.chunks_per_page));
    // One expires, and most of the others are evicted, some after they were fetched.
    assert_eq!(store.reader(at_ms(3_000)).get(KeyHasher::new(0).hash(b"large"), |_| ()), None);
    for number in 0..20_000u64 {
        set(&store, &number.to_string(), b"value", Expiry::Never, at_ms(10_000 + number));
        store.reader(at_ms(10_000 + number)).get(KeyHasher::new(0).hash(b"small"), |_| ());
    }
    let (classes, whole) = (store.class_statistics(at_ms(40_000)), store.statistics());
    let sum = |count: fn(&lookaside_store::ClassStatistics) -> u64| classes.iter().map(count).sum::<u64>();
    assert!(whole.evictions > 5_000);
    assert_eq!(sum(|class| class.evictions), whole.evictions);
    assert_eq!(sum(|class| class.evictions_unfetched), whole.evictions);
    assert_eq!((sum(|class| class.expirations), sum(|class| class.expirations_unfetched)), (1, 1));
    assert_eq!((whole.expirations, whole.expirations_unfetched), (1, 1));
    assert_eq!(sum(|class| class.evictions_with_expiry), 0);
    assert_eq!(sum(|class| class.allocations), 20_002);
    let items = sum(|class| class.items as u64);
    assert!(items.abs_diff(whole.items) < whole.items / 50, "{items} from a sample of {} chunks", whole.items);
    let oldest = classes.iter().find(|class| class.evictions > 0).and_then(|class| class.evicted_age_s);
    assert!(oldest.is_some_and(|age_s| (5..30).contains(&age_s)), "{oldest:?}");
}

#[test]
fn a_lowered_limit_is_respected_and_a_raised_one_used() {
    const MEGABYTE: u64 = 1 << 20;
    let store = store(16 << 20, |_| ());
    let fill = |from: u64, ms: u64| {
        for number in from..from + 60_000 {
            let bytes = match number % 64 {
                0 => 40_000,
                1..4 => 3_000,
                4..32 => 200,
                _ => 40,
            };
            set(&store, &number.to_string(), &value(number, bytes), Expiry::Never, at_ms(ms + number));
        }
    };
    let used = || store.statistics().memory_bytes;
    fill(0, 0);
    assert!(used() > 15 * MEGABYTE);
    assert!(!store.set_memory_limit(17 << 20) && !store.set_memory_limit(1 << 10), "out of bounds");
    assert_eq!(store.memory_limit(), 16 << 20);
    assert!(store.set_memory_limit(8 << 20));
    for tick in 0..100 {
        store.tick(at_ms(70_000 + tick));
    }
    assert!(used() <= 8 * MEGABYTE, "{} bytes", used());
    store.audit();
    fill(60_000, 80_000);
    assert!(used() <= 8 * MEGABYTE, "{} bytes after further stores", used());
    assert!(has(&store, "119999", at_ms(300_000)), "the last item is there");
    // Stores alone shrink the memory too.
    assert!(store.set_memory_limit(16 << 20));
    fill(120_000, 200_000);
    assert!(used() > 15 * MEGABYTE, "{} bytes after the limit was raised", used());
    assert!(store.set_memory_limit(12 << 20));
    fill(180_000, 300_000);
    assert!(used() <= 12 * MEGABYTE, "{} bytes, without a tick", used());
    store.audit();
}

/// Items that a client had deleted left free chunks right in front of the hand. New items got those chunks, and the
/// next evictions took them, milliseconds old, although all others were a minute old.
#[test]
fn an_item_that_was_just_stored_outlives_those_that_are_a_minute_old() {
    const OLD: usize = 24_000;
    const NEW: usize = 200;
    let store = store(1 << 20, |options| options.rebalance = false);
    let evicted = Arc::new(Mutex::new(BTreeSet::new()));
    let evicted_in = evicted.clone();
    assert!(store.on_eviction(Box::new(move |item, _| {
        evicted_in.lock().expect("no panic").insert(item.key.to_vec());
    })));
    let put = |name: &str, ms| set(&store, name, &[7; 60], Expiry::Never, at_ms(ms));
    let (old, new) = (|number: usize| format!("old:{number:06}"), |number: usize| format!("new:{number:06}"));
    (0..OLD).for_each(|number| put(&old(number), number as u64 / 100));
    let mut left: Vec<usize> = (0..OLD).collect();
    left.retain(|&number| !evicted.lock().expect("no panic").contains(old(number).as_bytes()));
    assert!(left.len() > 10 * NEW && left.len() < OLD / 2, "{} of {OLD}", left.len());
    // The hand comes to the oldest next.
    for &number in &left[..NEW] {
        let name = old(number);
        store.reader(at_ms(60_000)).get_and_touch(
            KeyHasher::new(0).hash(name.as_bytes()),
            Expiry::At { unix_s: 1 },
            |_| (),
        );
        assert!(!has(&store, &name, at_ms(60_000)), "removed");
    }
    let evictions = store.statistics().evictions;
    (0..NEW).for_each(|number| put(&new(number), 60_001));
    assert!(store.statistics().evictions < evictions + NEW as u64 / 10, "there are free chunks for them");
    (NEW..2 * NEW).for_each(|number| put(&new(number), 60_002));
    let evicted = evicted.lock().expect("no panic").clone();
    let lost = (0..2 * NEW).filter(|&number| evicted.contains(new(number).as_bytes())).count();
    assert!(lost <= 2 * NEW / 50, "{lost} of {} new items were evicted", 2 * NEW);
}

/// Small values fill the memory; then only large ones come.
fn hit_ratio_after_size_change(rebalance: bool) -> (f64, u64) {
    let store = store(8 << 20, |options| options.rebalance = rebalance);
    let mut ms = 0;
    for number in 0..100_000 {
        ms += 1;
        set(&store, &format!("small:{number}"), &value(number, 60), Expiry::Never, at_ms(ms));
    }
    let (mut hits, mut gets) = (0, 0);
    for step in 0..100_000 {
        ms += 1;
        // Two thirds of what fits.
        let number = spread(step) % 2_500;
        let name = format!("large:{number}");
        gets += 1;
        if has(&store, &name, at_ms(ms)) {
            hits += 1;
        } else {
            set(&store, &name, &value(number, 2_000), Expiry::Never, at_ms(ms));
        }
    }
    store.audit();
    (f64::from(hits) / f64::from(gets), store.statistics().page_moves)
}

#[test]
#[cfg_attr(miri, ignore = "too long")]
fn pages_move_to_the_class_that_needs_them() {
    let (with, moves) = hit_ratio_after_size_change(true);
    let (without, _) = hit_ratio_after_size_change(false);
    assert!(moves > 50, "{moves} pages moved");
    assert!(with > 0.9, "with: {with}, without: {without}");
    assert!(without < with / 2.0, "with: {with}, without: {without}");
}

#[test]
fn short_lived_items_leave_in_the_second_in_which_they_expire() {
    const ITEMS: u64 = if cfg!(miri) { 30 } else { 5_000 };
    let store = store(4 << 20, |_| {});
    for number in 0..ITEMS {
        set(&store, &format!("short:{number}"), b"value", Expiry::from_exptime(5, at_ms(0)), at_ms(0));
        set(&store, &format!("long:{number}"), b"value", Expiry::from_exptime(5_000, at_ms(0)), at_ms(0));
    }
    store.tick(at_ms(4_999));
    assert_eq!(store.statistics().items, 2 * ITEMS);
    assert!((0..ITEMS).all(|number| has(&store, &format!("short:{number}"), at_ms(4_999))));
    // One gets more time, one is replaced by an item without expiry: their timer entries are out of date.
    let touched = KeyHasher::new(0).hash(b"short:0");
    store.reader(at_ms(4_999)).get_and_touch(touched, Expiry::from_exptime(30, at_ms(4_999)), |_| ());
    set(&store, "short:1", b"other", Expiry::Never, at_ms(4_999));
    store.tick(at_ms(5_000));
    assert_eq!(store.statistics().items, ITEMS + 2);
    assert_eq!(store.statistics().transient_expirations, ITEMS - 2);
    store.tick(at_ms(34_000));
    assert_eq!(store.statistics().items, ITEMS + 1);
    store.audit();
}

#[test]
fn without_a_tick_verbs_remove_expired_items() {
    let store = store(64 << 10, |_| {});
    set(&store, "short", b"value", Expiry::from_exptime(2, at_ms(0)), at_ms(0));
    assert!(!has(&store, "another key", at_ms(1_999)));
    assert_eq!(store.statistics().items, 1);
    assert!(!has(&store, "another key", at_ms(2_000)));
    assert_eq!(store.statistics().items, 0);
}

#[test]
fn a_stale_value_is_removed_when_its_time_is_over() {
    let store = store(4 << 20, |options| options.stale_ms = 1_500);
    set(&store, "key", b"value", Expiry::Never, at_ms(0));
    store.delete(KeyHasher::new(0).hash(b"key"), 0, at_ms(0));
    store.tick(at_ms(1_499));
    assert_eq!(store.statistics().items, 1);
    store.tick(at_ms(2_000));
    assert_eq!(store.statistics().items, 0);
}
