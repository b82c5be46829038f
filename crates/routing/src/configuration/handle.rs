//! What a configuration says about one node of the tree. No request passes here.
//!
//! ```text
//!   {"type": "PoolRoute", "pool": "A"}    an object with its keys (long_form.rs)
//!   "PoolRoute|A"                         the same, short
//!   "name"                                one of the named handles
//!   "Pool|A"                              in a list of children: each server of the pool
//! ```

use super::{
    FailoverOptions, Pool, copies,
    error::{ConfigurationError, suggestion},
    failover, hash,
    json_cursor::Node,
    limits, long_form,
    names::Names,
    replicas,
    tiers::{self, SharedProgress},
};
use crate::{
    ExptimeAction, FailoverErrors, KeyChange, KeyFraction, KeyHash, L1L2Settings, Latency, Rates, SlowWarmUp, Verb,
    WarmUpEnd,
};
use std::{collections::BTreeMap, sync::Arc};

/// A node of the tree, described.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // Each is the route of its name, and its fields are that route's arguments.
pub enum Handle {
    Pool {
        pool: Arc<Pool>,
        hash: KeyHash,
        shadows: Vec<Shadow>,
        /// For each server.
        outstanding_max: Option<u32>,
        /// Who is asked while a server is cold, and when it is.
        slow_warm_up: Option<Box<(Handle, SlowWarmUp)>>,
    },
    /// One server of a pool, by its index.
    Server {
        pool: Arc<Pool>,
        server: usize,
    },
    Hash {
        children: Vec<Handle>,
        hash: KeyHash,
    },
    Failover {
        children: Vec<Handle>,
        errors: FailoverErrors,
        options: Box<FailoverOptions>,
    },
    FailoverWithExptime {
        normal: Box<Handle>,
        failover: Vec<Handle>,
        exptime_s: u32,
        errors: FailoverErrors,
        options: Box<FailoverOptions>,
    },
    SaltedFailover {
        pool: Arc<Pool>,
        hash: KeyHash,
        shadows: Vec<Shadow>,
        errors: FailoverErrors,
        options: Box<FailoverOptions>,
    },
    AllSync {
        children: Vec<Handle>,
    },
    PrefixSelector {
        policies: BTreeMap<String, Handle>,
        wildcard: Option<Box<Handle>>,
    },
    OperationSelector {
        default_policy: Option<Box<Handle>>,
        operation_policies: Vec<(Verb, Handle)>,
    },
    ModifyExptime {
        target: Box<Handle>,
        exptime_s: i64,
        action: ExptimeAction,
    },
    AllAsync {
        children: Vec<Handle>,
    },
    AllFastest {
        children: Vec<Handle>,
    },
    AllInitial {
        children: Vec<Handle>,
    },
    AllMajority {
        children: Vec<Handle>,
    },
    MissFailover {
        children: Vec<Handle>,
        return_best_on_error: bool,
    },
    Random {
        children: Vec<Handle>,
    },
    HostId {
        children: Vec<Handle>,
        salt: String,
    },
    OriginalClientHash {
        children: Vec<Handle>,
        salt: String,
        offset: usize,
    },
    Latest {
        children: Vec<Handle>,
        failover_count: usize,
        salt: String,
        errors: FailoverErrors,
    },
    ModifyKey {
        target: Box<Handle>,
        change: KeyChange,
    },
    KeySplit {
        destination: Box<Handle>,
        copies: usize,
        all_sync: bool,
        first_hit: bool,
    },
    L1L2Cache {
        l1: Box<Handle>,
        l2: Box<Handle>,
        settings: L1L2Settings,
    },
    Migrate {
        from: Box<Handle>,
        to: Box<Handle>,
        start_unix_s: u64,
        interval_s: u32,
    },
    WarmUp {
        cold: Box<Handle>,
        warm: Box<Handle>,
        exptime_s: i64,
        hold_off_ms: u32,
        /// When it ends, if it does, and how far it is.
        end: Option<(WarmUpEnd, SharedProgress)>,
    },
    Shadowed {
        normal: Box<Handle>,
        shadows: Vec<Shadow>,
    },
    OutstandingLimit {
        target: Box<Handle>,
        outstanding_max: u32,
    },
    RateLimit {
        target: Box<Handle>,
        fallback: Option<Box<Handle>>,
        rates: Rates,
    },
    LatencyInjection {
        child: Box<Handle>,
        latency: Latency,
    },
    Logging {
        target: Option<Box<Handle>>,
    },
    BigValue {
        target: Box<Handle>,
        split_threshold_bytes: usize,
    },
    Staging {
        warm: Box<Handle>,
        staging: Box<Handle>,
        hold_off_ms: u32,
    },
    DevNull,
    Null,
    Error {
        response: String,
    },
    /// The handle at this index of [`super::Configuration::named`].
    Named(usize),
}

/// Who gets copies, and of which requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Shadow {
    /// Who gets them.
    pub target: Handle,
    /// Of which keys.
    pub keys: KeyFraction,
    /// Of which servers of a pool, by index, both ends included.
    pub servers: (usize, usize),
}

/// The routes that a configuration can name here.
const TYPES: [&str; 33] = [
    "AllAsyncRoute",
    "AllFastestRoute",
    "AllInitialRoute",
    "AllMajorityRoute",
    "AllSyncRoute",
    "BigValueRoute",
    "DevNullRoute",
    "ErrorRoute",
    "FailoverRoute",
    "FailoverWithExptimeRoute",
    "HashRoute",
    "HostIdRoute",
    "KeySplitRoute",
    "L1L2CacheRoute",
    "LatencyInjectionRoute",
    "LatestRoute",
    "LoggingRoute",
    "MigrateRoute",
    "MissFailoverRoute",
    "ModifyExptimeRoute",
    "ModifyKeyRoute",
    "NullRoute",
    "OperationSelectorRoute",
    "OriginalClientHashRoute",
    "OutstandingLimitRoute",
    "PoolRoute",
    "PrefixSelectorRoute",
    "RandomRoute",
    "RateLimitRoute",
    "SaltedFailoverRoute",
    "ShadowRoute",
    "StagingRoute",
    "WarmUpRoute",
];

/// Those of mcrouter that are not there yet, to tell them from a slip of the finger.
const TYPES_MISSING: [&str; 6] = [
    "BlackholeRoute",
    "HashStopAllowListRoute",
    "L1L2SizeSplitRoute",
    "LoadBalancerRoute",
    "RoutingGroupRoute",
    "ShardSplitRoute",
];

const A_ROUTE: &str = "a route: an object with a \"type\", or a string such as \"PoolRoute|A\"";

impl Handle {
    /// A pool with nothing around its servers.
    pub(super) fn plain_pool(pool: Arc<Pool>, hash: KeyHash) -> Handle {
        Handle::Pool { pool, hash, shadows: Vec::new(), outstanding_max: None, slow_warm_up: None }
    }

    pub(super) fn read<'a>(node: &Node<'a>, names: &mut Names<'a>) -> Result<Handle, ConfigurationError> {
        if let Some(text) = node.as_string() {
            return short(node, text, names);
        }
        let object = node.object(A_ROUTE)?;
        let type_node = object.require("type", "the route's type, such as \"PoolRoute\"")?;
        match type_node.string("the route's type")? {
            "PoolRoute" => long_form::pool_route(&object, names),
            "HashRoute" => hash::hash_route(&object, names),
            "FailoverRoute" => failover::failover_route(&object, names),
            "FailoverWithExptimeRoute" => failover::failover_with_exptime_route(&object, names),
            "SaltedFailoverRoute" => failover::salted_failover_route(&object, names),
            "AllSyncRoute" => long_form::all_sync_route(&object, names),
            "PrefixSelectorRoute" => long_form::prefix_selector_route(&object, names),
            "OperationSelectorRoute" | "PrefixPolicyRoute" => long_form::operation_selector_route(&object, names),
            "ModifyExptimeRoute" => long_form::modify_exptime_route(&object, names),
            "AllAsyncRoute" => copies::all_async_route(&object, names),
            "AllFastestRoute" => copies::all_fastest_route(&object, names),
            "AllInitialRoute" => copies::all_initial_route(&object, names),
            "AllMajorityRoute" => copies::all_majority_route(&object, names),
            "ShadowRoute" => copies::shadow_route(&object, names),
            "KeySplitRoute" => copies::key_split_route(&object, names),
            "RandomRoute" => replicas::random_route(&object, names),
            "HostIdRoute" => replicas::host_id_route(&object, names),
            "OriginalClientHashRoute" => replicas::original_client_hash_route(&object, names),
            "LatestRoute" => replicas::latest_route(&object, names),
            "MissFailoverRoute" => tiers::miss_failover_route(&object, names),
            "L1L2CacheRoute" => tiers::l1_l2_cache_route(&object, names),
            "MigrateRoute" => tiers::migrate_route(&object, names),
            "StagingRoute" => tiers::staging_route(&object, names),
            "WarmUpRoute" => tiers::warm_up_route(&object, names),
            "BigValueRoute" => limits::big_value_route(&object, names),
            "OutstandingLimitRoute" => limits::outstanding_limit_route(&object, names),
            "RateLimitRoute" => limits::rate_limit_route(&object, names),
            "LatencyInjectionRoute" => limits::latency_injection_route(&object, names),
            "LoggingRoute" => limits::logging_route(&object, names),
            "ModifyKeyRoute" => long_form::modify_key_route(&object, names),
            "DevNullRoute" => long_form::dev_null_route(&object),
            "NullRoute" => long_form::null_route(&object),
            "ErrorRoute" => long_form::error_route(&object),
            other => Err(unknown_type(&type_node, other)),
        }
    }
}

fn unknown_type(node: &Node<'_>, name: &str) -> ConfigurationError {
    let known = suggestion(name, "routes", TYPES);
    match TYPES_MISSING.contains(&name) {
        true => node.error(format!("mcrouter's {name} is not supported; known routes: {}", TYPES.join(", "))),
        false => node.error(format!("no route is named {name:?}{known}")),
    }
}

/// A named handle, or `Type|argument`.
fn short<'a>(node: &Node<'a>, text: &str, names: &mut Names<'a>) -> Result<Handle, ConfigurationError> {
    if let Some(handle) = names.named(node, text)? {
        return Ok(handle);
    }
    let (kind, argument) = text.split_once('|').map_or((text, None), |(kind, argument)| (kind, Some(argument)));
    let hash = KeyHash::default();
    match (kind, argument) {
        ("NullRoute", None) => Ok(Handle::Null),
        ("DevNullRoute", None) => Ok(Handle::DevNull),
        ("LoggingRoute", None) => Ok(Handle::Logging { target: None }),
        ("LoggingRoute", Some(target)) => Ok(Handle::Logging { target: Some(Box::new(short(node, target, names)?)) }),
        ("AllAsyncRoute", Some(children)) => Ok(Handle::AllAsync { children: short_list(node, children, names)? }),
        ("AllFastestRoute", Some(children)) => Ok(Handle::AllFastest { children: short_list(node, children, names)? }),
        ("AllInitialRoute", Some(children)) => Ok(Handle::AllInitial { children: short_list(node, children, names)? }),
        ("AllMajorityRoute", Some(children)) => {
            Ok(Handle::AllMajority { children: short_list(node, children, names)? })
        }
        ("RandomRoute", Some(children)) => Ok(Handle::Random { children: short_list(node, children, names)? }),
        ("HostIdRoute", Some(children)) => {
            Ok(Handle::HostId { children: short_list(node, children, names)?, salt: String::new() })
        }
        ("MissFailoverRoute", Some(children)) => {
            let children = short_list(node, children, names)?;
            Ok(Handle::MissFailover { children, return_best_on_error: false })
        }
        ("ErrorRoute", response) => Ok(Handle::Error { response: response.unwrap_or_default().to_owned() }),
        ("PoolRoute", Some(pool)) => Ok(Handle::plain_pool(names.pool(node, pool)?, hash)),
        ("HashRoute", Some(children)) => Ok(Handle::Hash { children: short_list(node, children, names)?, hash }),
        ("AllSyncRoute", Some(children)) => Ok(Handle::AllSync { children: short_list(node, children, names)? }),
        ("FailoverRoute", Some(children)) => {
            let children = short_list(node, children, names)?;
            Ok(Handle::Failover { children, errors: FailoverErrors::default(), options: Box::default() })
        }
        ("Pool", Some(_)) => Err(node
            .error(format!("{text:?} is a list of servers: expected one route, such as \"PoolRoute|...\" over them"))),
        (kind, argument) if TYPES.contains(&kind) => Err(node.error(match argument {
            None => format!("{kind} needs its arguments: expected {kind}|... or an object with \"type\": {kind:?}"),
            Some(_) => format!("{kind} has no short form: expected an object with \"type\": {kind:?}"),
        })),
        (kind, Some(_)) => Err(unknown_type(node, kind)),
        (kind, None) if TYPES_MISSING.contains(&kind) => Err(unknown_type(node, kind)),
        (name, None) => {
            let known = suggestion(name, "names", names.handle_names().chain(TYPES));
            Err(node.error(format!("no handle is named {name:?}{known}")))
        }
    }
}

/// The servers of `Pool|A`, or the one handle that `text` says.
fn short_list<'a>(node: &Node<'a>, text: &str, names: &mut Names<'a>) -> Result<Vec<Handle>, ConfigurationError> {
    match text.strip_prefix("Pool|") {
        Some(pool) => Ok(servers(names.pool(node, pool)?)),
        None => Ok(vec![short(node, text, names)?]),
    }
}

fn servers(pool: Arc<Pool>) -> Vec<Handle> {
    (0..pool.servers.len()).map(|server| Handle::Server { pool: pool.clone(), server }).collect()
}

/// A list of handles, one handle, or a pool's servers.
pub(super) fn list<'a>(node: &Node<'a>, names: &mut Names<'a>) -> Result<Vec<Handle>, ConfigurationError> {
    let mut handles = Vec::new();
    let elements = if node.is_array() { node.array("a list of routes")? } else { vec![node.clone()] };
    for element in elements {
        match element.as_string() {
            Some(text) => handles.extend(short_list(&element, text, names)?),
            None if is_pool(&element)? => handles.extend(servers(names.inline_pool(&element)?)),
            None => handles.push(names.handle(&element)?),
        }
    }
    Ok(handles)
}

fn is_pool(node: &Node<'_>) -> Result<bool, ConfigurationError> {
    Ok(node.object(A_ROUTE)?.get("type").and_then(|kind| kind.as_string()) == Some("Pool"))
}
