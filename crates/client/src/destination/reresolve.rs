//! Follows a server's host name: resolves it again while a connection serves, and replaces the connection when the name
//! leads to another address. The paper's configuration system notifies clients (§3.1); DNS does not, so names are
//! polled.
//!
//! ```text
//!   connected to the old address ... resolved: the address is gone ... connect to the new one, `version` answered
//!   -> no new requests to the old one; those sent are answered, or time out; then the new connection serves
//! ```
//!
//! So a relocation fails no request and keeps their order. If the new address does not answer, the old connection
//! stays.

use super::{
    connect::{OpenStream, connect_and_probe},
    options::{DestinationOptions, log_destination},
    shared::DestinationShared,
    timer::Timer,
};
use crate::network::Network;
use lookaside_routing::Address;
use std::{
    future::{pending, poll_fn},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// Resolves with a connection to the server's new address, once its name no longer leads to `peer`. `jitter` in
/// `0.0..1.0` spreads the lookups of many destinations.
pub(super) async fn relocated_connection(
    network: &dyn Network,
    address: &Address,
    peer: Option<IpAddr>,
    options: &DestinationOptions,
    shared: &Arc<DestinationShared>,
    jitter: f64,
) -> OpenStream {
    let (Some(peer), Some(interval_ms)) = (peer, options.resolve_interval_ms) else { return pending().await };
    let interval = Duration::from_millis(interval_ms.max(1)).mul_f64(0.75 + 0.5 * jitter.clamp(0.0, 1.0));
    let mut unreachable: Vec<IpAddr> = Vec::new();
    loop {
        let mut timer = Timer::new(Instant::now() + interval);
        poll_fn(|cx| timer.poll_elapsed(cx)).await;
        let addresses = match network.resolve(address).await {
            Ok(addresses) if addresses.is_empty() => return pending().await,
            Ok(addresses) if !addresses.contains(&peer) => addresses,
            Ok(_) | Err(_) => continue,
        };
        if let Some(connected) = connect_and_probe(network, address, options, shared).await {
            log_destination!(
                info, options.role, address, old = %peer, new = ?connected.stream.peer(),
                "host name leads to another address: connected to it"
            );
            shared.counters.relocations.add(1);
            return connected;
        }
        if unreachable != addresses {
            log_destination!(
                warn, options.role, address, old = %peer, new = ?addresses,
                "host name leads to an address that does not answer: the old connection stays in use"
            );
            unreachable = addresses;
        }
    }
}
