//! Growth, and evictions for a slot: what keys that share a stripe or a bucket can do to others.

use super::*;
use crate::{Expiry, KeyHasher, NewItem, Now, Options, Store};
use lookaside_protocol::StoreMode;

const NOW: Now = Now { unix_ms: 1_700_000_000_000 };

fn store(memory_bytes_max: usize) -> Store {
    let options = Options { memory_bytes_max, item_bytes_max: memory_bytes_max / 8, ..Options::default() };
    Store::new(options).expect("the options are fine")
}

fn set(store: &Store, name: &str, value_bytes: usize) {
    let item = NewItem { flags: 0, expiry: Expiry::Never, value: &vec![7; value_bytes] };
    store.store(KeyHasher::new(0).hash(name.as_bytes()), StoreMode::Set, &item, NOW);
}

/// Names of keys with a property.
fn crafted(is_wanted: impl Fn(HashedKey<'_>) -> bool) -> impl Iterator<Item = String> {
    (0..)
        .map(|number: u32| format!("crafted:{number}"))
        .filter(move |name| is_wanted(KeyHasher::new(0).hash(name.as_bytes())))
}

#[test]
fn keys_of_one_stripe_do_not_grow_the_index() {
    const ITEMS: usize = 1_000;
    let store = store(1 << 20);
    let bits = store.shared.memory.pages.geometry.stripe_bits;
    assert!(bits > 2, "there are other stripes");
    crafted(|key| key.stripe(bits) == 0).take(3 * ITEMS).for_each(|name| set(&store, &name, 8));
    let items = usize::try_from(store.statistics().items).expect("a few thousand");
    let slots = store.shared.memory.index.buckets() * SLOTS;
    assert!(slots <= items.max(ITEMS) * 5 / 2 + 100 * SLOTS, "{slots} slots for {items} items");
    store.audit();
}

/// Clients know the program, and so which keys share two buckets under a seed that they know.
#[test]
fn keys_crafted_for_another_seed_do_not_evict_each_other() {
    let evictions = |hash_seed| {
        let options = Options { memory_bytes_max: 1 << 20, item_bytes_max: 64 << 10, hash_seed, ..Options::default() };
        let store = Store::new(options).expect("the options are fine");
        let bits = store.shared.memory.pages.geometry.stripe_bits;
        let is_wanted = |key: HashedKey<'_>| bucket_hashes(key, bits).map(|hash| hash & 0xff) == [0x13, 0x73];
        for name in crafted(is_wanted).take(60) {
            let item = NewItem { flags: 0, expiry: Expiry::Never, value: b"value" };
            store.store(store.hasher().hash(name.as_bytes()), StoreMode::Set, &item, NOW);
        }
        store.audit();
        store.statistics().evictions
    };
    assert!(evictions(0) > 30, "{}: the seed that they were crafted for", evictions(0));
    assert_eq!(evictions(0x5eed_0f5e_c2e7_0001), 0);
}

/// With few buckets a stripe has four or five, and sometimes more items than fit them.
#[test]
fn nothing_is_evicted_for_a_slot_while_memory_is_free() {
    for family in 0..24 {
        let store = store(64 << 20);
        (0..9_000).for_each(|number| set(&store, &format!("u:{family}:{number}"), 20));
        assert_eq!((store.statistics().evictions, store.statistics().items), (0, 9_000), "family {family}");
    }
}

/// A chained item evicts another from its buckets, while the index needs a page that another class gives.
#[test]
fn keys_of_one_bucket_evict_only_each_other() {
    const KEYS: usize = 60;
    let store = store(64 << 10);
    let bits = store.shared.memory.pages.geometry.stripe_bits;
    let buckets_of = |key: HashedKey<'_>| bucket_hashes(key, bits).map(|hash| hash & 0xf);
    let mut crafted = crafted(|key| buckets_of(key) == [3, 7]);
    for round in 0..8 {
        (0..400).for_each(|number| set(&store, &format!("plain:{round}:{number}"), 40));
        for (number, name) in crafted.by_ref().take(KEYS).enumerate() {
            set(&store, &name, if number % 3 == 2 { 3_000 } else { 40 });
        }
        store.audit();
    }
    assert!(
        store.shared.memory.index.buckets() * BUCKET_BYTES <= 16 << 10,
        "{} buckets",
        store.shared.memory.index.buckets()
    );
}
