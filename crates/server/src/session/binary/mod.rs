//! Requests of the binary dialect: what a session makes of them, and how they are carried out.
//!
//! A row of quiet gets is this dialect's get of many keys. Each of them is a step of the batch with one key, so that all
//! their keys are prefetched together ([`crate::session::batch::Batch`]), and each hit is rendered from the item into the connection's
//! reply. Nothing here allocates, but `stat`.
//!
//! | | said | quiet |
//! |---|---|---|
//! | get, gat, touch | hit: flags, value, CAS unique; miss: not found | the hit |
//! | set and its kin, incr, decr | the new CAS unique, the new number; or why not | why not |
//! | delete | done or not found; leases are void and the hold-off has begun in both cases | not found |
//!
//! Where memcached does it otherwise is said in `docs/deviations/005-memcached.md`.

mod execute;
mod scan;
mod stats;

pub(crate) use scan::{Scanned, scan};

use crate::observe::metrics::latency::CommandClass;
use crate::session::context::SessionContext;
use crate::session::execute::VERSION;
use crate::session::execute::{Flush, flush_all};
use lookaside_protocol::Cas;
use lookaside_protocol::binary::{
    BinaryCommand, BinaryOperation, BinaryRequest, Response, ResponseTag, Status, compose_error, compose_response,
};
use lookaside_store::{HashedKey, Now};

/// What a step of a batch does for a client of this dialect.
pub(crate) enum BinaryStep<'b> {
    /// Carries out a request.
    Request(BinaryRequest<'b>),
    /// Says how a request went that a session has seen to itself.
    Reply { tag: ResponseTag, status: Status, text: &'static str, close: bool },
    /// Ends the connection without a word.
    Close,
}

impl<'b> BinaryStep<'b> {
    /// An error in memcached's words.
    pub(crate) fn refuse(tag: ResponseTag, status: Status, close: bool) -> BinaryStep<'b> {
        BinaryStep::Reply { tag, status, text: status.message(), close }
    }

    /// Among which commands its time is counted.
    pub(crate) fn latency_class(&self) -> CommandClass {
        let BinaryStep::Request(BinaryRequest { command: BinaryCommand::Keyed { operation, .. }, .. }) = self else {
            return CommandClass::Other;
        };
        match operation {
            BinaryOperation::Get { exptime: None, .. } => CommandClass::Get,
            BinaryOperation::Get { .. } => CommandClass::Touch,
            BinaryOperation::Store { .. } | BinaryOperation::Extend { .. } => CommandClass::Store,
            BinaryOperation::Delete { .. } => CommandClass::Delete,
            BinaryOperation::Arithmetic { .. } => CommandClass::Arithmetic,
        }
    }

    /// The key of a request that has one.
    pub(crate) fn key(&self) -> Option<&'b [u8]> {
        match self {
            BinaryStep::Request(BinaryRequest { command: BinaryCommand::Keyed { key, .. }, .. }) => Some(key),
            _ => None,
        }
    }
}

/// Carries out a step; says whether the connection ends with it. `key` is the request's key, hashed; of a refused one, a
/// key whose old value must go.
pub(crate) fn execute(
    context: &SessionContext<'_>,
    step: &BinaryStep<'_>,
    key: Option<&HashedKey<'_>>,
    now: Now,
    out: &mut Vec<u8>,
) -> bool {
    let request = match step {
        BinaryStep::Request(request) => request,
        BinaryStep::Reply { tag, status, text, close } => {
            if let Some(outdated) = key {
                context.store.delete(*outdated, 0, now);
            }
            compose_reply(*tag, *status, text.as_bytes(), out);
            return *close;
        }
        BinaryStep::Close => return true,
    };
    let (tag, is_quiet) = (request.tag, request.is_quiet());
    match &request.command {
        BinaryCommand::Keyed { operation, .. } => {
            let key = *key.expect("a request on a key has one");
            execute::execute(context, request, operation, key, now, out);
        }
        BinaryCommand::FlushAll { delay_s } => match flush_all(context, *delay_s, now) {
            Flush::Scheduled if is_quiet => {}
            Flush::Scheduled => compose_reply(tag, Status::Success, b"", out),
            Flush::Forbidden => compose_error(tag, Status::AuthenticationFailed, out),
            Flush::TooMany => compose_error(tag, Status::OutOfMemory, out),
        },
        BinaryCommand::Noop => compose_reply(tag, Status::Success, b"", out),
        BinaryCommand::Version => compose_reply(tag, Status::Success, VERSION.as_bytes(), out),
        BinaryCommand::Stats { arguments } => stats::compose_stats(context.control, tag, arguments, now, out),
        BinaryCommand::Quit => {
            if !is_quiet {
                compose_reply(tag, Status::Success, b"", out);
            }
            return true;
        }
        BinaryCommand::Mechanisms | BinaryCommand::Authenticate { .. } | BinaryCommand::AuthenticateStep { .. } => {
            unreachable!("a session sees to these itself")
        }
    }
    false
}

/// A response without an item.
fn compose_reply(tag: ResponseTag, status: Status, value: &[u8], out: &mut Vec<u8>) {
    compose_response(&Response { tag, status, cas: Cas(0), extras: b"", key: b"", value }, out);
}
