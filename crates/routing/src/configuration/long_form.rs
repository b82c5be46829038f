//! The long form of each route: an object with its keys, one function a route. No request passes here.
//!
//! A route's file under `cluster/` says what it does; here is only what may be written about it, and what mcrouter
//! lets one write that is ignored or refused.

use super::{
    Handle,
    copies::shadows,
    error::{ConfigurationError, suggestion},
    handle::list,
    hash::pool_hash,
    json_cursor::{Keys, Node, Object},
    limits::{outstanding_max, rates},
    names::Names,
    tiers::slow_warm_up,
};
use crate::{DestinationSettings, ExptimeAction, KeyChange, Pool, RoutingPrefix, Verb};
use std::{collections::BTreeMap, sync::Arc};

/// 30 days: above this the protocol takes an exptime for a Unix time.
pub(super) const EXPTIME_S_MAX: i64 = 2_592_000;

pub(super) const fn keys(known: &'static [&'static str]) -> Keys {
    Keys { known, ignored: &[], refused: &[] }
}

const POOL_ROUTE: Keys = Keys {
    known: &["type", "name", "pool", "hash", "max_outstanding", "rates", "shadows", "slow_warmup", "asynclog"],
    ignored: &["asynclog_name", "shadow_policy"],
    refused: &["bucketize", "shard_splits", "split_shard_fanout"],
};

pub(super) fn pool_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&POOL_ROUTE)?;
    let (mut pool, node) = names.pool_of(object)?;
    if let Some(node) = object.get("asynclog") {
        let settings = DestinationSettings { asynclog: node.boolean()?, ..pool.settings };
        pool = Arc::new(Pool { settings, ..Pool::clone(&pool) });
    }
    let hash = pool_hash(object.get("hash"), &pool, &node)?;
    let shadows = object.get("shadows").map_or(Ok(Vec::new()), |node| shadows(&node, names))?;
    let outstanding_max = object.get("max_outstanding").map(|node| outstanding_max(&node)).transpose()?;
    let slow_warm_up = object.get("slow_warmup").map(|node| slow_warm_up(&node, names)).transpose()?.map(Box::new);
    let pool = Handle::Pool { pool, hash, shadows, outstanding_max, slow_warm_up };
    match object.get("rates") {
        None => Ok(pool),
        Some(node) => Ok(Handle::RateLimit { target: Box::new(pool), fallback: None, rates: rates(&node)? }),
    }
}

pub(super) fn all_sync_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&keys(&["type", "name", "children"]))?;
    Ok(Handle::AllSync { children: children(object, "children", names)? })
}

pub(super) fn prefix_selector_route<'a>(
    object: &Object<'a>,
    names: &mut Names<'a>,
) -> Result<Handle, ConfigurationError> {
    object.check(&keys(&["type", "name", "policies", "wildcard"]))?;
    let mut policies = BTreeMap::new();
    if let Some(node) = object.get("policies") {
        for (prefix, policy) in node.object("an object with a route for each key prefix")?.entries() {
            policies.insert(prefix.to_owned(), names.handle(&policy)?);
        }
    }
    let wildcard = object.get("wildcard").map(|node| boxed(&node, names)).transpose()?;
    if policies.is_empty() && wildcard.is_none() {
        return Err(object.node.error("no key would have a route: expected \"policies\" or a \"wildcard\""));
    }
    Ok(Handle::PrefixSelector { policies, wildcard })
}

pub(super) fn operation_selector_route<'a>(
    object: &Object<'a>,
    names: &mut Names<'a>,
) -> Result<Handle, ConfigurationError> {
    object.check(&keys(&["type", "name", "default_policy", "operation_policies"]))?;
    let mut operation_policies = Vec::new();
    if let Some(node) = object.get("operation_policies") {
        for (operation, policy) in node.object("an object with a route for each operation")?.entries() {
            let verb = Verb::named(operation).ok_or_else(|| {
                let known = suggestion(operation, "operations", Verb::ALL.map(Verb::name));
                policy.error(format!("no operation is named {operation:?}{known}"))
            })?;
            operation_policies.push((verb, names.handle(&policy)?));
        }
    }
    let default_policy = object.get("default_policy").map(|node| boxed(&node, names)).transpose()?;
    if operation_policies.is_empty() && default_policy.is_none() {
        let expected = "expected \"default_policy\" or \"operation_policies\"";
        return Err(object.node.error(format!("no operation would have a route: {expected}")));
    }
    Ok(Handle::OperationSelector { default_policy, operation_policies })
}

pub(super) fn modify_exptime_route<'a>(
    object: &Object<'a>,
    names: &mut Names<'a>,
) -> Result<Handle, ConfigurationError> {
    object.check(&keys(&["type", "name", "target", "exptime", "action"]))?;
    let action = match object.get("action") {
        None => ExptimeAction::Set,
        Some(node) => match node.string("\"set\" or \"min\"")? {
            "set" => ExptimeAction::Set,
            "min" => ExptimeAction::Min,
            other => return Err(node.error(format!("no action is named {other:?}: expected \"set\" or \"min\""))),
        },
    };
    Ok(Handle::ModifyExptime {
        target: boxed(&object.require("target", "a route")?, names)?,
        exptime_s: object.require("exptime", "seconds")?.integer("seconds", -1, EXPTIME_S_MAX)?,
        action,
    })
}

pub(super) fn modify_key_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys {
        known: &[
            "type",
            "name",
            "target",
            "set_routing_prefix",
            "ensure_key_prefix",
            "replace_key_prefix",
            "set_key_suffix",
        ],
        ignored: &[],
        refused: &["modify_inplace"],
    })?;
    let text = |key: &str| match object.get(key) {
        None => Ok(None),
        Some(node) => {
            let text = node.string("a piece of a key")?;
            match text.bytes().all(|byte| byte.is_ascii_graphic() || byte >= 0x80) {
                true => Ok(Some(text.to_owned())),
                false => Err(node.error("a key has no spaces and no control characters: expected none")),
            }
        }
    };
    let routing_prefix = match object.get("set_routing_prefix") {
        None => None,
        Some(node) => match node.string("a routing prefix such as \"/region/cluster/\", or \"\"")? {
            "" => Some(None),
            text => Some(Some(RoutingPrefix::parse(text).map_err(|error| node.error(error.to_string()))?)),
        },
    };
    let change = KeyChange {
        routing_prefix,
        ensure_prefix: text("ensure_key_prefix")?.unwrap_or_default(),
        replace_prefix: text("replace_key_prefix")?,
        suffix: text("set_key_suffix")?.unwrap_or_default(),
    };
    if change.replace_prefix.is_some() && object.get("ensure_key_prefix").is_none() {
        return Err(object
            .node
            .error("\"replace_key_prefix\" stands alone: expected \"ensure_key_prefix\", its successor"));
    }
    Ok(Handle::ModifyKey { target: boxed(&object.require("target", "a route")?, names)?, change })
}

pub(super) fn dev_null_route(object: &Object<'_>) -> Result<Handle, ConfigurationError> {
    object.check(&keys(&["type", "name"]))?;
    Ok(Handle::DevNull)
}

pub(super) fn error_route(object: &Object<'_>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys {
        known: &["type", "name", "response"],
        ignored: &["enable_logging", "result"],
        refused: &[],
    })?;
    let response = object.get("response").map_or(Ok(""), |node| node.string("the text of the error"))?;
    Ok(Handle::Error { response: response.to_owned() })
}

pub(super) fn null_route(object: &Object<'_>) -> Result<Handle, ConfigurationError> {
    object.check(&keys(&["type", "name"]))?;
    Ok(Handle::Null)
}

/// The list at `key`, which has at least one handle in it.
pub(super) fn children<'a>(
    object: &Object<'a>,
    key: &str,
    names: &mut Names<'a>,
) -> Result<Vec<Handle>, ConfigurationError> {
    let node = object.require(key, "a list of routes")?;
    let children = list(&node, names)?;
    if children.is_empty() {
        return Err(node.error("the list is empty: expected at least one route"));
    }
    Ok(children)
}

pub(super) fn boxed<'a>(node: &Node<'a>, names: &mut Names<'a>) -> Result<Box<Handle>, ConfigurationError> {
    names.handle(node).map(Box::new)
}
