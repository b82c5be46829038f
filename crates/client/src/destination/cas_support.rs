//! Whether a server that is sent the text protocol knows `ms`, too: only its reply carries the CAS unique of a store.
//! Serves stores of clients of the binary protocol.
//!
//! ```text
//!   set, its CAS unique requested   waits
//!   version\r\n                     VERSION 1.6.45\r\n
//!                                   ms k 5 F0 T0 c\r\nvalue\r\n      HD c42
//! ```
//!
//! The first such store of a connection waits for the reply to `version`. It is not tried out: a server that does not
//! know the command line executes the value behind it as commands. Such a server is sent the classic command, and its
//! reply has no CAS unique.

use lookaside_protocol::Operation;
use lookaside_routing::Protocol;

/// The command that asks a server what it is.
pub(super) const ASK_VERSION: &[u8] = b"version\r\n";

/// The first memcached with the present form of `ms`: before, the value's length was a flag.
const MEMCACHED_MIN: [u32; 3] = [1, 6, 10];

/// What is known of a connection's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CasSupport {
    Unknown,
    /// The reply is outstanding.
    Asked,
    Known {
        has_meta_set: bool,
    },
}

impl CasSupport {
    /// Of a server that is configured to use `protocol`.
    pub(super) fn of_protocol(protocol: Protocol) -> CasSupport {
        match protocol {
            Protocol::Meta => CasSupport::Known { has_meta_set: true },
            Protocol::Text => CasSupport::Unknown,
        }
    }

    /// Of a server of this version.
    pub(super) fn of_version(version: &[u8]) -> CasSupport {
        CasSupport::Known { has_meta_set: version.starts_with(b"lookaside") || is_memcached_with_meta_set(version) }
    }

    pub(super) fn is_known(self) -> bool {
        matches!(self, CasSupport::Known { .. })
    }

    /// Whether the operation is to be sent as `ms` although the server is sent the text protocol.
    pub(super) fn needs_meta_set<B>(self, operation: &Operation<B>) -> bool {
        self == CasSupport::Known { has_meta_set: true } && requests_cas(operation)
    }
}

/// Whether the operation is a store whose reply should carry its CAS unique.
pub(super) fn requests_cas<B>(operation: &Operation<B>) -> bool {
    matches!(operation, Operation::Store { cas: true, .. })
}

/// A version like `1.6.45`, or one with more behind it.
fn is_memcached_with_meta_set(version: &[u8]) -> bool {
    let mut parts = version.splitn(3, |&byte| byte == b'.');
    let mut next_number = || -> Option<u32> {
        let part = parts.next()?;
        let digits = part.iter().take_while(|byte| byte.is_ascii_digit()).count();
        str::from_utf8(&part[..digits]).ok()?.parse().ok()
    };
    let number = [next_number(), next_number(), next_number()];
    match number {
        [Some(major), Some(minor), Some(patch)] => [major, minor, patch] >= MEMCACHED_MIN,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_the_command() {
        for known in ["1.6.10", "1.6.45", "1.6.45-lookaside-0.1.0", "1.7.0", "2.0.0", "lookaside-router 0.1.0"] {
            assert!(CasSupport::of_version(known.as_bytes()) == CasSupport::Known { has_meta_set: true }, "{known}");
        }
        for old in
            ["1.4.39", "1.5.22", "1.6.9", "1.6.9_beta", "0.5.0", "mcrouter 1.0", "1.6", "", "x.y.z", "99999999999.1.1"]
        {
            assert!(CasSupport::of_version(old.as_bytes()) == CasSupport::Known { has_meta_set: false }, "{old}");
        }
    }
}
