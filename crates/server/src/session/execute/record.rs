//! Counters and watchers' events of commands, for the text, meta and binary protocols.

use crate::observe::event_log::{Event, ItemSize, kind};
use crate::session::context::SessionContext;
use lookaside_protocol::Direction;
use lookaside_store::{ArithmeticOutcome, HashedKey, MetaGet, MetaGetOutcome, Now};

/// The size of an item, if one of these kinds of events is recorded; otherwise, or if the item is gone, the default.
pub(crate) fn item_size(context: &SessionContext<'_>, kinds: u8, key: HashedKey<'_>, now: Now) -> ItemSize {
    if !context.events.is_enabled(kinds) {
        return ItemSize::default();
    }
    let options = MetaGet { no_bump: true, ..MetaGet::default() };
    let size_of =
        |got: MetaGetOutcome<'_>| ItemSize { slab_class: got.slab_class, value_bytes: got.item.value.value_bytes() };
    context.store.reader(now).meta_get(key, &options, size_of).unwrap_or_default()
}

/// Records a get for watchers. `value_bytes` is `None` for a miss.
pub(crate) fn record_fetch(context: &SessionContext<'_>, key: HashedKey<'_>, value_bytes: Option<usize>, now: Now) {
    let slab_class = |key| item_size(context, kind::FETCHERS, key, now).slab_class;
    let found = value_bytes.map(|value_bytes| ItemSize { slab_class: slab_class(key), value_bytes });
    context.events.record(Event::Fetched { key: key.key(), found, is_counted: true }, now);
}

/// Records a storage command for watchers. `outcome` is the line of the reply.
pub(crate) fn record_store(
    context: &SessionContext<'_>,
    key: HashedKey<'_>,
    command: &'static str,
    exptime: i64,
    value: &[u8],
    outcome: &str,
    now: Now,
) {
    if context.events.is_enabled(kind::MUTATIONS | kind::PREFIXES) {
        let item_size = match outcome {
            "STORED" | "STALE_STORED" => item_size(context, kind::MUTATIONS, key, now),
            _ => ItemSize { slab_class: 0, value_bytes: value.len() },
        };
        let event = Event::Stored { key: key.key(), outcome, command, exptime, item_size, is_counted: true };
        context.events.record(event, now);
    }
}

/// Counts a delete, and records it for watchers. `deleted` is `None` if there was no item.
pub(crate) fn record_delete(context: &SessionContext<'_>, key: HashedKey<'_>, deleted: Option<ItemSize>, now: Now) {
    if context.events.is_enabled(kind::DELETIONS | kind::PREFIXES) {
        let event = Event::Deleted { key: key.key(), command: "delete", deleted, is_counted: true };
        context.events.record(event, now);
    }
    let counters = context.counters;
    let counter = if deleted.is_some() { &counters.delete_hits } else { &counters.delete_misses };
    counter.add(1);
}

pub(crate) fn count_arithmetic(context: &SessionContext<'_>, direction: Direction, outcome: ArithmeticOutcome) {
    let counters = context.counters;
    let (hits, misses) = match direction {
        Direction::Up => (&counters.incr_hits, &counters.incr_misses),
        Direction::Down => (&counters.decr_hits, &counters.decr_misses),
    };
    match outcome {
        ArithmeticOutcome::NotFound => misses.add(1),
        ArithmeticOutcome::Number(..) => hits.add(1),
        ArithmeticOutcome::NotANumber | ArithmeticOutcome::OutOfMemory => {}
    }
}
