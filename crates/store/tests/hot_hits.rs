//! A hit of a hot item writes nothing to the memory of items and index: after a few gets that memory is mapped
//! read-only, and a write would end the test with a signal. Hot: fetched three times, in the same second.

use lookaside_protocol::StoreMode;
use lookaside_store::{Expiry, KeyHasher, NewItem, Now, Options, Store};

const NOW: Now = Now { unix_ms: 1_700_000_000_250 };
const ITEMS: usize = 1_000;

fn names() -> Vec<String> {
    (0..ITEMS).map(|number| format!("key:{number}")).collect()
}

/// Looks all keys up as a server does: in a prefetched batch.
fn hits(store: &Store, names: &[String], now: Now) -> usize {
    let reader = store.reader(now);
    let mut keys: Vec<_> = names.iter().map(|name| KeyHasher::new(0).hash(name.as_bytes())).collect();
    reader.prefetch(&mut keys);
    keys.into_iter().filter(|&key| reader.get(key, |item| item.value.value_bytes() == 100).unwrap_or(false)).count()
}

#[test]
fn a_hit_of_a_hot_item_writes_no_shared_memory() {
    let store = Store::new(Options::default()).expect("the options are fine");
    let names = names();
    for name in &names {
        let item = NewItem { flags: 1, expiry: Expiry::Never, value: &[7; 100] };
        store.store(KeyHasher::new(0).hash(name.as_bytes()), StoreMode::Set, &item, NOW);
    }
    (0..3).for_each(|_| assert_eq!(hits(&store, &names, NOW), ITEMS));
    store.make_read_only().expect("a mapping can be made read-only");
    let same_second = Now { unix_ms: NOW.unix_ms + 700 };
    assert_eq!(hits(&store, &names, same_second), ITEMS);
    let absent: Vec<_> = names.iter().map(|name| format!("no:{name}")).collect();
    assert_eq!(hits(&store, &absent, same_second), 0, "a miss writes nothing either");
}
