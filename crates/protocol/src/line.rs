//! Splits a buffer into lines, and a line into tokens, for all parsers of the text and meta protocols.
//!
//! A line ends with `\n`; a `\r` before it belongs to the end. Tokens are separated by one or more spaces. Numbers are
//! decimal, without `+`, blanks or overflow.

/// The front of a buffer, up to the end of its first line.
pub(crate) enum FirstLine<'a> {
    /// A line.
    Whole {
        /// Without its end.
        line: &'a [u8],
        /// With its end.
        consumed: usize,
    },
    /// The buffer holds no line end yet.
    Incomplete,
    /// No line end within the limit.
    TooLong,
}

/// The limit counts all bytes but the line feed, and holds wherever the bytes are cut.
pub(crate) fn split_first_line(buffer: &[u8], line_bytes_max: usize) -> FirstLine<'_> {
    let window = &buffer[..buffer.len().min(line_bytes_max.saturating_add(1))];
    match memchr::memchr(b'\n', window) {
        Some(end) => {
            let line = if end > 0 && window[end - 1] == b'\r' { &window[..end - 1] } else { &window[..end] };
            FirstLine::Whole { line, consumed: end + 1 }
        }
        None if buffer.len() > line_bytes_max => FirstLine::TooLong,
        None => FirstLine::Incomplete,
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens<'a>(pub(crate) &'a [u8]);

impl<'a> Tokens<'a> {
    /// The next token; `None` at the end of the line.
    #[inline]
    pub(crate) fn token(&mut self) -> Option<&'a [u8]> {
        while let [b' ', rest @ ..] = self.0 {
            self.0 = rest;
        }
        if self.0.is_empty() {
            return None;
        }
        let (token, rest) = self.0.split_at(next_space(self.0));
        self.0 = rest;
        Some(token)
    }

    /// The next token as an unsigned number; `None` if it is not one, and then it is skipped. One pass over its bytes:
    /// every `VALUE` line has numbers.
    pub(crate) fn unsigned(&mut self) -> Option<u64> {
        while let [b' ', rest @ ..] = self.0 {
            self.0 = rest;
        }
        match leading_number(self.0) {
            Some((number, rest @ ([] | [b' ', ..]))) => {
                self.0 = rest;
                Some(number)
            }
            _ => {
                self.token();
                None
            }
        }
    }

    pub(crate) fn flags(&mut self) -> Option<u32> {
        self.unsigned().and_then(|flags| u32::try_from(flags).ok())
    }
}

/// The index of the first space, or the length. Keys are short: an inlined loop of eight bytes per step is faster
/// than a search made for long texts.
#[inline]
pub(crate) fn next_space(bytes: &[u8]) -> usize {
    const SPACES: u64 = u64::from_ne_bytes([b' '; 8]);
    const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    let (mut at, mut rest) = (0, bytes);
    while let Some((word, behind)) = rest.split_first_chunk::<8>() {
        // After the exclusive or, a space is a zero byte. The lowest zero byte is marked exactly; marks above it may be
        // false and are ignored.
        let word = u64::from_le_bytes(*word) ^ SPACES;
        let zero = word.wrapping_sub(LOW) & !word & HIGH;
        if zero != 0 {
            return at + (zero.trailing_zeros() / 8) as usize;
        }
        at += 8;
        rest = behind;
    }
    at + rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len())
}

/// The decimal number at the start of `bytes`, and the rest; `None` without a digit, or on overflow. Every `VALUE` line
/// has two numbers, and flags may have ten digits: the first 16 digits are parsed eight at a time.
#[inline]
pub(crate) fn leading_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    const POWERS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
    let (mut number, mut rest) = (0u64, bytes);
    for _ in 0..2 {
        let Some((word, behind)) = rest.split_first_chunk::<8>() else { break };
        let (value, digits) = leading_digits(u64::from_le_bytes(*word));
        number = number * POWERS[digits] + value;
        if digits < 8 {
            rest = &rest[digits..];
            return (rest.len() < bytes.len()).then_some((number, rest));
        }
        rest = behind;
    }
    while let [digit @ b'0'..=b'9', behind @ ..] = rest {
        number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
        rest = behind;
    }
    (rest.len() < bytes.len()).then_some((number, rest))
}

/// The number that the first bytes of a little-endian word are, and how many digits they are.
#[inline]
fn leading_digits(word: u64) -> (u64, usize) {
    const ZEROS: u64 = u64::from_ne_bytes([b'0'; 8]);
    const LOW_BITS: u64 = u64::from_ne_bytes([0x7f; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    // A digit is 0 to 9 after the exclusive or; no other byte is. The sum has the high bit of each byte that is above
    // 9, without a carry into the next one.
    let values = word ^ ZEROS;
    let others = (((values & LOW_BITS) + u64::from_ne_bytes([0x76; 8])) | values) & HIGH;
    let digits = (others.trailing_zeros() / 8) as usize;
    if digits == 0 {
        return (0, 0);
    }
    // The digits move to the high bytes, so that zeros are in front of them. Then pairs of digits become numbers, pairs
    // of these, and both halves.
    let values = values << (64 - 8 * digits);
    let pairs = values.wrapping_mul(10 << 8 | 1) >> 8;
    let fours = (pairs & 0x00ff_00ff_00ff_00ff).wrapping_mul(100 << 16 | 1) >> 16;
    let eight = (fours & 0x0000_ffff_0000_ffff).wrapping_mul(10_000 << 32 | 1) >> 32;
    (eight, digits)
}

/// Parses an unsigned decimal number; `None` if `digits` is not one, or on overflow.
pub(crate) fn unsigned(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut number = 0u64;
    for &digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(number)
}

/// Parses a decimal number with an optional minus; `None` if `digits` is not one, or on overflow.
pub(crate) fn signed(digits: &[u8]) -> Option<i64> {
    match digits.strip_prefix(b"-") {
        Some(digits) => 0i64.checked_sub_unsigned(unsigned(digits)?),
        None => i64::try_from(unsigned(digits)?).ok(),
    }
}

pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] | [rest @ .., b' '] = bytes {
        bytes = rest;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_are_found_at_every_offset_and_with_every_neighbour() {
        for length in 0..40 {
            for at in 0..length {
                // '!' is the byte whose subtraction could borrow from a space below it.
                for filler in [b'!', b'a', 0x1f, 0x00, 0x80, 0xff, 0xa0] {
                    let mut bytes = vec![filler; length];
                    bytes[at] = b' ';
                    assert_eq!(next_space(&bytes), at, "length {length}, filler {filler:#x}");
                }
            }
            assert_eq!(next_space(&vec![b'!'; length]), length);
        }
    }

    #[test]
    fn numbers_are_plain_decimal_and_fit() {
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(signed(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(signed(b"9223372036854775807"), Some(i64::MAX));
        for bad in [&b""[..], b"+1", b" 1", b"1 ", b"1x", b"18446744073709551616", b"-", b"0x1", b"\xff"] {
            assert_eq!(unsigned(bad), None, "{bad:?}");
        }
        assert_eq!(signed(b"9223372036854775808"), None);
        assert_eq!(signed(b"--1"), None);
    }

    #[test]
    fn token_is_a_number_only_as_a_whole() {
        let mut tokens = Tokens(b"  12 0 18446744073709551615 7");
        let numbers = std::iter::from_fn(|| tokens.unsigned()).collect::<Vec<_>>();
        assert_eq!(numbers, [12, 0, u64::MAX, 7]);
        for bad in [&b""[..], b"  ", b"x", b"1x", b"1\r", b"-1", b"+1", b"18446744073709551616 1", b" \xff"] {
            assert_eq!(Tokens(bad).unsigned(), None, "{bad:?}");
        }
        let mut tokens = Tokens(b" 1x 99999999999999999999 -3 4");
        let numbers = [(); 4].map(|()| tokens.unsigned());
        assert_eq!(numbers, [None, None, None, Some(4)], "a token that is not a number is skipped");
    }

    #[test]
    fn leading_numbers_are_those_of_their_digits_whatever_follows() {
        let powers = (0..20).map(|exponent| 10u64.pow(exponent));
        for number in powers.flat_map(|power| [power - 1, power, power + 1]).chain([0, 12_345_678_901_234, u64::MAX]) {
            // Bytes beside the digits, and those that the arithmetic could take for digits.
            for follow in ["", " ", " 1", "/", ":", "\0", "\u{80}", "\r\nabcdefghijk", "p", "\u{7f}0"] {
                let text = format!("{number}{follow}");
                assert_eq!(leading_number(text.as_bytes()), Some((number, follow.as_bytes())), "{text:?}");
                let padded = format!("000{text}");
                assert_eq!(leading_number(padded.as_bytes()), Some((number, follow.as_bytes())), "{padded:?}");
            }
        }
        for byte in (0..=u8::MAX).filter(|byte| !byte.is_ascii_digit()) {
            for at in 0..20 {
                let mut bytes = [b'1'; 24];
                bytes[at] = byte;
                let expected = unsigned(&bytes[..at]).map(|number| (number, &bytes[at..]));
                assert_eq!(leading_number(&bytes), expected, "{byte:#x} at {at}");
            }
        }
        assert_eq!(leading_number(b"18446744073709551616 "), None);
        assert_eq!(leading_number(b"99999999999999999999999999"), None);
    }

    #[test]
    fn line_ends_with_a_line_feed_and_its_limit_does_not_depend_on_cuts() {
        assert!(matches!(split_first_line(b"ab\r\ncd", 9), FirstLine::Whole { line: b"ab", consumed: 4 }));
        assert!(matches!(split_first_line(b"ab\ncd", 9), FirstLine::Whole { line: b"ab", consumed: 3 }));
        assert!(matches!(split_first_line(b"\n", 9), FirstLine::Whole { line: b"", consumed: 1 }));
        assert!(matches!(split_first_line(b"abc", 3), FirstLine::Incomplete));
        assert!(matches!(split_first_line(b"abcd", 3), FirstLine::TooLong));
        assert!(matches!(split_first_line(b"abcd\n", 3), FirstLine::TooLong));
        assert!(matches!(split_first_line(b"abc\n", 3), FirstLine::Whole { .. }));
    }
}
