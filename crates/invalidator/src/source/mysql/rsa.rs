//! Encrypts the password with the server's public key, for `caching_sha2_password` without TLS while the server's cache
//! does not know the user.
//!
//! ```text
//! PEM -> DER: sequence { algorithm, bit string { sequence { modulus, exponent } } }
//! block = 0 | seed ^ mask(data) | data ^ mask(seed), data = SHA1() | 0... 1 | password ^ nonce     (OAEP, RFC 8017)
//! encrypted = block ^ exponent mod modulus
//! ```
//!
//! This protects the password from passive attackers. It does not protect it from an attacker who can send another
//! public key in the server's place: that needs a trusted network.

use super::cursor::{Cursor, Malformed};
use crate::SourceError;
use num_bigint::BigUint;
use sha1::{Digest, Sha1};

const HASH_BYTES: usize = 20;

/// The longest modulus: 8192 bits. A longer one would let a server cause a high load.
const MODULUS_BYTES_MAX: usize = 1024;
const EXPONENT_BYTES_MAX: usize = 8;

const READING: &str = "a public key";
const DER_INTEGER: u8 = 0x02;
const DER_BITS: u8 = 0x03;
const DER_SEQUENCE: u8 = 0x30;

/// Masks `password` with `nonce` and encrypts it with `public_key` (PEM).
pub fn encrypt_password(password: &[u8], nonce: &[u8], public_key: &[u8]) -> Result<Vec<u8>, SourceError> {
    let mut seed = [0; HASH_BYTES];
    getrandom::fill(&mut seed)
        .map_err(|error| SourceError::Unusable { why: format!("cannot get random bytes: {error}") })?;
    if nonce.is_empty() {
        return Err(Malformed("a handshake's nonce").into());
    }
    let key = PublicKey::read(public_key)?;
    let masked: Vec<u8> =
        password.iter().chain([&0]).zip(nonce.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
    let block = pad(&masked, seed, key.bytes).ok_or_else(|| SourceError::Unusable {
        why: format!("the password is too long for the server's public key of {} bytes", key.bytes),
    })?;
    let encrypted = BigUint::from_bytes_be(&block).modpow(&key.exponent, &key.modulus).to_bytes_be();
    let mut out = vec![0; key.bytes - encrypted.len()];
    out.extend_from_slice(&encrypted);
    Ok(out)
}

struct PublicKey {
    modulus: BigUint,
    exponent: BigUint,
    bytes: usize,
}

impl PublicKey {
    fn read(pem: &[u8]) -> Result<Self, Malformed> {
        let text = std::str::from_utf8(pem).map_err(|_| Malformed(READING))?;
        let (_, text) = text.split_once("-----BEGIN PUBLIC KEY-----").ok_or(Malformed(READING))?;
        let (text, _) = text.split_once("-----END PUBLIC KEY-----").ok_or(Malformed(READING))?;
        let der = decode_base64(text).ok_or(Malformed(READING))?;
        let mut outer = Cursor::new(der_field(&mut Cursor::new(&der, READING), DER_SEQUENCE)?, READING);
        der_field(&mut outer, DER_SEQUENCE)?;
        let mut bits = Cursor::new(der_field(&mut outer, DER_BITS)?, READING);
        bits.read_slice(1)?;
        let mut inner = Cursor::new(der_field(&mut bits, DER_SEQUENCE)?, READING);
        let modulus = BigUint::from_bytes_be(der_field(&mut inner, DER_INTEGER)?);
        let exponent = BigUint::from_bytes_be(der_field(&mut inner, DER_INTEGER)?);
        let bytes = usize::try_from(modulus.bits().div_ceil(8)).map_err(|_| Malformed(READING))?;
        if bytes == 0 || bytes > MODULUS_BYTES_MAX || exponent.bits() > 8 * EXPONENT_BYTES_MAX as u64 {
            return Err(Malformed(READING));
        }
        Ok(PublicKey { modulus, exponent, bytes })
    }
}

/// The content of the next field, which must have tag `kind`.
fn der_field<'a>(cursor: &mut Cursor<'a>, kind: u8) -> Result<&'a [u8], Malformed> {
    if cursor.u8()? != kind {
        return Err(Malformed(READING));
    }
    let length = match cursor.u8()? {
        short @ 0..=0x7f => u64::from(short),
        long => cursor.uint_big_endian(usize::from(long & 0x7f))?,
    };
    cursor.read_slice(usize::try_from(length).map_err(|_| Malformed(READING))?)
}

/// OAEP with SHA-1 and no label; `None` when the message is too long for a key of `key_bytes`.
fn pad(message: &[u8], seed: [u8; HASH_BYTES], key_bytes: usize) -> Option<Vec<u8>> {
    let zeros = key_bytes.checked_sub(message.len() + 2 * HASH_BYTES + 2)?;
    let mut data = Sha1::digest([]).to_vec();
    data.resize(HASH_BYTES + zeros, 0);
    data.push(1);
    data.extend_from_slice(message);
    mask(&seed, &mut data);
    let mut masked_seed = seed;
    mask(&data, &mut masked_seed);
    Some([&[0], &masked_seed[..], &data].concat())
}

/// Masks `bytes` with MGF1 of `seed`.
fn mask(seed: &[u8], bytes: &mut [u8]) {
    for (count, part) in (0_u32..).zip(bytes.chunks_mut(HASH_BYTES)) {
        let hash = Sha1::new().chain_update(seed).chain_update(count.to_be_bytes()).finalize();
        for (byte, mask) in part.iter_mut().zip(hash) {
            *byte ^= mask;
        }
    }
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut bit_count) = (0_u32, 0);
    for digit in text.bytes().filter(|byte| !byte.is_ascii_whitespace() && *byte != b'=') {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0xffff;
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            bytes.push((bits >> bit_count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{decode_base64, encrypt_password};

    #[test]
    fn malformed_keys_are_refused() {
        for key in [
            "",
            "-----BEGIN PUBLIC KEY-----",
            "-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----",
            "-----BEGIN PUBLIC KEY-----\nMIIBIjAN\n-----END PUBLIC KEY-----",
            "-----BEGIN PUBLIC KEY-----\nMA4wAAMKADAHAgEAAgMBAAE=\n-----END PUBLIC KEY-----",
        ] {
            assert!(encrypt_password(b"secret", b"12345678901234567890", key.as_bytes()).is_err(), "{key}");
        }
    }

    #[test]
    fn base64_is_decoded() {
        assert_eq!(decode_base64("bG9v\na2FzaWRl").as_deref(), Some(&b"lookaside"[..]));
        assert_eq!(decode_base64("bG9vaw==").as_deref(), Some(&b"look"[..]));
        assert_eq!(decode_base64("b*"), None);
    }
}
