//! Rendezvous hashing (highest random weight): the server with the highest score for the key.
//!
//! | name | score |
//! |---|---|
//! | Rendezvous | the mixed sum of a hash of the server's tag and one of the key |
//! | WeightedRendezvous | the same as a number u between 0 and 1, and -weight / ln u |
//! | pymemcache | MurmurHash3 (32 bits) of `host:port-key`; of equals the name that comes last |
//!
//! Cost: each pick looks at every server, so these are for pools of dozens. The first two follow mcrouter's idea but
//! not its bits, which are not described anywhere: a pool that moves in with them starts cold.
//!
//! Without `tags` a server's tag is its address: to change it, or a tag, is to move its keys.

use super::ch3::murmur64a;
use std::cmp::Reverse;

/// Servers by the hashes of their tags, optionally weighted.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    tags: Box<[u64]>,
    /// Empty if all servers have the same weight.
    weights: Box<[f64]>,
}

impl Rendezvous {
    pub(crate) fn new(names: &[String], weights: &[f64]) -> Self {
        Rendezvous { tags: names.iter().map(|name| murmur64a(name.as_bytes())).collect(), weights: weights.into() }
    }

    pub(crate) fn pick(&self, key: &[u8]) -> u32 {
        let key = murmur64a(key);
        let scores = self.tags.iter().map(|tag| mix(tag.wrapping_add(key))).enumerate();
        let highest = match self.weights.is_empty() {
            true => scores.max_by_key(|&(at, score)| (score, Reverse(at))),
            false => {
                let weighted = |(at, score): &(usize, u64)| weigh(*score, self.weights[*at]);
                scores.max_by(|one, other| weighted(one).total_cmp(&weighted(other)).then(other.0.cmp(&one.0)))
            }
        };
        highest.map_or(0, |(at, _)| at as u32)
    }

    /// Sorts `order`, a list of servers, by score, the highest first.
    pub(crate) fn order(&self, key: &[u8], order: &mut [u32]) {
        let key = murmur64a(key);
        order.sort_by_cached_key(|&at| (Reverse(mix(self.tags[at as usize].wrapping_add(key))), at));
    }
}

/// The last steps of SplitMix64: every bit of the sum affects every bit of the score.
fn mix(sum: u64) -> u64 {
    let sum = (sum ^ sum >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let sum = (sum ^ sum >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    sum ^ sum >> 31
}

fn weigh(score: u64, weight: f64) -> f64 {
    // The upper 53 bits and a half: never 0 and never 1.
    let part = ((score >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -weight / part.ln()
}

/// pymemcache's servers, and for each the state of the hash after `name-`.
#[derive(Debug)]
pub(super) struct Pymemcache {
    /// In reverse order of their names: of equal scores the first wins.
    servers: Box<[(u32, Murmur3)]>,
}

impl Pymemcache {
    pub(super) fn new(names: &[String]) -> Self {
        let mut order: Vec<u32> = (0..names.len() as u32).collect();
        order.sort_by_key(|&at| Reverse(&names[at as usize]));
        let state = |at: u32| (at, Murmur3::default().with(names[at as usize].as_bytes()).with(b"-"));
        Pymemcache { servers: order.into_iter().map(state).collect() }
    }

    pub(super) fn pick(&self, key: &[u8]) -> u32 {
        let mut highest = (0, None);
        for &(server, state) in &self.servers {
            let score = Some(state.with(key).finalize());
            if score > highest.1 {
                highest = (server, score);
            }
        }
        highest.0
    }
}

/// MurmurHash3 for 32 bits (Austin Appleby, public domain), seed 0, fed piece by piece.
#[derive(Clone, Copy, Debug, Default)]
struct Murmur3 {
    hash: u32,
    /// Up to three bytes of an incomplete word, the first lowest.
    rest: u32,
    bytes: u32,
}

impl Murmur3 {
    fn with(mut self, piece: &[u8]) -> Self {
        for &byte in piece {
            self.rest |= u32::from(byte) << (self.bytes % 4 * 8);
            self.bytes = self.bytes.wrapping_add(1);
            if self.bytes.is_multiple_of(4) {
                self.hash = (self.hash ^ Self::scramble(self.rest)).rotate_left(13);
                self.hash = self.hash.wrapping_mul(5).wrapping_add(0xe654_6b64);
                self.rest = 0;
            }
        }
        self
    }

    fn finalize(self) -> u32 {
        let mut hash = self.hash ^ Self::scramble(self.rest) ^ self.bytes;
        hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
        hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
        hash ^ hash >> 16
    }

    fn scramble(word: u32) -> u32 {
        word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(servers: usize) -> Vec<String> {
        (0..servers).map(|n| format!("tag{n}")).collect()
    }

    #[test]
    fn removing_a_server_moves_only_its_keys() {
        for weights in [vec![], vec![1.0, 2.0, 3.0, 4.0]] {
            let (all, fewer) = (names(4), [names(4).remove(0), names(4).remove(2), names(4).remove(3)]);
            let left = |at: u32| [0, 2, 3][at as usize];
            let other: Vec<f64> = if weights.is_empty() { vec![] } else { vec![1.0, 3.0, 4.0] };
            let (before, after) = (Rendezvous::new(&all, &weights), Rendezvous::new(&fewer, &other));
            for n in 0..5_000 {
                let key = format!("key:{n}");
                let home = before.pick(key.as_bytes());
                assert!(home == 1 || left(after.pick(key.as_bytes())) == home, "{key}");
            }
        }
    }

    #[test]
    fn the_order_starts_with_the_pick() {
        let rendezvous = Rendezvous::new(&names(9), &[]);
        for n in 0..500 {
            let key = format!("key:{n}");
            let mut order: Vec<u32> = (0..9).collect();
            rendezvous.order(key.as_bytes(), &mut order);
            assert_eq!(order[0], rendezvous.pick(key.as_bytes()));
        }
    }
}
