//! Leases (§3.2.1 of the paper) as an application sees them: what a lookup brought, and whether the caller is the one
//! to fill the miss.

use bytes::Bytes;
use lookaside_protocol::LeaseToken;

/// Whose turn it is to fill a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// The caller's: load the value and fill with this token.
    Held(LeaseToken),
    /// Another client's: wait a little and ask again.
    HotMiss,
    /// Nobody's: what answered knows no leases. Load the value, do not fill.
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

/// What a lookup of one key brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// A live value.
    Hit {
        /// The value.
        value: Bytes,
        /// As the value was stored with.
        flags: u32,
    },
    /// A value that was deleted a short while ago: older than the database.
    Stale {
        /// The old value.
        value: Bytes,
        /// As the old value was stored with.
        flags: u32,
        /// Whose turn it is to fill.
        lease: Lease,
    },
    /// Nothing there.
    Miss {
        /// Whose turn it is to fill.
        lease: Lease,
    },
}
