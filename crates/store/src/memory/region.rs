//! The memory for all that grows: a single mapping, from the start of a store to its end. Address space behind it can
//! be reserved, so that it can grow in place. It is anonymous, or a shared segment that outlives the process (§6.4 of
//! the paper). Callers pass offsets and get atomics and byte slices; no pointer leaves this file.
//!
//! Beside `sysv_shm.rs` this is the only file of the crate with `unsafe`. Its safety rests on these rules:
//!
//! * No other process writes to the mapping (`sysv_shm.rs`).
//! * Bounds are checked on every call, so no access leaves the mapping.
//! * Words (headers of chunks, slots of the index) are only ever accessed as atomics.
//! * A chunk's payload is written by the thread that has allocated the chunk and not yet published it, and by no other
//!   until the chunk was freed and allocated again. A reader of a payload holds the lock of the item's stripe, which is
//!   needed to publish an item and to free it; the slice of [`Region::bytes`] is used only while that lock is held.
//!
//! The kernel allocates zeroed pages when they are first touched: memory that was never used is not resident.
#![expect(unsafe_code, reason = "memory that other processes and threads share, behind checked offsets")]

use crate::memory::sysv_shm::Attachment;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Prefetches the cache line in which `value` begins, for writing: a lock that another core had last is then acquired
/// without waiting for that core. Only a hint, and only on x86_64.
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

/// Prefetches the cache line in which `value` begins. Only a hint, and only on x86_64.
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

/// A new anonymous mapping.
fn map(bytes: usize, protection: libc::c_int) -> std::io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory that exists.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(NonNull::new(address.cast::<u8>()).expect("the kernel maps nothing at address 0"))
}

/// Smaller mappings gain nothing from huge pages.
#[cfg(all(target_os = "linux", not(miri)))]
const HUGE_PAGE_BYTES_MIN: usize = 32 << 20;

/// The system's page size: 4 KiB on most machines, up to 64 KiB on others.
fn system_page_bytes() -> usize {
    // SAFETY: sysconf takes no pointer.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("Linux knows the size of its pages")
}

/// A mapping.
pub(crate) struct Region {
    base: NonNull<u8>,
    /// The bytes that can be used. It only grows, so a check against an old number is stricter.
    bytes: AtomicUsize,
    /// The bytes of address space, of which the rest behind the others can be neither read nor written.
    reserved_bytes: usize,
    /// `None` if the mapping is anonymous.
    attachment: Option<Attachment>,
}

// SAFETY: the mapping belongs to this value until it is dropped; it is not tied to a thread.
unsafe impl Send for Region {}
// SAFETY: shared access goes through atomics, or follows the rule for payloads at the head of this file.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `bytes` bytes, more than 0.
    pub fn new(bytes: usize) -> std::io::Result<Region> {
        let base = map(bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        let region = Region { base, bytes: AtomicUsize::new(bytes), reserved_bytes: bytes, attachment: None };
        region.advise_huge_pages(0, bytes);
        Ok(region)
    }

    /// Maps `bytes` bytes, with address space for `reserved_bytes`, as far as the system gives it. Reserved space takes
    /// no memory, and the system does not count it as committed.
    pub fn with_reserve(bytes: usize, reserved_bytes: usize) -> std::io::Result<Region> {
        let Some(base) = (reserved_bytes > bytes).then(|| map(reserved_bytes, libc::PROT_NONE).ok()).flatten() else {
            return Region::new(bytes);
        };
        let region = Region { base, bytes: AtomicUsize::new(0), reserved_bytes, attachment: None };
        region.grow(bytes)?;
        Ok(region)
    }

    /// Makes more of the reserved space usable: all up to `bytes`. An error if that is more than was reserved, or if
    /// the system does not give it. Not to be called by two threads at once.
    pub fn grow(&self, bytes: usize) -> std::io::Result<()> {
        let before_bytes = self.region_bytes();
        if bytes > self.reserved_bytes {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        if bytes > before_bytes {
            let from = before_bytes - before_bytes % system_page_bytes();
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: the range lies in this mapping. What was usable before stays so.
            if unsafe { libc::mprotect(self.base.as_ptr().add(from).cast(), bytes - from, protection) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
            self.bytes.store(bytes, Relaxed);
            self.advise_huge_pages(before_bytes, bytes - before_bytes);
        }
        Ok(())
    }

    /// A shared segment as a region. It is not zeroed unless it is new.
    pub fn shared(attachment: Attachment) -> Region {
        let (base, reserved_bytes) = (attachment.base(), attachment.bytes());
        let bytes = AtomicUsize::new(reserved_bytes);
        let region = Region { base, bytes, reserved_bytes, attachment: Some(attachment) };
        region.advise_huge_pages(0, reserved_bytes);
        region
    }

    /// The bytes that can be used.
    #[inline]
    pub fn region_bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// The 32-bit word at byte `at`, a multiple of 4.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.region_bytes());
        // SAFETY: in bounds and aligned, as just checked; the base is aligned to a page. Words are only used as
        // atomics.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// The 64-bit word at byte `at`, a multiple of 8.
    #[inline]
    pub fn long_word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.region_bytes());
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// The eight 64-bit words of the cache line at byte `at`, a multiple of 64.
    #[inline]
    pub fn line(&self, at: usize) -> &[AtomicU64; 8] {
        assert!(at.is_multiple_of(64) && at + 64 <= self.region_bytes());
        // SAFETY: as in `word`; an array of atomics is laid out like the atomics one after the other.
        unsafe { &*self.base.as_ptr().add(at).cast::<[AtomicU64; 8]>() }
    }

    /// The four 32-bit words of a header at byte `at`, a multiple of 4.
    #[inline]
    pub fn header(&self, at: usize) -> &[AtomicU32; 4] {
        assert!(at.is_multiple_of(4) && at + 16 <= self.region_bytes());
        // SAFETY: as in `line`.
        unsafe { &*self.base.as_ptr().add(at).cast::<[AtomicU32; 4]>() }
    }

    /// The payload bytes from `at` on. The caller holds the lock of the stripe whose item they belong to.
    #[inline]
    pub fn bytes(&self, at: usize, bytes: usize) -> &[u8] {
        assert!(at <= self.region_bytes() && bytes <= self.region_bytes() - at);
        // SAFETY: in bounds, as just checked, and always initialized, since the kernel's memory starts zeroed. No
        // thread writes a published payload, and it stays published while the stripe is locked.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), bytes) }
    }

    /// Writes payload bytes. The caller has allocated the chunk that they belong to and not yet published it.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.region_bytes() && bytes.len() <= self.region_bytes() - at);
        // SAFETY: in bounds, as just checked. The chunk belongs to this thread, so no other holds a slice of it; the
        // source, if it lies in the region too, is a published item, hence another chunk.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) }
    }

    /// Maps the region read-only: a write ends the process.
    pub fn make_read_only(&self) -> std::io::Result<()> {
        // SAFETY: the range is this mapping. Reads work as before; the processor catches a write.
        match unsafe { libc::mprotect(self.base.as_ptr().cast(), self.region_bytes(), libc::PROT_READ) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Prefetches the cache line at byte `at`. A hint: an `at` out of bounds does nothing.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        if at < self.region_bytes() {
            // SAFETY: in bounds, and a byte is always initialized.
            prefetch(unsafe { &*self.base.as_ptr().add(at).cast::<AtomicU8>() });
        }
    }

    /// Returns the memory of these bytes to the system; they read as zeros from then on. They belong to the caller, and
    /// nothing in them is published. Parts of a system page stay.
    pub fn discard(&self, at: usize, bytes: usize) {
        assert!(at <= self.region_bytes() && bytes <= self.region_bytes() - at);
        #[cfg(all(target_os = "linux", not(miri)))]
        if at.is_multiple_of(system_page_bytes()) && bytes.is_multiple_of(system_page_bytes()) {
            let advice = if self.attachment.is_some() { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
            // SAFETY: in bounds, as just checked. No thread holds a slice of what is not published; one that reads
            // words of it without a lock, by a handle that is out of date, reads zeros. That the advice may be refused
            // is fine.
            unsafe { libc::madvise(self.base.as_ptr().add(at).cast(), bytes, advice) };
        }
    }

    /// Removes these bytes of a shared segment from this process's page tables. Nothing is lost: the next access maps
    /// them again. An anonymous mapping stays as it is.
    pub fn drop_page_tables(&self, at: usize, bytes: usize) {
        assert!(at <= self.region_bytes() && bytes <= self.region_bytes() - at);
        #[cfg(all(target_os = "linux", not(miri)))]
        if self.attachment.is_some() && at.is_multiple_of(system_page_bytes()) {
            // SAFETY: in bounds, as just checked. The contents lie in the segment, not in the mapping, so every read
            // and write finds the same contents before and after. That the advice may be refused is fine.
            unsafe { libc::madvise(self.base.as_ptr().add(at).cast(), bytes, libc::MADV_DONTNEED) };
        }
    }

    fn advise_huge_pages(&self, at: usize, bytes: usize) {
        #[cfg(all(target_os = "linux", not(miri)))]
        if bytes >= HUGE_PAGE_BYTES_MIN {
            // SAFETY: the range lies in this mapping. The advice changes no contents; that it may be refused is fine.
            unsafe { libc::madvise(self.base.as_ptr().add(at).cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        #[cfg(not(all(target_os = "linux", not(miri))))]
        let _ = (at, bytes);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.attachment.is_some() {
            return; // The attachment detaches itself when it is dropped, which comes next.
        }
        // SAFETY: the mapping is this value's own, and every borrow from it has ended.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.reserved_bytes) };
    }
}
