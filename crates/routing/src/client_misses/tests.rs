use super::{KeyState::*, clients::IDLE_ADDRESSES_MAX, *};
use std::net::IpAddr;

const CONNECTION: Leasing = Leasing { scope: LeaseScope::Connection, version: 0 };
const ADDRESS: Leasing = Leasing { scope: LeaseScope::Address, version: 0 };

const PROCESS: Leasing = Leasing { scope: LeaseScope::Process, version: 0 };

const OLD: LeaseToken = LeaseToken(7);
const NEW: LeaseToken = LeaseToken(8);

fn client() -> Arc<ClientMisses> {
    Arc::new(LeaseClients::default()).add(CONNECTION, Option::None)
}

fn at(now_s: u64) -> Age {
    Age { now_s, miss_age_s: 10 }
}

#[test]
fn a_set_takes_the_token_of_its_miss_once() {
    let all = Arc::new(LeaseClients::default());
    let misses = all.add(CONNECTION, Option::None);
    assert_eq!(misses.answer(1, at(0)), None);
    assert_eq!(misses.record(1, Some(OLD), at(0)), Option::None);
    assert_eq!((misses.state(1, at(5)), misses.state(2, at(5))), (Held(OLD), None));
    assert_eq!((misses.answer(1, at(5)), misses.answer(1, at(5))), (Held(OLD), None));
    assert_eq!(all.remembered(), 0);
}

/// Thread one misses, a delete comes, thread two misses over the same connection: its token must not be used by
/// the set of thread one.
#[test]
fn a_set_counts_for_the_oldest_miss() {
    let misses = client();
    misses.record(1, Some(OLD), at(0));
    assert_eq!(misses.record(1, Some(NEW), at(1)), Some(NEW), "no set can use it");
    assert_eq!([misses.answer(1, at(2)), misses.answer(1, at(2))], [Void, Void]);
    misses.record(1, Some(NEW), at(2));
    assert_eq!(misses.answer(1, at(2)), Held(NEW), "both have been answered");
}

/// The token of the oldest miss holds for later ones, too: nothing came between.
#[test]
fn later_misses_without_a_token_share_the_first() {
    let misses = client();
    misses.record(1, Some(OLD), at(0));
    misses.record(1, Option::None, at(1));
    assert_eq!([misses.answer(1, at(1)), misses.answer(1, at(1)), misses.answer(1, at(1))], [Held(OLD), Void, None]);
}

/// A late get whose caller has got the value from a replica: it will not store.
#[test]
fn a_miss_that_is_withdrawn_needs_no_set() {
    let misses = client();
    assert_eq!(misses.withdraw(1, at(0)), Option::None, "no miss");
    misses.record(1, Some(OLD), at(0));
    assert_eq!(misses.withdraw(1, at(1)), Some(OLD));
    assert_eq!(misses.answer(1, at(1)), None, "a set without a miss");
    misses.record(1, Some(NEW), at(2));
    misses.record(1, Option::None, at(2));
    assert_eq!(misses.withdraw(1, at(2)), Option::None, "the other miss needs the token");
    assert_eq!([misses.answer(1, at(2)), misses.answer(1, at(2))], [Held(NEW), None]);
    misses.record(1, Some(OLD), at(3));
    misses.record(1, Some(NEW), at(3));
    assert_eq!(misses.withdraw(1, at(3)), Option::None);
    assert_eq!(
        [misses.answer(1, at(3)), misses.answer(1, at(3))],
        [Void, None],
        "the older set may be the one that comes"
    );
}

#[test]
fn a_miss_without_a_token_and_a_deleted_key_are_void() {
    let misses = client();
    misses.record(1, Option::None, at(0));
    misses.record(2, Some(OLD), at(0));
    misses.void(2);
    misses.void(3);
    assert_eq!([1, 2, 3].map(|hash| misses.answer(hash, at(0))), [Void, Void, None]);
}

#[test]
fn connections_of_one_address_share_their_misses() {
    let all = Arc::new(LeaseClients::default());
    let add = |last| all.add(ADDRESS, Some(IpAddr::from([10, 0, 0, last])));
    let (one, other, elsewhere) = (add(1), add(1), add(2));
    assert_eq!([&other, &elsewhere].map(|client| client.state(1, at(0))), [Void, Void], "a new address is blind");
    one.record(1, Some(OLD), at(11));
    assert!(other.is_answered_elsewhere(1, at(12)) && !other.is_answered_elsewhere(1, at(13)));
    assert_eq!((other.state(1, at(12)), elsewhere.state(1, at(12))), (Held(OLD), None));
    drop((one, other));
    assert_eq!(add(1).answer(1, at(12)), Held(OLD), "threads outlive connections");
    assert!(!all.add(CONNECTION, Option::None).is_answered_elsewhere(1, at(12)));
}

#[test]
fn addresses_without_connections_are_removed_if_there_are_many() {
    let all = Arc::new(LeaseClients::default());
    let add = |at: usize| all.add(ADDRESS, Some(IpAddr::from((at as u32).to_be_bytes())));
    let kept = add(0);
    (1..=IDLE_ADDRESSES_MAX).for_each(|at| drop(add(at)));
    // Of the last one, too: its own connection is being added.
    assert_eq!(all.clients.lock().by_address.len(), 2);
    assert_eq!(kept.scope(), LeaseScope::Address);
}

/// A client that never stores after one of its misses once had the later ones forgotten with that: a token was given to
/// a set whose value was older.
#[test]
fn misses_are_removed_with_their_newest() {
    let misses = client();
    misses.record(1, Some(OLD), at(0));
    misses.record(1, Some(NEW), at(9));
    assert_eq!([10, 11, 19].map(|now_s| misses.state(1, at(now_s))), [Void, Void, Void]);
    assert_eq!(misses.record(1, Some(NEW), at(20)), Option::None);
    assert_eq!(misses.state(1, at(20)), Held(NEW));
    assert_eq!(misses.counters().misses_expired.value(), 1);
}

/// A miss that has no set, and then one miss and its set each second.
#[test]
fn a_key_is_not_void_for_a_process_for_ever() {
    let misses = Arc::new(LeaseClients::default()).add(PROCESS, Option::None);
    misses.record(1, Option::None, at(0));
    let is_void = |now_s| {
        let is_void = misses.state(1, at(now_s)) == Void;
        if is_void {
            misses.record(1, Option::None, at(now_s));
            assert_eq!(misses.answer(1, at(now_s)), Void);
        }
        is_void
    };
    assert_eq!((1..100).find(|&now_s| !is_void(now_s)), Some(22));
}

/// While its misses are still being answered, their sets are waited for; but not for ever.
#[test]
fn a_key_that_was_void_is_free_once_few_misses_are_unanswered() {
    let misses = Arc::new(LeaseClients::default()).add(PROCESS, Option::None);
    misses.record(1, Option::None, at(0));
    assert_eq!(misses.state(1, at(0)), Void);
    (5..=25).step_by(5).for_each(|now_s| assert_eq!(misses.record(1, Option::None, at(now_s)), Option::None));
    assert_eq!(misses.state(1, at(30)), Void, "more are unanswered than at first");
    assert_eq!(misses.state(1, at(31)), None);
    let of_connection = client();
    of_connection.record(1, Option::None, at(0));
    (5..=35).step_by(5).for_each(|now_s| assert_eq!(of_connection.record(1, Option::None, at(now_s)), Option::None));
    assert_eq!(of_connection.state(1, at(35)), Void, "the connection may end");
}

#[test]
fn a_process_remembers_the_misses_of_many_threads() {
    let misses = Arc::new(LeaseClients::default()).add(PROCESS, Option::None);
    (0..ADDRESS_MISSES_MAX as u64).for_each(|hash| assert_eq!(misses.record(hash, Some(OLD), at(0)), Option::None));
    assert_eq!(misses.counters().misses_dropped.value(), 0);
    assert_eq!(misses.state(0, at(0)), Held(OLD));
}

#[test]
fn a_full_state_is_blind_until_what_it_dropped_is_too_old() {
    let all = Arc::new(LeaseClients::default());
    let misses = all.add(CONNECTION, Option::None);
    let last = MISSES_MAX as u64;
    for hash in 0..last {
        assert_eq!(misses.record(hash, Some(OLD), at(0)), Option::None);
    }
    assert_eq!(misses.record(last, Some(OLD), at(1)), Some(OLD), "there is no space");
    assert_eq!([0, last, last + 1].map(|hash| misses.state(hash, at(1))), [Held(OLD), Void, Void]);
    assert_eq!(misses.answer(last, at(11)), Void);
    assert_eq!(misses.answer(last, at(12)), None);
    misses.record(last, Some(NEW), at(12));
    assert_eq!((all.remembered(), misses.state(last, at(12))), (1, Held(NEW)));
    assert_eq!((all.counters.misses_dropped.value(), all.counters.misses_expired.value()), (1, last));
    drop(misses);
    assert_eq!(all.remembered(), 0);
}

/// Clients that have stopped must not keep the others from filling.
#[test]
fn misses_of_idle_clients_make_space_when_they_are_too_old() {
    let all = Arc::new(LeaseClients::default());
    let idle: Vec<_> = (0..TOTAL_MISSES_MAX / MISSES_MAX).map(|_| all.add(CONNECTION, Option::None)).collect();
    for client in &idle {
        (0..MISSES_MAX as u64).for_each(|hash| assert_eq!(client.record(hash, Some(OLD), at(0)), Option::None));
    }
    let busy = all.add(CONNECTION, Option::None);
    assert_eq!(busy.record(1, Some(NEW), at(5)), Some(NEW), "there is no space");
    assert_eq!(busy.record(1, Some(NEW), at(16)), Option::None);
    assert_eq!((busy.state(1, at(16)), all.remembered()), (Held(NEW), 1));
    drop(idle);
    assert_eq!(all.clients.lock().by_id.len(), 1);
}

#[test]
fn a_client_of_another_process_is_blind_at_first() {
    let misses = Arc::new(LeaseClients::default()).add_blind(CONNECTION, Option::None);
    assert!(misses.has_any(0));
    assert_eq!(misses.state(1, at(100)), Void);
    assert_eq!(misses.record(1, Some(OLD), at(110)), Some(OLD));
    assert_eq!((misses.state(1, at(111)), misses.state(2, at(111))), (Void, None), "it missed this while it was blind");
    assert_eq!((misses.answer(1, at(112)), misses.has_any(0)), (Void, false));
}

fn later(leasing: Leasing) -> Leasing {
    Leasing { version: leasing.version + 1, ..leasing }
}

/// A configuration leased no keys, or fewer, for a while: what a connection missed then was not recorded, and one
/// thread's old value was stored for the miss of another one that shared the connection.
#[test]
fn a_client_is_blind_when_other_keys_are_leased() {
    let misses = client();
    misses.record(1, Some(OLD), at(0));
    misses.advance_to(0);
    assert_eq!((misses.state(1, at(1)), misses.state(2, at(1))), (Held(OLD), None));
    assert!(!Arc::new(LeaseClients::default()).add(CONNECTION, Option::None).has_any(0));
    assert!(client().has_any(1), "of keys that are leased since");
    misses.advance_to(1);
    assert_eq!(misses.record(2, Some(NEW), at(1)), Some(NEW));
    assert_eq!(
        [1, 2, 3].map(|hash| misses.answer(hash, at(2))),
        [Held(OLD), Void, Void],
        "a known one keeps its token"
    );
    misses.advance_to(1);
    assert_eq!(misses.state(3, at(12)), None, "once");
}

/// Each idle connection of a pool made the whole address blind again when it was first used after a reload, so nothing
/// was filled for as long as some were.
#[test]
fn an_address_is_blind_once_after_a_change_of_the_leased_keys() {
    let all = Arc::new(LeaseClients::default());
    let address = Some(IpAddr::from([10, 0, 0, 1]));
    let first = all.add(ADDRESS, address);
    assert_eq!((first.state(1, at(0)), first.state(1, at(11))), (Void, None));
    let woken = all.add_blind(later(ADDRESS), address);
    // Other threads may still use the tree before.
    assert_eq!([20, 40, 41].map(|now_s| woken.state(1, at(now_s))), [Void, Void, None]);
    let woken = all.add_blind(later(ADDRESS), address);
    woken.record(1, Some(OLD), at(42));
    assert_eq!(first.answer(1, at(43)), Held(OLD));
    let other = all.add_blind(later(ADDRESS), Some(IpAddr::from([10, 0, 0, 2])));
    assert_eq!(
        [50, 70, 71].map(|now_s| other.state(1, at(now_s))),
        [Void, Void, None],
        "its first connection has waited"
    );
}

/// A state that is full while it is blind once became less blind by that.
#[test]
fn a_miss_that_is_dropped_does_not_shorten_the_blindness() {
    let misses = Arc::new(LeaseClients::default()).add_blind(later(ADDRESS), Option::None);
    (0..=ADDRESS_MISSES_MAX as u64).for_each(|hash| _ = misses.record(hash, Option::None, at(0)));
    let unknown = u64::MAX;
    assert_eq!([1, 20, 21].map(|now_s| misses.state(unknown, at(now_s))), [Void, Void, None]);
}
