//! A place in the hash of a pool, and the server that serves it: the configured server, or a spare (§3.3 of the paper:
//! remediation). The router decides for all trees that share the slot; a get reads one word.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The server of one place in a pool. Shared by all trees of a process.
#[derive(Debug, Default)]
pub struct Slot(AtomicUsize);

/// The server that serves a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Serving {
    /// The configured server.
    Own,
    /// The spare at this index in the pool's list.
    Spare(usize),
}

impl Slot {
    /// The server that serves the slot now.
    pub fn serving(&self) -> Serving {
        match self.0.load(Ordering::Acquire) {
            0 => Serving::Own,
            spare => Serving::Spare(spare - 1),
        }
    }

    /// Makes `serving` serve the slot.
    pub fn serve(&self, serving: Serving) {
        let word = match serving {
            Serving::Own => 0,
            Serving::Spare(spare) => spare + 1,
        };
        self.0.store(word, Ordering::Release);
    }
}

/// Chooses one of `spares` spares for the server at index `at` of its pool: the first free one from `at` modulo
/// `spares` on. So routers mostly choose the same spare, which improves the hit rate but is not needed for correctness.
pub fn choose_spare(at: usize, spares: usize, is_free: impl Fn(usize) -> bool) -> Option<usize> {
    (0..spares).map(|offset| (at + offset) % spares).find(|&spare| is_free(spare))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_stores_the_server_that_serves() {
        let slot = Slot::default();
        for serving in [Serving::Own, Serving::Spare(0), Serving::Spare(7), Serving::Own] {
            slot.serve(serving);
            assert_eq!(slot.serving(), serving);
        }
    }

    #[test]
    fn the_first_free_spare_is_chosen() {
        assert_eq!([0, 1, 2, 3].map(|at| choose_spare(at, 3, |_| true)), [0, 1, 2, 0].map(Some));
        assert_eq!(choose_spare(2, 3, |spare| spare == 1), Some(1));
        assert_eq!(choose_spare(2, 3, |_| false), None);
        assert_eq!(choose_spare(2, 0, |_| true), None);
    }
}
