//! A store that was saved is restored as it was (§6.4); one that was not saved starts empty.

#[path = "model/scratch_region.rs"]
mod scratch_region;

use lookaside_protocol::{Cas, LeaseToken, StoreMode};
use lookaside_store::{
    ColdStartReason, DeleteOutcome, Expiry, HashedKey, KeyHasher, LeaseGet, LeaseSetOutcome, NewItem, Now, Options,
    RegionError, Start, Store, StoreOutcome, remove_region,
};
use scratch_region::ScratchRegion;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const START: Now = Now { unix_ms: 1_700_000_000_123 };
const HOLD_OFF_MS: u32 = 2_000;

fn after(ms: u64) -> Now {
    Now { unix_ms: START.unix_ms + ms }
}

fn options() -> Options {
    Options { memory_bytes_max: 8 << 20, ..Options::default() }
}

fn key(name: &str) -> HashedKey<'_> {
    KeyHasher::new(0).hash(name.as_bytes())
}

fn set(store: &Store, name: &str, value: &[u8], flags: u32, expiry: Expiry, now: Now) -> Cas {
    match store.store(key(name), StoreMode::Set, &NewItem { flags, expiry, value }, now) {
        StoreOutcome::Stored(cas) => cas,
        other => panic!("{name}: {other:?}"),
    }
}

fn add(store: &Store, name: &str, now: Now) -> StoreOutcome {
    store.store(key(name), StoreMode::Add, &NewItem { flags: 0, expiry: Expiry::Never, value: b"added" }, now)
}

fn get(store: &Store, name: &str, now: Now) -> Option<(u32, Cas, Expiry, Vec<u8>)> {
    store.reader(now).get(key(name), |view| (view.flags, view.cas, view.expiry, view.value.to_vec()))
}

fn lease_get(store: &Store, name: &str, now: Now) -> (LeaseToken, Option<Vec<u8>>) {
    store.reader(now).lease_get(key(name), |reply| match reply {
        LeaseGet::Hit(view) => panic!("{name} is {:?}", view.value.to_vec()),
        LeaseGet::Miss { token, stale } => (token, stale.map(|view| view.value.to_vec())),
    })
}

/// Of each slab class: its number, pages, chunks in use, chunks never used, bytes.
fn class_contents(store: &Store) -> Vec<[usize; 5]> {
    let classes = store.class_statistics(START).into_iter();
    classes.map(|class| [class.number, class.pages, class.chunks_used, class.chunks_fresh, class.items_bytes]).collect()
}

/// Saves the store and restores it.
fn restart(store: Store, region: &ScratchRegion, saved_at: Now, now: Now) -> Store {
    let (items, before) = (store.statistics().items, class_contents(&store));
    let saved = store.save(saved_at).expect("the region is there").expect("it has a region");
    assert_eq!(saved.items, items);
    let (store, start) = region.attach(&Options { seed: now.unix_ms, ..options() }, now);
    assert_eq!(start, Start::Warm { items, saved_at });
    assert_eq!(store.statistics().items, items);
    assert_eq!(class_contents(&store), before);
    store.audit();
    store
}

fn new_store(region: &ScratchRegion) -> Store {
    let (store, start) = region.attach(&options(), START);
    assert_eq!(start, Start::Empty(ColdStartReason::New));
    store
}

/// Values of nothing to several pages, so that some are chained over many chunks.
fn value(number: usize) -> Vec<u8> {
    let bytes = if number.is_multiple_of(100) { 300_000 } else { number * 7 % 4_000 };
    (0..bytes).map(|place| (place * 31 + number) as u8).collect()
}

#[test]
fn every_item_is_restored_completely() {
    let region = ScratchRegion::new();
    let mut store = new_store(&region);
    let name = |number: usize| format!("key:{number}");
    let expiry = |number: usize| match number % 3 {
        0 => Expiry::Never,
        _ => Expiry::At { unix_s: 1_700_001_000 + number as u32 },
    };
    let count = 800;
    for number in 0..count {
        set(&store, &name(number), &value(number), number as u32 % 5, expiry(number), START);
    }
    let before: Vec<_> = (0..count).map(|number| get(&store, &name(number), START)).collect();
    for round in 1..4 {
        store = restart(store, &region, after(round * 1_000), after(round * 1_000 + 500));
        for (number, before) in before.iter().enumerate() {
            let seen = get(&store, &name(number), after(round * 1_000 + 500));
            assert!(seen.is_some() && seen == *before, "key {number}, round {round}");
            let (flags, _, its_expiry, its_value) = seen.expect("checked above");
            assert_eq!((flags, its_expiry), (number as u32 % 5, expiry(number)));
            assert!(its_value == value(number));
        }
    }
}

#[test]
fn uniques_stay_valid_and_are_never_issued_again() {
    let region = ScratchRegion::new();
    let mut store = new_store(&region);
    let mut seen = std::collections::BTreeSet::new();
    let mut last = Cas(0);
    for round in 0..20 {
        for number in 0..50 {
            let unique = set(&store, &format!("key:{number}"), b"value", 0, Expiry::Never, START);
            assert!(seen.insert(unique.0), "{unique:?} has been there before");
        }
        let unique = set(&store, "one", b"value", 0, Expiry::Never, START);
        assert!(unique.0 > last.0 && seen.insert(unique.0));
        last = unique;
        store = restart(store, &region, START, START);
        let item = NewItem { flags: 0, expiry: Expiry::Never, value: b"changed" };
        let outcome = store.store(key("one"), StoreMode::Cas(unique), &item, START);
        let StoreOutcome::Stored(unique) = outcome else { panic!("round {round}: {outcome:?}") };
        assert!(unique.0 > last.0 && seen.insert(unique.0));
        assert_eq!(store.store(key("one"), StoreMode::Cas(last), &item, START), StoreOutcome::Exists);
        last = unique;
    }
}

#[test]
fn a_hold_off_outlives_the_process_and_ends_in_time() {
    let region = ScratchRegion::new();
    let store = new_store(&region);
    store.delete(key("held off"), HOLD_OFF_MS, START);
    let store = restart(store, &region, after(500), after(1_000));
    assert_eq!(add(&store, "held off", after(1_999)), StoreOutcome::NotStored);
    assert!(matches!(add(&store, "another", after(1_999)), StoreOutcome::Stored(_)));
    assert!(matches!(add(&store, "held off", after(2_000)), StoreOutcome::Stored(_)));
}

/// A few thousand are saved; all others become a floor, which may refuse more.
#[test]
fn no_hold_off_is_lost_although_not_all_are_saved() {
    let region = ScratchRegion::new();
    let store = new_store(&region);
    let until_ms = |number: u32| 10_000 + number * 10;
    let name = |number: u32| format!("deleted:{number}");
    for number in 0..5_000 {
        store.delete(key(&name(number)), until_ms(number), START);
    }
    let store = restart(store, &region, START, after(1));
    for number in 0..5_000 {
        let last_ms = after(u64::from(until_ms(number)) - 1);
        assert_eq!(add(&store, &name(number), last_ms), StoreOutcome::NotStored, "{number}");
    }
    assert!(matches!(add(&store, "deleted:0", after(60_000)), StoreOutcome::Stored(_)));
}

#[test]
fn a_token_of_the_earlier_process_is_void() {
    let region = ScratchRegion::new();
    let store = new_store(&region);
    let (token, _) = lease_get(&store, "missed", START);
    assert!(token.is_held());
    let store = restart(store, &region, START, after(1));
    let item = NewItem { flags: 0, expiry: Expiry::Never, value: b"read before a delete that was lost" };
    assert_eq!(store.lease_set(key("missed"), token, &item, after(1)), LeaseSetOutcome::NotStored);
    let (another, _) = lease_get(&store, "missed", after(2));
    assert!(another.is_held() && another != token);
    assert!(matches!(store.lease_set(key("missed"), another, &item, after(3)), LeaseSetOutcome::Stored(_)));
}

#[test]
fn stale_values_stay_stale_and_end_in_time() {
    let region = ScratchRegion::new();
    let store = new_store(&region);
    set(&store, "deleted", b"old", 0, Expiry::Never, START);
    assert_eq!(store.delete(key("deleted"), 0, START), DeleteOutcome::Deleted);
    let store = restart(store, &region, after(1), after(5_000));
    assert_eq!(get(&store, "deleted", after(5_000)), None);
    assert_eq!(lease_get(&store, "deleted", after(5_000)).1, Some(b"old".to_vec()));
    let store = restart(store, &region, after(5_001), after(10_000));
    assert_eq!(lease_get(&store, "deleted", after(10_000)).1, None);
}

#[test]
fn a_scheduled_flush_is_restored() {
    for is_down_meanwhile in [false, true] {
        let region = ScratchRegion::new();
        let store = new_store(&region);
        set(&store, "old", b"value", 0, Expiry::Never, START);
        assert!(store.flush_all(after(1_000), START));
        let now = if is_down_meanwhile { after(5_000) } else { after(500) };
        let store = restart(store, &region, after(100), now);
        assert_eq!(get(&store, "old", now).is_some(), !is_down_meanwhile);
        assert_eq!(get(&store, "old", after(5_000)), None);
        set(&store, "new", b"value", 0, Expiry::Never, after(5_001));
        assert!(get(&store, "new", after(50_000)).is_some(), "it happens once");
    }
}

#[test]
fn timers_are_restored() {
    let region = ScratchRegion::new();
    let store = new_store(&region);
    for number in 0..3_000 {
        let expiry = Expiry::At { unix_s: 1_700_000_001 + number % 4 * 10 };
        set(&store, &format!("short:{number}"), b"value", 0, expiry, START);
    }
    set(&store, "long", b"value", 0, Expiry::Never, START);
    let store = restart(store, &region, START, after(20_000));
    store.tick(after(20_000));
    // Those of the seconds 1 and 11 have left, those of 21 and 31 have not.
    assert_eq!(store.statistics().items, 1 + 3_000 / 2);
    assert_eq!(store.statistics().transient_expirations, 3_000 / 2);
    store.tick(after(60_000));
    assert_eq!(store.statistics().items, 1);
    store.audit();
}

/// Changing sizes make pages move; whatever is under way when the store ends, no page is lost and none has two owners.
#[test]
fn restarts_under_pressure_lose_no_page() {
    let region = ScratchRegion::new();
    let options = Options { memory_bytes_max: 1 << 20, item_bytes_max: 256 << 10, ..Options::default() };
    let (mut store, _) = region.attach(&options, START);
    let (mut page_moves, mut evictions) = (0, 0);
    for step in 0..12_000u64 {
        let now = after(step * 10);
        let bytes = [100, 700, 3_000, 60, 20_000][(step / 400 % 5) as usize] + (step % 50) as usize;
        set(&store, &format!("key:{step}"), &vec![step as u8; bytes], 0, Expiry::Never, now);
        let _ = get(&store, &format!("key:{}", step.saturating_sub(20)), now);
        if step % 53 == 0 {
            let before = store.statistics();
            (page_moves, evictions) = (page_moves + before.page_moves, evictions + before.evictions);
            store.save(now).expect("the region is there").expect("it has a region");
            let start;
            (store, start) = region.attach(&options, now);
            assert_eq!(start, Start::Warm { items: before.items, saved_at: now });
            store.audit();
            let after = store.statistics();
            assert!(after.memory_bytes <= before.memory_bytes);
            assert_eq!((after.page_moves, after.evictions, after.items_total), (0, 0, 0), "counters start at 0");
        }
    }
    assert!(page_moves > 20 && evictions > 1_000, "{page_moves} pages, {evictions} evictions");
}

#[test]
fn without_a_save_the_next_store_is_empty() {
    let region = ScratchRegion::new();
    let store = new_store(&region);
    set(&store, "key", b"value", 0, Expiry::Never, START);
    let store = restart(store, &region, START, START);
    drop(store);
    let (store, start) = region.attach(&options(), START);
    assert_eq!(start, Start::Empty(ColdStartReason::NotShutDownCleanly));
    assert_eq!(get(&store, "key", START), None);
    assert_eq!(store.statistics().items, 0);
}

#[test]
fn other_memory_or_slab_options_start_empty_with_the_reason() {
    let mebibytes = |count: usize| Options { memory_bytes_max: count << 20, ..Options::default() };
    let other_memory = |was: u64, now: u64| ColdStartReason::OtherMemory { was_bytes: was << 20, now_bytes: now << 20 };
    let cases = [
        (mebibytes(16), other_memory(8, 16), "it was made with -m 8, now -m 16"),
        (mebibytes(4), other_memory(8, 4), "it was made with -m 8, now -m 4"),
        (
            Options { growth_factor: 1.25, ..options() },
            ColdStartReason::OtherLayout,
            "it was made with other slab options",
        ),
        (
            Options { chunk_bytes_min: 96, ..options() },
            ColdStartReason::OtherLayout,
            "it was made with other slab options",
        ),
    ];
    for (other, why, words) in cases {
        let region = ScratchRegion::new();
        let store = new_store(&region);
        set(&store, "key", b"value", 0, Expiry::Never, START);
        store.save(START).expect("the region is there");
        let (store, start) = region.attach(&other, START);
        assert_eq!(start, Start::Empty(why));
        assert!(why.to_string().starts_with(words), "{why}");
        assert_eq!((get(&store, "key", START), store.statistics().items), (None, 0));
        store.save(START).expect("the region is there");
        assert!(
            matches!(region.attach(&other, START).1, Start::Warm { items: 0, .. }),
            "the new region has the new options"
        );
    }
}

/// These options do not affect where items lie.
#[test]
fn options_that_do_not_touch_the_layout_may_change() {
    let region = ScratchRegion::new();
    let store = new_store(&region);
    set(&store, "key", &[7; 900_000], 0, Expiry::Never, START);
    store.save(START).expect("the region is there");
    let other = Options {
        item_bytes_max: 512 << 10,
        lease_interval_ms: 1,
        stale_ms: 0,
        rebalance: false,
        age_exponent: 0.0,
        transient_s: 5,
        ..options()
    };
    let (store, start) = region.attach(&other, START);
    assert_eq!(start, Start::Warm { items: 1, saved_at: START });
    assert_eq!(get(&store, "key", START).map(|(.., value)| value.len()), Some(900_000));
}

#[test]
fn a_save_from_the_far_future_is_refused_and_one_from_the_near_future_is_not() {
    for (ahead_ms, why) in [(60_000, None), (60_001, Some(ColdStartReason::ClockSetBack { ahead_ms: 60_001 }))] {
        let region = ScratchRegion::new();
        let store = new_store(&region);
        store.save(after(ahead_ms)).expect("the region is there");
        match region.attach(&options(), START).1 {
            Start::Warm { saved_at, .. } => assert_eq!((saved_at, why), (after(ahead_ms), None)),
            Start::Empty(reason) => assert_eq!(Some(reason), why),
        }
    }
}

#[test]
fn a_region_that_is_held_is_refused() {
    let region = ScratchRegion::new();
    let store = new_store(&region);
    set(&store, "key", b"value", 0, Expiry::Never, START);
    let held = RegionError::Held { name: region.0.clone(), pid: std::process::id() as i32 };
    for _ in 0..3 {
        assert_eq!(Store::attach(options(), &region.0, START).err(), Some(held.clone()));
        assert_eq!(remove_region(&region.0), Err(held.clone()));
    }
    assert!(held.to_string().contains(&format!("is held by process {}", std::process::id())), "{held}");
    assert!(get(&store, "key", START).is_some());
    restart(store, &region, START, START);
}

/// The holder is alone, also while another thread removes the region with its semaphore.
#[test]
fn of_many_threads_that_attach_a_region_one_holds_it() {
    const ATTEMPTS_MAX: usize = 1_000_000;
    let region = ScratchRegion::new();
    let (holders, attached, removed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let small = Options { memory_bytes_max: 256 << 10, item_bytes_max: 8 << 10, ..Options::default() };
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (region, small, holders, attached, removed) = (&region, &small, &holders, &attached, &removed);
            scope.spawn(move || {
                for _ in 0..ATTEMPTS_MAX {
                    if attached.load(Relaxed) >= 100 && removed.load(Relaxed) >= 10 {
                        return;
                    }
                    if thread == 0 {
                        removed.fetch_add(usize::from(matches!(remove_region(&region.0), Ok(Some(_)))), Relaxed);
                        continue;
                    }
                    match Store::attach(small.clone(), &region.0, START) {
                        Ok((store, _)) => {
                            assert_eq!(holders.fetch_add(1, Relaxed), 0, "two threads hold it");
                            attached.fetch_add(1, Relaxed);
                            holders.fetch_sub(1, Relaxed);
                            store.save(START).expect("no other thread could remove it");
                        }
                        Err(RegionError::Held { .. }) => std::thread::yield_now(),
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    assert!(attached.load(Relaxed) >= 100 && removed.load(Relaxed) >= 10, "{attached:?} {removed:?}");
}

/// Several threads stop with pages moving and an index about to grow, in little memory.
#[test]
fn a_save_after_many_threads_is_whole() {
    let region = ScratchRegion::new();
    let options = Options { memory_bytes_max: 2 << 20, item_bytes_max: 64 << 10, ..Options::default() };
    let (mut store, _) = region.attach(&options, START);
    for round in 0..12u64 {
        let now = after(round * 100);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let store = &store;
                scope.spawn(move || {
                    for step in 0..1_500u64 {
                        let random = (round * 7_919 + thread * 104_729 + step).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        let name = format!("key:{}", random >> 32 & 4_095);
                        let bytes = [40, 300, 2_000, 90][((round + step / 500) % 4) as usize];
                        match random >> 60 {
                            0 => drop(store.delete(key(&name), 1_000, now)),
                            1..6 => drop(get(store, &name, now)),
                            _ => drop(set(store, &name, &vec![step as u8; bytes], 0, Expiry::Never, now)),
                        }
                    }
                });
            }
        });
        let before = store.statistics();
        store.save(now).expect("the region is there").expect("it has a region");
        let start;
        (store, start) = region.attach(&options, now);
        assert_eq!(start, Start::Warm { items: before.items, saved_at: now });
        store.audit();
        let after = store.statistics();
        assert!(after.memory_bytes <= before.memory_bytes, "round {round}: {after:?} of {before:?}");
        // The first round fills the memory; whether it also evicts depends on the threads.
        assert!(round == 0 || before.evictions > 0, "round {round} was too small: {before:?}");
    }
}

#[test]
fn a_removed_region_is_reported_and_gone() {
    let region = ScratchRegion::new();
    assert_eq!(remove_region(&region.0), Ok(None));
    let store = new_store(&region);
    set(&store, "key", b"value", 0, Expiry::Never, START);
    store.save(START).expect("the region is there");
    let removed = remove_region(&region.0).expect("no process holds it").expect("it existed");
    assert_eq!(removed.items, Some(1));
    assert!((7 << 20..=8 << 20).contains(&removed.region_bytes), "{removed:?}");
    assert_eq!(remove_region(&region.0), Ok(None));
    let (store, start) = region.attach(&options(), START);
    assert_eq!(start, Start::Empty(ColdStartReason::New));
    drop(store);
    assert_eq!(
        remove_region(&region.0).expect("no process holds it").expect("it existed").items,
        None,
        "it was not saved"
    );
}

#[test]
fn a_store_without_a_region_saves_nothing() {
    let store = Store::new(options()).expect("the options are fine");
    set(&store, "key", b"value", 0, Expiry::Never, START);
    assert_eq!(store.save(START), Ok(None));
}

/// The state beside the items is within the limit too.
#[test]
fn a_store_in_a_region_stays_within_its_memory() {
    for megabytes in [1usize, 4, 16] {
        let region = ScratchRegion::new();
        let (store, _) =
            region.attach(&Options { memory_bytes_max: megabytes << 20, item_bytes_max: 64 << 10, ..options() }, START);
        for number in 0..megabytes * 3_000 {
            let name = format!("key:{number}");
            store.store(
                key(&name),
                StoreMode::Set,
                &NewItem { flags: 0, expiry: Expiry::Never, value: &[1; 400] },
                START,
            );
        }
        let statistics = store.statistics();
        assert!(statistics.evictions > 0 && statistics.memory_bytes <= (megabytes as u64) << 20, "{statistics:?}");
        store.save(START).expect("the region is there");
        let region_bytes = remove_region(&region.0).expect("no process holds it").expect("it is there").region_bytes;
        assert!(region_bytes <= (megabytes as u64) << 20);
    }
}

/// Memory whose page tables are dropped stays in the segment, also while threads write; a store without a segment drops
/// nothing.
#[test]
fn dropping_page_tables_loses_no_item() {
    let region = ScratchRegion::new();
    let (in_region, _) = region.attach(&Options { memory_bytes_max: 96 << 20, ..options() }, START);
    let private = Store::new(options()).expect("the options are fine");
    for store in [&in_region, &private] {
        let steps =
            |store: &Store| std::iter::successors(store.drop_page_tables(0), |&at| store.drop_page_tables(at)).count();
        let dropped = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| dropped.store((0..50).map(|_| steps(store)).sum(), Relaxed));
            for number in 0..2_000 {
                set(store, &number.to_string(), &value(number % 50), 0, Expiry::Never, START);
                let seen = get(store, &number.to_string(), START).map(|(.., seen)| seen);
                assert_eq!(seen, Some(value(number % 50)), "{number}");
            }
        });
        store.audit();
        for number in (0..2_000).rev().take(100) {
            assert_eq!(get(store, &number.to_string(), START).map(|(.., seen)| seen), Some(value(number % 50)));
        }
        assert_eq!(dropped.into_inner(), if std::ptr::eq(store, &in_region) { 100 } else { 0 });
    }
}

/// The index lies in the region, and where an item lies in it depends on the seed of the hash.
#[test]
fn a_restored_store_keeps_the_seed_of_its_hash() {
    let region = ScratchRegion::new();
    let attach = |hash_seed| Store::attach(Options { hash_seed, ..options() }, &region.0, START).expect("attached");
    let (store, _) = attach(0x1234);
    let names: Vec<String> = (0..1_000).map(|number| format!("key:{number}")).collect();
    let item = NewItem { flags: 0, expiry: Expiry::Never, value: b"value" };
    for name in &names {
        store.store(store.hasher().hash(name.as_bytes()), StoreMode::Set, &item, START);
    }
    store.save(START).expect("the region is there");
    for hash_seed in [0x5678, 0] {
        let (store, start) = attach(hash_seed);
        assert_eq!(start, Start::Warm { items: 1_000, saved_at: START });
        let hits = names.iter().filter(|name| {
            let key = store.hasher().hash(name.as_bytes());
            store.reader(START).get(key, |view| assert_eq!(view.value.to_vec(), b"value")).is_some()
        });
        assert_eq!(hits.count(), 1_000);
        store.audit();
        store.save(START).expect("the region is there");
    }
}
