//! The parts of a meta command (`mg ms md ma me`) that matter to routing: flags, exptimes, and the reply of an empty
//! cache (memcached's `protocol.txt`, "Meta Commands"). `verb.rs` has the verb that it counts as.

use crate::Outcome;
use bytes::Bytes;
use lookaside_protocol::meta::{MetaFlag, MetaOperation, MetaReply, MetaStatus, MetaVerb, OBSERVER_OPAQUE, meta_flags};
use lookaside_protocol::{Operation, Reply, Request};

/// The token of a flag; `None` if the flag is not set.
pub(crate) fn token(flags: &[u8], letter: u8) -> Option<&[u8]> {
    meta_flags(flags).find(|flag| flag.letter == letter).map(|flag| flag.token)
}

pub(crate) fn has_encoded_key(meta: &MetaOperation<Bytes>) -> bool {
    token(&meta.flags, b'b').is_some()
}

/// Whether the request is a read by a tool that compares caches ([`OBSERVER_OPAQUE`]): it must leave them as they are.
pub(crate) fn is_of_observer(request: &Request<Bytes>) -> bool {
    let Operation::Meta(meta) = &request.operation else { return false };
    meta.verb == MetaVerb::Get && token(&meta.flags, b'O') == Some(OBSERVER_OPAQUE)
}

/// Changes every exptime: `T`, and `N` of an `mg` or `ma` that creates the key on a miss. An `ms` without `T` never
/// expires, so it gets one.
pub(crate) fn modify_exptimes(meta: &mut MetaOperation<Bytes>, new_exptime: impl Fn(i64) -> i64) {
    let creates = matches!(meta.verb, MetaVerb::Get | MetaVerb::Arithmetic);
    let mut flags = Vec::with_capacity(meta.flags.len());
    let mut put = |letter: u8, token: &[u8]| {
        if !flags.is_empty() {
            flags.push(b' ');
        }
        flags.push(letter);
        flags.extend_from_slice(token);
    };
    for MetaFlag { letter, token } in meta_flags(&meta.flags) {
        let is_exptime = letter == b'T' || letter == b'N' && creates;
        let exptime = str::from_utf8(token).ok().and_then(|text| text.parse().ok());
        match exptime.filter(|_| is_exptime) {
            Some(exptime) => put(letter, new_exptime(exptime).to_string().as_bytes()),
            None => put(letter, token), // The server refuses a token that is not a number.
        }
    }
    if meta.verb == MetaVerb::Set && token(&meta.flags, b'T').is_none() {
        match new_exptime(0) {
            0 => {}
            exptime => put(b'T', exptime.to_string().as_bytes()),
        }
    }
    if flags != *meta.flags {
        meta.flags = flags.into();
    }
}

/// The reply of a cache without the key, with the flags that a reply repeats (`O`, `k`, `b`).
pub(crate) fn empty_cache_reply(key: &[u8], meta: &MetaOperation<Bytes>) -> MetaReply<Bytes> {
    let status = match meta.verb {
        MetaVerb::Get | MetaVerb::Debug => {
            return MetaReply { status: MetaStatus::Miss, flags: Bytes::new(), value: None };
        }
        MetaVerb::Set => MetaStatus::NotStored,
        MetaVerb::Delete | MetaVerb::Arithmetic => MetaStatus::NotFound,
    };
    let repeated = meta_flags(&meta.flags).filter_map(|MetaFlag { letter, token }| match letter {
        b'O' | b'b' => Some([&[letter], token].concat()),
        b'k' => Some([b"k", key].concat()),
        _ => None,
    });
    MetaReply { status, flags: repeated.collect::<Vec<_>>().join(&b' ').into(), value: None }
}

/// Replaces the key in a reply by the client's: if a route changed the key, the flag `k` still returns the original.
pub(crate) fn restore_client_key(outcome: Outcome, key: &[u8]) -> Outcome {
    let Ok(Reply::Meta(mut reply)) = outcome else { return outcome };
    if reply.status != MetaStatus::Debug && token(&reply.flags, b'k').is_some() {
        let flags = meta_flags(&reply.flags).map(|MetaFlag { letter, token }| match letter {
            b'k' => [b"k", key].concat(),
            _ => [&[letter], token].concat(),
        });
        reply.flags = flags.collect::<Vec<_>>().join(&b' ').into();
    }
    Ok(Reply::Meta(reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(verb: MetaVerb, flags: &'static str) -> MetaOperation<Bytes> {
        MetaOperation { verb, flags: flags.into(), value: None }
    }

    #[test]
    fn only_exptimes_change() {
        use MetaVerb::{Arithmetic, Get, Set};
        let at_most_10 = |exptime| if exptime == 0 { 10 } else { std::cmp::min(exptime, 10) };
        for (command, flags, expected) in [
            (Set, "", "T10"),
            (Set, "F5 T99 q", "F5 T10 q"),
            (Set, "T5", "T5"),
            (Set, "T0", "T10"),
            (Get, "v N30 T40 O12", "v N10 T10 O12"),
            (Get, "v", "v"),
            (Get, "Tx", "Tx"),
            (Arithmetic, "N0 J13 D2", "N10 J13 D2"),
        ] {
            let mut operation = meta(command, flags);
            modify_exptimes(&mut operation, at_most_10);
            assert_eq!(operation.flags, expected, "{command:?} {flags}");
        }
        let mut unlimited = meta(Set, "q");
        modify_exptimes(&mut unlimited, |exptime| exptime);
        assert_eq!(unlimited.flags, "q");
    }

    #[test]
    fn an_empty_cache_repeats_opaque_and_key() {
        let reply = empty_cache_reply(b"user:42", &meta(MetaVerb::Delete, "q k O7"));
        assert_eq!((reply.status, &*reply.flags), (MetaStatus::NotFound, &b"kuser:42 O7"[..]));
        let reply = empty_cache_reply(b"user:42", &meta(MetaVerb::Get, "v k"));
        assert_eq!((reply.status, &*reply.flags), (MetaStatus::Miss, &b""[..]));
    }
}
