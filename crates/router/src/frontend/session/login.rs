//! A client that must authenticate (`-Y`, `-S`): until it has, nothing of what it sends becomes a batch.
//!
//! All commands at the front of the input are executed up to the one that authenticates, so the bytes behind that are
//! parsed as those of an authenticated client. In the binary protocol, asking again for authentication takes back what
//! was granted, as in memcached; so these requests come here even when the client has authenticated.
//!
//! A client that does not log in in time is disconnected, whatever it sends or does not read: whether it may connect is
//! not known before.
//!
//! Verifying a bcrypt hash occupies the thread; [`lookaside_authentication::credentials`] limits how often.

use super::{Session, SessionEnd};
use crate::frontend::users::Users;
use bytes::Buf;
use lookaside_authentication::Authentication;
use lookaside_authentication::LoginAttempt;
use lookaside_authentication::ascii::{AsciiAuth, parse_login};
use lookaside_authentication::sasl;
use lookaside_protocol::Cas;
use lookaside_protocol::binary::{
    BinaryCommand, BinaryParsed, Response, ResponseTag, Status, compose_error, compose_response, parse_request,
    peek_tag,
};
use std::pin::Pin;
use tokio::time::{Instant, sleep_until};

impl Session<'_> {
    /// One round of a client that has not logged in, until `deadline`.
    pub(super) async fn step_before_login(
        &mut self,
        deadline: Instant,
        stopped: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), SessionEnd> {
        // Boxed: the sessions of other clients need not have space for it.
        let step = Box::pin(self.step(stopped));
        let stepped = tokio::select! {
            biased;
            // First, since a client that never ceases to send must not hide it.
            () = sleep_until(deadline) => None,
            stepped = step => Some(stepped),
        };
        if self.authentication.is_done() {
            self.login_deadline = None;
        }
        stepped.unwrap_or_else(|| {
            self.context.counters.login_timeouts.add(1);
            Err(SessionEnd::LoginTimedOut)
        })
    }

    /// Whether the next command must not be routed: the client has not authenticated, or does it again.
    pub(super) fn needs_login(&self, is_binary: bool) -> bool {
        let is_sasl = || peek_tag(&self.input).is_some_and(|tag| sasl::is_authentication_opcode(tag.opcode));
        !self.authentication.is_done() || is_binary && is_sasl()
    }

    /// Executes what a client may do before it has authenticated, until it has.
    pub(super) async fn log_in(&mut self, users: &Users, is_binary: bool) -> Result<(), SessionEnd> {
        let now_ms = self.context.shared.unix_s(Instant::now()) * 1_000;
        self.needed_bytes = 0;
        while !self.is_closing && !self.is_incomplete() {
            match is_binary {
                true => self.log_in_with_sasl(users, now_ms),
                false => self.log_in_with_set(users, now_ms),
            }
            self.swallow();
            if self.authentication.is_done() {
                break;
            }
        }
        self.write().await?;
        self.end_if_closing()
    }

    /// Executes one command of the text protocol.
    fn log_in_with_set(&mut self, users: &Users, now_ms: u64) {
        let (line, consumed) = match parse_login(&self.input, users.text(), now_ms) {
            AsciiAuth::Incomplete { needed_bytes } => {
                self.needed_bytes = needed_bytes;
                return;
            }
            AsciiAuth::Authenticated { consumed } => {
                self.authentication = Authentication::Done;
                users.record(LoginAttempt::Accepted, self.client.client, now_ms, &self.context.counters);
                ("STORED", consumed)
            }
            AsciiAuth::Refused { line, consumed, attempt } => {
                if let Some(attempt) = attempt {
                    users.record(attempt, self.client.client, now_ms, &self.context.counters);
                }
                self.context.counters.bad_commands.add(1);
                (line, consumed)
            }
            AsciiAuth::Quit => {
                self.is_closing = true;
                return;
            }
            AsciiAuth::Close { reason } => {
                self.is_closing = true;
                self.context.counters.count_close(reason);
                return;
            }
        };
        self.input.advance(consumed);
        self.write_line(line);
    }

    /// Executes one request of the binary protocol.
    fn log_in_with_sasl(&mut self, users: &Users, now_ms: u64) {
        let limits = &self.context.settings.limits;
        if !self.authentication.is_done()
            && let Some(tag) = sasl::find_forbidden(&self.input, limits)
        {
            return self.refuse_request(tag);
        }
        let (tag, status, text, consumed) = match parse_request(&self.input, limits) {
            BinaryParsed::Incomplete { needed_bytes } => {
                self.needed_bytes = needed_bytes;
                return;
            }
            BinaryParsed::NotBinary => {
                self.is_closing = true;
                return;
            }
            BinaryParsed::Bad { tag, status, consumed, swallow, close, .. } => {
                self.swallow_bytes = swallow;
                self.is_closing = close;
                self.context.counters.bad_commands.add(1);
                (tag, status, status.message(), consumed)
            }
            BinaryParsed::Request { request, consumed } => {
                match sasl::authenticate(&mut self.authentication, &request.command, users.sasl(), now_ms) {
                    Some(reply) => {
                        if let Some(attempt) = reply.attempt {
                            users.record(attempt, self.client.client, now_ms, &self.context.counters);
                        }
                        (request.tag, reply.status, reply.text, consumed)
                    }
                    None if request.command == BinaryCommand::Version => {
                        (request.tag, Status::Success, &*self.context.settings.version, consumed)
                    }
                    None => return self.refuse_request(request.tag),
                }
            }
        };
        let response = Response { tag, status, cas: Cas(0), extras: b"", key: b"", value: text.as_bytes() };
        compose_response(&response, &mut self.out);
        self.input.advance(consumed);
    }

    /// Refuses a request that needs authentication. The connection closes.
    fn refuse_request(&mut self, tag: ResponseTag) {
        self.context.counters.bad_commands.add(1);
        self.is_closing = true;
        compose_error(tag, Status::AuthenticationFailed, &mut self.out);
    }
}
