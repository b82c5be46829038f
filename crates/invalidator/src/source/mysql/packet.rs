//! The packet framing of the MySQL protocol.
//!
//! ```text
//! | length: 3 bytes, little-endian | sequence: 1 byte | payload: length bytes |
//! ```
//!
//! A payload of 2^24 - 1 bytes is continued by the next packet. Every read has a time limit: a server that is silent
//! for longer is treated as dead. Reads are cancel-safe: bytes that have arrived stay in the buffer.

use crate::SourceError;
use crate::source::tls::{Bytestream, DatabaseTls};
use bytes::{Buf, BytesMut};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The longest payload of one packet; a payload of exactly this length is continued.
const PACKET_BYTES_MAX: usize = 0xff_ffff;

/// The longest message, over all its packets. The server's own `max_allowed_packet` cannot be above 1 GiB; an event
/// adds some bytes to the statement that it carries.
const MESSAGE_BYTES_MAX: usize = (1 << 30) + (1 << 20);

/// The buffer capacity reserved for each read from the network.
const READ_BYTES: usize = 64 << 10;

const HEAD_BYTES: usize = 4;

/// A stream of packets.
pub struct PacketStream {
    stream: Box<dyn Bytestream>,
    arrived: BytesMut,
    /// The message whose last packet has not arrived yet.
    message: BytesMut,
    /// The sequence number of the next packet that we send.
    sequence: u8,
}

impl PacketStream {
    /// Reads and writes packets on `stream`.
    pub(super) fn new(stream: Box<dyn Bytestream>) -> Self {
        PacketStream { stream, arrived: BytesMut::new(), message: BytesMut::new(), sequence: 0 }
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

    fn take_message(&mut self) -> Result<Option<BytesMut>, SourceError> {
        while let Some(&[low, middle, high, sequence]) = self.arrived.first_chunk::<HEAD_BYTES>() {
            let length = u32::from_le_bytes([low, middle, high, 0]) as usize;
            if self.message.len() + length > MESSAGE_BYTES_MAX {
                return Err(SourceError::Unreachable {
                    why: format!("the server sent a message of over {MESSAGE_BYTES_MAX} bytes"),
                });
            }
            if self.arrived.len() < HEAD_BYTES + length {
                return Ok(None);
            }
            self.arrived.advance(HEAD_BYTES);
            self.sequence = sequence.wrapping_add(1);
            let part = self.arrived.split_to(length);
            if length == PACKET_BYTES_MAX {
                self.message.unsplit(part);
            } else if self.message.is_empty() {
                return Ok(Some(part));
            } else {
                self.message.extend_from_slice(&part);
                return Ok(Some(self.message.split()));
            }
        }
        Ok(None)
    }
}

fn connection_lost(error: &std::io::Error) -> SourceError {
    SourceError::Unreachable { why: format!("the connection broke: {error}") }
}
