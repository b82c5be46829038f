//! The running process's side of an upgrade, from the moment at which it stops serving.

use super::channel::{Channel, ChannelError, Message, MessageKind};
use super::connection_state::ConnectionState;
use rustix::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a successor may take to announce itself before this process exits all the same. systemd must know the new
/// process before the old one exits.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(5);

/// The process that is about to take over.
pub struct Successor {
    channel: Channel,
    pid: i32,
    /// When it was ready. No process serves from then on.
    ready_at: Instant,
}

/// The result of a handover.
#[derive(Debug, PartialEq, Eq)]
pub enum UpgradeOutcome {
    /// The other process serves. This one must not serve any more.
    TakenOver,
    /// The other process has ended without taking over: this one resumes.
    Failed,
    /// This process was signalled to stop meanwhile.
    Stopped,
}

impl Successor {
    pub(crate) fn new(channel: Channel, pid: i32) -> Successor {
        Successor { channel, pid, ready_at: Instant::now() }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends the connections that have a state, and returns for each whether it was sent. They stay open here too.
    /// `None` if the other process has ended.
    pub fn send<'f>(
        &self,
        connections: impl Iterator<Item = (Option<ConnectionState>, BorrowedFd<'f>)>,
    ) -> Option<Vec<bool>> {
        let send_all = || {
            let mut batch = self.channel.batch();
            let mut is_sent = Vec::new();
            for (connection_state, socket) in connections {
                is_sent.push(connection_state.is_some());
                let Some(encoded) = connection_state.as_ref().map(ConnectionState::encode) else { continue };
                batch.push(MessageKind::Connection, &encoded, &[socket])?;
            }
            batch.send_rest()?;
            Ok(is_sent)
        };
        self.log_failure(send_all())
    }

    /// Sends `Quiesced` and waits for the other process to serve, without a timeout: this process must not serve while
    /// the other one might. This process must have released its exclusive resources; `is_kept`: the other one can
    /// acquire them with their content.
    pub fn hand_over(&mut self, is_kept: bool, stop: &UnixStream) -> UpgradeOutcome {
        let silent_us = u32::try_from(self.ready_at.elapsed().as_micros()).unwrap_or(u32::MAX);
        let payload = [&[u8::from(is_kept)], &silent_us.to_le_bytes()[..]].concat();
        let no_descriptors: &[BorrowedFd<'_>] = &[];
        if self.log_failure(self.channel.send(MessageKind::Quiesced, &payload, no_descriptors)).is_none() {
            return UpgradeOutcome::Failed;
        }
        let reply = self.channel.receive(stop, None);
        // Any other message is no reason to resume, because the other process may still serve: it has to end first.
        let end = match reply {
            Ok(Message { kind: MessageKind::TakenOver, .. }) => return UpgradeOutcome::TakenOver,
            Err(ChannelError::Ended | ChannelError::Interrupted) => reply.map(drop),
            _ => self.channel.wait_for_end(stop),
        };
        match end {
            Err(ChannelError::Ended) => {
                tracing::warn!("process {} has not taken over: {}", self.pid, ChannelError::Ended);
                UpgradeOutcome::Failed
            }
            Err(ChannelError::Interrupted) | Ok(()) => UpgradeOutcome::Stopped,
            Err(error) => {
                tracing::error!("cannot tell whether process {} has taken over: {error}", self.pid);
                UpgradeOutcome::Stopped
            }
        }
    }

    /// Waits, with a timeout, until the other process has announced itself.
    pub fn wait_until_announced(mut self, stop: &UnixStream) {
        let _ = self.channel.receive(stop, Some(ANNOUNCE_TIMEOUT));
    }

    fn log_failure<T>(&self, result: Result<T, ChannelError>) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(error) => {
                tracing::warn!("process {} does not take over: {error}", self.pid);
                None
            }
        }
    }
}
