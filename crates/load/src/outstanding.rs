//! The requests of one connection that are not answered yet, and the check of their replies. Sans-I/O.
//!
//! Every byte is checked: the lines, the flags (0), the lengths, the values, and that nothing else comes. A get's items
//! may come in any order, as routers send them in the order in which servers answer. An item that does not come is a
//! miss.

use crate::items::{DIGITS, Items, digits};
use std::collections::VecDeque;
use std::io::Write as _;
use thiserror::Error;

/// The longest line of an item: beside the key are `VALUE`, the flags and the length, at most 7 digits.
const LINE_BYTES_MAX: usize = 250 + 32;

/// The part of a wrong reply that is shown.
const SHOWN_BYTES: usize = 160;

/// A reply that is not the one to the request.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("wrong reply: {expected}; found {found:?}")]
pub struct WrongReply {
    expected: String,
    found: String,
}

impl WrongReply {
    fn new(expected: impl Into<String>, found: &[u8]) -> WrongReply {
        let found = found[..found.len().min(SHOWN_BYTES)].escape_ascii().to_string();
        WrongReply { expected: expected.into(), found }
    }
}

/// A request that has been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// When it was sent or due, as given to [`Outstanding::push`].
    pub since_ns: u64,
    /// The keys that it asked for or set.
    pub keys: u32,
    /// The keys that it got no value for.
    pub misses: u32,
}

/// The lines that begin the items of replies.
#[derive(Clone, Debug)]
pub struct ItemLines {
    line: Vec<u8>,
    digits_at: usize,
    length_at: usize,
    is_fixed: bool,
}

impl ItemLines {
    /// The lines of these items.
    pub fn new(items: &Items) -> ItemLines {
        let mut line = b"VALUE ".to_vec();
        items.write_key(0, &mut line);
        let digits_at = line.len() - DIGITS;
        line.extend_from_slice(b" 0 ");
        let length_at = line.len();
        write!(line, "{}\r\n", items.value_bytes(0)).expect("a vector takes all bytes");
        ItemLines { line, digits_at, length_at, is_fixed: items.has_fixed_value_bytes() }
    }

    /// The item's line, with its end.
    fn of(&mut self, items: &Items, item: u32) -> &[u8] {
        self.line[self.digits_at..self.digits_at + DIGITS].copy_from_slice(&digits(item));
        if !self.is_fixed {
            self.line.truncate(self.length_at);
            write!(self.line, "{}\r\n", items.value_bytes(item)).expect("a vector takes all bytes");
        }
        &self.line
    }
}

#[derive(Clone, Copy, Debug)]
struct UnansweredRequest {
    since_ns: u64,
    keys: u32,
    /// The keys without a reply yet; they are the first ones of `Outstanding::keys`, if this is the first request.
    open: u32,
    is_set: bool,
}

/// The unanswered requests of a connection, in order.
#[derive(Debug, Default)]
pub struct Outstanding {
    requests: VecDeque<UnansweredRequest>,
    keys: VecDeque<u32>,
}

/// A whole item or line at the start of the bytes.
enum ReplyPart {
    Item { bytes: usize },
    End { bytes: usize },
    Incomplete,
}

impl Outstanding {
    /// The number of unanswered requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether all are answered.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a request that was sent or due at `since_ns`.
    pub fn push(&mut self, keys: &[u32], is_set: bool, since_ns: u64) {
        let open = keys.len() as u32;
        self.requests.push_back(UnansweredRequest { since_ns, keys: open, open, is_set });
        self.keys.extend(keys);
    }

    /// Gives up all requests; returns their number.
    pub fn abandon(&mut self) -> usize {
        self.keys.clear();
        let count = self.requests.len();
        self.requests.clear();
        count
    }

    /// Checks the whole items and lines that `bytes` begins with, and reports each request that they complete. Returns
    /// the number of bytes checked: those after them are the beginning of an item or line, and are to be passed again
    /// with what follows.
    pub fn check(
        &mut self,
        bytes: &[u8],
        items: &Items,
        lines: &mut ItemLines,
        mut on_answer: impl FnMut(Answered),
    ) -> Result<usize, WrongReply> {
        let mut checked = 0;
        while checked < bytes.len() {
            let rest = &bytes[checked..];
            let Some(&request) = self.requests.front() else {
                return Err(WrongReply::new("all requests are answered", rest));
            };
            let part = if request.is_set { stored(rest)? } else { self.item_or_end(rest, request, items, lines)? };
            match part {
                ReplyPart::Incomplete => break,
                ReplyPart::Item { bytes } => {
                    checked += bytes;
                    self.requests[0].open -= 1;
                }
                ReplyPart::End { bytes } => {
                    checked += bytes;
                    let misses = if request.is_set { 0 } else { request.open };
                    self.keys.drain(..request.open as usize);
                    self.requests.pop_front();
                    on_answer(Answered { since_ns: request.since_ns, keys: request.keys, misses });
                }
            }
        }
        Ok(checked)
    }

    /// The next part of the reply to a get. The item's key is removed from the open ones.
    fn item_or_end(
        &mut self,
        rest: &[u8],
        request: UnansweredRequest,
        items: &Items,
        lines: &mut ItemLines,
    ) -> Result<ReplyPart, WrongReply> {
        const END: &[u8] = b"END\r\n";
        if rest.starts_with(END) {
            return Ok(ReplyPart::End { bytes: END.len() });
        }
        if END.starts_with(rest) {
            return Ok(ReplyPart::Incomplete);
        }
        let place = match self.keys.front() {
            Some(&item) if request.open > 0 && rest.starts_with(lines.of(items, item)) => 0,
            _ => match self.place_of(rest, request, items, lines)? {
                Some(place) => place,
                None => return Ok(ReplyPart::Incomplete),
            },
        };
        let item = self.keys[place];
        let (line_bytes, value_bytes) = (lines.of(items, item).len(), items.value_bytes(item));
        let whole = line_bytes + value_bytes + b"\r\n".len();
        if rest.len() < whole {
            return Ok(ReplyPart::Incomplete);
        }
        let value = &rest[line_bytes..line_bytes + value_bytes];
        if !items.has_value(item, value) {
            return Err(WrongReply::new(format!("expected the value of item {item:08x}"), value));
        }
        if &rest[line_bytes + value_bytes..whole] != b"\r\n" {
            let expected = format!("expected the end of the value of item {item:08x}");
            return Err(WrongReply::new(expected, &rest[line_bytes + value_bytes..whole]));
        }
        self.keys.swap(0, place);
        self.keys.pop_front();
        Ok(ReplyPart::Item { bytes: whole })
    }

    /// The place among the open keys of the item whose line `rest` begins with; `None` if the line is not complete.
    fn place_of(
        &self,
        rest: &[u8],
        request: UnansweredRequest,
        items: &Items,
        lines: &mut ItemLines,
    ) -> Result<Option<usize>, WrongReply> {
        let start = &rest[..rest.len().min(LINE_BYTES_MAX)];
        let Some(end) = start.iter().position(|&byte| byte == b'\n') else {
            return match rest.len() < LINE_BYTES_MAX {
                true => Ok(None),
                false => Err(WrongReply::new("expected an item or END", rest)),
            };
        };
        let line = &start[..=end];
        let key = line.strip_prefix(b"VALUE ").and_then(|words| words.split(|&byte| byte == b' ').next());
        let item = key.and_then(|key| items.item_of(key));
        let open = self.keys.range(..request.open as usize);
        let place = item.and_then(|item| open.clone().position(|&other| other == item));
        match place {
            Some(place) if line == lines.of(items, self.keys[place]) => Ok(Some(place)),
            Some(_) => Err(WrongReply::new("expected flags 0 and the length that was set", line)),
            None => Err(WrongReply::new(format!("expected END or one of {} keys of the get", request.open), line)),
        }
    }
}

fn stored(rest: &[u8]) -> Result<ReplyPart, WrongReply> {
    const STORED: &[u8] = b"STORED\r\n";
    if rest.starts_with(STORED) {
        return Ok(ReplyPart::End { bytes: STORED.len() });
    }
    match STORED.starts_with(rest) {
        true => Ok(ReplyPart::Incomplete),
        false => Err(WrongReply::new("expected STORED", rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Exchange {
        items: Items,
        lines: ItemLines,
        outstanding: Outstanding,
    }

    impl Exchange {
        fn new(items: Items) -> Exchange {
            let lines = ItemLines::new(&items);
            Exchange { items, lines, outstanding: Outstanding::default() }
        }

        fn check(&mut self, bytes: &[u8]) -> Result<(usize, Vec<Answered>), WrongReply> {
            let mut answered = Vec::new();
            let checked = self.outstanding.check(bytes, &self.items, &mut self.lines, |one| answered.push(one))?;
            Ok((checked, answered))
        }

        fn item(&self, item: u32) -> Vec<u8> {
            let mut out = b"VALUE ".to_vec();
            self.items.write_key(item, &mut out);
            write!(out, " 0 {}\r\n", self.items.value_bytes(item)).unwrap();
            self.items.write_value(item, &mut out);
            out.extend_from_slice(b"\r\n");
            out
        }

        fn reply(&self, items: &[u32]) -> Vec<u8> {
            let parts = items.iter().flat_map(|&item| self.item(item));
            parts.chain(*b"END\r\n").collect()
        }
    }

    fn exchange() -> Exchange {
        Exchange::new(Items::new(1_000, 24, 20..=40))
    }

    #[test]
    fn replies_are_matched_wherever_they_are_cut() {
        let mut whole = exchange();
        let bytes = [whole.reply(&[1, 2, 3]), b"STORED\r\n".to_vec(), whole.reply(&[]), whole.reply(&[5])].concat();
        let expected = [(10, 3, 0), (20, 1, 0), (30, 1, 1), (40, 2, 1)];
        let expected = expected.map(|(since_ns, keys, misses)| Answered { since_ns, keys, misses });
        for cut in 0..=bytes.len() {
            whole.outstanding.push(&[1, 2, 3], false, 10);
            whole.outstanding.push(&[9], true, 20);
            whole.outstanding.push(&[4], false, 30);
            whole.outstanding.push(&[7, 5], false, 40);
            let (checked, mut answered) = whole.check(&bytes[..cut]).unwrap();
            assert!(checked <= cut);
            let (rest, more) = whole.check(&bytes[checked..]).unwrap();
            answered.extend(more);
            assert_eq!((checked + rest, &answered[..]), (bytes.len(), &expected[..]), "cut at {cut}");
            assert!(whole.outstanding.is_empty() && whole.outstanding.keys.is_empty());
        }
    }

    #[test]
    fn every_wrong_byte_is_found() {
        for (keys, is_set) in [(&[8, 9][..], false), (&[9][..], true)] {
            let reply = match is_set {
                true => b"STORED\r\n".to_vec(),
                false => exchange().reply(keys),
            };
            let answers = |first: &[u8]| {
                let mut exchange = exchange();
                exchange.outstanding.push(keys, is_set, 0);
                exchange.outstanding.push(keys, is_set, 0);
                // The second reply is right, and completes a line whose end is wrong.
                let bytes = [first, &reply[..]].concat();
                exchange.check(&bytes).map(|(_, answered)| answered.len())
            };
            assert_eq!(answers(&reply), Ok(2));
            for at in 0..reply.len() {
                for flip in [1, 0x20, 0x80] {
                    let mut wrong = reply.clone();
                    wrong[at] ^= flip;
                    assert!(answers(&wrong).is_err(), "byte {at} ^ {flip} of {}", reply.escape_ascii());
                }
            }
        }
    }

    #[test]
    fn items_may_come_in_any_order() {
        let mut exchange = exchange();
        let bytes = [exchange.reply(&[3, 1, 4, 2]), exchange.reply(&[6, 5])].concat();
        exchange.outstanding.push(&[1, 2, 3, 4], false, 0);
        exchange.outstanding.push(&[5, 6], false, 0);
        let (checked, answered) = exchange.check(&bytes).unwrap();
        assert_eq!(checked, bytes.len());
        assert_eq!(answered.iter().map(|one| one.misses).collect::<Vec<_>>(), [0, 0]);
    }

    #[test]
    fn what_was_not_requested_is_refused() {
        let repeated = exchange().reply(&[1, 1]);
        let other = exchange().reply(&[2]);
        let next_gets = exchange().reply(&[1, 3]);
        for reply in [&repeated[..], &other, &next_gets, b"SERVER_ERROR out of memory\r\n", b"EN\r\n", b"VALUE \r\n"] {
            let mut exchange = exchange();
            exchange.outstanding.push(&[1], false, 0);
            exchange.outstanding.push(&[3], false, 0);
            assert!(exchange.check(reply).is_err(), "{}", reply.escape_ascii());
        }
        let mut exchange = exchange();
        assert!(exchange.check(b"END\r\n").unwrap_err().to_string().contains("all requests are answered"));
    }

    #[test]
    fn item_of_another_length_is_refused() {
        let mut exchange = Exchange::new(Items::new(10, 24, 3..=3));
        let mut reply = b"VALUE ".to_vec();
        exchange.items.write_key(1, &mut reply);
        reply.extend_from_slice(b" 0 4\r\n0010\r\nEND\r\n");
        exchange.outstanding.push(&[1], false, 0);
        assert!(exchange.check(&reply).unwrap_err().to_string().contains("the length that was set"));
    }

    #[test]
    fn line_without_an_end_is_refused_before_it_fills_memory() {
        let mut exchange = exchange();
        exchange.outstanding.push(&[1], false, 0);
        assert_eq!(exchange.check(&[b'V'; LINE_BYTES_MAX - 1]).unwrap().0, 0);
        assert!(exchange.check(&[b'V'; LINE_BYTES_MAX]).is_err());
    }
}
