//! A connection follows its server's name: when the name leads elsewhere, the server has moved, though the old one may
//! still answer. Serves no request; §3.1 of the paper has a configuration system that tells clients, DNS tells nobody.
//!
//! ```text
//!   serving at the old place ... looked up: it is not there any more ... connect to the new place, `version` answered
//!   -> no new request to the old one; what was sent is answered, or late; then the new connection serves
//! ```
//!
//! So no request fails for it and the order of requests stays. A new place that does not answer is not moved to.

use super::{
    DestinationOptions, Shared, count,
    driver::{ask_version, connect},
};
use crate::{Network, network::Stream};
use lookaside_routing::Address;
use std::{future::pending, net::IpAddr, time::Duration};
use tokio::time::{sleep, timeout};

/// Resolves with a connection to where the server is now, once that is no more `peer`. `jitter` in `0.0..1.0` spreads the
/// lookups of many destinations.
pub(crate) async fn moved(
    network: &dyn Network,
    address: &Address,
    peer: Option<IpAddr>,
    options: &DestinationOptions,
    shared: &Shared,
    jitter: f64,
) -> Box<dyn Stream> {
    let (Some(peer), Some(interval_ms)) = (peer, options.resolve_interval_ms) else { return pending().await };
    let interval = Duration::from_millis(interval_ms.max(1)).mul_f64(0.75 + 0.5 * jitter.clamp(0.0, 1.0));
    let mut silent: Vec<IpAddr> = Vec::new();
    loop {
        sleep(interval).await;
        let addresses = match network.addresses(address).await {
            Ok(addresses) if addresses.is_empty() => return pending().await,
            Ok(addresses) if !addresses.contains(&peer) => addresses,
            Ok(_) | Err(_) => continue,
        };
        if let Some(stream) = verified(network, address, options, shared).await {
            tracing::info!(server = %address, old = %peer, new = ?stream.peer(), "the server's name has moved: following");
            count(&shared.counters.moves, 1);
            return stream;
        }
        if silent != addresses {
            tracing::warn!(
                server = %address, old = %peer, new = ?addresses,
                "the server's name has moved to where nobody answers: the old connection stays in use"
            );
            silent = addresses;
        }
    }
}

async fn verified(
    network: &dyn Network,
    address: &Address,
    options: &DestinationOptions,
    shared: &Shared,
) -> Option<Box<dyn Stream>> {
    let stream = connect(network, address, options, shared).await.ok()?;
    let limit = Duration::from_millis(options.server_timeout_ms);
    timeout(limit, ask_version(stream, options)).await.ok().flatten()
}
