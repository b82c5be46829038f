//! The words of routing: a batch of requests goes in, an outcome for each comes out.

use bytes::Bytes;
use lookaside_protocol::{Reply, Request};
use std::{fmt, future::Future, net::IpAddr, pin::Pin, sync::Arc};

/// Requests that travel together, in the order in which the client asked. The order among requests for one key is
/// kept down to the destination.
pub type Batch = Vec<Request<Bytes>>;

/// What came of each request of a batch, in the batch's order.
pub type Outcomes = Vec<Outcome>;

/// What a destination said, or why nothing was heard from it.
pub type Outcome = Result<Reply<Bytes>, Failure>;

/// A future that can be kept in a tree of routes.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How [`Failure::NoRoute`] begins when it is told in words: who asks a router in another process knows it by this.
pub const NO_ROUTE: &str = "no route: ";

/// Why no route leads on from a choice by operation: unlike the others it says nothing of the key, which other
/// operations may well reach.
pub const NO_POLICY: &str = "no policy for this operation, and no default";

/// Why a request brought no reply. Whether the destination carried it out is unknown for the last four.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The destination is taken out (TKO): nothing was sent.
    Tko,
    /// No connection could be made: nothing was sent.
    ConnectFailed,
    /// No connection could be made in time: nothing was sent.
    ConnectTimedOut,
    /// Too much is outstanding already: nothing was sent.
    Busy,
    /// No route leads anywhere for this request: nothing was sent.
    NoRoute(Arc<str>),
    /// No reply came in time.
    TimedOut,
    /// The connection ended before the reply came.
    ConnectionLost,
    /// The reply made no sense; the connection was ended.
    Malformed,
    /// A delete that failed at its server and is kept for it, durably: it will be carried out before the server is read
    /// again. As good as done for who asked, and not done for a route that has another server to ask.
    Spooled,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Tko => write!(f, "server is taken out after failures"),
            Failure::ConnectFailed => write!(f, "connection failed"),
            Failure::ConnectTimedOut => write!(f, "connection timed out"),
            Failure::Busy => write!(f, "too many requests outstanding"),
            Failure::NoRoute(why) => write!(f, "{NO_ROUTE}{why}"),
            Failure::TimedOut => write!(f, "server timed out"),
            Failure::ConnectionLost => write!(f, "connection lost"),
            Failure::Malformed => write!(f, "malformed reply from server"),
            Failure::Spooled => write!(f, "delete is kept until the server is back"),
        }
    }
}

/// Who asked: routes may choose by it (replicas by the client's own address, §3.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The client's address, where it is known.
    pub client: Option<IpAddr>,
}

/// A node of the tree.
pub trait Route: Send + Sync {
    /// Carries out a batch: exactly one outcome a request, in order.
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes>;
}

/// A leaf of the tree: one server.
pub trait Destination: Send + Sync {
    /// Sends a batch and waits for the replies: exactly one outcome a request, in order.
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes>;

    /// Where it is, for messages and hashing by name.
    fn address(&self) -> &Address;
}

/// `host:port`, `[v6]:port`, or the path of a unix socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub Arc<str>);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
