//! Any bytes to a session over a store: the same replies, and the same end, wherever the bytes are cut and wherever
//! execution pauses, before the client has logged in and after. The first four bytes are parameters: the lengths of two
//! alternating pieces, the bound of a reply, and how the client must log in.
#![no_main]

#[path = "../../tests/session/exchange.rs"]
mod exchange;

use exchange::{RequiredLogin, run_with_login};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&[one, other, reply, login], input)) = bytes.split_first_chunk() else { return };
    let login = RequiredLogin::ALL[usize::from(login) % RequiredLogin::ALL.len()];
    let whole = run_with_login(login, input, &[], usize::MAX);
    let cut = run_with_login(login, input, &[one, other], 1 + 16 * usize::from(reply));
    assert_eq!(cut, whole);
});
