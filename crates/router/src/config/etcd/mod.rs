//! The configuration in etcd: which key of which etcd, read and watched (§3.1: a configuration system that every client
//! of the cache hears from). No request passes here.
//!
//! ```text
//!   range key ----> value at revision 41                         etcd's JSON gateway,
//!   watch key from revision 42 ----> put 57 ... put 93 ...       HTTP/1.1 on etcd's client port
//!   every 30 s: range key, on another connection: what the watch should have told?
//! ```
//!
//! * [`location`] reads `etcd://host:port,host:port/key`;
//! * [`client`] asks, and understands the answers;
//! * [`watch`] decides which answers change something, and what is done while nobody answers.
//!
//! Invariants: only etcd's word changes the configuration. An etcd that is away, a key that was deleted and a watch that
//! was cut (compaction) leave it as it was. After every gap the key is read anew, so no gap hides a change.
//!
//! Absent on purpose: gRPC (a compiler of protocols, and a second HTTP, for two calls), leases, and writing.

mod client;
mod location;
mod watch;

pub(crate) use location::without_user;
pub use location::{EtcdLocation, EtcdUser};
pub(crate) use watch::EtcdWatch;

#[cfg(test)]
mod tests;
