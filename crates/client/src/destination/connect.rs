//! Makes connections, and probes servers with `version`.

use super::{
    options::{DestinationOptions, log_destination},
    shared::{DestinationShared, OpenConnection},
};
use crate::{
    command_connection::CommandConnection,
    network::{Network, Stream},
};
use lookaside_protocol::text::Limits;
use lookaside_routing::{Address, Failure};
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

/// The longest wait for the reply to a probe, however long a batch may wait for its replies: a server that is back is
/// used after the next probe, and a connection on which the reply got lost delays that.
const PROBE_TIMEOUT_MAX: Duration = Duration::from_secs(1);
const PROBE_LIMITS: Limits = Limits { value_bytes_max: 0, line_bytes_max: 1_024 };

/// A connection to a server, counted as long as it lasts.
pub(super) struct OpenStream {
    pub(super) stream: Box<dyn Stream>,
    open: OpenConnection,
}

/// Makes a connection and counts the outcome.
pub(super) async fn connect(
    network: &dyn Network,
    address: &Address,
    options: &DestinationOptions,
    shared: &Arc<DestinationShared>,
) -> Result<OpenStream, Failure> {
    let limit = options.connect_timeout();
    match timeout(limit, network.connect(address)).await {
        Ok(Ok(stream)) => Ok(OpenStream { stream, open: OpenConnection::begin(shared) }),
        Ok(Err(error)) => {
            log_destination!(debug, options.role, address, %error, "connection failed");
            shared.counters.connect_failures.add(1);
            Err(Failure::ConnectFailed)
        }
        Err(_) => {
            log_destination!(debug, options.role, address, limit_ms = limit.as_millis(), "connection timed out");
            shared.counters.connect_failures.add(1);
            Err(Failure::ConnectTimedOut)
        }
    }
}

/// Makes a connection and probes it; `None` if either fails.
pub(super) async fn connect_and_probe(
    network: &dyn Network,
    address: &Address,
    options: &DestinationOptions,
    shared: &Arc<DestinationShared>,
) -> Option<OpenStream> {
    let OpenStream { stream, open } = connect(network, address, options, shared).await.ok()?;
    Some(OpenStream { stream: probe_version(stream, options).await?, open })
}

/// Sends `version` and waits for a whole reply. Even an error line proves that the server is alive.
async fn probe_version(stream: Box<dyn Stream>, options: &DestinationOptions) -> Option<Box<dyn Stream>> {
    let limit = options.server_timeout().min(PROBE_TIMEOUT_MAX);
    let mut connection = CommandConnection::from_stream(stream, PROBE_LIMITS, limit);
    connection.send(b"version\r\n").await.ok()?;
    connection.read_part().await.ok()?;
    connection.into_stream()
}
