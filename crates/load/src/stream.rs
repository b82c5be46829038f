//! A connection by TCP or a Unix socket.
//!
//! All connections read into one buffer, which stays in the processor's cache. Only the beginning of an item that has
//! not arrived completely is kept per connection, and requests that the socket did not take.

use crate::error::LoadError;
use crate::items::Items;
use crate::outstanding::{Answered, ItemLines, Outstanding};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What is read at a time, in bytes.
pub const READ_BYTES: usize = 64 << 10;

/// A stream to the server.
#[derive(Debug)]
pub struct StreamConnection {
    socket: OwnedFd,
    /// The requests that were written and not answered.
    pub outstanding: Outstanding,
    incomplete: Vec<u8>,
    unsent: Vec<u8>,
}

impl StreamConnection {
    /// A connection by this socket, which does not block.
    pub fn new(socket: OwnedFd) -> StreamConnection {
        StreamConnection { socket, outstanding: Outstanding::default(), incomplete: Vec::new(), unsent: Vec::new() }
    }

    /// Reads once, and checks what has arrived. `buffer` has [`READ_BYTES`].
    pub fn receive(
        &mut self,
        buffer: &mut [u8],
        items: &Items,
        lines: &mut ItemLines,
        on_answer: impl FnMut(Answered),
    ) -> Result<(), LoadError> {
        let bytes = match rustix::io::read(&self.socket, &mut *buffer) {
            Ok(0) => return Err(LoadError::Closed { outstanding: self.outstanding.len() }),
            Ok(bytes) => bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(LoadError::Receive(error.into())),
        };
        if self.incomplete.is_empty() {
            let checked = self.outstanding.check(&buffer[..bytes], items, lines, on_answer)?;
            self.incomplete.extend_from_slice(&buffer[checked..bytes]);
        } else {
            self.incomplete.extend_from_slice(&buffer[..bytes]);
            let checked = self.outstanding.check(&self.incomplete, items, lines, on_answer)?;
            self.incomplete.drain(..checked);
        }
        Ok(())
    }

    /// Where to append requests, for [`StreamConnection::send`].
    pub fn unsent(&mut self) -> &mut Vec<u8> {
        &mut self.unsent
    }

    /// Sends what was appended, as far as the socket takes it.
    pub fn send(&mut self) -> Result<(), LoadError> {
        match rustix::net::send(&self.socket, &self.unsent, rustix::net::SendFlags::NOSIGNAL) {
            Ok(sent) if sent == self.unsent.len() => self.unsent.clear(),
            Ok(sent) => drop(self.unsent.drain(..sent)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(LoadError::Send(error.into())),
        }
        Ok(())
    }

    /// Whether the socket has not taken all bytes.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }
}

impl AsFd for StreamConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
