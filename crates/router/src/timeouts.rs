//! Durations that several parts of the router share.

use std::time::Duration;

/// How long batches that have begun may take after a shutdown begins; then they are dropped.
pub const DRAIN_MAX: Duration = Duration::from_secs(5);

/// How long to wait for connections to servers before a new tree is put in force, or a spare is used.
pub(crate) const READY_MAX: Duration = Duration::from_secs(2);
