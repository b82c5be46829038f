//! Commands that crawl all keys, as memcached's crawler does: `lru_crawler metadump` and `mgdump`, `stats cachedump`,
//! `stats sizes`, and `stats workingset` (§3.2.2 of the paper). They serve operators, not requests. `lru_crawler crawl`
//! lists nothing and goes on without its client ([`expiry`]).
//!
//! A crawl proceeds in steps of [`BUCKETS_PER_STEP`] buckets of the store's index. Between two steps the worker serves
//! its other connections, and the crawl waits until its socket has taken the output. So a crawl delays no connection
//! for long, and a client that does not read delays only its own crawl. Between steps the state is in the connection's
//! session, and is dropped with it.
//!
//! memcached crawls class by class. Here every crawl follows the index, and classes only filter.

pub(crate) mod expiry;
mod sizes;
mod working_set;

use crate::session::context::SessionContext;
use crate::session::reply;
use lookaside_protocol::percent;
use lookaside_store::{Crawl, CrawlItem, Now, Store};
use sizes::Sizes;
use std::io::Write;
use working_set::WorkingSet;

/// Buckets, of up to eight items each, that are crawled before other connections are served.
const BUCKETS_PER_STEP: usize = 128;
/// `stats cachedump` lists at most this many bytes, as in memcached.
const CACHEDUMP_BYTES_MAX: usize = 2 << 20;
/// Ends a listing whose client read nothing for a minute while another crawl waited to start.
const GIVEN_UP: &str = "SERVER_ERROR crawl given up: its client has read nothing for 60 s";
/// The largest number of a slab class.
const CLASS_MAX: usize = 255;

/// A set of slab classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSet([u64; 4]);

/// The listing or count that a crawl makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrawlKind {
    /// A line of facts for each item.
    Metadump(ClassSet),
    /// An `mg` for each item.
    Mgdump(ClassSet),
    /// Some items of one class.
    Cachedump { class: usize, items_max: u64 },
    /// The number of items of each size.
    Sizes,
    /// The items accessed in the last `within_s` seconds, from a sample of one item in `one_in`.
    WorkingSet { within_s: u32, one_in: u32 },
}

#[derive(Debug)]
pub(crate) struct CrawlCommand {
    cursor: Crawl,
    kind: CrawlKind,
    working_set: WorkingSet,
    sizes: Sizes,
    items_listed: u64,
    bytes_listed: usize,
}

impl ClassSet {
    pub(crate) const ALL: ClassSet = ClassSet([u64::MAX; 4]);

    /// `all`, `hash`, or numbers separated by commas.
    pub(crate) fn parse(text: &str) -> Option<ClassSet> {
        if matches!(text, "all" | "hash") {
            return Some(ClassSet::ALL);
        }
        text.split(',').try_fold(ClassSet([0; 4]), |mut set, number| {
            let class = number.parse::<usize>().ok().filter(|class| (1..=CLASS_MAX).contains(class))?;
            set.0[class / 64] |= 1 << (class % 64);
            Some(set)
        })
    }

    pub(crate) fn contains(self, class: usize) -> bool {
        self.0[class / 64] >> (class % 64) & 1 != 0
    }
}

impl CrawlCommand {
    /// Starts a crawl, and appends `OK` where memcached does; `None` if too many crawls are in progress.
    pub(crate) fn start(store: &Store, kind: CrawlKind, now: Now, out: &mut Vec<u8>) -> Option<CrawlCommand> {
        let one_in = if let CrawlKind::WorkingSet { one_in, .. } = kind { one_in } else { 1 };
        let cursor = store.start_crawl(one_in, now)?;
        if matches!(kind, CrawlKind::Metadump(_) | CrawlKind::Mgdump(_)) {
            reply::write_line(b"OK", out);
        }
        let (working_set, sizes) = (WorkingSet::default(), Sizes::default());
        Some(CrawlCommand { cursor, kind, working_set, sizes, items_listed: 0, bytes_listed: 0 })
    }

    /// Crawls for one step, or until `out` holds `reply_bytes_max` bytes; returns whether the crawl is finished.
    pub(crate) fn step(
        &mut self,
        context: &SessionContext<'_>,
        now: Now,
        reply_bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        let CrawlCommand { cursor, kind, working_set, sizes, items_listed, bytes_listed } = self;
        let mut is_limit_reached = false;
        for _ in 0..BUCKETS_PER_STEP {
            let before = out.len();
            let has_more = context.store.crawl(cursor, 1, now, |item_seen| match *kind {
                CrawlKind::Metadump(classes) if classes.contains(item_seen.slab_class) => {
                    metadump_line(&item_seen, now, out)
                }
                CrawlKind::Mgdump(classes) if classes.contains(item_seen.slab_class) => mgdump_line(&item_seen, out),
                CrawlKind::Cachedump { class, items_max } if class == item_seen.slab_class => {
                    is_limit_reached |= items_max != 0 && *items_listed >= items_max;
                    is_limit_reached |= *bytes_listed + (out.len() - before) >= CACHEDUMP_BYTES_MAX;
                    if !is_limit_reached {
                        *items_listed += u64::from(cachedump_line(&item_seen, out));
                    }
                }
                CrawlKind::Sizes => sizes.count(item_seen.item_bytes),
                CrawlKind::WorkingSet { within_s, .. } => working_set.count(&item_seen, within_s),
                _ => {}
            });
            *bytes_listed += out.len() - before;
            if !has_more || is_limit_reached {
                self.finish_reply(out);
                return true;
            }
            if out.len() >= reply_bytes_max {
                break;
            }
        }
        false
    }

    fn finish_reply(&self, out: &mut Vec<u8>) {
        match self.kind {
            _ if self.cursor.is_given_up() => return reply::write_line(GIVEN_UP.as_bytes(), out),
            CrawlKind::Mgdump(_) => return reply::write_line(b"EN", out),
            CrawlKind::Sizes => self.sizes.render(out),
            CrawlKind::WorkingSet { within_s, one_in } => self.working_set.render(within_s, one_in, out),
            CrawlKind::Metadump(_) | CrawlKind::Cachedump { .. } => {}
        }
        reply::write_line(b"END", out);
    }
}

/// A line as memcached's, with a space in front of a bare line feed.
fn metadump_line(item_seen: &CrawlItem<'_>, now: Now, out: &mut Vec<u8>) {
    let item = &item_seen.item;
    out.extend_from_slice(b"key=");
    append_encoded(item.key, out);
    let end_s = item_seen.expiry_s().map_or(-1, i64::from);
    let last_access_s = now.unix_ms / 1000 - u64::from(item.last_access_age_s);
    let fetched = if item.fetched { "yes" } else { "no" };
    let (cas, class, bytes, flags) = (item.cas.0, item_seen.slab_class, item_seen.item_bytes, item.flags);
    append(
        out,
        format_args!(
            " exp={end_s} la={last_access_s} cas={cas} fetch={fetched} cls={class} size={bytes} flags={flags} \n"
        ),
    );
}

/// A key that no text command could contain is written in base64.
fn mgdump_line(item_seen: &CrawlItem<'_>, out: &mut Vec<u8>) {
    let key = item_seen.item.key;
    out.extend_from_slice(b"mg ");
    if lookaside_protocol::check_key(key).is_ok() {
        out.extend_from_slice(key);
    } else {
        lookaside_protocol::meta::encode_key(key, out);
        out.extend_from_slice(b" b");
    }
    out.extend_from_slice(b"\r\n");
}

/// Returns whether the item was listed: as in memcached, keys that no text command could contain are left out and not
/// counted.
fn cachedump_line(item_seen: &CrawlItem<'_>, out: &mut Vec<u8>) -> bool {
    let item = &item_seen.item;
    let is_listed = lookaside_protocol::check_key(item.key).is_ok();
    if is_listed {
        out.extend_from_slice(b"ITEM ");
        out.extend_from_slice(item.key);
        let (value_bytes, end_s) = (item.value.value_bytes(), item_seen.expiry_s().unwrap_or(0));
        append(out, format_args!(" [{value_bytes} b; {end_s} s]\r\n"));
    }
    is_listed
}

/// Appends a percent-encoded key.
fn append_encoded(key: &[u8], out: &mut Vec<u8>) {
    for &byte in key {
        match percent::is_unreserved(byte) {
            true => out.push(byte),
            false => append(out, format_args!("%{byte:02X}")),
        }
    }
}

fn append(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a vector does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_parsed() {
        let set = ClassSet::parse("1,64,255").expect("three classes");
        assert!([1, 64, 255].into_iter().all(|class| set.contains(class)) && !set.contains(2) && !set.contains(65));
        assert_eq!(ClassSet::parse("hash"), ClassSet::parse("all"));
        for bad in ["", "0", "256", "1,", "x", "-1"] {
            assert_eq!(ClassSet::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn keys_are_percent_encoded() {
        let mut out = Vec::new();
        append_encoded(b"a-Z_0.9~:%\x00\xff ", &mut out);
        assert_eq!(out, b"a-Z_0.9~%3A%25%00%FF%20");
    }
}
