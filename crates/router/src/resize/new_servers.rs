//! Empties a server before it joins a pool, or finds it empty: it has missed deletes, so its content is of unknown age,
//! and its leases are.

use super::coverage::Emptying;
use super::leases::{RemainingLeases, void_leases};
use lookaside_client::{CommandConnection, CommandError, Network};
use lookaside_protocol::text::{Limits, ReplyPart};
use lookaside_routing::Address;
use std::time::Duration;

/// The limit on one server, connecting included.
const TIMEOUT: Duration = Duration::from_secs(2);
const LIMITS: Limits = Limits { value_bytes_max: 0, line_bytes_max: 2_048 };

/// What was found, and done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emptied {
    /// It held no items.
    WasEmpty,
    Flushed,
    /// It was flushed because its leases could not be voided otherwise.
    FlushedWithLeases,
    /// It holds items, or does not tell, and was not to be flushed.
    HoldsItems,
}

/// Flushes `server` unless it holds no items; with [`Emptying::Check`] one that holds items is left as it is. A server
/// that refuses `flush_all` can be restarted instead.
///
/// Leases are voided before the items are counted: a fill that comes before is counted, and one that comes after is
/// refused. A server that has leases and does not know `lease-void-all` is flushed in any case, which voids them, too.
pub(crate) async fn empty_server(
    network: &dyn Network,
    server: &Address,
    emptying: Emptying,
) -> Result<Emptied, CommandError> {
    let mut connection = CommandConnection::connect(network, server, LIMITS, TIMEOUT).await?;
    // Before anything is done to it: clients of another cluster hold its leases.
    if emptying == Emptying::Check && !holds_no_items(&mut connection).await? {
        return Ok(Emptied::HoldsItems);
    }
    if void_leases(&mut connection).await? == RemainingLeases::All {
        connection.flush_all(None).await?;
        return Ok(Emptied::FlushedWithLeases);
    }
    if holds_no_items(&mut connection).await? {
        return Ok(Emptied::WasEmpty);
    }
    match emptying {
        Emptying::Check => Ok(Emptied::HoldsItems),
        Emptying::Flush => {
            connection.flush_all(None).await?;
            Ok(Emptied::Flushed)
        }
    }
}

async fn holds_no_items(connection: &mut CommandConnection) -> Result<bool, CommandError> {
    connection.send(b"stats\r\n").await?;
    let mut is_empty = false;
    connection.read_until_end(|part| is_empty |= part == ReplyPart::Stat { name: b"curr_items", value: b"0" }).await?;
    Ok(is_empty)
}
