//! From replies to outcomes: the part of the pipeline that gives each reply to its request. Serves every path.
//!
//! The items of a get are matched by key. A server leaves out the keys that it does not have, and may reorder the
//! others.

use super::{Pipeline, ProtocolError};
use crate::destination::cas_support::CasSupport;
use crate::destination::meta_translation as meta;
use crate::destination::results::ServerResult;
use crate::destination::sent_line::{LineKind, SentLine};
use bytes::Bytes;
use lookaside_protocol::{
    ErrorReply, Reply,
    text::{END, LINE_END, ParsedReply, ReplyPart, parse_reply, parse_value_of},
};
use std::mem;

/// How much [`Pipeline::dispatch_replies`] parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Consumed {
    pub(crate) bytes: usize,
    /// The rest holds no whole reply below this length.
    pub(crate) needed_bytes: usize,
}

/// The position of the request whose item is expected next.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    batch: usize,
    request: usize,
    /// How many requests of the line come before it.
    offset: usize,
}

impl Pipeline {
    /// Parses all whole replies at the front of `block` and gives each to its request. Values become slices of it.
    pub(crate) fn dispatch_replies(&mut self, block: &Bytes) -> Result<Consumed, ProtocolError> {
        let mut at = 0;
        loop {
            at = self.parse_expected_values(at, block);
            if block[at..].starts_with(END)
                && let Some(&line) = self.front_get()
            {
                self.complete_line(line, &Reply::Miss);
                at += END.len();
                continue;
            }
            match parse_reply(&block[at..], &self.limits) {
                ParsedReply::Incomplete { needed_bytes } => return Ok(Consumed { bytes: at, needed_bytes }),
                ParsedReply::Malformed { why } => return Err(ProtocolError::Malformed(why)),
                ParsedReply::Part { part, consumed } => {
                    self.match_reply(part, block)?;
                    at += consumed;
                }
            }
        }
    }

    /// Parses the replies from byte `at` of the block while each is the value of the next key, as most are. Returns
    /// where other bytes begin. Parsing the expected value costs a fifth of parsing any reply.
    fn parse_expected_values(&mut self, mut at: usize, block: &Bytes) -> usize {
        while let Some(&line) = self.front_get() {
            let Cursor { batch, request: first, offset } = self.cursor;
            let batch = &mut self.batches[batch];
            let wanted = (line.requests - offset).min(batch.requests.len() - first);
            let mut parsed = 0;
            // Not if the request or one behind it has a reply: the server reorders keys, or all have theirs.
            while parsed < wanted && batch.outcomes.len() == first + parsed {
                let key = &batch.requests[first + parsed].key;
                let Some((reply, consumed)) = parse_value_of(key, &block[at..], &self.limits) else { break };
                at += consumed;
                // The value of a late request is dropped, so that it keeps no memory.
                batch.outcomes.push(Ok(match batch.waiter.is_some() {
                    true => reply.map(|value| {
                        let end = at - LINE_END.len();
                        block.slice(end - value.len()..end)
                    }),
                    false => Reply::Miss,
                }));
                parsed += 1;
            }
            self.advance_cursor(line, parsed);
            if parsed < wanted {
                break;
            }
        }
        at
    }

    /// The line whose reply is next; `None` if it is not a get.
    fn front_get(&self) -> Option<&SentLine> {
        self.lines.front().filter(|line| line.kind == LineKind::Retrieve)
    }

    fn match_reply(&mut self, part: ReplyPart<'_>, block: &Bytes) -> Result<(), ProtocolError> {
        let Some(&line) = self.lines.front() else {
            return Err(ProtocolError::Malformed("a reply without a request"));
        };
        match (part, line.kind) {
            (ReplyPart::Item { key, reply }, LineKind::Retrieve) => {
                self.assign_item(line, key, reply.map(|bytes| block.slice_ref(bytes)))
            }
            (ReplyPart::End, LineKind::Retrieve) => {
                self.complete_line(line, &Reply::Miss);
                Ok(())
            }
            (ReplyPart::Reply(reply @ Reply::Error(_)), LineKind::Retrieve) => {
                self.complete_line(line, &reply.map(|bytes| block.slice_ref(bytes)));
                Ok(())
            }
            (
                ReplyPart::Reply(reply),
                kind @ (LineKind::Single
                | LineKind::SingleWithData
                | LineKind::Translated
                | LineKind::TranslatedWithData),
            ) => {
                let reply = reply.map(|bytes| block.slice_ref(bytes));
                let reply = if kind.is_translated() { self.to_classic_reply(reply)? } else { reply };
                let refused = matches!(reply, Reply::Error(ErrorReply::Unknown | ErrorReply::Client(_)));
                self.complete_line(line, &reply);
                if refused && kind.has_data() { Err(ProtocolError::Desynchronized) } else { Ok(()) }
            }
            (ReplyPart::Version(version), LineKind::Version) => {
                self.cas_support = CasSupport::of_version(version);
                self.lines.pop_front();
                Ok(())
            }
            (ReplyPart::Reply(Reply::Error(_)), LineKind::Version) => {
                self.cas_support = CasSupport::Known { has_meta_set: false };
                self.lines.pop_front();
                Ok(())
            }
            (ReplyPart::Item { .. } | ReplyPart::End, _) => {
                Err(ProtocolError::Malformed("an item, or END, in reply to a command that is not a get"))
            }
            (ReplyPart::Reply(_), LineKind::Retrieve) => {
                Err(ProtocolError::Malformed("neither an item nor END in reply to a get"))
            }
            (ReplyPart::Stat { .. } | ReplyPart::Version(_) | ReplyPart::MetaNoop, _)
            | (ReplyPart::Reply(_), LineKind::Version) => {
                Err(ProtocolError::Malformed("the reply of a command that was not sent"))
            }
        }
    }

    fn to_classic_reply(&self, reply: Reply<Bytes>) -> Result<Reply<Bytes>, ProtocolError> {
        let Reply::Meta(meta) = reply else {
            return match reply {
                Reply::Error(_) => Ok(reply),
                _ => Err(ProtocolError::Malformed("not a meta reply to a meta command")),
            };
        };
        let operation = self.batches.front().map(|batch| &batch.requests[batch.done].operation);
        let classic = operation.and_then(|operation| meta::to_classic(operation, meta));
        classic.ok_or(ProtocolError::Malformed("the meta reply of another command"))
    }

    /// Assigns an item to its request: the next one with this key, or, if the server reorders keys, any other of the
    /// line that has no reply yet.
    fn assign_item(&mut self, line: SentLine, key: &[u8], reply: Reply<Bytes>) -> Result<(), ProtocolError> {
        for _ in 0..line.requests {
            let here = self.cursor;
            self.advance_cursor(line, 1);
            let batch = &mut self.batches[here.batch];
            if !batch.has_reply(here.request) && batch.requests[here.request].key == key {
                self.leases += usize::from(matches!(reply, Reply::Lease { .. }) && batch.waiter.is_some());
                // The value of a late request is dropped, so that it keeps no memory.
                batch.set_reply(here.request, if batch.waiter.is_some() { reply } else { Reply::Miss });
                return Ok(());
            }
        }
        Err(ProtocolError::Malformed("a key that was not requested"))
    }

    /// Advances by `requests`, which are of one batch.
    fn advance_cursor(&mut self, line: SentLine, requests: usize) {
        self.cursor.offset += requests;
        self.cursor.request += requests;
        if self.cursor.offset == line.requests {
            self.cursor = self.line_start();
        } else if self.cursor.request == self.batches[self.cursor.batch].requests.len() {
            self.cursor.batch += 1;
            self.cursor.request = 0;
        }
    }

    fn line_start(&self) -> Cursor {
        Cursor { batch: 0, request: self.batches.front().map_or(0, |batch| batch.done), offset: 0 }
    }

    /// Gives this reply to the line's requests that have none yet, and completes each batch that has all outcomes.
    fn complete_line(&mut self, line: SentLine, reply: &Reply<Bytes>) {
        self.lines.pop_front();
        self.unanswered -= line.requests;
        let (mut left, mut answered, mut others) = (line.requests, 0, 0);
        while left > 0 {
            let batch = self.batches.front_mut().expect("every line belongs to a batch that was sent");
            let end = batch.requests.len().min(batch.done + left);
            left -= end - batch.done;
            let is_awaited = batch.waiter.is_some();
            answered += if is_awaited { end - batch.done } else { 0 };
            let filled = batch.fill_to(end, reply);
            others += if is_awaited { filled } else { 0 };
            if end == batch.requests.len() {
                self.complete_batch();
            }
        }
        self.cursor = self.line_start();
        self.count_results(answered, others, reply);
    }

    /// Counts the results of a line: `others` of the `answered` requests have this reply, all before them an item.
    fn count_results(&mut self, answered: usize, others: usize, reply: &Reply<Bytes>) {
        let leases = mem::take(&mut self.leases);
        if others > 0 {
            self.counts.add_result(ServerResult::of(reply), others);
        }
        if leases > 0 {
            self.counts.add_result(ServerResult::NotFound, leases);
        }
        if answered > others + leases {
            self.counts.add_result(ServerResult::Found, answered - others - leases);
        }
    }

    fn complete_batch(&mut self) {
        let batch = self.batches.pop_front().expect("the caller has used the front batch");
        match batch.waiter {
            Some((waiter, permit)) => {
                self.answered_batches += 1;
                self.answered_deadline = Some(batch.deadline);
                drop(permit);
                let _ = waiter.send(batch.outcomes);
            }
            None => {
                self.late -= 1;
                self.late_requests -= batch.requests.len();
                self.late_batches += 1;
            }
        }
    }
}
