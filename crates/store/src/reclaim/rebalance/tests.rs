//! What becomes of a page's way when somebody gives up or panics.

use super::*;
use crate::shard::Locked;
use crate::{Expiry, HashedKey, NewItem, Options, Store};
use lookaside_protocol::StoreMode;

const NOW: Now = Now { unix_ms: 1_700_000_000_000 };

fn full_store() -> Store {
    let options = Options { memory_bytes_max: 4 << 20, item_bytes_max: 64 << 10, ..Options::default() };
    let store = Store::new(options).expect("the options are fine");
    for number in 0..60_000u32 {
        let item = NewItem { flags: 0, expiry: Expiry::Never, value: &[b'v'; 80] };
        store.store(HashedKey::new(&number.to_be_bytes()), StoreMode::Set, &item, NOW);
    }
    assert_eq!(store.memory.pages_free(), 0);
    store
}

/// The wish went when a page set out for the timers; if its items could not be cleared away, none ever came.
#[test]
fn timers_wish_for_a_page_until_one_arrives() {
    let store = full_store();
    let memory = &store.memory;
    memory.timers_want_page.store(true, Relaxed);
    memory.supply_timers(&mut Locked::new(memory, 0, NOW).stripe, NOW);
    assert!(lock(&memory.mover).current.is_some(), "a page is on its way");
    memory.settle();
    assert!(memory.do_timers_want_page(), "given up, but not forgotten");
    while memory.do_timers_want_page() {
        memory.supply_timers(&mut Locked::new(memory, 0, NOW).stripe, NOW);
    }
    assert_eq!(memory.ages[memory.geometry.timer_class()].pages(), 1);
    store.audit();
}

/// A closure that panics under a verb may poison the lock; some took that for a page on its way, for ever.
#[test]
fn a_page_moves_although_somebody_has_panicked_with_the_lock() {
    let store = full_store();
    let poison = || {
        let _guard = store.memory.mover.lock();
        panic!("on purpose");
    };
    std::thread::scope(|scope| assert!(scope.spawn(poison).join().is_err()));
    let class = store.class_statistics(NOW).iter().max_by_key(|class| class.pages).expect("a class").number;
    assert_eq!(store.move_page(class, 1, NOW), PageMove::Moved);
}
