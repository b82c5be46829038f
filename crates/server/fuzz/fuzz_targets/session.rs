//! Any bytes to a session over a store: the same replies, and the same end, wherever the bytes are cut and wherever
//! execution pauses. The first three bytes say where: the lengths of two pieces in turns, and the bound of a reply.
#![no_main]

#[path = "../../tests/session/conversation.rs"]
mod conversation;

use conversation::hold;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&[one, other, reply], conversation)) = bytes.split_first_chunk() else { return };
    let whole = hold(conversation, &[], usize::MAX);
    let cut = hold(conversation, &[one, other], 1 + 16 * usize::from(reply));
    assert_eq!(cut, whole);
});
