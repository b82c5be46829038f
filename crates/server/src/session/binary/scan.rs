//! One request off a connection's bytes, made into a step of the batch; who may not ask yet is told so here.

use crate::session::auth::sasl::Authentication;
use crate::session::binary::BinaryStep;
use crate::session::context::SessionContext;
use lookaside_protocol::binary::{
    BinaryCommand, BinaryParsed, BinaryRequest, HEADER_BYTES, Status, opcode, parse_request, peek_tag,
};
use lookaside_store::Now;

/// What was found at the front of a connection's bytes.
pub(crate) enum Scanned<'b> {
    /// A step.
    Step {
        step: BinaryStep<'b>,
        /// A key whose old value must go, of a refused `set`.
        key_to_delete: Option<&'b [u8]>,
        /// How many bytes it took.
        consumed: usize,
        /// How many more are to be dropped as they arrive.
        swallow: usize,
    },
    /// Not a whole request yet.
    Incomplete { needed_bytes: usize },
    /// A request that changes what its session may do: all before it must have been executed first.
    NeedsOwnBatch,
}

/// Reads one request. `is_batch_empty` says that all before it have been executed.
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
        BinaryParsed::Foreign => return last_step(BinaryStep::Close, bytes),
        BinaryParsed::Bad { tag, status, consumed, swallow, close, key_to_delete } => {
            let step = BinaryStep::refuse(tag, status, close);
            return Scanned::Step { step, key_to_delete, consumed, swallow };
        }
    };
    if is_authentication(&request.command) && context.sasl.is_some() && !is_batch_empty {
        return Scanned::NeedsOwnBatch;
    }
    let tag = request.tag;
    let step = match request.command {
        BinaryCommand::Mechanisms => authentication.list_mechanisms(tag, context.sasl),
        BinaryCommand::Authenticate { mechanism, word } => authentication.start(tag, mechanism, word, context, now),
        BinaryCommand::AuthenticateStep { mechanism, word } => authentication.step(tag, mechanism, word, context, now),
        command => BinaryStep::Request(BinaryRequest { tag, command }),
    };
    Scanned::Step { step, key_to_delete: None, consumed, swallow: 0 }
}

/// A client that has not said who it is may ask for the version, and may authenticate. Anything else ends the
/// connection, as soon as its header is there: nothing of it is kept.
fn refuse_unauthenticated<'b>(
    bytes: &'b [u8],
    authentication: &Authentication,
    context: &SessionContext<'_>,
) -> Option<Scanned<'b>> {
    if context.sasl.is_none() || authentication.is_done() {
        return None;
    }
    let tag = peek_tag(bytes)?;
    match parse_request(&bytes[..HEADER_BYTES], &context.limits) {
        // What these say comes first, as in memcached.
        BinaryParsed::Foreign | BinaryParsed::Bad { status: Status::UnknownCommand, close: true, .. } => return None,
        _ => {}
    }
    match tag.opcode {
        opcode::VERSION | opcode::SASL_MECHANISMS | opcode::SASL_AUTHENTICATE | opcode::SASL_STEP => None,
        _ => Some(last_step(BinaryStep::refuse(tag, Status::AuthenticationFailed, true), bytes)),
    }
}

/// The last step of its connection: what follows in its bytes is nobody's concern.
fn last_step<'b>(step: BinaryStep<'b>, bytes: &'b [u8]) -> Scanned<'b> {
    Scanned::Step { step, key_to_delete: None, consumed: bytes.len(), swallow: 0 }
}

fn is_authentication(command: &BinaryCommand<'_>) -> bool {
    matches!(
        command,
        BinaryCommand::Mechanisms | BinaryCommand::Authenticate { .. } | BinaryCommand::AuthenticateStep { .. }
    )
}
