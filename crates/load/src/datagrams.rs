//! Gets by UDP: a socket with one request on its way.
//!
//! Each datagram begins with memcached's frame header (protocol.txt, "UDP protocol"), big-endian:
//!
//! ```text
//! | request id: u16 | sequence number: u16 | datagrams of the reply: u16 | 0: u16 |
//! ```
//!
//! A reply is one text in several datagrams. memcached 1.6 answers a get of several keys with a datagram for each item,
//! and says in each that it is the only one; their texts are joined in the order of arrival, too. Datagrams of former
//! requests are late replies and are ignored.

use crate::error::LoadError;
use crate::items::Items;
use crate::outstanding::{Answered, ItemLines, Outstanding};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The length of the frame header.
pub const FRAME_BYTES: usize = 8;

/// A socket to the server.
#[derive(Debug)]
pub struct DatagramConnection {
    socket: OwnedFd,
    /// The request that was sent and not answered.
    pub outstanding: Outstanding,
    request_id: u16,
    /// The sequence number of the next datagram of a reply of several.
    next_sequence: u16,
    /// Datagrams that came before one that precedes them.
    early: Vec<(u16, Vec<u8>)>,
    incomplete: Vec<u8>,
}

impl DatagramConnection {
    /// A connection by this socket, which does not block.
    pub fn new(socket: OwnedFd) -> DatagramConnection {
        DatagramConnection {
            socket,
            outstanding: Outstanding::default(),
            request_id: 0,
            next_sequence: 0,
            early: Vec::new(),
            incomplete: Vec::new(),
        }
    }

    /// Sends a request: a text of one line.
    pub fn send(&mut self, datagram: &mut Vec<u8>, text: &[u8]) -> Result<(), LoadError> {
        self.request_id = self.request_id.wrapping_add(1);
        self.next_sequence = 0;
        self.early.clear();
        self.incomplete.clear();
        datagram.clear();
        datagram.extend_from_slice(&self.request_id.to_be_bytes());
        datagram.extend_from_slice(&[0, 0, 0, 1, 0, 0]);
        datagram.extend_from_slice(text);
        match rustix::net::send(&self.socket, datagram, rustix::net::SendFlags::empty()) {
            // One that the system does not take is lost, as on the way.
            Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS) => Ok(()),
            Err(error) => Err(LoadError::Send(error.into())),
        }
    }

    /// Reads datagrams until there is none or the request is answered, and checks them.
    pub fn receive(
        &mut self,
        buffer: &mut [u8],
        items: &Items,
        lines: &mut ItemLines,
        mut on_answer: impl FnMut(Answered),
    ) -> Result<(), LoadError> {
        loop {
            let bytes = match rustix::io::read(&self.socket, &mut *buffer) {
                Ok(bytes) => bytes,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(error) => return Err(LoadError::Receive(error.into())),
            };
            self.check(&buffer[..bytes], items, lines, &mut on_answer)?;
            if self.outstanding.is_empty() {
                return Ok(());
            }
        }
    }

    /// Gives up the request and ignores its reply from now on; returns how many requests were given up.
    pub fn abandon(&mut self) -> usize {
        self.request_id = self.request_id.wrapping_add(1);
        self.outstanding.abandon()
    }

    fn check(
        &mut self,
        datagram: &[u8],
        items: &Items,
        lines: &mut ItemLines,
        on_answer: &mut impl FnMut(Answered),
    ) -> Result<(), LoadError> {
        let Some((frame, text)) = datagram.split_first_chunk::<FRAME_BYTES>() else {
            return Err(LoadError::Datagram(format!("{} bytes are shorter than the frame header", datagram.len())));
        };
        let [id, sequence, count, reserved] = [0, 2, 4, 6].map(|at| u16::from_be_bytes([frame[at], frame[at + 1]]));
        if id != self.request_id {
            return Ok(());
        }
        if sequence >= count || reserved != 0 {
            return Err(LoadError::Datagram(format!("number {sequence} of {count}, reserved {reserved}")));
        }
        if self.outstanding.is_empty() {
            return Err(LoadError::Datagram(format!("number {sequence} of {count} after the end of the reply")));
        }
        if count == 1 {
            return self.append(text, items, lines, on_answer);
        }
        if sequence != self.next_sequence {
            let is_new = sequence > self.next_sequence && self.early.iter().all(|(other, _)| *other != sequence);
            if !is_new {
                return Err(LoadError::Datagram(format!("number {sequence} of {count} came twice")));
            }
            self.early.push((sequence, text.to_vec()));
            return Ok(());
        }
        self.next_sequence += 1;
        self.append(text, items, lines, on_answer)?;
        while let Some(place) = self.early.iter().position(|(other, _)| *other == self.next_sequence) {
            let (_, text) = self.early.swap_remove(place);
            self.next_sequence += 1;
            self.append(&text, items, lines, on_answer)?;
        }
        if self.outstanding.is_empty() != (self.next_sequence == count) {
            let part = format!("the reply ends with number {} of {count}", self.next_sequence.saturating_sub(1));
            return Err(LoadError::Datagram(part));
        }
        Ok(())
    }

    fn append(
        &mut self,
        text: &[u8],
        items: &Items,
        lines: &mut ItemLines,
        on_answer: &mut impl FnMut(Answered),
    ) -> Result<(), LoadError> {
        if self.incomplete.is_empty() {
            let checked = self.outstanding.check(text, items, lines, on_answer)?;
            self.incomplete.extend_from_slice(&text[checked..]);
        } else {
            self.incomplete.extend_from_slice(text);
            let checked = self.outstanding.check(&self.incomplete, items, lines, on_answer)?;
            self.incomplete.drain(..checked);
        }
        Ok(())
    }
}

impl AsFd for DatagramConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    struct Peers {
        connection: DatagramConnection,
        server: UnixDatagram,
        items: Items,
        lines: ItemLines,
    }

    fn peers() -> Peers {
        let (client, server) = UnixDatagram::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        let items = Items::new(10, 24, 5..=5);
        let mut connection = DatagramConnection::new(client.into());
        connection.outstanding.push(&[1, 2], false, 0);
        connection.send(&mut Vec::new(), b"get\r\n").unwrap();
        Peers { connection, server, lines: ItemLines::new(&items), items }
    }

    impl Peers {
        fn reply(&self, id: u16, sequence: u16, count: u16, text: &[u8]) {
            let frame = [id, sequence, count, 0].map(u16::to_be_bytes).concat();
            self.server.send(&[&frame, text].concat()).unwrap();
        }

        fn receive(&mut self) -> Result<Vec<Answered>, LoadError> {
            let mut answered = Vec::new();
            self.connection.receive(&mut [0; 2_000], &self.items, &mut self.lines, |one| answered.push(one))?;
            Ok(answered)
        }

        fn text(&self) -> Vec<u8> {
            let mut text = Vec::new();
            for item in [1, 2] {
                text.extend_from_slice(b"VALUE ");
                self.items.write_key(item, &mut text);
                text.extend_from_slice(b" 0 5\r\n");
                self.items.write_value(item, &mut text);
                text.extend_from_slice(b"\r\n");
            }
            [&text[..], b"END\r\n"].concat()
        }
    }

    #[test]
    fn request_has_the_frame_of_one_datagram() {
        let peers = peers();
        let mut sent = [0; 100];
        let bytes = peers.server.recv(&mut sent).unwrap();
        assert_eq!(&sent[..bytes], b"\0\x01\0\0\0\x01\0\0get\r\n");
    }

    #[test]
    fn reply_is_joined_from_its_datagrams_in_any_order() {
        let order = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]];
        for order in order {
            let mut peers = peers();
            let text = peers.text();
            let parts: Vec<&[u8]> = text.chunks(text.len().div_ceil(3)).collect();
            for sequence in order {
                peers.reply(1, sequence, 3, parts[usize::from(sequence)]);
            }
            assert_eq!(peers.receive().unwrap(), [Answered { since_ns: 0, keys: 2, misses: 0 }], "{order:?}");
        }
    }

    #[test]
    fn datagrams_that_are_each_the_only_one_are_joined() {
        let mut peers = peers();
        let text = peers.text();
        let at = text.len() / 2;
        peers.reply(1, 0, 1, &text[..at]);
        peers.reply(1, 0, 1, &text[at..]);
        assert_eq!(peers.receive().unwrap().len(), 1);
    }

    #[test]
    fn late_reply_is_ignored() {
        let mut peers = peers();
        peers.reply(0, 0, 1, b"nonsense");
        peers.reply(1, 0, 1, b"END\r\n");
        assert_eq!(peers.receive().unwrap(), [Answered { since_ns: 0, keys: 2, misses: 2 }]);
    }

    #[test]
    fn reply_to_an_abandoned_request_is_ignored() {
        let mut peers = peers();
        assert_eq!(peers.connection.abandon(), 1);
        peers.reply(1, 0, 1, b"END\r\n");
        assert_eq!(peers.receive().unwrap(), []);
    }

    #[test]
    fn wrong_frames_are_refused() {
        let text = peers().text();
        let wrong: [&[(u16, u16, &[u8])]; 5] = [
            &[(3, 3, &text)],
            &[(0, 3, &text[..9]), (0, 3, &text[..9])],
            &[(2, 3, b"END\r\n"), (2, 3, b"END\r\n")],
            &[(0, 2, &text)],
            &[(0, 2, &text[..9]), (1, 2, &text[9..20])],
        ];
        for datagrams in wrong {
            let mut peers = peers();
            datagrams.iter().for_each(|(sequence, count, text)| peers.reply(1, *sequence, *count, text));
            assert!(matches!(peers.receive(), Err(LoadError::Datagram(_))), "{datagrams:?}");
        }
        let mut peers = peers();
        peers.server.send(b"short").unwrap();
        assert!(matches!(peers.receive(), Err(LoadError::Datagram(_))));
    }
}
