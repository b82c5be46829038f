//! The locks of this crate, and the moments at which threads meet outside of them.
//!
//! Built with `--cfg shuttle` both belong to a scheduler that runs one thread at a time and chooses at each of them who goes
//! on (`tests/schedules.rs`). Otherwise the locks are the standard library's, and [`meet`] is nothing.

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard};
use std::sync::{PoisonError, TryLockError};

/// A closure that panics while it is shown an item leaves the store whole: all changes are made before it runs.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], unless somebody holds it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Lets threads go on that hold what this one has tried for in vain.
pub(crate) fn give_way() {
    #[cfg(not(shuttle))]
    std::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
}

/// What comes next looks at, or changes, what no lock of the caller guards: another thread may come in between.
#[inline(always)]
pub(crate) fn meet() {
    // A look at any of its atomics lets the scheduler choose; a yield would also make this thread the last in line.
    #[cfg(shuttle)]
    shuttle::sync::atomic::AtomicBool::new(false).load(std::sync::atomic::Ordering::SeqCst);
}
