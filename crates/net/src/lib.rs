//! Listening addresses, Unix sockets, the file limit and certificates, for the server, the router and the client.
//!
//! Deliberately absent: the sockets' options, accepting, and handshakes. The server uses epoll and the router tokio.
#![forbid(unsafe_code)]

mod fd_limit;
mod listen_spec;
pub mod pem;
pub mod tls_client;
mod unix;

pub use fd_limit::raise_fd_limit;
pub use listen_spec::{ListenProtocol, ListenSpec, TlsMode};
pub use unix::{bind_unix, is_accepted_at, open_socket_file, parse_mode, set_file_mode, set_socket_mode};
