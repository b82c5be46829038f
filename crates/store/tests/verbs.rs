//! The effect of each verb on a live item, a stale value, a lease and a hold-off: the table at the head of the crate,
//! row by row.

use lookaside_protocol::{Cas, Direction, LeaseToken, StoreMode};
use lookaside_store::{
    ArithmeticOutcome, DeleteOutcome, Expiry, HashedKey, KeyHasher, LeaseGet, LeaseSetOutcome, NewItem, Now, Options,
    Store, StoreOutcome,
};

const START: Now = Now { unix_ms: 1_700_000_000_000 };

fn after_ms(ms: u64) -> Now {
    Now { unix_ms: START.unix_ms + ms }
}

fn key(name: &str) -> HashedKey<'_> {
    KeyHasher::new(0).hash(name.as_bytes())
}

fn item(value: &str) -> NewItem<'_> {
    NewItem { flags: 7, expiry: Expiry::Never, value: value.as_bytes() }
}

fn store_with(change: impl FnOnce(&mut Options)) -> Store {
    let mut options = Options::default();
    change(&mut options);
    Store::new(options).expect("the options are fine")
}

fn store() -> Store {
    store_with(|_| {})
}

fn put(store: &Store, mode: StoreMode, name: &str, value: &str, now: Now) -> StoreOutcome {
    store.store(key(name), mode, &item(value), now)
}

fn cas_of(outcome: StoreOutcome) -> Cas {
    match outcome {
        StoreOutcome::Stored(cas) => cas,
        other => panic!("not stored: {other:?}"),
    }
}

fn get(store: &Store, name: &str, now: Now) -> Option<String> {
    store.reader(now).get(key(name), |view| text(view.value.pieces()))
}

fn text<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> String {
    String::from_utf8(pieces.flatten().copied().collect()).expect("the test stores text")
}

/// `Ok`: a hit. `Err`: the token and the stale value.
fn lease_get(store: &Store, name: &str, now: Now) -> Result<String, (LeaseToken, Option<String>)> {
    store.reader(now).lease_get(key(name), |reply| match reply {
        LeaseGet::Hit(view) => Ok(text(view.value.pieces())),
        LeaseGet::Miss { token, stale } => Err((token, stale.map(|view| text(view.value.pieces())))),
    })
}

fn token(store: &Store, name: &str, now: Now) -> LeaseToken {
    let (token, _) = lease_get(store, name, now).expect_err("a miss");
    assert!(token.is_held(), "a token was due");
    token
}

#[test]
fn a_token_fills_once() {
    let store = store();
    let token = token(&store, "k", START);
    assert_eq!(lease_get(&store, "k", START), Err((LeaseToken::HOT_MISS, None)));
    assert!(matches!(store.lease_set(key("k"), token, &item("v"), START), LeaseSetOutcome::Stored(_)));
    assert_eq!(lease_get(&store, "k", START), Ok("v".into()));
    assert_eq!(store.lease_set(key("k"), token, &item("w"), START), LeaseSetOutcome::NotStored);
    assert_eq!(get(&store, "k", START), Some("v".into()));
}

#[test]
fn a_token_is_bound_to_its_key() {
    let store = store();
    let token = token(&store, "k", START);
    assert_eq!(store.lease_set(key("other"), token, &item("v"), START), LeaseSetOutcome::NotStored);
    assert_eq!(store.lease_set(key("k"), LeaseToken::HOT_MISS, &item("v"), START), LeaseSetOutcome::NotStored);
    assert_eq!(store.lease_set(key("k"), LeaseToken(0), &item("v"), START), LeaseSetOutcome::NotStored);
}

#[test]
fn after_the_interval_only_the_newest_token_holds() {
    let store = store();
    let first = token(&store, "k", START);
    assert_eq!(lease_get(&store, "k", after_ms(9_999)), Err((LeaseToken::HOT_MISS, None)));
    let second = token(&store, "k", after_ms(10_000));
    assert_ne!(first, second);
    assert_eq!(store.lease_set(key("k"), first, &item("old"), after_ms(10_001)), LeaseSetOutcome::NotStored);
    assert!(matches!(store.lease_set(key("k"), second, &item("new"), after_ms(10_001)), LeaseSetOutcome::Stored(_)));
}

#[test]
fn a_late_fill_is_stored_while_no_other_token_was_issued() {
    let store = store();
    let token = token(&store, "k", START);
    assert!(matches!(store.lease_set(key("k"), token, &item("v"), after_ms(60_000)), LeaseSetOutcome::Stored(_)));
}

#[test]
fn without_an_interval_every_miss_gets_a_token() {
    let store = store_with(|options| options.lease_interval_ms = 0);
    let first = token(&store, "k", START);
    let second = token(&store, "k", START);
    assert_eq!(store.lease_set(key("k"), first, &item("v"), START), LeaseSetOutcome::NotStored);
    assert!(matches!(store.lease_set(key("k"), second, &item("v"), START), LeaseSetOutcome::Stored(_)));
}

#[test]
fn a_released_lease_is_as_one_that_was_never_issued() {
    for interval_outlasts_delete in [false, true] {
        let store = store_with(|options| options.lease_interval_outlasts_delete = interval_outlasts_delete);
        let first = token(&store, "k", START);
        store.release_lease(key("k"), LeaseToken::HOT_MISS, START);
        store.release_lease(key("k"), LeaseToken(first.0 + 1), START);
        assert_eq!(lease_get(&store, "k", START), Err((LeaseToken::HOT_MISS, None)), "another token releases nothing");
        store.release_lease(key("k"), first, START);
        let second = token(&store, "k", START);
        assert_eq!(store.lease_set(key("k"), first, &item("old"), START), LeaseSetOutcome::NotStored);
        assert!(matches!(store.lease_set(key("k"), second, &item("new"), START), LeaseSetOutcome::Stored(_)));
    }
}

#[test]
fn a_delete_voids_the_token_and_frees_another() {
    let store = store();
    let before = token(&store, "k", START);
    assert_eq!(store.delete(key("k"), 0, START), DeleteOutcome::NotFound);
    assert_eq!(store.lease_set(key("k"), before, &item("old"), START), LeaseSetOutcome::NotStored);
    let after = token(&store, "k", START);
    assert_eq!(store.lease_set(key("k"), before, &item("old"), START), LeaseSetOutcome::NotStored);
    assert!(matches!(store.lease_set(key("k"), after, &item("new"), START), LeaseSetOutcome::Stored(_)));
}

#[test]
fn to_the_letter_a_delete_frees_no_token() {
    let store = store_with(|options| options.lease_interval_outlasts_delete = true);
    let before = token(&store, "k", START);
    store.delete(key("k"), 0, START);
    assert_eq!(lease_get(&store, "k", after_ms(9_999)), Err((LeaseToken::HOT_MISS, None)));
    assert_eq!(store.lease_set(key("k"), before, &item("old"), after_ms(9_999)), LeaseSetOutcome::NotStored);
    token(&store, "k", after_ms(10_000));
}

#[test]
fn every_store_voids_the_token() {
    for mode in [StoreMode::Set, StoreMode::Add] {
        let store = store();
        let token = token(&store, "k", START);
        cas_of(put(&store, mode, "k", "newer", START));
        assert_eq!(store.lease_set(key("k"), token, &item("old"), START), LeaseSetOutcome::NotStored);
        store.delete(key("k"), 0, START);
        assert_eq!(store.lease_set(key("k"), token, &item("old"), START), LeaseSetOutcome::StaleStored);
        assert_eq!(get(&store, "k", START), None);
    }
}

#[test]
fn a_deleted_value_stays_as_stale_for_a_while() {
    let store = store();
    cas_of(put(&store, StoreMode::Set, "k", "v", START));
    assert_eq!(store.delete(key("k"), 0, START), DeleteOutcome::Deleted);
    assert_eq!(get(&store, "k", START), None);
    assert_eq!(store.reader(START).get_and_touch(key("k"), Expiry::Never, |_| ()), None);
    let (token, stale) = lease_get(&store, "k", after_ms(9_999)).expect_err("a miss");
    assert!(token.is_held());
    assert_eq!(stale.as_deref(), Some("v"));
    assert_eq!(store.delete(key("k"), 0, after_ms(9_999)), DeleteOutcome::NotFound);
    assert_eq!(lease_get(&store, "k", after_ms(10_000)).expect_err("a miss").1, None);
}

#[test]
fn a_void_token_refreshes_the_stale_value_and_no_more() {
    let store = store();
    cas_of(put(&store, StoreMode::Set, "k", "v1", START));
    store.delete(key("k"), 0, START);
    let void = token(&store, "k", START);
    store.delete(key("k"), 0, START);
    assert_eq!(store.lease_set(key("k"), void, &item("v2 longer"), after_ms(5_000)), LeaseSetOutcome::StaleStored);
    assert_eq!(get(&store, "k", after_ms(5_000)), None);
    assert_eq!(lease_get(&store, "k", after_ms(9_999)).expect_err("a miss").1.as_deref(), Some("v2 longer"));
    assert_eq!(lease_get(&store, "k", after_ms(10_000)).expect_err("a miss").1, None);
}

#[test]
fn only_a_lease_get_sees_a_stale_value() {
    let store = store();
    let unique = cas_of(put(&store, StoreMode::Set, "k", "1", START));
    store.delete(key("k"), 0, START);
    assert_eq!(put(&store, StoreMode::Replace, "k", "2", START), StoreOutcome::NotStored);
    assert_eq!(put(&store, StoreMode::Append, "k", "2", START), StoreOutcome::NotStored);
    assert_eq!(put(&store, StoreMode::Prepend, "k", "2", START), StoreOutcome::NotStored);
    assert_eq!(put(&store, StoreMode::Cas(unique), "k", "2", START), StoreOutcome::NotFound);
    assert_eq!(store.arithmetic(key("k"), Direction::Up, 1, START), ArithmeticOutcome::NotFound);
    cas_of(put(&store, StoreMode::Add, "k", "3", START));
    assert_eq!(get(&store, "k", START), Some("3".into()));
}

#[test]
fn a_stale_value_keeps_its_own_expiry_too() {
    let store = store();
    let expiry = Expiry::At { unix_s: (START.unix_ms / 1000) as u32 + 3 };
    store.store(key("k"), StoreMode::Set, &NewItem { flags: 0, expiry, value: b"v" }, START);
    store.delete(key("k"), 0, START);
    assert_eq!(lease_get(&store, "k", after_ms(2_999)).expect_err("a miss").1.as_deref(), Some("v"));
    assert_eq!(lease_get(&store, "k", after_ms(3_000)).expect_err("a miss").1, None);
}

#[test]
fn a_hold_off_refuses_adds_until_it_is_over_or_a_set_ends_it() {
    let store = store();
    assert_eq!(store.delete(key("k"), 2_000, START), DeleteOutcome::NotFound);
    assert_eq!(put(&store, StoreMode::Add, "k", "old", after_ms(1_999)), StoreOutcome::NotStored);
    assert_eq!(store.statistics().hold_off_refusals, 1);
    cas_of(put(&store, StoreMode::Add, "k", "new", after_ms(2_000)));

    store.delete(key("k"), 2_000, after_ms(2_000));
    store.delete(key("k"), 100, after_ms(2_000));
    assert_eq!(put(&store, StoreMode::Add, "k", "old", after_ms(3_000)), StoreOutcome::NotStored);
    cas_of(put(&store, StoreMode::Set, "k", "new", after_ms(3_000)));
    store.delete(key("k"), 0, after_ms(3_000));
    cas_of(put(&store, StoreMode::Add, "k", "newer", after_ms(3_000)));
}

#[test]
fn a_token_from_after_the_delete_fills_during_the_hold_off() {
    let store = store();
    let before = token(&store, "k", START);
    store.delete(key("k"), 2_000, START);
    let after = token(&store, "k", START);
    assert_eq!(store.lease_set(key("k"), before, &item("old"), START), LeaseSetOutcome::NotStored);
    assert!(matches!(store.lease_set(key("k"), after, &item("new"), START), LeaseSetOutcome::Stored(_)));
}

#[test]
fn a_flush_removes_values_stale_values_and_leases() {
    let store = store();
    cas_of(put(&store, StoreMode::Set, "live", "v", START));
    cas_of(put(&store, StoreMode::Set, "stale", "v", START));
    store.delete(key("stale"), 0, START);
    let before = token(&store, "missing", START);
    assert!(store.flush_all(after_ms(5_000), START));
    assert_eq!(get(&store, "live", after_ms(4_999)), Some("v".into()));
    assert_eq!(get(&store, "live", after_ms(5_000)), None);
    assert_eq!(lease_get(&store, "stale", after_ms(5_000)).expect_err("a miss").1, None);
    assert_eq!(store.lease_set(key("missing"), before, &item("old"), after_ms(5_000)), LeaseSetOutcome::NotStored);
    cas_of(put(&store, StoreMode::Set, "live", "w", after_ms(5_000)));
    assert_eq!(get(&store, "live", after_ms(60_000)), Some("w".into()));
}

#[test]
fn a_later_flush_does_not_cancel_an_earlier_one() {
    let store = store();
    cas_of(put(&store, StoreMode::Set, "k", "v", START));
    assert!(store.flush_all(after_ms(1), START));
    assert!(store.flush_all(after_ms(10_000), START));
    assert_eq!(get(&store, "k", after_ms(1)), None);
}

#[test]
fn an_immediate_flush_is_complete_when_it_returns() {
    let store = store();
    cas_of(put(&store, StoreMode::Set, "before", "v", START));
    assert!(store.flush_all(after_ms(5), after_ms(5)));
    // Another thread's clock may be a few milliseconds behind.
    assert_eq!(get(&store, "before", START), None);
    cas_of(put(&store, StoreMode::Set, "after", "v", after_ms(3)));
    assert_eq!(get(&store, "after", after_ms(60_000)), Some("v".into()));
}

#[test]
fn one_flush_too_many_is_refused_and_displaces_no_other() {
    let store = store();
    cas_of(put(&store, StoreMode::Set, "k", "v", START));
    for ahead in 1..=8 {
        assert!(store.flush_all(after_ms(1_000 * ahead), START));
    }
    assert!(!store.flush_all(after_ms(500), START));
    assert_eq!(get(&store, "k", after_ms(999)), Some("v".into()));
    assert_eq!(get(&store, "k", after_ms(1_000)), None);
    cas_of(put(&store, StoreMode::Set, "k", "w", after_ms(7_999)));
    assert_eq!(get(&store, "k", after_ms(8_000)), None);
}

#[test]
fn append_and_prepend_keep_flags_and_expiry() {
    let store = store();
    let expiry = Expiry::At { unix_s: (START.unix_ms / 1000) as u32 + 3 };
    store.store(key("k"), StoreMode::Set, &NewItem { flags: 3, expiry, value: b"b" }, START);
    cas_of(put(&store, StoreMode::Append, "k", "c", START));
    cas_of(put(&store, StoreMode::Prepend, "k", "a", START));
    let seen = store.reader(START).get(key("k"), |view| (text(view.value.pieces()), view.flags, view.expiry));
    assert_eq!(seen, Some(("abc".into(), 3, expiry)));
}

#[test]
fn a_cas_stores_only_over_the_value_that_was_read() {
    let store = store();
    let first = cas_of(put(&store, StoreMode::Set, "k", "1", START));
    let second = cas_of(put(&store, StoreMode::Cas(first), "k", "2", START));
    assert!(second.0 > first.0);
    assert_eq!(put(&store, StoreMode::Cas(first), "k", "3", START), StoreOutcome::Exists);
    assert_eq!(put(&store, StoreMode::Cas(first), "absent", "3", START), StoreOutcome::NotFound);
}

#[test]
fn a_number_keeps_its_length() {
    let store = store();
    cas_of(put(&store, StoreMode::Set, "k", "10", START));
    assert!(matches!(store.arithmetic(key("k"), Direction::Down, 1, START), ArithmeticOutcome::Number(9, _)));
    assert_eq!(get(&store, "k", START), Some("9 ".into()));
    assert!(matches!(store.arithmetic(key("k"), Direction::Up, 991, START), ArithmeticOutcome::Number(1000, _)));
    assert_eq!(get(&store, "k", START), Some("1000".into()));
    cas_of(put(&store, StoreMode::Set, "k", "ten", START));
    assert_eq!(store.arithmetic(key("k"), Direction::Up, 1, START), ArithmeticOutcome::NotANumber);
}

#[test]
fn a_set_too_large_removes_the_older_value() {
    let store = store_with(|options| options.item_bytes_max = 1_000);
    cas_of(put(&store, StoreMode::Set, "k", "old", START));
    assert_eq!(put(&store, StoreMode::Set, "k", &"x".repeat(1_000), START), StoreOutcome::TooLarge);
    assert_eq!(get(&store, "k", START), None);
}

#[test]
fn a_view_shows_the_usage_before_the_access() {
    let store = store();
    cas_of(put(&store, StoreMode::Set, "k", "v", START));
    let usage = |now| store.reader(now).get(key("k"), |view| (view.last_access_age_s, view.fetched));
    assert_eq!(usage(after_ms(5_000)), Some((5, false)));
    assert_eq!(usage(after_ms(7_000)), Some((2, true)));
}

#[test]
fn accessed_items_outlive_others() {
    let store = store_with(|options| {
        options.memory_bytes_max = 128 << 10;
        options.item_bytes_max = 8 << 10;
    });
    cas_of(put(&store, StoreMode::Set, "hot", "v", START));
    cas_of(put(&store, StoreMode::Set, "cold", "v", START));
    for count in 0..5_000 {
        cas_of(put(&store, StoreMode::Set, &format!("passing:{count}"), "some value of no interest", START));
        assert!(get(&store, "hot", START).is_some(), "gone after {count}");
    }
    assert_eq!(get(&store, "cold", START), None);
}
