//! The long form of routes that fail over, and their options. No request passes here.

use super::{
    Handle, Pool,
    copies::shadows,
    error::{ConfigurationError, suggestion},
    hash::{own_hash, pool_hash, tags},
    json_cursor::{Keys, Node, Object},
    long_form::{EXPTIME_S_MAX, boxed, children, keys},
    names::Names,
};
use crate::{
    Clock, FAILOVER_EXPTIME_S, FailoverError, FailoverErrorSet, FailoverErrors, FailoverPolicy, FailoverRoute, KeyHash,
    LeasePairs, Rate, Route,
};
use std::sync::Arc;

/// What a failover route may be told besides its children.
#[derive(Clone, Debug, PartialEq)]
pub struct FailoverOptions {
    /// Who is asked, in which order.
    pub order: FailoverOrder,
    /// How many tries a request has.
    pub tries_max: u32,
    /// How many children are asked for one request, failures that are no tries among them; the policy's own if not said.
    pub candidates_max: Option<u32>,
    /// Failures that are no tries.
    pub exclude_errors: FailoverErrorSet,
    /// How many requests may fail over.
    pub limit: Option<Rate>,
    /// Whether others than the first child see it by the key.
    pub has_tag: bool,
    /// Who handed out which lease; shared by all trees that are built from this description.
    pub pairs: Option<SharedPairs>,
}

impl Default for FailoverOptions {
    fn default() -> Self {
        FailoverOptions {
            order: FailoverOrder::AsTheyStand,
            tries_max: u32::MAX,
            candidates_max: None,
            exclude_errors: FailoverErrorSet::NONE,
            limit: None,
            has_tag: false,
            pairs: None,
        }
    }
}

/// Pairs of leases and children: memory, not description, so that any two are equal.
#[derive(Clone, Debug, Default)]
pub struct SharedPairs(pub Arc<LeasePairs>);

impl PartialEq for SharedPairs {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The policies of `failover_policy.rs`.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // Each is the policy of its name.
pub enum FailoverOrder {
    AsTheyStand,
    LeastFailures,
    ByKey {
        hash: KeyHash,
        /// What fails together, by child; empty if that does not count.
        domains: Vec<Option<u32>>,
    },
    Rendezvous {
        /// One for each child.
        tags: Vec<String>,
    },
}

impl FailoverOptions {
    /// The route over `children`; with `first` it is that hash that picks the first child, as in a pool.
    pub(super) fn route(
        &self,
        children: Vec<Arc<dyn Route>>,
        first: Option<&KeyHash>,
        errors: FailoverErrors,
        clock: &Arc<dyn Clock>,
    ) -> FailoverRoute {
        let count = children.len();
        let over = |hash: &KeyHash, count: usize| hash.over(count).expect("reading has seen to a hash that fits");
        let policy = match (&self.order, first) {
            (FailoverOrder::ByKey { hash, domains }, Some(first)) => {
                FailoverPolicy::within_pool(over(first, count), over(hash, count), domains.clone())
            }
            (FailoverOrder::ByKey { hash, domains }, None) if count > 1 => {
                FailoverPolicy::by_key(over(hash, count - 1), domains.clone())
            }
            (FailoverOrder::Rendezvous { tags }, _) => FailoverPolicy::rendezvous(tags),
            (FailoverOrder::LeastFailures, _) => FailoverPolicy::least_failures(count),
            _ => FailoverPolicy::in_order(),
        };
        let policy = policy.limited(self.tries_max, self.exclude_errors);
        let policy = match self.candidates_max {
            Some(most) => policy.with_candidates(most),
            None => policy,
        };
        let mut route = FailoverRoute::by_policy(children, errors, policy);
        if let Some(rate) = self.limit {
            route = route.limited(rate, clock.clone());
        }
        if let Some(SharedPairs(pairs)) = &self.pairs {
            route = route.paired(pairs.clone(), clock.clone());
        }
        if self.has_tag { route.tagged() } else { route }
    }
}

pub(super) fn failover_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&keys(&[
        "type",
        "name",
        "children",
        "failover_errors",
        "failover_policy",
        "failover_limit",
        "failover_tag",
        "enable_lease_pairing",
    ]))?;
    let children = children(object, "children", names)?;
    let options = Box::new(options(object, &children.iter().collect::<Vec<_>>())?);
    Ok(Handle::Failover { children, errors: failover_errors(object)?, options })
}

pub(super) fn failover_with_exptime_route<'a>(
    object: &Object<'a>,
    names: &mut Names<'a>,
) -> Result<Handle, ConfigurationError> {
    object.check(&keys(&[
        "type",
        "name",
        "normal",
        "failover",
        "failover_exptime",
        "failover_errors",
        "failover_policy",
        "failover_limit",
        "failover_tag",
        "enable_lease_pairing",
    ]))?;
    let exptime_s = match object.get("failover_exptime") {
        Some(node) => node.integer("seconds", 0, EXPTIME_S_MAX)? as u32,
        None => FAILOVER_EXPTIME_S,
    };
    let normal = boxed(&object.require("normal", "a route")?, names)?;
    let failover = children(object, "failover", names)?;
    let options = Box::new(options(object, &std::iter::once(&*normal).chain(&failover).collect::<Vec<_>>())?);
    Ok(Handle::FailoverWithExptime { normal, failover, exptime_s, errors: failover_errors(object)?, options })
}

pub(super) fn salted_failover_route<'a>(
    object: &Object<'a>,
    names: &mut Names<'a>,
) -> Result<Handle, ConfigurationError> {
    object.check(&keys(&[
        "type",
        "name",
        "pool",
        "hash",
        "shadows",
        "failover_errors",
        "failover_policy",
        "failover_limit",
        "failover_tag",
        "enable_lease_pairing",
    ]))?;
    let (pool, node) = names.pool_of(object)?;
    let hash = pool_hash(object.get("hash"), &pool, &node)?;
    let servers: Vec<Handle> =
        (0..pool.servers.len()).map(|server| Handle::Server { pool: pool.clone(), server }).collect();
    let mut options = Box::new(options(object, &servers.iter().collect::<Vec<_>>())?);
    match &options.order {
        FailoverOrder::ByKey { .. } => {}
        FailoverOrder::AsTheyStand if object.get("failover_policy").is_none() => {
            options.order = FailoverOrder::ByKey { hash: KeyHash::default(), domains: Vec::new() };
        }
        _ => {
            let node = object.get("failover_policy").unwrap_or_else(|| object.node.clone());
            return Err(node.error("within a pool the next server is chosen by key: expected DeterministicOrderPolicy"));
        }
    }
    let shadows = object.get("shadows").map_or(Ok(Vec::new()), |node| shadows(&node, names))?;
    Ok(Handle::SaltedFailover { pool, hash, shadows, errors: failover_errors(object)?, options })
}

/// More requests a second than this nobody sends.
const RATE_MAX: i64 = 1_000_000_000;

/// More tries than this are as good as no limit.
const TRIES_MAX: i64 = 1_000_000;

/// What stands besides the children, of which `children` are all, the first among them.
fn options(object: &Object<'_>, children: &[&Handle]) -> Result<FailoverOptions, ConfigurationError> {
    let flag = |key| object.get(key).map_or(Ok(false), |node| node.boolean());
    let limit = object.get("failover_limit").map(|node| {
        let object = node.object("a limit: an object with \"rate\" and \"burst\"")?;
        object.check(&keys(&["rate", "burst"]))?;
        let per_s = object.require("rate", "requests a second")?.integer("requests a second", 0, RATE_MAX)? as u32;
        let burst = object.get("burst").map(|node| node.integer("requests", 1, RATE_MAX)).transpose()?;
        Ok::<_, ConfigurationError>(Rate { per_s, burst: burst.map_or(per_s.max(1), |burst| burst as u32) })
    });
    let options = FailoverOptions {
        limit: limit.transpose()?,
        has_tag: flag("failover_tag")?,
        pairs: flag("enable_lease_pairing")?.then(SharedPairs::default),
        ..FailoverOptions::default()
    };
    match object.get("failover_policy") {
        Some(node) => policy(&node.object("a policy: an object with a \"type\"")?, children, options),
        None => Ok(options),
    }
}

const POLICIES: [&str; 4] =
    ["DeterministicOrderPolicy", "FailoverInOrderPolicy", "LeastFailuresPolicy", "RendezvousPolicy"];

const IN_ORDER: Keys = keys(&["type", "max_tries", "exclude_errors"]);
const LEAST_FAILURES: Keys = keys(&["type", "max_tries"]);
const RENDEZVOUS: Keys = keys(&["type", "max_tries", "max_error_tries", "exclude_errors", "tags"]);
const DETERMINISTIC: Keys = Keys {
    known: &["type", "max_tries", "max_error_tries", "exclude_errors", "hash", "enable_failure_domains"],
    ignored: &["ignore_normal_reply_index"],
    refused: &[],
};

fn policy(
    object: &Object<'_>,
    children: &[&Handle],
    options: FailoverOptions,
) -> Result<FailoverOptions, ConfigurationError> {
    let count = |key| object.get(key).map(|node| node.integer("children", 1, TRIES_MAX)).transpose();
    let kind = object.get("type");
    let kind = kind.as_ref().map_or(Ok("FailoverInOrderPolicy"), |node| node.string("the policy's type"))?;
    let (known, order) = match kind {
        "FailoverInOrderPolicy" => (&IN_ORDER, FailoverOrder::AsTheyStand),
        "LeastFailuresPolicy" => (&LEAST_FAILURES, FailoverOrder::LeastFailures),
        "RendezvousPolicy" => (&RENDEZVOUS, FailoverOrder::Rendezvous { tags: rendezvous_tags(object, children)? }),
        "DeterministicOrderPolicy" => (&DETERMINISTIC, by_key(object, children)?),
        other => {
            let node = object.get("type").unwrap_or_else(|| object.node.clone());
            let known = suggestion(other, "policies", POLICIES);
            return Err(node.error(format!("no failover policy is named {other:?}{known}")));
        }
    };
    object.check(known)?;
    Ok(FailoverOptions {
        order,
        tries_max: count("max_tries")?.map_or(u32::MAX, |count| count as u32),
        candidates_max: count("max_error_tries")?.map(|count| count as u32),
        exclude_errors: object.get("exclude_errors").map_or(Ok(FailoverErrorSet::NONE), |node| error_set(&node))?,
        ..options
    })
}

fn by_key(object: &Object<'_>, children: &[&Handle]) -> Result<FailoverOrder, ConfigurationError> {
    let hash = object.get("hash").map_or(Ok(KeyHash::default()), |node| own_hash(&node))?;
    // Whether over all children or all but one, a hash without names or weights fits both.
    for count in [children.len().max(2) - 1, children.len()] {
        hash.check(count).map_err(|error| object.node.error(error.to_string()))?;
    }
    let domain = |handle: &&Handle| match handle {
        Handle::Server { pool, server } => pool.failure_domains.get(*server).copied(),
        _ => None,
    };
    let domains = match object.get("enable_failure_domains").map_or(Ok(false), |node| node.boolean())? {
        true => children.iter().map(domain).collect(),
        false => Vec::new(),
    };
    Ok(FailoverOrder::ByKey { hash, domains })
}

/// Those that are said, or those of the servers that the children are.
fn rendezvous_tags(object: &Object<'_>, children: &[&Handle]) -> Result<Vec<String>, ConfigurationError> {
    let of_server =
        |pool: &Pool, server: usize| pool.tags.get(server).cloned().unwrap_or_else(|| pool.servers[server].to_string());
    let node = object.get("tags").unwrap_or_else(|| object.node.clone());
    let tags = match object.get("tags") {
        Some(node) => tags(&node)?,
        None => {
            let tag = |handle: &&Handle| match handle {
                Handle::Server { pool, server } => Some(of_server(pool, *server)),
                _ => None,
            };
            children.iter().map_while(tag).collect()
        }
    };
    match tags.len() == children.len() {
        true => Ok(tags),
        false => Err(node.error(format!(
            "{} tags for {} children: expected \"tags\" with one for each, the first child among them",
            tags.len(),
            children.len()
        ))),
    }
}

/// A list of names, or a list for each of `gets`, `updates`, `deletes`.
pub(super) fn failover_errors(object: &Object<'_>) -> Result<FailoverErrors, ConfigurationError> {
    let Some(node) = object.get("failover_errors") else { return Ok(FailoverErrors::default()) };
    if !node.is_object() {
        return error_set(&node).map(FailoverErrors::same);
    }
    let object = node.object("failover errors")?;
    object.check(&keys(&["gets", "updates", "deletes"]))?;
    let of = |kind| object.get(kind).map_or(Ok(FailoverErrorSet::ALL), |node| error_set(&node));
    Ok(FailoverErrors { gets: of("gets")?, updates: of("updates")?, deletes: of("deletes")? })
}

fn error_set(node: &Node<'_>) -> Result<FailoverErrorSet, ConfigurationError> {
    let names = FailoverError::ALL.map(FailoverError::name);
    let named = |node: &Node<'_>| {
        let text = node.string("the name of an error, such as \"timeout\"")?;
        let error = FailoverError::ALL.into_iter().find(|error| error.name() == text);
        error.ok_or_else(|| node.error(format!("no error is named {text:?}{}", suggestion(text, "errors", names))))
    };
    node.array("a list of errors")?.iter().map(named).collect()
}
