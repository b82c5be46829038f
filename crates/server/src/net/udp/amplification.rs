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
//! [`PROVEN_MAX`] places, found by a keyed hash; a later address takes the place of an earlier one.
//!
//! Accepted: a proven address stays so until its place is taken, also after its connections have closed; and who knows
//! a client's address can aim replies at that client, as at anyone a server talks to. What the rule ends is aiming at
//! strangers.

use crate::net::udp::REPLY_BYTES_MAX;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many addresses are remembered at most.
const PROVEN_MAX: usize = 1 << 16;

/// The rule, shared by all threads.
pub(crate) struct ReplyLimit {
    granted_bytes: usize,
    key: RandomState,
    proven: Box<[AtomicU64]>,
}

impl ReplyLimit {
    /// `granted_bytes` is what the operator allows every client.
    pub(crate) fn new(granted_bytes: usize) -> ReplyLimit {
        let proven = (0..PROVEN_MAX).map(|_| AtomicU64::new(0)).collect();
        ReplyLimit { granted_bytes, key: RandomState::new(), proven }
    }

    /// A client has connected by TCP from `address`.
    pub(crate) fn prove(&self, address: IpAddr) {
        let (place, mark) = self.place_of(address);
        self.proven[place].store(mark, Ordering::Relaxed);
    }

    /// How many bytes may go to `address` for a datagram of `request_bytes`.
    pub(crate) fn reply_bytes_max(&self, address: IpAddr, request_bytes: usize) -> usize {
        let (place, mark) = self.place_of(address);
        if self.proven[place].load(Ordering::Relaxed) == mark {
            return REPLY_BYTES_MAX;
        }
        request_bytes.max(self.granted_bytes).min(REPLY_BYTES_MAX)
    }

    /// Where an address is remembered, and as what: never 0, which is an empty place.
    fn place_of(&self, address: IpAddr) -> (usize, u64) {
        let hash = self.key.hash_one(address.to_canonical());
        (hash as usize % PROVEN_MAX, hash | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_stranger_gets_what_it_sent_and_a_proven_client_all() {
        let (limit, stranger) = (ReplyLimit::new(0), IpAddr::from([10, 0, 0, 1]));
        assert_eq!(limit.reply_bytes_max(stranger, 15), 15);
        limit.prove(IpAddr::from([10, 0, 0, 2]));
        assert_eq!(limit.reply_bytes_max(stranger, 15), 15);
        limit.prove(stranger);
        assert_eq!(limit.reply_bytes_max(stranger, 15), REPLY_BYTES_MAX);
        let mapped = IpAddr::from(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped());
        assert_eq!(limit.reply_bytes_max(mapped, 15), REPLY_BYTES_MAX, "the same host, met on an IPv6 socket");
    }

    #[test]
    fn the_operator_may_allow_more() {
        let (limit, stranger) = (ReplyLimit::new(1400), IpAddr::from([10, 0, 0, 1]));
        assert_eq!(limit.reply_bytes_max(stranger, 15), 1400);
        assert_eq!(limit.reply_bytes_max(stranger, 2000), 2000);
    }

    #[test]
    fn a_full_table_forgets_and_never_grows() {
        let limit = ReplyLimit::new(0);
        let addresses = || (0..3 * PROVEN_MAX as u32).map(|number| IpAddr::from(Ipv4Addr::from_bits(number)));
        addresses().for_each(|address| limit.prove(address));
        let proven = addresses().filter(|&address| limit.reply_bytes_max(address, 0) > 0).count();
        assert!(proven <= PROVEN_MAX && proven > PROVEN_MAX / 2, "{proven} of {PROVEN_MAX}");
    }
}
