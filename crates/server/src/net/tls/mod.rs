//! TLS, by rustls: `-Z` with memcached's `-o ssl_...` options.
//!
//! * [`options`]: the options, and which of them mean nothing here.
//! * [`certificates`]: what the files say, read anew by `refresh_certs` and SIGHUP.
//! * [`stream`]: one connection's state between the socket and the session.
//!
//! A request's path is the same with and without: what the stream has decrypted is scanned as what came plain, and one
//! reply buffer is encrypted in place of being sent. A plain connection pays for none of it but a null pointer.
//!
//! Absent: TLS before 1.2, renegotiation, and early data (a replayed `incr` counts twice).

pub(crate) mod certificates;
pub(crate) mod stream;
