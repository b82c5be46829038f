//! Authentication plugins of MySQL and MariaDB: what the client replies to the server's nonce.
//!
//! ```text
//! mysql_native_password   SHA1(password) xor SHA1(nonce + SHA1(SHA1(password)))
//! caching_sha2_password   SHA256(password) xor SHA256(SHA256(SHA256(password)) + nonce)
//! client_ed25519          the nonce, signed with the password as the secret key         (MariaDB)
//! parsec                  own nonce, signature of both nonces with a key derived from the password and the server's
//!                         salt                                                          (MariaDB 11.6)
//! mysql_clear_password    the password itself; over TLS alone                           (PAM, LDAP)
//! ```
//!
//! While the server's cache does not know the user, `caching_sha2_password` sends the password itself: over TLS, or
//! encrypted with the server's public key, see [`rsa`](super::rsa). Other plugins are refused with their name.

use super::cursor::{Cursor, Malformed};
use curve25519_dalek::{EdwardsPoint, Scalar, scalar::clamp_integer};
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

const NONCE_BYTES: usize = 20;
/// The nonces of ed25519 and parsec.
const NONCE_BYTES_LONG: usize = 32;

/// Parsec: `| 'P' | n | salt |`, for 1024 * 2^n rounds of PBKDF2.
const PBKDF2: u8 = b'P';
const PBKDF2_ROUNDS_FIRST: u32 = 1024;
/// The highest n that MariaDB uses. More would let a server cause a high load.
const PBKDF2_SHIFT_MAX: u8 = 3;

/// The supported plugins, as the error for others names them.
pub const SUPPORTED: &str = "mysql_native_password, caching_sha2_password, client_ed25519, parsec, and with TLS \
    mysql_clear_password";

/// The supported plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    /// `mysql_native_password`, MariaDB's default.
    Native,
    /// `caching_sha2_password`, MySQL's default.
    CachingSha2,
    /// MariaDB's `ed25519`.
    Ed25519,
    /// MariaDB's `parsec`.
    Parsec,
    /// `mysql_clear_password`.
    Clear,
}

impl Plugin {
    /// The plugin of this name; `None` if it is not supported.
    pub fn from_name(name: &[u8]) -> Option<Plugin> {
        [Plugin::Native, Plugin::CachingSha2, Plugin::Ed25519, Plugin::Parsec, Plugin::Clear]
            .into_iter()
            .find(|plugin| plugin.name().as_bytes() == name)
    }

    /// The name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Plugin::Native => "mysql_native_password",
            Plugin::CachingSha2 => "caching_sha2_password",
            Plugin::Ed25519 => "client_ed25519",
            Plugin::Parsec => "parsec",
            Plugin::Clear => "mysql_clear_password",
        }
    }

    /// The nonce in `data`, to which some plugins append a zero.
    pub fn nonce_of(self, data: &[u8]) -> Result<Vec<u8>, Malformed> {
        let bytes = match self {
            Plugin::Native | Plugin::CachingSha2 => NONCE_BYTES,
            Plugin::Ed25519 | Plugin::Parsec => NONCE_BYTES_LONG,
            Plugin::Clear => 0,
        };
        Ok(data.get(..bytes).ok_or(Malformed("a nonce for the login"))?.to_vec())
    }

    /// The reply for `password` to the server's `nonce`.
    pub fn scramble(self, password: &[u8], nonce: &[u8]) -> Vec<u8> {
        match self {
            Plugin::Native | Plugin::CachingSha2 if password.is_empty() => Vec::new(),
            Plugin::Native => {
                let once = Sha1::digest(password);
                let mask = Sha1::new().chain_update(nonce).chain_update(Sha1::digest(once)).finalize();
                xor(&once, &mask)
            }
            Plugin::CachingSha2 => {
                let once = Sha256::digest(password);
                let twice = Sha256::digest(once);
                let mask = Sha256::new().chain_update(twice).chain_update(nonce).finalize();
                xor(&once, &mask)
            }
            Plugin::Ed25519 => sign(password, &[nonce]).to_vec(),
            // An empty reply requests the salt.
            Plugin::Parsec => Vec::new(),
            Plugin::Clear => clear(password),
        }
    }
}

/// The password as it is sent over TLS.
pub fn clear(password: &[u8]) -> Vec<u8> {
    [password, &[0]].concat()
}

/// Parsec's reply to the server's `salt`, with `own_nonce`, which must be random.
pub fn parsec_reply(
    password: &[u8],
    nonce: &[u8],
    own_nonce: [u8; NONCE_BYTES_LONG],
    salt: &[u8],
) -> Result<Vec<u8>, Malformed> {
    const READING: &str = "a salt for the login";
    let mut cursor = Cursor::new(salt, READING);
    let (kind, shift) = (cursor.u8()?, cursor.u8()?);
    if kind != PBKDF2 || shift > PBKDF2_SHIFT_MAX {
        return Err(Malformed(READING));
    }
    let secret = pbkdf2(password, cursor.rest(), PBKDF2_ROUNDS_FIRST << shift);
    Ok([&own_nonce[..], &sign(&secret, &[nonce, &own_nonce])].concat())
}

/// The first 32 bytes of PBKDF2 with HMAC-SHA-512 (RFC 8018).
fn pbkdf2(password: &[u8], salt: &[u8], rounds: u32) -> [u8; 32] {
    let keyed = <Hmac<Sha512> as KeyInit>::new_from_slice(password).expect("HMAC takes keys of any length");
    let mut last = keyed.clone().chain_update(salt).chain_update(1_u32.to_be_bytes()).finalize().into_bytes();
    let mut sum = last;
    for _ in 1..rounds {
        last = keyed.clone().chain_update(last).finalize().into_bytes();
        sum.iter_mut().zip(&last).for_each(|(sum, byte)| *sum ^= byte);
    }
    *sum.first_chunk().expect("64 bytes")
}

/// Signs the concatenated `message` by Ed25519 (RFC 8032). A standard secret has 32 bytes; MariaDB takes a password of
/// any length for it, which is why no library's key is used.
fn sign(secret: &[u8], message: &[&[u8]]) -> [u8; 64] {
    let hash = |parts: &[&[u8]]| {
        let mut hash = Sha512::new();
        parts.iter().chain(message).for_each(|part| hash.update(part));
        Scalar::from_bytes_mod_order_wide(&hash.finalize().into())
    };
    let expanded: [u8; 64] = Sha512::digest(secret).into();
    let (low, prefix) = expanded.split_at(32);
    let key = Scalar::from_bytes_mod_order(clamp_integer(low.try_into().expect("32 bytes")));
    let public = EdwardsPoint::mul_base(&key).compress();
    let once = hash(&[prefix]);
    let commitment = EdwardsPoint::mul_base(&once).compress();
    let answer = once + hash(&[commitment.as_bytes(), public.as_bytes()]) * key;
    let mut signature = [0; 64];
    signature[..32].copy_from_slice(commitment.as_bytes());
    signature[32..].copy_from_slice(answer.as_bytes());
    signature
}

fn xor(left: &[u8], right: &[u8]) -> Vec<u8> {
    left.iter().zip(right).map(|(left, right)| left ^ right).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<char> = hex.chars().collect();
        let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).expect("hex");
        digits.chunks(2).map(byte).collect()
    }

    /// RFC 8032, section 7.1, tests 1 and 3.
    #[test]
    fn signatures_are_those_of_the_standard() {
        let cases = [
            (
                "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
                "",
                "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595b\
                 be24655141438e7a100b",
            ),
            (
                "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
                "af82",
                "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716e\
                 d28dc027beceea1ec40a",
            ),
        ];
        for (secret, message, signature) in cases {
            assert_eq!(sign(&bytes(secret), &[&bytes(message)]).to_vec(), bytes(signature));
        }
    }

    /// Computed by Python's hashlib.
    #[test]
    fn known_passwords_give_known_replies() {
        let nonce: Vec<u8> = (1..=20).collect();
        assert_eq!(Plugin::Native.scramble(b"secret", &nonce), bytes("b32bb3a583e1340c0a1108d58b1be49781ad8c2f"));
        assert_eq!(
            Plugin::CachingSha2.scramble(b"secret", &nonce),
            bytes("746ebe205d56a0707acb3e796e834e0dd7b1d61743b26bd5202c7a623230c7c9")
        );
        assert_eq!(
            pbkdf2(b"secret", b"salt", 2048).to_vec(),
            bytes("df133fd6729d70147a804b7ab93e745e0d66b5197225c7600699f5c11c7319ee")
        );
        assert_eq!(Plugin::Native.scramble(b"", &nonce), [0; 0]);
        assert_eq!(Plugin::Clear.scramble(b"secret", b""), b"secret\0");
    }

    /// The zero that follows a nonce was found by value, so one nonce in 256 lost its last byte.
    #[test]
    fn nonce_may_end_in_a_zero() {
        let nonce = [0; 32];
        assert_eq!(Plugin::Ed25519.nonce_of(&nonce), Ok(vec![0; 32]));
        assert_eq!(Plugin::CachingSha2.nonce_of(&nonce[..21]), Ok(vec![0; 20]));
        assert!(Plugin::Parsec.nonce_of(&nonce[..31]).is_err());
    }

    #[test]
    fn malformed_salts_are_refused() {
        for salt in [&b""[..], b"P", b"Q\x00salt", b"P\x04salt"] {
            assert!(parsec_reply(b"secret", &[1; 32], [2; 32], salt).is_err(), "{salt:?}");
        }
        assert_eq!(parsec_reply(b"secret", &[1; 32], [2; 32], b"P\x00salt").map(|reply| reply.len()), Ok(96));
    }
}
