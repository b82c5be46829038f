//! Locks that ignore poisoning.
//!
//! Release builds abort on a panic, so no lock is poisoned there. In debug builds a thread may panic while it holds
//! one; the data under these locks is consistent between any two statements, so the other threads can go on.

use std::fmt::{self, Debug};
use std::sync::{MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// [`std::sync::Mutex`] without poisoning.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A mutex over `value`.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    /// The value, without the mutex.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock if it is free; `None` if it is held.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value: a `&mut` needs no lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
}

impl<T: ?Sized + Debug> Debug for Mutex<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(&self.0, formatter)
    }
}

/// [`std::sync::RwLock`] without poisoning.
#[derive(Default)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// A lock over `value`.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(std::sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for shared access.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shared access if no thread writes; `None` if one does.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        match self.0.try_read() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for exclusive access.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized + Debug> Debug for RwLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(&self.0, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn lock_of_a_thread_that_panicked_can_be_taken() {
        let mutex = Arc::new(Mutex::new(1));
        let other = Arc::clone(&mutex);
        let panicked = thread::spawn(move || {
            let mut guard = other.lock();
            *guard = 2;
            panic!("while the lock is held");
        });
        assert!(panicked.join().is_err());
        assert_eq!(*mutex.lock(), 2);
        assert_eq!(mutex.try_lock().as_deref(), Some(&2));
        let mut mutex = Arc::into_inner(mutex).expect("the other thread has ended");
        *mutex.get_mut() = 3;
        assert_eq!(mutex.into_inner(), 3);
    }

    #[test]
    fn rwlock_of_a_thread_that_panicked_can_be_taken() {
        let lock = Arc::new(RwLock::new(1));
        let other = Arc::clone(&lock);
        let panicked = thread::spawn(move || {
            *other.write() = 2;
            let _guard = other.write();
            panic!("while the lock is held");
        });
        assert!(panicked.join().is_err());
        assert_eq!(*lock.read(), 2);
        *lock.write() = 3;
        assert_eq!(*lock.read(), 3);
    }

    #[test]
    fn try_lock_fails_only_while_the_lock_is_held() {
        let mutex = Mutex::from(1);
        let guard = mutex.lock();
        assert!(mutex.try_lock().is_none());
        drop(guard);
        assert!(mutex.try_lock().is_some());
    }
}
