//! Ch3 ("furc"), mcrouter's consistent hash: going from n to n + 1 servers moves 1/(n + 1) of the keys, all of them to
//! the new server.
//!
//! It reads bits from an endless stream: murmur64A of the key, then murmur64A of that hash, and so on.
//!
//! ```text
//!   depth d = bits of n - 1           bit i of the stream belongs to level i mod 23
//!   walk down while the bit at level d is 0; at depth 0 the result is server 0
//!   a 1 at level d: the next d - 1 bits of that level name a server in 2^(d-1) .. 2^d
//!   if it exists (< n), it is the result; otherwise continue in the same level
//! ```
//!
//! Absent on purpose: weights (`weighted_ch3.rs`).

/// The maximum number of servers that the walk can distinguish.
pub(super) const SERVERS_MAX: usize = 1 << LEVELS;

/// The number of levels that share the bit stream, and the maximum depth.
const LEVELS: u32 = 23;

/// The number of tries before server 0 is taken; each try fails with a probability below one half.
const TRIES_MAX: u32 = 32;

/// The server for `key`, below `servers`.
pub(super) fn ch3(key: &[u8], servers: u32) -> u32 {
    if servers <= 1 {
        return 0;
    }
    let mut bits = Bits::from_key(key);
    let mut depth = u32::BITS - (servers - 1).leading_zeros();
    let mut at = depth;
    for _ in 0..TRIES_MAX {
        while !bits.is_set(at) {
            depth -= 1;
            if depth == 0 {
                return 0;
            }
            at = depth;
        }
        at += LEVELS;
        let mut server = 1;
        for _ in 1..depth {
            server = server << 1 | u32::from(bits.is_set(at));
            at += LEVELS;
        }
        if server < servers {
            return server;
        }
    }
    0
}

/// The endless stream of bits of a key, computed on demand. Walks in small pools stay in the first word. The others
/// move forward through the next ones; one that goes down a level after a try begins again at the first.
struct Bits {
    first: u64,
    /// The word that was read last, and its index.
    word: u64,
    index: u32,
}

impl Bits {
    #[inline]
    fn from_key(key: &[u8]) -> Self {
        let first = murmur64a(key);
        Bits { first, word: first, index: 0 }
    }

    #[inline]
    fn is_set(&mut self, at: u32) -> bool {
        let word = if at < u64::BITS { self.first } else { self.later_word(at / u64::BITS) };
        word >> (at % u64::BITS) & 1 == 1
    }

    #[inline(never)]
    fn later_word(&mut self, index: u32) -> u64 {
        if index < self.index {
            (self.word, self.index) = (self.first, 0);
        }
        while self.index < index {
            self.word = murmur64a(&self.word.to_le_bytes());
            self.index += 1;
        }
        self.word
    }
}

const MURMUR_SEED: u64 = 4_193_360_111;

/// [`murmur64a_seeded`] with the seed of Ch3.
#[inline]
pub(crate) fn murmur64a(bytes: &[u8]) -> u64 {
    murmur64a_seeded(bytes, MURMUR_SEED)
}

/// MurmurHash64A (Austin Appleby, public domain).
#[inline]
pub(super) fn murmur64a_seeded(bytes: &[u8], seed: u64) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const R: u32 = 47;
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(M);
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        let mut mixed = u64::from_le_bytes(*word).wrapping_mul(M);
        mixed ^= mixed >> R;
        hash = (hash ^ mixed.wrapping_mul(M)).wrapping_mul(M);
    }
    if !tail.is_empty() {
        hash = (hash ^ last_word(bytes, tail)).wrapping_mul(M);
    }
    hash ^= hash >> R;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> R
}

/// The word of the `tail` of `bytes`, of 1 to 7 bytes, with zeros behind them.
#[inline]
fn last_word(bytes: &[u8], tail: &[u8]) -> u64 {
    match bytes.last_chunk::<8>() {
        Some(last) => u64::from_le_bytes(*last) >> (u64::BITS - 8 * tail.len() as u32),
        None => tail.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> impl Iterator<Item = Vec<u8>> {
        (0..20_000).map(|n: u32| format!("key:{n}").into_bytes())
    }

    #[test]
    fn a_new_server_takes_its_share_and_no_other_key_moves() {
        for servers in 1..70 {
            let (mut moved, mut total) = (0_f64, 0_f64);
            for key in keys().step_by(4) {
                let (before, after) = (ch3(&key, servers), ch3(&key, servers + 1));
                assert!(after == before || after == servers, "{before} to {after} of {servers} + 1");
                moved += f64::from(u8::from(after != before));
                total += 1.0;
            }
            let expected = 1.0 / f64::from(servers + 1);
            assert!((moved / total - expected).abs() < 0.3 * expected + 0.002, "{moved} of {total} at {servers}");
        }
    }

    #[test]
    fn the_largest_pool_stays_in_range() {
        for key in keys().take(2_000) {
            assert!((ch3(&key, SERVERS_MAX as u32) as usize) < SERVERS_MAX);
            assert!(ch3(&key, (SERVERS_MAX / 2 + 1) as u32) as usize <= SERVERS_MAX / 2);
        }
    }

    #[test]
    fn bits_are_the_same_in_any_order() {
        for key in keys().take(50) {
            let words: Vec<u64> =
                std::iter::successors(Some(murmur64a(&key)), |word| Some(murmur64a(&word.to_le_bytes())))
                    .take(10)
                    .collect();
            let mut bits = Bits::from_key(&key);
            let mut at = 0;
            for step in 0..2_000 {
                at = (at + step * 37) % 640;
                assert_eq!(bits.is_set(at), words[at as usize / 64] >> (at % 64) & 1 == 1, "bit {at}");
            }
        }
    }

    /// What lies before the last bytes of a key does not change their part of the hash.
    #[test]
    fn the_last_word_is_padded_with_zeros() {
        let bytes: Vec<u8> = (0..40_u32).map(|n| (n * 37 + 128) as u8).collect();
        for length in 0..bytes.len() {
            let key = &bytes[..length];
            let tail = key.as_chunks::<8>().1;
            let mut padded = [0; 8];
            padded[..tail.len()].copy_from_slice(tail);
            assert!(tail.is_empty() || last_word(key, tail) == u64::from_le_bytes(padded), "{length} bytes");
        }
    }

    /// Pins the function: a change means cold caches after an upgrade.
    #[test]
    fn keys_stay_where_they_are() {
        let keys = ["a", "user:42", "12345678", "a-key-longer-than-8", ""];
        let picks = |servers| keys.map(|key| ch3(key.as_bytes(), servers));
        assert_eq!(picks(2), [1, 1, 0, 1, 1]);
        assert_eq!(picks(10), [4, 9, 0, 1, 8]);
        assert_eq!(picks(1_000), [900, 158, 713, 368, 72]);
        assert_eq!(picks(1 << 23), [7695180, 2068298, 455460, 2672629, 6173600]);
    }
}
