//! Many threads at once: writers that change a database and delete, readers that fill under leases.
//!
//! The rule of §3.2.1: no fill that read the database before a delete is stored after it. So at the end the cache holds
//! the values of the database; and in between, a reader never sees a value older than the last delete that was
//! acknowledged before its get.

use lookaside_protocol::{LeaseToken, StoreMode};
use lookaside_store::{
    Expiry, HashedKey, ItemView, KeyHasher, LeaseGet, LeaseSetOutcome, NewItem, Now, Options, Store,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const KEYS: usize = 8;
const WRITERS: usize = 2;
const READERS: usize = 4;
const WRITES_PER_WRITER: u64 = 15_000;
/// Leases are voided by deletes only: the interval never ends.
const NOW: Now = Now { unix_ms: 1_700_000_000_000 };

/// A row of the database, and its last delete.
#[derive(Default)]
struct Row {
    version: AtomicU64,
    /// Every delete of a version up to this one has been acknowledged.
    deleted: AtomicU64,
}

struct Fixture {
    store: Store,
    rows: [Row; KEYS],
    names: [String; KEYS],
    is_over: AtomicBool,
    fills: AtomicU64,
    refusals: AtomicU64,
}

impl Fixture {
    fn new(options: Options) -> Fixture {
        Fixture {
            store: Store::new(options).expect("the options are fine"),
            rows: Default::default(),
            names: std::array::from_fn(|row| format!("row:{row}")),
            is_over: AtomicBool::new(false),
            fills: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        }
    }

    fn key(&self, row: usize) -> HashedKey<'_> {
        KeyHasher::new(0).hash(self.names[row].as_bytes())
    }

    /// Commits, then deletes, as a web server or the invalidator does.
    fn write(&self, row: usize) {
        let version = self.rows[row].version.fetch_add(1, Ordering::SeqCst) + 1;
        self.store.delete(self.key(row), 0, NOW);
        self.rows[row].deleted.fetch_max(version, Ordering::SeqCst);
    }

    fn read(&self, row: usize, spin: u64) {
        let deleted = self.rows[row].deleted.load(Ordering::SeqCst);
        let reply = self.store.reader(NOW).lease_get(self.key(row), |reply| match reply {
            LeaseGet::Hit(view) => Ok(version_of(view)),
            LeaseGet::Miss { token, .. } => Err(token),
        });
        match reply {
            Ok(version) => assert!(version >= deleted, "row {row}: saw {version} after {deleted} was deleted"),
            Err(LeaseToken::HOT_MISS) => std::thread::yield_now(),
            Err(token) => self.fill(row, token, spin),
        }
    }

    fn fill(&self, row: usize, token: LeaseToken, spin: u64) {
        let value = self.rows[row].version.load(Ordering::SeqCst).to_le_bytes();
        // Some fills are slow, so that writes come between.
        for _ in 0..spin {
            std::thread::yield_now();
        }
        let item = NewItem { flags: 0, expiry: Expiry::Never, value: &value };
        match self.store.lease_set(self.key(row), token, &item, NOW) {
            LeaseSetOutcome::Stored(_) => self.fills.fetch_add(1, Ordering::Relaxed),
            LeaseSetOutcome::NotStored | LeaseSetOutcome::StaleStored => self.refusals.fetch_add(1, Ordering::Relaxed),
            other => panic!("{other:?}"),
        };
    }
}

fn version_of(view: ItemView<'_>) -> u64 {
    let value: Vec<u8> = view.value.pieces().flatten().copied().collect();
    u64::from_le_bytes(value.try_into().expect("a version is eight bytes"))
}

fn run(options: Options) -> Fixture {
    let fixture = Fixture::new(options);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let fixture = &fixture;
                scope.spawn(move || {
                    for count in 0..WRITES_PER_WRITER {
                        fixture.write((count as usize * 5 + writer) % KEYS);
                        if count % 4 == 0 {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        for reader in 0..READERS {
            let fixture = &fixture;
            scope.spawn(move || {
                for count in 0u64.. {
                    fixture.read((count as usize * 3 + reader) % KEYS, count % 7);
                    if fixture.is_over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        for writer in writers {
            writer.join().expect("a writer does not panic");
        }
        fixture.is_over.store(true, Ordering::Relaxed);
    });
    fixture
}

fn check(fixture: &Fixture) {
    let fills = fixture.fills.load(Ordering::Relaxed);
    let refusals = fixture.refusals.load(Ordering::Relaxed);
    assert!(fills > 100, "too few fills: {fills}");
    assert!(refusals > 10, "too few refused fills: {refusals}");
    for (row, state) in fixture.rows.iter().enumerate() {
        let cached = fixture.store.reader(NOW).get(fixture.key(row), version_of);
        let version = state.version.load(Ordering::SeqCst);
        assert!(
            cached.is_none_or(|cached| cached == version),
            "row {row}: {cached:?} is cached, the database has {version}"
        );
    }
}

#[test]
fn no_fill_outlives_a_delete() {
    check(&run(Options::default()));
}

#[test]
fn no_fill_outlives_a_delete_when_every_miss_has_a_token() {
    check(&run(Options { lease_interval_ms: 0, stale_ms: 0, ..Options::default() }));
}

/// The CAS uniques of sets by many threads: none is issued twice.
#[test]
fn uniques_are_unique_across_threads() {
    const SETS: u64 = 2_000;
    let store = Store::new(Options::default()).expect("the defaults are fine");
    let mut uniques: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let store = &store;
                scope.spawn(move || (0..SETS).map(|count| set(store, thread, count)).collect::<Vec<_>>())
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    uniques.sort_unstable();
    uniques.dedup();
    assert_eq!(uniques.len() as u64, 4 * SETS);
}

fn set(store: &Store, thread: u64, count: u64) -> u64 {
    let name = format!("key:{}", (count * 7 + thread) % 50);
    let item = NewItem { flags: 0, expiry: Expiry::Never, value: b"v" };
    match store.store(KeyHasher::new(0).hash(name.as_bytes()), StoreMode::Set, &item, NOW) {
        lookaside_store::StoreOutcome::Stored(cas) => cas.0,
        other => panic!("{other:?}"),
    }
}
