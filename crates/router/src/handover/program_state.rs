//! What a router hands over in `Quiesced`, besides its clients and its spool:
//!
//! ```text
//!   digest of the covered configurations on disk (16 bytes) | state of the start gate, to the end
//! ```

use crate::resize::store::CoverageDigest;

pub(crate) struct ProgramState {
    pub(crate) coverage: CoverageDigest,
    /// As [`crate::start_gate::StartGate::to_saved`] writes it; empty if there is no gate, or it is open.
    pub(crate) start_gate: Vec<u8>,
}

impl ProgramState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [&self.coverage.0[..], &self.start_gate].concat()
    }

    /// `None` if it is too short.
    pub(crate) fn decode(bytes: &[u8]) -> Option<ProgramState> {
        let (digest, start_gate) = bytes.split_first_chunk::<{ CoverageDigest::BYTES }>()?;
        Some(ProgramState { coverage: CoverageDigest(*digest), start_gate: start_gate.to_vec() })
    }
}
