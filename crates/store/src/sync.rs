//! The locks of this crate, and the points outside of locks at which threads can affect each other.
//!
//! Built with `--cfg shuttle` both belong to a scheduler that runs one thread at a time and chooses the next one at
//! each of them (`tests/schedules.rs`). Otherwise the locks are the standard library's, and [`yield_point`] does
//! nothing.

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard};
use std::sync::{PoisonError, TryLockError};

/// Ignores poison: a closure that panics while it is shown an item leaves the store whole, since all changes are made
/// before it runs.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`]; `None` if another thread holds it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Lets threads run that hold a lock which this one could not take.
pub(crate) fn yield_now() {
    #[cfg(not(shuttle))]
    std::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
}

/// Marks an access to memory that no lock of the caller guards: the scheduler may run another thread here.
#[inline(always)]
pub(crate) fn yield_point() {
    // Any atomic operation lets the scheduler choose; a yield would also put this thread last in line.
    #[cfg(shuttle)]
    shuttle::sync::atomic::AtomicBool::new(false).load(std::sync::atomic::Ordering::SeqCst);
}
