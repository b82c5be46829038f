//! Decimal values, for `incr` and `decr`.
//!
//! As in memcached a number never gets shorter: lost digits are replaced by spaces, which are part of the value. A
//! value is parsed as memcached does, by C's rules: white space, a sign, digits, and then the value's end or white
//! space, which any text may follow. So `12 x` is 12, and incrementing turns it into `13  `.
//!
//! Unlike memcached, nothing is read past a value's end.

use lookaside_protocol::Direction;

/// The digits of the largest number.
const DIGITS_MAX: usize = 20;
/// Numbers of up to this many bytes, spaces included, are rendered without allocating.
const SHORT_BYTES: usize = 32;

pub(crate) enum Number {
    Short { bytes: [u8; SHORT_BYTES], length: usize },
    Long(Vec<u8>),
}

/// A parsed number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parsed(u64);

impl Number {
    /// The number at the start of a value.
    pub fn parse(value: &[u8]) -> Option<Parsed> {
        let start = value.iter().position(|&byte| !is_space(byte))?;
        let (is_negative, digits_at) = match value[start] {
            b'-' => (true, start + 1),
            b'+' => (false, start + 1),
            _ => (false, start),
        };
        let digits = value[digits_at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let is_whole = value.get(digits_at + digits).is_none_or(|&byte| is_space(byte));
        if digits == 0 || !is_whole {
            return None;
        }
        let number = value[digits_at..][..digits]
            .iter()
            .try_fold(0u64, |number, &byte| number.checked_mul(10)?.checked_add(u64::from(byte - b'0')))?;
        match is_negative {
            false => Some(Parsed(number)),
            // C takes the negative of an unsigned number; memcached refuses what then looks negative.
            true => Some(Parsed(number.wrapping_neg())).filter(|parsed| parsed.0 <= i64::MAX as u64),
        }
    }

    /// The number as a value of at least `value_bytes_min` bytes.
    pub fn render(number: u64, value_bytes_min: usize) -> Number {
        let mut digits = [0; DIGITS_MAX];
        let mut first = DIGITS_MAX;
        let mut left = number;
        loop {
            first -= 1;
            digits[first] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        let digits = &digits[first..];
        let length = digits.len().max(value_bytes_min);
        if length > SHORT_BYTES {
            let mut bytes = vec![b' '; length];
            bytes[..digits.len()].copy_from_slice(digits);
            return Number::Long(bytes);
        }
        let mut bytes = [b' '; SHORT_BYTES];
        bytes[..digits.len()].copy_from_slice(digits);
        Number::Short { bytes, length }
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Number::Short { bytes, length } => &bytes[..*length],
            Number::Long(bytes) => bytes,
        }
    }
}

impl Parsed {
    /// Increments wrap around, decrements stop at 0.
    pub fn apply(self, direction: Direction, delta: u64) -> u64 {
        match direction {
            Direction::Up => self.0.wrapping_add(delta),
            Direction::Down => self.0.saturating_sub(delta),
        }
    }
}

/// C's `isspace`.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &[u8]) -> Option<u64> {
        Number::parse(value).map(|parsed| parsed.0)
    }

    fn render(number: u64, value_bytes_min: usize) -> Vec<u8> {
        Number::render(number, value_bytes_min).bytes().to_vec()
    }

    #[test]
    fn numbers_are_parsed_by_the_rules_of_c() {
        assert_eq!(parse(b"0"), Some(0));
        assert_eq!(parse(b"18446744073709551615"), Some(u64::MAX));
        for twelve in [&b"12"[..], b"12  ", b"12 x", b" 12", b"\t\n12\r\nabc", b"+12", b"0012"] {
            assert_eq!(parse(twelve), Some(12), "{twelve:?}");
        }
        assert_eq!(parse(b"-0"), Some(0));
        for bad in [&b""[..], b"  ", b"18446744073709551616", b"-1", b"1a", b"+", b"- 1", b"x", b"1.5"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_number_keeps_its_length() {
        assert_eq!(render(Parsed(10).apply(Direction::Down, 1), 2), b"9 ");
        assert_eq!(render(Parsed(99).apply(Direction::Up, 1), 2), b"100");
        assert_eq!(render(7, 40), [&b"7"[..], &[b' '; 39]].concat());
        assert_eq!(render(u64::MAX, 0), b"18446744073709551615");
        assert_eq!(Parsed(u64::MAX).apply(Direction::Up, 2), 1);
        assert_eq!(Parsed(1).apply(Direction::Down, 2), 0);
    }
}
