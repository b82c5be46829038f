//! The running server's part of an upgrade, from the moment at which it serves no more.

use super::ConnectionState;
use super::channel::{Channel, ChannelError, Kind, Message};
use rustix::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a successor may take to say that it has announced itself, before this process ends all the same: a supervisor
/// is to know the new process before it sees the old one go.
const SETTLE_PATIENCE: Duration = Duration::from_secs(5);

/// The process that is about to take over.
pub struct Successor {
    channel: Channel,
    pid: i32,
    /// When it was ready: from then on nobody is served.
    ready_at: Instant,
}

/// How a hand-over has ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The other process serves. This one must not any more.
    TakenOver,
    /// It does not, and never will: this one goes on.
    Failed,
    /// This process was told to stop meanwhile.
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

    /// Sends the connections that have luggage: another process can go on with them; says of each whether it was sent. They
    /// stay open here too. `None`: there is nobody to send them to.
    pub fn send<'f>(
        &self,
        connections: impl Iterator<Item = (Option<ConnectionState>, BorrowedFd<'f>)>,
    ) -> Option<Vec<bool>> {
        let send_all = || {
            let mut sending = self.channel.sending();
            let mut is_sent = Vec::new();
            for (connection_state, socket) in connections {
                is_sent.push(connection_state.is_some());
                let Some(packed) = connection_state.as_ref().map(ConnectionState::pack) else { continue };
                sending.push(Kind::Connection, &packed, &[socket])?;
            }
            sending.finish()?;
            Ok(is_sent)
        };
        self.unless_gone(send_all())
    }

    /// Says that this process writes to nothing any more (what it had may be kept), and waits for the other to
    /// serve. However long that takes: as long as it might, this process must not.
    pub fn hand_over(&mut self, is_kept: bool, stop: &UnixStream) -> Outcome {
        let silent_us = u32::try_from(self.ready_at.elapsed().as_micros()).unwrap_or(u32::MAX);
        let quiet = [&[u8::from(is_kept)], &silent_us.to_le_bytes()[..]].concat();
        let no_descriptors: &[BorrowedFd<'_>] = &[];
        if self.unless_gone(self.channel.send(Kind::Quiesced, &quiet, no_descriptors)).is_none() {
            return Outcome::Failed;
        }
        let answer = self.channel.wait(stop, None);
        // Whatever else it says is no reason to serve while it may serve, too: it has to end first.
        let end = match answer {
            Ok(Message { kind: Kind::TakenOver, .. }) => return Outcome::TakenOver,
            Err(ChannelError::Ended | ChannelError::Interrupted) => answer.map(drop),
            _ => self.channel.wait_for_end(stop),
        };
        match end {
            Err(ChannelError::Ended) => {
                tracing::warn!("process {} has not taken over: {}", self.pid, ChannelError::Ended);
                Outcome::Failed
            }
            Err(ChannelError::Interrupted) | Ok(()) => Outcome::Stopped,
            Err(error) => {
                tracing::error!("it cannot be told whether process {} serves: {error}", self.pid);
                Outcome::Stopped
            }
        }
    }

    /// Waits until the other process has announced itself, but not for ever.
    pub fn settle(mut self, stop: &UnixStream) {
        let _ = self.channel.wait(stop, Some(SETTLE_PATIENCE));
    }

    fn unless_gone<T>(&self, outcome: Result<T, ChannelError>) -> Option<T> {
        match outcome {
            Ok(done) => Some(done),
            Err(error) => {
                tracing::warn!("process {} does not take over: {error}", self.pid);
                None
            }
        }
    }
}
