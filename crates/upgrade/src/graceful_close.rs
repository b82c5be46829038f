//! Connections that cannot be handed over, such as those with TLS: the old process sends the rest of their replies and
//! the end of the stream, and gives the clients [`GRACE_PERIOD`] to close them.

use std::time::Duration;

/// The time that all clients together have to close their connections.
pub const GRACE_PERIOD: Duration = Duration::from_secs(3);

/// Logs that `count` connections are still open after [`GRACE_PERIOD`] and are closed now.
pub fn log_unclosed(count: usize) {
    tracing::info!("closing {count} connections that are still open after the grace period");
}
