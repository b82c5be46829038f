//! Properties of all commands, replies and datagrams: parsing inverts composing, wherever the bytes are cut, and no
//! bytes make a parser panic or make no progress.

mod binary;
mod strategies;

use lookaside_protocol::text::{
    Limits, Parsed, ParsedReply, ReplyPart, compose_command, compose_reply, compose_request, parse_command,
    parse_reply, parse_value_of,
};
use lookaside_protocol::udp::{Reassembled, Reassembly, compose_datagrams, datagrams};
use lookaside_protocol::{Command, Operation, Reply, Request};
use proptest::prelude::*;
use strategies::{VALUE_BYTES_MAX, borrow_operation, nearly_commands, nearly_replies, reply, request, text_operation};

const LIMITS: Limits = Limits { value_bytes_max: VALUE_BYTES_MAX, line_bytes_max: 2048 };

/// For bytes that are cut: many lines are over this limit.
const TIGHT_LIMITS: Limits = Limits { line_bytes_max: 40, ..LIMITS };

fn compose(request: &Request<Vec<u8>>, noreply: bool) -> Vec<u8> {
    let borrowed = Request { key: &request.key[..], operation: borrow_operation(&request.operation) };
    let mut out = Vec::new();
    compose_command(&Command::Single { request: borrowed, noreply }, &mut out);
    out
}

fn is_retrieve<B>(operation: &Operation<B>) -> bool {
    matches!(operation, Operation::Get { .. } | Operation::GetAndTouch { .. } | Operation::LeaseGet)
}

proptest! {
    #[test]
    fn request_is_parsed_as_composed(request in request()) {
        let mut out = Vec::new();
        compose_request(&request, &mut out);
        out.extend_from_slice(b"version\r\n");
        let Parsed::Command { command, consumed } = parse_command(&out, &LIMITS) else {
            panic!("{:?} is not a command", out.escape_ascii().to_string())
        };
        prop_assert_eq!(&out[consumed..], b"version\r\n");
        let read = match command {
            Command::Retrieve { keys, operation } => Request { key: keys.collect::<Vec<_>>().join(&b' '), operation: operation.map(<[u8]>::to_vec) },
            Command::Single { request, noreply } => {
                prop_assert!(!noreply);
                request.map(<[u8]>::to_vec)
            }
            other => panic!("{other:?} names no key"),
        };
        prop_assert_eq!(read, request);
    }

    #[test]
    fn text_command_keeps_its_noreply(operation in text_operation(), key in strategies::key(), noreply: bool) {
        prop_assume!(!is_retrieve(&operation));
        let request = Request { key, operation };
        let out = compose(&request, noreply);
        let borrowed = Request { key: &request.key[..], operation: borrow_operation(&request.operation) };
        let command = Command::Single { request: borrowed, noreply };
        prop_assert_eq!(parse_command(&out, &LIMITS), Parsed::Command { command, consumed: out.len() });
    }

    #[test]
    fn reply_is_parsed_as_composed(key in strategies::key(), reply in reply()) {
        let mut out = Vec::new();
        compose_reply(&key, &reply, &mut out);
        let ParsedReply::Part { part, consumed } = parse_reply(&out, &LIMITS) else {
            panic!("{:?} is not a reply", out.escape_ascii().to_string())
        };
        prop_assert_eq!(consumed, out.len());
        let (read_key, read) = match part {
            ReplyPart::Item { key, reply } => (Some(key), reply),
            ReplyPart::Reply(reply) => (None, reply),
            other => panic!("{other:?} is not a reply"),
        };
        prop_assert_eq!(read_key.is_some(), matches!(reply, Reply::Value { .. } | Reply::Lease { .. }));
        prop_assert!(read_key.is_none_or(|read_key| read_key == key));
        prop_assert_eq!(read.map(<[u8]>::to_vec), reply);
    }

    /// The fast path returns the same as the general one, or nothing.
    #[test]
    fn expected_value_is_parsed_as_any_reply(
        key in strategies::key(),
        reply in reply(),
        cut_bytes in 0_usize..4,
        change in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut out = Vec::new();
        compose_reply(&key, &reply, &mut out);
        out.truncate(out.len() - cut_bytes);
        if let Some((at, byte)) = change {
            let at = at.index(out.len());
            out[at] = byte;
        }
        for limits in [&LIMITS, &TIGHT_LIMITS] {
            let expected = match parse_reply(&out, limits) {
                ParsedReply::Part { part: ReplyPart::Item { key: read, reply }, consumed } if read == key => {
                    matches!(reply, Reply::Value { cas: None, .. }).then_some((reply, consumed))
                }
                _ => None,
            };
            let fast = parse_value_of(&key, &out, limits);
            prop_assert!(fast.is_none() || fast == expected);
            // The fast path accepts all values as servers compose them.
            prop_assert!(fast.is_some() || change.is_some() || expected.is_none());
        }
    }

    #[test]
    fn commands_are_parsed_the_same_wherever_the_bytes_are_cut(
        bytes in nearly_commands(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        for limits in [&LIMITS, &TIGHT_LIMITS] {
            prop_assert_eq!(parse_commands(&bytes, cut(&bytes, &cuts), limits), parse_commands(&bytes, vec![bytes.len()], limits));
        }
    }

    #[test]
    fn commands_are_parsed_the_same_byte_by_byte(bytes in nearly_commands()) {
        for limits in [&LIMITS, &TIGHT_LIMITS] {
            let byte_by_byte = parse_commands(&bytes, (0..=bytes.len()).collect(), limits);
            prop_assert_eq!(byte_by_byte, parse_commands(&bytes, vec![bytes.len()], limits));
        }
    }

    #[test]
    fn replies_are_parsed_the_same_wherever_the_bytes_are_cut(
        bytes in nearly_replies(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        for limits in [&LIMITS, &TIGHT_LIMITS] {
            prop_assert_eq!(parse_replies(&bytes, cut(&bytes, &cuts), limits), parse_replies(&bytes, vec![bytes.len()], limits));
        }
    }

    #[test]
    fn replies_are_parsed_the_same_byte_by_byte(bytes in nearly_replies()) {
        for limits in [&LIMITS, &TIGHT_LIMITS] {
            let byte_by_byte = parse_replies(&bytes, (0..=bytes.len()).collect(), limits);
            prop_assert_eq!(byte_by_byte, parse_replies(&bytes, vec![bytes.len()], limits));
        }
    }

    #[test]
    fn any_bytes_are_parsed_or_incomplete(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        parse_commands(&bytes, vec![bytes.len()], &LIMITS);
        parse_replies(&bytes, vec![bytes.len()], &LIMITS);
    }

    #[test]
    fn message_is_assembled_from_its_datagrams(message in prop::collection::vec(any::<u8>(), 1..9000), id: u16) {
        let mut sent = Vec::new();
        prop_assert!(compose_datagrams(id, &message, &mut sent));
        let (mut reassembly, mut received) = (Reassembly::new(id, 9000), Vec::new());
        let count = datagrams(&sent).len();
        for (at, datagram) in datagrams(&sent).enumerate() {
            let expected = if at + 1 == count { Reassembled::Whole } else { Reassembled::Part };
            prop_assert_eq!(reassembly.push(datagram, &mut received), Ok(expected));
        }
        prop_assert_eq!(received, message);
    }

    /// Only all datagrams in order make a message.
    #[test]
    fn message_with_a_gap_is_never_complete(
        message_bytes in 1usize..9000,
        arriving in prop::collection::vec(0usize..7, 0..8),
    ) {
        let mut sent = Vec::new();
        prop_assert!(compose_datagrams(1, &vec![b'x'; message_bytes], &mut sent));
        let sent: Vec<_> = datagrams(&sent).collect();
        let arriving: Vec<_> = arriving.into_iter().filter(|&at| at < sent.len()).collect();
        let (mut reassembly, mut received) = (Reassembly::new(1, 9000), Vec::new());
        let steps: Vec<_> = arriving.iter().map(|&at| reassembly.push(sent[at], &mut received)).collect();
        let first_error = steps.iter().position(Result::is_err).unwrap_or(steps.len());
        let whole = steps[..first_error].contains(&Ok(Reassembled::Whole));
        prop_assert_eq!(whole, arriving.starts_with(&(0..sent.len()).collect::<Vec<_>>()));
    }
}

/// The lengths of the buffer at which the parser is called.
fn cut(bytes: &[u8], cuts: &[prop::sample::Index]) -> Vec<usize> {
    let mut lengths: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    lengths.push(bytes.len());
    lengths.sort_unstable();
    lengths
}

/// Parses commands from `bytes` that arrive up to each of `lengths` in turn.
fn parse_commands(bytes: &[u8], lengths: Vec<usize>, limits: &Limits) -> Vec<String> {
    let (mut parsed, mut from, mut needed) = (Vec::new(), 0, 0);
    for length in lengths {
        while from <= length {
            let buffer = &bytes[from..length];
            match parse_command(buffer, limits) {
                Parsed::Incomplete { needed_bytes } => {
                    assert!(needed_bytes > buffer.len(), "needs more bytes than it has");
                    needed = needed_bytes;
                    break;
                }
                Parsed::Command { command, consumed } => {
                    assert!(consumed > 0 && consumed <= buffer.len() && buffer.len() >= needed);
                    parsed.push(format!("{command:?}"));
                    from += consumed;
                }
                Parsed::Bad { line, close: Some(_), .. } => {
                    parsed.push(format!("{line:?}, closed"));
                    return parsed;
                }
                Parsed::Bad { line, consumed, swallow, key_to_delete, .. } => {
                    assert!(consumed > 0 && consumed <= buffer.len() && buffer.len() >= needed);
                    parsed.push(format!("{line:?} {swallow} {key_to_delete:?}"));
                    from += consumed + swallow;
                }
            }
            needed = 0;
        }
    }
    parsed
}

/// Parses replies from `bytes` that arrive up to each of `lengths` in turn.
fn parse_replies(bytes: &[u8], lengths: Vec<usize>, limits: &Limits) -> Vec<String> {
    let (mut parsed, mut from, mut needed) = (Vec::new(), 0, 0);
    for length in lengths {
        loop {
            let buffer = &bytes[from..length];
            match parse_reply(buffer, limits) {
                ParsedReply::Incomplete { needed_bytes } => {
                    assert!(needed_bytes > buffer.len(), "needs more bytes than it has");
                    needed = needed_bytes;
                    break;
                }
                ParsedReply::Part { part, consumed } => {
                    assert!(consumed > 0 && consumed <= buffer.len() && buffer.len() >= needed);
                    parsed.push(format!("{part:?}"));
                    from += consumed;
                    needed = 0;
                }
                ParsedReply::Malformed { why } => {
                    parsed.push(why.to_string());
                    return parsed;
                }
            }
        }
    }
    parsed
}
