//! The responses of the binary dialect. A request that nobody answered is a temporary failure, said even to a quiet one,
//! with the reason in the words of the text dialect; a get may be told as a miss, as there.

use super::{Answers, error_line};
use crate::frontend::parse::{AskedKey, Expected};
use bytes::Bytes;
use lookaside_protocol::binary::{Response, ResponseTag, Status, compose_error, compose_hit, compose_response, opcode};
use lookaside_protocol::meta::{MetaReply, MetaStatus};
use lookaside_protocol::{Cas, ErrorReply, Reply, StoreMode};
use lookaside_routing::Outcome;

impl Answers<'_> {
    /// Says what came of a request.
    pub fn binary(&mut self, tag: ResponseTag, asked: &AskedKey, expected: &Expected, outcome: Outcome) {
        let (outcome, cas) = match outcome {
            Ok(Reply::Meta(meta)) => in_classic(expected, meta),
            outcome => (outcome, Cas(0)),
        };
        match expected {
            Expected::Item { with_key } => {
                self.count_item(asked.tallied, &outcome);
                let key = if *with_key { &asked.bytes[..] } else { b"" };
                self.binary_item(tag, asked, key, outcome);
            }
            _ => {
                self.count(asked.tallied, &outcome);
                self.binary_outcome(tag, cas, asked, expected, outcome);
            }
        }
    }

    fn binary_item(&mut self, tag: ResponseTag, asked: &AskedKey, key: &[u8], outcome: Outcome) {
        match outcome {
            Ok(Reply::Value { flags, cas, value }) => {
                compose_hit(tag, cas.unwrap_or(Cas(0)), flags, key, value.len(), self.out);
                self.out.extend_from_slice(&value);
            }
            Ok(Reply::Miss) => self.binary_miss(tag, key),
            _ if self.miss_on_get_errors => self.binary_miss(tag, key),
            failed => self.binary_failure(tag, asked, &failed),
        }
    }

    fn binary_miss(&mut self, tag: ResponseTag, key: &[u8]) {
        if opcode::is_quiet(tag.opcode) {
            return;
        }
        let status = Status::NotFound;
        let value = if key.is_empty() { status.message().as_bytes() } else { b"" };
        compose_response(&Response { tag, status, cas: Cas(0), extras: b"", key, value }, self.out);
    }

    fn binary_outcome(&mut self, tag: ResponseTag, cas: Cas, asked: &AskedKey, expected: &Expected, outcome: Outcome) {
        let number;
        let (extras, value): (&[u8], &[u8]) = match (&outcome, expected) {
            (Ok(Reply::Number(n)), Expected::Number { .. }) => {
                number = n.to_be_bytes();
                (b"", &number)
            }
            (Ok(Reply::Touched), Expected::Touch) => (&[0; 4], b""),
            (Ok(Reply::Stored), Expected::Store(_)) | (Ok(Reply::Deleted), Expected::Delete) => (b"", b""),
            (Ok(reply), expected) => {
                return match refusal(reply, expected) {
                    Some(status) => compose_error(tag, status, self.out),
                    None => self.binary_failure(tag, asked, &outcome),
                };
            }
            (Err(_), _) => return self.binary_failure(tag, asked, &outcome),
        };
        if !opcode::is_quiet(tag.opcode) {
            let status = Status::Success;
            compose_response(&Response { tag, status, cas, extras, key: b"", value }, self.out);
        }
    }

    /// What the text dialect would say in its line, without the line's end.
    fn binary_failure(&mut self, tag: ResponseTag, asked: &AskedKey, outcome: &Outcome) {
        let (line, status) = (error_line(&asked.bytes, outcome), Status::TemporaryFailure);
        let value = line.trim_ascii_end();
        compose_response(&Response { tag, status, cas: Cas(0), extras: b"", key: b"", value }, self.out);
    }
}

/// What a meta answer says to a request that went out in the meta dialect, and the CAS unique that it tells of; the
/// answer itself if it does not fit.
fn in_classic(expected: &Expected, meta: MetaReply<Bytes>) -> (Outcome, Cas) {
    let number = |letter| str::from_utf8(meta.flag(letter)?).ok()?.parse::<u64>().ok();
    let cas = Cas(number(b'c').unwrap_or(0));
    let flags = number(b'f').and_then(|flags| flags.try_into().ok()).unwrap_or(0);
    let reply = match (expected, meta.status, &meta.value) {
        (Expected::Item { .. }, MetaStatus::Value, Some(value)) => {
            Reply::Value { flags, cas: Some(cas), value: value.clone() }
        }
        (Expected::Item { .. }, MetaStatus::Miss, _) => Reply::Miss,
        (Expected::Touch, MetaStatus::Done, _) => Reply::Touched,
        (Expected::Touch, MetaStatus::Miss, _) => Reply::NotFound,
        (Expected::Store(_), MetaStatus::Done, _) => Reply::Stored,
        (Expected::Delete, MetaStatus::Done, _) => Reply::Deleted,
        (Expected::Number { .. }, MetaStatus::Value, Some(value)) => {
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

/// The status for a reply that is no success, as memcached has it; nothing for one that does not fit.
fn refusal(reply: &Reply<Bytes>, expected: &Expected) -> Option<Status> {
    match (reply, expected) {
        (Reply::NotStored, Expected::Store(StoreMode::Add)) => Some(Status::Exists),
        (Reply::NotStored, Expected::Store(StoreMode::Replace)) => Some(Status::NotFound),
        (Reply::NotStored, Expected::Store(_) | Expected::Number { .. }) => Some(Status::NotStored),
        (Reply::Exists, _) => Some(Status::Exists),
        (Reply::NotFound, _) => Some(Status::NotFound),
        (Reply::Error(ErrorReply::Client(why)), Expected::Number { .. }) if why.ends_with(b"non-numeric value") => {
            Some(Status::NotANumber)
        }
        (Reply::Error(ErrorReply::Server(why)), Expected::Store(_)) if why.starts_with(b"object too large") => {
            Some(Status::TooLarge)
        }
        (Reply::Error(ErrorReply::Server(why)), _) if why.starts_with(b"out of memory") => Some(Status::OutOfMemory),
        _ => None,
    }
}
