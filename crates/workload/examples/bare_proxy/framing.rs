//! Where a request and a reply end, and which server a request goes to: all that a bare proxy must know of the bytes.

use memchr::memchr;

/// The bytes of the first request of `input`, which is not empty; `None` if its end has not arrived. Commands are
/// lines, and `set` has a value behind it.
pub(crate) fn request_bytes(input: &[u8]) -> Option<usize> {
    let line = memchr(b'\n', input)? + 1;
    let value = if input[0] == b's' { last_number(&input[..line]) + b"\r\n".len() } else { 0 };
    Some(line + value).filter(|&bytes| bytes <= input.len())
}

/// The bytes of the first reply of `input`, which is not empty; `None` if its end has not arrived. Replies are lines,
/// and a value has its bytes and `END` behind it.
pub(crate) fn reply_bytes(input: &[u8]) -> Option<usize> {
    let line = memchr(b'\n', input)? + 1;
    let value = if input.starts_with(b"VALUE") { last_number(&input[..line]) + b"\r\nEND\r\n".len() } else { 0 };
    Some(line + value).filter(|&bytes| bytes <= input.len())
}

/// The number at the end of a line: the bytes of a value.
fn last_number(line: &[u8]) -> usize {
    let line = line.trim_ascii_end();
    let digits = line.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    line[line.len() - digits..].iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0'))
}

/// The server of a request, by FNV-1a of its key.
pub(crate) fn server_of(request: &[u8], servers: usize) -> usize {
    let key = request.split(u8::is_ascii_whitespace).nth(1).unwrap_or_default();
    let hash = key.iter().fold(0x811c_9dc5_u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash as usize % servers
}
