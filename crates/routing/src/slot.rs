//! A server's place in the hash of its pool, and who serves it: the server itself, or a spare that stands in for it
//! (§3.3 of the paper: remediation). Whoever decides that, decides for all trees that hold the slot; a get reads one
//! word.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Who serves one place. Shared by all trees of a process that have it.
#[derive(Debug, Default)]
pub struct Slot(AtomicUsize);

/// The server of a slot that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Serving {
    /// The one that the configuration has there.
    Own,
    /// The spare of that index in the pool's list.
    Spare(usize),
}

impl Slot {
    /// Who serves it now.
    pub fn serving(&self) -> Serving {
        match self.0.load(Ordering::Acquire) {
            0 => Serving::Own,
            spare => Serving::Spare(spare - 1),
        }
    }

    /// From now on, `serving` does.
    pub fn serve(&self, serving: Serving) {
        let word = match serving {
            Serving::Own => 0,
            Serving::Spare(spare) => spare + 1,
        };
        self.0.store(word, Ordering::Release);
    }
}

/// Which of `spares` spares stands in for the server at place `at` of its pool: the one that comes after it in turn and
/// is free. So routers that see the same servers dead mostly choose alike, which is good for hits and needed for
/// nothing.
pub fn choose_spare(at: usize, spares: usize, is_free: impl Fn(usize) -> bool) -> Option<usize> {
    (0..spares).map(|turn| (at + turn) % spares).find(|&spare| is_free(spare))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_says_who_serves() {
        let slot = Slot::default();
        for serving in [Serving::Own, Serving::Spare(0), Serving::Spare(7), Serving::Own] {
            slot.serve(serving);
            assert_eq!(slot.serving(), serving);
        }
    }

    #[test]
    fn spares_are_chosen_in_turn_among_those_that_are_free() {
        assert_eq!([0, 1, 2, 3].map(|at| choose_spare(at, 3, |_| true)), [0, 1, 2, 0].map(Some));
        assert_eq!(choose_spare(2, 3, |spare| spare == 1), Some(1));
        assert_eq!(choose_spare(2, 3, |_| false), None);
        assert_eq!(choose_spare(2, 0, |_| true), None);
    }
}
