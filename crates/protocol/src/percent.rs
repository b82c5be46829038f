//! Percent encoding (RFC 3986, section 2.1): keys in `lru_crawler metadump` and `watch`, addresses in file names and
//! keys, passwords in URLs.

use std::fmt::{self, Display, Write as _};

/// Whether RFC 3986 leaves `byte` as it is everywhere: letters, digits, and `-`, `.`, `_`, `~`.
pub fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Formats `bytes` with every byte but the unreserved ones as `%` and two upper-case digits.
///
/// ```
/// assert_eq!(lookaside_protocol::percent::encode(b"a/b 1%").to_string(), "a%2Fb%201%25");
/// ```
pub fn encode(bytes: &[u8]) -> Encoded<'_> {
    encode_except(bytes, is_unreserved)
}

/// As [`encode`], but leaves the bytes as they are for which `is_plain` is true. It must be false for `%`, and for all
/// bytes above 0x7e.
pub fn encode_except(bytes: &[u8], is_plain: fn(u8) -> bool) -> Encoded<'_> {
    Encoded { bytes, is_plain }
}

/// Bytes that are percent-encoded when they are formatted.
#[derive(Clone, Copy)]
pub struct Encoded<'a> {
    bytes: &'a [u8],
    is_plain: fn(u8) -> bool,
}

impl Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes.iter().try_for_each(|&byte| match (self.is_plain)(byte) {
            true => f.write_char(byte.into()),
            false => write!(f, "%{byte:02X}"),
        })
    }
}

impl fmt::Debug for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

/// Replaces every `%` and two digits by the byte they stand for; `None` if two hexadecimal digits do not follow a `%`.
///
/// ```
/// assert_eq!(lookaside_protocol::percent::decode(b"a%2fb%201%25").as_deref(), Some(&b"a/b 1%"[..]));
/// ```
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        bytes.push(match first {
            b'%' => {
                let (&[high, low], after) = rest.split_first_chunk::<2>()?;
                rest = after;
                hex_digit(high)? << 4 | hex_digit(low)?
            }
            byte => byte,
        });
    }
    Some(bytes)
}

/// As [`decode`]; `None` also if the result is not UTF-8.
pub fn decode_text(text: &str) -> Option<String> {
    String::from_utf8(decode(text.as_bytes())?).ok()
}

fn hex_digit(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(encode(&bytes).to_string().as_bytes()), Some(bytes.clone()));
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"%,()".contains(&byte);
        let text = encode_except(&bytes, is_plain).to_string();
        assert!(text.bytes().all(|byte| byte.is_ascii_graphic()) && !text.contains([',', '(', ')']));
        assert_eq!(decode(text.as_bytes()), Some(bytes));
    }

    #[test]
    fn text_without_two_digits_after_a_percent_sign_is_refused() {
        for text in ["%", "%4", "a%", "%g0", "%0g", "%+1", "% 1", "%4é"] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
            assert_eq!(decode_text(text), None, "{text}");
        }
        assert_eq!(decode_text("%FF"), None, "not UTF-8");
        assert_eq!(decode_text("schl%C3%BCssel"), Some("schlüssel".to_owned()));
    }
}
