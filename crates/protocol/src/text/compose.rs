//! Composes a client's requests and a server's replies in the text protocol.
//!
//! Composing appends to a buffer that the caller reuses, so that it soon stops growing. Callers check keys
//! ([`crate::check_key`]): a line feed in a key would begin another command.

use super::line_tail::LineTail;
use crate::{
    Cas, Command, Direction, ErrorReply, Operation, Reply, Request, StoreMode, check_key, meta::append_meta_reply,
    meta::append_meta_request,
};

/// Ends the reply to a get of one or many keys.
pub const END: &[u8] = b"END\r\n";

/// Ends a line.
pub const LINE_END: &[u8] = b"\r\n";

/// Appends `request`, without `noreply`. A retrieving operation becomes a get of one key.
///
/// ```
/// use lookaside_protocol::{Operation, Request, text::compose_request};
/// let mut out = Vec::new();
/// compose_request(&Request { key: "user:1", operation: Operation::Delete { hold_off_ms: 250 } }, &mut out);
/// assert_eq!(out, b"delete user:1 0.25\r\n");
/// ```
pub fn compose_request<B: AsRef<[u8]>>(request: &Request<B>, out: &mut Vec<u8>) {
    compose_single(request, false, out);
}

/// Appends one line that gets all `keys`; nothing if there are none. `operation` is a retrieving one: `Get`,
/// `GetAndTouch` or `LeaseGet`.
///
/// # Panics
/// If `operation` is another one.
///
/// ```
/// use lookaside_protocol::{Operation, text::compose_retrieve};
/// let mut out = Vec::new();
/// compose_retrieve(&Operation::<&[u8]>::Get { cas: false }, ["user:1", "user:2"], &mut out);
/// assert_eq!(out, b"get user:1 user:2\r\n");
/// ```
pub fn compose_retrieve<B, K: AsRef<[u8]>>(
    operation: &Operation<B>,
    keys: impl IntoIterator<Item = K>,
    out: &mut Vec<u8>,
) {
    let mut keys = keys.into_iter().peekable();
    if keys.peek().is_none() {
        return;
    }
    append_retrieve_verb(operation, out);
    for key in keys {
        append_key(key.as_ref(), out);
    }
    out.extend_from_slice(LINE_END);
}

/// Appends the beginning of a line that gets keys: [`append_key`] adds each of them, and [`LINE_END`] ends it.
///
/// # Panics
/// As [`compose_retrieve`].
///
/// ```
/// use lookaside_protocol::{Operation, text::{LINE_END, append_key, append_retrieve_verb}};
/// let mut out = Vec::new();
/// append_retrieve_verb(&Operation::<&[u8]>::GetAndTouch { exptime: 60, cas: false }, &mut out);
/// append_key(b"user:1", &mut out);
/// out.extend_from_slice(LINE_END);
/// assert_eq!(out, b"gat 60 user:1\r\n");
/// ```
pub fn append_retrieve_verb<B>(operation: &Operation<B>, out: &mut Vec<u8>) {
    match operation {
        Operation::Get { cas } => out.extend_from_slice(if *cas { b"gets" } else { b"get" }),
        Operation::GetAndTouch { exptime, cas } => {
            out.extend_from_slice(if *cas { b"gats " } else { b"gat " });
            append_number(*exptime, out);
        }
        Operation::LeaseGet => out.extend_from_slice(b"lease-get"),
        _ => panic!("not an operation on several keys"),
    }
}

/// Appends any command; [`super::parse_command`] parses it.
pub fn compose_command(command: &Command<'_>, out: &mut Vec<u8>) {
    match command {
        Command::Retrieve { keys, operation } => compose_retrieve(operation, *keys, out),
        Command::Single { request, noreply } => compose_single(request, *noreply, out),
        Command::MetaNoop => out.extend_from_slice(b"mn\r\n"),
        Command::FlushAll { delay_s, noreply } => {
            out.extend_from_slice(b"flush_all ");
            append_number(*delay_s, out);
            append_line_end(*noreply, out);
        }
        Command::Stats { arguments } => {
            out.extend_from_slice(b"stats");
            if !arguments.is_empty() {
                out.push(b' ');
                out.extend_from_slice(arguments);
            }
            out.extend_from_slice(b"\r\n");
        }
        Command::Version => out.extend_from_slice(b"version\r\n"),
        Command::Verbosity { level, noreply } => {
            out.extend_from_slice(b"verbosity ");
            append_number(*level, out);
            append_line_end(*noreply, out);
        }
        Command::Quit => out.extend_from_slice(b"quit\r\n"),
    }
}

fn compose_single<B: AsRef<[u8]>>(request: &Request<B>, noreply: bool, out: &mut Vec<u8>) {
    let key = request.key.as_ref();
    match &request.operation {
        operation @ (Operation::Get { .. } | Operation::GetAndTouch { .. } | Operation::LeaseGet) => {
            compose_retrieve(operation, [key], out);
        }
        Operation::Store { mode, flags, exptime, value, .. } => {
            let (verb, cas) = store_verb(*mode);
            append_verb_and_key(verb, key, out);
            append_store_numbers(*flags, *exptime, value.as_ref(), out);
            if let Some(Cas(cas)) = cas {
                append_spaced(cas, out);
            }
            append_line_end(noreply, out);
            append_data_block(value.as_ref(), out);
        }
        Operation::LeaseSet { token, flags, exptime, value } => {
            append_verb_and_key(b"lease-set", key, out);
            append_spaced(token.0, out);
            append_store_numbers(*flags, *exptime, value.as_ref(), out);
            append_line_end(noreply, out);
            append_data_block(value.as_ref(), out);
        }
        Operation::Delete { hold_off_ms } => {
            append_verb_and_key(b"delete", key, out);
            // `delete noreply` would suppress the reply, for which its sender would wait for ever.
            if *hold_off_ms == 0 && key == b"noreply" {
                append_spaced(0, out);
            }
            append_hold_off(*hold_off_ms, out);
            append_line_end(noreply, out);
        }
        Operation::Arithmetic { direction, delta } => {
            append_verb_and_key(if *direction == Direction::Up { b"incr" } else { b"decr" }, key, out);
            append_spaced(*delta, out);
            append_line_end(noreply, out);
        }
        Operation::Touch { exptime } => {
            append_verb_and_key(b"touch", key, out);
            append_spaced(*exptime, out);
            append_line_end(noreply, out);
        }
        Operation::Meta(operation) => append_meta_request(key, operation, out),
    }
}

fn store_verb(mode: StoreMode) -> (&'static [u8], Option<Cas>) {
    match mode {
        StoreMode::Set => (b"set", None),
        StoreMode::Add => (b"add", None),
        StoreMode::Replace => (b"replace", None),
        StoreMode::Append => (b"append", None),
        StoreMode::Prepend => (b"prepend", None),
        StoreMode::Cas(cas) => (b"cas", Some(cas)),
    }
}

/// Appends the reply to a request for `key`. For the get verbs the caller appends [`END`] after the last key; a miss
/// appends nothing. An error reply ends a get without [`END`].
///
/// ```
/// use lookaside_protocol::{Reply, text::{END, compose_reply}};
/// let mut out = Vec::new();
/// compose_reply(b"user:1", &Reply::Value { flags: 0, cas: None, value: "alice" }, &mut out);
/// out.extend_from_slice(END);
/// assert_eq!(out, b"VALUE user:1 0 5\r\nalice\r\nEND\r\n");
/// ```
pub fn compose_reply<B: AsRef<[u8]>>(key: &[u8], reply: &Reply<B>, out: &mut Vec<u8>) {
    let line: &[u8] = match reply {
        Reply::Value { flags, cas, value } => return compose_value(key, *flags, *cas, value.as_ref(), out),
        Reply::Lease { token, flags, stale } => {
            let stale = stale.as_ref().map_or(&[][..], AsRef::as_ref);
            append_verb_and_key(b"LVALUE", key, out);
            append_spaced(token.0, out);
            append_spaced(*flags, out);
            append_spaced(stale.len(), out);
            out.extend_from_slice(b"\r\n");
            return append_data_block(stale, out);
        }
        Reply::Miss => b"",
        Reply::Stored | Reply::StoredAs(_) => b"STORED\r\n",
        Reply::StaleStored => b"STALE_STORED\r\n",
        Reply::NotStored => b"NOT_STORED\r\n",
        Reply::Exists => b"EXISTS\r\n",
        Reply::NotFound => b"NOT_FOUND\r\n",
        Reply::Deleted => b"DELETED\r\n",
        Reply::Touched => b"TOUCHED\r\n",
        Reply::Number(new) => {
            append_number(*new, out);
            b"\r\n"
        }
        Reply::Ok => b"OK\r\n",
        Reply::Meta(reply) => return append_meta_reply(reply, out),
        Reply::Error(ErrorReply::Unknown) => b"ERROR\r\n",
        Reply::Error(ErrorReply::Client(why)) => return append_error(b"CLIENT_ERROR", why.as_ref(), out),
        Reply::Error(ErrorReply::Server(why)) => return append_error(b"SERVER_ERROR", why.as_ref(), out),
    };
    out.extend_from_slice(line);
}

/// `VALUE` with its data block: the most frequent line by far.
#[inline]
fn compose_value(key: &[u8], flags: u32, cas: Option<Cas>, value: &[u8], out: &mut Vec<u8>) {
    let mut tail = LineTail::new();
    if let Some(Cas(cas)) = cas {
        tail.put(cas);
    }
    tail.put(value.len() as u64);
    tail.put(u64::from(flags));
    let (verb, tail) = (b"VALUE ", tail.bytes());
    // Once for all parts.
    out.reserve(verb.len() + key.len() + tail.len() + value.len() + LINE_END.len());
    out.extend_from_slice(verb);
    out.extend_from_slice(key);
    out.extend_from_slice(tail);
    append_data_block(value, out);
}

/// An error line. Its text may hold line ends, and must not become a second line.
fn append_error(word: &[u8], why: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(word);
    let line = why.split(|&byte| byte == b'\r' || byte == b'\n').next().unwrap_or_default();
    if !line.is_empty() {
        out.push(b' ');
        out.extend_from_slice(line);
    }
    out.extend_from_slice(b"\r\n");
}

fn append_verb_and_key(verb: &[u8], key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(verb);
    append_key(key, out);
}

/// Appends a key to a line, after a space.
#[inline]
pub fn append_key(key: &[u8], out: &mut Vec<u8>) {
    debug_assert_eq!(check_key(key), Ok(()), "the caller checks keys");
    out.push(b' ');
    out.extend_from_slice(key);
}

fn append_store_numbers(flags: u32, exptime: i64, value: &[u8], out: &mut Vec<u8>) {
    append_spaced(flags, out);
    append_spaced(exptime, out);
    append_spaced(value.len(), out);
}

/// A hold-off in seconds, with as many decimals as it needs; nothing if it is 0.
fn append_hold_off(hold_off_ms: u32, out: &mut Vec<u8>) {
    if hold_off_ms == 0 {
        return;
    }
    append_spaced(hold_off_ms / 1000, out);
    let mut thousandths = hold_off_ms % 1000;
    if thousandths > 0 {
        out.push(b'.');
    }
    while thousandths > 0 {
        out.push(b'0' + (thousandths / 100) as u8);
        thousandths = thousandths % 100 * 10;
    }
}

fn append_line_end(noreply: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(if noreply { b" noreply\r\n" } else { b"\r\n" });
}

fn append_data_block(value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn append_spaced(n: impl itoa::Integer, out: &mut Vec<u8>) {
    out.push(b' ');
    append_number(n, out);
}

fn append_number(n: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}
