//! `stats workingset` (the paper sizes pools by sampling operations, §3.2.2; this samples resident items, deviation
//! 006): the number of keys and bytes accessed in the last N seconds, by key prefix and by slab class. The size of a
//! pool follows from it: a larger pool keeps what no client requests, a smaller one evicts what will be requested
//! again.
//!
//! One item in N is sampled, chosen by its key's hash, and counts N times. Only existing items can be counted: where
//! items younger than the time in question are evicted, the true working set is larger.

use super::{append, append_encoded};
use lookaside_store::CrawlItem;
use std::collections::BTreeMap;

/// At most this many prefixes are counted; the others are counted together.
const PREFIXES_MAX: usize = 1_000;
/// The end of a prefix, as with memcached's `-D`.
const DELIMITER: u8 = b':';
/// Keys without a prefix.
const NO_PREFIX: &[u8] = b"(none)";
/// Keys of further prefixes.
const OTHER_PREFIXES: &[u8] = b"(other)";

#[derive(Clone, Copy, Debug, Default)]
struct ItemTotals {
    items: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct WorkingSet {
    sampled_items: u64,
    all: ItemTotals,
    prefixes: BTreeMap<Vec<u8>, ItemTotals>,
    classes: BTreeMap<usize, ItemTotals>,
}

impl WorkingSet {
    /// Counts a sampled item, if it was accessed or stored in the last `seconds`.
    pub(super) fn count(&mut self, item_seen: &CrawlItem<'_>, seconds: u32) {
        self.sampled_items += 1;
        if item_seen.item.last_access_age_s > seconds {
            return;
        }
        let key = item_seen.item.key;
        let prefix = key.iter().position(|&byte| byte == DELIMITER).map_or(NO_PREFIX, |end| &key[..end]);
        let is_known = self.prefixes.contains_key(prefix);
        let prefix = if is_known || self.prefixes.len() < PREFIXES_MAX { prefix } else { OTHER_PREFIXES };
        let bytes = item_seen.item_bytes as u64;
        self.all.add(bytes);
        self.classes.entry(item_seen.slab_class).or_default().add(bytes);
        match self.prefixes.get_mut(prefix) {
            Some(totals) => totals.add(bytes),
            None => self.prefixes.entry(prefix.to_vec()).or_default().add(bytes),
        }
    }

    pub(super) fn render(&self, seconds: u32, one_in: u32, out: &mut Vec<u8>) {
        append(out, format_args!("STAT seconds {seconds}\r\nSTAT one_in {one_in}\r\n"));
        append(out, format_args!("STAT sampled {}\r\n", self.sampled_items));
        self.all.render(one_in, out, |_| ());
        for (prefix, totals) in &self.prefixes {
            totals.render(one_in, out, |out| {
                out.extend_from_slice(b"prefix:");
                match prefix.as_slice() {
                    NO_PREFIX | OTHER_PREFIXES => out.extend_from_slice(prefix),
                    _ => append_encoded(prefix, out),
                }
                out.push(b':');
            });
        }
        for (class, totals) in &self.classes {
            totals.render(one_in, out, |out| append(out, format_args!("class:{class}:")));
        }
    }
}

impl ItemTotals {
    fn add(&mut self, bytes: u64) {
        self.items += 1;
        self.bytes += bytes;
    }

    fn render(&self, one_in: u32, out: &mut Vec<u8>, name: impl Fn(&mut Vec<u8>)) {
        for (unit, sampled) in [("items", self.items), ("bytes", self.bytes)] {
            out.extend_from_slice(b"STAT ");
            name(out);
            append(out, format_args!("{unit} {}\r\n", sampled * u64::from(one_in)));
        }
    }
}
