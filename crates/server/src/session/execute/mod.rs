//! Runs one parsed command against the store, and appends its reply to the buffer.
//!
//! | command | reply | counted as |
//! |---|---|---|
//! | get, gat, lease-get | a `VALUE` for each hit, rendered from the item | hit or miss, for each key |
//! | set and its variants, lease-set | one line | `cmd_set` |
//! | delete | `DELETED` or `NOT_FOUND`; either way leases are voided and the hold-off begins | hit or miss |
//!
//! Deliberately absent: sockets and clocks. The counters follow memcached's: a get of ten keys is ten `cmd_get`.

pub(crate) mod admin;
mod meta;
pub(crate) mod record;

use crate::observe::event_log::kind;
use crate::session::context::SessionContext;
use crate::session::reply::{self, NOT_A_NUMBER, OUT_OF_MEMORY, OUT_OF_MEMORY_ARITHMETIC};
use lookaside_protocol::text::refusal;
use lookaside_protocol::{Command, Operation, Request, StoreMode};
use lookaside_store::{
    ArithmeticOutcome, DeleteOutcome, Expiry, HashedKey, LeaseGet, LeaseSetOutcome, NewItem, Now, Reader, StoreOutcome,
};
use record::{count_arithmetic, item_size, record_delete, record_fetch, record_store};

/// The reply to `version`: the release of memcached that this server behaves like, in digits and dots alone, as clients
/// parse it. Its own is [`LOOKASIDE_VERSION`].
pub const VERSION: &str = "1.6.45";

/// The release of this server: `lookaside_version` in `stats` and `stats settings`.
pub(crate) const LOOKASIDE_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Answers `keys` of a get, without its `END`, until `out` holds `reply_bytes_max` bytes. Returns the number of keys
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

/// Answers one key. Returns the length of a hit's value.
fn retrieve_one(
    reader: &Reader<'_>,
    operation: &Operation<&[u8]>,
    key: HashedKey<'_>,
    now: Now,
    out: &mut Vec<u8>,
) -> Option<usize> {
    match *operation {
        Operation::Get { cas } => reader.get(key, |item| reply::write_value(&item, cas, out)),
        Operation::GetAndTouch { exptime, cas } => {
            let expiry = Expiry::from_exptime(exptime, now);
            reader.get_and_touch(key, expiry, |item| reply::write_value(&item, cas, out))
        }
        Operation::LeaseGet => reader.lease_get(key, |outcome| match outcome {
            LeaseGet::Hit(item) => Some(reply::write_value(&item, false, out)),
            LeaseGet::Miss { token, stale } => {
                reply::write_lease(key.key(), token, stale.as_ref(), out);
                None
            }
        }),
        _ => unreachable!("the parser makes retrievals of the get verbs only"),
    }
}

/// Runs any other command. `key` is the request's key, hashed, for commands that have one.
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
            run_single(context, request, *key.expect("a request has a key"), now, out);
            quiet = *noreply;
        }
        Command::FlushAll { delay_s, noreply } => {
            let reply: &[u8] = match flush_all(context, *delay_s, now) {
                Flush::Scheduled => b"OK",
                Flush::Forbidden => b"CLIENT_ERROR flush_all not allowed",
                Flush::TooMany => b"SERVER_ERROR too many flushes lie ahead",
            };
            reply::write_line(reply, out);
            quiet = *noreply;
        }
        Command::Verbosity { level, noreply } => {
            context.control.set_verbosity(*level);
            reply::write_line(b"OK", out);
            quiet = *noreply;
        }
        Command::Stats { arguments } => context.control.stats(arguments, now, out),
        Command::Version => {
            out.extend_from_slice(b"VERSION ");
            reply::write_line(VERSION.as_bytes(), out);
        }
        Command::MetaNoop => reply::write_line(b"MN", out),
        Command::Retrieve { .. } | Command::Quit => unreachable!("the batch handles these itself"),
    }
    if quiet {
        out.truncate(reply_at);
    }
}

/// Writes `line`, if there is one. `key_to_delete` is a key whose new value was refused: its old value is out of date
/// and is deleted.
pub(crate) fn write_reply_line(
    context: &SessionContext<'_>,
    line: Option<&str>,
    key_to_delete: Option<&HashedKey<'_>>,
    now: Now,
    out: &mut Vec<u8>,
) {
    if let Some(key) = key_to_delete {
        context.store.delete(*key, 0, now);
    }
    if let Some(line) = line {
        reply::write_line(line.as_bytes(), out);
    }
}

fn run_single(context: &SessionContext<'_>, request: &Request<&[u8]>, key: HashedKey<'_>, now: Now, out: &mut Vec<u8>) {
    let line = match request.operation {
        Operation::Store { mode, flags, exptime, value, .. } => {
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
                ArithmeticOutcome::Number(number, _) => return reply::write_number_line(number, out),
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
    reply::write_line(line.as_bytes(), out);
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

/// The outcome as a line of the text protocol; watchers get it too.
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

/// Stores and counts.
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
    outcome
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

fn touch(context: &SessionContext<'_>, key: HashedKey<'_>, exptime: i64, now: Now) -> &'static str {
    context.counters.cmd_touch.add(1);
    let expiry = Expiry::from_exptime(exptime, now);
    match context.store.reader(now).touch(key, expiry) {
        true => {
            context.counters.touch_hits.add(1);
            "TOUCHED"
        }
        false => {
            context.counters.touch_misses.add(1);
            "NOT_FOUND"
        }
    }
}

pub(crate) enum Flush {
    /// It takes effect now or later.
    Scheduled,
    /// `-F` forbids it.
    Forbidden,
    /// The store cannot hold more scheduled flushes.
    TooMany,
}

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

/// The time at which a `flush_all` with this delay takes effect.
fn flush_time(delay_s: i64, now: Now) -> Now {
    match Expiry::from_exptime(delay_s, now) {
        Expiry::At { unix_s } if delay_s > 0 => Now { unix_ms: u64::from(unix_s) * 1000 },
        _ => now,
    }
}
