//! Meta commands against the store.

use crate::Service;
use lookaside_protocol::meta::MetaOperation;
use lookaside_store::{HashedKey, Now};

/// Carries out one meta command.
pub(crate) fn execute(
    service: &Service<'_>,
    operation: &MetaOperation<&[u8]>,
    key: HashedKey<'_>,
    now: Now,
    out: &mut Vec<u8>,
) {
    let _ = (service, operation, key, now);
    crate::render::line(b"ERROR", out);
}
