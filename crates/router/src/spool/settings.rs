//! The settings of a spool.

use crate::read_permits::ReadPermits;
use lookaside_routing::Address;
use std::sync::Arc;
use std::time::Duration;

/// How a spool behaves.
#[derive(Clone, Debug)]
pub struct SpoolSettings {
    /// The largest backlog of one server, in bytes on disk (14 and the key for each delete). A server with a larger
    /// one is flushed instead. Default 64 MiB.
    pub bytes_max: u64,
    /// The same for all servers together. Default 1 GiB.
    pub total_bytes_max: u64,
    /// When spooled deletes are synced to disk. Default: before they are acknowledged.
    pub fsync: Fsync,
    /// How long a server may take to connect, or to reply to a batch, during replay. Default 1 s.
    pub timeout: Duration,
    /// The longest wait between two attempts to replay, before jitter of up to 50 %. Default 1 s.
    pub wait_max: Duration,
    /// The other routers of the cluster, by the addresses where they serve clients. Each has a spool too. Default:
    /// none.
    pub peers: Vec<Address>,
    /// If this router has a backlog and is silent for this long, its fences at the peers expire and they flush the
    /// server. A fence whose request does not say how long it lasts is one of this duration, too. Default 10 s.
    pub peer_timeout: Duration,
    /// The outcome of a delete that must be spooled while a peer is unreachable. Default: it fails.
    pub peer_missing: PeerMissing,
    /// The permits that this process gives to clients that read servers directly. Default: it gives none.
    pub read_permits: Arc<ReadPermits>,
    /// The seed of this router's id, which is drawn once for each spool.
    pub seed: u64,
}

/// When spooled deletes are synced to disk. A crash of the router alone loses none, whichever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// Before they are acknowledged.
    Always,
    /// At most this long after they were written. A flush record that replaces deletes is synced at once.
    Interval(Duration),
    /// Left to the operating system.
    Never,
}

/// The outcome of a delete that must be spooled while a peer is unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerMissing {
    /// It fails, so that its sender repeats it.
    Fail,
    /// It is acknowledged. If the peer is alive, it may serve the deleted value.
    Ignore,
}

impl Default for SpoolSettings {
    fn default() -> Self {
        SpoolSettings {
            bytes_max: 64 << 20,
            total_bytes_max: 1 << 30,
            fsync: Fsync::Always,
            timeout: Duration::from_secs(1),
            wait_max: Duration::from_secs(1),
            peers: Vec::new(),
            peer_timeout: Duration::from_secs(10),
            peer_missing: PeerMissing::Fail,
            read_permits: ReadPermits::new(),
            seed: 0,
        }
    }
}
