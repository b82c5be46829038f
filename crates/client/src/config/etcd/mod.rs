//! The configuration in etcd: one key, read and watched (§3.1: a configuration system that notifies every client of the
//! cache). And a record beside it that routers change by compare-and-swap. No request passes here.
//!
//! ```text
//!   range key ----> value at revision 41                         etcd's JSON gateway,
//!   watch key from revision 42 ----> put 57 ... put 93 ...       HTTP/1.1 on etcd's client port
//!   every 30 s: range key, on another connection: has the watch missed a change?
//!
//!   txn: if the record is at revision 57, put another ----> at revision 58, or what it is instead
//! ```
//!
//! Invariants: only a value from etcd changes the configuration. An unreachable etcd, a deleted key and an interrupted
//! watch (compaction) leave it as it was. After every gap the key is read again, so no gap hides a change.
//!
//! Absent on purpose: gRPC (a protocol compiler, and a second HTTP, for three calls), leases, and writing
//! configurations.

mod client;
mod location;
mod record;
mod watch;

pub use location::{EtcdLocation, EtcdUser, without_user};
pub use record::{EtcdError, EtcdRecord, EtcdValue};
pub(crate) use watch::EtcdWatcher;

#[cfg(test)]
mod tests;
