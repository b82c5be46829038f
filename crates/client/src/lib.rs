//! The look-aside client: how a request reaches a server, and the read and write paths of an application.
//!
//! * [`Client`] is an application's view of the cache (`look_aside`): get, fill, set, delete, and whole reads under a
//!   lease.
//! * [`Window`] bounds the outstanding requests of all destinations together (§3.1).
//! * [`TcpDestination`] is a leaf of the routing tree: one pipelined connection to a server, shared by all its callers.
//! * [`TkoTrackers`] holds the TKO state of each server; a [`Fence`] keeps one from being read while it has undelivered
//!   deletes.
//! * [`Network`] stands between all of this and the sockets; `network::resolver` resolves host names.
//! * [`spawn`] stands between the tasks of a process and tokio, as a simulation stops all tasks of one process.
//! * [`config`] reads and watches a routing configuration, in a file or in etcd; [`tree`] is what a tree of routes
//!   stands on, in a router and in a client that routes for itself.
//! * `tls` secures connections to routers, servers and etcd (feature `tls`).
//! * [`CommandConnection`] carries `version`, `flush_all`, `stats` and maintenance.
//!
//! Deliberately absent: the choice of a server for a key (`routing`), and clocks and randomness of its own (it uses
//! tokio's clock and a seed), so that a simulation runs this very code.
#![forbid(unsafe_code)]

/// Compiles the example of the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod caller;
#[cfg(doctest)]
mod clients_page;
mod command_connection;
pub mod config;
mod destination;
mod direct;
mod fence;
mod login_network;
mod look_aside;
mod network;
mod tasks;
mod tko;
#[cfg(feature = "tls")]
pub mod tls;
pub mod tree;
mod udp;
mod values;
mod window;

pub use command_connection::{CommandConnection, CommandError};
pub use destination::{
    ConnectionState, DestinationOptions, DestinationReport, DestinationRole, DestinationStatistics, READ_BYTES,
    ResultCounters, ResultCounts, RetiredCounts, ServerResult, TcpDestination,
};
pub use direct::{
    DirectError, DirectRoute, DirectRouteBuilder, DirectStatistics, PERMIT_DURATION, PERMIT_ENDS_AFTER, PERMIT_KEY,
    Permit, PermitReply, Routers, ServingSpare,
};
pub use fence::Fence;
pub use login_network::{LoginNetwork, RefusalHandler};
pub use look_aside::{
    Client, ClientError, ClientStatistics, FillOutcome, HOT_MISS_DELAY_MS_MAX, HOT_MISS_DELAY_MS_MIN, HedgeDelay,
    HedgeSettings, Lease, Lookup, MarkError, MarkerForm, MarkerSettings, MarkerSettingsError, MarkerStatistics,
    NodeError, NodeId, NodeValues, Origin, Plan, PlanError, PlanResults, ReadError, ReadFrom, ReadOptions,
    RegionalClient, RemoteWrite, TypedClient, TypedError, TypedReadError, Value, WhenNotSet,
};
pub use network::{Listener, Network, Stream, TcpNetwork};
pub use tasks::{GatedTask, TaskGate, spawn, spawn_in};
pub use tko::{PoolTkoLimit, ReadabilityObserver, TkoTrackers};
pub use udp::{UdpOptions, UdpSockets, UdpStatistics};
#[cfg(feature = "json")]
pub use values::Json;
#[cfg(feature = "messagepack")]
pub use values::MessagePack;
pub use values::{
    Codec, Compression, Content, DecodeError, EncodeError, Encoded, Format, FromContent, ToContent, ValueFlags,
};
pub use window::{Window, WindowControl, WindowSettings, WindowStatistics, WindowedDestination};
