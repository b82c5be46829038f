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

use crate::observe::event_log::{Event, Extent, kind};
use crate::session::admin_command::{Answer, Order};
use crate::session::context::Service;
use crate::session::crawl::{Listing, Walk};
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
    service: &Service<'_>,
    operation: &Operation<&[u8]>,
    keys: &[HashedKey<'_>],
    now: Now,
    reply_bytes_max: usize,
    out: &mut Vec<u8>,
) -> usize {
    let reader = service.store.reader(now);
    let mut answered = 0;
    let mut hits = 0;
    let is_watched = service.attention.is_given_to(kind::FETCHERS | kind::PREFIXES);
    for &key in keys {
        let value_bytes = retrieve_one(&reader, operation, key, now, out);
        hits += u64::from(value_bytes.is_some());
        if is_watched {
            tell_fetched(service, key, value_bytes, now);
        }
        answered += 1;
        if out.len() >= reply_bytes_max {
            break;
        }
    }
    let counters = service.counters;
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
pub(crate) fn command(
    service: &Service<'_>,
    command: &Command<'_>,
    key: Option<&HashedKey<'_>>,
    now: Now,
    out: &mut Vec<u8>,
) {
    let reply_at = out.len();
    let mut quiet = false;
    match command {
        Command::Single { request, noreply } => {
            single(service, request, *key.expect("a request has a key"), now, out);
            quiet = *noreply;
        }
        Command::FlushAll { delay_s, noreply } => {
            let reply: &[u8] = match flush_all(service, *delay_s, now) {
                Flush::Noted => b"OK",
                Flush::Forbidden => b"CLIENT_ERROR flush_all not allowed",
                Flush::TooMany => b"SERVER_ERROR too many flushes lie ahead",
            };
            reply::line(reply, out);
            quiet = *noreply;
        }
        Command::Verbosity { level, noreply } => {
            service.process.set_verbosity(*level);
            reply::line(b"OK", out);
            quiet = *noreply;
        }
        Command::Stats { arguments } => service.process.stats(arguments, now, out),
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
pub(crate) enum Ordered {
    /// It is done.
    Done,
    /// The connection ends with it.
    Close,
    /// The walk that it began goes on later.
    Walking,
}

/// Carries out an operator's order, or goes on with the walk that it began.
pub(crate) fn order(
    service: &Service<'_>,
    order: &Order<'_>,
    walk: &mut Option<Box<Walk>>,
    now: Now,
    reply_bytes_max: usize,
    out: &mut Vec<u8>,
) -> Ordered {
    let process = service.process;
    let refused;
    let line = match order.answer(process.crawls()) {
        Answer::Walk(Listing::Metadump(_) | Listing::Mgdump(_)) if !process.dumps() => "ERROR metadump not allowed",
        Answer::Walk(Listing::Cachedump { .. }) if !process.dumps() => "CLIENT_ERROR stats cachedump not allowed",
        Answer::Walk(Listing::Sizes) if !process.tracks_sizes() => "STAT sizes_status disabled\r\nEND",
        Answer::Walk(listing) => {
            if walk.is_none() {
                *walk = Walk::begin(service.store, listing, now, out).map(Box::new);
            }
            match walk {
                Some(walk) => match walk.step(service, now, reply_bytes_max, out) {
                    true => return Ordered::Done,
                    false => return Ordered::Walking,
                },
                None if listing == Listing::Sizes => TOO_MANY_WALKS_FOR_SIZES,
                None => "BUSY currently processing crawler request",
            }
        }
        Answer::MovePage { from, to } => match service.store.move_page(from, to, now) {
            PageMove::Moved => "OK",
            PageMove::Busy => "BUSY currently processing reassign request",
            PageMove::NoSpare => "NOSPARE source class has no spare pages",
            PageMove::BadClass => "BADCLASS invalid src or dst class id",
        },
        Answer::Automove(is_on) => {
            service.store.set_rebalance(is_on);
            "OK"
        }
        Answer::Line(line) => line,
        Answer::Crawler(crawls) => {
            process.set_crawls(crawls);
            "OK"
        }
        Answer::MemoryLimit(megabytes) => match process.set_memory_limit(megabytes) {
            true => "OK",
            false => "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust",
        },
        Answer::ShutDown if process.shut_down() => return Ordered::Close,
        Answer::ShutDownUnknown if process.allows_shut_down() => "CLIENT_ERROR invalid shutdown mode",
        Answer::ShutDown | Answer::ShutDownUnknown => "SERVER_ERROR: shutdown not enabled",
        Answer::Watch(kinds) => match process.refuses_watchers() {
            Some(refusal) => refusal,
            None if service.attention.want(kinds) => {
                reply::line(b"OK", out);
                return Ordered::Close;
            }
            None => "ERROR",
        },
        Answer::RefreshCertificates => match process.refresh_certificates() {
            Ok(()) => "OK",
            Err(why) => {
                refused = why;
                &refused
            }
        },
    };
    if !order.is_quiet() {
        reply::line(line.as_bytes(), out);
    }
    Ordered::Done
}

/// Says `line`; `dropped` is the key whose new value was refused, and whose old value would be out of date.
pub(crate) fn refuse(
    service: &Service<'_>,
    line: Option<&str>,
    dropped: Option<&HashedKey<'_>>,
    now: Now,
    out: &mut Vec<u8>,
) {
    if let Some(key) = dropped {
        service.store.delete(*key, 0, now);
    }
    if let Some(line) = line {
        reply::line(line.as_bytes(), out);
    }
}

fn single(service: &Service<'_>, request: &Request<&[u8]>, key: HashedKey<'_>, now: Now, out: &mut Vec<u8>) {
    let line = match request.operation {
        Operation::Store { mode, flags, exptime, value } => {
            let item = NewItem { flags, expiry: Expiry::from_exptime(exptime, now), value };
            let line = store(service, key, mode, &item, now);
            tell_stored(service, key, command_of(mode), exptime, value, line, now);
            line
        }
        Operation::LeaseSet { token, flags, exptime, value } => {
            let item = NewItem { flags, expiry: Expiry::from_exptime(exptime, now), value };
            service.counters.cmd_set.add(1);
            let line = lease_set_line(service.store.lease_set(key, token, &item, now));
            tell_stored(service, key, "lease-set", exptime, value, line, now);
            line
        }
        Operation::Delete { hold_off_ms } => delete(service, key, hold_off_ms, now),
        Operation::Arithmetic { direction, delta } => {
            let outcome = service.store.arithmetic(key, direction, delta, now);
            count_arithmetic(service, direction, outcome);
            match outcome {
                ArithmeticOutcome::Number(number, _) => return reply::number_line(number, out),
                ArithmeticOutcome::NotFound => "NOT_FOUND",
                ArithmeticOutcome::NotANumber => NOT_A_NUMBER,
                ArithmeticOutcome::OutOfMemory => OUT_OF_MEMORY_ARITHMETIC,
            }
        }
        Operation::Touch { exptime } => touch(service, key, exptime, now),
        Operation::Meta(ref meta) => return meta::execute(service, meta, key, now, out),
        Operation::Get { .. } | Operation::GetAndTouch { .. } | Operation::LeaseGet => {
            unreachable!("the parser makes retrievals of the get verbs")
        }
    };
    reply::line(line.as_bytes(), out);
}

fn store(service: &Service<'_>, key: HashedKey<'_>, mode: StoreMode, item: &NewItem<'_>, now: Now) -> &'static str {
    store_line(store_outcome(service, key, mode, item, now))
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
    service: &Service<'_>,
    key: HashedKey<'_>,
    mode: StoreMode,
    item: &NewItem<'_>,
    now: Now,
) -> StoreOutcome {
    let counters = service.counters;
    counters.cmd_set.add(1);
    let outcome = service.store.store(key, mode, item, now);
    if matches!(mode, StoreMode::Cas(_)) {
        match outcome {
            StoreOutcome::Stored(_) => counters.cas_hits.add(1),
            StoreOutcome::Exists => counters.cas_badval.add(1),
            StoreOutcome::NotFound => counters.cas_misses.add(1),
            _ => {}
        }
    }
    if mode == StoreMode::Set && outcome == StoreOutcome::OutOfMemory {
        service.store.delete(key, 0, now);
    }
    outcome
}

/// An item's extent, for those who watch these kinds of events; empty if nobody does, or it has gone.
pub(crate) fn extent(service: &Service<'_>, kinds: u8, key: HashedKey<'_>, now: Now) -> Extent {
    if !service.attention.is_given_to(kinds) {
        return Extent::default();
    }
    let terms = MetaGet { no_bump: true, ..MetaGet::default() };
    let shown = |looked: MetaGetOutcome<'_>| Extent {
        slab_class: looked.slab_class,
        value_bytes: looked.item.value.value_bytes(),
    };
    service.store.reader(now).meta_get(key, &terms, shown).unwrap_or_default()
}

/// For those who watch. `value_bytes` is there if the item is.
pub(crate) fn tell_fetched(service: &Service<'_>, key: HashedKey<'_>, value_bytes: Option<usize>, now: Now) {
    let slab_class = |key| extent(service, kind::FETCHERS, key, now).slab_class;
    let found = value_bytes.map(|value_bytes| Extent { slab_class: slab_class(key), value_bytes });
    service.attention.tell(Event::Fetched { key: key.key(), found, is_counted: true }, now);
}

/// For those who watch. `outcome` is the reply's line.
pub(crate) fn tell_stored(
    service: &Service<'_>,
    key: HashedKey<'_>,
    command: &'static str,
    exptime: i64,
    value: &[u8],
    outcome: &str,
    now: Now,
) {
    if service.attention.is_given_to(kind::MUTATIONS | kind::PREFIXES) {
        let extent = match outcome {
            "STORED" | "STALE_STORED" => extent(service, kind::MUTATIONS, key, now),
            _ => Extent { slab_class: 0, value_bytes: value.len() },
        };
        let event = Event::Stored { key: key.key(), outcome, command, exptime, extent, is_counted: true };
        service.attention.tell(event, now);
    }
}

pub(crate) fn command_of(mode: StoreMode) -> &'static str {
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

fn delete(service: &Service<'_>, key: HashedKey<'_>, hold_off_ms: u32, now: Now) -> &'static str {
    let extent = extent(service, kind::DELETIONS, key, now);
    let is_deleted = service.store.delete(key, hold_off_ms, now) == DeleteOutcome::Deleted;
    note_delete(service, key, is_deleted.then_some(extent), now);
    if is_deleted { "DELETED" } else { "NOT_FOUND" }
}

/// Counts a delete, and tells those who watch.
pub(crate) fn note_delete(service: &Service<'_>, key: HashedKey<'_>, deleted: Option<Extent>, now: Now) {
    if service.attention.is_given_to(kind::DELETIONS | kind::PREFIXES) {
        let event = Event::Deleted { key: key.key(), command: "delete", deleted, is_counted: true };
        service.attention.tell(event, now);
    }
    let counters = service.counters;
    let counter = if deleted.is_some() { &counters.delete_hits } else { &counters.delete_misses };
    counter.add(1);
}

fn touch(service: &Service<'_>, key: HashedKey<'_>, exptime: i64, now: Now) -> &'static str {
    service.counters.cmd_touch.add(1);
    let expiry = Expiry::from_exptime(exptime, now);
    match service.store.reader(now).get_and_touch(key, expiry, |_| ()) {
        Some(()) => {
            service.counters.touch_hits.add(1);
            "TOUCHED"
        }
        None => {
            service.counters.touch_misses.add(1);
            "NOT_FOUND"
        }
    }
}

pub(crate) fn count_arithmetic(service: &Service<'_>, direction: Direction, outcome: ArithmeticOutcome) {
    let counters = service.counters;
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
    Noted,
    /// The server was told to take none (`-F`).
    Forbidden,
    /// As many as can be remembered wait for their time.
    TooMany,
}

/// `flush_all`.
pub(crate) fn flush_all(service: &Service<'_>, delay_s: i64, now: Now) -> Flush {
    service.counters.cmd_flush.add(1);
    if !service.process.allows_flush() {
        return Flush::Forbidden;
    }
    match service.store.flush_all(flush_time(delay_s, now), now) {
        true => Flush::Noted,
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
