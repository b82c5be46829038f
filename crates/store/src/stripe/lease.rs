//! Leases (§3.2.1 of the paper): one client may fill a miss, the others wait.
//!
//! * A token holds from the lease-get that issues it until it is used, until a delete or another store of the key voids
//!   it, or until the next token of the key is issued. Time alone does not void it. When a server gets no more deletes
//!   for some of its keys, `lease-void-all` does (`docs/adr/012-resize.md`).
//! * While a token holds, no other client gets one before the interval is over. A token that is void or used up delays
//!   no client, unless `lease_interval_outlasts_delete` is set (`docs/deviations/001-lease-after-delete.md`).
//! * Tokens are a bijection of a counter: never repeated in a store's life, hard to hit by accident in another's.
//!
//! ```text
//! set of the table:  [ hash | token | issued ] x 4         token 0: void, but the interval is still counted
//! ```
//! The table has a fixed size. A new lease displaces the oldest one of a full set. That is safe: the displaced token is
//! void, and the next reader gets another.
//!
//! Keys are not stored: two with one 64-bit hash share a lease, and at worst a fill is refused.

use crate::Now;
use lookaside_protocol::LeaseToken;

const WAYS: usize = 4;
const VOID: u64 = 0;

#[derive(Clone, Copy, Default)]
struct Lease {
    /// 0: no lease.
    hash: u64,
    token: u64,
    issued_ms: u64,
}

/// The leases of one stripe.
pub(crate) struct LeaseTable {
    sets: Vec<[Lease; WAYS]>,
    tokens: TokenSource,
    interval_ms: u64,
    interval_outlasts_token: bool,
    /// Leases in the table. While there is none, a store or a delete does not read the table, which is rarely in the
    /// processor's cache.
    count: usize,
    /// Leases displaced while their token held.
    pub displaced: u64,
}

impl LeaseTable {
    /// A table of at most `table_bytes`.
    pub fn new(table_bytes: usize, tokens: TokenSource, interval_ms: u32, interval_outlasts_token: bool) -> LeaseTable {
        let sets = (table_bytes / size_of::<[Lease; WAYS]>()).max(1);
        LeaseTable {
            sets: vec![Default::default(); 1 << sets.ilog2()],
            tokens,
            interval_ms: interval_ms.into(),
            interval_outlasts_token,
            count: 0,
            displaced: 0,
        }
    }

    /// The memory that it uses.
    pub fn bytes(&self) -> usize {
        self.sets.len() * size_of::<[Lease; WAYS]>()
    }

    /// A token to fill the key's miss; `None` until the interval of the last token is over.
    pub fn acquire(&mut self, hash: u64, now: Now) -> Option<LeaseToken> {
        let interval_ms = self.interval_ms;
        let index = match self.find(hash) {
            Some(lease) if now.unix_ms.saturating_sub(lease.issued_ms) < interval_ms => return None,
            _ => self.set_index(hash),
        };
        let token = self.tokens.next();
        let set = &mut self.sets[index];
        let way = match set.iter().position(|lease| lease.hash == lease_id(hash)) {
            Some(way) => way,
            // Unused ones come first, since they were never issued.
            None => (0..WAYS).min_by_key(|&way| set[way].issued_ms).expect("a set has ways"),
        };
        let old = set[way];
        if old.hash != 0 && old.hash != lease_id(hash) && old.token != VOID {
            self.displaced += 1;
        }
        self.count += usize::from(old.hash == 0);
        set[way] = Lease { hash: lease_id(hash), token: token.0, issued_ms: now.unix_ms };
        Some(token)
    }

    /// Whether `token` may still fill the key.
    pub fn holds(&mut self, hash: u64, token: LeaseToken) -> bool {
        token.is_held() && self.find(hash).is_some_and(|lease| lease.token == token.0)
    }

    /// Ends the lease as if it had not been issued, if `token` still holds.
    pub fn release(&mut self, hash: u64, token: LeaseToken) {
        if self.holds(hash, token)
            && let Some(lease) = self.find(hash)
        {
            *lease = Lease::default();
            self.count -= 1;
        }
    }

    /// Ends the key's lease: it is used up, or a delete or a store came between.
    pub fn void(&mut self, hash: u64) {
        let interval_outlasts_token = self.interval_outlasts_token;
        let Some(lease) = self.find(hash) else { return };
        if interval_outlasts_token {
            lease.token = VOID;
        } else {
            *lease = Lease::default();
            self.count -= 1;
        }
    }

    /// Ends every lease.
    pub fn clear(&mut self) {
        self.sets.fill(Default::default());
        self.count = 0;
    }

    fn find(&mut self, hash: u64) -> Option<&mut Lease> {
        if self.count == 0 {
            return None;
        }
        let index = self.set_index(hash);
        self.sets[index].iter_mut().find(|lease| lease.hash == lease_id(hash))
    }

    fn set_index(&self, hash: u64) -> usize {
        // The low bits choose the stripe, which all keys of this table share.
        (hash >> 24) as usize & (self.sets.len() - 1)
    }
}

fn lease_id(hash: u64) -> u64 {
    hash.max(1)
}

/// A sequence of distinct tokens that looks random.
pub(crate) struct TokenSource {
    position: u64,
    step: u64,
}

impl TokenSource {
    /// The sequence of one of the stripes of a store with this seed; no two stripes share a token.
    pub fn new(seed: u64, stripe: usize, stripes: usize) -> TokenSource {
        TokenSource { position: mix(seed).wrapping_add(stripe as u64), step: stripes as u64 }
    }

    fn next(&mut self) -> LeaseToken {
        loop {
            let token = LeaseToken(mix(self.position));
            self.position = self.position.wrapping_add(self.step);
            if token.is_held() {
                return token;
            }
        }
    }
}

/// A bijection of 64 bits: the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators, 2014).
fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If it were lower, a token would hold beyond a delete.
    #[test]
    fn the_count_is_that_of_the_leases_in_the_table() {
        for outlasts in [false, true] {
            // One set, so that leases displace others.
            let mut table = LeaseTable::new(1, TokenSource::new(7, 0, 1), 10, outlasts);
            let mut issued = Vec::new();
            for step in 0..10_000u64 {
                let (hash, now) = (mix(step) % 7, Now { unix_ms: step });
                match mix(step + 10_000) % 8 {
                    0..4 => issued.extend(table.acquire(hash, now).map(|token| (hash, token))),
                    4..6 => {
                        table.void(hash);
                        assert!(
                            issued
                                .iter()
                                .all(|&(other, token)| lease_id(other) != lease_id(hash) || !table.holds(other, token))
                        );
                    }
                    6 => {
                        issued.pop().into_iter().for_each(|(hash, token)| table.release(hash, token));
                    }
                    _ if step % 50 == 0 => table.clear(),
                    _ => {}
                }
                let counted = table.sets.iter().flatten().filter(|lease| lease.hash != 0).count();
                assert_eq!(table.count, counted, "step {step}");
            }
            assert!(table.displaced > 0 || outlasts);
        }
    }
}
