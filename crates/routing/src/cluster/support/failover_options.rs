//! The options that the failover routes share, and how they are written. No request passes here.

use super::{
    failover_errors::{FailoverErrorSet, FailoverErrors, parse_error_set, parse_failover_errors},
    failover_policy::FailoverPolicy,
    lease_pairing::LeasePairs,
    token_bucket::Rate,
};
use crate::{
    KeyHash,
    configuration::{ConfigurationError, Handle, Keys, Object, Pool, parse_hash, parse_tags, suggestion},
};
use std::sync::Arc;

pub(crate) const FAILOVER_KEYS: &[&str] =
    &["failover_errors", "failover_policy", "failover_limit", "failover_tag", "enable_lease_pairing"];

/// The arguments of a failover route besides its children.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FailoverOptions {
    pub(crate) errors: FailoverErrors,
    pub(crate) order: FailoverOrder,
    pub(crate) tries_max: u32,
    /// The maximum number of children that are asked for one request, including failures that are not tries; `None` for
    /// the default of the policy.
    pub(crate) candidates_max: Option<u32>,
    pub(crate) exclude_errors: FailoverErrorSet,
    pub(crate) limit: Option<Rate>,
    /// Whether keys are tagged for children other than the first.
    pub(crate) has_tag: bool,
    /// The lease pairs, shared by all trees that are built from this description; `None` without lease pairing.
    pub(crate) pairs: Option<SharedPairs>,
}

impl Default for FailoverOptions {
    fn default() -> Self {
        FailoverOptions {
            errors: FailoverErrors::default(),
            order: FailoverOrder::InOrder,
            tries_max: u32::MAX,
            candidates_max: None,
            exclude_errors: FailoverErrorSet::NONE,
            limit: None,
            has_tag: false,
            pairs: None,
        }
    }
}

/// Pairs of leases and children. State, not description: any two are equal.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedPairs(pub(crate) Arc<LeasePairs>);

impl PartialEq for SharedPairs {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The policies of `failover_policy.rs`, each by its name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FailoverOrder {
    InOrder,
    LeastFailures,
    ByKey {
        hash: KeyHash,
        /// The failure domain of each child; empty if failure domains are not enabled.
        domains: Vec<Option<u32>>,
    },
    Rendezvous {
        /// One for each child.
        tags: Vec<String>,
    },
}

/// More tries than this are as good as no limit.
const TRIES_MAX: i64 = 1_000_000;

impl FailoverOptions {
    /// Parses the keys of [`FAILOVER_KEYS`] for a route with `children`, the first among them.
    pub(crate) fn parse(object: &Object<'_>, children: &[Handle]) -> Result<FailoverOptions, ConfigurationError> {
        let limit = object.get("failover_limit").map(|node| {
            let object = node.object("a limit: an object with \"rate\" and \"burst\"")?;
            object.check(&Keys::known(&["rate", "burst"]))?;
            Rate::parse(&object.require("rate", "requests a second")?, object.get("burst").as_ref())
        });
        let options = FailoverOptions {
            limit: limit.transpose()?,
            has_tag: object.flag("failover_tag")?,
            pairs: object.flag("enable_lease_pairing")?.then(SharedPairs::default),
            ..FailoverOptions::default()
        };
        let options = match object.get("failover_policy") {
            Some(node) => parse_policy(&node.object("a policy: an object with a \"type\"")?, children, options)?,
            None => options,
        };
        Ok(FailoverOptions { errors: parse_failover_errors(object)?, ..options })
    }

    /// The policy over `children` children. With `first`, that hash picks the first child, as in a pool.
    pub(crate) fn policy(&self, children: usize, first: Option<&KeyHash>) -> FailoverPolicy {
        let over = |hash: &KeyHash, count: usize| hash.picker_for(count).expect("the parser checks that the hash fits");
        let policy = match (&self.order, first) {
            (FailoverOrder::ByKey { hash, domains }, Some(first)) => {
                FailoverPolicy::within_pool(over(first, children), over(hash, children), domains.clone())
            }
            (FailoverOrder::ByKey { hash, domains }, None) if children > 1 => {
                FailoverPolicy::by_key(over(hash, children - 1), domains.clone())
            }
            (FailoverOrder::Rendezvous { tags }, _) => FailoverPolicy::rendezvous(tags),
            (FailoverOrder::LeastFailures, _) => FailoverPolicy::least_failures(children),
            _ => FailoverPolicy::in_order(),
        };
        let policy = policy.with_tries(self.tries_max, self.exclude_errors);
        match self.candidates_max {
            Some(max) => policy.with_candidates(max),
            None => policy,
        }
    }
}

const POLICIES: [&str; 4] =
    ["DeterministicOrderPolicy", "FailoverInOrderPolicy", "LeastFailuresPolicy", "RendezvousPolicy"];

const IN_ORDER: Keys = Keys::known(&["type", "max_tries", "exclude_errors"]);
const LEAST_FAILURES: Keys = Keys::known(&["type", "max_tries"]);
const RENDEZVOUS: Keys = Keys::known(&["type", "max_tries", "max_error_tries", "exclude_errors", "tags"]);
const DETERMINISTIC: Keys =
    Keys::known(&["type", "max_tries", "max_error_tries", "exclude_errors", "hash", "enable_failure_domains"])
        .ignoring(&["ignore_normal_reply_index"]);

fn parse_policy(
    object: &Object<'_>,
    children: &[Handle],
    options: FailoverOptions,
) -> Result<FailoverOptions, ConfigurationError> {
    let count = |key| object.get(key).map(|node| node.integer("children", 1, TRIES_MAX)).transpose();
    let kind = object.get("type");
    let kind = kind.as_ref().map_or(Ok("FailoverInOrderPolicy"), |node| node.string("the policy's type"))?;
    let (known, order) = match kind {
        "FailoverInOrderPolicy" => (&IN_ORDER, FailoverOrder::InOrder),
        "LeastFailuresPolicy" => (&LEAST_FAILURES, FailoverOrder::LeastFailures),
        "RendezvousPolicy" => {
            (&RENDEZVOUS, FailoverOrder::Rendezvous { tags: parse_rendezvous_tags(object, children)? })
        }
        "DeterministicOrderPolicy" => (&DETERMINISTIC, parse_by_key(object, children)?),
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
        exclude_errors: object
            .get("exclude_errors")
            .map_or(Ok(FailoverErrorSet::NONE), |node| parse_error_set(&node))?,
        ..options
    })
}

fn parse_by_key(object: &Object<'_>, children: &[Handle]) -> Result<FailoverOrder, ConfigurationError> {
    let hash = object.get("hash").map_or(Ok(KeyHash::default()), |node| parse_hash(&node))?;
    // The hash is over all children, or over all but the first.
    for count in [children.len().max(2) - 1, children.len()] {
        hash.check(count).map_err(|error| object.node.error(error.to_string()))?;
    }
    let domain = |handle: &Handle| match handle {
        Handle::Server { pool, server } => pool.failure_domains.get(*server).copied(),
        _ => None,
    };
    let domains = match object.get("enable_failure_domains").map_or(Ok(false), |node| node.boolean())? {
        true => children.iter().map(domain).collect(),
        false => Vec::new(),
    };
    Ok(FailoverOrder::ByKey { hash, domains })
}

/// The tags at `tags`, or those of the servers if all children are servers.
fn parse_rendezvous_tags(object: &Object<'_>, children: &[Handle]) -> Result<Vec<String>, ConfigurationError> {
    let of_server =
        |pool: &Pool, server: usize| pool.tags.get(server).cloned().unwrap_or_else(|| pool.servers[server].to_string());
    let node = object.get("tags").unwrap_or_else(|| object.node.clone());
    let tags = match object.get("tags") {
        Some(node) => parse_tags(&node)?,
        None => {
            let tag = |handle: &Handle| match handle {
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
