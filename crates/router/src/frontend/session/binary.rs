//! The responses to a batch of the binary dialect, in the order of asking.

use super::{Session, Work};
use crate::frontend::parse::{BinaryAsked, Expected, Local, Said, textual};
use bytes::Bytes;
use lookaside_protocol::binary::{
    Response, ResponseTag, Status, Vivify, compose_error, compose_response, compose_statistics,
};
use lookaside_protocol::{Cas, Direction, Operation, Reply, Request, StoreMode};
use lookaside_routing::Outcome;

impl Session<'_> {
    /// Answers one request.
    pub(super) async fn binary(&mut self, asked: BinaryAsked, work: &mut Work) {
        let (tag, is_quiet) = (asked.tag, asked.is_quiet());
        match asked.said {
            Said::Outcome { key, expected } => {
                let outcome = match (self.outcome(work).await, &expected) {
                    (Ok(Reply::NotFound), Expected::Number { direction, delta, vivify: Some(vivify) }) => {
                        self.make_number(&key.bytes, *direction, *delta, *vivify).await
                    }
                    (outcome, _) => outcome,
                };
                self.answers().binary(tag, &key, &expected, outcome);
            }
            Said::Admin { key, with_key } => {
                let reply = self.admin_reply(&key.bytes).await;
                self.answers().binary(tag, &key, &Expected::Item { with_key }, Ok(reply));
            }
            Said::Local(local) => self.binary_local(tag, local).await,
            Said::Quit if is_quiet => {}
            Said::Quit => self.say(tag, b""),
            Said::Refused(status) => self.refuse_binary(tag, status),
            Said::Outdated { key, status } => {
                let outcome = self.outcome(work).await;
                self.answers().single(&key, true, outcome);
                self.refuse_binary(tag, status);
            }
        }
    }

    /// Makes the number that was missing; if another client was faster, counts on its one.
    async fn make_number(&mut self, key: &Bytes, direction: Direction, delta: u64, vivify: Vivify) -> Outcome {
        let value = vivify.initial.to_string().into();
        let (mode, exptime) = (StoreMode::Add, textual(vivify.exptime));
        let add = Operation::Store { mode, flags: 0, exptime, value };
        match self.route_one(Request { key: key.clone(), operation: add }).await {
            Ok(Reply::Stored) => Ok(Reply::Number(vivify.initial)),
            Ok(Reply::NotStored) => {
                let operation = Operation::Arithmetic { direction, delta };
                match self.route_one(Request { key: key.clone(), operation }).await {
                    Ok(Reply::NotFound) => Ok(Reply::NotStored),
                    outcome => outcome,
                }
            }
            outcome => outcome,
        }
    }

    async fn route_one(&mut self, request: Request<Bytes>) -> Outcome {
        let mut work = Work::new(vec![request]);
        self.outcome(&mut work).await
    }

    async fn binary_local(&mut self, tag: ResponseTag, local: Local) {
        match local {
            Local::Version => {
                let version = self.router.settings().version.clone();
                self.say(tag, version.as_bytes());
            }
            Local::Stats(arguments) => {
                let mut text = Vec::new();
                self.router.write_stats(&arguments, &mut text);
                match text.starts_with(b"SERVER_ERROR") {
                    true => compose_error(tag, Status::NotSupported, &mut self.out),
                    false => compose_statistics(tag, &text, &mut self.out),
                }
            }
            Local::FlushAll { delay_s, noreply } => {
                self.tally.cmd_flush += 1;
                match self.router.flush_all(delay_s).await {
                    Ok(()) if noreply => {}
                    Ok(()) => self.say(tag, b""),
                    Err(why) => {
                        let (status, cas, value) = (Status::NotSupported, Cas(0), why.to_string());
                        let value = value.as_bytes();
                        let response = Response { tag, status, cas, extras: b"", key: b"", value };
                        compose_response(&response, &mut self.out);
                    }
                }
            }
            Local::Verbosity { level, .. } => {
                self.router.set_verbosity(level);
                self.say(tag, b"");
            }
            Local::MetaNoop => self.say(tag, b""),
        }
    }

    fn refuse_binary(&mut self, tag: ResponseTag, status: Status) {
        self.tally.bad_commands += 1;
        compose_error(tag, status, &mut self.out);
    }

    fn say(&mut self, tag: ResponseTag, value: &[u8]) {
        let status = Status::Success;
        compose_response(&Response { tag, status, cas: Cas(0), extras: b"", key: b"", value }, &mut self.out);
    }
}
