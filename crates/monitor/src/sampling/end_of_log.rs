//! What is known about when a commit came: the end of the log at some times.
//!
//! The monitor looks up the end of the log about once a second. A commit that is not covered by an end came after the
//! look-up began. So it has a lower bound of its time by the monitor's own clock, and the database's clock is not
//! needed. The upper bound is the time at which the commit was read.

use super::moment::Moment;
use lookaside_invalidator::Position;
use std::collections::VecDeque;

/// The most ends that are kept. Without those in between, bounds are lower than they could be, and still bounds.
const ENDS_MAX: usize = 1_024;

/// The ends of the log that later commits may need, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndsOfLog(VecDeque<EndOfLog>);

/// One look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndOfLog {
    /// When it began.
    pub begun_at: Moment,
    /// All commits at the end of the log were at or before this position.
    pub position: Position,
}

impl EndsOfLog {
    /// Adds the result of a look-up.
    pub fn add(&mut self, end: EndOfLog) {
        self.0.push_back(end);
        if self.0.len() > ENDS_MAX {
            let mut index = 0;
            self.0.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
    }

    /// A time before the commit at `position`; `None` if none is known. `covers` tells whether all commits up to the
    /// second position are among those up to the first.
    pub fn not_before(&self, position: &Position, covers: impl Fn(&Position, &Position) -> bool) -> Option<Moment> {
        self.0.iter().rev().find(|end| !covers(&end.position, position)).map(|end| end.begun_at)
    }

    /// Drops what is needed no more, as all up to `position` has been read.
    pub fn drop_read(&mut self, position: &Position, covers: impl Fn(&Position, &Position) -> bool) {
        // The last of those that were reached is the bound of what comes next.
        while self.0.get(1).is_some_and(|end| covers(position, &end.position)) {
            self.0.pop_front();
        }
    }

    /// When the last look-up began; `None` if there was none.
    pub fn newest_begun_at(&self) -> Option<Moment> {
        self.0.back().map(|end| end.begun_at)
    }

    /// Drops all: positions of one log mean nothing in another.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// All that are kept, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &EndOfLog> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(position: &Position, other: &Position) -> bool {
        let number = |position: &Position| position.0.parse::<u64>().expect("a number");
        number(position) >= number(other)
    }

    fn position(number: u64) -> Position {
        Position(number.to_string())
    }

    fn ends(ends: &[(u64, u64)]) -> EndsOfLog {
        let mut all = EndsOfLog::default();
        for &(ms, number) in ends {
            all.add(EndOfLog { begun_at: Moment { ms }, position: position(number) });
        }
        all
    }

    #[test]
    fn a_commit_came_after_the_last_look_up_that_did_not_find_it() {
        let ends = ends(&[(1_000, 5), (2_000, 5), (3_000, 9)]);
        let not_before = |number| ends.not_before(&position(number), covers).map(|at| at.ms);
        assert_eq!(not_before(5), None, "each look-up found it");
        assert_eq!(not_before(6), Some(2_000));
        assert_eq!(not_before(9), Some(2_000));
        assert_eq!(not_before(10), Some(3_000));
    }

    #[test]
    fn the_bound_of_later_commits_is_kept() {
        let mut ends = ends(&[(1_000, 5), (2_000, 6), (3_000, 9)]);
        ends.drop_read(&position(7), covers);
        assert_eq!(ends.iter().count(), 2);
        assert_eq!(ends.not_before(&position(8), covers), Some(Moment { ms: 2_000 }));
        ends.drop_read(&position(20), covers);
        assert_eq!(ends.not_before(&position(21), covers), Some(Moment { ms: 3_000 }));
    }

    #[test]
    fn a_log_that_is_not_read_costs_bounded_memory() {
        let looked_up: Vec<(u64, u64)> = (1..10_000).map(|n| (n * 1_000, n)).collect();
        let ends = ends(&looked_up);
        assert!(ends.iter().count() <= ENDS_MAX);
        for number in [2, 77, 5_000, 9_999] {
            let Moment { ms } = ends.not_before(&position(number), covers).expect("the oldest is kept");
            assert!(ms < number * 1_000, "{ms} is no bound of {number}");
        }
    }
}
