//! Any bytes to a session of the router over a fake route: the same replies, the same requests to the servers, and the
//! same end, wherever the bytes are cut. The first two bytes are parameters: the lengths of two alternating pieces.
#![no_main]

#[path = "../../tests/exchange/exchange.rs"]
mod exchange;

use exchange::run;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&[one, other], input)) = bytes.split_first_chunk() else { return };
    assert_eq!(run(input, &[one, other]), run(input, &[]));
});
