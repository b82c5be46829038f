//! What somebody looks at while requests run: `stats detail`, and `watch`. One for each thread, beside its counters.
//!
//! While nobody looks, a command pays one load of a byte that never changes. Whoever looks is paid for by the commands
//! that are looked at: a lock that only the collector takes too, and a line of text.
//!
//! ```text
//!   worker:  event -> Attention (its thread's prefixes, its thread's lines, 64 KB)
//!   `stats detail dump`:  all threads' prefixes added up
//!   the watchers' thread: all threads' lines, in order, to each watcher that asked for them ([`crate::observe::watchers`])
//! ```
//!
//! As with memcached, prefixes count the get verbs, the storage commands and `delete`, of keys that have the delimiter.
//! An item's slab class and size are looked up for whoever watches, behind the command: another client may have stored
//! something else by then. Absent: the `item_get` that memcached logs when another command looks its item up.

use lookaside_store::Now;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many prefixes a thread counts; those that come later are not counted.
pub(crate) const PREFIXES_MAX: usize = 8192;

/// How many bytes of lines a thread keeps for the collector. More are dropped, and counted.
pub(crate) const LINES_BYTES_MAX: usize = 64 << 10;

/// Where connections come by UDP there is none to hand over.
const NO_CONNECTION: i32 = -1;

/// Kinds of events, as bits.
pub(crate) mod kind {
    /// Keys asked for.
    pub(crate) const FETCHERS: u8 = 1;
    /// Values stored.
    pub(crate) const MUTATIONS: u8 = 1 << 1;
    /// Items that made room for others.
    pub(crate) const EVICTIONS: u8 = 1 << 2;
    /// Connections that came and went.
    pub(crate) const CONNECTIONS: u8 = 1 << 3;
    /// Items deleted.
    pub(crate) const DELETIONS: u8 = 1 << 4;
    /// Counted by prefix.
    pub(crate) const PREFIXES: u8 = 1 << 7;
}

/// One thread's events.
pub struct EventSink {
    interest: AtomicU8,
    /// Whose commands are being executed.
    descriptor: AtomicI32,
    /// What that connection has asked to watch, just now.
    watch_request: AtomicU8,
    prefixes: Mutex<Prefixes>,
    lines: Mutex<Lines>,
    /// Lines that found no room.
    pub(crate) lines_dropped: AtomicU64,
}

/// Uses by prefix.
#[derive(Default)]
struct Prefixes {
    delimiter: u8,
    counts: BTreeMap<Vec<u8>, PrefixCounts>,
}

/// How often a prefix was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefixCounts {
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    pub(crate) sets: u64,
    pub(crate) deletes: u64,
}

#[derive(Default)]
struct Lines {
    lines: Vec<Line>,
    bytes: usize,
}

/// A line for watchers, without its time and number.
pub(crate) struct Line {
    pub(crate) kind: u8,
    pub(crate) unix_ms: u64,
    pub(crate) text: String,
}

/// An item's slab class, from 1 on, 0 where there is no item; and how long its value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ItemSize {
    pub(crate) slab_class: usize,
    pub(crate) value_bytes: usize,
}

/// What has happened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<'a> {
    /// A key was asked for: what was found, if anything.
    Fetched { key: &'a [u8], found: Option<ItemSize>, is_counted: bool },
    /// A value came: with what outcome, and what is there now; of what was not stored, how long it was.
    Stored {
        key: &'a [u8],
        outcome: &'a str,
        command: &'static str,
        exptime: i64,
        item_size: ItemSize,
        is_counted: bool,
    },
    /// An item was to be deleted: what was there, if anything.
    Deleted { key: &'a [u8], command: &'static str, deleted: Option<ItemSize>, is_counted: bool },
}

/// For sessions that are driven without a daemon: nobody looks.
pub(crate) static NO_EVENTS: EventSink = EventSink::new();

impl EventSink {
    pub(crate) const fn new() -> EventSink {
        EventSink {
            interest: AtomicU8::new(0),
            descriptor: AtomicI32::new(NO_CONNECTION),
            watch_request: AtomicU8::new(0),
            prefixes: Mutex::new(Prefixes { delimiter: b':', counts: BTreeMap::new() }),
            lines: Mutex::new(Lines { lines: Vec::new(), bytes: 0 }),
            lines_dropped: AtomicU64::new(0),
        }
    }

    /// Whether any of these kinds is looked at.
    #[inline]
    pub(crate) fn is_enabled(&self, kinds: u8) -> bool {
        self.interest.load(Ordering::Relaxed) & kinds != 0
    }

    /// From now on these kinds are looked at, of those that `mask` covers.
    pub(crate) fn set_interest(&self, mask: u8, kinds: u8) {
        let changed = |before: u8| Some(before & !mask | kinds & mask);
        let _ = self.interest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
    }

    /// From now on the commands of this connection are executed; `None` for those that came without one.
    /// What the one before wanted and did not live to get is no wish of this one.
    pub(crate) fn set_current_connection(&self, descriptor: Option<i32>) {
        self.watch_request.store(0, Ordering::Relaxed);
        self.descriptor.store(descriptor.unwrap_or(NO_CONNECTION), Ordering::Relaxed);
    }

    /// The connection whose commands are being executed, or scanned where that may matter.
    pub(crate) fn descriptor(&self) -> Option<i32> {
        Some(self.descriptor.load(Ordering::Relaxed)).filter(|&descriptor| descriptor != NO_CONNECTION)
    }

    /// The connection whose commands are being executed is to become a watcher; says whether there is one.
    pub(crate) fn request_watch(&self, kinds: u8) -> bool {
        let is_connected = self.descriptor.load(Ordering::Relaxed) != NO_CONNECTION;
        if is_connected {
            self.watch_request.store(kinds | REQUESTED, Ordering::Relaxed);
        }
        is_connected
    }

    /// What the connection that has just been served wants to watch from now on.
    pub(crate) fn take_watch_request(&self) -> Option<u8> {
        if self.watch_request.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(self.watch_request.swap(0, Ordering::Relaxed) & !REQUESTED)
    }

    /// Tells of a command. Only to be called where [`EventSink::is_enabled`] said yes.
    pub(crate) fn record(&self, event: Event<'_>, now: Now) {
        if self.is_enabled(kind::PREFIXES) {
            self.count_prefix(event);
        }
        let event_kind = match event {
            Event::Fetched { .. } => kind::FETCHERS,
            Event::Stored { .. } => kind::MUTATIONS,
            Event::Deleted { deleted: Some(_), .. } => kind::DELETIONS,
            Event::Deleted { .. } => return,
        };
        if self.is_enabled(event_kind) {
            let text = self.format_event(event);
            self.push(event_kind, text, now);
        }
    }

    /// Keeps a line for those who watch its kind.
    pub(crate) fn push(&self, kind: u8, text: String, now: Now) {
        let mut lines = self.lines();
        if lines.bytes + text.len() > LINES_BYTES_MAX {
            self.lines_dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        lines.bytes += text.len();
        lines.lines.push(Line { kind, unix_ms: now.unix_ms, text });
    }

    /// The lines since the last time.
    pub(crate) fn take_lines(&self) -> Vec<Line> {
        std::mem::take(&mut *self.lines()).lines
    }

    /// From now on a prefix ends at this byte.
    pub(crate) fn set_delimiter(&self, delimiter: u8) {
        self.prefixes().delimiter = delimiter;
    }

    /// Adds this thread's prefixes to those of others.
    pub(crate) fn add_prefixes(&self, sum: &mut BTreeMap<Vec<u8>, PrefixCounts>) {
        for (prefix, counts) in &self.prefixes().counts {
            let total = sum.entry(prefix.clone()).or_default();
            total.gets += counts.gets;
            total.hits += counts.hits;
            total.sets += counts.sets;
            total.deletes += counts.deletes;
        }
    }

    /// Counts prefixes from nothing again.
    pub(crate) fn reset_prefixes(&self) {
        self.prefixes().counts.clear();
    }

    fn count_prefix(&self, event: Event<'_>) {
        let (Event::Fetched { key, is_counted, .. }
        | Event::Stored { key, is_counted, .. }
        | Event::Deleted { key, is_counted, .. }) = event;
        let mut prefixes = self.prefixes();
        let delimiter = prefixes.delimiter;
        let Some(end) = key.iter().position(|&byte| byte == delimiter).filter(|_| is_counted) else { return };
        let is_full = prefixes.counts.len() >= PREFIXES_MAX;
        if is_full && !prefixes.counts.contains_key(&key[..end]) {
            return;
        }
        if !prefixes.counts.contains_key(&key[..end]) {
            prefixes.counts.insert(key[..end].to_vec(), PrefixCounts::default());
        }
        let counts = prefixes.counts.get_mut(&key[..end]).expect("it was there or was put there");
        match event {
            Event::Fetched { found, .. } => {
                counts.gets += 1;
                counts.hits += u64::from(found.is_some());
            }
            Event::Stored { .. } => counts.sets += 1,
            Event::Deleted { .. } => counts.deletes += 1,
        }
    }

    fn format_event(&self, event: Event<'_>) -> String {
        let descriptor = self.descriptor.load(Ordering::Relaxed);
        match event {
            Event::Fetched { key, found, .. } => {
                let status = if found.is_some() { "found" } else { "not_found" };
                let (key, ItemSize { slab_class, value_bytes }) = (Escaped(key), found.unwrap_or_default());
                format!(
                    "type=item_get key={key} status={status} clsid={slab_class} cfd={descriptor} size={value_bytes}"
                )
            }
            Event::Stored {
                key, outcome, command, exptime, item_size: ItemSize { slab_class, value_bytes }, ..
            } => {
                let (key, status) = (Escaped(key), outcome.to_ascii_lowercase());
                let what = format!("status={status} cmd={command} ttl={exptime} clsid={slab_class}");
                format!("type=item_store key={key} {what} cfd={descriptor} size={value_bytes}")
            }
            Event::Deleted { key, command, deleted, .. } => {
                let (key, ItemSize { slab_class, value_bytes }) = (Escaped(key), deleted.unwrap_or_default());
                format!("type=deleted key={key} cmd={command} clsid={slab_class} size={value_bytes}")
            }
        }
    }

    fn prefixes(&self) -> MutexGuard<'_, Prefixes> {
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Set beside the kinds that are wanted: none may be wanted too.
const REQUESTED: u8 = 1 << 6;

/// Bytes as in a URI, so that no key can forge a line.
pub(crate) struct Escaped<'a>(pub(crate) &'a [u8]);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for &byte in self.0 {
            match byte {
                b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'.' | b'_' | b'~' => f.write_char(byte.into())?,
                _ => write!(f, "%{byte:02X}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now { unix_ms: 1_700_000_000_000 };

    fn fetched(key: &[u8]) -> Event<'_> {
        Event::Fetched { key, found: Some(ItemSize { slab_class: 4, value_bytes: 1 }), is_counted: true }
    }

    #[test]
    fn prefixes_are_bounded() {
        let events = EventSink::new();
        events.set_interest(kind::PREFIXES, kind::PREFIXES);
        for number in 0..2 * PREFIXES_MAX {
            events.record(fetched(format!("p{number}:k").as_bytes()), NOW);
        }
        events.record(fetched(b"no delimiter"), NOW);
        events.record(fetched(b"p0:again"), NOW);
        let mut sum = BTreeMap::new();
        events.add_prefixes(&mut sum);
        assert_eq!((sum.len(), sum[&b"p0"[..]].gets), (PREFIXES_MAX, 2));
    }

    #[test]
    fn lines_are_bounded_and_those_that_find_no_room_are_counted() {
        let events = EventSink::new();
        events.set_interest(kind::FETCHERS, kind::FETCHERS);
        for _ in 0..10_000 {
            events.record(fetched(b"key"), NOW);
        }
        let lines = events.take_lines();
        assert!(lines.iter().map(|line| line.text.len()).sum::<usize>() <= LINES_BYTES_MAX);
        assert_eq!(lines.len() as u64 + events.lines_dropped.load(Ordering::Relaxed), 10_000);
        events.record(fetched(b"a b%\n"), NOW);
        assert_eq!(events.take_lines()[0].text, "type=item_get key=a%20b%25%0A status=found clsid=4 cfd=-1 size=1");
    }

    #[test]
    fn only_a_connection_can_become_a_watcher() {
        let events = EventSink::new();
        assert!(!events.request_watch(kind::FETCHERS));
        events.set_current_connection(Some(7));
        assert!(events.request_watch(0));
        assert_eq!((events.take_watch_request(), events.take_watch_request()), (Some(0), None));
    }

    /// A client that sent `watch` and was gone before its answer left its wish to the next one that quit.
    #[test]
    fn a_wish_dies_with_its_connection() {
        let events = EventSink::new();
        events.set_current_connection(Some(7));
        assert!(events.request_watch(kind::FETCHERS));
        events.set_current_connection(Some(8));
        assert_eq!(events.take_watch_request(), None);
    }
}
