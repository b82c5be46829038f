//! TLS by rustls with ring, for a client that connects to routers, to servers and to etcd.
//!
//! Deliberately absent: TLS before 1.2, renegotiation, resumption and early data, as in the router.

mod network;
mod server_name;
mod stream;

pub use lookaside_net::tls_client::CertificatePaths;
pub use network::TlsClientNetwork;
pub use server_name::server_name;
pub use stream::shake_hands;
