//! Commands with a data block: the text dialect's stores, `lease-set` and `ms`.
//!
//! What is wrong with the line is known before the block has come. The refusal is told at once and the block is dropped
//! as it arrives, so that a block nobody wants takes no memory.

use super::{
    Limits, Parsed,
    line::{self, Tokens},
    parse::{bad, checked_key, single},
    refusal,
};
use crate::meta::{MetaOperation, MetaVerb, checked_operation};
use crate::{Cas, Command, LeaseToken, Operation, StoreMode};

/// The length field stops here: with its line end the block must still be counted in 31 bits.
const DATA_BYTES_MAX: u64 = i32::MAX as u64 - 2;

/// The text dialect's verbs with a data block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockVerb {
    Store(StoreMode),
    Cas,
    LeaseSet,
}

/// Where a data block is to be found, and what is said when it is refused.
pub(super) struct Block<'a, 'l> {
    pub(super) buffer: &'a [u8],
    /// Where the block begins: behind the line.
    pub(super) start: usize,
    pub(super) limits: &'l Limits,
    pub(super) noreply: bool,
}

/// `<verb> <key> [<token>] <flags> <exptime> <bytes> [<cas unique>] [noreply]`
pub(super) fn store<'a>(verb: BlockVerb, mut tokens: Tokens<'a>, block: &Block<'a, '_>) -> Parsed<'a> {
    let key = checked_key(&mut tokens);
    let token = if verb == BlockVerb::LeaseSet { tokens.unsigned() } else { Some(0) };
    let (flags, exptime) = (tokens.token().and_then(truncated_flags), tokens.token().and_then(truncated_exptime));
    let Some(value_bytes) = length(&mut tokens) else {
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
    block.command(value_bytes, |value| {
        let operation = match verb {
            BlockVerb::Store(mode) => Operation::Store { mode, flags, exptime, value },
            BlockVerb::Cas => Operation::Store { mode: StoreMode::Cas(Cas(cas)), flags, exptime, value },
            BlockVerb::LeaseSet => Operation::LeaseSet { token: LeaseToken(token), flags, exptime, value },
        };
        single(key, operation, block.noreply)
    })
}

/// A client's flags as storage commands take them: of a number of up to 64 bits the lower 32, a plus in front of it or not.
fn truncated_flags(token: &[u8]) -> Option<u32> {
    line::unsigned(token.strip_prefix(b"+").unwrap_or(token)).map(|flags| flags as u32)
}

/// An exptime as storage commands take it: of a number of up to 64 bits the lower 32, signed, a plus in front of it or
/// not. `touch` and the meta commands refuse what is over 32 bits.
fn truncated_exptime(token: &[u8]) -> Option<i64> {
    let number = match token.strip_prefix(b"+") {
        Some(digits) => line::unsigned(digits).and_then(|seconds| i64::try_from(seconds).ok()),
        None => line::signed(token),
    };
    number.map(|seconds| i64::from(seconds as i32))
}

/// The length of the block. Without one nobody knows where the block ends: it will be read as commands, and the sender
/// is told even if it asked for no reply.
fn length(tokens: &mut Tokens<'_>) -> Option<usize> {
    tokens.unsigned().filter(|&bytes| bytes <= DATA_BYTES_MAX).map(|bytes| bytes as usize)
}

/// `ms <key> <bytes> <flag>*`. Its errors are always told: `noreply` is a word of the older verbs.
pub(super) fn store_meta<'a>(mut tokens: Tokens<'a>, block: &Block<'a, '_>) -> Parsed<'a> {
    let key = checked_key(&mut tokens);
    let Some(value_bytes) = length(&mut tokens) else {
        return bad(refusal::BAD_FORMAT, block.start, 0, false);
    };
    let checked = key.and_then(|key| Ok((key, checked_operation(MetaVerb::Set, key, line::trim(tokens.0))?)));
    let (key, (operation, flags)) = match checked {
        Ok(checked) => checked,
        Err(refusal) => return block.refuse(refusal, value_bytes, None),
    };
    if value_bytes > block.limits.value_bytes_max {
        let replaces = flags.store_mode() == StoreMode::Set && !flags.has(b'b');
        return block.refuse(refusal::TOO_LARGE, value_bytes, replaces.then_some(key));
    }
    block.command(value_bytes, |value| {
        single(key, Operation::Meta(MetaOperation { value: Some(value), ..operation }), false)
    })
}

impl<'a> Block<'a, '_> {
    /// The command with its value, once all of it is there and it ends as it must.
    fn command(&self, value_bytes: usize, with: impl FnOnce(&'a [u8]) -> Command<'a>) -> Parsed<'a> {
        let consumed = self.start + value_bytes + 2;
        let Some(block) = self.buffer.get(self.start..consumed) else {
            return Parsed::Incomplete { needed_bytes: consumed };
        };
        match block.strip_suffix(b"\r\n") {
            Some(value) => Parsed::Command { command: with(value), consumed },
            None => bad(refusal::BAD_DATA_CHUNK, consumed, 0, self.noreply),
        }
    }

    /// The line is dropped at once, its block as it arrives.
    fn refuse(&self, line: &'static str, value_bytes: usize, key_to_delete: Option<&'a [u8]>) -> Parsed<'a> {
        Parsed::Bad {
            line: (!self.noreply).then_some(line),
            consumed: self.start,
            swallow: value_bytes + 2,
            close: false,
            key_to_delete,
        }
    }
}
