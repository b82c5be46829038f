//! The items of a load: their keys, and the one value that each key has.
//!
//! ```text
//! key     "load:" and zeros | item number, 8 hexadecimal digits
//! value   item number, 8 hexadecimal digits | bytes of a random pattern, from an offset that depends on the item
//! ```
//!
//! All are computed from the item's number, so that every byte of a reply can be checked without a table of what was
//! stored. A value is the same whenever it is set. It contains every byte value, line ends among them. A value of fewer
//! than 8 bytes has the last digits of the number.

use fastrand::Rng;
use std::ops::RangeInclusive;

/// The digits of an item's number.
pub const DIGITS: usize = 8;

/// The shortest and the longest key, in bytes; the longest is memcached's limit.
pub const KEY_BYTES: RangeInclusive<usize> = DIGITS..=250;

/// Offsets into the pattern are below this power of two.
const OFFSETS: u32 = 4_096;
const PATTERN_SEED: u64 = 1;

const HEX: [[u8; 2]; 256] = {
    const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [HEX_DIGITS[byte >> 4], HEX_DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
};

/// The keys and values of a load.
#[derive(Clone, Debug)]
pub struct Items {
    count: u32,
    key_prefix: Vec<u8>,
    value_bytes: RangeInclusive<u32>,
    pattern: Vec<u8>,
}

impl Items {
    /// `count` items with keys of `key_bytes` ([`KEY_BYTES`]) and values of `value_bytes`, at least 1, evenly
    /// distributed over the items.
    pub fn new(count: u32, key_bytes: usize, value_bytes: RangeInclusive<u32>) -> Items {
        assert!(KEY_BYTES.contains(&key_bytes) && *value_bytes.start() > 0 && !value_bytes.is_empty());
        let key_prefix = b"load:".iter().copied().chain(std::iter::repeat(b'0')).take(key_bytes - DIGITS).collect();
        let mut pattern = vec![0; OFFSETS as usize + *value_bytes.end() as usize];
        Rng::with_seed(PATTERN_SEED).fill(&mut pattern);
        Items { count, key_prefix, value_bytes, pattern }
    }

    /// The number of items; they are numbered from 0.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The length of every key.
    pub fn key_bytes(&self) -> usize {
        self.key_prefix.len() + DIGITS
    }

    /// The length of the longest value.
    pub fn value_bytes_max(&self) -> usize {
        *self.value_bytes.end() as usize
    }

    /// Whether all values have the same length.
    pub fn has_fixed_value_bytes(&self) -> bool {
        self.value_bytes.start() == self.value_bytes.end()
    }

    /// The length of the item's value.
    pub fn value_bytes(&self, item: u32) -> usize {
        let (&low, &high) = (self.value_bytes.start(), self.value_bytes.end());
        let span = u64::from(high - low) + 1;
        // The upper half of the product: the share of the hash, of the span.
        low as usize + ((u64::from(hash(item)) * span) >> 32) as usize
    }

    /// Appends the item's key.
    pub fn write_key(&self, item: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.key_prefix);
        out.extend_from_slice(&digits(item));
    }

    /// The item with this key; `None` if no item has it.
    pub fn item_of(&self, key: &[u8]) -> Option<u32> {
        let number = key.strip_prefix(&self.key_prefix[..])?;
        let item = u32::from_str_radix(std::str::from_utf8(number).ok()?, 16).ok()?;
        (digits(item) == number && item < self.count).then_some(item)
    }

    /// Appends the item's value.
    pub fn write_value(&self, item: u32, out: &mut Vec<u8>) {
        let digits = digits(item);
        let (number, pattern) = self.value_parts(&digits, item);
        out.extend_from_slice(number);
        out.extend_from_slice(pattern);
    }

    /// Whether `value` is the item's value.
    pub fn has_value(&self, item: u32, value: &[u8]) -> bool {
        let digits = digits(item);
        let (number, pattern) = self.value_parts(&digits, item);
        value.len() == number.len() + pattern.len() && value.starts_with(number) && &value[number.len()..] == pattern
    }

    fn value_parts<'a>(&'a self, digits: &'a [u8; DIGITS], item: u32) -> (&'a [u8], &'a [u8]) {
        let bytes = self.value_bytes(item);
        let number = &digits[DIGITS.saturating_sub(bytes)..];
        let offset = (hash(item) % OFFSETS) as usize;
        (number, &self.pattern[offset..offset + bytes - number.len()])
    }
}

/// The item's number as it is written.
pub fn digits(item: u32) -> [u8; DIGITS] {
    let mut digits = [0; DIGITS];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(item.to_be_bytes()) {
        pair.copy_from_slice(&HEX[byte as usize]);
    }
    digits
}

/// Spreads consecutive numbers: Fibonacci hashing.
fn hash(item: u32) -> u32 {
    item.wrapping_mul(0x9e37_79b9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(items: &Items, item: u32) -> Vec<u8> {
        let mut value = Vec::new();
        items.write_value(item, &mut value);
        value
    }

    #[test]
    fn key_has_its_length_and_leads_back_to_its_item() {
        for key_bytes in [8, 12, 13, 24, 250] {
            let items = Items::new(1_000_000, key_bytes, 1..=1);
            for item in [0, 1, 0xabcde, 999_999] {
                let mut key = Vec::new();
                items.write_key(item, &mut key);
                assert_eq!((key.len(), items.item_of(&key)), (key_bytes, Some(item)));
                key[key_bytes - 1] = b'x';
                assert_eq!(items.item_of(&key), None);
            }
        }
        let items = Items::new(10, 13, 1..=1);
        assert_eq!(items.item_of(b"load:0000000a"), None, "there are ten items");
        assert_eq!(items.item_of(b"load:00000009"), Some(9));
        assert_eq!(items.item_of(b"load:+0000009"), None);
        assert_eq!(items.item_of(b"load:9"), None);
    }

    #[test]
    fn value_is_the_items_alone() {
        let items = Items::new(1_000, 24, 32..=32);
        for item in 0..1_000 {
            let value = value(&items, item);
            assert!(items.has_value(item, &value));
            assert!(!items.has_value((item + 1) % 1_000, &value));
            assert!(!items.has_value(item, &value[..31]));
        }
    }

    #[test]
    fn value_with_one_wrong_byte_is_another() {
        let items = Items::new(10, 24, 100..=100);
        for at in 0..100 {
            let mut wrong = value(&items, 3);
            wrong[at] ^= 1;
            assert!(!items.has_value(3, &wrong), "byte {at}");
        }
    }

    #[test]
    fn sizes_are_spread_over_the_range_and_include_its_ends() {
        let items = Items::new(10_000, 24, 5..=14);
        let mut counts = [0; 10];
        (0..10_000).for_each(|item| counts[items.value_bytes(item) - 5] += 1);
        assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
        assert!((0..10_000).all(|item| value(&items, item).len() == items.value_bytes(item)));
        assert!(items.has_value(7, &value(&items, 7)));
    }
}
