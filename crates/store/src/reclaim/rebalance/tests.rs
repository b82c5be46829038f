//! Page moves that are aborted, and a mover whose lock is poisoned.

use super::*;
use crate::verbs::StripeGuard;
use crate::{Expiry, KeyHasher, NewItem, Options, Store};
use lookaside_protocol::StoreMode;

const NOW: Now = Now { unix_ms: 1_700_000_000_000 };

fn full_store() -> Store {
    let options = Options { memory_bytes_max: 4 << 20, item_bytes_max: 64 << 10, ..Options::default() };
    let store = Store::new(options).expect("the options are fine");
    for number in 0..60_000u32 {
        let item = NewItem { flags: 0, expiry: Expiry::Never, value: &[b'v'; 80] };
        store.store(KeyHasher::new(0).hash(&number.to_be_bytes()), StoreMode::Set, &item, NOW);
    }
    assert_eq!(store.shared.memory.pages.pages_free(), 0);
    store
}

/// Once the request was dropped when a page started to move to the timers; if the page could not be cleared, none ever
/// came.
#[test]
fn timers_request_a_page_until_one_arrives() {
    let store = full_store();
    let (memory, reclaimer) = (&store.shared.memory, &store.shared.reclaimer);
    let needs_page = || memory.timers.needs_page(&memory.pages, &memory.slabs);
    let give = || {
        let mut guard = StripeGuard::lock(&store.shared, 0, NOW);
        reclaimer.rebalancer.move_page_to_timers_if_needed(memory, &reclaimer.evictor, &mut guard.stripe, NOW);
    };
    memory.timers.request_page();
    give();
    assert!(lock(&reclaimer.rebalancer.mover).current.is_some(), "a page is moving");
    reclaimer.rebalancer.abort_move(memory);
    assert!(needs_page(), "aborted, and still requested");
    while needs_page() {
        give();
    }
    assert_eq!(memory.slabs.ages[memory.pages.geometry.timer_class()].pages(), 1);
    store.audit();
}

/// A closure that panics under a verb may poison the lock; once that was taken for a move that never ends.
#[test]
fn a_page_moves_after_a_panic_under_the_lock() {
    let store = full_store();
    let poison = || {
        let _guard = store.shared.reclaimer.rebalancer.mover.lock();
        panic!("on purpose");
    };
    std::thread::scope(|scope| assert!(scope.spawn(poison).join().is_err()));
    let class = store.class_statistics(NOW).iter().max_by_key(|class| class.pages).expect("a class").number;
    assert_eq!(store.move_page(class, 1, NOW), PageMove::Moved);
}
