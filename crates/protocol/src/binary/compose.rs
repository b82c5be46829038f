//! Composes requests, for clients.

use super::{BinaryCommand, BinaryOperation, BinaryRequest, HEADER_BYTES, REQUEST_MAGIC, parse::EXPTIME_NO_VIVIFY};
use crate::{Cas, StoreMode};

const EXTRAS_BYTES_MAX: usize = 20;

/// Appends `request`. The caller ensures that its opcode belongs to its command, that key and value have valid
/// lengths, and that an exptime fits into 32 bits.
///
/// ```
/// use lookaside_protocol::binary::{BinaryCommand, BinaryRequest, ResponseTag, compose_request, opcode};
/// let mut out = Vec::new();
/// let tag = ResponseTag { opcode: opcode::NOOP, opaque: 7 };
/// compose_request(&BinaryRequest { tag, command: BinaryCommand::Noop }, &mut out);
/// assert_eq!((out.len(), out[1], out[15]), (24, 0x0a, 7));
/// ```
pub fn compose_request(request: &BinaryRequest<'_>, out: &mut Vec<u8>) {
    let mut extras = Extras { bytes: [0; EXTRAS_BYTES_MAX], used: 0 };
    let (mut key, mut value, mut unique): (&[u8], &[u8], Option<Cas>) = (b"", b"", None);
    match &request.command {
        BinaryCommand::Keyed { key: of_operation, operation } => {
            key = of_operation;
            (value, unique) = compose_operation(operation, &mut extras);
        }
        BinaryCommand::FlushAll { delay_s } => extras.push_32(*delay_s as u32),
        BinaryCommand::Stats { arguments } => key = arguments,
        BinaryCommand::Authenticate { mechanism, message } | BinaryCommand::AuthenticateStep { mechanism, message } => {
            (key, value) = (mechanism, message);
        }
        BinaryCommand::Noop | BinaryCommand::Version | BinaryCommand::Quit | BinaryCommand::Mechanisms => {}
    }
    let body_bytes = extras.used + key.len() + value.len();
    out.reserve(HEADER_BYTES + body_bytes);
    out.extend_from_slice(&[REQUEST_MAGIC, request.tag.opcode]);
    out.extend_from_slice(&(key.len() as u16).to_be_bytes());
    out.extend_from_slice(&[extras.used as u8, 0, 0, 0]);
    out.extend_from_slice(&(body_bytes as u32).to_be_bytes());
    out.extend_from_slice(&request.tag.opaque.to_be_bytes());
    out.extend_from_slice(&unique.map_or(0, |Cas(cas)| cas).to_be_bytes());
    out.extend_from_slice(&extras.bytes[..extras.used]);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// Writes the extras; returns the value and the CAS unique.
fn compose_operation<'a>(operation: &BinaryOperation<'a>, extras: &mut Extras) -> (&'a [u8], Option<Cas>) {
    match *operation {
        BinaryOperation::Get { exptime, .. } => {
            if let Some(exptime) = exptime {
                extras.push_32(exptime as u32);
            }
            (b"", None)
        }
        BinaryOperation::Store { mode, flags, exptime, value } => {
            extras.push_32(flags);
            extras.push_32(exptime as u32);
            let unique = match mode {
                StoreMode::Cas(cas) => Some(cas),
                _ => None,
            };
            (value, unique)
        }
        BinaryOperation::Extend { cas, value, .. } => (value, cas),
        BinaryOperation::Delete { cas } => (b"", cas),
        BinaryOperation::Arithmetic { delta, vivify, cas, .. } => {
            extras.push_64(delta);
            extras.push_64(vivify.map_or(0, |vivify| vivify.initial));
            extras.push_32(vivify.map_or(EXPTIME_NO_VIVIFY, |vivify| vivify.exptime as u32));
            (b"", cas)
        }
    }
}

struct Extras {
    bytes: [u8; EXTRAS_BYTES_MAX],
    used: usize,
}

impl Extras {
    fn push_32(&mut self, number: u32) {
        self.push(&number.to_be_bytes());
    }

    fn push_64(&mut self, number: u64) {
        self.push(&number.to_be_bytes());
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }
}
