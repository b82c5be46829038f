//! Runs meta commands against the store.
//!
//! | command | does |
//! |---|---|
//! | `mg` | get; with `T` get and touch; with `N` and `R` it says which client is to recache; `u` does not update the access state |
//! | `ms` | every mode, each with `C` and `E`; `N` with append and prepend; `I` accepts an older `C` and marks the item stale |
//! | `md` | delete; `C` is compared first; `I` marks the item stale instead; `x` leaves an empty value |
//! | `ma` | incr and decr, with `C`, `E`, `N` and `J`, `T` |
//! | `me` | shows what the store knows of an item, with `a` its age too; does not update the access state |
//!
//! Each command is one atomic step in the store, which also defines the commands that see an item that is stale or has
//! no value yet (`lookaside_store`).

use crate::observe::event_log::{Event, ItemSize, kind};
use crate::session::context::SessionContext;
use crate::session::execute::record::{count_arithmetic, item_size};
use crate::session::reply::{self, NOT_A_NUMBER, OUT_OF_MEMORY, OUT_OF_MEMORY_ARITHMETIC};
use lookaside_protocol::meta::{
    MetaFlags, MetaItemInfo, MetaOperation, MetaStatus, MetaVerb, compose_meta_reply, decode_key,
};
use lookaside_protocol::text::refusal;
use lookaside_protocol::{Cas, KEY_BYTES_MAX};
use lookaside_store::{
    ArithmeticOutcome, Expiry, HashedKey, ItemAge, MetaArithmetic, MetaArithmeticOutcome, MetaDelete,
    MetaDeleteOutcome, MetaGet, MetaGetOutcome, MetaSet, NewItem, Now, Recache, StoreNumber, StoreOutcome,
};

/// The status of a command, or an error line.
type MetaResult = Result<MetaStatus, &'static str>;

/// A meta command in execution.
struct Meta<'a> {
    context: &'a SessionContext<'a>,
    now: Now,
    /// The key as the client sent it, for the reply.
    wire_key: &'a [u8],
    /// The key in the store.
    key: HashedKey<'a>,
    flags: MetaFlags<'a>,
}

/// Runs one meta command. `key` is hashed as it was sent; a key in base64 is decoded and hashed again.
pub(crate) fn execute(
    context: &SessionContext<'_>,
    operation: &MetaOperation<&[u8]>,
    key: HashedKey<'_>,
    now: Now,
    out: &mut Vec<u8>,
) {
    context.counters.cmd_meta.add(1);
    let reply_at = out.len();
    let result = MetaFlags::read(operation.verb, operation.flags).and_then(|flags| {
        let mut buffer = [0; KEY_BYTES_MAX];
        let stored_key = match flags.has(b'b') {
            true => {
                let decoded = decode_key(key.key(), &mut buffer).ok_or("CLIENT_ERROR error decoding key")?;
                context.store.hasher().hash(decoded)
            }
            false => key,
        };
        let before = match operation.verb {
            MetaVerb::Delete => item_size(context, kind::DELETIONS, stored_key, now),
            _ => ItemSize::default(),
        };
        let status = Meta { context, now, wire_key: key.key(), key: stored_key, flags }.run_verb(operation, out)?;
        if context.events.is_enabled(RECORDED) {
            record_event(context, operation, stored_key, status, before, now);
        }
        Ok(status)
    });
    match result {
        Ok(status) if is_quiet(operation, status) => out.truncate(reply_at),
        Ok(_) => {}
        Err(line) => {
            out.truncate(reply_at);
            reply::write_line(line.as_bytes(), out);
        }
    }
}

/// The kinds of events that meta commands record.
const RECORDED: u8 = kind::FETCHERS | kind::MUTATIONS | kind::DELETIONS;

/// Records the command for watchers. As in memcached, prefixes do not count meta commands. `before` is the item that a
/// delete found.
fn record_event(
    context: &SessionContext<'_>,
    operation: &MetaOperation<&[u8]>,
    hashed_key: HashedKey<'_>,
    status: MetaStatus,
    before: ItemSize,
    now: Now,
) {
    let (key, is_counted) = (hashed_key.key(), false);
    let event = match operation.verb {
        MetaVerb::Get => {
            let is_found = matches!(status, MetaStatus::Value | MetaStatus::Done);
            let found = is_found.then(|| item_size(context, kind::FETCHERS, hashed_key, now));
            Event::Fetched { key, found, is_counted }
        }
        MetaVerb::Set => {
            let outcome = match status {
                MetaStatus::Done => "stored",
                MetaStatus::Exists => "exists",
                MetaStatus::NotFound => "not_found",
                _ => "not_stored",
            };
            let item_size = match status {
                MetaStatus::Done => item_size(context, kind::MUTATIONS, hashed_key, now),
                _ => ItemSize { slab_class: 0, value_bytes: operation.value.map_or(0, <[u8]>::len) },
            };
            Event::Stored { key, outcome, command: "ms", exptime: 0, item_size, is_counted }
        }
        MetaVerb::Delete => {
            let deleted = (status == MetaStatus::Done).then_some(before);
            Event::Deleted { key, command: "md", deleted, is_counted }
        }
        _ => return,
    };
    context.events.record(event, now);
}

fn is_quiet(operation: &MetaOperation<&[u8]>, status: MetaStatus) -> bool {
    status.is_silent(operation.verb)
        && lookaside_protocol::meta::meta_flags(operation.flags).any(|flag| flag.letter == b'q')
}

impl Meta<'_> {
    fn run_verb(&self, operation: &MetaOperation<&[u8]>, out: &mut Vec<u8>) -> MetaResult {
        match operation.verb {
            MetaVerb::Get => self.get(out),
            MetaVerb::Set => self.set(operation.value.unwrap_or_default(), out),
            MetaVerb::Delete => self.delete(out),
            MetaVerb::Arithmetic => self.arithmetic(out),
            MetaVerb::Debug => Ok(self.debug(out)),
        }
    }

    fn expiry(&self, ttl_s: Option<i32>) -> Expiry {
        Expiry::from_exptime(ttl_s.unwrap_or(0).into(), self.now)
    }

    fn compose_reply(
        &self,
        status: MetaStatus,
        info: &MetaItemInfo,
        value: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> MetaStatus {
        compose_meta_reply(status, self.wire_key, &self.flags, info, value, out);
        if value.is_some() { MetaStatus::Value } else { status }
    }

    /// Composes a reply without an item.
    fn compose_status(&self, status: MetaStatus, out: &mut Vec<u8>) -> MetaStatus {
        self.compose_reply(status, &MetaItemInfo::default(), None, out)
    }

    fn get(&self, out: &mut Vec<u8>) -> MetaResult {
        let counters = self.context.counters;
        counters.cmd_get.add(1);
        let touches = self.flags.ttl_s.is_some();
        counters.cmd_touch.add(touches.into());
        let options = MetaGet {
            no_bump: self.flags.has(b'u'),
            touch: self.flags.ttl_s.map(|ttl_s| self.expiry(Some(ttl_s))),
            vivify: self.flags.vivify_ttl_s.map(|_| self.expiry_by_flags(None)),
            recache: self.flags.recache_below_s.map(|below_s| Recache {
                before: self.expiry(Some(below_s)),
                is_touched_first: self.precedes(b'T', b'R'),
            }),
            cas_new: self.flags.cas_new,
            counts_miss: true,
        };
        let reader = self.context.store.reader(self.now);
        let found = reader.meta_get(self.key, &options, |got| (self.compose_item(&got, out), got.is_vivified));
        // A get that has created a placeholder is a miss.
        let is_hit = found.is_some_and(|(_, is_vivified)| !is_vivified);
        counters.get_hits.add(is_hit.into());
        counters.get_misses.add((!is_hit).into());
        counters.touch_hits.add((touches && is_hit).into());
        counters.touch_misses.add((touches && !is_hit).into());
        match found {
            Some((status, _)) => Ok(status),
            None => Ok(self.compose_status(MetaStatus::Miss, out)),
        }
    }

    /// Whether the command has both flags, `first` in front of `second`.
    fn precedes(&self, first: u8, second: u8) -> bool {
        let mut order =
            self.flags.in_order().map(|flag| flag.letter).filter(|&letter| letter == first || letter == second);
        order.next() == Some(first) && order.next() == Some(second)
    }

    /// The expiry that the later of `N` and `T` sets, of those in front of the flag `end`.
    fn expiry_by_flags(&self, end: Option<u8>) -> Expiry {
        let set_by = self.flags.in_order().map(|flag| flag.letter).take_while(|&letter| Some(letter) != end);
        self.expiry(set_by.fold(None, |ttl_s, letter| match letter {
            b'N' => self.flags.vivify_ttl_s,
            b'T' => self.flags.ttl_s,
            _ => ttl_s,
        }))
    }

    fn compose_item(&self, got: &MetaGetOutcome<'_>, out: &mut Vec<u8>) -> MetaStatus {
        let item = &got.item;
        // `t` shows the expiry that results from the flags in front of it.
        let expiry = match () {
            () if got.is_vivified => self.expiry_by_flags(Some(b't')),
            () if self.precedes(b't', b'T') => got.expiry_before,
            () => item.expiry,
        };
        let info = MetaItemInfo {
            cas: Some(item.cas),
            client_flags: Some(item.flags),
            hit_before: Some(item.fetched),
            idle_s: Some(item.last_access_age_s),
            value_bytes: Some(item.value.value_bytes()),
            ttl_s: Some(ttl_s(expiry, self.now)),
            already_won: got.win_already_sent,
            stale: got.is_stale,
            won: got.is_won,
        };
        // With `C` the value is sent only if the client's CAS differs.
        if !self.flags.has(b'v') || self.flags.cas_compare == Some(item.cas) {
            return self.compose_reply(MetaStatus::Done, &info, None, out);
        }
        let mut pieces = item.value.pieces();
        let first = pieces.next().unwrap_or_default();
        if first.len() == item.value.value_bytes() {
            return self.compose_reply(MetaStatus::Value, &info, Some(first), out);
        }
        // A large value is in several pieces, and the composer needs it in one.
        self.compose_reply(MetaStatus::Value, &info, Some(&item.value.to_vec()), out)
    }

    fn set(&self, value: &[u8], out: &mut Vec<u8>) -> MetaResult {
        self.context.counters.cmd_set.add(1);
        let flags = self.flags.client_flags.unwrap_or(0);
        let item = NewItem { flags, expiry: self.expiry(self.flags.ttl_s), value };
        let options = MetaSet {
            cas_compare: self.cas_compare_unless_zero(),
            cas_new: self.flags.cas_new,
            invalidates: self.flags.has(b'I'),
            vivify: self.flags.vivify_ttl_s.map(|ttl_s| self.expiry(Some(ttl_s))),
        };
        let mode = self.flags.store_mode();
        let (outcome, value_bytes) = self.context.store.meta_set(self.key, mode, &item, &options, self.now);
        // The CAS of an item that was not stored is 0.
        let mut info = MetaItemInfo { value_bytes: Some(value_bytes), cas: Some(Cas(0)), ..MetaItemInfo::default() };
        let status = match outcome {
            StoreOutcome::Stored(cas) => {
                info.cas = Some(cas);
                MetaStatus::Done
            }
            StoreOutcome::NotStored => MetaStatus::NotStored,
            StoreOutcome::Exists => MetaStatus::Exists,
            StoreOutcome::NotFound => MetaStatus::NotFound,
            StoreOutcome::TooLarge => return Err(refusal::TOO_LARGE),
            StoreOutcome::OutOfMemory => return Err(OUT_OF_MEMORY),
        };
        Ok(self.compose_reply(status, &info, None, out))
    }

    /// The CAS that append, prepend and `ma` compare; for these 0 is none.
    fn cas_compare_unless_zero(&self) -> Option<Cas> {
        self.flags.cas_compare.filter(|&cas| cas != Cas(0))
    }

    fn delete(&self, out: &mut Vec<u8>) -> MetaResult {
        let options = MetaDelete {
            cas_compare: self.flags.cas_compare,
            cas_new: self.flags.cas_new,
            invalidates: self.flags.has(b'I'),
            empties: self.flags.has(b'x'),
            touch: self.flags.ttl_s.map(|ttl_s| self.expiry(Some(ttl_s))),
        };
        let counters = self.context.counters;
        let status = match self.context.store.meta_delete(self.key, &options, self.now) {
            MetaDeleteOutcome::Deleted => {
                counters.delete_hits.add(1);
                MetaStatus::Done
            }
            MetaDeleteOutcome::NotFound => {
                counters.delete_misses.add(1);
                MetaStatus::NotFound
            }
            MetaDeleteOutcome::Exists => MetaStatus::Exists,
        };
        Ok(self.compose_status(status, out))
    }

    fn arithmetic(&self, out: &mut Vec<u8>) -> MetaResult {
        let direction = self.flags.direction();
        let options = MetaArithmetic {
            cas_compare: self.cas_compare_unless_zero(),
            cas_new: self.flags.cas_new,
            touch: self.flags.ttl_s.map(|ttl_s| self.expiry(Some(ttl_s))),
            vivify: self.flags.vivify_ttl_s.map(|_| (self.flags.initial.unwrap_or(0), self.expiry_by_flags(None))),
        };
        let delta = self.flags.delta.unwrap_or(1);
        let outcome = self.context.store.meta_arithmetic(self.key, direction, delta, &options, self.now);
        let (number, cas, expiry) = match outcome {
            MetaArithmeticOutcome::Exists => return Ok(self.compose_status(MetaStatus::Exists, out)),
            MetaArithmeticOutcome::NotStored => return Ok(self.compose_status(MetaStatus::NotStored, out)),
            MetaArithmeticOutcome::Vivified(cas) => {
                (self.flags.initial.unwrap_or(0), cas, self.expiry_by_flags(Some(b't')))
            }
            MetaArithmeticOutcome::Counted { outcome, expiry: [before, after] } => {
                count_arithmetic(self.context, direction, outcome);
                let expiry = if self.precedes(b't', b'T') { before } else { after };
                match outcome {
                    ArithmeticOutcome::Number(number, cas) => (number, cas, expiry),
                    ArithmeticOutcome::NotFound => return Ok(self.compose_status(MetaStatus::NotFound, out)),
                    ArithmeticOutcome::NotANumber => return Err(NOT_A_NUMBER),
                    ArithmeticOutcome::OutOfMemory => return Err(OUT_OF_MEMORY_ARITHMETIC),
                }
            }
        };
        let info = MetaItemInfo { cas: Some(cas), ttl_s: Some(ttl_s(expiry, self.now)), ..MetaItemInfo::default() };
        let mut digits = itoa::Buffer::new();
        let value = self.flags.has(b'v').then(|| digits.format(number).as_bytes());
        Ok(self.compose_reply(MetaStatus::Done, &info, value, out))
    }

    fn debug(&self, out: &mut Vec<u8>) -> MetaStatus {
        let options = MetaGet { no_bump: true, ..MetaGet::default() };
        let found = self.context.store.reader(self.now).meta_get(self.key, &options, |got| {
            let item = got.item;
            out.extend_from_slice(b"ME ");
            out.extend_from_slice(self.wire_key);
            let info = format!(
                " exp={} la={} cas={} fetch={} cls={} size={}",
                ttl_s(item.expiry, self.now),
                item.last_access_age_s,
                item.cas.0,
                if item.fetched { "yes" } else { "no" },
                got.slab_class,
                got.item_bytes,
            );
            out.extend_from_slice(info.as_bytes());
            (got.number, got.is_hidden)
        });
        let Some((number, is_hidden)) = found else {
            reply::write_line(b"EN", out);
            return MetaStatus::Miss;
        };
        let age = if self.flags.has(b'a') { self.age(number, is_hidden) } else { String::new() };
        reply::write_line(age.as_bytes(), out);
        MetaStatus::Debug
    }

    /// What `a` adds to an `me`: ` age=1500-2530 hidden=no`. The least and the greatest number of milliseconds since
    /// the item was stored, the latter empty if it is not known, and whether classic verbs miss it.
    fn age(&self, number: StoreNumber, is_hidden: bool) -> String {
        let ItemAge { min_ms, max_ms } = self.context.store.item_age(number, self.now);
        let max_ms = max_ms.map_or_else(String::new, |max_ms| max_ms.to_string());
        format!(" age={min_ms}-{max_ms} hidden={}", if is_hidden { "yes" } else { "no" })
    }
}

/// The remaining time to live in seconds; -1 if the item does not expire.
fn ttl_s(expiry: Expiry, now: Now) -> i64 {
    match expiry {
        Expiry::Never => -1,
        Expiry::At { unix_s } => i64::from(unix_s) - (now.unix_ms / 1000) as i64,
    }
}
