//! Framed messages with descriptors between the two processes of an upgrade, over one Unix stream.
//!
//! ```text
//!   | kind 1 | descriptors 1 | bytes 4, little-endian | payload |       the descriptors travel beside it (SCM_RIGHTS)
//! ```
//!
//! Messages are sent in batches. The kernel delivers descriptors in order, and no later than the first byte that they
//! were sent with. So when a message has been received whole, its descriptors are the first in the queue.
//!
//! A receiver limits the size of a payload, and refuses a larger one before it allocates memory for it.

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
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The kind of a message. The numbers are the format and never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// From the new process: its program and format.
    Hello = 1,
    /// From the old process: the sockets that it listens on.
    Listeners = 2,
    /// From the new process: it is prepared.
    Ready = 3,
    /// From the old process: a client's connection.
    Connection = 4,
    /// From the old process: it has sent everything and has released its exclusive resources.
    Quiesced = 5,
    /// From the new process: it serves from now on.
    TakenOver = 6,
    /// From the old process: it keeps serving, for this reason.
    Refused = 7,
}

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) kind: MessageKind,
    pub(crate) payload: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Why no message was received or sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChannelError {
    /// The other process has closed the channel.
    Ended,
    /// The bytes are no message, or the message is not expected.
    Malformed(&'static str),
    /// The other process refuses, for this reason.
    Refused(String),
    TimedOut,
    /// This process was signalled to stop.
    Interrupted,
    System(Errno),
}

impl std::fmt::Display for ChannelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ChannelError::Ended => f.write_str("the other process has closed the channel"),
            ChannelError::Malformed(what) => write!(f, "malformed message: {what}"),
            ChannelError::Refused(why) => f.write_str(why),
            ChannelError::TimedOut => f.write_str("the other process has timed out"),
            ChannelError::Interrupted => f.write_str("interrupted by a signal to stop"),
            ChannelError::System(error) => write!(f, "{error}"),
        }
    }
}

const HEAD_BYTES: usize = 6;

const READ_BYTES: usize = 64 << 10;

/// The most bytes of one send, unless one message is larger.
const SEND_BYTES: usize = 64 << 10;

/// The most descriptors of one send. The kernel allows 253.
const SEND_DESCRIPTORS: usize = 128;
const KERNEL_DESCRIPTORS_MAX: usize = 253;

/// How long a send may wait for the other process to read.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Channel {
    socket: UnixStream,
    payload_bytes_max: usize,
    received: Vec<u8>,
    /// The parsed part of `received`.
    parsed_bytes: usize,
    descriptors: VecDeque<OwnedFd>,
}

impl Channel {
    /// An end that accepts payloads of up to `payload_bytes_max`.
    pub(crate) fn new(socket: UnixStream, payload_bytes_max: usize) -> std::io::Result<Channel> {
        socket.set_nonblocking(false)?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(Channel { socket, payload_bytes_max, received: Vec::new(), parsed_bytes: 0, descriptors: VecDeque::new() })
    }

    pub(crate) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    pub(crate) fn send(
        &self,
        kind: MessageKind,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let mut batch = self.batch();
        batch.push(kind, payload, descriptors)?;
        batch.send_rest()
    }

    pub(crate) fn batch<'f>(&self) -> MessageBatch<'_, 'f> {
        MessageBatch { socket: &self.socket, bytes: Vec::new(), descriptors: Vec::new() }
    }

    /// The next message. `None` if it has not arrived; does not wait.
    pub(crate) fn try_receive(&mut self) -> Result<Option<Message>, ChannelError> {
        loop {
            if let Some(message) = self.parse_message()? {
                return Ok(Some(message));
            }
            if !self.read_socket()? {
                return Ok(None);
            }
        }
    }

    /// Waits for the next message, for at most `timeout`, or until `stop` is readable.
    pub(crate) fn receive(&mut self, stop: &UnixStream, timeout: Duration) -> Result<Message, ChannelError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(message) = self.try_receive()? {
                return Ok(message);
            }
            self.wait_readable(stop, deadline.saturating_duration_since(Instant::now()))?;
        }
    }

    /// Makes every later send of the other process fail. What it has sent before can still be received; then the
    /// channel has ended. The kernel decides under one lock, so each message is either received here or its sender
    /// gets an error.
    pub(crate) fn refuse_messages(&self) {
        // Fails only if the other process has closed the channel, which has the same effect.
        let _ = self.socket.shutdown(Shutdown::Read);
    }

    fn wait_readable(&self, stop: &UnixStream, timeout: Duration) -> Result<(), ChannelError> {
        let timeout = Timespec::try_from(timeout).expect("it is a few seconds");
        let mut watched = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut watched, Some(&timeout)) {
            Ok(0) => Err(ChannelError::TimedOut),
            Ok(_) if !watched[1].revents().is_empty() => Err(ChannelError::Interrupted),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(ChannelError::System(error)),
        }
    }

    /// Parses the next message. `None` if it is incomplete.
    fn parse_message(&mut self) -> Result<Option<Message>, ChannelError> {
        let bytes = &self.received[self.parsed_bytes..];
        let Some((&[kind, descriptors, a, b, c, d], rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let kind = kind_of(kind).ok_or(ChannelError::Malformed("unknown kind of message"))?;
        let payload_bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        if payload_bytes > self.payload_bytes_max {
            return Err(ChannelError::Malformed("message too long"));
        }
        let Some(payload) = rest.get(..payload_bytes) else { return Ok(None) };
        if self.descriptors.len() < usize::from(descriptors) {
            return Err(ChannelError::Malformed("descriptors are missing"));
        }
        let payload = payload.to_vec();
        let descriptors = self.descriptors.drain(..usize::from(descriptors)).collect();
        self.parsed_bytes += HEAD_BYTES + payload_bytes;
        if self.parsed_bytes >= READ_BYTES || self.parsed_bytes == self.received.len() {
            self.received.drain(..self.parsed_bytes);
            self.parsed_bytes = 0;
        }
        Ok(Some(Message { kind, payload, descriptors }))
    }

    /// Reads from the socket. False if nothing has arrived.
    fn read_socket(&mut self) -> Result<bool, ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_DESCRIPTORS_MAX))];
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
            return Err(ChannelError::Malformed("more descriptors than this process may open (raise `ulimit -n`)"));
        }
        if received.bytes == 0 {
            return Err(ChannelError::Ended);
        }
        Ok(true)
    }
}

fn kind_of(number: u8) -> Option<MessageKind> {
    let kinds = [
        MessageKind::Hello,
        MessageKind::Listeners,
        MessageKind::Ready,
        MessageKind::Connection,
        MessageKind::Quiesced,
        MessageKind::TakenOver,
        MessageKind::Refused,
    ];
    kinds.into_iter().find(|kind| *kind as u8 == number)
}

/// A batch of messages. [`MessageBatch::send_rest`] sends the last ones.
pub(crate) struct MessageBatch<'c, 'f> {
    socket: &'c UnixStream,
    bytes: Vec<u8>,
    descriptors: Vec<BorrowedFd<'f>>,
}

impl<'f> MessageBatch<'_, 'f> {
    /// Adds a message with at most [`SEND_DESCRIPTORS`] descriptors.
    pub(crate) fn push(
        &mut self,
        kind: MessageKind,
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

    pub(crate) fn send_rest(mut self) -> Result<(), ChannelError> {
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

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn pair(payload_bytes_max: usize) -> (Channel, Channel) {
        let (one, other) = UnixStream::pair().expect("a pair");
        let end = |socket| Channel::new(socket, payload_bytes_max).expect("an end");
        (end(one), end(other))
    }

    /// Messages of many sizes. Each descriptor is the end of a socket pair, which identifies it.
    #[test]
    fn messages_arrive_in_order_and_each_with_its_own_descriptors() {
        let (one, mut other) = pair(300_000);
        let (stop, _stop_in) = UnixStream::pair().expect("a pair");
        let sizes = [0, 1, 5, 300_000, 70_000, 17, 200_000, 3];
        let pairs: Vec<(UnixStream, UnixStream)> = (0..400).map(|_| UnixStream::pair().expect("a pair")).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut batch = one.batch();
                for (number, (_, end)) in pairs.iter().enumerate() {
                    let payload = vec![number as u8; sizes[number % sizes.len()]];
                    let ends = [end.as_fd(), end.as_fd()];
                    batch.push(MessageKind::Connection, &payload, &ends[..number % 3]).expect("it is read");
                }
                batch.send_rest().expect("it is read");
            });
            for (number, (begin, _)) in pairs.iter().enumerate() {
                let Message { kind, payload, descriptors } = other.receive(&stop, TIMEOUT).expect("a message");
                assert_eq!((kind, descriptors.len()), (MessageKind::Connection, number % 3));
                assert_eq!(payload, vec![number as u8; sizes[number % sizes.len()]]);
                for descriptor in descriptors {
                    UnixStream::from(descriptor).write_all(&[7]).expect("its other end is open");
                    let mut byte = [0];
                    std::io::Read::read_exact(&mut { begin }, &mut byte).expect("it was the right descriptor");
                }
            }
        });
        drop(one);
        assert_eq!(other.receive(&stop, TIMEOUT).expect_err("the other end is closed"), ChannelError::Ended);
    }

    #[test]
    fn malformed_input_is_refused_before_the_rest_of_it_arrives() {
        for (input, error) in [
            (&b"GET / HTTP/1.1\r\n"[..], "unknown kind of message"),
            (&[1, 0, 33, 0, 0, 0], "message too long"),
            (&[1, 0, 255, 255, 255, 255], "message too long"),
            (&[1, 1, 1, 0, 0, 0, 9], "descriptors are missing"),
        ] {
            let (mut one, other) = pair(32);
            other.socket().write_all(input).expect("it fits");
            assert_eq!(one.try_receive().expect_err(error), ChannelError::Malformed(error));
        }
        let (mut one, other) = pair(32);
        other.socket().write_all(&[1, 0, 2, 0, 0, 0, 9]).expect("it fits");
        assert!(one.try_receive().expect("half a message").is_none());
    }

    #[test]
    fn waiting_for_a_message_is_interruptible() {
        let (_one, mut other) = pair(32);
        let (stop, stop_in) = UnixStream::pair().expect("a pair");
        (&stop_in).write_all(b"s").expect("it fits");
        assert_eq!(other.receive(&stop, TIMEOUT).expect_err("no message"), ChannelError::Interrupted);
    }

    #[test]
    fn a_silent_process_times_out_and_can_send_nothing_afterwards() {
        let (one, mut other) = pair(32);
        let (stop, _stop_in) = UnixStream::pair().expect("a pair");
        assert_eq!(other.receive(&stop, Duration::ZERO).expect_err("no message"), ChannelError::TimedOut);
        one.send(MessageKind::Ready, &[], &[]).expect("it fits");
        other.refuse_messages();
        assert_eq!(one.send(MessageKind::TakenOver, &[], &[]), Err(ChannelError::Ended));
        assert_eq!(other.receive(&stop, TIMEOUT).expect("sent before").kind, MessageKind::Ready);
        assert_eq!(other.receive(&stop, TIMEOUT).expect_err("nothing else"), ChannelError::Ended);
    }
}
