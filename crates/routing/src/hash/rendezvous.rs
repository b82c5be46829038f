//! Rendezvous hashing (highest random weight): the server with the highest score for the key.
//!
//! | name | score | of equals |
//! |---|---|---|
//! | Rendezvous | the hashes of the server's tag and of the key, combined as below | the last server |
//! | WeightedRendezvous | the lower 53 bits of the same as a number u below 1, and -weight / ln u | the last server |
//! | pymemcache | MurmurHash3 (32 bits) of `host:port-key` | the name that comes last |
//!
//! The first two are mcrouter's, bit for bit:
//!
//! ```text
//!   tag hash   MurmurHash64A of the tag, seed 4193360111        key hash   the same of the routing key, seed 2718281828
//!   combined   CityHash's 128 to 64 bits: the tag's hash is the upper half, the key's the lower
//! ```
//!
//! Cost: each pick looks at every server, so these are for pools of dozens. A server is known by its tag: to change
//! that is to move its keys.

use super::ch3::{murmur64a, murmur64a_seeded};
use std::cmp::Reverse;

/// Servers by the hashes of their tags, optionally weighted.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    tags: Box<[u64]>,
    /// Empty if all servers have the same weight.
    weights: Box<[f64]>,
}

const KEY_SEED: u64 = 2_718_281_828;

impl Rendezvous {
    pub(crate) fn new(names: &[String], weights: &[f64]) -> Self {
        Rendezvous { tags: names.iter().map(|name| murmur64a(name.as_bytes())).collect(), weights: weights.into() }
    }

    pub(crate) fn pick(&self, key: &[u8]) -> u32 {
        let key = murmur64a_seeded(key, KEY_SEED);
        let scores = self.tags.iter().map(|&tag| combine(tag, key)).enumerate();
        // Both return the last of equals.
        let highest = match self.weights.is_empty() {
            true => scores.max_by_key(|&(_, score)| score),
            false => {
                let weighted = |(at, score): &(usize, u64)| weigh(*score, self.weights[*at]);
                scores.max_by(|one, other| weighted(one).total_cmp(&weighted(other)))
            }
        };
        highest.map_or(0, |(at, _)| at as u32)
    }

    /// All servers by their scores without weights, the highest first.
    pub(crate) fn order(&self, key: &[u8]) -> Vec<u32> {
        let key = murmur64a_seeded(key, KEY_SEED);
        let mut order: Vec<u32> = (0..self.tags.len() as u32).collect();
        order.sort_by_cached_key(|&at| Reverse((combine(self.tags[at as usize], key), at)));
        order
    }
}

/// CityHash's (Google, MIT licence) hash of 128 bits.
fn combine(upper: u64, lower: u64) -> u64 {
    const MULTIPLIER: u64 = 0x9ddf_ea08_eb38_2d69;
    let first = (lower ^ upper).wrapping_mul(MULTIPLIER);
    let second = (upper ^ first ^ first >> 47).wrapping_mul(MULTIPLIER);
    (second ^ second >> 47).wrapping_mul(MULTIPLIER)
}

/// The score with a weight: 0 with a weight of 0.
pub(crate) fn weigh(score: u64, weight: f64) -> f64 {
    let part = (score & ((1 << 53) - 1)) as f64 / (1_u64 << 53) as f64;
    weight / -part.ln()
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
            let order = rendezvous.order(key.as_bytes());
            assert_eq!(order[0], rendezvous.pick(key.as_bytes()));
            assert_eq!(order.iter().collect::<std::collections::BTreeSet<_>>().len(), 9);
        }
    }

    #[test]
    fn of_equal_scores_the_last_server_wins() {
        let same = vec!["tag".to_owned(); 3];
        assert_eq!(Rendezvous::new(&same, &[]).pick(b"k"), 2);
        assert_eq!(Rendezvous::new(&same, &[1.0, 1.0, 1.0]).pick(b"k"), 2);
        assert_eq!(Rendezvous::new(&same, &[1.0, 2.0, 1.0]).pick(b"k"), 1);
        assert_eq!(Rendezvous::new(&same, &[]).order(b"k"), [2, 1, 0]);
    }
}
