//! The look-aside client: destinations over sockets, their health, and the read and write paths of an application.
//!
//! * [`TcpDestination`] is a leaf of the routing tree: one pipelined connection to a server, shared by all who ask
//!   it something. Its parts: `driver` (its task: connect, probe), `connection` (bytes to and from a stream),
//!   `pipeline` (requests out, answers in; sans-I/O), `meta` (the same in the meta dialect), `standing` (whether the server is taken out, shared by all
//!   destinations of a process at one address).
//! * [`Window`] bounds what is outstanding at all destinations together (§3.1).
//! * [`Client`] is what an application holds: `look_aside` (get, fill, set, delete), `read` (all of a read under a
//!   lease), `lease` (their vocabulary).
//! * [`CommandConnection`] is a connection for `version`, `flush_all`, `stats`, and maintenance of one server.
//! * [`Network`] stands between all of it and the sockets; `names` finds out where a server's name leads, `moving` follows
//!   it.
//!
//! Absent on purpose: where a key goes (`routing` decides), and clocks and randomness of its own (tokio's clock, a
//! seed), so that a simulation runs this very code.
#![forbid(unsafe_code)]

mod command_connection;
mod connection;
mod destination;
mod driver;
mod lease;
mod look_aside;
mod meta;
mod moving;
mod names;
mod network;
mod pipeline;
mod read;
mod standing;
mod statistics;
mod window;

pub use command_connection::{CommandConnection, CommandError};
pub use connection::READ_BYTES;
pub use destination::{DestinationOptions, DestinationStatistics, TcpDestination};
pub use lease::{Lease, Lookup};
pub use look_aside::{Client, ClientError, FillOutcome};
pub use network::{Listener, Network, Stream, TcpNetwork};
pub use read::{HOT_MISS_DELAY_MS_MAX, HOT_MISS_DELAY_MS_MIN, Origin, ReadError, ReadOptions, Value};
pub use standing::{Fence, Observer, PoolTkoLimit, TkoTrackers};
pub use statistics::ClientStatistics;
pub use window::{Window, WindowSettings, WindowStatistics, WindowedDestination};
