//! Where a key goes: a tree of routes, from the configuration down to destinations. No sockets, no clock of its own.
//!
//! Requests travel through the tree in batches, so that the keys of one multiget, or all that a client pipelined,
//! cost each route handle once: a handle splits the batch among its children and puts the replies back in order.
//!
//! Absent on purpose: how a destination is reached. `client` implements [`Destination`] over sockets, tests by
//! recording fakes, `simulation` by a network of its own.
#![forbid(unsafe_code)]

mod hash;
mod health;
mod key;
mod route;

pub use hash::{HashFunction, KeyHash, SERVERS_MAX};
pub use health::{Health, HealthChange, HealthSettings};
pub use route::{Address, Batch, BoxFuture, Context, Destination, Failure, Outcome, Outcomes, Route};
