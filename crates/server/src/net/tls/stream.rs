//! One connection's TLS, between its non-blocking socket and plain bytes.
//!
//! The buffers are bounded by rustls: incoming records up to 18 KB (64 KB during the handshake), outgoing ones up to 64
//! KB. Decrypted bytes are passed on at once, so none remain here between two wake-ups: epoll reports bytes in the
//! socket, not bytes here.

use crate::net::socket::{Received, Sent, receive, send};
use rustix::fd::OwnedFd;
use rustls::{HandshakeKind, ServerConfig, ServerConnection};
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

pub(crate) struct TlsStream {
    rustls: ServerConnection,
    /// When the handshake began, in seconds since the start of the server.
    began_s: u32,
    is_handshake_counted: bool,
    /// The client will send nothing more.
    is_ended: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsEvents {
    pub(crate) new_sessions: u64,
    pub(crate) handshake_errors: u64,
    pub(crate) protocol_errors: u64,
}

/// A socket with the interface that rustls needs.
struct Socket<'a>(&'a OwnedFd);

impl TlsStream {
    /// A stream before the client's first byte.
    pub(crate) fn new(config: Arc<ServerConfig>, began_s: u32) -> Result<TlsStream, rustls::Error> {
        Ok(TlsStream { rustls: ServerConnection::new(config)?, began_s, is_handshake_counted: false, is_ended: false })
    }

    /// Whether the handshake began before `before_s` and is not finished.
    pub(crate) fn is_overdue(&self, before_s: u32) -> bool {
        self.began_s < before_s && self.rustls.is_handshaking()
    }

    /// Whether the client has ended its side. Nothing more will arrive, although the socket may stay open.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Appends about `bytes_max` plain bytes (at most one record more) to `plain`, and continues the handshake. `Bytes`
    /// counts plain bytes. Afterwards [`TlsStream::has_unsent`] may be true.
    pub(crate) fn receive(
        &mut self,
        socket: &OwnedFd,
        plain: &mut Vec<u8>,
        bytes_max: usize,
        tls_events: &mut TlsEvents,
    ) -> Received {
        let plain_before = plain.len();
        while plain.len() - plain_before < bytes_max && !self.is_ended {
            match self.rustls.read_tls(&mut Socket(socket)) {
                Ok(0) => self.is_ended = true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.is_ended = true,
            }
            if !self.decrypt(plain, tls_events) {
                // Sends the alert with the reason, if the socket takes it.
                let _ = self.rustls.write_tls(&mut Socket(socket));
                return Received::Gone;
            }
        }
        if self.flush(socket) == Sent::Gone {
            return Received::Gone;
        }
        match plain.len() - plain_before {
            0 if self.is_ended => {
                tls_events.handshake_errors += u64::from(self.rustls.is_handshaking());
                Received::Gone
            }
            0 => Received::Nothing,
            count => Received::Bytes(count),
        }
    }

    /// Moves what can be decrypted to `plain`; false if the client broke the protocol.
    fn decrypt(&mut self, plain: &mut Vec<u8>, tls_events: &mut TlsEvents) -> bool {
        let was_handshaking = self.rustls.is_handshaking();
        let Ok(state) = self.rustls.process_new_packets() else {
            tls_events.handshake_errors += u64::from(was_handshaking);
            tls_events.protocol_errors += u64::from(!was_handshaking);
            return false;
        };
        self.is_ended |= state.peer_has_closed();
        if !self.is_handshake_counted && !self.rustls.is_handshaking() {
            self.is_handshake_counted = true;
            tls_events.new_sessions += u64::from(self.rustls.handshake_kind() != Some(HandshakeKind::Resumed));
        }
        let at = plain.len();
        plain.resize(at + state.plaintext_bytes_to_read(), 0);
        // All of these bytes are available, so the read does not block.
        self.rustls.reader().read_exact(&mut plain[at..]).is_ok()
    }

    /// Encrypts and sends as much of `bytes` as the socket and the bounded buffer take. `Part` also if everything was
    /// accepted but some of it is still buffered: a call without bytes sends it.
    pub(crate) fn send(&mut self, socket: &OwnedFd, bytes: &[u8]) -> Sent {
        let mut accepted = 0;
        loop {
            match self.flush(socket) {
                Sent::All if accepted == bytes.len() => return Sent::All,
                Sent::All => {}
                Sent::Part(_) => return Sent::Part(accepted),
                Sent::Gone => return Sent::Gone,
            }
            match self.rustls.writer().write(&bytes[accepted..]) {
                Ok(count) => accepted += count,
                Err(_) => return Sent::Gone,
            }
        }
    }

    /// Whether encrypted bytes wait for space in the socket.
    pub(crate) fn has_unsent(&self) -> bool {
        self.rustls.wants_write()
    }

    /// Sends close_notify, if the socket takes it at once.
    pub(crate) fn send_close_notify(&mut self, socket: &OwnedFd) {
        self.rustls.send_close_notify();
        let _ = self.flush(socket);
    }

    fn flush(&mut self, socket: &OwnedFd) -> Sent {
        while self.rustls.wants_write() {
            match self.rustls.write_tls(&mut Socket(socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Sent::Part(0),
                Err(_) => return Sent::Gone,
            }
        }
        Sent::All
    }
}

impl Read for Socket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match receive(self.0, buffer) {
            Received::Bytes(count) => Ok(count),
            Received::Nothing => Err(ErrorKind::WouldBlock.into()),
            Received::Gone => Ok(0),
        }
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match send(self.0, bytes) {
            Sent::All => Ok(bytes.len()),
            Sent::Part(0) => Err(ErrorKind::WouldBlock.into()),
            Sent::Part(count) => Ok(count),
            Sent::Gone => Err(ErrorKind::ConnectionReset.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
