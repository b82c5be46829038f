//! Whether a server has the log of another, whose place it took: after a failover to a promoted replica, or under a new
//! `server_uuid`.
//!
//! Serves the start of the delete path. GTIDs mean the same on each server of a replication topology. A server of the
//! same history that lacks a part of the position (an asynchronous replica that was promoted) is found when a source is
//! opened: it refuses the dump, the position is lost, and the operator chooses.

use super::{
    connection::MysqlConnection,
    gtid::{GtidList, GtidPosition, GtidSet},
    server_check::Server,
};
use crate::{Position, SourceError};

/// Whether the log of `server` has a transaction of the same origin as one in `position`, which was read from the log
/// `former`.
pub async fn continues(
    connection: &mut MysqlConnection,
    server: &Server,
    former: &str,
    position: &Position,
) -> Result<bool, SourceError> {
    let kind = |identity: &str| identity.split(':').next().map(str::to_owned);
    if kind(former) != kind(&server.identity) {
        return Ok(false);
    }
    match server.parse(&position.0)? {
        GtidPosition::Mysql(position) => {
            let executed = connection.query_one("SELECT @@global.gtid_executed").await?.unwrap_or_default();
            Ok(GtidSet::parse(&executed).is_some_and(|executed| executed.shares_origin(&position)))
        }
        GtidPosition::Mariadb(position) => {
            // Unlike a position, the state has the last transaction of every server in each domain.
            let state = connection.query_one("SELECT @@global.gtid_binlog_state").await?.unwrap_or_default();
            let mut origins = state.split(',').filter_map(GtidList::parse);
            Ok(origins.any(|origin| origin.shares_origin(&position)))
        }
    }
}
