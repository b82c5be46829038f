//! Limits the size of UDP replies, so that the server cannot be used to amplify an attack (§3.1 of the paper: gets by
//! UDP).
//!
//! UDP source addresses can be forged. A server that answers 15 bytes with a megabyte would multiply an attacker's
//! traffic a hundred thousand times, and send it to an address of the attacker's choice. So:
//!
//! | client | a reply is at most |
//! |---|---|
//! | any | as large as its request, datagram headers included; or what `--udp-reply-limit` allows, if that is more |
//! | has connected by TCP from the same address | [`UDP_REPLY_BYTES_MAX`] |
//!
//! A TCP handshake validates an address: only a host that receives at the address can finish one. The table of
//! validated addresses has [`VALIDATED_MAX`] slots, found by a keyed hash; a later address replaces an earlier one.
//!
//! Accepted: an address stays validated until its slot is reused, even after its connections have closed; and an
//! attacker that knows a client's address can aim replies at that client. The limit protects hosts that are not
//! clients.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest reply by UDP, in bytes. More would overrun the receiver's socket buffer anyway.
pub const UDP_REPLY_BYTES_MAX: usize = 128 << 10;

/// The table holds at most this many validated addresses.
const VALIDATED_MAX: usize = 1 << 16;

/// The limit, shared by all threads.
pub(crate) struct AmplificationLimit {
    granted_bytes: usize,
    key: RandomState,
    validated: Box<[AtomicU64]>,
}

impl AmplificationLimit {
    /// `granted_bytes` is what the operator allows to every client.
    pub(crate) fn new(granted_bytes: usize) -> AmplificationLimit {
        let validated = (0..VALIDATED_MAX).map(|_| AtomicU64::new(0)).collect();
        AmplificationLimit { granted_bytes, key: RandomState::new(), validated }
    }

    /// Marks `address` as validated: a client has connected from it by TCP.
    pub(crate) fn mark_validated(&self, address: IpAddr) {
        let (slot, tag) = self.slot_of(address);
        self.validated[slot].store(tag, Ordering::Relaxed);
    }

    /// The maximum reply to `address` for a datagram of `request_bytes`.
    pub(crate) fn reply_bytes_max(&self, address: IpAddr, request_bytes: usize) -> usize {
        let (slot, tag) = self.slot_of(address);
        if self.validated[slot].load(Ordering::Relaxed) == tag {
            return UDP_REPLY_BYTES_MAX;
        }
        request_bytes.max(self.granted_bytes).min(UDP_REPLY_BYTES_MAX)
    }

    /// The slot of an address, and the value that marks it there: never 0, which is an empty slot.
    fn slot_of(&self, address: IpAddr) -> (usize, u64) {
        let hash = self.key.hash_one(address.to_canonical());
        (hash as usize % VALIDATED_MAX, hash | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn an_unvalidated_client_gets_as_much_as_it_sent_and_a_validated_one_all() {
        let (limit, unvalidated) = (AmplificationLimit::new(0), IpAddr::from([10, 0, 0, 1]));
        assert_eq!(limit.reply_bytes_max(unvalidated, 15), 15);
        limit.mark_validated(IpAddr::from([10, 0, 0, 2]));
        assert_eq!(limit.reply_bytes_max(unvalidated, 15), 15);
        limit.mark_validated(unvalidated);
        assert_eq!(limit.reply_bytes_max(unvalidated, 15), UDP_REPLY_BYTES_MAX);
        let mapped = IpAddr::from(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped());
        assert_eq!(limit.reply_bytes_max(mapped, 15), UDP_REPLY_BYTES_MAX, "the same host on an IPv6 socket");
    }

    #[test]
    fn the_operator_can_allow_more() {
        let (limit, unvalidated) = (AmplificationLimit::new(1400), IpAddr::from([10, 0, 0, 1]));
        assert_eq!(limit.reply_bytes_max(unvalidated, 15), 1400);
        assert_eq!(limit.reply_bytes_max(unvalidated, 2000), 2000);
    }

    #[test]
    fn a_full_table_replaces_addresses_and_never_grows() {
        let limit = AmplificationLimit::new(0);
        let addresses = || (0..3 * VALIDATED_MAX as u32).map(|number| IpAddr::from(Ipv4Addr::from_bits(number)));
        addresses().for_each(|address| limit.mark_validated(address));
        let validated = addresses().filter(|&address| limit.reply_bytes_max(address, 0) > 0).count();
        assert!(validated <= VALIDATED_MAX && validated > VALIDATED_MAX / 2, "{validated} of {VALIDATED_MAX}");
    }
}
