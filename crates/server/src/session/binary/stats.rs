//! `stat`: the lines of the text protocol, one response for each, and an empty response at the end.
//!
//! As in memcached, some arguments are recognized by their prefix, and `conns` is unknown.

use crate::session::context::ServerControl;
use lookaside_protocol::Cas;
use lookaside_protocol::binary::{Response, ResponseTag, Status, compose_error, compose_response, compose_statistics};
use lookaside_store::Now;

/// Appends the responses to `stat <arguments>`.
pub(super) fn compose_stats(
    control: &dyn ServerControl,
    tag: ResponseTag,
    arguments: &[u8],
    now: Now,
    out: &mut Vec<u8>,
) {
    const PREFIXES: [&[u8]; 5] = [b"reset", b"settings", b"detail dump", b"detail on", b"detail off"];
    const WHOLE: [&[u8]; 4] = [b"", b"items", b"slabs", b"sizes"];
    let prefixed = PREFIXES.into_iter().find(|word| arguments.starts_with(word));
    let Some(arguments_known) = prefixed.or(WHOLE.into_iter().find(|word| arguments == *word)) else {
        return compose_error(tag, Status::NotFound, out);
    };
    let mut text = Vec::new();
    control.stats(arguments_known, now, &mut text);
    if arguments_known == b"detail dump" {
        let (status, cas, extras) = (Status::Success, Cas(0), &b""[..]);
        compose_response(&Response { tag, status, cas, extras, key: b"detailed", value: &text }, out);
        text.clear();
    }
    compose_statistics(tag, &text, out);
}
