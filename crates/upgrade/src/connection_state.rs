//! What is told of a client's connection to the process that goes on with it, beside its descriptor.
//!
//! ```text
//!   | dialect 1 | authentication 1 | flags 1 | swallow 8 | needed 8 | input bytes 4 | input | output |    little-endian
//! ```
//!
//! `input` is the part of a command that has come so far, or commands that wait for room in the socket; `output` is what
//! the socket has not taken of replies. A connection between two requests, which is nearly every one, has neither.

/// A connection's state, without its socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionState {
    /// What its session remembers.
    pub session: SavedSession,
    /// What has come and was not carried out.
    pub input: Vec<u8>,
    /// Below that many bytes of input there is nothing to carry out.
    pub input_needed_bytes: usize,
    /// What is left of its replies.
    pub output: Vec<u8>,
    /// It is not read from until its output is gone.
    pub is_paused: bool,
    /// It is closed then.
    pub is_closing: bool,
}

/// What a session remembers. The numbers are the format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedSession {
    /// 0: it has not spoken yet; 1: text; 2: binary.
    pub dialect: u8,
    /// 0: it is nobody; 1: it has begun to say who it is; 2: it has.
    pub authentication: u8,
    /// How many bytes to pass over as they come: of a value that was refused.
    pub swallow_bytes: usize,
}

/// A connection that keeps more than this is not handed over but closed, in bytes.
pub const CONNECTION_STATE_BYTES_MAX: usize = 4 << 20;

pub(crate) const HEAD_BYTES: usize = 23;
const PAUSED: u8 = 1;
const CLOSING: u8 = 2;

impl ConnectionState {
    /// As bytes.
    pub fn pack(&self) -> Vec<u8> {
        let ConnectionState { session, input, input_needed_bytes, output, is_paused, is_closing } = self;
        let mut packed = Vec::with_capacity(HEAD_BYTES + input.len() + output.len());
        let flags = (u8::from(*is_paused) * PAUSED) | (u8::from(*is_closing) * CLOSING);
        packed.extend([session.dialect, session.authentication, flags]);
        packed.extend((session.swallow_bytes as u64).to_le_bytes());
        packed.extend((*input_needed_bytes as u64).to_le_bytes());
        packed.extend((input.len() as u32).to_le_bytes());
        packed.extend_from_slice(input);
        packed.extend_from_slice(output);
        packed
    }

    /// From bytes; `None` for what nobody has packed.
    pub fn unpack(packed: &[u8]) -> Option<ConnectionState> {
        let (head, bytes) = packed.split_at_checked(HEAD_BYTES)?;
        let (&[dialect, authentication, flags], sizes) = head.split_first_chunk()?;
        let (swallow, sizes) = sizes.split_first_chunk()?;
        let (needed, sizes) = sizes.split_first_chunk()?;
        let (input_bytes, _) = sizes.split_first_chunk()?;
        let (input, output) = bytes.split_at_checked(u32::from_le_bytes(*input_bytes) as usize)?;
        let is_known = dialect <= 2 && authentication <= 2 && flags <= PAUSED | CLOSING;
        let swallow_bytes = usize::try_from(u64::from_le_bytes(*swallow)).ok()?;
        is_known.then_some(ConnectionState {
            session: SavedSession { dialect, authentication, swallow_bytes },
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
    fn what_was_packed_is_unpacked_and_nothing_else() {
        let idle = ConnectionState::default();
        let busy = ConnectionState {
            session: SavedSession { dialect: 2, authentication: 1, swallow_bytes: 1 << 33 },
            input: b"set a 0 0 1000\r\nabc".to_vec(),
            input_needed_bytes: 1018,
            output: b"STORED\r\n".to_vec(),
            is_paused: true,
            is_closing: true,
        };
        for connection_state in [idle, busy] {
            let packed = connection_state.pack();
            assert_eq!(ConnectionState::unpack(&packed), Some(connection_state.clone()));
            assert_eq!(ConnectionState::unpack(&packed[..HEAD_BYTES - 1]), None);
            for (place, value) in [(0, 3), (1, 3), (2, 4)] {
                let mut broken = packed.clone();
                broken[place] = value;
                assert_eq!(ConnectionState::unpack(&broken), None);
            }
            let mut broken = packed;
            broken[HEAD_BYTES - 2] = 1;
            assert_eq!(ConnectionState::unpack(&broken), None, "more input than there is");
        }
    }
}
