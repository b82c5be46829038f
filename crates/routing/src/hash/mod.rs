//! The server of a key among n, bit for bit as mcrouter and other clients choose it, so that a router can take over a
//! running pool without a cold cache. Every verb passes here.
//!
//! ```text
//!   KeyHash (from the configuration)  -- picker_for(n) -->  Picker (tables made once)  -- pick(key) -->  0 .. n
//! ```
//!
//! | kind | hashes | keys that move when a server is added or removed |
//! |---|---|---|
//! | a walk over indices (`ch3.rs`, `weighted_ch3.rs`) | Ch3, WeightedCh3, ConstShard | its share |
//! | the highest of n scores (`rendezvous.rs`) | Rendezvous, WeightedRendezvous, pymemcache | its share |
//! | a digest of the key (`digest.rs`), then a ring or a remainder (`ring.rs`) | all others | its share; with a remainder nearly all |
//!
//! mcrouter's own hashes read a key up to `|#|`; those of other clients read all of it, as these clients do. A pick
//! allocates nothing. Absent on purpose: weights that change while the process runs.

mod append;
mod ch3;
mod digest;
mod function;
mod picker;
mod rendezvous;
mod ring;
mod spooky;
mod weighted_ch3;

pub(crate) use ch3::murmur64a;
pub use digest::{Digest, fnv1a_64};
pub(crate) use function::NamesNeeded;
pub use function::{HashFunction, KeyHash, KeyHashError, RING_SERVERS_MAX, WEIGHT_MAX};
pub use picker::Picker;
pub(crate) use rendezvous::{Rendezvous, weigh};
pub(crate) use spooky::spooky32;

/// The maximum number of servers of a pool.
pub const SERVERS_MAX: usize = ch3::SERVERS_MAX;

#[cfg(test)]
mod tests {
    use super::{picker::Table, *};

    fn keys() -> impl Iterator<Item = Vec<u8>> {
        (0..20_000).map(|n: u32| format!("key:{n}").into_bytes())
    }

    fn hash(function: HashFunction) -> KeyHash {
        KeyHash { function, ..KeyHash::default() }
    }

    fn names(servers: usize) -> Vec<String> {
        (1..=servers).map(|n| format!("10.0.0.{n}:{}", 11210 + n)).collect()
    }

    /// The share of `keys()` on each server.
    fn shares(hash: &KeyHash, servers: usize) -> Vec<f64> {
        let mut counts = vec![0_f64; servers];
        let picker = hash.picker_for(servers).unwrap();
        keys().for_each(|key| counts[picker.pick(&key)] += 1.0);
        counts.iter().map(|count| count / 20_000.0).collect()
    }

    #[test]
    fn every_server_gets_its_share() {
        // twemproxy's digests are compared with vectors instead, whether they spread evenly or not.
        let is_twemproxy = |function: &HashFunction| function.name().starts_with("twemproxy");
        for function in HashFunction::all().filter(|function| !is_twemproxy(function)) {
            for servers in [1, 3, 8, 31] {
                let hash =
                    KeyHash { function, names: names(servers), weights: vec![1.0; servers], ..KeyHash::default() };
                for share in shares(&hash, servers) {
                    let expected = 1.0 / servers as f64;
                    // A ring's arcs are uneven.
                    let is_ring = matches!(hash.picker_for(servers).unwrap().table, Table::Ring(..));
                    let (least, most) = if is_ring { (0.5, 1.6) } else { (0.8, 1.2) };
                    let range = least * expected..=most * expected;
                    assert!(range.contains(&share), "{function:?} {servers}: {share} of {expected}");
                }
            }
        }
    }

    #[test]
    fn weights_shift_shares() {
        for (function, weights, expected) in [
            (HashFunction::WeightedRendezvous, [0.25, 0.75, 1.0], [0.125, 0.375, 0.5]),
            (HashFunction::WeightedRendezvous, [0.0, 0.5, 0.5], [0.0, 0.5, 0.5]),
            (HashFunction::LibmemcachedKetamaWeighted, [1.0, 3.0, 4.0], [0.125, 0.375, 0.5]),
            (HashFunction::Dalli, [1.0, 3.0, 4.0], [0.125, 0.375, 0.5]),
            (HashFunction::TwemproxyModula(Digest::Fnv1a64), [1.0, 3.0, 4.0], [0.125, 0.375, 0.5]),
            (HashFunction::WeightedCh3, [1.0, 0.5, 0.0], [2.0 / 3.0, 1.0 / 3.0, 0.0]),
        ] {
            let hash = KeyHash { function, names: names(3), weights: weights.to_vec(), ..KeyHash::default() };
            for (share, expected) in shares(&hash, 3).into_iter().zip(expected) {
                assert!((share - expected).abs() <= 0.25 * expected, "{function:?}: {share} of {expected}");
            }
        }
    }

    #[test]
    fn prefix_and_tail_do_not_move_a_key() {
        for servers in [2, 5, 40] {
            let picker = KeyHash::default().picker_for(servers).unwrap();
            let home = picker.pick(b"user:42");
            assert_eq!(picker.pick(b"/east/web/user:42"), home);
            assert_eq!(picker.pick(b"user:42|#|profile"), home);
        }
    }

    #[test]
    fn a_salt_spreads_keys_differently() {
        let (plain, salted) = (KeyHash::default(), KeyHash { salt: "x".into(), ..KeyHash::default() });
        let (plain_4, salted_4) = (plain.picker_for(4).unwrap(), salted.picker_for(4).unwrap());
        let same = keys().filter(|key| plain_4.pick(key) == salted_4.pick(key)).count();
        assert!((4_500..5_500).contains(&same), "{same} of 20000 stayed; a quarter would by chance");
        let (plain, salted) = (plain.picker_for(1_000).unwrap(), salted.picker_for(1_000).unwrap());
        assert_eq!(salted.pick(b"a"), plain.pick(b"ax"), "the salt is appended");
        let long = KeyHash { salt: "x".repeat(600), ..KeyHash::default() }.picker_for(1_000).unwrap();
        assert_eq!(long.pick(b"a"), plain.pick(["a", &"x".repeat(600)].concat().as_bytes()));
    }

    /// CRC-32's check value is published with the polynomial: 0xcbf43926 for "123456789".
    #[test]
    fn crc32_is_ieee_without_its_top_bit() {
        let picker = hash(HashFunction::Crc32).picker_for(1_000_000).unwrap();
        assert_eq!(picker.pick(b"123456789"), (0x4bf4_3926 % 1_000_000) as usize);
    }

    #[test]
    fn a_key_can_name_its_shard() {
        let (shards, ch3) =
            (hash(HashFunction::ConstShard).picker_for(10).unwrap(), KeyHash::default().picker_for(10).unwrap());
        for (key, shard) in [("a:0:x", 0), ("a:7:x", 7), ("a:007:x", 7), (":9:", 9), ("a:3:x|#|y", 3)] {
            assert_eq!(shards.pick(key.as_bytes()), shard, "{key}");
        }
        for key in ["a:10:x", "a:7", "a", "a::x", "a:x7:x", "a:-1:x", "a:+1:x", "a:99999999999:x", "a:7|#|:x", ""] {
            assert_eq!(shards.pick(key.as_bytes()), ch3.pick(key.as_bytes()), "{key}");
        }
    }
}
