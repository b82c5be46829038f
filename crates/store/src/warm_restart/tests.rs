//! Cases that need the inside: changed bytes of a region, a stale lock, memory of another user.

use super::prepare::persistent_geometry;
use super::region::GET_MEMORY;
use super::superblock::{FORMAT, SUPERBLOCK_BYTES};
use super::*;
use crate::memory::Memory;
use crate::memory::chunk::ChunkKind;
use crate::memory::handle::Handle;
use crate::memory::sysv_shm::{Segment, ShmLock, create_semaphore_with_mode, remove_semaphore};
use crate::snapshot_codec::SnapshotReader;
use crate::{Expiry, KeyHasher, NewItem, Options, Store, stripe};
use lookaside_protocol::StoreMode;
use std::sync::atomic::AtomicUsize;

const NOW: Now = Now { unix_ms: 1_700_000_000_123 };

/// A name that no other test has; its region is removed at the end.
struct Scratch(RegionName);

impl Scratch {
    fn new() -> Scratch {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        Scratch(RegionName::new(format!("lookaside unit test {} {number}", std::process::id())).expect("a name"))
    }

    fn region(&self) -> Region {
        let segment = find(&self.0).expect("the look-up succeeds").expect("the segment exists");
        attach(segment, &self.0).expect("no process maps it")
    }

    fn attach(&self) -> (Store, Start) {
        Store::attach(options(), &self.0, NOW).expect("no process holds it")
    }

    /// Items, deletes and timers in a region, saved.
    fn fill(&self) {
        let (store, start) = self.attach();
        assert_eq!(start, Start::Empty(ColdStartReason::New));
        for number in 0..2_000u32 {
            let (key, value) = (format!("key:{number}"), vec![number as u8; number as usize]);
            let expiry = if number % 3 == 0 { Expiry::At { unix_s: 1_700_000_030 } } else { Expiry::Never };
            let item = NewItem { flags: number, expiry, value: &value };
            store.store(KeyHasher::new(0).hash(key.as_bytes()), StoreMode::Set, &item, NOW);
            if number % 7 == 0 {
                store.delete(KeyHasher::new(0).hash(key.as_bytes()), 60_000, NOW);
            }
        }
        assert!(store.flush_all(Now { unix_ms: NOW.unix_ms + 100_000 }, NOW));
        store.save(NOW).expect("it can be saved").expect("it has a region");
    }

    fn start_after(&self, change: impl FnOnce(&Region)) -> Start {
        change(&self.region());
        let (store, start) = self.attach();
        store.audit();
        start
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Ok(Some(segment)) = find(&self.0) {
            let _ = segment.remove();
        }
        if let Ok(shm_lock) = ShmLock::acquire(self.0.key()) {
            let _ = shm_lock.remove();
        }
    }
}

fn options() -> Options {
    Options { memory_bytes_max: 4 << 20, ..Options::default() }
}

fn flip(region: &Region, at: usize) {
    region.word(at & !3).fetch_xor(1 << (at % 32), Relaxed);
}

/// A process that attaches a region may be killed, or change its mind, until it confirms.
#[test]
fn a_region_that_is_not_wanted_stays_as_it_was_saved() {
    let scratch = Scratch::new();
    scratch.fill();
    let contents = || {
        let region = scratch.region();
        superblock::checksum(region.bytes(0, region.region_bytes()).iter().copied())
    };
    let before = contents();
    let mut calls = 0;
    let not_wanted =
        Preparation::new(options(), &scratch.0).expect("the options are fine").preallocate().attach(NOW, || {
            calls += 1;
            false
        });
    assert!(not_wanted.expect("no process holds it").is_none() && calls == 1);
    assert_eq!(contents(), before);
    let (store, start) = scratch.attach();
    assert!(matches!(start, Start::Warm { .. }), "{start:?}");
    store.audit();
    drop(store);
    assert_eq!(
        scratch.attach().1,
        Start::Empty(ColdStartReason::NotShutDownCleanly),
        "once wanted it is no longer clean"
    );
}

/// Compares the pages for items with and without a region.
#[test]
fn a_region_costs_little_memory_beside_the_items() {
    for (mebibytes, per_mille_max) in [(16, 15), (64, 5), (1024, 2), (64 << 10, 2)] {
        let options = Options { memory_bytes_max: mebibytes << 20, ..Options::default() };
        let plain = Store::geometry(&options).expect("the options are fine").pages;
        let persistent = persistent_geometry(&options).expect("the options are fine").pages;
        let is_little = (plain - persistent) * 1000 <= plain * per_mille_max;
        assert!(is_little, "{mebibytes} MiB: {persistent} of {plain} pages");
    }
}

#[test]
fn an_unchanged_region_is_restored() {
    let scratch = Scratch::new();
    scratch.fill();
    assert!(matches!(scratch.start_after(|_| {}), Start::Warm { items: 1_000.., saved_at: NOW }));
}

/// Every byte of the state and of the superblock is checked, but for the unused ones.
#[test]
fn a_changed_byte_gives_an_empty_store_and_never_a_panic() {
    let scratch = Scratch::new();
    scratch.fill();
    let region = scratch.region();
    let geometry = persistent_geometry(&options()).expect("the options are fine");
    let (area, bytes) = (snapshot::area(&geometry), region.region_bytes());
    let (superblock, _) = Superblock::read(&region).expect("it was saved");
    let state_bytes = superblock.state_words as usize * 4;
    assert!(state_bytes > 10_000, "{state_bytes}");
    drop(region);
    let in_state = (0..40).map(|step| area.start + step * state_bytes / 40);
    let magic_bytes = 8;
    let in_superblock = (bytes - SUPERBLOCK_BYTES + magic_bytes..bytes - SUPERBLOCK_BYTES + 88).step_by(4);
    let in_name = bytes - SUPERBLOCK_BYTES + 128;
    for at in in_state.chain(in_superblock).chain([in_name]) {
        scratch.with_a_copy(|scratch| {
            let start = scratch.start_after(|region| flip(region, at));
            assert!(matches!(start, Start::Empty(_)), "byte {at}: {start:?}");
        });
    }
}

/// The index gets a page first, and a bucket in it as soon as the stripe is free: in between the page belongs to the
/// index.
#[test]
fn a_page_without_buckets_stays_with_the_index() {
    let scratch = Scratch::new();
    let (store, _) = scratch.attach();
    let (memory, rebalancer) = (&store.shared.memory, &store.shared.reclaimer.rebalancer);
    assert!(memory.index.needs_page());
    memory.index.add_page(memory.pages.allocate_page().expect("a page"));
    rebalancer.set_index_page_added(true);
    let memory_bytes = store.statistics().memory_bytes;
    store.save(NOW).expect("it can be saved");
    let (store, start) = scratch.attach();
    assert!(matches!(start, Start::Warm { .. }), "{start:?}");
    assert_eq!(store.statistics().memory_bytes, memory_bytes);
    assert!(store.shared.reclaimer.rebalancer.abort_move(&store.shared.memory), "it has no buckets yet");
}

/// The page was taken from a class for the index, which does not use it yet.
#[test]
fn a_spare_page_of_the_index_becomes_free() {
    let scratch = Scratch::new();
    scratch.fill();
    let (store, _) = scratch.attach();
    let (memory, reclaimer) = (&store.shared.memory, &store.shared.reclaimer);
    let stripe = &memory.stripes[0].0;
    let stolen = reclaimer.rebalancer.steal_page(memory, &reclaimer.evictor, None, &mut crate::sync::lock(stripe), NOW);
    assert!(stolen.is_ok());
    let (items, memory_bytes) = (store.statistics().items, store.statistics().memory_bytes);
    store.save(NOW).expect("it can be saved");
    let (store, start) = scratch.attach();
    assert_eq!(start, Start::Warm { items, saved_at: NOW });
    assert!(store.statistics().memory_bytes < memory_bytes, "the page is free");
    store.audit();
}

/// Invalid states with a valid checksum: pages that do not exist, or too few words.
#[test]
fn an_invalid_state_is_refused_whatever_its_checksum() {
    let scratch = Scratch::new();
    scratch.fill();
    let (store, _) = scratch.attach();
    let words = snapshot::save(&store.shared, NOW);
    let (seed_low, page_ahead, buckets_low, first_index_page) = (0, 2, 3, 5);
    let changes = [
        (seed_low, 1),
        (page_ahead, 2),
        (buckets_low, u32::MAX),
        (buckets_low, 0),
        (first_index_page, 1 << 20),
        (page_ahead, 1),
    ];
    for (place, word) in changes {
        let mut words = words.clone();
        words[place] = word;
        let region = Region::new(store.shared.memory.pages.geometry.region_bytes()).expect("memory");
        let geometry = store.shared.memory.pages.geometry.clone();
        let shared =
            Shared::new(&options(), geometry.clone(), stripe::create_all(&options(), geometry.stripe_bits), region);
        assert_eq!(snapshot::restore(&shared, &words), None, "word {place} is {word}");
    }
    for length in [0, 1, words.len() / 2, words.len() - 1] {
        let region = Region::new(store.shared.memory.pages.geometry.region_bytes()).expect("memory");
        let geometry = store.shared.memory.pages.geometry.clone();
        let shared =
            Shared::new(&options(), geometry.clone(), stripe::create_all(&options(), geometry.stripe_bits), region);
        assert_eq!(snapshot::restore(&shared, &words[..length]), None, "{length} words");
    }
    assert!(SnapshotReader::new(&words[page_ahead..]).get_count(1).is_some());
}

/// Whatever the words are, a restore returns, with a store or without. (A store that was restored is trusted.)
#[test]
fn no_state_makes_a_restore_panic() {
    let scratch = Scratch::new();
    scratch.fill();
    let (store, _) = scratch.attach();
    let words = snapshot::save(&store.shared, NOW);
    let geometry = store.shared.memory.pages.geometry.clone();
    let region = Region::new(geometry.region_bytes()).expect("memory");
    copy_words(&store.shared.memory.pages.region, &region);
    let mut shared =
        Shared::new(&options(), geometry.clone(), stripe::create_all(&options(), geometry.stripe_bits), region);
    let mut refused = 0;
    for round in 0..400usize {
        let mut words = words.clone();
        for change in 0..=round % 3 {
            let random = random(&[round, change]);
            // The first words matter most.
            let place = if round.is_multiple_of(2) { random % 600 } else { random % words.len() };
            words[place] =
                [words[place] ^ 1 << (random >> 32 & 31), u32::MAX, 0, (random >> 40) as u32][random >> 37 & 3];
        }
        refused += usize::from(snapshot::restore(&shared, &words).is_none());
        // A restore does not write to the region.
        let stripes = stripe::create_all(&options(), geometry.stripe_bits);
        shared = Shared::new(&options(), geometry.clone(), stripes, shared.memory.pages.region);
    }
    assert!((100..400).contains(&refused), "{refused} of 400 were refused");
}

fn random(numbers: &[usize]) -> usize {
    superblock::checksum(numbers.iter().flat_map(|number| number.to_ne_bytes())) as usize
}

fn copy_words(from: &Region, to: &Region) {
    for at in (0..from.region_bytes()).step_by(8) {
        to.long_word(at).store(from.long_word(at).load(Relaxed), Relaxed);
    }
}

/// The links of free chunks and timer blocks were trusted: with a wrong one two items got the same chunk, one client
/// was shown the value of another key, or a thread panicked.
#[test]
fn flipped_bits_of_links_give_an_empty_store_and_never_a_wrong_value() {
    let scratch = Scratch::new();
    let (store, _) = scratch.attach();
    // Each key has had two values, of different lengths.
    let value = |number: usize, version: usize| format!("value:{number}").repeat((number + version * 7) % 30 + 1);
    let set = |store: &Store, number: usize, version| {
        let (key, value) = (format!("key:{number}"), value(number, version));
        let expiry = if number.is_multiple_of(3) { Expiry::At { unix_s: 1_700_000_030 } } else { Expiry::Never };
        let item = NewItem { flags: 0, expiry, value: value.as_bytes() };
        store.store(KeyHasher::new(0).hash(key.as_bytes()), StoreMode::Set, &item, NOW);
    };
    (0..8_000).for_each(|number| set(&store, number, 0));
    (0..8_000).filter(|number| random(&[*number]).is_multiple_of(2)).for_each(|number| set(&store, number, 1));
    let targets = link_offsets(&store.shared.memory);
    assert!(targets.len() > 300, "{}", targets.len());
    store.save(NOW).expect("it can be saved").expect("it has a region");
    let mut starts = [0, 0];
    for round in 0..32 {
        scratch.with_a_copy(|copy| {
            let region = copy.region();
            for change in 0..=round % 3 {
                let random = random(&[round, change]);
                // Each of the four words of a header: two of them are not used by a free chunk.
                let at = targets[random % targets.len()] + (random >> 32) % 4 * 4;
                region.word(at).fetch_xor(1 << ((random >> 40) % 32), Relaxed);
            }
            drop(region);
            let (store, start) = copy.attach();
            starts[usize::from(matches!(start, Start::Warm { .. }))] += 1;
            store.audit();
            for step in 0..3_000 {
                let number = random(&[round, step, 1]) % 12_000;
                let key = format!("key:{number}");
                store.reader(NOW).get(KeyHasher::new(0).hash(key.as_bytes()), |view| {
                    let found = view.value.to_vec();
                    assert!([0, 1].iter().any(|&version| value(number, version).as_bytes() == found), "{key}");
                });
                set(&store, number, step % 2);
            }
            store.tick(Now { unix_ms: NOW.unix_ms + 40_000 });
            store.audit();
        });
    }
    assert!(starts.iter().all(|&times| times > 5), "empty and warm: {starts:?}");
}

/// The offsets of all free chunks and timer blocks.
fn link_offsets(memory: &Memory) -> Vec<usize> {
    let (pages, slabs) = (&memory.pages, &memory.slabs);
    let mut offsets = Vec::new();
    for class in &slabs.classes {
        for &page in &crate::sync::lock(class).pages {
            let chunks = (0..slabs.record(page).chunks_carved()).map(|chunk| Handle::new(page, chunk));
            let has_link =
                |chunk: &Handle| matches!(pages.usage(*chunk).kind(), ChunkKind::Free | ChunkKind::Allocated);
            offsets.extend(chunks.filter(has_link).map(|chunk| pages.offset_of(chunk)));
        }
    }
    offsets
}

#[test]
fn a_region_of_another_build_is_not_taken_for_a_damaged_one() {
    type Change = fn(Superblock) -> Superblock;
    let cases: [(Change, ColdStartReason); 3] = [
        (|found| Superblock { format: 99, ..found }, ColdStartReason::OtherFormat { was: 99, now: FORMAT }),
        (|found| Superblock { layout: found.layout + 1, ..found }, ColdStartReason::OtherLayout),
        (|found| Superblock { state_words: 1 << 40, ..found }, ColdStartReason::Damaged),
    ];
    for (change, why) in cases {
        let scratch = Scratch::new();
        scratch.fill();
        let start = scratch.start_after(|region| {
            let (found, _) = Superblock::read(region).expect("it was saved");
            change(found).write(region);
        });
        assert_eq!(start, Start::Empty(why));
    }
}

/// A size that the machine does not have: the old region stays for a smaller one.
#[test]
fn an_impossible_size_leaves_the_region_alone() {
    let scratch = Scratch::new();
    scratch.fill();
    let refused = Store::attach(Options { memory_bytes_max: 1 << 46, ..options() }, &scratch.0, NOW).err();
    assert!(matches!(refused, Some(RegionError::System { doing: GET_MEMORY, .. })), "{refused:?}");
    assert!(matches!(scratch.attach().1, Start::Warm { .. }));
}

#[test]
fn memory_of_another_program_is_left_alone() {
    let scratch = Scratch::new();
    let segment = Segment::create(scratch.0.key(), 64 << 10).expect("shared memory");
    let region = attach(segment, &scratch.0).expect("no process maps it");
    region.word(0).store(7, Relaxed);
    region.word((64 << 10) - 8).store(7, Relaxed);
    drop(region);
    let foreign = RegionError::Foreign { name: scratch.0.clone(), segment: segment.id };
    assert_eq!(Store::attach(options(), &scratch.0, NOW).err(), Some(foreign.clone()));
    assert_eq!(remove_region(&scratch.0), Err(foreign));
    assert_eq!(scratch.region().word(0).load(Relaxed), 7);
}

/// Any user could have created it and written into it, headers and lengths included.
#[test]
fn memory_that_other_users_may_access_is_never_used() {
    let scratch = Scratch::new();
    let geometry = persistent_geometry(&options()).expect("the options are fine");
    for mode in [0o666, 0o640, 0o602] {
        let segment = Segment::create_with_mode(scratch.0.key(), geometry.region_bytes(), mode).expect("shared memory");
        let refused = Store::attach(options(), &scratch.0, NOW).err();
        assert!(
            matches!(&refused, Some(RegionError::ForeignOwner { mode: found, .. }) if *found == mode as u32),
            "{refused:?}"
        );
        assert!(refused.expect("an error").to_string().ends_with(&format!("`ipcrm -m {}` removes it", segment.id)));
        assert!(matches!(remove_region(&scratch.0), Err(RegionError::ForeignOwner { .. })));
        segment.remove().expect("it is ours");
    }
    assert_eq!(scratch.attach().1, Start::Empty(ColdStartReason::New));
}

/// A user who may change it could let two processes have one region.
#[test]
fn a_semaphore_that_other_users_may_access_is_never_used() {
    let scratch = Scratch::new();
    let semaphore = create_semaphore_with_mode(scratch.0.key(), 0o666).expect("a semaphore");
    let refused = Store::attach(options(), &scratch.0, NOW).err();
    remove_semaphore(semaphore).expect("it is ours");
    assert!(matches!(refused, Some(RegionError::ForeignOwner { mode: 0o666, .. })), "{refused:?}");
    assert_eq!(scratch.attach().1, Start::Empty(ColdStartReason::New));
}

/// A process that was killed between creating the segment and writing the superblock leaves all zeros.
#[test]
fn a_region_that_was_never_initialized_is_replaced() {
    let scratch = Scratch::new();
    let geometry = persistent_geometry(&options()).expect("the options are fine");
    Segment::create(scratch.0.key(), geometry.region_bytes()).expect("shared memory");
    assert_eq!(scratch.attach().1, Start::Empty(ColdStartReason::NotShutDownCleanly));
}

/// The superblock is there, but not all pages: what a copy that was cut short would look like.
#[test]
fn a_region_that_was_cut_short_gives_an_empty_store() {
    let scratch = Scratch::new();
    scratch.fill();
    let original = scratch.region();
    let (superblock, _) = Superblock::read(&original).expect("it was saved");
    for kept_bytes in [SUPERBLOCK_BYTES, original.region_bytes() / 2, original.region_bytes() - SUPERBLOCK_BYTES] {
        let copy = Scratch::new();
        let segment = Segment::create(copy.0.key(), kept_bytes).expect("shared memory");
        let region = attach(segment, &copy.0).expect("no process maps it");
        Superblock { name: copy.0.as_str().to_string(), ..superblock.clone() }.write(&region);
        superblock::mark_clean(&region);
        drop(region);
        let (store, start) = copy.attach();
        assert_eq!(
            (start, store.statistics().items),
            (Start::Empty(ColdStartReason::Damaged), 0),
            "{kept_bytes} bytes"
        );
    }
}

/// Two names with one key cannot be found in reasonable time: the test renames the region instead.
#[test]
fn a_name_with_the_key_of_another_region_is_refused() {
    let scratch = Scratch::new();
    scratch.fill();
    let region = scratch.region();
    let (superblock, _) = Superblock::read(&region).expect("it was saved");
    Superblock { name: "another".to_string(), ..superblock }.write(&region);
    drop(region);
    let taken = RegionError::KeyTaken { name: scratch.0.clone(), other: "another".to_string() };
    assert_eq!(Store::attach(options(), &scratch.0, NOW).err(), Some(taken.clone()));
    assert_eq!(remove_region(&scratch.0), Err(taken));
}

#[test]
fn a_region_that_is_mapped_without_its_lock_is_refused() {
    let scratch = Scratch::new();
    scratch.fill();
    let mapped = scratch.region();
    let refused = Store::attach(options(), &scratch.0, NOW).err();
    assert!(matches!(refused, Some(RegionError::Mapped { mappings: 1, .. })), "{refused:?}");
    drop(mapped);
    assert!(matches!(scratch.attach().1, Start::Warm { .. }));
}

#[test]
fn saving_to_a_removed_region_fails() {
    let scratch = Scratch::new();
    let (store, _) = scratch.attach();
    find(&scratch.0).expect("the look-up succeeds").expect("the segment exists").remove().expect("it is ours");
    assert_eq!(store.save(NOW), Err(RegionError::Removed { name: scratch.0.clone() }));
}

impl Scratch {
    /// Runs `act` on a copy of the region.
    fn with_a_copy(&self, act: impl FnOnce(&Scratch)) {
        let (copy, original) = (Scratch::new(), self.region());
        let bytes = original.region_bytes();
        let segment = Segment::create(copy.0.key(), bytes).expect("shared memory");
        let region = attach(segment, &copy.0).expect("no process maps it");
        copy_words(&original, &region);
        let (superblock, is_clean) = Superblock::read(&original).expect("it was saved");
        assert!(is_clean);
        Superblock { name: copy.0.as_str().to_string(), ..superblock }.write(&region);
        drop((region, original));
        act(&copy);
    }
}
