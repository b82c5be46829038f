//! Parses the parts that only meta commands and replies have; `text` parses their lines and data blocks.

use super::flags::{MetaFlags, OPAQUE_BYTES_MAX};
use super::operation::MetaOperation;
use super::reply::MetaReply;
use super::verb::{MetaStatus, MetaVerb};
use crate::line::trim;

/// Parses a meta operation on `key`, without its value; returns it with its parsed flags. The error is the reply to the
/// client.
pub(crate) fn parse_operation<'a>(
    verb: MetaVerb,
    key: &[u8],
    flags: &'a [u8],
) -> Result<(MetaOperation<&'a [u8]>, MetaFlags<'a>), &'static str> {
    let parsed = MetaFlags::parse_with_key(verb, Some(key), flags)?;
    if parsed.opaque.is_some_and(|opaque| opaque.len() > OPAQUE_BYTES_MAX) {
        return Err("CLIENT_ERROR opaque token too long");
    }
    Ok((MetaOperation { verb, flags, value: None }, parsed))
}

pub(crate) fn parse_status_line<'a>(word: &[u8], rest: &'a [u8]) -> Option<MetaReply<&'a [u8]>> {
    let status = match word {
        b"HD" => MetaStatus::Done,
        b"EN" => MetaStatus::Miss,
        b"NF" => MetaStatus::NotFound,
        b"NS" => MetaStatus::NotStored,
        b"EX" => MetaStatus::Exists,
        b"ME" => MetaStatus::Debug,
        _ => return None,
    };
    Some(MetaReply { status, flags: trim(rest), value: None })
}

/// Parses a `VA` line behind its length.
pub(crate) fn parse_value_line<'a>(rest: &'a [u8], value: &'a [u8]) -> MetaReply<&'a [u8]> {
    MetaReply { status: MetaStatus::Value, flags: trim(rest), value: Some(value) }
}
