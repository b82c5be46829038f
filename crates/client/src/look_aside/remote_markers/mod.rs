//! Remote markers (§5 of the paper): users in a replica region read their own writes although replication lags.
//!
//! ```text
//!   write of k:  1. set a marker of k in the regional pool         RegionalClient::begin_write
//!                2. write to the master; the transaction names k and the marker      RemoteWrite::keys
//!                3. delete k in the local cluster                  RemoteWrite::finish
//!   replication: the replica applies the transaction; its invalidator deletes k and the marker
//!   miss of k:   lease-get k; then look for markers of k: none -> the replica, one -> the master   ReadFrom
//!   past the cache: look for markers of k, or read the master in any case; fill nothing   read_past_cache, read_master
//! ```
//!
//! The paper has one marker for each key, and accepts a race: the replication of one write deletes the marker of
//! another write that is under way ([`MarkerForm::PerKey`]). By default each write has a marker of its own, which only
//! its own replication deletes ([`MarkerForm::PerWrite`]; `docs/adr/020-remote-markers.md`):
//!
//! | key in the pool | value | deleted by |
//! |---|---|---|
//! | `marker:k|#|TOKEN` | `1` | the invalidator, once the replica has this write |
//! | `marker:k` | the tokens of writes, up to 32 | nothing; it expires, and writers leave out old tokens |
//! | `marker:k|#|0000000000000000` | `1`: stands for the tokens of a list that was full | nothing; it expires |
//!
//! Guarantee, per write: `begin_write` has set all markers, the transaction named [`RemoteWrite::keys`] and committed,
//! and `finish` succeeded. Then a read of k that begins later, through this client's cluster and by a client with the
//! same settings, is not older than the write; provided that no server of the pool lost its memory meanwhile (`-M`,
//! no restart), and that the time from `begin_write` to the commit and the lag of replication are together less than
//! [`MarkerSettings::ttl_s`].
//!
//! A read past the cache (`read_past_cache`) needs neither `finish` nor the same cluster: the pool is the region's, and
//! what a cluster has cached does not matter.
//!
//! Invariants:
//! * What is loaded past the cache is not filled: there is no lease that a delete could void.
//! * For a value that is filled, the markers are looked up after the lease was taken, never before or beside it: a
//!   marker that is not seen was set later, so the delete of its write comes later than the lease and voids it.
//! * A write's own marker is stored before its token is listed: a listed token without a marker is a replicated write.
//! * No step removes a marker that another write may need. Failures keep markers: they cost reads of the master.
//!
//! Deciding and sending are apart: `marking` and `search` are state machines without I/O, which `model` runs in every
//! interleaving.

mod exchange;
mod load;
mod marking;
#[cfg(test)]
mod model;
mod names;
mod regional_client;
mod search;
mod settings;
mod statistics;
mod write;

pub use load::ReadFrom;
pub use regional_client::RegionalClient;
pub use settings::{MarkerForm, MarkerSettings, MarkerSettingsError, WhenNotSet};
pub use statistics::MarkerStatistics;
pub use write::{MarkError, RemoteWrite};
