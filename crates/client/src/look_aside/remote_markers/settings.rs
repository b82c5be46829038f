//! How remote markers are named, how long they live, and what their loss means.

use super::load::ReadFrom;
use super::names::MARKER_SUFFIX_BYTES;
use lookaside_protocol::{KEY_BYTES_MAX, KeyError, check_key};
use std::fmt;

/// The longest life of a marker: memcached takes larger numbers for points in time.
const TTL_S_MAX: u32 = 30 * 24 * 3600;

/// Settings of a [`RegionalClient`](super::RegionalClient). All clients of a region must have the same `key_prefix` and
/// `form`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkerSettings {
    /// The names of markers begin with it, and the routers send all such keys to the regional pool. Default `marker:`.
    pub key_prefix: String,
    /// How long a marker lives if no replication deletes it, in seconds, 1 to 2,592,000. Default 3,600. Reads may be
    /// stale if the time from `begin_write` to the commit, and the lag of replication, are together more. A write that
    /// was begun and never committed sends misses of its keys to the master for that time, and each written key uses
    /// about 200 bytes of the pool for it.
    pub ttl_s: u32,
    /// Which write a marker belongs to. Default [`MarkerForm::PerWrite`].
    pub form: MarkerForm,
    /// What [`begin_write`](super::RegionalClient::begin_write) does if a marker cannot be set. Default
    /// [`WhenNotSet::Fail`].
    pub when_not_set: WhenNotSet,
    /// Where a key is read from if the pool does not say whether there is a marker. Default [`ReadFrom::Master`]: with
    /// [`ReadFrom::Replica`] reads may be stale while a server of the pool is down.
    pub when_unknown: ReadFrom,
    /// The seed of the tokens; `None` (default) for a random one. Two clients with one seed clear each other's markers.
    pub seed: Option<u64>,
}

/// Which write a marker belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarkerForm {
    /// Each write has markers of its own.
    PerWrite,
    /// All writes of a key share one marker, as in the paper: the replication of one deletes the marker that another
    /// still needs.
    PerKey,
}

/// What to do if a marker cannot be set: the pool does not answer, or its memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenNotSet {
    /// Fail, before anything was written.
    Fail,
    /// Go on. [`RemoteWrite::unmarked`](super::RemoteWrite::unmarked) has the keys that may be read stale until
    /// replication has caught up: the application may read them from the master for a while
    /// ([`read_master`](super::RegionalClient::read_master)), or accept that.
    AcceptLag,
}

/// Why settings were refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkerSettingsError {
    /// The prefix cannot begin a key.
    KeyPrefix(KeyError),
    /// The prefix leaves no room for a key.
    KeyPrefixTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The life of a marker is out of range.
    Ttl {
        /// The seconds that were given.
        ttl_s: u32,
    },
}

impl Default for MarkerSettings {
    fn default() -> MarkerSettings {
        MarkerSettings {
            key_prefix: "marker:".into(),
            ttl_s: 3_600,
            form: MarkerForm::PerWrite,
            when_not_set: WhenNotSet::Fail,
            when_unknown: ReadFrom::Master,
            seed: None,
        }
    }
}

impl MarkerSettings {
    /// Whether a [`RegionalClient`](super::RegionalClient) can have these settings.
    pub fn check(&self) -> Result<(), MarkerSettingsError> {
        check_key(self.key_prefix.as_bytes()).map_err(MarkerSettingsError::KeyPrefix)?;
        let bytes = self.key_prefix.len();
        if bytes + MARKER_SUFFIX_BYTES >= KEY_BYTES_MAX {
            return Err(MarkerSettingsError::KeyPrefixTooLong { bytes });
        }
        match self.ttl_s {
            1..=TTL_S_MAX => Ok(()),
            ttl_s => Err(MarkerSettingsError::Ttl { ttl_s }),
        }
    }
}

impl std::error::Error for MarkerSettingsError {}

impl fmt::Display for MarkerSettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MarkerSettingsError::KeyPrefix(error) => write!(f, "bad prefix of remote markers: {error}"),
            MarkerSettingsError::KeyPrefixTooLong { bytes } => {
                write!(f, "a prefix of {bytes} bytes leaves no room for a key behind it: a short one is enough")
            }
            MarkerSettingsError::Ttl { ttl_s } => {
                write!(f, "remote markers cannot live for {ttl_s} s: 1 to {TTL_S_MAX}")
            }
        }
    }
}
