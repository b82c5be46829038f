//! The extension module has no test program. This one is of the part of it that needs no Python.

#[path = "../src/positions.rs"]
mod positions;

use positions::{group_equal, positions};
use std::cell::Cell;
use std::hash::{Hash, Hasher};

thread_local!(static LOOKS: Cell<usize> = const { Cell::new(0) });

/// A key that counts how often it is compared or hashed.
#[derive(Clone, Copy, Debug)]
struct Counted(usize);

impl Counted {
    fn count_look() {
        LOOKS.set(LOOKS.get() + 1);
    }
}

impl PartialEq for Counted {
    fn eq(&self, other: &Counted) -> bool {
        Counted::count_look();
        self.0 == other.0
    }
}

impl Eq for Counted {}

impl Hash for Counted {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Counted::count_look();
        self.0.hash(state);
    }
}

fn counted(keys: impl IntoIterator<Item = usize>) -> Vec<Counted> {
    keys.into_iter().map(Counted).collect()
}

/// What `run` returns, and how often it has looked at a key.
fn looks<T>(run: impl FnOnce() -> T) -> (T, usize) {
    LOOKS.set(0);
    let result = run();
    (result, LOOKS.get())
}

const KEYS: usize = 10_000;

/// Once each key was searched from the first on: 50 million comparisons for 10,000 keys that are all to be loaded.
#[test]
fn positions_of_all_keys_take_linear_time_in_any_order() {
    let all = counted(0..KEYS);
    let (found, in_order) = looks(|| positions(&all, &all).collect::<Vec<_>>());
    assert_eq!(found, (0..KEYS).collect::<Vec<_>>());
    assert_eq!(in_order, KEYS);
    let every_tenth = counted((0..KEYS).step_by(10));
    let (found, few) = looks(|| positions(&every_tenth, &all).collect::<Vec<_>>());
    assert_eq!(found, (0..KEYS).step_by(10).collect::<Vec<_>>());
    assert!(few <= KEYS, "{few}");
    // As the keys of two ttls that take turns come.
    let taking_turns: Vec<usize> = (0..KEYS).step_by(2).chain((1..KEYS).step_by(2)).collect();
    for order in [taking_turns, (0..KEYS).rev().collect()] {
        let some = counted(order.iter().copied());
        let (found, in_disorder) = looks(|| positions(&some, &all).collect::<Vec<_>>());
        assert_eq!(found, order);
        // One search in vain, a hash for each entry and each search, and what a table compares; it hashes again when it
        // grows.
        assert!(in_disorder <= 8 * KEYS, "{in_disorder}");
    }
}

#[test]
fn equal_keys_are_found_where_they_are() {
    let all = counted([7, 8, 7, 9]);
    let position = |keys: &[usize]| positions(&counted(keys.iter().copied()), &all).collect::<Vec<_>>();
    assert_eq!(position(&[7, 8, 7, 9]), [0, 1, 2, 3]);
    assert_eq!(position(&[9, 8, 7]), [3, 1, 0], "the first of them, by the table");
    assert_eq!(position(&[]), [0; 0]);
}

/// Once each key was compared with every group: a ttl for each key, with some jitter say, made as many groups as keys.
#[test]
fn groups_are_made_in_linear_time() {
    for groups in [1, 2, 8, 9, 100, KEYS] {
        let items = counted((0..KEYS).map(|index| index % groups));
        let (grouped, looks) = looks(|| group_equal(&items));
        assert!(looks <= 16 * KEYS, "{looks} for {groups} groups");
        assert_eq!(grouped.len(), groups);
        for (number, (item, indexes)) in grouped.into_iter().enumerate() {
            assert_eq!(item.0, number, "in the order in which they come first");
            assert_eq!(indexes, (number..KEYS).step_by(groups).collect::<Vec<_>>());
        }
    }
}
