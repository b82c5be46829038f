//! Any bytes to a session over a store: the same replies, and the same end, wherever the bytes are cut and wherever
//! execution pauses. The first three bytes are parameters: the lengths of two alternating pieces, and the bound of a reply.
#![no_main]

#[path = "../../tests/session/exchange.rs"]
mod exchange;

use exchange::run;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&[one, other, reply], input)) = bytes.split_first_chunk() else { return };
    let whole = run(input, &[], usize::MAX);
    let cut = run(input, &[one, other], 1 + 16 * usize::from(reply));
    assert_eq!(cut, whole);
});
