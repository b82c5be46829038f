//! Parses one request into a step of the batch. A request of a client that has to authenticate first is refused here.

use super::BinaryStep;
use crate::session::context::SessionContext;
use lookaside_authentication::{Authentication, sasl};
use lookaside_protocol::binary::{BinaryParsed, BinaryRequest, Status, parse_request};
use lookaside_store::Now;

/// The request at the front of a connection's input.
pub(crate) enum Scanned<'b> {
    Step {
        step: BinaryStep<'b>,
        /// The key of a refused `set`, whose old value must be deleted.
        key_to_delete: Option<&'b [u8]>,
        /// The request's length in the input.
        consumed: usize,
        /// The number of bytes behind it to drop as they arrive.
        swallow: usize,
    },
    /// Not a whole request yet.
    Incomplete { needed_bytes: usize },
    /// A request that changes what its session may do: everything before it must be executed first.
    NeedsOwnBatch,
}

/// Scans one request. `is_batch_empty` says that everything before it has been executed.
pub(crate) fn scan<'b>(
    bytes: &'b [u8],
    authentication: &mut Authentication,
    is_batch_empty: bool,
    context: &SessionContext<'_>,
    now: Now,
) -> Scanned<'b> {
    if let Some(refusal) = refuse_unauthenticated(bytes, authentication, context) {
        return refusal;
    }
    let (request, consumed) = match parse_request(bytes, &context.limits) {
        BinaryParsed::Request { request, consumed } => (request, consumed),
        BinaryParsed::Incomplete { needed_bytes } => return Scanned::Incomplete { needed_bytes },
        BinaryParsed::NotBinary => return last_step(BinaryStep::Close, bytes),
        BinaryParsed::Bad { tag, status, consumed, swallow, close, key_to_delete } => {
            let step = BinaryStep::refuse(tag, status, close);
            return Scanned::Step { step, key_to_delete, consumed, swallow };
        }
    };
    if sasl::is_authentication(&request.command) && context.sasl_users.is_some() && !is_batch_empty {
        return Scanned::NeedsOwnBatch;
    }
    let BinaryRequest { tag, command } = request;
    let step = match sasl::authenticate(authentication, &command, context.sasl_users, now.unix_ms) {
        Some(reply) => {
            if let Some(attempt) = reply.attempt {
                context.record_login(attempt, now);
            }
            BinaryStep::Reply { tag, status: reply.status, text: reply.text, close: false }
        }
        None => BinaryStep::Request(BinaryRequest { tag, command }),
    };
    Scanned::Step { step, key_to_delete: None, consumed, swallow: 0 }
}

/// Refuses a request of a client that has not authenticated, unless it asks for the version or authenticates. The
/// connection is closed as soon as the request's header has arrived.
fn refuse_unauthenticated<'b>(
    bytes: &'b [u8],
    authentication: &Authentication,
    context: &SessionContext<'_>,
) -> Option<Scanned<'b>> {
    if context.sasl_users.is_none() || authentication.is_done() {
        return None;
    }
    let tag = sasl::find_forbidden(bytes, &context.limits)?;
    Some(last_step(BinaryStep::refuse(tag, Status::AuthenticationFailed, true), bytes))
}

/// The last step of a connection: the input behind it is ignored.
fn last_step<'b>(step: BinaryStep<'b>, bytes: &'b [u8]) -> Scanned<'b> {
    Scanned::Step { step, key_to_delete: None, consumed: bytes.len(), swallow: 0 }
}
