//! TLS, by rustls with ring as in `lookaside-server`: between clients and the router, and between the router and
//! servers.
//!
//! * [`options`]: mcrouter's flags.
//! * [`certificates`]: what the files say, read anew on SIGHUP and when they change.
//! * [`greeting`]: a client's connection; its handshake is done by whoever reads from it first.
//! * [`network`]: connections to servers, to some of them by TLS.
//!
//! tokio-rustls stands between rustls and tokio's sockets, because the router waits on streams: the server's own
//! adapter is made for sockets that never wait, and would have to be written a second time. A plain connection is the
//! stream that it was: it passes through none of this.
//!
//! Absent: TLS before 1.2, renegotiation, resumption, and early data (a replayed `incr` counts twice).

mod certificates;

pub(crate) use certificates::{Certificates, keep_fresh};
