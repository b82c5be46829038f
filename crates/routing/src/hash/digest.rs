//! Digests of keys as other clients compute them, for a ring or a remainder.
//!
//! The names are twemproxy's. Each digest follows its public description, except where twemproxy departs from that:
//! this decides where keys are stored, so each departure is noted and followed. Bytes of a key from 0x80 on count as
//! negative in `one_at_a_time` and FNV, as in both clients on x86.

use md5::{Digest as _, Md5};

/// A digest of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digest {
    /// Bob Jenkins' one-at-a-time; libmemcached's default.
    OneAtATime,
    /// The first four bytes of MD5.
    Md5,
    /// CRC-16 (XMODEM), with the bits that are shifted out of it.
    Crc16,
    /// 15 bits of CRC-32, which twemproxy calls `crc32`.
    Crc32Short,
    /// CRC-32 (IEEE), which twemproxy calls `crc32a`.
    Crc32,
    /// FNV-1 of 64 bits, the lower half.
    Fnv1_64,
    /// FNV-1a, with the lower halves of the constants of 64 bits.
    Fnv1a64,
    /// FNV-1 of 32 bits.
    Fnv1_32,
    /// FNV-1a of 32 bits.
    Fnv1a32,
    /// MurmurHash2, the seed made of the length.
    Murmur,
    /// python-memcached's: as [`Digest::Crc32Short`], but never 0.
    PythonMemcached,
    /// As [`Digest::Crc32`] without its top bit: mcrouter's.
    Crc32Positive,
}

impl Digest {
    /// The digests that twemproxy has.
    pub const OF_TWEMPROXY: [Digest; 10] = [
        Digest::OneAtATime,
        Digest::Md5,
        Digest::Crc16,
        Digest::Crc32Short,
        Digest::Crc32,
        Digest::Fnv1_64,
        Digest::Fnv1a64,
        Digest::Fnv1_32,
        Digest::Fnv1a32,
        Digest::Murmur,
    ];

    /// twemproxy's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Digest::OneAtATime => "one_at_a_time",
            Digest::Md5 => "md5",
            Digest::Crc16 => "crc16",
            Digest::Crc32Short => "crc32",
            Digest::Crc32 => "crc32a",
            Digest::Fnv1_64 => "fnv1_64",
            Digest::Fnv1a64 => "fnv1a_64",
            Digest::Fnv1_32 => "fnv1_32",
            Digest::Fnv1a32 => "fnv1a_32",
            Digest::Murmur => "murmur",
            Digest::PythonMemcached => "python-memcached",
            Digest::Crc32Positive => "Crc32",
        }
    }

    pub(super) fn of(self, key: &[u8]) -> u32 {
        match self {
            Digest::OneAtATime => one_at_a_time(key),
            Digest::Md5 => first_word(&Md5::digest(key)),
            Digest::Crc16 => crc16(key),
            Digest::Crc32Short => crc32fast::hash(key) >> 16 & 0x7fff,
            Digest::Crc32 => crc32fast::hash(key),
            Digest::Fnv1_64 => {
                key.iter().fold(FNV_64, |hash, &byte| hash.wrapping_mul(FNV_64_PRIME) ^ signed(byte) as u64) as u32
            }
            Digest::Fnv1a64 => fnv1a(key, FNV_64 as u32, FNV_64_PRIME as u32),
            Digest::Fnv1_32 => {
                key.iter().fold(FNV_32, |hash, &byte| hash.wrapping_mul(FNV_32_PRIME) ^ signed(byte) as u32)
            }
            Digest::Fnv1a32 => fnv1a(key, FNV_32, FNV_32_PRIME),
            Digest::Murmur => murmur2(key),
            Digest::PythonMemcached => (crc32fast::hash(key) >> 16 & 0x7fff).max(1),
            Digest::Crc32Positive => crc32fast::hash(key) & 0x7fff_ffff,
        }
    }
}

/// The first four bytes of an MD5, as a little-endian number.
pub(super) fn first_word(digest: &[u8]) -> u32 {
    u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
}

const FNV_64: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_64_PRIME: u64 = 0x100_0000_01b3;
const FNV_32: u32 = 2_166_136_261;
const FNV_32_PRIME: u32 = 16_777_619;

/// A byte as C's `char` on x86 widens it.
fn signed(byte: u8) -> i64 {
    i64::from(byte as i8)
}

/// FNV-1a of 64 bits: the same number in every process and version, for names and choices. No pool is hashed by it.
///
/// ```
/// assert_eq!(lookaside_routing::fnv1a_64(*b"foobar"), 0x8594_4171_f739_67e8);
/// ```
pub fn fnv1a_64(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(FNV_64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_64_PRIME))
}

fn fnv1a(key: &[u8], start: u32, prime: u32) -> u32 {
    key.iter().fold(start, |hash, &byte| (hash ^ signed(byte) as u32).wrapping_mul(prime))
}

pub(super) fn one_at_a_time(key: &[u8]) -> u32 {
    let mut hash = 0_u32;
    for &byte in key {
        hash = hash.wrapping_add(signed(byte) as u32);
        hash = hash.wrapping_add(hash << 10);
        hash ^= hash >> 6;
    }
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 11;
    hash.wrapping_add(hash << 15)
}

/// As in twemproxy: the bits that are shifted out of the 16 bits stay in the number.
fn crc16(key: &[u8]) -> u32 {
    const POLYNOMIAL: u16 = 0x1021;
    key.iter().fold(0, |crc: u32, &byte| {
        let mut step = (crc as u16 & 0xff00) ^ u16::from(byte) << 8;
        for _ in 0..8 {
            step = if step & 0x8000 == 0 { step << 1 } else { step << 1 ^ POLYNOMIAL };
        }
        crc << 8 ^ u32::from(step)
    })
}

fn murmur2(key: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let seed = 0xdead_beef_u32.wrapping_mul(key.len() as u32);
    let mut hash = seed ^ key.len() as u32;
    let (words, tail) = key.as_chunks::<4>();
    for word in words {
        let mut mixed = u32::from_le_bytes(*word).wrapping_mul(M);
        mixed ^= mixed >> 24;
        hash = hash.wrapping_mul(M) ^ mixed.wrapping_mul(M);
    }
    if !tail.is_empty() {
        let mut last = [0; 4];
        last[..tail.len()].copy_from_slice(tail);
        hash = (hash ^ u32::from_le_bytes(last)).wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> 15
}
