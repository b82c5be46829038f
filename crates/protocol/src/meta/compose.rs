//! Composes meta commands and replies.

use super::flags::MetaFlags;
use super::operation::MetaOperation;
use super::reply::MetaReply;
use super::verb::{MetaStatus, MetaVerb};
use crate::Cas;

/// The item's metadata for a meta reply. Fields that are `None` are not returned, even if the command asked for them:
/// an `ms`, for example, returns no time to live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaItemInfo {
    /// For `c`.
    pub cas: Option<Cas>,
    /// For `f`.
    pub client_flags: Option<u32>,
    /// For `h`: whether the item had been fetched before.
    pub hit_before: Option<bool>,
    /// For `l`: seconds since the item was last accessed.
    pub idle_s: Option<u32>,
    /// For `s`.
    pub value_bytes: Option<usize>,
    /// For `t`: remaining seconds to live, -1 without expiry.
    pub ttl_s: Option<i64>,
    /// `Z`: another client has the right to recache the item.
    pub already_won: bool,
    /// `X`: the item is stale.
    pub stale: bool,
    /// `W`: this client has the right to recache the item.
    pub won: bool,
}

/// Appends the reply to a meta command on `key` with `flags`: the flags that return something, in the order of the
/// command. With a `value` it is a `VA`, whatever the status.
///
/// ```
/// use lookaside_protocol::meta::{MetaFlags, MetaItemInfo, MetaStatus, MetaVerb, compose_meta_reply};
/// let flags = MetaFlags::read(MetaVerb::Get, b"t v Oabc k").unwrap();
/// let info = MetaItemInfo { ttl_s: Some(30), won: true, ..MetaItemInfo::default() };
/// let mut out = Vec::new();
/// compose_meta_reply(MetaStatus::Value, b"user:1", &flags, &info, Some(b"alice"), &mut out);
/// assert_eq!(out, b"VA 5 t30 Oabc kuser:1 W\r\nalice\r\n");
/// ```
pub fn compose_meta_reply(
    status: MetaStatus,
    key: &[u8],
    flags: &MetaFlags<'_>,
    info: &MetaItemInfo,
    value: Option<&[u8]>,
    out: &mut Vec<u8>,
) {
    let status = if value.is_some() { MetaStatus::Value } else { status };
    append_status(status, value, out);
    for flag in flags.in_order() {
        match flag.letter {
            b'c' => append_number_flag(b'c', info.cas.map(|Cas(cas)| cas), out),
            b'f' => append_number_flag(b'f', info.client_flags, out),
            b'h' => append_number_flag(b'h', info.hit_before.map(u8::from), out),
            b'l' => append_number_flag(b'l', info.idle_s, out),
            b's' => append_number_flag(b's', info.value_bytes, out),
            b't' => append_number_flag(b't', info.ttl_s, out),
            b'O' => append_flag(b'O', flag.token, out),
            b'k' => {
                append_flag(b'k', key, out);
                // It belongs to the key, and so follows it, wherever it was in the command.
                if flags.has(b'b') {
                    append_flag(b'b', b"", out);
                }
            }
            _ => {}
        }
    }
    for (letter, is_set) in [(b'Z', info.already_won), (b'X', info.stale), (b'W', info.won)] {
        if is_set {
            append_flag(letter, b"", out);
        }
    }
    append_end_and_block(value, out);
}

pub(crate) fn append_meta_request<B: AsRef<[u8]>>(key: &[u8], operation: &MetaOperation<B>, out: &mut Vec<u8>) {
    let value = operation.value.as_ref().map(AsRef::as_ref);
    out.extend_from_slice(match operation.verb {
        MetaVerb::Get => b"mg ",
        MetaVerb::Set => b"ms ",
        MetaVerb::Delete => b"md ",
        MetaVerb::Arithmetic => b"ma ",
        MetaVerb::Debug => b"me ",
    });
    out.extend_from_slice(key);
    append_block_length(value, out);
    append_spaced(operation.flags.as_ref(), out);
    append_end_and_block(value, out);
}

pub(crate) fn append_meta_reply<B: AsRef<[u8]>>(reply: &MetaReply<B>, out: &mut Vec<u8>) {
    let value = reply.value.as_ref().map(AsRef::as_ref);
    append_status(reply.status, value, out);
    append_spaced(reply.flags.as_ref(), out);
    append_end_and_block(value, out);
}

fn append_status(status: MetaStatus, value: Option<&[u8]>, out: &mut Vec<u8>) {
    out.extend_from_slice(match status {
        MetaStatus::Done => b"HD",
        MetaStatus::Value => b"VA",
        MetaStatus::Miss => b"EN",
        MetaStatus::NotFound => b"NF",
        MetaStatus::NotStored => b"NS",
        MetaStatus::Exists => b"EX",
        MetaStatus::Debug => b"ME",
    });
    append_block_length(value, out);
}

fn append_block_length(value: Option<&[u8]>, out: &mut Vec<u8>) {
    if let Some(value) = value {
        append_spaced(itoa::Buffer::new().format(value.len()).as_bytes(), out);
    }
}

fn append_spaced(text: &[u8], out: &mut Vec<u8>) {
    if !text.is_empty() {
        out.push(b' ');
        out.extend_from_slice(text);
    }
}

fn append_number_flag(letter: u8, number: Option<impl itoa::Integer>, out: &mut Vec<u8>) {
    if let Some(number) = number {
        append_flag(letter, itoa::Buffer::new().format(number).as_bytes(), out);
    }
}

fn append_flag(letter: u8, token: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[b' ', letter]);
    out.extend_from_slice(token);
}

fn append_end_and_block(value: Option<&[u8]>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
    if let Some(value) = value {
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}
