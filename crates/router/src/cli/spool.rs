//! The options of the spool.

use crate::spool::{Fsync, PeerMissing, SpoolSettings};
use clap::Args;
use lookaside_routing::{Address, Security, TlsPolicy};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The spool.
#[derive(Args, Clone, Debug)]
pub struct SpoolOptions {
    /// Spool deletes that a server does not answer in this directory, and do not read the server before they are
    /// replayed (mcrouter: --async-dir). Without it such a delete is an error, and the client must repeat it. One
    /// directory per router
    #[arg(id = "spool", long = "spool", short = 'a', visible_alias = "async-dir", value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// When spooled deletes survive a crash of this machine: `always` before they are acknowledged, `interval:MS` at
    /// most that much later, `never` when the kernel writes them. A crash of the router alone loses none
    #[arg(long, value_name = "POLICY", default_value = "always", value_parser = parse_fsync)]
    pub spool_fsync: Fsync,
    /// Maximum spooled bytes per server, 14 plus the key for each delete; beyond it the server is flushed (flush_all)
    /// before it is read again
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20, value_parser = clap::value_parser!(u64).range(4096..))]
    pub spool_bytes_max: u64,
    /// Maximum spooled bytes of all servers together
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30, value_parser = clap::value_parser!(u64).range(4096..))]
    pub spool_total_bytes_max: u64,
    /// The other routers of this cluster, by their addresses for clients, each with its own spool: none of them reads a
    /// server for which this one has undelivered deletes. The suffix :ascii:ssl means TLS, verified by --pem-ca-path
    #[arg(long, value_name = "HOST:PORT[:ascii:ssl][,...]", value_delimiter = ',', requires = "spool", value_parser = parse_peer)]
    pub spool_peers: Vec<SpoolPeer>,
    /// Seconds after which the peers give up this router's backlog if it is silent, and flush the server instead
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub spool_peer_timeout: u32,
    /// The result of a delete that must be spooled while a peer is unreachable: `fail`, so that the client repeats it,
    /// or `ignore`, so that the peer may read the deleted value
    #[arg(long, value_name = "fail|ignore", default_value = "fail", value_parser = parse_peer_missing)]
    pub spool_peer_missing: PeerMissing,
    /// Spool no deletes, even with --spool
    #[arg(long)]
    pub asynclog_disable: bool,
}

impl SpoolOptions {
    /// The spool's directory; `None` without a spool.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref().filter(|_| !self.asynclog_disable)
    }

    /// The other routers' addresses.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &Address> {
        self.spool_peers.iter().map(|peer| &peer.address)
    }

    /// The TLS policy of each of the other routers.
    pub(crate) fn peer_policies(&self) -> Vec<(Address, TlsPolicy)> {
        let policy = |peer: &SpoolPeer| {
            let security = if peer.is_tls { Security::Tls } else { Security::Plain };
            (peer.address.clone(), TlsPolicy { security, certificate_name: None })
        };
        self.spool_peers.iter().map(policy).collect()
    }

    /// The spool's settings; a server or a router may take `timeout` for a reply.
    pub(super) fn settings(&self, timeout: Duration) -> SpoolSettings {
        SpoolSettings {
            bytes_max: self.spool_bytes_max,
            total_bytes_max: self.spool_total_bytes_max,
            fsync: self.spool_fsync,
            timeout,
            peers: self.peers().cloned().collect(),
            peer_timeout: Duration::from_secs(self.spool_peer_timeout.into()),
            peer_missing: self.spool_peer_missing,
            seed: fastrand::u64(..),
            ..SpoolSettings::default()
        }
    }
}

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
