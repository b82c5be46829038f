//! The responses of the binary protocol. If no server answered, the response is a temporary failure, even to a quiet
//! request, with the error line of the text protocol; or a miss to a get, with `miss_on_get_errors`.

use super::ReplyWriter;
use crate::frontend::parse::{ExpectedReply, ReplyKey};
use bytes::Bytes;
use lookaside_protocol::binary::{Response, ResponseTag, Status, compose_error, compose_hit, compose_response, opcode};
use lookaside_protocol::meta::{MetaReply, MetaStatus};
use lookaside_protocol::{Cas, ErrorReply, Reply, StoreMode};
use lookaside_routing::Outcome;

impl ReplyWriter<'_> {
    /// Writes the response to a request.
    pub fn write_binary(&mut self, tag: ResponseTag, reply_key: &ReplyKey, expected: &ExpectedReply, outcome: Outcome) {
        let (outcome, cas) = match outcome {
            Ok(Reply::Meta(meta)) => from_meta_reply(expected, meta),
            Ok(Reply::StoredAs(cas)) => (Ok(Reply::Stored), cas),
            outcome => (outcome, Cas(0)),
        };
        match expected {
            ExpectedReply::Item { with_key } => {
                self.count_item(reply_key.class, &outcome);
                let key = if *with_key { &reply_key.bytes[..] } else { b"" };
                self.write_binary_item(tag, key, outcome);
            }
            _ => {
                self.count(reply_key.class, &outcome);
                self.write_binary_outcome(tag, cas, expected, outcome);
            }
        }
    }

    fn write_binary_item(&mut self, tag: ResponseTag, key: &[u8], outcome: Outcome) {
        match outcome {
            Ok(Reply::Value { flags, cas, value }) => {
                compose_hit(tag, cas.unwrap_or(Cas(0)), flags, key, value.len(), self.out);
                self.out.extend_from_slice(&value);
            }
            Ok(Reply::Miss) => self.write_binary_miss(tag, key),
            _ if self.miss_on_get_errors => self.write_binary_miss(tag, key),
            failed => self.write_binary_failure(tag, &failed),
        }
    }

    fn write_binary_miss(&mut self, tag: ResponseTag, key: &[u8]) {
        if opcode::is_quiet(tag.opcode) {
            return;
        }
        let status = Status::NotFound;
        let value = if key.is_empty() { status.message().as_bytes() } else { b"" };
        compose_response(&Response { tag, status, cas: Cas(0), extras: b"", key, value }, self.out);
    }

    fn write_binary_outcome(&mut self, tag: ResponseTag, cas: Cas, expected: &ExpectedReply, outcome: Outcome) {
        let number;
        let (extras, value): (&[u8], &[u8]) = match (&outcome, expected) {
            (Ok(Reply::Number(n)), ExpectedReply::Number { .. }) => {
                number = n.to_be_bytes();
                (b"", &number)
            }
            (Ok(Reply::Touched), ExpectedReply::Touch) => (&[0; 4], b""),
            (Ok(Reply::Stored), ExpectedReply::Store(_)) | (Ok(Reply::Deleted), ExpectedReply::Delete) => (b"", b""),
            (Ok(reply), expected) => {
                return match error_status(reply, expected) {
                    Some(status) => compose_error(tag, status, self.out),
                    None => self.write_binary_failure(tag, &outcome),
                };
            }
            (Err(_), _) => return self.write_binary_failure(tag, &outcome),
        };
        if !opcode::is_quiet(tag.opcode) {
            let status = Status::Success;
            compose_response(&Response { tag, status, cas, extras, key: b"", value }, self.out);
        }
    }

    /// Writes a failure with the text protocol's error line, without the line's end.
    fn write_binary_failure(&mut self, tag: ResponseTag, outcome: &Outcome) {
        let (line, status) = (self.error_line(outcome), Status::TemporaryFailure);
        let value = line.trim_ascii_end();
        compose_response(&Response { tag, status, cas: Cas(0), extras: b"", key: b"", value }, self.out);
    }
}

/// The classic reply that equals a meta reply, and the meta reply's CAS unique. An unexpected meta reply is returned as
/// it is.
fn from_meta_reply(expected: &ExpectedReply, meta: MetaReply<Bytes>) -> (Outcome, Cas) {
    let number = |letter| str::from_utf8(meta.flag(letter)?).ok()?.parse::<u64>().ok();
    let cas = Cas(number(b'c').unwrap_or(0));
    let flags = number(b'f').and_then(|flags| flags.try_into().ok()).unwrap_or(0);
    let reply = match (expected, meta.status, &meta.value) {
        (ExpectedReply::Item { .. }, MetaStatus::Value, Some(value)) => {
            Reply::Value { flags, cas: Some(cas), value: value.clone() }
        }
        (ExpectedReply::Item { .. }, MetaStatus::Miss, _) => Reply::Miss,
        (ExpectedReply::Touch, MetaStatus::Done, _) => Reply::Touched,
        (ExpectedReply::Touch, MetaStatus::Miss, _) => Reply::NotFound,
        (ExpectedReply::Store(_), MetaStatus::Done, _) => Reply::Stored,
        (ExpectedReply::Delete, MetaStatus::Done, _) => Reply::Deleted,
        (ExpectedReply::Number { .. }, MetaStatus::Value, Some(value)) => {
            match str::from_utf8(value.trim_ascii()).ok().and_then(|text| text.parse().ok()) {
                Some(number) => Reply::Number(number),
                None => return (Ok(Reply::Meta(meta)), cas),
            }
        }
        (_, MetaStatus::Exists, _) => Reply::Exists,
        (_, MetaStatus::NotStored, _) => Reply::NotStored,
        (_, MetaStatus::NotFound, _) => Reply::NotFound,
        _ => return (Ok(Reply::Meta(meta)), cas),
    };
    (Ok(reply), cas)
}

/// memcached's status for a reply that is not a success; `None` for an unexpected reply.
fn error_status(reply: &Reply<Bytes>, expected: &ExpectedReply) -> Option<Status> {
    match (reply, expected) {
        (Reply::NotStored, ExpectedReply::Store(StoreMode::Add)) => Some(Status::Exists),
        (Reply::NotStored, ExpectedReply::Store(StoreMode::Replace)) => Some(Status::NotFound),
        (Reply::NotStored, ExpectedReply::Store(_) | ExpectedReply::Number { .. }) => Some(Status::NotStored),
        (Reply::Exists, _) => Some(Status::Exists),
        (Reply::NotFound, _) => Some(Status::NotFound),
        (Reply::Error(ErrorReply::Client(why)), ExpectedReply::Number { .. })
            if why.ends_with(b"non-numeric value") =>
        {
            Some(Status::NotANumber)
        }
        (Reply::Error(ErrorReply::Server(why)), ExpectedReply::Store(_)) if why.starts_with(b"object too large") => {
            Some(Status::TooLarge)
        }
        (Reply::Error(ErrorReply::Server(why)), _) if why.starts_with(b"out of memory") => Some(Status::OutOfMemory),
        _ => None,
    }
}
