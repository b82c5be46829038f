//! The programs that can take over from each other, and how one announces itself (`Hello`).

use super::channel::ChannelError;

/// The longest message to the running process, in bytes.
pub(super) const REQUEST_BYTES_MAX: usize = 64;

/// The processes that can take over from each other.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The name, which is part of `Hello`.
    pub name: &'static str,
    /// Must be increased when the messages, their meaning or their order change. Processes with different formats
    /// refuse each other.
    pub format: u32,
}

impl Program {
    pub(super) fn hello_payload(&self) -> Vec<u8> {
        [self.name.as_bytes(), b" upgrade ", &self.format.to_le_bytes()].concat()
    }

    pub(super) fn check_hello(&self, payload: &[u8]) -> Result<(), ChannelError> {
        let own = self.hello_payload();
        let (name, format) = own.split_at(own.len() - size_of::<u32>());
        match payload.strip_prefix(name) {
            None => Err(ChannelError::Malformed("its Hello is for another program")),
            Some(theirs) if theirs == format => Ok(()),
            Some(_) => Err(ChannelError::Malformed("the builds have different handover formats; restart instead")),
        }
    }
}
