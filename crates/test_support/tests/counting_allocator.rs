//! The allocator counts what it should.

use lookaside_test_support::{CountingAllocator, count_allocations, live_bytes};
use std::hint::black_box;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn allocations_and_live_bytes_are_counted() {
    assert_eq!(count_allocations(|| drop(black_box(vec![0u8; 8]))), 1);
    assert_eq!(count_allocations(|| assert_eq!(black_box([0u8; 8])[0], 0)), 0);
    let grow = || {
        let mut bytes = black_box(Vec::<u8>::with_capacity(1));
        bytes.reserve_exact(100);
        drop(black_box(bytes));
    };
    assert_eq!(count_allocations(grow), 2, "a reallocation is one");
    let before = live_bytes();
    let bytes = black_box(vec![0u8; 1 << 20]);
    assert!(live_bytes() - before >= 1 << 20);
    drop(bytes);
    assert!(live_bytes() - before < 1 << 20);
}
