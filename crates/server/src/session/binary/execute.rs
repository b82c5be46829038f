//! Executes operations on one key, and composes the responses.

use crate::observe::event_log::kind;
use crate::session::context::SessionContext;
use crate::session::execute::{self, record};
use lookaside_protocol::binary::{
    BinaryOperation, BinaryRequest, Response, ResponseTag, Status, Vivify, compose_error, compose_hit, compose_response,
};
use lookaside_protocol::{Cas, Direction, StoreMode};
use lookaside_store::{
    ArithmeticOutcome, DeleteOutcome, Expiry, HashedKey, ItemView, MetaArithmetic, MetaArithmeticOutcome, MetaDelete,
    MetaDeleteOutcome, MetaSet, NewItem, Now, StoreOutcome,
};

pub(super) fn execute(
    context: &SessionContext<'_>,
    request: &BinaryRequest<'_>,
    operation: &BinaryOperation<'_>,
    key: HashedKey<'_>,
    now: Now,
    out: &mut Vec<u8>,
) {
    let result = match *operation {
        BinaryOperation::Get { exptime, with_key, with_value } => {
            let request_options = GetRequest { exptime, with_key, with_value };
            return get(context, request, &request_options, key, now, out);
        }
        BinaryOperation::Store { mode, flags, exptime, value } => {
            let item = NewItem { flags, expiry: Expiry::from_exptime(exptime, now), value };
            let outcome = execute::store_outcome(context, key, mode, &item, now);
            record_stored(context, key, mode, exptime, value, outcome, now);
            store_reply(mode, outcome)
        }
        BinaryOperation::Extend { mode, cas, value } => {
            let item = NewItem { flags: 0, expiry: Expiry::Never, value };
            let outcome = match cas {
                None => execute::store_outcome(context, key, mode, &item, now),
                Some(expected) => extend_if_unchanged(context, key, mode, &item, expected, now),
            };
            record_stored(context, key, mode, 0, value, outcome, now);
            store_reply(mode, outcome)
        }
        BinaryOperation::Delete { cas } => delete(context, key, cas, now),
        BinaryOperation::Arithmetic { direction, delta, vivify, cas } => {
            match run_arithmetic(context, key, direction, delta, vivify, cas, now) {
                Ok((number, cas)) if !request.is_quiet() => {
                    let value = &number.to_be_bytes();
                    let status = Status::Success;
                    let extras = b"";
                    return compose_response(&Response { tag: request.tag, status, cas, extras, key: b"", value }, out);
                }
                result => result.map(|(_, cas)| cas),
            }
        }
    };
    match result {
        Ok(_) if request.is_quiet() => {}
        Ok(cas) => compose_success(request.tag, cas, out),
        Err(status) => compose_error(request.tag, status, out),
    }
}

struct GetRequest {
    exptime: Option<i64>,
    with_key: bool,
    with_value: bool,
}

#[inline]
fn get(
    context: &SessionContext<'_>,
    request: &BinaryRequest<'_>,
    request_options: &GetRequest,
    key: HashedKey<'_>,
    now: Now,
    out: &mut Vec<u8>,
) {
    let (tag, counters) = (request.tag, context.counters);
    let reply_key = if request_options.with_key { key.key() } else { b"" };
    let render = |item: ItemView<'_>| {
        let value_bytes = if request_options.with_value { item.value.value_bytes() } else { 0 };
        compose_hit(tag, item.cas, item.flags, reply_key, value_bytes, out);
        if request_options.with_value {
            item.value.pieces().for_each(|piece| out.extend_from_slice(piece));
        }
        item.value.value_bytes()
    };
    let reader = context.store.reader(now);
    let found_bytes = match request_options.exptime {
        None => reader.get(key, render),
        Some(exptime) => reader.get_and_touch(key, Expiry::from_exptime(exptime, now), render),
    };
    let is_hit = found_bytes.is_some();
    if context.events.is_enabled(kind::FETCHERS | kind::PREFIXES) {
        record::record_fetch(context, key, found_bytes, now);
    }
    // As in memcached, a get that touches counts only as a touch in this protocol.
    let (requests, hits, misses) = match request_options.exptime {
        None => (&counters.cmd_get, &counters.get_hits, &counters.get_misses),
        Some(_) => (&counters.cmd_touch, &counters.touch_hits, &counters.touch_misses),
    };
    requests.add(1);
    if is_hit {
        hits.add(1)
    } else {
        misses.add(1)
    }
    if is_hit || request.is_quiet() {
        return;
    }
    match request_options.with_key {
        // The key takes the place of the error message.
        true => {
            let (status, cas, extras) = (Status::NotFound, Cas(0), &b""[..]);
            compose_response(&Response { tag, status, cas, extras, key: key.key(), value: b"" }, out);
        }
        false => compose_error(tag, Status::NotFound, out),
    }
}

fn record_stored(
    context: &SessionContext<'_>,
    key: HashedKey<'_>,
    mode: StoreMode,
    exptime: i64,
    value: &[u8],
    outcome: StoreOutcome,
    now: Now,
) {
    let (command, line) = (execute::verb_name(mode), execute::store_line(outcome));
    record::record_store(context, key, command, exptime, value, line, now);
}

fn store_reply(mode: StoreMode, outcome: StoreOutcome) -> Result<Cas, Status> {
    match outcome {
        StoreOutcome::Stored(cas) => Ok(cas),
        StoreOutcome::NotStored if mode == StoreMode::Add => Err(Status::Exists),
        StoreOutcome::NotStored if mode == StoreMode::Replace => Err(Status::NotFound),
        StoreOutcome::NotStored => Err(Status::NotStored),
        StoreOutcome::Exists => Err(Status::Exists),
        StoreOutcome::NotFound => Err(Status::NotFound),
        // The parser has checked that the appended value is within the limit.
        StoreOutcome::TooLarge if matches!(mode, StoreMode::Append | StoreMode::Prepend) => Err(Status::NotStored),
        StoreOutcome::TooLarge => Err(Status::TooLarge),
        StoreOutcome::OutOfMemory => Err(Status::OutOfMemory),
    }
}

/// Appends or prepends if the item has the expected CAS.
fn extend_if_unchanged(
    context: &SessionContext<'_>,
    key: HashedKey<'_>,
    mode: StoreMode,
    item: &NewItem<'_>,
    expected: Cas,
    now: Now,
) -> StoreOutcome {
    context.counters.cmd_set.add(1);
    let options = MetaSet { cas_compare: Some(expected), ..MetaSet::default() };
    context.store.meta_set(key, mode, item, &options, now).0
}

fn delete(context: &SessionContext<'_>, key: HashedKey<'_>, expected: Option<Cas>, now: Now) -> Result<Cas, Status> {
    let item_size = record::item_size(context, kind::DELETIONS, key, now);
    let is_deleted = match expected {
        None => context.store.delete(key, 0, now) == DeleteOutcome::Deleted,
        Some(_) => {
            let options = MetaDelete { cas_compare: expected, ..MetaDelete::default() };
            match context.store.meta_delete(key, &options, now) {
                MetaDeleteOutcome::Deleted => true,
                MetaDeleteOutcome::NotFound => false,
                MetaDeleteOutcome::Exists => return Err(Status::Exists),
            }
        }
    };
    record::record_delete(context, key, is_deleted.then_some(item_size), now);
    if is_deleted { Ok(Cas(0)) } else { Err(Status::NotFound) }
}

/// Increments or decrements; creates the number if there is none. It is not stored if another client creates it first,
/// or during a hold-off.
fn run_arithmetic(
    context: &SessionContext<'_>,
    key: HashedKey<'_>,
    direction: Direction,
    delta: u64,
    vivify: Option<Vivify>,
    expected: Option<Cas>,
    now: Now,
) -> Result<(u64, Cas), Status> {
    let outcome = match expected {
        None => context.store.arithmetic(key, direction, delta, now),
        Some(_) => {
            let options = MetaArithmetic { cas_compare: expected, ..MetaArithmetic::default() };
            match context.store.meta_arithmetic(key, direction, delta, &options, now) {
                MetaArithmeticOutcome::Counted { outcome, .. } => outcome,
                MetaArithmeticOutcome::Exists => return Err(Status::Exists),
                MetaArithmeticOutcome::Vivified(_) | MetaArithmeticOutcome::NotStored => {
                    unreachable!("vivify was not requested")
                }
            }
        }
    };
    match (outcome, vivify) {
        (ArithmeticOutcome::NotFound, Some(vivify)) => return vivify_counter(context, key, vivify, now),
        _ => record::count_arithmetic(context, direction, outcome),
    }
    match outcome {
        ArithmeticOutcome::Number(number, cas) => Ok((number, cas)),
        ArithmeticOutcome::NotFound => Err(Status::NotFound),
        ArithmeticOutcome::NotANumber => Err(Status::NotANumber),
        ArithmeticOutcome::OutOfMemory => Err(Status::OutOfMemory),
    }
}

fn vivify_counter(
    context: &SessionContext<'_>,
    key: HashedKey<'_>,
    vivify: Vivify,
    now: Now,
) -> Result<(u64, Cas), Status> {
    let mut digits = itoa::Buffer::new();
    let value = digits.format(vivify.initial).as_bytes();
    let item = NewItem { flags: 0, expiry: Expiry::from_exptime(vivify.exptime, now), value };
    match context.store.store(key, StoreMode::Add, &item, now) {
        StoreOutcome::Stored(cas) => Ok((vivify.initial, cas)),
        StoreOutcome::OutOfMemory => Err(Status::OutOfMemory),
        _ => Err(Status::NotStored),
    }
}

fn compose_success(tag: ResponseTag, cas: Cas, out: &mut Vec<u8>) {
    compose_response(&Response { tag, status: Status::Success, cas, extras: b"", key: b"", value: b"" }, out);
}
