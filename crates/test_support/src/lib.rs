//! An allocator for tests that bound allocations.
//!
//! ```
//! use lookaside_test_support::{CountingAllocator, count_allocations};
//!
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator;
//!
//! assert_eq!(count_allocations(|| drop(vec![0u8; 8])), 1);
//! ```
#![expect(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

static LIVE_BYTES: AtomicIsize = AtomicIsize::new(0);

/// The system's allocator; counts the allocations of each thread and the live bytes of the process. A reallocation
/// counts as an allocation.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

/// Allocations that this thread makes during `work`. Needs [`CountingAllocator`] as the global allocator.
pub fn count_allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// Bytes that the process has allocated and not freed. Needs [`CountingAllocator`] as the global allocator.
pub fn live_bytes() -> isize {
    LIVE_BYTES.load(Relaxed)
}

fn record_allocation(bytes: isize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    LIVE_BYTES.fetch_add(bytes, Relaxed);
}

// SAFETY: every call is passed on to the system's allocator unchanged. The counters are an atomic and a
// constant-initialised cell of this thread without a destructor: neither allocates.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        record_allocation(layout.size() as isize);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: `pointer` came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        record_allocation(size as isize - layout.size() as isize);
        // SAFETY: `pointer` came from `System` with this layout; the caller upholds the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
