//! The vocabulary of routing: a batch of requests goes in, an outcome for each comes out.

use crate::ClientMisses;
use bytes::Bytes;
use lookaside_protocol::{Reply, Request};
use std::{fmt, future::Future, net::IpAddr, pin::Pin, sync::Arc, time::Duration};

/// Requests that travel together, in the order in which the client sent them. The order among requests for one key is
/// preserved down to the destination.
pub type Batch = Vec<Request<Bytes>>;

/// The outcome of each request of a batch, in the order of the batch.
pub type Outcomes = Vec<Outcome>;

/// The reply of a destination, or why there is none.
pub type Outcome = Result<Reply<Bytes>, Failure>;

/// The future of a route or a destination.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The start of the text of [`Failure::NoRoute`], by which a client in another process recognizes the failure.
pub const NO_ROUTE: &str = "no route: ";

/// The text of [`Failure::NoTree`] in the error that a router sends, which another process recognizes as well.
pub const NO_TREE: &str = "RootRoute: No rh found";

/// The text of the `SERVER_ERROR` that a router sends where a server replied with `ERROR`: it does not know the
/// command. A client recognizes it as well.
pub const UNKNOWN_COMMAND: &str = "ERROR reply received from server.";

/// The reason of [`Failure::NoRoute`] after a selection by operation: other operations on the key may have a route.
pub const NO_POLICY: &str = "no policy for this operation, and no default";

/// Whether the text of a `SERVER_ERROR` of a router means that no operation reaches the key there. So no value of it
/// can be cached behind that router, and a delete that it refuses so is not repeated.
pub fn is_no_route(why: &[u8]) -> bool {
    let without_route = why.strip_prefix(NO_ROUTE.as_bytes());
    why.starts_with(NO_TREE.as_bytes()) || without_route.is_some_and(|why| !why.starts_with(NO_POLICY.as_bytes()))
}

/// Why a destination is not sent requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TkoReason {
    /// Several requests in a row had no reply in time.
    TimedOut,
    /// A connection could not be made.
    ConnectFailed,
    /// A connection could not be made in time.
    ConnectTimedOut,
    /// It has undelivered deletes, so that it may be sent deletes only.
    Fenced,
}

impl TkoReason {
    /// mcrouter's name of the reply that made the destination TKO.
    pub fn name(self) -> &'static str {
        match self {
            TkoReason::TimedOut => "mc_res_timeout",
            TkoReason::ConnectFailed => "mc_res_connect_error",
            TkoReason::ConnectTimedOut => "mc_res_connect_timeout",
            TkoReason::Fenced => "mc_res_tko",
        }
    }
}

/// Why a request by UDP has no whole reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramLoss {
    /// No whole reply came in time: a datagram was lost, or is late.
    LostOrLate,
    /// A datagram of the reply was lost, overtook another or came twice.
    OutOfOrder,
}

impl fmt::Display for DatagramLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DatagramLoss::LostOrLate => "no reply by UDP in time",
            DatagramLoss::OutOfOrder => "a datagram of the reply by UDP was lost or overtaken",
        })
    }
}

/// Why a request has no reply. For the last six it is unknown whether the destination executed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The destination is TKO: nothing was sent.
    Tko(TkoReason),
    /// The connection attempt failed: nothing was sent.
    ConnectFailed,
    /// The connection attempt timed out: nothing was sent.
    ConnectTimedOut,
    /// Too many requests are outstanding: nothing was sent.
    Busy,
    /// As many requests as may be are outstanding at this destination: nothing was sent.
    TooManyPending {
        /// The destination.
        server: Address,
        /// The limit.
        requests_max: usize,
    },
    /// The request waited for the connection until its time was up: nothing was sent.
    QueueTimedOut,
    /// There is no route for this request: nothing was sent.
    NoRoute(Arc<str>),
    /// No tree has the routing prefix of the key: nothing was sent.
    NoTree,
    /// An [`ErrorRoute`](crate::ErrorRoute) refused it with this text: nothing was sent.
    Refused {
        /// The text.
        text: Arc<str>,
        /// The kind of failure that it is for a failover; `None` if no other child is to be asked.
        error: Option<FailoverError>,
    },
    /// No reply arrived in time.
    TimedOut,
    /// The connection ended before the reply arrived.
    ConnectionLost,
    /// Reading from the connection to this destination failed before the reply arrived.
    ReadFailed(Address),
    /// The reply could not be parsed; a connection on which it came was closed.
    Malformed,
    /// A get was sent by UDP, and a datagram was lost, late or out of order. A failover asks no other destination: the
    /// get is a miss that is not filled (§3.1 of the paper).
    DatagramLost {
        /// The destination.
        server: Address,
        /// What is known of the datagram.
        loss: DatagramLoss,
    },
    /// A delete that failed at its server and was spooled, durably: it is replayed before the server is read again.
    /// Done for the client; not done for a route that has another server to ask.
    Spooled,
    /// One of the others, with the name of its destination, for a client that shows it to its caller. Every decision looks
    /// at the inner failure; a destination names its failures only if it is set to.
    OfServer {
        /// The destination.
        server: Address,
        /// The failure, which is not of this variant.
        failure: Box<Failure>,
    },
}

impl Failure {
    /// The failure without the name of its destination.
    pub fn unnamed(&self) -> &Failure {
        match self {
            Failure::OfServer { failure, .. } => failure,
            failure => failure,
        }
    }

    /// Whether the destination has used up its time.
    pub fn is_timeout(&self) -> bool {
        matches!(self.unnamed(), Failure::TimedOut | Failure::QueueTimedOut | Failure::ConnectTimedOut)
    }
}

/// A kind of failure that a configuration can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverError {
    /// `tko`
    Tko,
    /// `connect_error`
    ConnectError,
    /// `connect_timeout`
    ConnectTimeout,
    /// `timeout`
    Timeout,
    /// `busy`
    Busy,
    /// `local_error`
    LocalError,
    /// `remote_error`
    RemoteError,
    /// `shutdown`
    Shutdown,
    /// `try_again`
    TryAgain,
    /// `deadline_exceeded`
    DeadlineExceeded,
}

impl FailoverError {
    /// All errors: mcrouter's default.
    pub const ALL: [FailoverError; 10] = [
        FailoverError::Tko,
        FailoverError::ConnectError,
        FailoverError::ConnectTimeout,
        FailoverError::Timeout,
        FailoverError::Busy,
        FailoverError::LocalError,
        FailoverError::RemoteError,
        FailoverError::Shutdown,
        FailoverError::TryAgain,
        FailoverError::DeadlineExceeded,
    ];

    /// The name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            FailoverError::Tko => "tko",
            FailoverError::ConnectError => "connect_error",
            FailoverError::ConnectTimeout => "connect_timeout",
            FailoverError::Timeout => "timeout",
            FailoverError::Busy => "busy",
            FailoverError::LocalError => "local_error",
            FailoverError::RemoteError => "remote_error",
            FailoverError::Shutdown => "shutdown",
            FailoverError::TryAgain => "try_again",
            FailoverError::DeadlineExceeded => "deadline_exceeded",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Tko(_) => write!(f, "server is TKO after failures"),
            Failure::ConnectFailed => write!(f, "connection failed"),
            Failure::ConnectTimedOut => write!(f, "connection timed out"),
            Failure::Busy | Failure::TooManyPending { .. } => write!(f, "too many requests outstanding"),
            Failure::QueueTimedOut => write!(f, "timed out before it was sent"),
            Failure::NoRoute(why) => write!(f, "{NO_ROUTE}{why}"),
            Failure::NoTree => write!(f, "{NO_TREE}"),
            Failure::Refused { text, .. } => f.write_str(text),
            Failure::TimedOut => write!(f, "server timed out"),
            Failure::ConnectionLost | Failure::ReadFailed(_) => write!(f, "connection lost"),
            Failure::Malformed => write!(f, "malformed reply from server"),
            Failure::DatagramLost { server, loss } => write!(f, "{loss} ({server})"),
            Failure::Spooled => write!(f, "delete is spooled until the server is back"),
            Failure::OfServer { server, failure } => write!(f, "{server}: {failure}"),
        }
    }
}

/// The origin of a batch, by which routes may choose (replicas by the client's address, §3.2.3), and its haste.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The client's address; `None` if it is not known.
    pub client: Option<IpAddr>,
    /// How long a destination may take, besides its own limit; `None` if there is no other. Deletes are not limited:
    /// one that is given up early may not have been applied, and would have to be spooled.
    pub time_limit: Option<Duration>,
    /// The same for batches that only read. An update that is given up early may still be executed.
    pub read_time_limit: Option<Duration>,
    /// The misses of the client's connection; `None` if no `LeaseRoute` needs them.
    pub misses: Option<Arc<ClientMisses>>,
    /// Whether these are copies of requests for a shadow: a server has a limit on them.
    pub is_shadow: bool,
}

impl Context {
    /// For requests that no client waits for, and whose misses are not the client's.
    pub fn without_misses(&self) -> Context {
        Context { misses: None, ..self.clone() }
    }

    /// For copies of requests for a shadow, for which no client waits.
    pub(crate) fn for_shadow(&self) -> Context {
        Context { is_shadow: true, ..self.without_misses() }
    }

    /// The time limit for requests without deletes.
    pub(crate) fn time_limit(&self, only_reads: bool) -> Option<Duration> {
        self.time_limit.into_iter().chain(self.read_time_limit.filter(|_| only_reads)).min()
    }
}

/// A node of the tree.
pub trait Route: Send + Sync {
    /// Executes a batch: exactly one outcome for each request, in order.
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes>;
}

/// A leaf of the tree: one server.
pub trait Destination: Send + Sync {
    /// Sends a batch and waits for the replies: exactly one outcome for each request, in order.
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes>;

    /// Its address, for messages and hashing by name.
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
