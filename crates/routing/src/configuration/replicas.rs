//! The long form of routes that choose one of several replicas. No request passes here.

use super::{
    Handle,
    error::ConfigurationError,
    failover::failover_errors,
    hash,
    json_cursor::{Keys, Object},
    long_form::{children, keys},
    names::Names,
};
use crate::{LATEST_FAILOVER_COUNT, SERVERS_MAX};

type Read = Result<Handle, ConfigurationError>;

fn salt(object: &Object<'_>) -> Result<String, ConfigurationError> {
    object.get("salt").map_or(Ok(String::new()), |node| hash::salt(&node))
}

pub(super) fn random_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    object.check(&keys(&["type", "name", "children"]))?;
    Ok(Handle::Random { children: children(object, "children", names)? })
}

pub(super) fn host_id_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    object.check(&keys(&["type", "name", "children", "salt"]))?;
    Ok(Handle::HostId { children: children(object, "children", names)?, salt: salt(object)? })
}

pub(super) fn original_client_hash_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    object.check(&keys(&["type", "name", "children", "salt", "offset"]))?;
    let offset = object.get("offset").map_or(Ok(0), |node| node.integer("an offset", 0, SERVERS_MAX as i64))?;
    Ok(Handle::OriginalClientHash {
        children: children(object, "children", names)?,
        salt: salt(object)?,
        offset: offset as usize,
    })
}

pub(super) fn latest_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    object.check(&Keys {
        known: &["type", "name", "children", "failover_count", "salt", "failover_errors"],
        ignored: &["failover_tag", "thread_local_failover"],
        refused: &["weights"],
    })?;
    let count = object.get("failover_count");
    let count = count.map(|node| node.integer("children", 1, SERVERS_MAX as i64)).transpose()?;
    Ok(Handle::Latest {
        children: children(object, "children", names)?,
        failover_count: count.map_or(LATEST_FAILOVER_COUNT, |count| count as usize),
        salt: salt(object)?,
        errors: failover_errors(object)?,
    })
}
