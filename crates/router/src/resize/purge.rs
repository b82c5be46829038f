//! Removes copies that a server holds and is no longer sent deletes for, after a change of the configuration. Its
//! leases are voided first: a fill that comes before is listed, and one that comes after is refused.
//!
//! ```text
//!   lease-void-all               OK                 or ERROR, of a server without leases ([`super::leases`])
//!   lru_crawler mgdump hash      mg user:1          a key that no covered configuration places here: deleted
//!                                mg AP8= b          a key in base64
//!                                EN
//! ```
//!
//! The listing is read no faster than [`PurgeLimits`] allow, and a server writes no faster than it is read. It misses
//! no item that stays for its whole time. Items that arrive meanwhile are not misplaced: no router reads, and so none
//! fills, by the former configuration.
//!
//! Deletes travel on a second connection, since the listing occupies the first.

use super::leases::{RemainingLeases, void_leases};
use bytes::Bytes;
use lookaside_client::{CommandConnection, CommandError, Network};
use lookaside_protocol::meta::{MetaStatus, decode_key, encode_key};
use lookaside_protocol::text::{Limits, ReplyPart};
use lookaside_protocol::{KEY_BYTES_MAX, Reply, check_key};
use lookaside_routing::Address;
use lookaside_sync::SharedCounter;
use std::fmt;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The limit on connecting, and on each step after it.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Lines of a listing are keys, in base64 at most 4/3 as long.
const LIMITS: Limits = Limits { value_bytes_max: 0, line_bytes_max: 2 * KEY_BYTES_MAX };
/// Deletes that are sent before their replies are read.
const DELETES_PER_STEP: usize = 100;
/// Keys that are listed between two comparisons with the clock.
const KEYS_PER_STEP: u64 = 500;

/// How many keys all routers together list per second: a server with ten million items takes each of two routers 200 s.
const KEYS_PER_S_MAX: u32 = 100_000;

/// Bounds on the load of a purge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PurgeLimits {
    /// Keys listed per second.
    pub(crate) keys_per_s_max: u32,
}

impl PurgeLimits {
    /// The part of one of `routers` that may all list the same server.
    pub(crate) fn shared_by(routers: usize) -> PurgeLimits {
        let routers = u32::try_from(routers.max(1)).unwrap_or(u32::MAX);
        PurgeLimits { keys_per_s_max: (KEYS_PER_S_MAX / routers).max(1) }
    }
}

/// The counters of all purges.
#[derive(Debug, Default)]
pub(crate) struct PurgeCounters {
    pub(crate) keys_checked: SharedCounter,
    pub(crate) keys_removed: SharedCounter,
}

/// Why a server may still hold misplaced copies.
#[derive(Debug)]
pub(crate) enum PurgeError {
    Connection(CommandError),
    /// The server has leases, and cannot void them.
    LeasesHold,
    /// The server cannot list its keys, or not now; the field is its reply.
    NoListing(String),
    /// The server refuses to delete a key.
    DeleteRefused(String),
}

impl fmt::Display for PurgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PurgeError::Connection(error) => error.fmt(f),
            PurgeError::LeasesHold => {
                write!(f, "the server has leases and does not know lease-void-all; upgrade it")
            }
            PurgeError::NoListing(reply) => write!(f, "the server does not list its keys: {reply}"),
            PurgeError::DeleteRefused(reply) => write!(f, "the server refuses a delete: {reply}"),
        }
    }
}

impl From<CommandError> for PurgeError {
    fn from(error: CommandError) -> PurgeError {
        PurgeError::Connection(error)
    }
}

/// Voids the leases of `server`, deletes every key that `is_misplaced`, and returns the number of deleted keys. After
/// an error some may remain.
pub(crate) async fn purge_server(
    network: &dyn Network,
    server: &Address,
    is_misplaced: &(dyn Fn(&Bytes) -> bool + Sync),
    limits: PurgeLimits,
    counters: &PurgeCounters,
) -> Result<u64, PurgeError> {
    let mut connection = connect(network, server).await?;
    if void_leases(&mut connection).await? == RemainingLeases::All {
        return Err(PurgeError::LeasesHold);
    }
    let mut listing = open_listing(network, server).await?;
    let mut deletes = Deletes { connection, requests: Vec::new(), count: 0 };
    let (started, mut listed, mut removed) = (Instant::now(), 0, 0);
    loop {
        listing.set_timeout(STEP_TIMEOUT);
        let line = listing.read_line().await?;
        if line == b"EN" {
            break;
        }
        let key = parse_key(line).ok_or_else(|| PurgeError::NoListing(text(line)))?;
        listed += 1;
        counters.keys_checked.add(1);
        if is_misplaced(&key) {
            deletes.add(&key);
            if deletes.count == DELETES_PER_STEP {
                removed += deletes.send(counters).await?;
            }
        }
        if listed % KEYS_PER_STEP == 0 {
            let due = Duration::from_secs_f64(listed as f64 / f64::from(limits.keys_per_s_max.max(1)));
            sleep_until(started + due).await;
            tokio::task::yield_now().await;
        }
    }
    removed += deletes.send(counters).await?;
    Ok(removed)
}

async fn connect(network: &dyn Network, server: &Address) -> Result<CommandConnection, CommandError> {
    CommandConnection::connect(network, server, LIMITS, STEP_TIMEOUT).await
}

/// A connection whose next line is the first of the listing.
async fn open_listing(network: &dyn Network, server: &Address) -> Result<CommandConnection, PurgeError> {
    let mut refusal = String::new();
    // The order of the index is preferred: in that of the LRU lists an item can move to where the crawler has been.
    for classes in ["hash", "all"] {
        let mut connection = connect(network, server).await?;
        connection.send(format!("lru_crawler mgdump {classes}\r\n").as_bytes()).await?;
        match connection.read_line().await? {
            b"OK" => return Ok(connection),
            line => refusal = text(line),
        }
    }
    Err(PurgeError::NoListing(refusal))
}

/// The key in `mg KEY` or `mg BASE64 b`.
fn parse_key(line: &[u8]) -> Option<Bytes> {
    let key = line.strip_prefix(b"mg ")?;
    match key.strip_suffix(b" b") {
        None => Some(Bytes::copy_from_slice(key)),
        Some(encoded) => decode_key(encoded, &mut [0; KEY_BYTES_MAX]).map(Bytes::copy_from_slice),
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

/// Deletes that have no reply yet.
struct Deletes {
    connection: CommandConnection,
    requests: Vec<u8>,
    count: usize,
}

impl Deletes {
    fn add(&mut self, key: &[u8]) {
        if check_key(key).is_ok() {
            self.requests.extend_from_slice(b"delete ");
            self.requests.extend_from_slice(key);
        } else {
            self.requests.extend_from_slice(b"md ");
            encode_key(key, &mut self.requests);
            self.requests.extend_from_slice(b" b");
        }
        self.requests.extend_from_slice(b"\r\n");
        self.count += 1;
    }

    /// Sends them, and returns how many keys are gone.
    async fn send(&mut self, counters: &PurgeCounters) -> Result<u64, PurgeError> {
        let mut removed = 0;
        self.connection.set_timeout(STEP_TIMEOUT);
        self.connection.send(&self.requests).await?;
        for _ in 0..self.count {
            match self.connection.read_part().await? {
                ReplyPart::Reply(Reply::Deleted) => removed += 1,
                ReplyPart::Reply(Reply::Meta(reply)) if reply.status == MetaStatus::Done => removed += 1,
                // Another router has removed it, or it has expired.
                ReplyPart::Reply(Reply::NotFound | Reply::Meta(_)) => {}
                other => return Err(PurgeError::DeleteRefused(format!("{other:?}"))),
            }
        }
        counters.keys_removed.add(removed);
        self.requests.clear();
        self.count = 0;
        Ok(removed)
    }
}

#[cfg(test)]
mod tests;
