//! Any bytes to a session of the router over a fake route: the same replies, the same requests to the servers, and the
//! same end, wherever the bytes are cut, before the client has logged in and after. The first three bytes are
//! parameters: the lengths of two alternating pieces, and how the client must log in.
#![no_main]

#[path = "../../tests/exchange/exchange.rs"]
mod exchange;

use exchange::{RequiredLogin, run_with_login};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&[one, other, login], input)) = bytes.split_first_chunk() else { return };
    let login = RequiredLogin::from_bits(login);
    assert_eq!(run_with_login(login, input, &[one, other]), run_with_login(login, input, &[]));
});
