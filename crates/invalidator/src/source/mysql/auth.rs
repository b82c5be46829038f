//! Authentication plugins: `mysql_native_password` and `caching_sha2_password`.
//!
//! ```text
//! native:        SHA1(password) xor SHA1(nonce + SHA1(SHA1(password)))
//! caching_sha2:  SHA256(password) xor SHA256(SHA256(SHA256(password)) + nonce)
//! ```
//!
//! While the server's cache does not know the user, `caching_sha2_password` sends the password itself, encrypted with
//! the server's public key: see [`rsa`](super::rsa). Other plugins are not supported.

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The supported plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    /// `mysql_native_password`, MariaDB's default.
    Native,
    /// `caching_sha2_password`, MySQL's default.
    CachingSha2,
}

impl Plugin {
    /// The plugin of this name; `None` if it is not supported.
    pub fn from_name(name: &[u8]) -> Option<Plugin> {
        match name {
            b"mysql_native_password" => Some(Plugin::Native),
            b"caching_sha2_password" => Some(Plugin::CachingSha2),
            _ => None,
        }
    }

    /// The name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Plugin::Native => "mysql_native_password",
            Plugin::CachingSha2 => "caching_sha2_password",
        }
    }

    /// The reply for `password` to the server's `nonce`. It is empty for an empty password.
    pub fn scramble(self, password: &[u8], nonce: &[u8]) -> Vec<u8> {
        if password.is_empty() {
            return Vec::new();
        }
        match self {
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
        }
    }
}

fn xor(left: &[u8], right: &[u8]) -> Vec<u8> {
    left.iter().zip(right).map(|(left, right)| left ^ right).collect()
}
