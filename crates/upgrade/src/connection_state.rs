//! The state of a client's connection that is handed over, beside its descriptor.
//!
//! ```text
//!   | protocol 1 | authentication 1 | flags 1 | swallow 8 | needed 8 | input bytes 4 | input | output |    little-endian
//! ```
//!
//! `input` is an incomplete command, or commands that wait for space in the socket. `output` is the part of replies
//! that the socket has not accepted. A connection between two requests, which nearly all are, has neither.

/// A connection's state, without its socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionState {
    /// The state of its session.
    pub session: SavedSession,
    /// Input that has not been executed.
    pub input: Vec<u8>,
    /// With fewer bytes of input there is no complete command.
    pub input_needed_bytes: usize,
    /// Output that has not been sent.
    pub output: Vec<u8>,
    /// Whether it is not read until its output has been sent.
    pub is_paused: bool,
    /// Whether it is closed when its output has been sent.
    pub is_closing: bool,
}

/// The state of a session. The numbers are the format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedSession {
    /// 0: nothing received yet; 1: text; 2: binary.
    pub protocol: u8,
    /// 0: unauthenticated; 1: authenticating; 2: authenticated.
    pub authentication: u8,
    /// Bytes of input to discard: the rest of a refused value.
    pub swallow_bytes: usize,
    /// Whether its client may still store values for misses that the next process does not know.
    pub has_misses: bool,
}

/// The most bytes of input and output. A connection with more is closed instead of being handed over.
pub const CONNECTION_STATE_BYTES_MAX: usize = 4 << 20;

pub(crate) const HEAD_BYTES: usize = 23;
const PAUSED: u8 = 1;
const CLOSING: u8 = 2;
const MISSES: u8 = 4;

impl ConnectionState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let ConnectionState { session, input, input_needed_bytes, output, is_paused, is_closing } = self;
        let mut encoded = Vec::with_capacity(HEAD_BYTES + input.len() + output.len());
        let flags = (u8::from(*is_paused) * PAUSED)
            | (u8::from(*is_closing) * CLOSING)
            | (u8::from(session.has_misses) * MISSES);
        encoded.extend([session.protocol, session.authentication, flags]);
        encoded.extend((session.swallow_bytes as u64).to_le_bytes());
        encoded.extend((*input_needed_bytes as u64).to_le_bytes());
        encoded.extend((input.len() as u32).to_le_bytes());
        encoded.extend_from_slice(input);
        encoded.extend_from_slice(output);
        encoded
    }

    /// `None` if it is malformed.
    pub(crate) fn decode(encoded: &[u8]) -> Option<ConnectionState> {
        let (head, bytes) = encoded.split_at_checked(HEAD_BYTES)?;
        let (&[protocol, authentication, flags], sizes) = head.split_first_chunk()?;
        let (swallow, sizes) = sizes.split_first_chunk()?;
        let (needed, sizes) = sizes.split_first_chunk()?;
        let (input_bytes, _) = sizes.split_first_chunk()?;
        let (input, output) = bytes.split_at_checked(u32::from_le_bytes(*input_bytes) as usize)?;
        let is_known = protocol <= 2 && authentication <= 2 && flags <= PAUSED | CLOSING | MISSES;
        let swallow_bytes = usize::try_from(u64::from_le_bytes(*swallow)).ok()?;
        is_known.then_some(ConnectionState {
            session: SavedSession { protocol, authentication, swallow_bytes, has_misses: flags & MISSES != 0 },
            input: input.to_vec(),
            input_needed_bytes: usize::try_from(u64::from_le_bytes(*needed)).ok()?,
            output: output.to_vec(),
            is_paused: flags & PAUSED != 0,
            is_closing: flags & CLOSING != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_reverses_encoding_and_refuses_everything_else() {
        let idle = ConnectionState::default();
        let busy = ConnectionState {
            session: SavedSession { protocol: 2, authentication: 1, swallow_bytes: 1 << 33, has_misses: true },
            input: b"set a 0 0 1000\r\nabc".to_vec(),
            input_needed_bytes: 1018,
            output: b"STORED\r\n".to_vec(),
            is_paused: true,
            is_closing: true,
        };
        for connection_state in [idle, busy] {
            let encoded = connection_state.encode();
            assert_eq!(ConnectionState::decode(&encoded), Some(connection_state.clone()));
            assert_eq!(ConnectionState::decode(&encoded[..HEAD_BYTES - 1]), None);
            for (index, value) in [(0, 3), (1, 3), (2, 8)] {
                let mut corrupt = encoded.clone();
                corrupt[index] = value;
                assert_eq!(ConnectionState::decode(&corrupt), None);
            }
            let mut corrupt = encoded;
            corrupt[HEAD_BYTES - 2] = 1;
            assert_eq!(ConnectionState::decode(&corrupt), None, "more input than bytes");
        }
    }
}
