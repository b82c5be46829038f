//! Whether accepting is paused: while the process has no file descriptor for another connection, and with
//! `-o no_maxconns_fast` while there are as many connections as `-c` allows. New connections then wait in the kernel's
//! queue (`-b`).
//!
//! `stats` has memcached's counters: `accepting_conns`, `listen_disabled_num`, `time_in_listen_disabled_us`.

use lookaside_store::Now;
use std::sync::atomic::{AtomicU64, Ordering};

/// Written by the thread that accepts, read by any thread.
#[derive(Debug, Default)]
pub(crate) struct AcceptPause {
    /// When the current pause began; 0 if there is none.
    paused_at_ms: AtomicU64,
    pauses: AtomicU64,
    paused_ms: AtomicU64,
}

impl AcceptPause {
    /// Begins or ends a pause; returns whether a pause has begun.
    pub(crate) fn set_paused(&self, is_paused: bool, now: Now) -> bool {
        let paused_at_ms = self.paused_at_ms.load(Ordering::Relaxed);
        match (paused_at_ms, is_paused) {
            (0, true) => {
                self.paused_at_ms.store(now.unix_ms, Ordering::Relaxed);
                self.pauses.fetch_add(1, Ordering::Relaxed);
                true
            }
            (1.., false) => {
                self.paused_ms.fetch_add(now.unix_ms.saturating_sub(paused_at_ms), Ordering::Relaxed);
                self.paused_at_ms.store(0, Ordering::Relaxed);
                false
            }
            _ => false,
        }
    }

    pub(crate) fn is_accepting(&self) -> bool {
        self.paused_at_ms.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn pauses(&self) -> u64 {
        self.pauses.load(Ordering::Relaxed)
    }

    /// The total length of the pauses, without the current one.
    pub(crate) fn paused_us(&self) -> u64 {
        self.paused_ms.load(Ordering::Relaxed) * 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_counted_and_timed() {
        let pause = AcceptPause::default();
        let at = |unix_ms| Now { unix_ms };
        assert!(!pause.set_paused(false, at(10)) && pause.is_accepting());
        assert!(pause.set_paused(true, at(20)) && !pause.is_accepting());
        assert!(!pause.set_paused(true, at(30)), "the pause continues");
        assert!(!pause.set_paused(false, at(45)) && pause.is_accepting());
        assert!(pause.set_paused(true, at(50)));
        assert_eq!((pause.pauses(), pause.paused_us()), (2, 25_000));
    }
}
