//! Where keys are among those of a call, in a time that is linear in their number, as a call may have thousands; the
//! usual calls allocate nothing for it. It knows nothing of Python, so that a test program can be made of it:
//! `python/tests/positions.rs`.

use std::collections::HashMap;
use std::hash::Hash;

/// Up to this number of groups is searched one by one, without a table.
const SEARCHED_GROUPS_MAX: usize = 8;

/// The index of each of `some` keys among `all`, which have all of them. They mostly are in the same order: then each
/// key of `all` is compared once at most, and nothing is allocated. From the first on that is not, as keys of another
/// ttl may be, they are found by a table.
pub(crate) fn positions<'a, K: Eq + Hash>(some: &'a [K], all: &'a [K]) -> impl ExactSizeIterator<Item = usize> + 'a {
    let mut next = 0;
    let mut table: Option<HashMap<&K, usize>> = None;
    some.iter().map(move |key| {
        if table.is_none()
            && let Some(ahead) = all[next..].iter().position(|other| other == key)
        {
            next += ahead + 1;
            return next - 1;
        }
        // Backwards, so that the first of equal keys remains.
        let entry = |(index, key)| (key, index);
        let table = table.get_or_insert_with(|| all.iter().enumerate().rev().map(entry).collect());
        *table.get(key).expect("it is one of all keys")
    })
}

/// The distinct items in the order in which they come first, each with the indexes where it is.
pub(crate) fn group_equal<T: Copy + Eq + Hash>(items: &[T]) -> Vec<(T, Vec<usize>)> {
    let mut groups: Vec<(T, Vec<usize>)> = Vec::new();
    // The groups after those that are searched.
    let mut table: HashMap<T, usize> = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        let searched = &groups[..groups.len().min(SEARCHED_GROUPS_MAX)];
        let found = searched.iter().position(|(other, _)| other == item);
        match found.or_else(|| table.get(item).copied()) {
            Some(group) => groups[group].1.push(index),
            None => {
                if groups.len() >= SEARCHED_GROUPS_MAX {
                    table.insert(*item, groups.len());
                }
                groups.push((*item, vec![index]));
            }
        }
    }
    groups
}
