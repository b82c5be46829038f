//! From outcomes to bytes: the replies to a batch, in the order in which the client asked.
//!
//! | | reply | nobody answered |
//! |---|---|---|
//! | get verbs | a `VALUE` or `LVALUE` for each key found, then `END`; misses are silent | the keys found, then `SERVER_ERROR` in the place of `END`; or a miss, with `miss_on_get_errors` |
//! | all else | the server's line, none with `noreply` | `SERVER_ERROR`, none with `noreply` |
//!
//! An error that the router itself reports names the key, as the client wrote it.

mod binary;

use crate::frontend::parse::{AskedKey, Tallied};
use crate::stats::by_verb::Results;
use crate::stats::counters::Tally;
use lookaside_protocol::{ErrorReply, LeaseToken, Reply, text};
use lookaside_routing::Outcome;

/// Writes replies and counts them.
#[derive(Debug)]
pub struct Answers<'a> {
    /// The bytes for the client.
    pub out: &'a mut Vec<u8>,
    /// What has been answered.
    pub tally: &'a mut Tally,
    /// The same by verb.
    pub results: &'a Results,
    /// Whether a get that failed is told as a miss.
    pub miss_on_get_errors: bool,
}

impl Answers<'_> {
    /// Answers one key of a get verb. What went wrong, if anything, comes back as the line to end the get with.
    pub fn item(&mut self, key: &[u8], tallied: Tallied, outcome: Outcome) -> Option<Vec<u8>> {
        self.count_item(tallied, &outcome);
        match outcome {
            Ok(reply @ (Reply::Value { .. } | Reply::Lease { .. })) => text::compose_reply(key, &reply, self.out),
            Ok(Reply::Miss) => {}
            _ => return (!self.miss_on_get_errors).then(|| error_line(key, &outcome)),
        }
        None
    }

    fn count_item(&mut self, tallied: Tallied, outcome: &Outcome) {
        self.results.note(tallied, outcome);
        match tallied {
            Tallied::LeaseGet => self.tally.cmd_lease_get += 1,
            Tallied::GetAndTouch => self.tally.cmd_gat += 1,
            _ => self.tally.cmd_get += 1,
        }
        match outcome {
            Ok(Reply::Value { .. }) => self.tally.get_hits += 1,
            Ok(Reply::Miss) => self.tally.get_misses += 1,
            Ok(Reply::Lease { token, .. }) => self.count_lease(*token),
            Ok(_) | Err(_) => self.tally.get_failures += 1,
        }
    }

    /// Ends the answer to a get verb.
    pub fn end(&mut self, error_line: Option<Vec<u8>>) {
        match error_line {
            Some(line) => self.out.extend_from_slice(&line),
            None => self.out.extend_from_slice(text::END),
        }
    }

    /// Answers an operation on one key.
    pub fn single(&mut self, asked: &AskedKey, noreply: bool, outcome: Outcome) {
        self.count(asked.tallied, &outcome);
        if noreply {
            return;
        }
        match outcome {
            Ok(reply) => text::compose_reply(&asked.bytes, &reply, self.out),
            Err(_) => self.out.extend_from_slice(&error_line(&asked.bytes, &outcome)),
        }
    }

    fn count_lease(&mut self, token: LeaseToken) {
        self.tally.get_misses += 1;
        match token.is_held() {
            true => self.tally.lease_tokens += 1,
            false => self.tally.lease_hot_misses += 1,
        }
    }

    fn count(&mut self, tallied: Tallied, outcome: &Outcome) {
        self.results.note(tallied, outcome);
        let failed = matches!(outcome, Err(_) | Ok(Reply::Error(_)));
        let tally = &mut *self.tally;
        match tallied {
            Tallied::Get | Tallied::GetAndTouch | Tallied::LeaseGet => {}
            Tallied::Store => tally.cmd_set += 1,
            Tallied::LeaseSet => tally.cmd_lease_set += 1,
            Tallied::Delete => tally.cmd_delete += 1,
            Tallied::Arithmetic => tally.cmd_arithmetic += 1,
            Tallied::Touch => tally.cmd_touch += 1,
            Tallied::Meta => tally.cmd_meta += 1,
        }
        match (tallied, outcome) {
            (Tallied::Delete, Ok(Reply::Deleted)) => tally.delete_hits += 1,
            (Tallied::Delete, Ok(Reply::NotFound)) => tally.delete_misses += 1,
            (Tallied::Delete, _) => tally.delete_failures += 1,
            (Tallied::LeaseSet, Ok(Reply::Stored)) => tally.lease_sets_stored += 1,
            (Tallied::LeaseSet, Ok(Reply::StaleStored | Reply::NotStored)) => tally.lease_sets_void += 1,
            _ if failed => tally.other_failures += 1,
            _ => {}
        }
    }
}

/// The line that tells a client why its request for `key` has no reply.
fn error_line(key: &[u8], outcome: &Outcome) -> Vec<u8> {
    let mut line = Vec::new();
    match outcome {
        Ok(reply @ Reply::Error(_)) => text::compose_reply(key, reply, &mut line),
        Ok(_) => server_error("the server's reply does not fit the request", key, &mut line),
        Err(failure) => server_error(&failure.to_string(), key, &mut line),
    }
    line
}

fn server_error(why: &str, key: &[u8], line: &mut Vec<u8>) {
    let mut reason = why.as_bytes().to_vec();
    reason.extend_from_slice(b": key ");
    reason.extend_from_slice(key);
    // What a route says in its own words must not end the line early.
    reason.retain(|&byte| byte >= b' ' && byte != 0x7f);
    text::compose_reply(key, &Reply::Error(ErrorReply::Server(reason)), line);
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use lookaside_routing::Failure;

    fn asked(tallied: Tallied) -> AskedKey {
        AskedKey { bytes: Bytes::from_static(b"user:1"), tallied }
    }

    fn answer(miss_on_get_errors: bool, run: impl FnOnce(&mut Answers<'_>)) -> (String, Tally) {
        let (mut out, mut tally) = (Vec::new(), Tally::default());
        run(&mut Answers { out: &mut out, tally: &mut tally, results: &Results::default(), miss_on_get_errors });
        (String::from_utf8(out).expect("text"), tally)
    }

    #[test]
    fn a_failed_get_names_the_key_in_the_place_of_end() {
        let (text, tally) = answer(false, |answers| {
            let line = answers.item(b"user:1", Tallied::Get, Err(Failure::TimedOut));
            answers.end(line);
        });
        assert_eq!(text, "SERVER_ERROR server timed out: key user:1\r\n");
        assert_eq!(tally, Tally { cmd_get: 1, get_failures: 1, ..Tally::default() });
    }

    #[test]
    fn a_failed_get_is_a_miss_when_asked_for() {
        let (text, tally) = answer(true, |answers| {
            let line = answers.item(b"user:1", Tallied::Get, Err(Failure::TimedOut));
            answers.end(line);
        });
        assert_eq!(text, "END\r\n");
        assert_eq!(tally.get_failures, 1);
    }

    #[test]
    fn a_servers_own_error_passes_unchanged() {
        let reply = || Ok(Reply::Error(ErrorReply::Server(Bytes::from_static(b"out of memory"))));
        let (text, _) = answer(false, |answers| {
            answers.single(&asked(Tallied::Store), false, reply());
            let line = answers.item(b"user:1", Tallied::Get, reply());
            answers.end(line);
        });
        assert_eq!(text, "SERVER_ERROR out of memory\r\nSERVER_ERROR out of memory\r\n");
    }

    #[test]
    fn a_reply_that_does_not_fit_a_get_is_not_passed_on() {
        let (text, _) = answer(false, |answers| {
            let line = answers.item(b"user:1", Tallied::Get, Ok(Reply::Stored));
            answers.end(line);
        });
        assert_eq!(text, "SERVER_ERROR the server's reply does not fit the request: key user:1\r\n");
    }

    #[test]
    fn noreply_says_nothing_and_is_counted() {
        let (text, tally) = answer(false, |answers| {
            answers.single(&asked(Tallied::Delete), true, Err(Failure::Tko));
            answers.single(&asked(Tallied::Delete), true, Ok(Reply::Deleted));
        });
        assert_eq!(text, "");
        assert_eq!(tally, Tally { cmd_delete: 2, delete_hits: 1, delete_failures: 1, ..Tally::default() });
    }

    #[test]
    fn a_routes_own_words_cannot_break_the_line() {
        let (text, _) = answer(false, |answers| {
            answers.single(&asked(Tallied::Store), false, Err(Failure::NoRoute("no\r\nSTORED\r\n".into())));
        });
        assert_eq!(text, "SERVER_ERROR no route: noSTORED: key user:1\r\n");
    }

    #[test]
    fn lease_misses_are_told_apart() {
        let lease = |token| Ok(Reply::Lease { token, flags: 0, stale: None });
        let (text, tally) = answer(false, |answers| {
            assert_eq!(answers.item(b"user:1", Tallied::LeaseGet, lease(LeaseToken(77))), None);
            assert_eq!(answers.item(b"user:1", Tallied::LeaseGet, lease(LeaseToken::HOT_MISS)), None);
            answers.end(None);
        });
        assert_eq!(text, "LVALUE user:1 77 0 0\r\n\r\nLVALUE user:1 1 0 0\r\n\r\nEND\r\n");
        assert_eq!((tally.lease_tokens, tally.lease_hot_misses, tally.get_misses), (1, 1, 2));
    }
}
