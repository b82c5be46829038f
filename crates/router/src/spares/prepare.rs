//! Prepares a spare before it serves, on a dedicated connection: the spare is flushed, unless it has the pool's mark.
//!
//! ```text
//!   get lookaside-spare:0f3a...      found: it was flushed as a spare of this pool and has had every delete since
//!   flush_all                        not found: it may have values from an earlier role
//!   set lookaside-spare:0f3a... 0 600 1
//! ```
//!
//! The mark is an item, so it is lost whenever the content is: a spare that was restarted or flushed has neither. Its
//! key is derived from the pool's name, servers and spares, so a changed pool has another one. It expires after
//! [`MARK_S`] seconds and is renewed while the spare serves, so a spare that had another role for longer is flushed
//! when it returns to this one. If a mark is lost (evicted, for example), the spare is flushed once more than
//! necessary.

use lookaside_client::{CommandConnection, CommandError, Network};
use lookaside_protocol::text::{Limits, ReplyPart};
use lookaside_routing::{Address, Pool, fnv1a_64};
use std::fmt;
use std::time::Duration;

/// The expiry of a mark, in seconds.
const MARK_S: u64 = 600;
/// How often it is renewed.
pub(super) const MARK_INTERVAL: Duration = Duration::from_secs(60);
/// The time for all commands to one spare, including the connection.
const TIMEOUT: Duration = Duration::from_secs(1);
const LIMITS: Limits = Limits { value_bytes_max: 1_024, line_bytes_max: 2_048 };

#[derive(Debug)]
pub(super) enum PrepareError {
    Connection(CommandError),
    FlushRefused(CommandError),
}

impl fmt::Display for PrepareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrepareError::Connection(error) => error.fmt(f),
            PrepareError::FlushRefused(error) => {
                write!(f, "it refuses flush_all ({error}) and may have deleted values; allow flush_all, or restart it")
            }
        }
    }
}

impl From<CommandError> for PrepareError {
    fn from(error: CommandError) -> PrepareError {
        PrepareError::Connection(error)
    }
}

/// The key of the mark on spares of `pool`.
pub(super) fn mark_key(pool: &Pool) -> String {
    let addresses = |of: &'_ [Address]| of.iter().map(|address| address.0.clone()).collect::<Vec<_>>();
    let words = [[pool.name.as_str().into()].to_vec(), addresses(&pool.servers), addresses(&pool.spares)].concat();
    // The same in every router, and different for two pools of one router.
    let hash = fnv1a_64(words.iter().flat_map(|word| word.bytes().chain([0])));
    format!("lookaside-spare:{hash:016x}")
}

/// Prepares the spare at `address` to serve. True if it was flushed.
pub(super) async fn prepare(
    network: &dyn Network,
    address: &Address,
    mark: &str,
    is_mark_trusted: bool,
) -> Result<bool, PrepareError> {
    let mut spare = connect(network, address).await?;
    if is_mark_trusted && has_mark(&mut spare, mark).await? {
        return Ok(false);
    }
    flush(&mut spare).await?;
    set_mark(&mut spare, mark).await?;
    Ok(true)
}

pub(super) async fn remove_mark(network: &dyn Network, address: &Address, mark: &str) -> Result<(), CommandError> {
    let mut spare = connect(network, address).await?;
    spare.send(format!("delete {mark}\r\n").as_bytes()).await?;
    spare.read_part().await.map(drop)
}

/// Renews the expiry of the mark.
pub(super) async fn renew_mark(network: &dyn Network, address: &Address, mark: &str) -> Result<(), CommandError> {
    set_mark(&mut connect(network, address).await?, mark).await
}

async fn connect(network: &dyn Network, address: &Address) -> Result<CommandConnection, CommandError> {
    CommandConnection::connect(network, address, LIMITS, TIMEOUT).await
}

async fn has_mark(spare: &mut CommandConnection, mark: &str) -> Result<bool, CommandError> {
    spare.send(format!("get {mark}\r\n").as_bytes()).await?;
    let mut has_mark = false;
    spare.read_until_end(|part| has_mark |= matches!(part, ReplyPart::Item { .. })).await?;
    Ok(has_mark)
}

async fn flush(spare: &mut CommandConnection) -> Result<(), PrepareError> {
    spare.flush_all(None).await.map_err(|error| match error {
        error @ CommandError::Refused(_) => PrepareError::FlushRefused(error),
        error => PrepareError::Connection(error),
    })
}

/// A spare that does not store the mark serves all the same; it is flushed more often.
async fn set_mark(spare: &mut CommandConnection, mark: &str) -> Result<(), CommandError> {
    spare.send(format!("set {mark} 0 {MARK_S} 1\r\n1\r\n").as_bytes()).await?;
    spare.read_part().await.map(drop)
}
