//! Leases (§3.2.1 of the paper) as an application sees them: the result of a lookup, and which client fills a miss.

use super::error::{ClientError, unexpected};
use bytes::Bytes;
use lookaside_protocol::{LeaseToken, Reply};
use lookaside_routing::Outcome;

/// Smaller values are copied, so that they do not keep their block of [`crate::READ_BYTES`] in memory.
const SLICE_BYTES_MIN: usize = crate::READ_BYTES / 8;

/// Which client fills a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// The caller: load the value and fill with this token.
    Held(LeaseToken),
    /// Another client: wait a little and look up again.
    HotMiss,
    /// None: the server knows no leases. Load the value, do not fill.
    Unsupported,
}

impl From<LeaseToken> for Lease {
    fn from(token: LeaseToken) -> Lease {
        if token.is_held() {
            Lease::Held(token)
        } else if token == LeaseToken::HOT_MISS {
            Lease::HotMiss
        } else {
            Lease::Unsupported
        }
    }
}

/// The result of looking up one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// A live value.
    Hit {
        /// The value.
        value: Bytes,
        /// The flags that the value was stored with.
        flags: u32,
    },
    /// No live value, but one that was deleted a short while ago: older than the database.
    Stale {
        /// The old value.
        value: Bytes,
        /// The flags that the old value was stored with.
        flags: u32,
        /// Which client fills the miss.
        lease: Lease,
    },
    /// No value.
    Miss {
        /// Which client fills the miss.
        lease: Lease,
    },
}

/// The lookup that a lease-get has answered.
pub(super) fn to_lookup(outcome: Outcome) -> Result<Lookup, ClientError> {
    match outcome {
        Ok(Reply::Value { flags, value, .. }) => Ok(Lookup::Hit { value: copy_if_small(value), flags }),
        Ok(Reply::Lease { token, flags, stale: Some(stale) }) => {
            Ok(Lookup::Stale { value: copy_if_small(stale), flags, lease: Lease::from(token) })
        }
        Ok(Reply::Lease { token, stale: None, .. }) => Ok(Lookup::Miss { lease: Lease::from(token) }),
        Ok(Reply::Miss) => Ok(Lookup::Miss { lease: Lease::Unsupported }),
        other => Err(unexpected("lease-get", other)),
    }
}

fn copy_if_small(value: Bytes) -> Bytes {
    if value.len() < SLICE_BYTES_MIN { Bytes::copy_from_slice(&value) } else { value }
}
