//! What is special about reading meta commands and answers; their lines and data blocks are the text dialect's.

use super::{MetaFlags, MetaOperation, MetaReply, MetaStatus, MetaVerb, OPAQUE_BYTES_MAX};
use crate::text::trim;

/// The operation on `key` that `flags` ask for, still without its value, and the flags as read; or what the sender is
/// told.
pub(crate) fn checked_operation<'a>(
    verb: MetaVerb,
    key: &[u8],
    flags: &'a [u8],
) -> Result<(MetaOperation<&'a [u8]>, MetaFlags<'a>), &'static str> {
    let read = MetaFlags::read_with_key(verb, Some(key), flags)?;
    if read.opaque.is_some_and(|opaque| opaque.len() > OPAQUE_BYTES_MAX) {
        return Err("CLIENT_ERROR opaque token too long");
    }
    Ok((MetaOperation { verb, flags, value: None }, read))
}

/// A meta answer that is all in its line.
pub(crate) fn status_line<'a>(word: &[u8], rest: &'a [u8]) -> Option<MetaReply<&'a [u8]>> {
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

/// `VA`, its length taken off.
pub(crate) fn value_line<'a>(rest: &'a [u8], value: &'a [u8]) -> MetaReply<&'a [u8]> {
    MetaReply { status: MetaStatus::Value, flags: trim(rest), value: Some(value) }
}
