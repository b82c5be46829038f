//! From outcomes to bytes: the replies to a batch, in the order of its commands.
//!
//! | command | reply | reply if no server answered |
//! |---|---|---|
//! | get verbs, `metaget` | a `VALUE`, `LVALUE` or `META` for each key found, then `END`; nothing for a miss | the keys found, then `SERVER_ERROR` instead of `END`; or a miss, with `miss_on_get_errors` |
//! | all others | the server's line; none with `noreply` | `SERVER_ERROR`; none with `noreply` |
//!
//! A server's error passes as it is; [`super::error_text`] has those of the router.

mod binary;

use super::error_text::{GROUPED, error_text};
use super::metaget;
use super::parse::ReplyKey;
use crate::stats::by_verb::VerbResults;
use crate::stats::command_class::CommandClass;
use crate::stats::counters::Counters;
use bytes::Bytes;
use lookaside_protocol::{ErrorReply, LeaseToken, Reply, meta::MetaStatus, text};
use lookaside_routing::{Outcome, UNKNOWN_COMMAND, Verb};

/// Writes replies and counts them.
#[derive(Debug)]
pub struct ReplyWriter<'a> {
    /// The bytes for the client.
    pub out: &'a mut Vec<u8>,
    /// Counts of the written replies.
    pub counters: &'a Counters,
    /// Results by verb.
    pub results: &'a VerbResults,
    /// Whether the reply to a get that failed is a miss.
    pub miss_on_get_errors: bool,
    /// Whether all errors have the same text.
    pub group_remote_errors: bool,
}

impl ReplyWriter<'_> {
    /// Writes the reply for one key of a get verb. Returns the line to end the get with; `None` unless it failed.
    pub fn write_item(&mut self, key: &[u8], class: CommandClass, outcome: Outcome) -> Option<Vec<u8>> {
        self.count_item(class, &outcome);
        match outcome {
            Ok(reply @ (Reply::Value { .. } | Reply::Lease { .. })) => text::compose_reply(key, &reply, self.out),
            Ok(Reply::Miss) => {}
            _ => return (!self.miss_on_get_errors).then(|| self.error_line(&outcome)),
        }
        None
    }

    /// Writes the reply for one key of a `metaget`, at `unix_s`. Returns the line to end it with; `None` unless it
    /// failed.
    pub fn write_metadata(&mut self, key: &[u8], unix_s: u64, outcome: Outcome) -> Option<Vec<u8>> {
        self.count(CommandClass::Verb(Verb::Metaget), &outcome);
        match outcome {
            Ok(Reply::Meta(meta)) if meta.status == MetaStatus::Debug => {
                metaget::compose_line(key, &meta.flags, unix_s, self.out);
            }
            Ok(Reply::Meta(meta)) if meta.status == MetaStatus::Miss => {}
            Ok(Reply::Miss) => {}
            _ => return (!self.miss_on_get_errors).then(|| self.error_line(&outcome)),
        }
        None
    }

    /// Writes the reply for a key that the router answers itself. It is not counted: invalidators and other routers
    /// send such gets all the time, and they would look like hits.
    pub fn write_admin_item(&mut self, key: &[u8], reply: &Reply<Bytes>) {
        if matches!(reply, Reply::Value { .. }) {
            text::compose_reply(key, reply, self.out);
        }
    }

    /// Counts values that were found by a get verb, and written elsewhere.
    pub fn count_hits(&self, class: CommandClass, hits: u64) {
        self.results.record_hits(class, hits);
        self.count_keys(class, hits);
        self.counters.get_hits.add(hits);
    }

    fn count_keys(&self, class: CommandClass, keys: u64) {
        match class {
            CommandClass::Verb(Verb::LeaseGet) => self.counters.cmd_lease_get.add(keys),
            CommandClass::Verb(Verb::Gat | Verb::Gats) => self.counters.cmd_gat.add(keys),
            _ => self.counters.cmd_get.add(keys),
        }
    }

    fn count_item(&self, class: CommandClass, outcome: &Outcome) {
        self.results.record(class, outcome);
        self.count_keys(class, 1);
        match outcome {
            Ok(Reply::Value { .. }) => self.counters.get_hits.add(1),
            Ok(Reply::Miss) => self.counters.get_misses.add(1),
            Ok(Reply::Lease { token, .. }) => self.count_lease(*token),
            Ok(_) | Err(_) => self.counters.get_failures.add(1),
        }
    }

    /// Ends the reply to a get verb.
    pub fn end_get(&mut self, error_line: Option<Vec<u8>>) {
        match error_line {
            Some(line) => self.out.extend_from_slice(&line),
            None => self.out.extend_from_slice(text::END),
        }
    }

    /// Writes the reply to an operation on one key.
    pub fn write_single(&mut self, key: &ReplyKey, noreply: bool, outcome: Outcome) {
        self.count(key.class, &outcome);
        if noreply {
            return;
        }
        match outcome {
            Err(_) | Ok(Reply::Error(_)) => {
                let line = self.error_line(&outcome);
                self.out.extend_from_slice(&line);
            }
            Ok(reply) => text::compose_reply(&key.bytes, &reply, self.out),
        }
    }

    /// The line for a request that failed.
    fn error_line(&self, outcome: &Outcome) -> Vec<u8> {
        let text = match outcome {
            _ if self.group_remote_errors => GROUPED.into(),
            Ok(Reply::Error(ErrorReply::Unknown)) => UNKNOWN_COMMAND.into(),
            Ok(Reply::Error(error)) => return server_line(error.clone()),
            Ok(_) => "the server's reply does not fit the request".into(),
            Err(failure) => error_text(failure),
        };
        // The text of a route must not end the line early.
        let text = text.bytes().filter(|&byte| byte >= b' ' && byte != 0x7f).collect();
        server_line(ErrorReply::Server(text))
    }

    fn count_lease(&self, token: LeaseToken) {
        self.counters.get_misses.add(1);
        match token.is_held() {
            true => self.counters.lease_tokens.add(1),
            false => self.counters.lease_hot_misses.add(1),
        }
    }

    fn count(&self, class: CommandClass, outcome: &Outcome) {
        self.results.record(class, outcome);
        let failed = matches!(outcome, Err(_) | Ok(Reply::Error(_)));
        let counters = self.counters;
        match class {
            CommandClass::Verb(verb) => match verb {
                Verb::Get | Verb::Gets | Verb::Gat | Verb::Gats | Verb::LeaseGet | Verb::Metaget => {}
                Verb::Set | Verb::Add | Verb::Replace | Verb::Append | Verb::Prepend | Verb::Cas => {
                    counters.cmd_set.add(1);
                }
                Verb::LeaseSet => counters.cmd_lease_set.add(1),
                Verb::Delete => counters.cmd_delete.add(1),
                Verb::Incr | Verb::Decr => counters.cmd_arithmetic.add(1),
                Verb::Touch => counters.cmd_touch.add(1),
            },
            CommandClass::Meta => counters.cmd_meta.add(1),
        }
        match (class, outcome) {
            (CommandClass::Verb(Verb::Delete), Ok(Reply::Deleted)) => counters.delete_hits.add(1),
            (CommandClass::Verb(Verb::Delete), Ok(Reply::NotFound)) => counters.delete_misses.add(1),
            (CommandClass::Verb(Verb::Delete), _) => counters.delete_failures.add(1),
            (CommandClass::Verb(Verb::LeaseSet), Ok(Reply::Stored)) => counters.lease_sets_stored.add(1),
            (CommandClass::Verb(Verb::LeaseSet), Ok(Reply::StaleStored | Reply::NotStored)) => {
                counters.lease_sets_void.add(1);
            }
            _ if failed => counters.other_failures.add(1),
            _ => {}
        }
    }
}

fn server_line(error: ErrorReply<Bytes>) -> Vec<u8> {
    let mut line = Vec::new();
    text::compose_reply(b"", &Reply::Error(error), &mut line);
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::counters::CounterDelta;
    use lookaside_protocol::meta::MetaReply;
    use lookaside_routing::{Failure, TkoReason};

    const GET: CommandClass = CommandClass::Verb(Verb::Get);
    const LEASE_GET: CommandClass = CommandClass::Verb(Verb::LeaseGet);

    fn reply_key(verb: Verb) -> ReplyKey {
        ReplyKey { bytes: Bytes::from_static(b"user:1"), class: CommandClass::Verb(verb) }
    }

    fn write_with(miss_on_get_errors: bool, run: impl FnOnce(&mut ReplyWriter<'_>)) -> (String, CounterDelta) {
        let (mut out, counters) = (Vec::new(), Counters::default());
        run(&mut ReplyWriter {
            out: &mut out,
            counters: &counters,
            results: &VerbResults::default(),
            miss_on_get_errors,
            group_remote_errors: false,
        });
        (String::from_utf8(out).expect("text"), counters.snapshot())
    }

    #[test]
    fn failed_get_ends_with_an_error_without_the_key() {
        let (text, delta) = write_with(false, |writer| {
            let line = writer.write_item(b"user:1", GET, Err(Failure::TimedOut));
            writer.end_get(line);
        });
        assert_eq!(text, "SERVER_ERROR Reply timeout\r\n");
        assert_eq!(delta, CounterDelta { cmd_get: 1, get_failures: 1, ..CounterDelta::default() });
    }

    #[test]
    fn failed_get_is_a_miss_with_miss_on_get_errors() {
        let (text, delta) = write_with(true, |writer| {
            let line = writer.write_item(b"user:1", GET, Err(Failure::TimedOut));
            writer.end_get(line);
        });
        assert_eq!(text, "END\r\n");
        assert_eq!(delta.get_failures, 1);
    }

    #[test]
    fn error_reply_of_a_server_is_unchanged() {
        let reply = || Ok(Reply::Error(ErrorReply::Server(Bytes::from_static(b"out of memory"))));
        let (text, _) = write_with(false, |writer| {
            writer.write_single(&reply_key(Verb::Set), false, reply());
            let line = writer.write_item(b"user:1", GET, reply());
            writer.end_get(line);
        });
        assert_eq!(text, "SERVER_ERROR out of memory\r\nSERVER_ERROR out of memory\r\n");
    }

    #[test]
    fn unexpected_reply_to_a_get_is_an_error() {
        let (text, _) = write_with(false, |writer| {
            let line = writer.write_item(b"user:1", GET, Ok(Reply::Stored));
            writer.end_get(line);
        });
        assert_eq!(text, "SERVER_ERROR the server's reply does not fit the request\r\n");
    }

    #[test]
    fn metadata_ends_like_a_get() {
        let meta =
            |status, flags: &'static str| Ok(Reply::Meta(MetaReply { status, flags: flags.into(), value: None }));
        let (text, delta) = write_with(false, |writer| {
            assert_eq!(writer.write_metadata(b"a", 7, meta(MetaStatus::Debug, "a exp=3 la=2")), None);
            assert_eq!(writer.write_metadata(b"b", 7, meta(MetaStatus::Miss, "")), None);
            let line = writer.write_metadata(b"c", 7, Ok(Reply::Error(ErrorReply::Unknown)));
            writer.end_get(line);
            let line = writer.write_metadata(b"d", 7, meta(MetaStatus::Done, ""));
            writer.end_get(line);
        });
        let expected = "META a age: 2; exptime: 10; from: unknown; is_transient: 0\r\n\
                        SERVER_ERROR ERROR reply received from server.\r\n\
                        SERVER_ERROR the server's reply does not fit the request\r\n";
        assert_eq!(text, expected);
        assert_eq!(delta, CounterDelta { other_failures: 1, ..CounterDelta::default() });
        let (text, _) = write_with(true, |writer| {
            let line = writer.write_metadata(b"k", 7, Err(Failure::TimedOut));
            writer.end_get(line);
        });
        assert_eq!(text, "END\r\n", "with miss_on_get_errors");
    }

    #[test]
    fn noreply_command_has_no_reply_and_is_counted() {
        let (text, delta) = write_with(false, |writer| {
            writer.write_single(&reply_key(Verb::Delete), true, Err(Failure::Tko(TkoReason::ConnectFailed)));
            writer.write_single(&reply_key(Verb::Delete), true, Ok(Reply::Deleted));
        });
        assert_eq!(text, "");
        assert_eq!(
            delta,
            CounterDelta { cmd_delete: 2, delete_hits: 1, delete_failures: 1, ..CounterDelta::default() }
        );
    }

    #[test]
    fn text_of_a_route_cannot_break_the_line() {
        let (text, _) = write_with(false, |writer| {
            writer.write_single(&reply_key(Verb::Set), false, Err(Failure::NoRoute("no\r\nSTORED\r\n".into())));
        });
        assert_eq!(text, "SERVER_ERROR no route: noSTORED\r\n");
    }

    #[test]
    fn lease_misses_are_counted_by_kind() {
        let lease = |token| Ok(Reply::Lease { token, flags: 0, stale: None });
        let (text, delta) = write_with(false, |writer| {
            assert_eq!(writer.write_item(b"user:1", LEASE_GET, lease(LeaseToken(77))), None);
            assert_eq!(writer.write_item(b"user:1", LEASE_GET, lease(LeaseToken::HOT_MISS)), None);
            writer.end_get(None);
        });
        assert_eq!(text, "LVALUE user:1 77 0 0\r\n\r\nLVALUE user:1 1 0 0\r\n\r\nEND\r\n");
        assert_eq!((delta.lease_tokens, delta.lease_hot_misses, delta.get_misses), (1, 1, 2));
    }
}
