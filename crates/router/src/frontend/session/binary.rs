//! The responses to a batch of the binary protocol, in the order of the requests.

use super::Session;
use super::batch::BatchInProgress;
use crate::frontend::parse::{BinaryPendingReply, BinaryReplyKind, ExpectedReply, LocalCommand, to_text_exptime};
use bytes::Bytes;
use lookaside_protocol::binary::{
    Response, ResponseTag, Status, Vivify, compose_error, compose_response, compose_statistics,
};
use lookaside_protocol::{Cas, Direction, Operation, Reply, Request, StoreMode};
use lookaside_routing::Outcome;

impl Session<'_> {
    pub(super) async fn reply_to_binary(&mut self, reply: BinaryPendingReply, batch: &mut BatchInProgress) {
        let (tag, is_quiet) = (reply.tag, reply.is_quiet());
        match reply.kind {
            BinaryReplyKind::Outcome { key, expected } => {
                let outcome = match (self.next_outcome_or_route(batch).await, &expected) {
                    (Ok(Reply::NotFound), ExpectedReply::Number { direction, delta, vivify: Some(vivify) }) => {
                        Box::pin(self.create_number(&key.bytes, *direction, *delta, *vivify)).await
                    }
                    (outcome, _) => outcome,
                };
                self.reply_writer().write_binary(tag, &key, &expected, outcome);
            }
            BinaryReplyKind::Admin { key, with_key } => {
                let reply = self.read_admin_key(&key.bytes).await;
                self.reply_writer().write_binary(tag, &key, &ExpectedReply::Item { with_key }, Ok(reply));
            }
            BinaryReplyKind::Local(command) => self.execute_binary_local(tag, command).await,
            BinaryReplyKind::Quit if is_quiet => {}
            BinaryReplyKind::Quit => self.write_success(tag, b""),
            BinaryReplyKind::Refused(status) => self.write_binary_refusal(tag, status),
            BinaryReplyKind::RefusedStore { key, status } => {
                let outcome = self.next_outcome_or_route(batch).await;
                self.reply_writer().write_single(&key, true, outcome);
                self.write_binary_refusal(tag, status);
            }
        }
    }

    /// Creates the number that was missing. If another client has created it meanwhile, counts on that.
    async fn create_number(&mut self, key: &Bytes, direction: Direction, delta: u64, vivify: Vivify) -> Outcome {
        let value = vivify.initial.to_string().into();
        let (mode, exptime) = (StoreMode::Add, to_text_exptime(vivify.exptime));
        let add = Operation::Store { mode, flags: 0, exptime, value, cas: false };
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
        self.next_outcome_or_route(&mut BatchInProgress::new(vec![request])).await
    }

    async fn execute_binary_local(&mut self, tag: ResponseTag, command: LocalCommand) {
        match command {
            LocalCommand::Version => {
                let version = self.context.settings.version.as_bytes();
                self.write_success(tag, version);
            }
            LocalCommand::Stats(arguments) => {
                let mut text = Vec::new();
                self.context.write_stats(&arguments, &mut text);
                match text.starts_with(b"SERVER_ERROR") {
                    true => compose_error(tag, Status::NotSupported, &mut self.out),
                    false => compose_statistics(tag, &text, &mut self.out),
                }
            }
            LocalCommand::FlushAll { delay_s, noreply } => {
                self.context.counters.cmd_flush.add(1);
                match self.context.flush_all(delay_s).await {
                    Ok(()) if noreply => {}
                    Ok(()) => self.write_success(tag, b""),
                    Err(why) => {
                        let (status, value) = (Status::NotSupported, why.as_bytes());
                        let response = Response { tag, status, cas: Cas(0), extras: b"", key: b"", value };
                        compose_response(&response, &mut self.out);
                    }
                }
            }
            LocalCommand::Verbosity { level, .. } => {
                self.context.set_verbosity(level);
                self.write_success(tag, b"");
            }
            LocalCommand::MetaNoop => self.write_success(tag, b""),
        }
    }

    fn write_binary_refusal(&mut self, tag: ResponseTag, status: Status) {
        self.context.counters.bad_commands.add(1);
        compose_error(tag, status, &mut self.out);
    }

    fn write_success(&mut self, tag: ResponseTag, value: &[u8]) {
        let status = Status::Success;
        compose_response(&Response { tag, status, cas: Cas(0), extras: b"", key: b"", value }, &mut self.out);
    }
}
