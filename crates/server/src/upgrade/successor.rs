//! The running server's part of an upgrade, from the moment at which it serves no more.

use super::Luggage;
use super::channel::{Channel, ChannelError, Kind};
use crate::connection::Connection;
use rustix::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a successor may take to say that it has announced itself, before this process ends all the same: a supervisor
/// is to know the new process before it sees the old one go.
const SETTLE_PATIENCE: Duration = Duration::from_secs(5);

/// The process that is about to take over.
pub(crate) struct Successor {
    channel: Channel,
    pid: i32,
}

/// How a hand-over has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The other process serves. This one must not any more.
    Taken,
    /// It does not, and never will: this one goes on.
    Back,
    /// This process was told to stop meanwhile.
    Stopped,
}

impl Successor {
    pub(super) fn new(channel: Channel, pid: i32) -> Successor {
        Successor { channel, pid }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends the connections that another process can go on with; says of each whether it was sent. They stay open here
    /// too. `None`: there is nobody to send them to.
    pub(crate) fn send(&self, connections: &[Connection]) -> Option<Vec<bool>> {
        let send_all = || {
            let mut sending = self.channel.sending();
            let mut is_sent = Vec::with_capacity(connections.len());
            for connection in connections {
                let luggage = connection.luggage();
                is_sent.push(luggage.is_some());
                let Some(packed) = luggage.as_ref().map(Luggage::pack) else { continue };
                sending.push(Kind::Connection, &packed, &[connection.socket.as_fd()])?;
            }
            sending.finish()?;
            Ok(is_sent)
        };
        self.unless_gone(send_all())
    }

    /// Says that this process writes to nothing any more (`items` of them are kept, if any are), and waits for the other to
    /// serve. However long that takes: as long as it might, this process must not.
    pub(crate) fn leave_to(&mut self, is_kept: bool, stop: &UnixStream) -> Outcome {
        let no_descriptors: &[BorrowedFd<'_>] = &[];
        if self.unless_gone(self.channel.send(Kind::Quiet, &[u8::from(is_kept)], no_descriptors)).is_none() {
            return Outcome::Back;
        }
        match self.channel.wait(stop, None) {
            Ok(message) if message.kind == Kind::Taken => Outcome::Taken,
            Err(ChannelError::Interrupted) => Outcome::Stopped,
            Ok(_) => {
                tracing::warn!("process {} does not take over: it says something else", self.pid);
                Outcome::Back
            }
            Err(error) => {
                tracing::warn!("process {} has not taken over: {error}", self.pid);
                Outcome::Back
            }
        }
    }

    /// Waits until the other process has announced itself, but not for ever.
    pub(crate) fn settle(mut self, stop: &UnixStream) {
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
