//! The application's view of the cache: read, fill on a miss under a lease, delete after a database write (§2, §3.2.1
//! of the paper). Serves a get from its first step to its last.
//!
//! | reply to the lease-get   | effect in [`Client::read`]                                                    |
//! |--------------------------|-------------------------------------------------------------------------------|
//! | hit                      | returns the value                                                             |
//! | miss with a token        | loads from the database, fills under the token                                |
//! | hot miss                 | waits and retries; returns a stale value at once if the caller allows it      |
//! | still hot after the wait | loads, does not fill                                                          |
//! | failure, error line      | loads, does not fill: a failing cache gets no extra load (§3.1)               |
//! | datagram lost or late    | the same, which [`ClientError::DatagramLost`] tells from an error of a server |
//!
//! A loaded value is returned even if its fill is refused: then the key was deleted in between, and the next reader
//! loads it again.
//!
//! The servers must know leases (`lease-get`): a plain memcached replies with an error line, and nothing is ever
//! filled.
//!
//! Sets, counters and deletes have a table of their own, in `updates`.
//!
//! [`Client`] knows bytes and flags; [`TypedClient`] adds formats and compression. Batching, hedging, a deadline and
//! counters of one's own are each a `with_` method that returns another client. A [`Plan`] reads values whose keys
//! depend on other values. A [`RegionalClient`] reads and writes from a replica region (`remote_markers`).
//!
//! Deliberately absent: the choice of a server: any [`Route`] will do, a tree of routes or one destination that is a
//! router.

mod batcher;
mod client;
mod error;
mod hedge;
mod lease;
mod lookup;
mod plan;
mod read_through;
mod remote_markers;
mod stats;
mod typed;
mod updates;

pub use client::{Client, FillOutcome};
pub use error::ClientError;
pub use hedge::{HedgeDelay, HedgeSettings};
pub use lease::{Lease, Lookup};
pub use plan::{NodeError, NodeId, NodeValues, Plan, PlanError, PlanResults};
pub use read_through::{HOT_MISS_DELAY_MS_MAX, HOT_MISS_DELAY_MS_MIN, Origin, ReadError, ReadOptions, Value};
pub use remote_markers::{
    MarkError, MarkerForm, MarkerSettings, MarkerSettingsError, MarkerStatistics, ReadFrom, RegionalClient,
    RemoteWrite, WhenNotSet,
};
pub use stats::ClientStatistics;
pub use typed::{TypedClient, TypedError, TypedReadError};
