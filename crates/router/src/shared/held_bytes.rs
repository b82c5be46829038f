//! Counts of the bytes that sessions hold, over all threads: of values, of input, of deletes. What may be held is
//! decided by the sessions; a count is only touched by those that hold much.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes of one kind that the sessions of all threads hold.
#[derive(Debug, Default)]
pub(crate) struct HeldBytes(Arc<AtomicUsize>);

/// One session's part of [`HeldBytes`], until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldBytesPermit {
    total_bytes: Arc<AtomicUsize>,
    bytes: usize,
}

impl HeldBytes {
    pub(crate) fn total(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// A permit for `bytes`.
    pub(crate) fn reserve(&self, bytes: usize) -> HeldBytesPermit {
        let mut permit = HeldBytesPermit { total_bytes: self.0.clone(), bytes: 0 };
        permit.resize(bytes);
        permit
    }
}

impl HeldBytesPermit {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts `bytes` instead of those before. Returns what all sessions hold then.
    pub(crate) fn resize(&mut self, bytes: usize) -> usize {
        let change = bytes.wrapping_sub(self.bytes);
        self.bytes = bytes;
        self.total_bytes.fetch_add(change, Relaxed).wrapping_add(change)
    }

    /// As [`HeldBytesPermit::resize`], unless all sessions together would hold more than `total_bytes_max`. A permit
    /// can always shrink.
    pub(crate) fn try_resize(&mut self, bytes: usize, total_bytes_max: usize) -> bool {
        let bytes_before = self.bytes;
        let is_refused = self.resize(bytes) > total_bytes_max && bytes > bytes_before;
        if is_refused {
            self.resize(bytes_before);
        }
        !is_refused
    }
}

impl Drop for HeldBytesPermit {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_add_up_until_they_are_dropped() {
        let held = HeldBytes::default();
        let (mut one, other) = (held.reserve(0), held.reserve(30));
        assert!(one.try_resize(70, 100));
        assert_eq!((one.bytes(), held.total()), (70, 100));
        assert!(!one.try_resize(71, 100));
        assert_eq!((one.bytes(), held.total()), (70, 100), "a refused change counts nothing");
        assert!(one.try_resize(60, 50), "a permit can shrink although the others hold too much");
        drop(other);
        assert_eq!(held.total(), 60);
        assert_eq!(one.resize(10), 10);
        drop(one);
        assert_eq!(held.total(), 0);
    }
}
