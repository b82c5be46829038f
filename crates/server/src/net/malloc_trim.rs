//! Memory that slow clients had taken goes back to the system.
//!
//! What is freed in the midst of the allocator's memory stays with the process: behind a storm of slow clients a server
//! would stay as large as it was at the worst moment. Once in a second this looks whether far less is kept for
//! connections than at the last peak, and if so has the allocator (glibc's) return whole pages. A worker that allocates
//! at that moment may wait some milliseconds; one that serves ordinary requests does not allocate.
#![allow(unsafe_code)]

/// So much must have been let go before it is worth the while, in bytes.
const TRIM_BYTES_MIN: u64 = 4 << 20;

/// The peak that has not been given back yet.
#[derive(Debug, Default)]
pub(crate) struct TrimOnPeak {
    peak_bytes: u64,
}

impl TrimOnPeak {
    /// Once in a second: the most that was kept since the last time, and what is kept now.
    pub(crate) fn tick(&mut self, peak_bytes: u64, now_bytes: u64) {
        if self.is_due(peak_bytes, now_bytes) {
            trim();
        }
    }

    fn is_due(&mut self, peak_bytes: u64, now_bytes: u64) -> bool {
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
    // memory that nobody has.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators give memory back by themselves.
#[cfg(not(target_env = "gnu"))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_given_back_once() {
        let mut trim = TrimOnPeak::default();
        assert!(!trim.is_due(100 << 20, 100 << 20), "it is still there");
        assert!(trim.is_due(100 << 20, 1 << 20));
        assert!(!trim.is_due(1 << 20, 0), "that is little");
        assert!(trim.is_due(TRIM_BYTES_MIN, 0), "a peak between two looks");
    }
}
