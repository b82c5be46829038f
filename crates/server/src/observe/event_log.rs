//! Events for clients that `watch`, and for `stats detail` (memcached's `logger.c`). Each thread has an [`EventSink`]
//! beside its counters.
//!
//! While no client watches, a command costs one load of a byte that never changes. While one does, each command that
//! matters to it takes a lock that only the watchers' thread takes too, and formats a line.
//!
//! ```text
//!   worker:               event -> EventSink (this thread's prefix counts, this thread's lines, up to 64 KiB)
//!   stats detail dump:    all threads' prefix counts, added up
//!   watchers' thread:     all threads' lines, in order, to each watcher that asked for them (net::watchers)
//! ```
//!
//! An item's slab class and size are looked up after the command: another client may have stored something else by
//! then. Deliberately absent: the `item_get` that memcached logs when another command looks up its item.

use crate::observe::current_connection::CurrentConnection;
use crate::observe::prefix_stats::{KeyUse, PrefixStats};
use lookaside_protocol::percent;
use lookaside_store::{Evicted, Expiry, Now};
use lookaside_sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A thread buffers at most this many bytes of lines. Further lines are dropped and counted.
pub(crate) const LINES_BYTES_MAX: usize = 64 << 10;

/// Kinds of events, as bits.
pub(crate) mod kind {
    /// Keys requested.
    pub(crate) const FETCHERS: u8 = 1;
    /// Values stored.
    pub(crate) const MUTATIONS: u8 = 1 << 1;
    /// Items evicted.
    pub(crate) const EVICTIONS: u8 = 1 << 2;
    /// Connections opened and closed.
    pub(crate) const CONNECTIONS: u8 = 1 << 3;
    /// Items deleted.
    pub(crate) const DELETIONS: u8 = 1 << 4;
    /// Uses of keys, counted by prefix.
    pub(crate) const PREFIXES: u8 = 1 << 7;
    /// The kinds that a client can watch.
    pub(crate) const WATCHABLE: u8 = FETCHERS | MUTATIONS | EVICTIONS | CONNECTIONS | DELETIONS;
}

/// Parses the kinds that `watch` names, as bits; no bit for kinds that never happen here. `None` for a word that
/// memcached does not know.
pub(crate) fn parse_kinds<'a>(words: impl Iterator<Item = &'a str>) -> Option<u8> {
    let mut kinds = None;
    for word in words {
        let kind = match word {
            "fetchers" => kind::FETCHERS,
            "mutations" => kind::MUTATIONS,
            "evictions" => kind::EVICTIONS,
            "connevents" => kind::CONNECTIONS,
            "deletions" => kind::DELETIONS,
            "proxyreqs" | "proxyevents" | "proxyuser" | "sysevents" => 0,
            _ => return None,
        };
        kinds = Some(kinds.unwrap_or(0) | kind);
    }
    Some(kinds.unwrap_or(kind::FETCHERS))
}

/// One thread's events.
pub struct EventSink {
    /// The kinds of events to record.
    interest: AtomicU8,
    pub(crate) connection: CurrentConnection,
    pub(crate) prefixes: PrefixStats,
    lines: Mutex<Lines>,
    /// Lines dropped because the buffer was full.
    pub(crate) lines_dropped: AtomicU64,
}

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

/// An item's slab class, and the length of its value. The class is 0 if there is no item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ItemSize {
    pub(crate) slab_class: usize,
    pub(crate) value_bytes: usize,
}

/// An event. Meta commands set `is_counted` to false: as in memcached, prefixes do not count them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<'a> {
    /// A key was requested. `found` is `None` for a miss.
    Fetched { key: &'a [u8], found: Option<ItemSize>, is_counted: bool },
    /// A value was sent. `item_size` is that of the stored item, or of the value that was not stored.
    Stored {
        key: &'a [u8],
        outcome: &'a str,
        command: &'static str,
        exptime: i64,
        item_size: ItemSize,
        is_counted: bool,
    },
    /// A delete was sent. `deleted` is `None` if there was no item.
    Deleted { key: &'a [u8], command: &'static str, deleted: Option<ItemSize>, is_counted: bool },
}

/// A sink in which nothing is enabled, for sessions that run without a server.
pub(crate) static NO_EVENTS: EventSink = EventSink::new();

impl EventSink {
    pub(crate) const fn new() -> EventSink {
        EventSink {
            interest: AtomicU8::new(0),
            connection: CurrentConnection::new(),
            prefixes: PrefixStats::new(),
            lines: Mutex::new(Lines { lines: Vec::new(), bytes: 0 }),
            lines_dropped: AtomicU64::new(0),
        }
    }

    /// Whether any of these kinds is to be recorded.
    #[inline]
    pub(crate) fn is_enabled(&self, kinds: u8) -> bool {
        self.interest.load(Ordering::Relaxed) & kinds != 0
    }

    /// Of the kinds in `mask`, records `kinds` from now on and no others.
    pub(crate) fn set_interest(&self, mask: u8, kinds: u8) {
        let changed = |before: u8| Some(before & !mask | kinds & mask);
        let _ = self.interest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
    }

    /// Records an event. The caller has checked [`EventSink::is_enabled`].
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
            let text = format_event(event, self.connection.raw_descriptor());
            self.push(event_kind, text, now);
        }
    }

    /// Buffers a line for the watchers of its kind.
    pub(crate) fn push(&self, kind: u8, text: String, now: Now) {
        let mut lines = self.lines.lock();
        if lines.bytes + text.len() > LINES_BYTES_MAX {
            self.lines_dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        lines.bytes += text.len();
        lines.lines.push(Line { kind, unix_ms: now.unix_ms, text });
    }

    /// Takes the lines recorded since the last call.
    pub(crate) fn take_lines(&self) -> Vec<Line> {
        let mut lines = self.lines.lock();
        lines.bytes = 0;
        std::mem::take(&mut lines.lines)
    }

    fn count_prefix(&self, event: Event<'_>) {
        let (key, key_use) = match event {
            Event::Fetched { key, found, is_counted: true } => (key, KeyUse::Get { is_hit: found.is_some() }),
            Event::Stored { key, is_counted: true, .. } => (key, KeyUse::Set),
            Event::Deleted { key, is_counted: true, .. } => (key, KeyUse::Delete),
            _ => return,
        };
        self.prefixes.count(key, key_use);
    }
}

/// Formats an event as memcached does. Keys are percent-encoded, so that no key can forge a line.
fn format_event(event: Event<'_>, descriptor: i32) -> String {
    match event {
        Event::Fetched { key, found, .. } => {
            let status = if found.is_some() { "found" } else { "not_found" };
            let (key, ItemSize { slab_class, value_bytes }) = (percent::encode(key), found.unwrap_or_default());
            format!("type=item_get key={key} status={status} clsid={slab_class} cfd={descriptor} size={value_bytes}")
        }
        Event::Stored { key, outcome, command, exptime, item_size: ItemSize { slab_class, value_bytes }, .. } => {
            let (key, status) = (percent::encode(key), outcome.to_ascii_lowercase());
            let command = format!("status={status} cmd={command} ttl={exptime} clsid={slab_class}");
            format!("type=item_store key={key} {command} cfd={descriptor} size={value_bytes}")
        }
        Event::Deleted { key, command, deleted, .. } => {
            let (key, ItemSize { slab_class, value_bytes }) = (percent::encode(key), deleted.unwrap_or_default());
            format!("type=deleted key={key} cmd={command} clsid={slab_class} size={value_bytes}")
        }
    }
}

/// Formats an eviction as memcached does. The `ttl` of an item that would not have expired is -1.
pub(crate) fn format_eviction(evicted: &Evicted<'_>, now: Now) -> String {
    let (key, fetched) = (percent::encode(evicted.key), if evicted.was_fetched { "yes" } else { "no" });
    let ttl = match evicted.expiry {
        Expiry::At { unix_s } => i64::from(unix_s) - (now.unix_ms / 1000) as i64,
        _ => -1,
    };
    let Evicted { idle_s, slab_class, value_bytes, .. } = evicted;
    format!("type=eviction key={key} fetch={fetched} ttl={ttl} la={idle_s} clsid={slab_class} size={value_bytes}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const NOW: Now = Now { unix_ms: 1_700_000_000_000 };

    fn fetched(key: &[u8]) -> Event<'_> {
        Event::Fetched { key, found: Some(ItemSize { slab_class: 4, value_bytes: 1 }), is_counted: true }
    }

    #[test]
    fn prefixes_count_only_what_is_to_be_counted() {
        let sink = EventSink::new();
        sink.set_interest(kind::PREFIXES, kind::PREFIXES);
        sink.record(fetched(b"p:a"), NOW);
        sink.record(Event::Fetched { key: b"p:a", found: None, is_counted: false }, NOW);
        let mut sum = BTreeMap::new();
        sink.prefixes.add_to(&mut sum);
        assert_eq!((sum[&b"p"[..]].gets, sum[&b"p"[..]].hits), (1, 1));
    }

    #[test]
    fn lines_are_bounded_and_dropped_ones_counted() {
        let sink = EventSink::new();
        sink.set_interest(kind::FETCHERS, kind::FETCHERS);
        for _ in 0..10_000 {
            sink.record(fetched(b"key"), NOW);
        }
        let lines = sink.take_lines();
        assert!(lines.iter().map(|line| line.text.len()).sum::<usize>() <= LINES_BYTES_MAX);
        assert_eq!(lines.len() as u64 + sink.lines_dropped.load(Ordering::Relaxed), 10_000);
        sink.record(fetched(b"a b%\n"), NOW);
        assert_eq!(sink.take_lines()[0].text, "type=item_get key=a%20b%25%0A status=found clsid=4 cfd=-1 size=1");
    }
}
