//! `stats sizes`: a histogram of item sizes, for choosing slab classes (`-f`, `-n`).
//!
//! The size of an item includes its header and key, as in `lru_crawler metadump`. As in memcached, it is rounded up to
//! [`STEP_BYTES`] up to [`FINE_BYTES_MAX`]; above that, to whole megabytes. So there are at most about 34,000 lines.
//!
//! memcached counts at every store. Here items are counted when `stats sizes` is called, and a store costs nothing.

use crate::session::crawl::append;
use std::collections::BTreeMap;

const STEP_BYTES: usize = 32;

/// Up to this size the unit is [`STEP_BYTES`], beyond it this size.
const FINE_BYTES_MAX: usize = 1 << 20;

/// The items that a crawl has counted, by their rounded size.
#[derive(Debug, Default)]
pub(super) struct Sizes(BTreeMap<usize, u64>);

impl Sizes {
    pub(super) fn count(&mut self, item_bytes: usize) {
        let unit_bytes = if item_bytes <= FINE_BYTES_MAX { STEP_BYTES } else { FINE_BYTES_MAX };
        *self.0.entry(item_bytes.next_multiple_of(unit_bytes)).or_default() += 1;
    }

    pub(super) fn render(&self, out: &mut Vec<u8>) {
        for (size, items) in &self.0 {
            append(out, format_args!("STAT {size} {items}\r\n"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_and_bounded() {
        let (mut sizes, mut out) = (Sizes::default(), Vec::new());
        for bytes in [1, 32, 33, 1 << 20, (1 << 20) + 1, 2 << 20, 3_000_000] {
            sizes.count(bytes);
        }
        sizes.render(&mut out);
        assert_eq!(out, b"STAT 32 2\r\nSTAT 64 1\r\nSTAT 1048576 1\r\nSTAT 2097152 2\r\nSTAT 3145728 1\r\n");
    }
}
