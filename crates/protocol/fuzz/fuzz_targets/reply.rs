//! Any bytes sent to a client: the parser does not panic, makes progress, and never parses a part of a reply as
//! another reply.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lookaside_protocol::text::{Limits, ParsedReply, ReplyPart, compose_reply, parse_reply};

const LIMITS: Limits = Limits { value_bytes_max: 64, line_bytes_max: 512 };

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    loop {
        let (part, consumed) = match parse_reply(rest, &LIMITS) {
            ParsedReply::Incomplete { needed_bytes } => return assert!(needed_bytes > rest.len()),
            ParsedReply::Malformed { .. } => return,
            ParsedReply::Part { part, consumed } => (part, consumed),
        };
        assert!(consumed > 0 && consumed <= rest.len());
        for cut in 0..consumed {
            let half = parse_reply(&rest[..cut], &LIMITS);
            assert!(
                matches!(half, ParsedReply::Incomplete { needed_bytes } if needed_bytes > cut && needed_bytes <= consumed)
            );
        }
        let composed = match &part {
            ReplyPart::Item { key, reply } => Some((*key, reply)),
            ReplyPart::Reply(reply) => Some((&b"k"[..], reply)),
            _ => None,
        };
        if let Some((key, reply)) = composed {
            let mut out = Vec::new();
            compose_reply(key, reply, &mut out);
            // The line may have been shorter: `SERVER_ERROR` without a space, as memcached has one.
            let limits = Limits { line_bytes_max: 1024, ..LIMITS };
            let again = parse_reply(&out, &limits);
            let same = if matches!(reply, lookaside_protocol::Reply::Error(_)) {
                matches!(again, ParsedReply::Part { .. })
            } else {
                again == ParsedReply::Part { part: part.clone(), consumed: out.len() }
            };
            assert!(same, "{part:?} is parsed as {again:?}");
        }
        rest = &rest[consumed..];
    }
});
