//! The text in the datagrams of a request and its reply. Sans-I/O.

use bytes::Bytes;
use lookaside_protocol::text::{Limits, ParsedReply, ReplyPart, compose_retrieve, parse_reply};
use lookaside_protocol::{Operation, Reply, Request};
use lookaside_routing::{Failure, Outcomes};

/// Replies are bounded by the reassembly of their datagrams.
const LIMITS: Limits = Limits { value_bytes_max: usize::MAX >> 1, line_bytes_max: 2_048 };

/// Why a reply has no outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageError {
    /// The server replied with an error line.
    Refused,
    /// It is no reply to the request.
    Malformed,
}

/// Appends one line for all `requests`, which have the same operation.
pub(super) fn compose(requests: &[Request<Bytes>], out: &mut Vec<u8>) {
    if let Some(first) = requests.first() {
        compose_retrieve(&first.operation, requests.iter().map(|request| &request.key), out);
    }
}

/// The outcome of each request in a whole reply. Values are slices of it.
pub(super) fn parse(requests: &[Request<Bytes>], message: &Bytes) -> Result<Outcomes, MessageError> {
    let mut outcomes: Outcomes = requests.iter().map(absent).collect();
    let (mut at, mut next) = (0, 0);
    loop {
        let ParsedReply::Part { part, consumed } = parse_reply(&message[at..], &LIMITS) else {
            return Err(MessageError::Malformed);
        };
        at += consumed;
        match part {
            ReplyPart::Item { key, reply } => {
                // Items come in the order of the request.
                let of_key = requests[next..].iter().position(|request| request.key == key);
                let index = next + of_key.ok_or(MessageError::Malformed)?;
                outcomes[index] = Ok(reply.map(|bytes| message.slice_ref(bytes)));
                next = index + 1;
            }
            ReplyPart::End if at == message.len() => return Ok(outcomes),
            ReplyPart::Reply(Reply::Error(_)) => return Err(MessageError::Refused),
            _ => return Err(MessageError::Malformed),
        }
    }
}

/// The outcome of a request without an item. A `lease-get` has one for each key.
fn absent(request: &Request<Bytes>) -> Result<Reply<Bytes>, Failure> {
    match request.operation {
        Operation::LeaseGet => Err(Failure::Malformed),
        _ => Ok(Reply::Miss),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_protocol::LeaseToken;

    fn requests(operation: Operation<Bytes>) -> Vec<Request<Bytes>> {
        ["a", "b", "a"].map(|key| Request { key: key.into(), operation: operation.clone() }).into()
    }

    fn value(text: &'static str) -> Reply<Bytes> {
        Reply::Value { flags: 0, cas: None, value: text.into() }
    }

    #[test]
    fn items_are_matched_by_key_in_order() {
        let gets = requests(Operation::Get { cas: false });
        let mut line = Vec::new();
        compose(&gets, &mut line);
        assert_eq!(line, b"get a b a\r\n");
        let reply = "VALUE a 0 1\r\n1\r\nVALUE a 0 1\r\n2\r\nEND\r\n";
        assert_eq!(parse(&gets, &reply.into()), Ok(vec![Ok(value("1")), Ok(Reply::Miss), Ok(value("2"))]));
        let lease = Reply::Lease { token: LeaseToken(7), flags: 0, stale: None };
        let reply = "VALUE a 0 1\r\n1\r\nLVALUE b 7 0 0\r\n\r\nEND\r\n";
        let outcomes = parse(&requests(Operation::LeaseGet), &reply.into());
        assert_eq!(outcomes, Ok(vec![Ok(value("1")), Ok(lease), Err(Failure::Malformed)]));
    }

    #[test]
    fn other_replies_have_no_outcomes() {
        let gets = requests(Operation::LeaseGet);
        for (reply, expected) in [
            ("", MessageError::Malformed),
            ("VALUE a 0 1\r\n1\r\n", MessageError::Malformed),
            ("VALUE z 0 1\r\n1\r\nEND\r\n", MessageError::Malformed),
            ("VALUE b 0 1\r\n1\r\nVALUE b 0 1\r\n1\r\nEND\r\n", MessageError::Malformed),
            ("END\r\nEND\r\n", MessageError::Malformed),
            ("STORED\r\n", MessageError::Malformed),
            ("SERVER_ERROR reply too large for UDP, use TCP\r\n", MessageError::Refused),
            ("ERROR\r\n", MessageError::Refused),
        ] {
            assert_eq!(parse(&gets, &reply.into()), Err(expected), "{reply:?}");
        }
    }
}
