//! The packet framing of the MySQL protocol.
//!
//! ```text
//! | length: 3 bytes, little-endian | sequence: 1 byte | payload: length bytes |
//! ```
//!
//! A payload of 2^24 - 1 bytes is continued by the next packet. Every read has a time limit: a server that is silent
//! for longer is treated as dead. Reads are cancel-safe: bytes that have arrived stay in the buffer.
//!
//! A long message is in memory once: its bytes move to a buffer of their own as they arrive, which is freed with it and
//! does not grow, as an event of the log begins with its length.
//!
//! ```text
//! message with an event | 0: 1 byte | time: 4 | type: 1 | server: 4 | length of the event: 4 | ...
//! ```

use crate::SourceError;
use crate::source::tls::{Bytestream, DatabaseTls};
use bytes::{Buf, BytesMut};
use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The longest payload of one packet; a payload of exactly this length is continued.
const PACKET_BYTES_MAX: usize = 0xff_ffff;

/// The longest message, over all its packets. The server's own `max_allowed_packet` cannot be above 1 GiB; an event
/// adds some bytes to the statement that it carries.
const MESSAGE_BYTES_MAX: usize = (1 << 30) + (1 << 20);

/// The buffer capacity reserved for each read from the network.
const READ_BYTES: usize = 64 << 10;

const HEAD_BYTES: usize = 4;

/// Where the length of an event ends in its message.
const EVENT_LENGTH_END: usize = 14;

/// A stream of packets.
pub struct PacketStream {
    stream: Box<dyn Bytestream>,
    arrived: BytesMut,
    /// The part of a long message that has arrived.
    message: BytesMut,
    /// The packet that is moved to `message`; `None` if the next byte begins a packet.
    moving: Option<MovingPacket>,
    /// The sequence number of the next packet that we send.
    sequence: u8,
}

/// A packet whose payload is moved to the message as it arrives.
#[derive(Clone, Copy)]
struct MovingPacket {
    bytes_left: usize,
    /// Whether the next packet continues the message.
    is_continued: bool,
}

impl PacketStream {
    /// Reads and writes packets on `stream`.
    pub(super) fn new(stream: Box<dyn Bytestream>) -> Self {
        PacketStream { stream, arrived: BytesMut::new(), message: BytesMut::new(), moving: None, sequence: 0 }
    }

    /// Secures the rest of the stream, to `host`.
    pub(super) async fn secure(self, host: &str, tls: &DatabaseTls) -> Result<Self, SourceError> {
        // Only an attacker in between sends anything before the handshake; it must not pass for the server's.
        if !self.arrived.is_empty() || !self.message.is_empty() {
            return Err(SourceError::Unusable { why: "the server sent bytes before the TLS handshake".into() });
        }
        Ok(PacketStream { stream: tls.secure(host, self.stream).await?, ..self })
    }

    /// Sends `payload` in reply to the last message.
    pub async fn reply(&mut self, payload: &[u8]) -> Result<(), SourceError> {
        let mut bytes = Vec::with_capacity(payload.len() + HEAD_BYTES);
        let mut rest = payload;
        loop {
            let (part, after) = rest.split_at(rest.len().min(PACKET_BYTES_MAX));
            bytes.extend_from_slice(&(part.len() as u32).to_le_bytes()[..3]);
            bytes.push(self.sequence);
            self.sequence = self.sequence.wrapping_add(1);
            bytes.extend_from_slice(part);
            rest = after;
            if part.len() < PACKET_BYTES_MAX {
                break;
            }
        }
        self.stream.write_all(&bytes).await.map_err(|error| connection_lost(&error))
    }

    /// Sends `payload` as a command, which restarts the sequence numbers.
    pub async fn command(&mut self, payload: &[u8]) -> Result<(), SourceError> {
        self.sequence = 0;
        self.reply(payload).await
    }

    /// Sends `payload`, a short command, if that is possible without waiting.
    pub fn try_command(&mut self, payload: &[u8]) {
        let mut bytes = (payload.len() as u32).to_le_bytes();
        bytes[HEAD_BYTES - 1] = 0;
        let packet = [&bytes[..], payload].concat();
        let mut context = Context::from_waker(Waker::noop());
        // The peer knows nothing of a stream that is encrypted until it is flushed.
        if let Poll::Ready(Ok(_)) = Pin::new(&mut self.stream).poll_write(&mut context, &packet) {
            let _ = Pin::new(&mut self.stream).poll_flush(&mut context);
        }
    }

    /// The next message, waiting at most `wait_max` for each part of it.
    pub async fn read(&mut self, wait_max: Duration) -> Result<BytesMut, SourceError> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(message);
            }
            match tokio::time::timeout(wait_max, self.fill()).await {
                Ok(filled) => filled?,
                Err(_) => {
                    return Err(SourceError::Unreachable {
                        why: format!("the server was silent for {} ms", wait_max.as_millis()),
                    });
                }
            }
        }
    }

    /// The next message if it has arrived completely; does not wait.
    pub async fn read_ready(&mut self) -> Result<Option<BytesMut>, SourceError> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(message));
            }
            tokio::select! {
                biased;
                filled = self.fill() => filled?,
                () = std::future::ready(()) => return Ok(None),
            }
        }
    }

    async fn fill(&mut self) -> Result<(), SourceError> {
        self.arrived.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.arrived).await {
            Ok(0) => Err(SourceError::Unreachable { why: "the server closed the connection".into() }),
            Ok(_) => Ok(()),
            Err(error) => Err(connection_lost(&error)),
        }
    }

    /// The next message, if it has arrived.
    fn take_message(&mut self) -> Result<Option<BytesMut>, SourceError> {
        loop {
            let Some(packet) = &mut self.moving else {
                match self.begin_packet()? {
                    PacketStart::Message(message) => return Ok(Some(message)),
                    PacketStart::Incomplete => return Ok(None),
                    PacketStart::Moving => continue,
                }
            };
            let part = self.arrived.split_to(packet.bytes_left.min(self.arrived.len()));
            self.message.extend_from_slice(&part);
            packet.bytes_left -= part.len();
            if packet.bytes_left > 0 {
                return Ok(None);
            }
            let is_continued = packet.is_continued;
            self.moving = None;
            if !is_continued {
                // Not split: the buffer is freed with the message.
                return Ok(Some(std::mem::take(&mut self.message)));
            }
        }
    }

    fn begin_packet(&mut self) -> Result<PacketStart, SourceError> {
        let Some(&[low, middle, high, sequence]) = self.arrived.first_chunk::<HEAD_BYTES>() else {
            return Ok(PacketStart::Incomplete);
        };
        let length = u32::from_le_bytes([low, middle, high, 0]) as usize;
        if self.message.len() + length > MESSAGE_BYTES_MAX {
            return Err(SourceError::Unreachable {
                why: format!("the server sent a message of over {MESSAGE_BYTES_MAX} bytes"),
            });
        }
        let is_short = length <= READ_BYTES && self.message.is_empty();
        if self.arrived.len() < HEAD_BYTES + if is_short { length } else { length.min(EVENT_LENGTH_END) } {
            return Ok(PacketStart::Incomplete);
        }
        self.arrived.advance(HEAD_BYTES);
        self.sequence = sequence.wrapping_add(1);
        if is_short {
            return Ok(PacketStart::Message(self.arrived.split_to(length)));
        }
        if self.message.is_empty() {
            self.message = BytesMut::with_capacity(match length {
                PACKET_BYTES_MAX => event_message_bytes(&self.arrived).clamp(length, MESSAGE_BYTES_MAX),
                _ => length,
            });
        }
        self.moving = Some(MovingPacket { bytes_left: length, is_continued: length == PACKET_BYTES_MAX });
        Ok(PacketStart::Moving)
    }
}

/// What the bytes at the start of a packet are.
enum PacketStart {
    /// A short message.
    Message(BytesMut),
    /// A part of a packet that is waited for.
    Incomplete,
    /// A packet of a long message.
    Moving,
}

/// The length of a message that begins with `start` and has an event.
fn event_message_bytes(start: &[u8]) -> usize {
    let length = start[..EVENT_LENGTH_END].last_chunk().map_or(0, |length| u32::from_le_bytes(*length));
    1 + length as usize
}

fn connection_lost(error: &std::io::Error) -> SourceError {
    SourceError::Unreachable { why: format!("the connection broke: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT_MAX: Duration = Duration::from_secs(10);

    fn message(bytes: usize) -> Vec<u8> {
        let mut message = (0..251).collect::<Vec<u8>>().repeat(bytes / 251 + 1);
        message.truncate(bytes);
        message
    }

    fn packets(message: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in message.chunks(PACKET_BYTES_MAX) {
            bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        if message.len().is_multiple_of(PACKET_BYTES_MAX) {
            bytes.extend_from_slice(&[0; HEAD_BYTES]);
        }
        bytes
    }

    #[tokio::test]
    async fn messages_are_read_wherever_their_bytes_are_cut() {
        let lengths = [0, 1, READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, 3 * READ_BYTES, 5];
        for cut in [1, 3, HEAD_BYTES, 1_000, READ_BYTES, READ_BYTES + HEAD_BYTES, usize::MAX] {
            let (server, client) = tokio::io::duplex(1 << 20);
            let writer = tokio::spawn(async move {
                let mut server = server;
                let bytes: Vec<u8> = lengths.iter().flat_map(|&length| packets(&message(length))).collect();
                for part in bytes.chunks(cut.max(bytes.len() / 10_000)) {
                    server.write_all(part).await.expect("it is read");
                    tokio::task::yield_now().await;
                }
                server
            });
            let mut stream = PacketStream::new(Box::new(client));
            for length in lengths {
                assert_eq!(stream.read(WAIT_MAX).await.expect("a message"), message(length), "{length} bytes, {cut}");
            }
            let _server = writer.await.expect("all is written");
            assert_eq!(stream.read_ready().await, Ok(None));
        }
    }

    /// The parts of a long message were in the buffer of arrived bytes, in the message, and in the buffer again when it
    /// grew. What was freed with the message was a reference.
    #[tokio::test]
    async fn a_long_message_is_in_memory_once() {
        for length in [PACKET_BYTES_MAX - 1, PACKET_BYTES_MAX, PACKET_BYTES_MAX + 100_000] {
            let (mut server, client) = tokio::io::duplex(1 << 20);
            let mut stream = PacketStream::new(Box::new(client));
            let mut event = message(length);
            event[EVENT_LENGTH_END - 4..EVENT_LENGTH_END].copy_from_slice(&(length as u32 - 1).to_le_bytes());
            let bytes = packets(&event);
            let writer = tokio::spawn(async move { server.write_all(&bytes).await.map(|()| server) });
            let read = stream.read(WAIT_MAX).await.expect("a message");
            assert!(read == event && read.capacity() == length, "{length} bytes in {}", read.capacity());
            assert!(stream.arrived.capacity() <= 4 * READ_BYTES, "{} bytes", stream.arrived.capacity());
            assert_eq!(stream.message.capacity(), 0);
            writer.await.expect("no panic").expect("all is written");
        }
    }
}
