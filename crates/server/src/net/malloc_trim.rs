//! Returns freed memory to the system after a peak of buffered bytes.
//!
//! Memory that is freed in the middle of the allocator's memory stays with the process: after a burst of slow clients
//! the process would keep its peak size. Once a second this checks whether connections buffer far less than at the last
//! peak; if so, glibc's allocator returns whole pages. A worker that allocates at that moment may wait some
//! milliseconds; a worker that serves ordinary requests does not allocate.
#![allow(unsafe_code, reason = "malloc_trim has no safe wrapper")]

/// Memory is returned only if at least this many bytes have been freed.
const TRIM_BYTES_MIN: u64 = 4 << 20;

/// The peak since memory was last returned.
#[derive(Debug, Default)]
pub(crate) struct TrimOnPeak {
    peak_bytes: u64,
}

impl TrimOnPeak {
    /// Called once a second with the peak since the last call and the present number of buffered bytes.
    pub(crate) fn tick(&mut self, peak_bytes: u64, now_bytes: u64) {
        if self.take_due_peak(peak_bytes, now_bytes) {
            trim();
        }
    }

    /// Whether memory should be returned now; if so, the next peak is measured from here.
    fn take_due_peak(&mut self, peak_bytes: u64, now_bytes: u64) -> bool {
        self.peak_bytes = self.peak_bytes.max(peak_bytes);
        let is_due = self.peak_bytes >= now_bytes + TRIM_BYTES_MIN;
        if is_due {
            self.peak_bytes = now_bytes;
        }
        is_due
    }
}

#[cfg(target_env = "gnu")]
fn trim() {
    // SAFETY: malloc_trim may be called by any thread at any time; it takes the allocator's own locks and touches only
    // memory that is free.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators return memory by themselves.
#[cfg(not(target_env = "gnu"))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_once_after_a_peak() {
        let mut trim = TrimOnPeak::default();
        assert!(!trim.take_due_peak(100 << 20, 100 << 20), "the bytes are still buffered");
        assert!(trim.take_due_peak(100 << 20, 1 << 20));
        assert!(!trim.take_due_peak(1 << 20, 0), "that is too little");
        assert!(trim.take_due_peak(TRIM_BYTES_MIN, 0), "a peak between two calls");
    }
}
