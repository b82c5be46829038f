//! Values of the options of the spool.

use crate::spool::{Fsync, PeerMissing};
use lookaside_routing::Address;
use std::time::Duration;

/// Another router of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolPeer {
    /// Its address for clients.
    pub address: Address,
    /// Whether it uses TLS there.
    pub is_tls: bool,
}

pub(super) fn parse_peer(text: &str) -> Result<SpoolPeer, String> {
    let (text, is_tls) = match (text.strip_suffix(":ascii:ssl"), text.strip_suffix(":ascii:plain")) {
        (Some(address), _) => (address, true),
        (_, Some(address)) => (address, false),
        _ => (text, false),
    };
    let is_address = |(host, port): (&str, &str)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0);
    match text.rsplit_once(':').is_some_and(is_address) {
        true => Ok(SpoolPeer { address: Address(text.into()), is_tls }),
        false => Err("expected HOST:PORT, or HOST:PORT:ascii:ssl".to_owned()),
    }
}

pub(super) fn parse_peer_missing(text: &str) -> Result<PeerMissing, String> {
    match text {
        "fail" => Ok(PeerMissing::Fail),
        "ignore" => Ok(PeerMissing::Ignore),
        _ => Err("expected fail or ignore".to_owned()),
    }
}

pub(super) fn parse_fsync(text: &str) -> Result<Fsync, String> {
    match (text, text.strip_prefix("interval:").map(str::parse)) {
        ("always", _) => Ok(Fsync::Always),
        ("never", _) => Ok(Fsync::Never),
        (_, Some(Ok(interval_ms @ 1..=60_000))) => Ok(Fsync::Interval(Duration::from_millis(interval_ms))),
        _ => Err("expected always, never, or interval:MS with 1 to 60000 milliseconds".to_owned()),
    }
}
