//! The binary protocol: requests become steps of a batch, and steps are executed.
//!
//! A sequence of quiet gets is the binary protocol's multiget. Each get is a step of the batch with one key, so that
//! all keys are prefetched together ([`Batch`](crate::session::batch::Batch)), and each hit is rendered from the item
//! into the reply. Nothing here allocates, except `stat`.
//!
//! | command | reply | reply when quiet |
//! |---|---|---|
//! | get, gat, touch | hit: flags, value, CAS; miss: not found | the hit |
//! | set and its variants, incr, decr | the new CAS, the new number; or an error | an error |
//! | delete | success or not found; either way leases are voided and the hold-off begins | not found |
//!
//! `docs/deviations/005-memcached.md` lists the differences from memcached.

mod execute;
mod scan;
mod stats;

pub(crate) use scan::{Scanned, scan};

use crate::observe::metrics::latency::CommandClass;
use crate::session::context::SessionContext;
use crate::session::execute::{Flush, VERSION, flush_all};
use lookaside_protocol::Cas;
use lookaside_protocol::binary::{
    BinaryCommand, BinaryOperation, BinaryRequest, Response, ResponseTag, Status, compose_error, compose_response,
};
use lookaside_store::{HashedKey, Now};

/// A step of a batch for a client of the binary protocol.
pub(crate) enum BinaryStep<'b> {
    /// Executes a request.
    Request(BinaryRequest<'b>),
    /// Replies to a request that the session has handled itself, or refused.
    Reply { tag: ResponseTag, status: Status, text: &'static str, close: bool },
    /// Closes the connection without a reply.
    Close,
}

impl<'b> BinaryStep<'b> {
    /// An error in memcached's words.
    pub(crate) fn refuse(tag: ResponseTag, status: Status, close: bool) -> BinaryStep<'b> {
        BinaryStep::Reply { tag, status, text: status.message(), close }
    }

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

    /// The key of the request; `None` if it has none.
    pub(crate) fn key(&self) -> Option<&'b [u8]> {
        match self {
            BinaryStep::Request(BinaryRequest { command: BinaryCommand::Keyed { key, .. }, .. }) => Some(key),
            _ => None,
        }
    }
}

/// Executes a step; returns whether the connection is to be closed. `key` is the request's key, hashed; for a refused
/// request, a key whose old value must be deleted.
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
            if *status == Status::TooLarge {
                context.counters.store_too_large.add(1);
            }
            if let Some(key_to_delete) = key {
                context.store.delete(*key_to_delete, 0, now);
            }
            compose_reply(*tag, *status, text.as_bytes(), out);
            return *close;
        }
        BinaryStep::Close => return true,
    };
    let (tag, is_quiet) = (request.tag, request.is_quiet());
    match &request.command {
        BinaryCommand::Keyed { operation, .. } => {
            let key = *key.expect("a keyed request has a key");
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
            unreachable!("the session handles these itself")
        }
    }
    false
}

/// Composes a response without an item.
fn compose_reply(tag: ResponseTag, status: Status, value: &[u8], out: &mut Vec<u8>) {
    compose_response(&Response { tag, status, cas: Cas(0), extras: b"", key: b"", value }, out);
}
