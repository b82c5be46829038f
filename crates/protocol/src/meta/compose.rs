//! Meta commands and answers, into bytes.

use super::{MetaFlags, MetaOperation, MetaReply, MetaStatus, MetaVerb};
use crate::Cas;

/// What a server knows about the item that an answer speaks of. What is not there is not returned, even if it was
/// asked for: an `ms` has no time to live to tell of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaItemInfo {
    /// For `c`.
    pub cas: Option<Cas>,
    /// For `f`.
    pub client_flags: Option<u32>,
    /// For `h`: whether the item had been got before.
    pub hit_before: Option<bool>,
    /// For `l`: seconds since the item was last accessed.
    pub idle_s: Option<u32>,
    /// For `s`.
    pub value_bytes: Option<usize>,
    /// For `t`: seconds left to live, -1 for ever.
    pub ttl_s: Option<i64>,
    /// `Z`: another client has the right to fill the item anew.
    pub already_won: bool,
    /// `X`: the item is stale.
    pub stale: bool,
    /// `W`: this client has the right to fill the item anew.
    pub won: bool,
}

/// Appends the answer to a meta command on `key` that was sent with `flags`, returning what they ask for in their
/// order. A `value` makes it a `VA`, whatever the status.
///
/// ```
/// use lookaside_protocol::meta::{MetaFacts, MetaFlags, MetaStatus, MetaVerb, compose_meta_answer};
/// let flags = MetaFlags::read(MetaVerb::Get, b"t v Oabc k").unwrap();
/// let facts = MetaFacts { ttl_s: Some(30), won: true, ..MetaFacts::default() };
/// let mut out = Vec::new();
/// compose_meta_answer(MetaStatus::Value, b"user:1", &flags, &facts, Some(b"alice"), &mut out);
/// assert_eq!(out, b"VA 5 t30 Oabc kuser:1 W\r\nalice\r\n");
/// ```
pub fn compose_meta_answer(
    status: MetaStatus,
    key: &[u8],
    flags: &MetaFlags<'_>,
    facts: &MetaItemInfo,
    value: Option<&[u8]>,
    out: &mut Vec<u8>,
) {
    let status = if value.is_some() { MetaStatus::Value } else { status };
    begin_answer(status, value, out);
    for flag in flags.in_order() {
        match flag.letter {
            b'c' => returned(b'c', facts.cas.map(|Cas(cas)| cas), out),
            b'f' => returned(b'f', facts.client_flags, out),
            b'h' => returned(b'h', facts.hit_before.map(u8::from), out),
            b'l' => returned(b'l', facts.idle_s, out),
            b's' => returned(b's', facts.value_bytes, out),
            b't' => returned(b't', facts.ttl_s, out),
            b'O' => echoed(b'O', flag.token, out),
            b'k' => {
                echoed(b'k', key, out);
                // Says how to read the key; so it stands with the key, wherever it stood in the command.
                if flags.has(b'b') {
                    echoed(b'b', b"", out);
                }
            }
            _ => {}
        }
    }
    for (letter, told) in [(b'Z', facts.already_won), (b'X', facts.stale), (b'W', facts.won)] {
        if told {
            echoed(letter, b"", out);
        }
    }
    end_with_block(value, out);
}

/// Appends a meta command.
pub(crate) fn compose_meta_request<B: AsRef<[u8]>>(key: &[u8], operation: &MetaOperation<B>, out: &mut Vec<u8>) {
    let value = operation.value.as_ref().map(AsRef::as_ref);
    out.extend_from_slice(match operation.verb {
        MetaVerb::Get => b"mg ",
        MetaVerb::Set => b"ms ",
        MetaVerb::Delete => b"md ",
        MetaVerb::Arithmetic => b"ma ",
        MetaVerb::Debug => b"me ",
    });
    out.extend_from_slice(key);
    block_length(value, out);
    spaced(operation.flags.as_ref(), out);
    end_with_block(value, out);
}

/// Appends a meta answer.
pub(crate) fn compose_meta_reply<B: AsRef<[u8]>>(reply: &MetaReply<B>, out: &mut Vec<u8>) {
    let value = reply.value.as_ref().map(AsRef::as_ref);
    begin_answer(reply.status, value, out);
    spaced(reply.flags.as_ref(), out);
    end_with_block(value, out);
}

fn begin_answer(status: MetaStatus, value: Option<&[u8]>, out: &mut Vec<u8>) {
    out.extend_from_slice(match status {
        MetaStatus::Done => b"HD",
        MetaStatus::Value => b"VA",
        MetaStatus::Miss => b"EN",
        MetaStatus::NotFound => b"NF",
        MetaStatus::NotStored => b"NS",
        MetaStatus::Exists => b"EX",
        MetaStatus::Debug => b"ME",
    });
    block_length(value, out);
}

fn block_length(value: Option<&[u8]>, out: &mut Vec<u8>) {
    if let Some(value) = value {
        spaced(itoa::Buffer::new().format(value.len()).as_bytes(), out);
    }
}

fn spaced(text: &[u8], out: &mut Vec<u8>) {
    if !text.is_empty() {
        out.push(b' ');
        out.extend_from_slice(text);
    }
}

fn returned(letter: u8, number: Option<impl itoa::Integer>, out: &mut Vec<u8>) {
    if let Some(number) = number {
        echoed(letter, itoa::Buffer::new().format(number).as_bytes(), out);
    }
}

fn echoed(letter: u8, token: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[b' ', letter]);
    out.extend_from_slice(token);
}

fn end_with_block(value: Option<&[u8]>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
    if let Some(value) = value {
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}
