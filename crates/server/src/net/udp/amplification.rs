//! How large a reply by UDP may be. Serves a get by UDP (§3.1 of the paper), and everyone it could be turned against.
//!
//! A source address is written by whoever sends a datagram. A server that answers 15 bytes with a megabyte makes an
//! attacker's stream a hundred thousand times as wide, aimed at an address of his choice. So:
//!
//! | client | a reply is at most |
//! |---|---|
//! | any | as large as its request, datagram headers counted; or what `--udp-reply-limit` allows, if that is more |
//! | has connected by TCP from the same address | [`REPLY_BYTES_MAX`] |
//!
//! A TCP handshake is the proof: only who receives at an address can finish one. The table of proven addresses has
//! [`VALIDATED_MAX`] places, found by a keyed hash; a later address takes the place of an earlier one.
//!
//! Accepted: a proven address stays so until its place is taken, also after its connections have closed; and who knows
//! a client's address can aim replies at that client, as at anyone a server talks to. What the rule ends is aiming at
//! strangers.

use crate::net::udp::REPLY_BYTES_MAX;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many addresses are remembered at most.
const VALIDATED_MAX: usize = 1 << 16;

/// The rule, shared by all threads.
pub(crate) struct AmplificationLimit {
    granted_bytes: usize,
    key: RandomState,
    validated: Box<[AtomicU64]>,
}

impl AmplificationLimit {
    /// `granted_bytes` is what the operator allows every client.
    pub(crate) fn new(granted_bytes: usize) -> AmplificationLimit {
        let validated = (0..VALIDATED_MAX).map(|_| AtomicU64::new(0)).collect();
        AmplificationLimit { granted_bytes, key: RandomState::new(), validated }
    }

    /// A client has connected by TCP from `address`.
    pub(crate) fn mark_validated(&self, address: IpAddr) {
        let (slot, tag) = self.slot_of(address);
        self.validated[slot].store(tag, Ordering::Relaxed);
    }

    /// How many bytes may go to `address` for a datagram of `request_bytes`.
    pub(crate) fn reply_bytes_max(&self, address: IpAddr, request_bytes: usize) -> usize {
        let (slot, tag) = self.slot_of(address);
        if self.validated[slot].load(Ordering::Relaxed) == tag {
            return REPLY_BYTES_MAX;
        }
        request_bytes.max(self.granted_bytes).min(REPLY_BYTES_MAX)
    }

    /// Where an address is remembered, and as what: never 0, which is an empty place.
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
    fn a_stranger_gets_what_it_sent_and_a_proven_client_all() {
        let (limit, unvalidated) = (AmplificationLimit::new(0), IpAddr::from([10, 0, 0, 1]));
        assert_eq!(limit.reply_bytes_max(unvalidated, 15), 15);
        limit.mark_validated(IpAddr::from([10, 0, 0, 2]));
        assert_eq!(limit.reply_bytes_max(unvalidated, 15), 15);
        limit.mark_validated(unvalidated);
        assert_eq!(limit.reply_bytes_max(unvalidated, 15), REPLY_BYTES_MAX);
        let mapped = IpAddr::from(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped());
        assert_eq!(limit.reply_bytes_max(mapped, 15), REPLY_BYTES_MAX, "the same host, met on an IPv6 socket");
    }

    #[test]
    fn the_operator_may_allow_more() {
        let (limit, unvalidated) = (AmplificationLimit::new(1400), IpAddr::from([10, 0, 0, 1]));
        assert_eq!(limit.reply_bytes_max(unvalidated, 15), 1400);
        assert_eq!(limit.reply_bytes_max(unvalidated, 2000), 2000);
    }

    #[test]
    fn a_full_table_forgets_and_never_grows() {
        let limit = AmplificationLimit::new(0);
        let addresses = || (0..3 * VALIDATED_MAX as u32).map(|number| IpAddr::from(Ipv4Addr::from_bits(number)));
        addresses().for_each(|address| limit.mark_validated(address));
        let validated = addresses().filter(|&address| limit.reply_bytes_max(address, 0) > 0).count();
        assert!(validated <= VALIDATED_MAX && validated > VALIDATED_MAX / 2, "{validated} of {VALIDATED_MAX}");
    }
}
