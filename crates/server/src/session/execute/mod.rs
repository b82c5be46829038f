//! One parsed command carried out against the store, its reply appended to the buffer.
//!
//! | | reply | counted as |
//! |---|---|---|
//! | get, gat, lease-get | a `VALUE` a hit, rendered from the item | hit or miss, a key each |
//! | set and its kin, lease-set | one line | `cmd_set` |
//! | delete | `DELETED`, `NOT_FOUND`; in both cases leases are void and the hold-off has begun | hit or miss |
//!
//! Absent on purpose: sockets and clocks. The counters follow memcached's: a get of ten keys is ten `cmd_get`.

mod meta;

use crate::observe::event_log::{Event, ItemSize, kind};
use crate::session::admin_command::{AdminAction, AdminCommand};
use crate::session::context::SessionContext;
use crate::session::crawl::{CrawlCommand, CrawlKind};
use crate::session::reply;
use lookaside_protocol::text::refusal;
use lookaside_protocol::{Command, Direction, Operation, Request, StoreMode};
use lookaside_store::{
    ArithmeticOutcome, DeleteOutcome, Expiry, HashedKey, ItemView, LeaseGet, LeaseSetOutcome, MetaGet, MetaGetOutcome,
    NewItem, Now, PageMove, Reader, StoreOutcome,
};

pub(crate) const OUT_OF_MEMORY: &str = "SERVER_ERROR out of memory storing object";
pub(crate) const OUT_OF_MEMORY_ARITHMETIC: &str = "SERVER_ERROR out of memory in incr";
pub(crate) const NOT_A_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";

/// As memcached says that it cannot tell sizes.
const TOO_MANY_WALKS_FOR_SIZES: &str =
    "STAT sizes_status error\r\nSTAT sizes_error too many walks are under way\r\nEND";

/// What `version` says. Clients parse it as three numbers and pass over the rest: the release of memcached that this server
/// behaves like, then its own. libmemcached takes a first number of 0 for a broken reply.
pub const VERSION: &str = concat!("1.6.45-lookaside-", env!("CARGO_PKG_VERSION"));

/// Answers `keys` of a get, without its `END`, until `out` holds `reply_bytes_max` bytes. Returns how many keys were
/// answered: at least one if there is one.
pub(crate) fn retrieve(
    context: &SessionContext<'_>,
    operation: &Operation<&[u8]>,
    keys: &[HashedKey<'_>],
    now: Now,
    reply_bytes_max: usize,
    out: &mut Vec<u8>,
) -> usize {
    let reader = context.store.reader(now);
    let mut answered = 0;
    let mut hits = 0;
    let is_recorded = context.events.is_enabled(kind::FETCHERS | kind::PREFIXES);
    for &key in keys {
        let value_bytes = retrieve_one(&reader, operation, key, now, out);
        hits += u64::from(value_bytes.is_some());
        if is_recorded {
            record_fetch(context, key, value_bytes, now);
        }
        answered += 1;
        if out.len() >= reply_bytes_max {
            break;
        }
    }
    let counters = context.counters;
    counters.cmd_get.add(answered as u64);
    counters.get_hits.add(hits);
    counters.get_misses.add(answered as u64 - hits);
    if matches!(operation, Operation::GetAndTouch { .. }) {
        counters.cmd_touch.add(answered as u64);
        counters.touch_hits.add(hits);
        counters.touch_misses.add(answered as u64 - hits);
    }
    answered
}

/// Answers one key; a hit's value has so many bytes.
fn retrieve_one(
    reader: &Reader<'_>,
    operation: &Operation<&[u8]>,
    key: HashedKey<'_>,
    now: Now,
    out: &mut Vec<u8>,
) -> Option<usize> {
    match *operation {
        Operation::Get { cas } => reader.get(key, |item| render_value(&item, cas, out)),
        Operation::GetAndTouch { exptime, cas } => {
            let expiry = Expiry::from_exptime(exptime, now);
            reader.get_and_touch(key, expiry, |item| render_value(&item, cas, out))
        }
        Operation::LeaseGet => reader.lease_get(key, |answer| match answer {
            LeaseGet::Hit(item) => Some(render_value(&item, false, out)),
            LeaseGet::Miss { token, stale } => {
                reply::lease(key.key(), token, stale.as_ref(), out);
                None
            }
        }),
        _ => unreachable!("the parser puts only get verbs into a retrieval"),
    }
}

#[inline]
fn render_value(item: &ItemView<'_>, cas: bool, out: &mut Vec<u8>) -> usize {
    reply::value(item, cas, out);
    item.value.value_bytes()
}

/// Carries out any other command. `key` is the request's key, hashed, for commands that have one.
pub(crate) fn run_command(
    context: &SessionContext<'_>,
    command: &Command<'_>,
    key: Option<&HashedKey<'_>>,
    now: Now,
    out: &mut Vec<u8>,
) {
    let reply_at = out.len();
    let mut quiet = false;
    match command {
        Command::Single { request, noreply } => {
            run_keyed(context, request, *key.expect("a request has a key"), now, out);
            quiet = *noreply;
        }
        Command::FlushAll { delay_s, noreply } => {
            let reply: &[u8] = match flush_all(context, *delay_s, now) {
                Flush::Scheduled => b"OK",
                Flush::Forbidden => b"CLIENT_ERROR flush_all not allowed",
                Flush::TooMany => b"SERVER_ERROR too many flushes lie ahead",
            };
            reply::line(reply, out);
            quiet = *noreply;
        }
        Command::Verbosity { level, noreply } => {
            context.control.set_verbosity(*level);
            reply::line(b"OK", out);
            quiet = *noreply;
        }
        Command::Stats { arguments } => context.control.stats(arguments, now, out),
        Command::Version => {
            out.extend_from_slice(b"VERSION ");
            reply::line(VERSION.as_bytes(), out);
        }
        Command::MetaNoop => reply::line(b"MN", out),
        Command::Retrieve { .. } | Command::Quit => unreachable!("the batch handles these itself"),
    }
    if quiet {
        out.truncate(reply_at);
    }
}

/// What became of an operator's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminOutcome {
    /// It is done.
    Done,
    /// The connection ends with it.
    Close,
    /// The walk that it began goes on later.
    Crawling,
}

/// Carries out an operator's order, or goes on with the walk that it began.
pub(crate) fn run_admin_command(
    context: &SessionContext<'_>,
    command: &AdminCommand<'_>,
    crawl: &mut Option<Box<CrawlCommand>>,
    now: Now,
    reply_bytes_max: usize,
    out: &mut Vec<u8>,
) -> AdminOutcome {
    let control = context.control;
    let refused;
    let line = match command.action(control.is_crawler_enabled()) {
        AdminAction::Crawl(CrawlKind::Metadump(_) | CrawlKind::Mgdump(_)) if !control.allows_key_dump() => {
            "ERROR metadump not allowed"
        }
        AdminAction::Crawl(CrawlKind::Cachedump { .. }) if !control.allows_key_dump() => {
            "CLIENT_ERROR stats cachedump not allowed"
        }
        AdminAction::Crawl(CrawlKind::Sizes) if !control.tracks_sizes() => "STAT sizes_status disabled\r\nEND",
        AdminAction::Crawl(kind) => {
            if crawl.is_none() {
                *crawl = CrawlCommand::start(context.store, kind, now, out).map(Box::new);
            }
            match crawl {
                Some(crawl) => match crawl.step(context, now, reply_bytes_max, out) {
                    true => return AdminOutcome::Done,
                    false => return AdminOutcome::Crawling,
                },
                None if kind == CrawlKind::Sizes => TOO_MANY_WALKS_FOR_SIZES,
                None => "BUSY currently processing crawler request",
            }
        }
        AdminAction::MovePage { from, to } => match context.store.move_page(from, to, now) {
            PageMove::Moved => "OK",
            PageMove::Busy => "BUSY currently processing reassign request",
            PageMove::NoSpare => "NOSPARE source class has no spare pages",
            PageMove::BadClass => "BADCLASS invalid src or dst class id",
        },
        AdminAction::Automove(is_on) => {
            context.store.set_rebalance(is_on);
            "OK"
        }
        AdminAction::Line(line) => line,
        AdminAction::SetCrawlerEnabled(is_crawler_enabled) => {
            control.set_crawler_enabled(is_crawler_enabled);
            "OK"
        }
        AdminAction::MemoryLimit(megabytes) => match control.set_memory_limit(megabytes) {
            true => "OK",
            false => "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust",
        },
        AdminAction::ShutDown if control.shut_down() => return AdminOutcome::Close,
        AdminAction::ShutDownBadMode if control.allows_shutdown() => "CLIENT_ERROR invalid shutdown mode",
        AdminAction::ShutDown | AdminAction::ShutDownBadMode => "SERVER_ERROR: shutdown not enabled",
        AdminAction::Watch(kinds) => match control.watch_refusal() {
            Some(refusal) => refusal,
            None if context.events.request_watch(kinds) => {
                reply::line(b"OK", out);
                return AdminOutcome::Close;
            }
            None => "ERROR",
        },
        AdminAction::RefreshCertificates => match control.refresh_certificates() {
            Ok(()) => "OK",
            Err(why) => {
                refused = why;
                &refused
            }
        },
    };
    if !command.is_quiet() {
        reply::line(line.as_bytes(), out);
    }
    AdminOutcome::Done
}

/// Says `line`; `outdated` is the key whose new value was refused, and whose old value would be out of date.
pub(crate) fn reply_refusal(
    context: &SessionContext<'_>,
    line: Option<&str>,
    outdated: Option<&HashedKey<'_>>,
    now: Now,
    out: &mut Vec<u8>,
) {
    if let Some(key) = outdated {
        context.store.delete(*key, 0, now);
    }
    if let Some(line) = line {
        reply::line(line.as_bytes(), out);
    }
}

fn run_keyed(context: &SessionContext<'_>, request: &Request<&[u8]>, key: HashedKey<'_>, now: Now, out: &mut Vec<u8>) {
    let line = match request.operation {
        Operation::Store { mode, flags, exptime, value } => {
            let item = NewItem { flags, expiry: Expiry::from_exptime(exptime, now), value };
            let line = store(context, key, mode, &item, now);
            record_store(context, key, verb_name(mode), exptime, value, line, now);
            line
        }
        Operation::LeaseSet { token, flags, exptime, value } => {
            let item = NewItem { flags, expiry: Expiry::from_exptime(exptime, now), value };
            context.counters.cmd_set.add(1);
            let line = lease_set_line(context.store.lease_set(key, token, &item, now));
            record_store(context, key, "lease-set", exptime, value, line, now);
            line
        }
        Operation::Delete { hold_off_ms } => delete(context, key, hold_off_ms, now),
        Operation::Arithmetic { direction, delta } => {
            let outcome = context.store.arithmetic(key, direction, delta, now);
            count_arithmetic(context, direction, outcome);
            match outcome {
                ArithmeticOutcome::Number(number, _) => return reply::number_line(number, out),
                ArithmeticOutcome::NotFound => "NOT_FOUND",
                ArithmeticOutcome::NotANumber => NOT_A_NUMBER,
                ArithmeticOutcome::OutOfMemory => OUT_OF_MEMORY_ARITHMETIC,
            }
        }
        Operation::Touch { exptime } => touch(context, key, exptime, now),
        Operation::Meta(ref meta) => return meta::execute(context, meta, key, now, out),
        Operation::Get { .. } | Operation::GetAndTouch { .. } | Operation::LeaseGet => {
            unreachable!("the parser makes retrievals of the get verbs")
        }
    };
    reply::line(line.as_bytes(), out);
}

fn store(
    context: &SessionContext<'_>,
    key: HashedKey<'_>,
    mode: StoreMode,
    item: &NewItem<'_>,
    now: Now,
) -> &'static str {
    store_line(store_outcome(context, key, mode, item, now))
}

/// What a client of the text dialect, and a watcher, is told of it.
pub(crate) fn store_line(outcome: StoreOutcome) -> &'static str {
    match outcome {
        StoreOutcome::Stored(_) => "STORED",
        StoreOutcome::NotStored => "NOT_STORED",
        StoreOutcome::Exists => "EXISTS",
        StoreOutcome::NotFound => "NOT_FOUND",
        StoreOutcome::TooLarge => refusal::TOO_LARGE,
        StoreOutcome::OutOfMemory => OUT_OF_MEMORY,
    }
}

/// Stores and counts. A refused `set` takes the old value with it: the writer has moved on.
pub(crate) fn store_outcome(
    context: &SessionContext<'_>,
    key: HashedKey<'_>,
    mode: StoreMode,
    item: &NewItem<'_>,
    now: Now,
) -> StoreOutcome {
    let counters = context.counters;
    counters.cmd_set.add(1);
    let outcome = context.store.store(key, mode, item, now);
    if matches!(mode, StoreMode::Cas(_)) {
        match outcome {
            StoreOutcome::Stored(_) => counters.cas_hits.add(1),
            StoreOutcome::Exists => counters.cas_badval.add(1),
            StoreOutcome::NotFound => counters.cas_misses.add(1),
            _ => {}
        }
    }
    if mode == StoreMode::Set && outcome == StoreOutcome::OutOfMemory {
        context.store.delete(key, 0, now);
    }
    outcome
}

/// An item's extent, for those who watch these kinds of events; empty if nobody does, or it has gone.
pub(crate) fn item_size(context: &SessionContext<'_>, kinds: u8, key: HashedKey<'_>, now: Now) -> ItemSize {
    if !context.events.is_enabled(kinds) {
        return ItemSize::default();
    }
    let options = MetaGet { no_bump: true, ..MetaGet::default() };
    let size_of =
        |got: MetaGetOutcome<'_>| ItemSize { slab_class: got.slab_class, value_bytes: got.item.value.value_bytes() };
    context.store.reader(now).meta_get(key, &options, size_of).unwrap_or_default()
}

/// For those who watch. `value_bytes` is there if the item is.
pub(crate) fn record_fetch(context: &SessionContext<'_>, key: HashedKey<'_>, value_bytes: Option<usize>, now: Now) {
    let slab_class = |key| item_size(context, kind::FETCHERS, key, now).slab_class;
    let found = value_bytes.map(|value_bytes| ItemSize { slab_class: slab_class(key), value_bytes });
    context.events.record(Event::Fetched { key: key.key(), found, is_counted: true }, now);
}

/// For those who watch. `outcome` is the reply's line.
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

pub(crate) fn verb_name(mode: StoreMode) -> &'static str {
    match mode {
        StoreMode::Set => "set",
        StoreMode::Add => "add",
        StoreMode::Replace => "replace",
        StoreMode::Append => "append",
        StoreMode::Prepend => "prepend",
        StoreMode::Cas(_) => "cas",
    }
}

fn lease_set_line(outcome: LeaseSetOutcome) -> &'static str {
    match outcome {
        LeaseSetOutcome::Stored(_) => "STORED",
        LeaseSetOutcome::StaleStored => "STALE_STORED",
        LeaseSetOutcome::NotStored => "NOT_STORED",
        LeaseSetOutcome::TooLarge => refusal::TOO_LARGE,
        LeaseSetOutcome::OutOfMemory => OUT_OF_MEMORY,
    }
}

fn delete(context: &SessionContext<'_>, key: HashedKey<'_>, hold_off_ms: u32, now: Now) -> &'static str {
    let item_size = item_size(context, kind::DELETIONS, key, now);
    let is_deleted = context.store.delete(key, hold_off_ms, now) == DeleteOutcome::Deleted;
    record_delete(context, key, is_deleted.then_some(item_size), now);
    if is_deleted { "DELETED" } else { "NOT_FOUND" }
}

/// Counts a delete, and tells those who watch.
pub(crate) fn record_delete(context: &SessionContext<'_>, key: HashedKey<'_>, deleted: Option<ItemSize>, now: Now) {
    if context.events.is_enabled(kind::DELETIONS | kind::PREFIXES) {
        let event = Event::Deleted { key: key.key(), command: "delete", deleted, is_counted: true };
        context.events.record(event, now);
    }
    let counters = context.counters;
    let counter = if deleted.is_some() { &counters.delete_hits } else { &counters.delete_misses };
    counter.add(1);
}

fn touch(context: &SessionContext<'_>, key: HashedKey<'_>, exptime: i64, now: Now) -> &'static str {
    context.counters.cmd_touch.add(1);
    let expiry = Expiry::from_exptime(exptime, now);
    match context.store.reader(now).get_and_touch(key, expiry, |_| ()) {
        Some(()) => {
            context.counters.touch_hits.add(1);
            "TOUCHED"
        }
        None => {
            context.counters.touch_misses.add(1);
            "NOT_FOUND"
        }
    }
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

/// What became of a `flush_all`.
pub(crate) enum Flush {
    /// It takes effect now, or later.
    Scheduled,
    /// The server was told to take none (`-F`).
    Forbidden,
    /// As many as can be remembered wait for their time.
    TooMany,
}

/// `flush_all`.
pub(crate) fn flush_all(context: &SessionContext<'_>, delay_s: i64, now: Now) -> Flush {
    context.counters.cmd_flush.add(1);
    if !context.control.allows_flush() {
        return Flush::Forbidden;
    }
    match context.store.flush_all(flush_time(delay_s, now), now) {
        true => Flush::Scheduled,
        false => Flush::TooMany,
    }
}

/// When a `flush_all` with this delay takes effect.
fn flush_time(delay_s: i64, now: Now) -> Now {
    match Expiry::from_exptime(delay_s, now) {
        Expiry::At { unix_s } if delay_s > 0 => Now { unix_ms: u64::from(unix_s) * 1000 },
        _ => now,
    }
}
