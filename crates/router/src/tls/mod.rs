//! TLS by rustls with ring, as in `lookaside-server`: between clients and the router, and between the router and
//! servers.
//!
//! The handshakes are in `frontend::tls_accept` (clients) and `backend::tls_connector` (servers).
//!
//! tokio-rustls adapts rustls to tokio's sockets, because the router waits on streams; the server's own adapter is made
//! for sockets that never wait. A plain connection passes through none of this.
//!
//! Absent on purpose: TLS before 1.2, renegotiation, resumption, and early data (a replayed `incr` counts twice).

mod certificates;

pub(crate) use certificates::{Certificates, TlsFiles, reload_loop};
pub(crate) use lookaside_client::tls::server_name;
pub use lookaside_net::tls_client::CertificatePaths;
