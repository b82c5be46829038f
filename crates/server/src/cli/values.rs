//! Parses the values of options. An error says what is expected.

use crate::net::udp::amplification::UDP_REPLY_BYTES_MAX;
use lookaside_store::RegionName;

/// The largest `-m`, in megabytes.
pub(super) const MEGABYTES_MAX: u64 = 1 << 24;

pub(super) fn parse_region_name(text: &str) -> Result<RegionName, String> {
    RegionName::new(text).ok_or_else(|| "a name has 1 to 1024 bytes and no control characters".to_string())
}

/// Two servers that are started in different folders with the same relative path have different regions.
pub(super) fn parse_memory_file(text: &str) -> Result<RegionName, String> {
    let path = std::path::absolute(text).map_err(|error| format!("no path: {error}"))?;
    parse_region_name(path.to_str().ok_or("a path is UTF-8")?)
}

pub(super) fn parse_delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        [delimiter] if delimiter.is_ascii_graphic() => Ok(*delimiter),
        _ => Err("a delimiter is one character".to_string()),
    }
}

pub(super) fn parse_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (1.05..=4.0).contains(factor));
    factor.ok_or_else(|| "a growth factor is between 1.05 and 4".to_string())
}

pub(super) fn parse_exponent(text: &str) -> Result<f64, String> {
    let exponent = text.parse().ok().filter(|exponent| (0.0..=4.0).contains(exponent));
    exponent.ok_or_else(|| "an exponent is between 0 and 4".to_string())
}

pub(super) fn parse_megabytes(text: &str) -> Result<u64, String> {
    let megabytes = text.parse().ok().filter(|megabytes| (1..=MEGABYTES_MAX).contains(megabytes));
    megabytes.ok_or_else(|| format!("a number of megabytes, 1 to {MEGABYTES_MAX}, without a suffix, as in 64"))
}

pub(super) fn parse_megabytes_or_zero(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_megabytes(text) }
}

pub(super) fn parse_item_bytes(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(text)?;
    let is_size = (1 << 10..=1 << 30).contains(&bytes);
    is_size.then_some(bytes).ok_or_else(|| "an item size is between 1k and 1024m".to_string())
}

pub(super) fn parse_reply_bytes(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(text)?;
    let is_size = bytes <= UDP_REPLY_BYTES_MAX;
    is_size.then_some(bytes).ok_or_else(|| "a reply by UDP is 128k at most".to_string())
}

fn parse_bytes(text: &str) -> Result<usize, String> {
    let (digits, unit_bytes) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let number: usize =
        digits.parse().map_err(|_| "a number, optionally with the suffix k or m, as in 512k".to_string())?;
    number.checked_mul(unit_bytes).ok_or_else(|| "too large a number".to_string())
}

pub(super) fn parse_seconds_ms(text: &str) -> Result<u32, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds, as in 10 or 0.5".to_string())?;
    let milliseconds = (seconds * 1000.0).round();
    if (0.0..=f64::from(u32::MAX)).contains(&milliseconds) {
        Ok(milliseconds as u32)
    } else {
        Err("seconds are between 0 and 4294967".to_string())
    }
}
