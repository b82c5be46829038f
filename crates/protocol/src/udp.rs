//! The frame header of UDP datagrams (memcached's `protocol.txt`, "UDP protocol"; gets over UDP are §3.1 of the paper).
//!
//! ```text
//!  0          2          4          6          8
//! +----------+----------+----------+----------+---------------------------
//! | request  | sequence |  count   | reserved | text, as over TCP
//! +----------+----------+----------+----------+---------------------------
//!  big endian; sequence runs from 0 to count - 1; reserved is sent as 0 and ignored
//! ```
//!
//! A request is one datagram; memcached ignores one that claims to be a part. A reply is as many datagrams as it
//! needs, cut anywhere. Nothing is sent twice: as in the paper, a client treats a lost or out-of-order datagram as an
//! error of the whole request, and the error as a miss.
//!
//! memcached 1.6.45 sends each item of a multiget as a message of its own, all with the request's id: such a reply
//! parses as several messages, of which only the last has an `END`.
//!
//! Deliberately absent: sockets, and timeouts.

/// The length of the frame header.
pub const FRAME_HEADER_BYTES: usize = 8;

/// The longest datagram that is sent, header included, in bytes: as memcached's, it fits an Ethernet frame even with
/// tunnel headers.
pub const DATAGRAM_BYTES_MAX: usize = 1400;

/// The header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Chosen by the client, returned by the server.
    pub request_id: u16,
    /// The datagram's number in the message, from 0.
    pub sequence: u16,
    /// How many datagrams the message has.
    pub count: u16,
}

/// Why a datagram, and with it the whole message, is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Shorter than a header.
    TooShort {
        /// Its length.
        datagram_bytes: usize,
    },
    /// A sequence number that is not below the count, or a count that differs from that of the datagrams before.
    BadCount {
        /// The datagram's sequence number.
        sequence: u16,
        /// The datagram's count.
        count: u16,
    },
    /// A datagram was lost, overtaken, or came twice.
    OutOfOrder {
        /// The sequence number that was expected.
        expected: u16,
        /// The sequence number that came.
        received: u16,
    },
    /// The message is over the limit.
    MessageTooLong {
        /// The limit.
        message_bytes_max: usize,
    },
}

impl std::error::Error for FrameError {}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameError::TooShort { datagram_bytes } => {
                write!(f, "a datagram of {datagram_bytes} bytes is shorter than a frame header")
            }
            FrameError::BadCount { sequence, count } => {
                write!(f, "a datagram numbered {sequence} cannot belong to a message of {count} datagrams")
            }
            FrameError::OutOfOrder { expected, received } => {
                write!(f, "datagram {received} came instead of {expected}: one was lost or overtaken")
            }
            FrameError::MessageTooLong { message_bytes_max } => {
                write!(f, "a message is longer than {message_bytes_max} bytes")
            }
        }
    }
}

impl FrameHeader {
    /// The header of a request, which is always one datagram.
    pub fn of_request(request_id: u16) -> FrameHeader {
        FrameHeader { request_id, sequence: 0, count: 1 }
    }

    /// The bytes of the header.
    ///
    /// ```
    /// use lookaside_protocol::udp::FrameHeader;
    /// assert_eq!(FrameHeader::of_request(0x1234).to_bytes(), [0x12, 0x34, 0, 0, 0, 1, 0, 0]);
    /// ```
    pub fn to_bytes(self) -> [u8; FRAME_HEADER_BYTES] {
        let [id_high, id_low] = self.request_id.to_be_bytes();
        let [sequence_high, sequence_low] = self.sequence.to_be_bytes();
        let [count_high, count_low] = self.count.to_be_bytes();
        [id_high, id_low, sequence_high, sequence_low, count_high, count_low, 0, 0]
    }

    /// Splits a datagram into its header and its text, and checks the header.
    pub fn parse(datagram: &[u8]) -> Result<(FrameHeader, &[u8]), FrameError> {
        let too_short = FrameError::TooShort { datagram_bytes: datagram.len() };
        let (header, text) = datagram.split_first_chunk::<FRAME_HEADER_BYTES>().ok_or(too_short)?;
        let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let header = FrameHeader { request_id: number(0), sequence: number(2), count: number(4) };
        if header.sequence >= header.count {
            return Err(FrameError::BadCount { sequence: header.sequence, count: header.count });
        }
        Ok((header, text))
    }
}

/// Splits `message` into datagrams and appends them back to back. All but the last are [`DATAGRAM_BYTES_MAX`] long,
/// as the kernel's segmentation offload requires; [`datagrams`] splits them for sending one by one. An empty message
/// has no datagram. False if the message needs more than 65,535 datagrams; then nothing is appended.
#[must_use]
pub fn compose_datagrams(request_id: u16, message: &[u8], out: &mut Vec<u8>) -> bool {
    let parts = message.chunks(DATAGRAM_BYTES_MAX - FRAME_HEADER_BYTES);
    let Ok(count) = u16::try_from(parts.len()) else { return false };
    out.reserve(message.len() + usize::from(count) * FRAME_HEADER_BYTES);
    for (sequence, part) in (0..count).zip(parts) {
        out.extend_from_slice(&FrameHeader { request_id, sequence, count }.to_bytes());
        out.extend_from_slice(part);
    }
    true
}

/// The datagrams that [`compose_datagrams`] appended for one message.
pub fn datagrams(composed: &[u8]) -> impl ExactSizeIterator<Item = &[u8]> {
    composed.chunks(DATAGRAM_BYTES_MAX)
}

/// The result of adding a datagram to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reassembled {
    /// More datagrams are needed.
    Part,
    /// It was the last: the message is complete.
    Whole,
    /// The datagram belongs to another request, probably one that timed out. It was ignored.
    OtherRequest,
}

/// Assembles one message from its datagrams, which must come in order.
///
/// ```
/// use lookaside_protocol::udp::{Reassembled, Reassembly, compose_datagrams, datagrams};
/// let message = vec![b'x'; 2000];
/// let mut sent = Vec::new();
/// assert!(compose_datagrams(7, &message, &mut sent));
///
/// let (mut reassembly, mut received) = (Reassembly::new(7, 1 << 20), Vec::new());
/// let steps: Vec<_> = datagrams(&sent).map(|datagram| reassembly.push(datagram, &mut received)).collect();
/// assert_eq!(steps, [Ok(Reassembled::Part), Ok(Reassembled::Whole)]);
/// assert_eq!(received, message);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Reassembly {
    request_id: u16,
    message_bytes_max: usize,
    message_bytes: usize,
    next_sequence: u16,
    count: Option<u16>,
}

impl Reassembly {
    /// For the reply to the request `request_id`, of at most `message_bytes_max` bytes.
    pub fn new(request_id: u16, message_bytes_max: usize) -> Reassembly {
        Reassembly { request_id, message_bytes_max, message_bytes: 0, next_sequence: 0, count: None }
    }

    /// Appends a datagram's text to `message`. After an error, or the last datagram, all further calls return errors.
    pub fn push(&mut self, datagram: &[u8], message: &mut Vec<u8>) -> Result<Reassembled, FrameError> {
        let (header, text) = FrameHeader::parse(datagram)?;
        let FrameHeader { request_id, sequence, count } = header;
        if request_id != self.request_id {
            return Ok(Reassembled::OtherRequest);
        }
        if *self.count.get_or_insert(count) != count {
            return Err(FrameError::BadCount { sequence, count });
        }
        if sequence != self.next_sequence {
            return Err(FrameError::OutOfOrder { expected: self.next_sequence, received: sequence });
        }
        self.message_bytes += text.len();
        if self.message_bytes > self.message_bytes_max {
            return Err(FrameError::MessageTooLong { message_bytes_max: self.message_bytes_max });
        }
        message.extend_from_slice(text);
        self.next_sequence += 1;
        Ok(if self.next_sequence == count { Reassembled::Whole } else { Reassembled::Part })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(request_id: u16, sequence: u16, count: u16) -> Vec<u8> {
        let mut datagram = FrameHeader { request_id, sequence, count }.to_bytes().to_vec();
        datagram.push(b'a' + sequence as u8);
        datagram
    }

    fn push_all(datagrams: &[Vec<u8>]) -> (Vec<Result<Reassembled, FrameError>>, Vec<u8>) {
        let (mut reassembly, mut message) = (Reassembly::new(9, 10), Vec::new());
        (datagrams.iter().map(|datagram| reassembly.push(datagram, &mut message)).collect(), message)
    }

    #[test]
    fn header_is_four_big_endian_numbers() {
        let bytes = [0x12, 0x34, 0x01, 0x02, 0x01, 0x03, 0xff, 0xff, b'x'];
        let header = FrameHeader { request_id: 0x1234, sequence: 0x0102, count: 0x0103 };
        assert_eq!(FrameHeader::parse(&bytes), Ok((header, &b"x"[..])));
        assert_eq!(header.to_bytes(), [0x12, 0x34, 0x01, 0x02, 0x01, 0x03, 0, 0]);
        assert_eq!(FrameHeader::parse(&bytes[..7]), Err(FrameError::TooShort { datagram_bytes: 7 }));
        assert_eq!(FrameHeader::parse(&[0; 8]), Err(FrameError::BadCount { sequence: 0, count: 0 }));
    }

    #[test]
    fn datagrams_in_order_make_the_message() {
        let (steps, message) = push_all(&[datagram(9, 0, 3), datagram(8, 0, 1), datagram(9, 1, 3), datagram(9, 2, 3)]);
        let (part, whole, other) = (Ok(Reassembled::Part), Ok(Reassembled::Whole), Ok(Reassembled::OtherRequest));
        assert_eq!((steps, message), (vec![part, other, part, whole], b"abc".to_vec()));
    }

    #[test]
    fn lost_overtaken_or_doubled_datagram_is_an_error() {
        let out_of_order = |expected, received| Err(FrameError::OutOfOrder { expected, received });
        assert_eq!(push_all(&[datagram(9, 0, 3), datagram(9, 2, 3)]).0[1], out_of_order(1, 2));
        assert_eq!(push_all(&[datagram(9, 1, 3), datagram(9, 0, 3)]).0[0], out_of_order(0, 1));
        assert_eq!(push_all(&[datagram(9, 0, 3), datagram(9, 0, 3)]).0[1], out_of_order(1, 0));
        assert_eq!(push_all(&[datagram(9, 0, 1), datagram(9, 0, 1)]).0[1], out_of_order(1, 0));
    }

    #[test]
    fn changed_count_or_message_over_the_limit_is_an_error() {
        let bad_count = Err(FrameError::BadCount { sequence: 1, count: 4 });
        assert_eq!(push_all(&[datagram(9, 0, 3), datagram(9, 1, 4)]).0[1], bad_count);
        let many: Vec<_> = (0..11).map(|sequence| datagram(9, sequence, 20)).collect();
        assert_eq!(push_all(&many).0[10], Err(FrameError::MessageTooLong { message_bytes_max: 10 }));
    }

    #[test]
    fn message_has_as_few_datagrams_as_possible() {
        let text_bytes_max = DATAGRAM_BYTES_MAX - FRAME_HEADER_BYTES;
        for (message_bytes, expected) in [(0, 0), (1, 1), (text_bytes_max, 1), (text_bytes_max + 1, 2)] {
            let mut out = Vec::new();
            assert!(compose_datagrams(9, &vec![b'x'; message_bytes], &mut out));
            assert_eq!(datagrams(&out).len(), expected, "{message_bytes} bytes");
        }
        let mut out = Vec::new();
        assert!(compose_datagrams(9, &vec![b'x'; text_bytes_max * 65_535], &mut out));
        out.clear();
        assert!(!compose_datagrams(9, &vec![b'x'; text_bytes_max * 65_535 + 1], &mut out));
        assert!(out.is_empty());
    }
}
