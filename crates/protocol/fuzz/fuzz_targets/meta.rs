//! Any text as the flags of a meta command: the parsed flags are those of the text, and the reply that is composed
//! from them can be parsed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lookaside_protocol::meta::{
    MetaFlags, MetaItemInfo, MetaStatus, MetaVerb, compose_meta_reply, decode_key, encode_key,
};
use lookaside_protocol::text::{Limits, ParsedReply, ReplyPart, parse_reply};
use lookaside_protocol::{Cas, KEY_BYTES_MAX, Reply};

fuzz_target!(|bytes: &[u8]| {
    let Some((&first, text)) = bytes.split_first() else { return };
    let verbs = [MetaVerb::Get, MetaVerb::Set, MetaVerb::Delete, MetaVerb::Arithmetic, MetaVerb::Debug];
    let mut buffer = [0; KEY_BYTES_MAX];
    if let Some(key) = decode_key(text, &mut buffer) {
        let mut wire = Vec::new();
        encode_key(key, &mut wire);
        assert_eq!(wire, text);
    }
    let Ok(flags) = MetaFlags::read(verbs[usize::from(first) % verbs.len()], text) else { return };
    assert!(flags.in_order().all(|flag| flags.has(flag.letter) || !flag.letter.is_ascii_alphabetic()));
    if text.contains(&b'\n') || text.contains(&b'\r') {
        return; // A line cannot hold these bytes.
    }
    let info = MetaItemInfo {
        cas: Some(Cas(u64::MAX)),
        client_flags: Some(1),
        hit_before: Some(true),
        idle_s: Some(5),
        value_bytes: Some(3),
        ttl_s: Some(-1),
        already_won: first & 64 != 0,
        stale: first & 32 != 0,
        won: first & 16 != 0,
    };
    let value = (first & 128 != 0).then_some(&b"a\nb"[..]);
    let mut out = Vec::new();
    compose_meta_reply(MetaStatus::Done, b"key", &flags, &info, value, &mut out);
    let limits = Limits { value_bytes_max: 3, line_bytes_max: out.len() };
    match parse_reply(&out, &limits) {
        ParsedReply::Part { part: ReplyPart::Reply(Reply::Meta(reply)), consumed } => {
            assert_eq!((consumed, reply.value), (out.len(), value));
            assert_eq!(reply.flag(b'W').is_some(), info.won);
            assert_eq!(reply.flag(b'k').is_some(), flags.has(b'k'));
        }
        other => panic!("{other:?}"),
    }
});
