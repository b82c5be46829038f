//! The options of TLS, as plain values. `cli::tls` parses them from `-o ssl_...`.

use std::path::PathBuf;

/// Whether clients need a certificate: `ssl_verify_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ClientCertificate {
    /// 0: clients are not asked for one.
    #[default]
    Ignored,
    /// 1: clients are asked for one, and one that is sent must be valid.
    Requested,
    /// 2 and 3: clients need a valid one.
    Required,
}

/// The encoding of the private key: `ssl_keyformat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyFormat {
    /// 1: PEM.
    #[default]
    Pem,
    /// 2: DER.
    Der,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsOptions {
    pub(crate) chain_path: PathBuf,
    /// `None` if the key is in the file of the chain.
    pub(crate) key_path: Option<PathBuf>,
    pub(crate) key_format: KeyFormat,
    pub(crate) client_certificate: ClientCertificate,
    /// As given, for `stats settings`.
    pub(crate) verify_mode: u8,
    pub(crate) authorities_path: Option<PathBuf>,
    /// OpenSSL's names of cipher suites of TLS 1.2; empty for all.
    pub(crate) ciphers: Vec<String>,
    pub(crate) session_cache: bool,
    pub(crate) only_tls13: bool,
    /// As given, for `stats settings`; `None` if it is not given.
    pub(crate) write_buffer_kilobytes: Option<u32>,
    /// The time for a client's handshake: `ssl_handshake_timeout`, which memcached does not have.
    pub(crate) handshake_timeout: HandshakeTimeout,
}

/// Seconds; 30 by default. A reconnect of all clients at once takes a worker some seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandshakeTimeout(pub(crate) u32);

impl Default for HandshakeTimeout {
    fn default() -> HandshakeTimeout {
        HandshakeTimeout(30)
    }
}
