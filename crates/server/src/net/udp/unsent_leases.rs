//! Releases the leases of a reply that is not sent, because it is too large (§3.2.1 of the paper). Serves `lease-get`
//! by UDP.
//!
//! Its client asks again by TCP. If the leases were kept, that would find nothing but hot misses, and a page that is
//! always too large would never be filled.
//!
//! Accepted: a reply that is sent and lost takes its leases with it, and the server cannot know.

use crate::session::context::SessionContext;
use lookaside_protocol::Reply;
use lookaside_protocol::text::{Limits, ParsedReply, ReplyPart, parse_reply};
use lookaside_store::Now;

/// The reply is the server's own.
const LIMITS: Limits = Limits { value_bytes_max: usize::MAX >> 1, line_bytes_max: usize::MAX >> 1 };

/// Releases the leases in `reply`, as far as it consists of replies to text commands.
pub(super) fn release_leases(reply: &[u8], context: &SessionContext<'_>, now: Now) {
    let mut at = 0;
    while let ParsedReply::Part { part, consumed } = parse_reply(&reply[at..], &LIMITS) {
        at += consumed;
        if let ReplyPart::Item { key, reply: Reply::Lease { token, .. } } = part {
            context.store.release_lease(context.store.hasher().hash(key), token, now);
        }
    }
}
