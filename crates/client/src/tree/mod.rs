//! What a tree of routes stands on: the connections at its leaves, and the environment of its routes. Routers and
//! direct clients build their trees on it.

mod destination_set;
mod environment;
mod host;

pub use destination_set::DestinationSet;
pub use environment::{BackgroundTasks, environment};
pub use host::HostInfo;
