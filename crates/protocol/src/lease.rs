//! Lease tokens on the wire (§3.2.1 of the paper).
//!
//! ```text
//! lease-get <key>*\r\n                     VALUE <key> <flags> <bytes>\r\n<data>\r\n ... END\r\n        a hit
//!                                          LVALUE <key> <token> <flags> <bytes>\r\n<stale>\r\n ... END\r\n
//! lease-set <key> <token> <flags> <exptime> <bytes> [noreply]\r\n<data>\r\n
//!                                          STORED\r\n | STALE_STORED\r\n | NOT_STORED\r\n
//! ```
//!
//! An `LVALUE` of 0 bytes has no stale value. An empty one cannot be distinguished from none: its reader loads from the
//! database.

/// A 64-bit token bound to a key: its holder may fill the miss that it was issued for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseToken(pub u64);

impl LeaseToken {
    /// Not a token: another client holds the lease. Wait a little and retry.
    pub const HOT_MISS: LeaseToken = LeaseToken(1);

    /// Whether this token allows a `lease-set`.
    pub fn is_held(self) -> bool {
        self.0 > 1
    }
}
