//! A hint to the processor: this memory will be read soon. Serves a get: `Reader::prefetch_*` before a batch is looked up.
//!
//! The only `unsafe` of this crate. Absent on other processors than x86-64, where the hint is left out.
#![allow(unsafe_code)]

/// The unit in which memory comes to the processor, in bytes.
pub(crate) const LINE_BYTES: usize = 64;

/// Asks for the line that `place` lies in, and does not wait for it.
#[inline(always)]
pub(crate) fn line_of<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching reads nothing the program could see and faults on no address; `place` is a valid one besides.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
