//! Commands with a data block: the stores of the text protocol, `lease-set` and `ms`.
//!
//! A bad line is refused before its block has arrived. The block is then dropped as it arrives, so that it takes no
//! memory.

use super::{
    limits::Limits,
    parsed::{Parsed, bad, parse_key, single},
};
use crate::line::{self, Tokens};
use crate::meta::{MetaOperation, MetaVerb, parse_operation};
use crate::refusal;
use crate::{Cas, Command, LeaseToken, Operation, StoreMode};

/// The largest valid length: with its line end the block's size must fit into 31 bits.
const DATA_BYTES_MAX: u64 = i32::MAX as u64 - 2;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockVerb {
    Store(StoreMode),
    Cas,
    LeaseSet,
}

pub(super) struct Block<'a, 'l> {
    pub(super) buffer: &'a [u8],
    /// The start of the block: the end of the line.
    pub(super) start: usize,
    pub(super) limits: &'l Limits,
    pub(super) noreply: bool,
}

/// Parses `<verb> <key> [<token>] <flags> <exptime> <bytes> [<cas unique>] [noreply]` and its block.
pub(super) fn parse_store<'a>(verb: BlockVerb, mut tokens: Tokens<'a>, block: &Block<'a, '_>) -> Parsed<'a> {
    let key = parse_key(&mut tokens);
    let token = if verb == BlockVerb::LeaseSet { tokens.unsigned() } else { Some(0) };
    let (flags, exptime) = (tokens.token().and_then(parse_flags), tokens.token().and_then(parse_exptime));
    let Some(value_bytes) = parse_length(&mut tokens) else {
        return bad(refusal::BAD_FORMAT, block.start, 0, false);
    };
    let cas = if verb == BlockVerb::Cas { tokens.unsigned() } else { Some(0) };
    let (Ok(key), Some(token), Some(flags), Some(exptime), Some(cas)) = (key, token, flags, exptime, cas) else {
        return block.refuse(refusal::BAD_FORMAT, value_bytes, None);
    };
    if value_bytes > block.limits.value_bytes_max {
        let replaces = verb == BlockVerb::Store(StoreMode::Set);
        return block.refuse(refusal::TOO_LARGE, value_bytes, replaces.then_some(key));
    }
    block.parse(value_bytes, |value| {
        let operation = match verb {
            BlockVerb::Store(mode) => Operation::Store { mode, flags, exptime, value, cas: false },
            BlockVerb::Cas => Operation::Store { mode: StoreMode::Cas(Cas(cas)), flags, exptime, value, cas: false },
            BlockVerb::LeaseSet => Operation::LeaseSet { token: LeaseToken(token), flags, exptime, value },
        };
        single(key, operation, block.noreply)
    })
}

/// Parses client flags as storage commands do: a number of up to 64 bits, truncated to 32, with an optional plus.
fn parse_flags(token: &[u8]) -> Option<u32> {
    line::unsigned(token.strip_prefix(b"+").unwrap_or(token)).map(|flags| flags as u32)
}

/// Parses an exptime as storage commands do: a number of up to 64 bits, truncated to 32 signed bits, with an optional
/// plus. `touch` and the meta commands refuse numbers over 32 bits.
fn parse_exptime(token: &[u8]) -> Option<i64> {
    let number = match token.strip_prefix(b"+") {
        Some(digits) => line::unsigned(digits).and_then(|seconds| i64::try_from(seconds).ok()),
        None => line::signed(token),
    };
    number.map(|seconds| i64::from(seconds as i32))
}

/// Parses the length of the block. Without a length the end of the block is unknown: it will be parsed as commands,
/// and the refusal is sent even with `noreply`.
fn parse_length(tokens: &mut Tokens<'_>) -> Option<usize> {
    tokens.unsigned().filter(|&bytes| bytes <= DATA_BYTES_MAX).map(|bytes| bytes as usize)
}

/// Parses `ms <key> <bytes> <flag>*` and its block. Its errors are always sent: it has no `noreply`.
pub(super) fn parse_meta_store<'a>(mut tokens: Tokens<'a>, block: &Block<'a, '_>) -> Parsed<'a> {
    let key = parse_key(&mut tokens);
    let Some(value_bytes) = parse_length(&mut tokens) else {
        return bad(refusal::BAD_FORMAT, block.start, 0, false);
    };
    let parsed = key.and_then(|key| Ok((key, parse_operation(MetaVerb::Set, key, line::trim(tokens.0))?)));
    let (key, (operation, flags)) = match parsed {
        Ok(parsed) => parsed,
        Err(refusal) => return block.refuse(refusal, value_bytes, None),
    };
    if value_bytes > block.limits.value_bytes_max {
        let replaces = flags.store_mode() == StoreMode::Set && !flags.has(b'b');
        return block.refuse(refusal::TOO_LARGE, value_bytes, replaces.then_some(key));
    }
    block.parse(value_bytes, |value| {
        single(key, Operation::Meta(MetaOperation { value: Some(value), ..operation }), false)
    })
}

impl<'a> Block<'a, '_> {
    /// The command with its value, once the block is complete and ends with a line end.
    fn parse(&self, value_bytes: usize, command: impl FnOnce(&'a [u8]) -> Command<'a>) -> Parsed<'a> {
        let consumed = self.start + value_bytes + 2;
        let Some(block) = self.buffer.get(self.start..consumed) else {
            return Parsed::Incomplete { needed_bytes: consumed };
        };
        match block.strip_suffix(b"\r\n") {
            Some(value) => Parsed::Command { command: command(value), consumed },
            None => bad(refusal::BAD_DATA_CHUNK, consumed, 0, self.noreply),
        }
    }

    fn refuse(&self, line: &'static str, value_bytes: usize, key_to_delete: Option<&'a [u8]>) -> Parsed<'a> {
        Parsed::Bad {
            line: (!self.noreply).then_some(line),
            consumed: self.start,
            swallow: value_bytes + 2,
            close: None,
            key_to_delete,
            is_too_large: line == refusal::TOO_LARGE,
        }
    }
}
