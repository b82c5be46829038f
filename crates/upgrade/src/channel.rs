//! Messages with descriptors between the two processes of an upgrade: over one Unix stream, sans meaning.
//!
//! ```text
//!   | kind 1 | descriptors 1 | bytes 4, little-endian | payload |       the descriptors travel beside it (SCM_RIGHTS)
//! ```
//!
//! Messages are sent many at a time. The kernel delivers descriptors no later than the first byte that they were sent
//! with, and in order; so once a message is there as a whole its descriptors are the first in the queue.
//!
//! A receiver says how long a payload may be, and refuses more before it has room for it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// What a message is. The numbers are the format: they never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The new process: which format it speaks.
    Hello = 1,
    /// The old one: what it listens on.
    Listeners = 2,
    /// The new one: it has prepared all that it can.
    Ready = 3,
    /// The old one: one client's connection.
    Connection = 4,
    /// The old one: it writes to nothing any more, and everything has been sent.
    Quiesced = 5,
    /// The new one: it serves from now on.
    TakenOver = 6,
    /// The old one: it goes on, for this reason.
    Refused = 7,
}

/// One message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) payload: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Why there is no message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChannelError {
    /// The other process has ended, or wants no more.
    Ended,
    /// What came is none of this.
    Malformed(&'static str),
    /// The other process says why not.
    Refused(String),
    /// It took too long.
    TimedOut,
    /// This process was told to stop.
    Interrupted,
    /// The system refused.
    System(Errno),
}

impl std::fmt::Display for ChannelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ChannelError::Ended => f.write_str("the other process has hung up"),
            ChannelError::Malformed(what) => write!(f, "it says what this build does not understand: {what}"),
            ChannelError::Refused(why) => f.write_str(why),
            ChannelError::TimedOut => f.write_str("the other process takes too long"),
            ChannelError::Interrupted => f.write_str("told to stop"),
            ChannelError::System(error) => write!(f, "{error}"),
        }
    }
}

const HEAD_BYTES: usize = 6;

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// How much is sent at once, unless one message is larger.
const SEND_BYTES: usize = 64 << 10;

/// How many descriptors are sent at once; the kernel takes 253.
const SEND_DESCRIPTORS: usize = 128;
const DESCRIPTORS_AT_ONCE_MAX: usize = 253;

/// How long a send may wait for the other process to read.
const SEND_PATIENCE: Duration = Duration::from_secs(5);

/// One end.
pub(crate) struct Channel {
    socket: UnixStream,
    payload_bytes_max: usize,
    received: Vec<u8>,
    /// How much of it has been taken.
    taken_bytes: usize,
    descriptors: VecDeque<OwnedFd>,
}

impl Channel {
    /// An end that takes payloads of up to so many bytes.
    pub(crate) fn new(socket: UnixStream, payload_bytes_max: usize) -> std::io::Result<Channel> {
        socket.set_nonblocking(false)?;
        socket.set_write_timeout(Some(SEND_PATIENCE))?;
        Ok(Channel { socket, payload_bytes_max, received: Vec::new(), taken_bytes: 0, descriptors: VecDeque::new() })
    }

    /// To wait on.
    pub(crate) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Sends one message.
    pub(crate) fn send(&self, kind: Kind, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        let mut sending = self.sending();
        sending.push(kind, payload, descriptors)?;
        sending.finish()
    }

    /// Begins to send many.
    pub(crate) fn sending<'f>(&self) -> Sending<'_, 'f> {
        Sending { socket: &self.socket, bytes: Vec::new(), descriptors: Vec::new() }
    }

    /// The next message if it is there; does not wait.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, ChannelError> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            if !self.read()? {
                return Ok(None);
            }
        }
    }

    /// Waits for the next message until `patience` is over, if there is one, or `stop` has something to read.
    pub(crate) fn wait(&mut self, stop: &UnixStream, patience: Option<Duration>) -> Result<Message, ChannelError> {
        loop {
            if let Some(message) = self.next()? {
                return Ok(message);
            }
            self.watch(stop, patience)?;
        }
    }

    /// Passes over whatever comes, until there is an error: that nothing more will come, or another.
    pub(crate) fn wait_for_end(&mut self, stop: &UnixStream) -> Result<(), ChannelError> {
        loop {
            self.received.clear();
            self.taken_bytes = 0;
            self.descriptors.clear();
            if !self.read()? {
                self.watch(stop, None)?;
            }
        }
    }

    /// Waits until there is something to read.
    fn watch(&self, stop: &UnixStream, patience: Option<Duration>) -> Result<(), ChannelError> {
        let timeout = patience.map(|patience| Timespec::try_from(patience).expect("a few seconds"));
        let mut watched = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut watched, timeout.as_ref()) {
            Ok(0) => Err(ChannelError::TimedOut),
            Ok(_) if !watched[1].revents().is_empty() => Err(ChannelError::Interrupted),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(ChannelError::System(error)),
        }
    }

    /// A message out of what has been received.
    fn take(&mut self) -> Result<Option<Message>, ChannelError> {
        let bytes = &self.received[self.taken_bytes..];
        let Some((&[kind, descriptors, a, b, c, d], rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let kind = kind_of(kind).ok_or(ChannelError::Malformed("a message of no known kind"))?;
        let payload_bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        if payload_bytes > self.payload_bytes_max {
            return Err(ChannelError::Malformed("too long a message"));
        }
        let Some(payload) = rest.get(..payload_bytes) else { return Ok(None) };
        if self.descriptors.len() < usize::from(descriptors) {
            return Err(ChannelError::Malformed("descriptors are missing"));
        }
        let payload = payload.to_vec();
        let descriptors = self.descriptors.drain(..usize::from(descriptors)).collect();
        self.taken_bytes += HEAD_BYTES + payload_bytes;
        if self.taken_bytes >= READ_BYTES || self.taken_bytes == self.received.len() {
            self.received.drain(..self.taken_bytes);
            self.taken_bytes = 0;
        }
        Ok(Some(Message { kind, payload, descriptors }))
    }

    /// Reads on; false: there is nothing at present.
    fn read(&mut self) -> Result<bool, ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_AT_ONCE_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let at = self.received.len();
        self.received.resize(at + READ_BYTES, 0);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut self.received[at..])], &mut ancillary, flags);
        self.received.truncate(at + received.as_ref().map_or(0, |received| received.bytes));
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => return Ok(true),
            Err(Errno::CONNRESET) => return Err(ChannelError::Ended),
            Err(error) => return Err(ChannelError::System(error)),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(ChannelError::Malformed("more descriptors than this process may have (raise `ulimit -n`)"));
        }
        if received.bytes == 0 {
            return Err(ChannelError::Ended);
        }
        Ok(true)
    }
}

fn kind_of(number: u8) -> Option<Kind> {
    let kinds =
        [Kind::Hello, Kind::Listeners, Kind::Ready, Kind::Connection, Kind::Quiesced, Kind::TakenOver, Kind::Refused];
    kinds.into_iter().find(|kind| *kind as u8 == number)
}

/// Messages on their way. What was pushed is sent for certain only by [`Sending::finish`].
pub(crate) struct Sending<'c, 'f> {
    socket: &'c UnixStream,
    bytes: Vec<u8>,
    descriptors: Vec<BorrowedFd<'f>>,
}

impl<'f> Sending<'_, 'f> {
    /// One more message, with [`SEND_DESCRIPTORS`] descriptors at most.
    pub(crate) fn push(
        &mut self,
        kind: Kind,
        payload: &[u8],
        descriptors: &[BorrowedFd<'f>],
    ) -> Result<(), ChannelError> {
        assert!(descriptors.len() <= SEND_DESCRIPTORS, "a message has {} descriptors", descriptors.len());
        if self.descriptors.len() + descriptors.len() > SEND_DESCRIPTORS || self.bytes.len() >= SEND_BYTES {
            self.flush()?;
        }
        let payload_bytes = u32::try_from(payload.len()).expect("payloads are bounded far below 4 GiB");
        self.bytes.extend([kind as u8, descriptors.len() as u8]);
        self.bytes.extend(payload_bytes.to_le_bytes());
        self.bytes.extend_from_slice(payload);
        self.descriptors.extend_from_slice(descriptors);
        Ok(())
    }

    /// Sends what is left.
    pub(crate) fn finish(mut self) -> Result<(), ChannelError> {
        self.flush()
    }

    fn flush(&mut self) -> Result<(), ChannelError> {
        let mut unsent = &self.bytes[..];
        while !unsent.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SEND_DESCRIPTORS))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !self.descriptors.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(&self.descriptors));
            }
            match sendmsg(self.socket.as_fd(), &[IoSlice::new(unsent)], &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    unsent = &unsent[count..];
                    self.descriptors.clear();
                }
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(ChannelError::Ended),
                Err(Errno::AGAIN) => return Err(ChannelError::TimedOut),
                Err(error) => return Err(ChannelError::System(error)),
            }
        }
        self.bytes.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn pair(payload_bytes_max: usize) -> (Channel, Channel) {
        let (one, other) = UnixStream::pair().expect("a pair");
        let end = |socket| Channel::new(socket, payload_bytes_max).expect("an end");
        (end(one), end(other))
    }

    /// Many messages of all sizes; each descriptor is the end of a pipe that says which it is.
    #[test]
    fn messages_come_in_order_and_each_with_its_own_descriptors() {
        let (one, mut other) = pair(300_000);
        let (stop, _stop_in) = UnixStream::pair().expect("a pair");
        let sizes = [0, 1, 5, 300_000, 70_000, 17, 200_000, 3];
        let told: Vec<(UnixStream, UnixStream)> = (0..400).map(|_| UnixStream::pair().expect("a pair")).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut sending = one.sending();
                for (number, (_, end)) in told.iter().enumerate() {
                    let payload = vec![number as u8; sizes[number % sizes.len()]];
                    let ends = [end.as_fd(), end.as_fd()];
                    sending.push(Kind::Connection, &payload, &ends[..number % 3]).expect("it is read");
                }
                sending.finish().expect("it is read");
            });
            for (number, (begin, _)) in told.iter().enumerate() {
                let Message { kind, payload, descriptors } = other.wait(&stop, None).expect("a message");
                assert_eq!((kind, descriptors.len()), (Kind::Connection, number % 3));
                assert_eq!(payload, vec![number as u8; sizes[number % sizes.len()]]);
                for descriptor in descriptors {
                    UnixStream::from(descriptor).write_all(&[7]).expect("its other end is there");
                    let mut byte = [0];
                    std::io::Read::read_exact(&mut { begin }, &mut byte).expect("it was the right one");
                }
            }
        });
        drop(one);
        assert_eq!(other.wait(&stop, None).expect_err("nobody is there"), ChannelError::Ended);
    }

    #[test]
    fn garbage_is_refused_before_it_is_waited_for() {
        for (garbage, what) in [
            (&b"GET / HTTP/1.1\r\n"[..], "a message of no known kind"),
            (&[1, 0, 33, 0, 0, 0], "too long a message"),
            (&[1, 0, 255, 255, 255, 255], "too long a message"),
            (&[1, 1, 1, 0, 0, 0, 9], "descriptors are missing"),
        ] {
            let (mut one, other) = pair(32);
            other.socket().write_all(garbage).expect("there is room");
            assert_eq!(one.next().expect_err(what), ChannelError::Malformed(what));
        }
        let (mut one, other) = pair(32);
        other.socket().write_all(&[1, 0, 2, 0, 0, 0, 9]).expect("there is room");
        assert!(one.next().expect("half a message").is_none());
    }

    #[test]
    fn who_waits_can_be_told_to_stop() {
        let (_one, mut other) = pair(32);
        let (stop, stop_in) = UnixStream::pair().expect("a pair");
        (&stop_in).write_all(b"s").expect("there is room");
        assert_eq!(other.wait(&stop, None).expect_err("no message"), ChannelError::Interrupted);
    }
}
