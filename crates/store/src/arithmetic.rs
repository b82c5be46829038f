//! Decimal values that `incr` and `decr` count with.
//!
//! As in memcached a number never gets shorter: what it loses in digits is filled up with spaces, which count as part
//! of the value and are skipped when it is read again. Unlike memcached, text behind the number is not ignored: such
//! a value is not a number.

use lookaside_protocol::Direction;

/// The number, if `value` is digits with nothing but spaces behind them, and fits 64 bits.
pub(crate) fn parse(value: &[u8]) -> Option<u64> {
    let digits_end = value.iter().rposition(|&byte| byte != b' ')? + 1;
    value[..digits_end].iter().try_fold(0u64, |number, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Up wraps around, down stops at 0.
pub(crate) fn apply(number: u64, direction: Direction, delta: u64) -> u64 {
    match direction {
        Direction::Up => number.wrapping_add(delta),
        Direction::Down => number.saturating_sub(delta),
    }
}

/// The number as a value of at least `value_bytes_min` bytes.
pub(crate) fn render(number: u64, value_bytes_min: usize) -> Vec<u8> {
    format!("{number:<value_bytes_min$}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_decimal_numbers_count() {
        assert_eq!(parse(b"0"), Some(0));
        assert_eq!(parse(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse(b"99  "), Some(99));
        for bad in [&b""[..], b"  ", b"18446744073709551616", b"-1", b"+1", b"1a", b" 1", b"1 2"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_number_keeps_its_length() {
        assert_eq!(render(apply(10, Direction::Down, 1), 2), b"9 ");
        assert_eq!(render(apply(99, Direction::Up, 1), 2), b"100");
        assert_eq!(apply(u64::MAX, Direction::Up, 2), 1);
        assert_eq!(apply(1, Direction::Down, 2), 0);
    }
}
