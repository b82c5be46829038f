//! How long items have been in the store, at least and at most.
//!
//! An item has no time of its own: it has the number that its stripe gave it when it was stored. A mark holds the last
//! number of every stripe at one time. So an item whose number is not above that of a mark was stored before the mark
//! ended, and one whose number is above it was stored after the mark began:
//!
//! ```text
//!        begun   sequences are read   ended
//! --------|-----------------------------|--------> time
//!         stored later than this        stored earlier than this
//!         if the number is above        if it is not
//! ```
//!
//! * Marks are added about once a second, and cost gets and stores nothing.
//! * Up to [`MARKS_MAX`] are kept. Those that lie close together, in proportion to their age, are dropped first: an age
//!   is known to within a second at first, and to within some percent later.
//! * Numbers wrap. A mark is dropped before half of all numbers have been given since, so that the order of two numbers
//!   is certain for every item of the last 2^31 stores to its stripe. An older one may appear as new, never an item as
//!   older than it is. One that is older than all marks is as old as the oldest of them, at least.
//! * Marks end with the process. After a warm restart an item is known to be as old as the process.

use crate::Now;
use std::collections::VecDeque;

/// The most marks that are kept: each has 4 bytes for each stripe.
const MARKS_MAX: usize = 128;
/// The most numbers that a stripe may have given since a mark: less than half of all by what one second may bring.
const NUMBERS_SINCE_MARK_MAX: u32 = 1 << 30;

/// The number that an item got from its stripe when it was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreNumber {
    pub(crate) stripe: usize,
    pub(crate) sequence: u32,
}

/// How long ago an item was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemAge {
    /// The least number of milliseconds since then; 0 if nothing is known.
    pub min_ms: u64,
    /// The greatest number of milliseconds since then; `None` if that is not known.
    pub max_ms: Option<u64>,
}

/// The marks of one store, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct AgeMarks(VecDeque<AgeMark>);

#[derive(Debug)]
struct AgeMark {
    begun: Now,
    ended: Now,
    /// The last number of each stripe.
    sequences: Box<[u32]>,
}

impl AgeMark {
    /// Whether the number was given before the mark ended; otherwise it was given after the mark began.
    fn is_at_or_after(&self, number: StoreNumber) -> bool {
        number.sequence.wrapping_sub(self.sequences[number.stripe]).cast_signed() <= 0
    }

    fn is_certain_at(&self, sequences: &[u32]) -> bool {
        let mut given = sequences.iter().zip(&self.sequences).map(|(now, then)| now.wrapping_sub(*then));
        given.all(|given| given <= NUMBERS_SINCE_MARK_MAX)
    }
}

impl AgeMarks {
    /// Adds a mark: `sequences` were read one after the other, after `begun` and before `ended`.
    pub fn add(&mut self, begun: Now, sequences: Box<[u32]>, ended: Now) {
        while self.0.front().is_some_and(|mark| !mark.is_certain_at(&sequences)) {
            self.0.pop_front();
        }
        self.0.push_back(AgeMark { begun, ended, sequences });
        if self.0.len() > MARKS_MAX {
            self.drop_closest(ended);
        }
    }

    /// Drops the mark whose neighbours lie closest together, in proportion to their age.
    fn drop_closest(&mut self, now: Now) {
        let age_ms = |index: usize| (now.unix_ms - self.0[index].begun.unix_ms).max(1);
        let gap = |index: usize| (age_ms(index - 1) - age_ms(index + 1)) as f64 / age_ms(index - 1) as f64;
        let closest = (1..self.0.len() - 1).min_by(|&a, &b| gap(a).total_cmp(&gap(b)));
        self.0.remove(closest.expect("there are more than two marks"));
    }

    /// The age at `now` of an item with this number.
    pub fn age(&self, number: StoreNumber, now: Now) -> ItemAge {
        let later = self.0.partition_point(|mark| !mark.is_at_or_after(number));
        // A millisecond more: both times are rounded down.
        let min_ms = self.0.get(later).map_or(0, |mark| now.unix_ms.saturating_sub(mark.ended.unix_ms + 1));
        let earlier = later.checked_sub(1).map(|index| &self.0[index]);
        ItemAge { min_ms, max_ms: earlier.map(|mark| (now.unix_ms + 1).saturating_sub(mark.begun.unix_ms)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(unix_ms: u64) -> Now {
        Now { unix_ms }
    }

    fn number(sequence: u32) -> StoreNumber {
        StoreNumber { stripe: 0, sequence }
    }

    #[test]
    fn an_age_lies_between_the_marks_around_the_store() {
        let mut marks = AgeMarks::default();
        assert_eq!(marks.age(number(5), at(9_000)), ItemAge { min_ms: 0, max_ms: None });
        marks.add(at(1_000), [4].into(), at(1_010));
        marks.add(at(2_000), [6].into(), at(2_010));
        let age = |sequence| marks.age(number(sequence), at(9_000));
        assert_eq!(age(4), ItemAge { min_ms: 7_989, max_ms: None }, "older than all marks");
        assert_eq!(age(5), ItemAge { min_ms: 6_989, max_ms: Some(8_001) });
        assert_eq!(age(6), ItemAge { min_ms: 6_989, max_ms: Some(8_001) });
        assert_eq!(age(7), ItemAge { min_ms: 0, max_ms: Some(7_001) }, "newer than all marks");
    }

    #[test]
    fn an_item_is_not_older_than_the_end_of_the_mark_that_saw_it() {
        // It may have been stored while the mark read the numbers of other stripes.
        let mut marks = AgeMarks::default();
        marks.add(at(1_000), [4].into(), at(5_000));
        assert_eq!(marks.age(number(4), at(5_500)).min_ms, 499);
    }

    #[test]
    fn a_look_that_began_before_a_mark_learns_nothing_from_it() {
        let mut marks = AgeMarks::default();
        marks.add(at(1_000), [4].into(), at(1_000));
        assert_eq!(marks.age(number(4), at(900)), ItemAge { min_ms: 0, max_ms: None });
    }

    proptest! {
        // A case is some hours, second by second.
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

        /// Stores at random times, over a wrap of the numbers, with marks each second: each item's true age lies
        /// between the bounds, and these are not far apart.
        #[test]
        fn the_true_age_lies_between_the_bounds(
            first in prop_oneof![Just(0), Just(u32::MAX - 500), any::<u32>()],
            pauses_ms in prop::collection::vec(0..40_000_u64, 1..300),
            numbers_at_once in prop_oneof![Just(1_u32), Just(1 << 26)],
        ) {
            let (mut marks, mut sequence, mut now_ms) = (AgeMarks::default(), first, 1_000_000);
            let (mut stored, begun_ms) = (Vec::new(), now_ms);
            for pause_ms in pauses_ms {
                let until = now_ms + pause_ms;
                while now_ms + 1_000 <= until {
                    now_ms += 1_000;
                    marks.add(at(now_ms - 3), [sequence].into(), at(now_ms));
                }
                now_ms = until;
                sequence = sequence.wrapping_add(numbers_at_once);
                stored.push((sequence, now_ms));
                // Later stores may have the time of the mark.
                now_ms += 4;
            }
            let numbers = stored.len() as u32;
            for (index, (sequence, stored_ms)) in stored.into_iter().enumerate() {
                let (age, true_ms) = (marks.age(number(sequence), at(now_ms)), now_ms - stored_ms);
                prop_assert!(age.min_ms <= true_ms, "{age:?} of {true_ms}");
                let is_ordered = u64::from(numbers - index as u32) * u64::from(numbers_at_once) < 1 << 31;
                let is_bound = age.max_ms.is_none_or(|max_ms| max_ms >= true_ms);
                prop_assert!(is_bound || !is_ordered, "{age:?} of {true_ms}");
                let is_between_marks = age.min_ms > 0 && stored_ms > begun_ms + 40_000;
                if let (true, 1, Some(max_ms)) = (is_between_marks, numbers_at_once, age.max_ms) {
                    prop_assert!(max_ms - age.min_ms <= 2_010 + max_ms / 4, "{age:?}");
                }
            }
            prop_assert!(marks.0.len() <= MARKS_MAX);
        }
    }
}
