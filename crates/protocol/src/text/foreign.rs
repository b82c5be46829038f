//! Bytes of other protocols at a memcached port: HTTP requests and TLS handshakes. Only lines without a known verb are
//! checked, so a valid request costs nothing; a `lease-get` costs a comparison of eight bytes.
//!
//! Any web page can make a browser send a request to a port on loopback, with lines that the page chooses in its body:
//!
//! ```text
//! POST / HTTP/1.1                                  the first line: no known verb, the last word begins with HTTP/
//! Host: 127.0.0.1:11211                            no known verb, ends with a colon
//!                                                  ...
//! set key 0 0 1                                    must never be executed
//! ```
//!
//! A page that has bound its own name to this address can choose the method too, and so a first line with a known verb
//! (`gets / HTTP/1.1`). Then `Host:`, which every browser sends next, ends the connection. The first line itself
//! changes nothing, because `/...` and `HTTP/1.1` are valid only as keys, and a page cannot send `get` and `delete` in
//! lower case. `lease-get` would take leases for both words, so it is closed by [`ends_like_request_line`].
//!
//! A TLS handshake carries bytes that the other side chose earlier, in session identifiers and tickets. A server that
//! redirects its TLS clients to this port could put commands into them.

/// Whether `buffer` begins with a TLS handshake, or with a whole line of HTTP. For servers that know few verbs.
///
/// ```
/// use lookaside_protocol::text::is_foreign;
/// assert!(is_foreign(b"GET / HTTP/1.1\r\n"));
/// assert!(!is_foreign(b"stats\r\n"));
/// ```
pub fn is_foreign(buffer: &[u8]) -> bool {
    let first_line = memchr::memchr(b'\n', buffer).map(|end| buffer[..end].trim_ascii_end());
    is_tls(buffer) || first_line.is_some_and(is_http)
}

/// Whether a line without a known verb is the first line of an HTTP request, or a header.
pub(super) fn is_http(line: &[u8]) -> bool {
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    let last = words.next_back().unwrap_or(first);
    first.ends_with(b":") || last.starts_with(b"HTTP/")
}

/// Whether a line ends with the version of HTTP that a browser writes.
pub(super) fn ends_like_request_line(line: &[u8]) -> bool {
    matches!(line, [.., b' ', b'H', b'T', b'T', b'P', b'/', b'1', b'.', _])
}

/// Whether the bytes begin like a TLS record with a handshake: the content type, and the major version.
pub(super) fn is_tls(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x16, 0x03])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_headers_are_http() {
        for line in ["GET / HTTP/1.0", "POST /x HTTP/1.1", "PRI * HTTP/2.0", "HTTP/1.1", "x  HTTP/", "Host: a", "a:"] {
            assert!(is_http(line.as_bytes()), "{line}");
        }
        for line in ["", "GET /", "GET / http/1.1", "HTTP/1.1 200 OK", "Host a:", "nonsense", "a:b c"] {
            assert!(!is_http(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn only_a_handshake_is_tls() {
        assert!(is_tls(b"\x16\x03\x01\x02\x00\x01") && is_tls(b"\x16\x03"));
        for bytes in [&b""[..], b"\x16", b"\x17\x03\x03", b"get \x16\x03"] {
            assert!(!is_tls(bytes), "{bytes:?}");
        }
    }
}
