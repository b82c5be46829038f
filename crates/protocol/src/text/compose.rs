//! Requests as a client sends them, replies as a server does. The only place that writes the dialect's bytes.
//!
//! Composing appends to a buffer that the caller keeps for all its connections' life, so that the buffer soon stops
//! growing. Keys are the caller's to check ([`crate::check_key`]): a key with a line feed would be a command of its
//! own.

use crate::{
    Cas, Command, Direction, ErrorReply, Operation, Reply, Request, StoreMode, check_key, meta::compose_meta_reply,
    meta::compose_meta_request,
};

/// Ends the reply to a get of one or many keys.
pub const END: &[u8] = b"END\r\n";

/// Appends `request` as a client sends it, asking for a reply. The retrieving operations become a get of one key.
///
/// ```
/// use lookaside_protocol::{Operation, Request, text::compose_request};
/// let mut out = Vec::new();
/// compose_request(&Request { key: "user:1", operation: Operation::Delete { hold_off_ms: 250 } }, &mut out);
/// assert_eq!(out, b"delete user:1 0.25\r\n");
/// ```
pub fn compose_request<B: AsRef<[u8]>>(request: &Request<B>, out: &mut Vec<u8>) {
    single(request, false, out);
}

/// Appends one line that asks for all `keys` at once. Without a key nothing is appended. `operation` is one of the
/// retrieving ones: `Get`, `GetAndTouch`, `LeaseGet`; anything else is a bug of the caller's and panics.
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
    match operation {
        Operation::Get { cas } => out.extend_from_slice(if *cas { b"gets" } else { b"get" }),
        Operation::GetAndTouch { exptime, cas } => {
            out.extend_from_slice(if *cas { b"gats " } else { b"gat " });
            number(*exptime, out);
        }
        Operation::LeaseGet => out.extend_from_slice(b"lease-get"),
        _ => panic!("only a get, a get-and-touch or a lease-get asks for several keys"),
    }
    for key in keys {
        append_key(key.as_ref(), out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends any command as a client sends it: what [`super::parse_command`] reads.
pub fn compose_command(command: &Command<'_>, out: &mut Vec<u8>) {
    match command {
        Command::Retrieve { keys, operation } => compose_retrieve(operation, *keys, out),
        Command::Single { request, noreply } => single(request, *noreply, out),
        Command::MetaNoop => out.extend_from_slice(b"mn\r\n"),
        Command::FlushAll { delay_s, noreply } => {
            out.extend_from_slice(b"flush_all ");
            number(*delay_s, out);
            end_line(*noreply, out);
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
            number(*level, out);
            end_line(*noreply, out);
        }
        Command::Quit => out.extend_from_slice(b"quit\r\n"),
    }
}

fn single<B: AsRef<[u8]>>(request: &Request<B>, noreply: bool, out: &mut Vec<u8>) {
    let key = request.key.as_ref();
    match &request.operation {
        operation @ (Operation::Get { .. } | Operation::GetAndTouch { .. } | Operation::LeaseGet) => {
            compose_retrieve(operation, [key], out);
        }
        Operation::Store { mode, flags, exptime, value } => {
            let (verb, cas) = store_verb(*mode);
            begin(verb, key, out);
            store_numbers(*flags, *exptime, value.as_ref(), out);
            if let Some(Cas(cas)) = cas {
                spaced(cas, out);
            }
            end_line(noreply, out);
            data_block(value.as_ref(), out);
        }
        Operation::LeaseSet { token, flags, exptime, value } => {
            begin(b"lease-set", key, out);
            spaced(token.0, out);
            store_numbers(*flags, *exptime, value.as_ref(), out);
            end_line(noreply, out);
            data_block(value.as_ref(), out);
        }
        Operation::Delete { hold_off_ms } => {
            begin(b"delete", key, out);
            // `delete noreply` would be a delete without a reply, and its sender would wait for ever.
            if *hold_off_ms == 0 && key == b"noreply" {
                spaced(0, out);
            }
            hold_off(*hold_off_ms, out);
            end_line(noreply, out);
        }
        Operation::Arithmetic { direction, delta } => {
            begin(if *direction == Direction::Up { b"incr" } else { b"decr" }, key, out);
            spaced(*delta, out);
            end_line(noreply, out);
        }
        Operation::Touch { exptime } => {
            begin(b"touch", key, out);
            spaced(*exptime, out);
            end_line(noreply, out);
        }
        Operation::Meta(operation) => compose_meta_request(key, operation, out),
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

/// Appends the reply to a request for `key` as a server sends it. For the get verbs the caller adds [`END`] after the
/// last key; a miss appends nothing. A reply that is an error ends a get in place of [`END`].
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
            begin(b"LVALUE", key, out);
            spaced(token.0, out);
            spaced(*flags, out);
            spaced(stale.len(), out);
            out.extend_from_slice(b"\r\n");
            return data_block(stale, out);
        }
        Reply::Miss => b"",
        Reply::Stored => b"STORED\r\n",
        Reply::StaleStored => b"STALE_STORED\r\n",
        Reply::NotStored => b"NOT_STORED\r\n",
        Reply::Exists => b"EXISTS\r\n",
        Reply::NotFound => b"NOT_FOUND\r\n",
        Reply::Deleted => b"DELETED\r\n",
        Reply::Touched => b"TOUCHED\r\n",
        Reply::Number(new) => {
            number(*new, out);
            b"\r\n"
        }
        Reply::Ok => b"OK\r\n",
        Reply::Meta(reply) => return compose_meta_reply(reply, out),
        Reply::Error(ErrorReply::Unknown) => b"ERROR\r\n",
        Reply::Error(ErrorReply::Client(why)) => return error(b"CLIENT_ERROR ", why.as_ref(), out),
        Reply::Error(ErrorReply::Server(why)) => return error(b"SERVER_ERROR ", why.as_ref(), out),
    };
    out.extend_from_slice(line);
}

/// `VALUE` with its data block: the one line that a server writes millions of times a second.
#[inline]
fn compose_value(key: &[u8], flags: u32, cas: Option<Cas>, value: &[u8], out: &mut Vec<u8>) {
    // Once for all the parts: the words, three numbers of up to 20 digits, and the line ends.
    out.reserve(key.len() + value.len() + 80);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    spaced(flags, out);
    spaced(value.len(), out);
    if let Some(Cas(cas)) = cas {
        spaced(cas, out);
    }
    out.extend_from_slice(b"\r\n");
    data_block(value, out);
}

/// An error line. Its text comes from anywhere, and must not become a second line.
fn error(word: &[u8], why: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(word);
    let line = why.split(|&byte| byte == b'\r' || byte == b'\n').next().unwrap_or_default();
    out.extend_from_slice(line);
    out.extend_from_slice(b"\r\n");
}

fn begin(verb: &[u8], key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(verb);
    append_key(key, out);
}

fn append_key(key: &[u8], out: &mut Vec<u8>) {
    debug_assert_eq!(check_key(key), Ok(()), "the caller checks keys");
    out.push(b' ');
    out.extend_from_slice(key);
}

fn store_numbers(flags: u32, exptime: i64, value: &[u8], out: &mut Vec<u8>) {
    spaced(flags, out);
    spaced(exptime, out);
    spaced(value.len(), out);
}

/// A hold-off in seconds, with as many digits behind the point as it needs; nothing for none.
fn hold_off(hold_off_ms: u32, out: &mut Vec<u8>) {
    if hold_off_ms == 0 {
        return;
    }
    spaced(hold_off_ms / 1000, out);
    let mut thousandths = hold_off_ms % 1000;
    if thousandths > 0 {
        out.push(b'.');
    }
    while thousandths > 0 {
        out.push(b'0' + (thousandths / 100) as u8);
        thousandths = thousandths % 100 * 10;
    }
}

fn end_line(noreply: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(if noreply { b" noreply\r\n" } else { b"\r\n" });
}

fn data_block(value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn spaced(n: impl itoa::Integer, out: &mut Vec<u8>) {
    out.push(b' ');
    number(n, out);
}

fn number(n: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}
