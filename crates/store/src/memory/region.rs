//! The one piece of memory in which everything lies that grows: a single mapping, taken at the start and given back at
//! the end. It is anonymous, or a shared segment that outlives the process (§6.4 of the paper). Offsets come in, atomics
//! and byte slices go out; no pointer leaves this file.
//!
//! Beside `segment.rs`, where shared memory comes from, this is the only file of the crate with `unsafe` in it. What its
//! safety rests on:
//!
//! * Nobody outside this process writes to the mapping: `segment.rs` says how that is kept.
//! * Bounds are checked on every call, so nothing outside the mapping can be reached.
//! * Words (headers of chunks, slots of the index) are only ever reached as atomics.
//! * A chunk's payload is written by the thread that has taken the chunk and not yet published it, and by nobody else
//!   until the chunk has been freed and taken again. Whoever reads a payload holds the lock of the item's stripe, which
//!   is needed to publish an item and to free it; what [`Region::bytes`] returns is shown only while that lock is held.
//!
//! The kernel hands out zeroed pages when they are first touched: memory that was never used is not resident.
#![allow(unsafe_code)]

use crate::memory::sysv_shm::Attachment;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// Asks the processor for the cache line in which `value` begins, to write to it: a lock that another core had last is
/// then taken without waiting for that core. Only a hint, and only on x86_64.
#[inline]
pub(crate) fn prefetch_for_writing<T>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: as in `prefetch`; processors without PREFETCHW take it for a plain prefetch or for nothing.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(std::ptr::from_ref(value).cast()) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = value;
}

/// Asks the processor to fetch the cache line in which `value` begins. Only a hint, and only on x86_64.
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE is part of x86_64; a prefetch reads nothing into the program.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = value;
}

/// Smaller mappings gain nothing from huge pages.
#[cfg(all(target_os = "linux", not(miri)))]
const HUGE_PAGE_BYTES_MIN: usize = 32 << 20;

/// The unit in which the system takes memory back: 4 KiB on most machines, up to 64 KiB on others.
#[cfg(all(target_os = "linux", not(miri)))]
fn system_page_bytes() -> usize {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("Linux knows the size of its pages")
}

/// A mapping of fixed size.
pub(crate) struct Region {
    base: NonNull<u8>,
    bytes: usize,
    /// The shared segment that this is; `None`: an anonymous mapping.
    attachment: Option<Attachment>,
}

// SAFETY: the mapping belongs to this value until it is dropped; it is not tied to a thread.
unsafe impl Send for Region {}
// SAFETY: shared access goes through atomics, or follows the rule for payloads at the head of this file.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `bytes` bytes, more than 0.
    pub fn new(bytes: usize) -> std::io::Result<Region> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory that exists.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let base = NonNull::new(address.cast::<u8>()).expect("the kernel maps nothing at address 0");
        let region = Region { base, bytes, attachment: None };
        region.ask_for_huge_pages();
        Ok(region)
    }

    /// A shared segment as a region. It is not zeroed unless it is new.
    pub fn shared(attachment: Attachment) -> Region {
        let region = Region { base: attachment.base(), bytes: attachment.bytes(), attachment: Some(attachment) };
        region.ask_for_huge_pages();
        region
    }

    /// Its size.
    pub fn region_bytes(&self) -> usize {
        self.bytes
    }

    /// The 32-bit word at byte `at`, a multiple of 4.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.bytes);
        // SAFETY: in bounds and aligned, as just checked; the base is aligned to a page. Words are only used as atomics.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// The 64-bit word at byte `at`, a multiple of 8.
    #[inline]
    pub fn long_word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.bytes);
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// The eight 64-bit words of the cache line at byte `at`, a multiple of 64.
    #[inline]
    pub fn line(&self, at: usize) -> &[AtomicU64; 8] {
        assert!(at.is_multiple_of(64) && at + 64 <= self.bytes);
        // SAFETY: as in `word`; an array of atomics is laid out like the atomics one after the other.
        unsafe { &*self.base.as_ptr().add(at).cast::<[AtomicU64; 8]>() }
    }

    /// The four 32-bit words of a header at byte `at`, a multiple of 4.
    #[inline]
    pub fn header(&self, at: usize) -> &[AtomicU32; 4] {
        assert!(at.is_multiple_of(4) && at + 16 <= self.bytes);
        // SAFETY: as in `line`.
        unsafe { &*self.base.as_ptr().add(at).cast::<[AtomicU32; 4]>() }
    }

    /// The payload bytes from `at` on. The caller holds the lock of the stripe whose item they belong to.
    #[inline]
    pub fn bytes(&self, at: usize, bytes: usize) -> &[u8] {
        assert!(at <= self.bytes && bytes <= self.bytes - at);
        // SAFETY: in bounds, as just checked, and always initialized, since the kernel's memory starts zeroed. Nobody writes a
        // published payload, and it stays published while the stripe is locked.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), bytes) }
    }

    /// Writes payload bytes. The caller has taken the chunk that they belong to and not yet published it.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.bytes && bytes.len() <= self.bytes - at);
        // SAFETY: in bounds, as just checked. The chunk belongs to this thread, so nobody else holds a slice of it; the
        // source, if it lies in the region too, is a published item, hence another chunk.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) }
    }

    /// From now on any write to the mapping ends the process.
    pub fn make_read_only(&self) -> std::io::Result<()> {
        // SAFETY: the range is this mapping. Reads go on as before; a write is caught by the processor.
        match unsafe { libc::mprotect(self.base.as_ptr().cast(), self.bytes, libc::PROT_READ) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Asks the processor to fetch the cache line at byte `at`. A hint: an `at` out of bounds does nothing.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        if at < self.bytes {
            // SAFETY: in bounds, and a byte is always initialized.
            prefetch(unsafe { &*self.base.as_ptr().add(at).cast::<AtomicU8>() });
        }
    }

    /// Gives the memory of these bytes back to the system; they read as zeros from then on. The caller holds what lies there,
    /// and nothing of it is published. What is less than a page of the system stays.
    pub fn release(&self, at: usize, bytes: usize) {
        assert!(at <= self.bytes && bytes <= self.bytes - at);
        #[cfg(all(target_os = "linux", not(miri)))]
        if at.is_multiple_of(system_page_bytes()) && bytes.is_multiple_of(system_page_bytes()) {
            let advice = if self.attachment.is_some() { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
            // SAFETY: in bounds, as just checked. Nobody holds a slice of what is not published; whoever looks at words of it
            // without a lock, by a handle that is out of date, sees zeros. That the advice may be refused is fine.
            unsafe { libc::madvise(self.base.as_ptr().add(at).cast(), bytes, advice) };
        }
    }

    /// Takes these bytes of a shared segment out of this process's page tables. Nothing is lost: whoever touches them next has
    /// them back. An anonymous mapping stays as it is.
    pub fn loosen(&self, at: usize, bytes: usize) {
        assert!(at <= self.bytes && bytes <= self.bytes - at);
        #[cfg(all(target_os = "linux", not(miri)))]
        if self.attachment.is_some() && at.is_multiple_of(system_page_bytes()) {
            // SAFETY: in bounds, as just checked. What a shared mapping shows lies in the segment, not in the mapping, so every
            // read and write finds the same contents before and after. That the advice may be refused is fine.
            unsafe { libc::madvise(self.base.as_ptr().add(at).cast(), bytes, libc::MADV_DONTNEED) };
        }
    }

    fn ask_for_huge_pages(&self) {
        #[cfg(all(target_os = "linux", not(miri)))]
        if self.bytes >= HUGE_PAGE_BYTES_MIN {
            // SAFETY: the range is this mapping. The advice changes no contents; that it may be refused is fine.
            unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, libc::MADV_HUGEPAGE) };
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.attachment.is_some() {
            return; // It detaches itself when it is dropped, which comes next.
        }
        // SAFETY: the mapping is this value's own, and every borrow from it has ended.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
