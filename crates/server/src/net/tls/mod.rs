//! TLS, by rustls: `-Z` with memcached's `-o ssl_...` options.
//!
//! A request takes the same path with TLS and without: decrypted bytes are scanned as plain ones are, and one reply
//! buffer is encrypted and then sent. A plain connection costs no more than a null pointer.
//!
//! Deliberately absent: TLS before 1.2, renegotiation, and early data (a replayed `incr` would count twice).

pub(crate) mod certificates;
mod no_authority;
pub(crate) mod options;
pub(crate) mod stream;
