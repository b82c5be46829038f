//! The options that the failover routes share, and how they are written. No request passes here.

use super::{
    failover_errors::{FailoverErrorSet, FailoverErrors, parse_error_set, parse_failover_errors},
    failover_limit::FailoverLimit,
    failover_policy::{CANDIDATES_DEFAULT, FailoverPolicy, FirstChoice},
    lease_pairing::LeasePairs,
};
use crate::{
    KeyHash, Picker,
    configuration::{
        ConfigurationError, Handle, Keys, Node, Object, Parser, TreeState, parse_hash, parse_tags, suggestion,
    },
};
use std::sync::Arc;

pub(crate) const FAILOVER_KEYS: &[&str] =
    &["failover_errors", "failover_policy", "failover_limit", "failover_tag", "enable_lease_pairing"];

/// The arguments of a failover route besides its children.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FailoverOptions {
    pub(crate) errors: FailoverErrors,
    pub(crate) order: FailoverOrder,
    /// The maximum number of children that are asked for one request, the first included.
    pub(crate) children_max: u32,
    /// The maximum number of failures of one request, in which `exclude_errors` are not counted.
    pub(crate) tries_max: u32,
    pub(crate) exclude_errors: FailoverErrorSet,
    pub(crate) limit: Option<FailoverLimit>,
    /// Whether keys are tagged for children other than the first.
    pub(crate) has_tag: bool,
    /// The lease pairs, shared by all trees that are built from this description; `None` without lease pairing.
    pub(crate) pairs: Option<TreeState<LeasePairs>>,
}

impl Default for FailoverOptions {
    fn default() -> Self {
        FailoverOptions {
            errors: FailoverErrors::default(),
            order: FailoverOrder::InOrder,
            children_max: u32::MAX,
            tries_max: u32::MAX,
            exclude_errors: FailoverErrorSet::NONE,
            limit: None,
            has_tag: false,
            pairs: None,
        }
    }
}

/// The policies of `failover_policy.rs`, each by its name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FailoverOrder {
    InOrder,
    LeastFailures,
    ByKey {
        hash: KeyHash,
        first: FirstHash,
        /// The failure domain of each child; empty if failure domains are not enabled.
        domains: Vec<Option<u32>>,
    },
    Rendezvous {
        /// One for each child but the first.
        tags: Vec<String>,
        first: FirstHash,
    },
}

/// How the first child chooses a server for a key: the description of [`FirstChoice`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FirstHash {
    /// The hash and its number of servers.
    hash: Option<(KeyHash, usize)>,
    domains: Vec<Option<u32>>,
    is_asked_again: bool,
}

impl FirstHash {
    fn of(first: &Handle) -> FirstHash {
        let hash = match first {
            Handle::Route(config) => config.key_hash().map(|(hash, children)| (hash.clone(), children)),
            _ => None,
        };
        FirstHash { hash, ..FirstHash::default() }
    }

    fn choice(&self) -> FirstChoice {
        let picker = self.hash.as_ref().map(|(hash, servers)| picker(hash, *servers));
        FirstChoice { picker, domains: self.domains.clone(), is_asked_again: self.is_asked_again }
    }
}

fn picker(hash: &KeyHash, children: usize) -> Picker {
    hash.picker_for(children).expect("the parser checks that the hash fits")
}

/// More tries than this are as good as no limit.
const TRIES_MAX: i64 = 1_000_000;

impl FailoverOptions {
    /// Parses the keys of [`FAILOVER_KEYS`] for a route with `children`, the first among them.
    pub(crate) fn parse(
        object: &Object<'_>,
        children: &[Handle],
        parser: &Parser<'_>,
    ) -> Result<FailoverOptions, ConfigurationError> {
        let options = FailoverOptions {
            limit: FailoverLimit::parse(object)?,
            has_tag: object.flag("failover_tag")?,
            pairs: object.flag("enable_lease_pairing")?.then(TreeState::default),
            ..FailoverOptions::default()
        };
        let children: Vec<&Handle> = children.iter().map(|child| parser.resolve(child)).collect();
        let options = match object.get("failover_policy") {
            Some(node) => {
                let first = parser.resolve_route(children[0]);
                parse_policy(&node.object("a policy: an object with a \"type\"")?, &children, first, options)?
            }
            None => options,
        };
        Ok(FailoverOptions { errors: parse_failover_errors(object)?, ..options })
    }

    /// The policy over `children` children.
    pub(crate) fn policy(&self, children: usize) -> FailoverPolicy {
        let policy = match &self.order {
            FailoverOrder::InOrder => FailoverPolicy::in_order(),
            FailoverOrder::LeastFailures => FailoverPolicy::least_failures(children),
            FailoverOrder::ByKey { hash, first, domains } => {
                FailoverPolicy::by_key(picker(hash, children), first.choice(), domains.clone())
            }
            FailoverOrder::Rendezvous { tags, first } => FailoverPolicy::rendezvous(tags, first.choice()),
        };
        policy.with_tries(self.tries_max, self.exclude_errors).with_children(self.children_max)
    }

    /// The same for children of which it is not known here which come first.
    pub(crate) fn of_unknown_children(mut self, object: &Object<'_>) -> Result<FailoverOptions, ConfigurationError> {
        match &mut self.order {
            FailoverOrder::ByKey { domains, .. } if !domains.is_empty() => Err(object.node.error(
                "the children that are asked depend on the host, and so do their failure domains: expected no \
                 \"enable_failure_domains\"",
            )),
            FailoverOrder::ByKey { first, .. } | FailoverOrder::Rendezvous { first, .. } => {
                *first = FirstHash::default();
                Ok(self)
            }
            _ => Ok(self),
        }
    }

    /// The order of a pool whose servers stand in for each other, unless a policy says so.
    pub(crate) fn within_pool(first: &Handle) -> FailoverOptions {
        let first = FirstHash::of(first);
        let order = FailoverOrder::ByKey { hash: KeyHash::default(), first, domains: Vec::new() };
        FailoverOptions { order, children_max: CANDIDATES_DEFAULT, ..FailoverOptions::default() }
    }
}

const POLICIES: [&str; 4] =
    ["DeterministicOrderPolicy", "FailoverInOrderPolicy", "LeastFailuresPolicy", "RendezvousPolicy"];

// mcrouter reads the options of the first one without effect, and so they are ignored with a warning.
const IN_ORDER: Keys = Keys::known(&["type"]).ignoring(&["max_tries", "exclude_errors"]);
const LEAST_FAILURES: Keys = Keys::known(&["type", "max_tries"]);
const RENDEZVOUS: Keys =
    Keys::known(&["type", "tags"]).ignoring(&["hash", "max_tries", "max_error_tries", "exclude_errors"]);
const DETERMINISTIC: Keys =
    Keys::known(&["type", "max_tries", "max_error_tries", "exclude_errors", "hash", "enable_failure_domains"])
        .and(&["ignore_normal_reply_index"]);

/// Parses a policy over `children`; `first` is the route of the first one.
fn parse_policy(
    object: &Object<'_>,
    children: &[&Handle],
    first: &Handle,
    options: FailoverOptions,
) -> Result<FailoverOptions, ConfigurationError> {
    let kind = object.get("type");
    let kind = kind.as_ref().map_or(Ok("FailoverInOrderPolicy"), |node| node.string("the policy's type"))?;
    match kind {
        "FailoverInOrderPolicy" => {
            object.check(&IN_ORDER)?;
            Ok(options)
        }
        "LeastFailuresPolicy" => {
            object.check(&LEAST_FAILURES)?;
            let tries_max = object.get("max_tries").map_or(Ok(u32::MAX), |node| parse_count(&node))?;
            Ok(FailoverOptions { order: FailoverOrder::LeastFailures, tries_max, ..options })
        }
        "RendezvousPolicy" => {
            object.check(&RENDEZVOUS)?;
            let first = FirstHash::of(first);
            let order = FailoverOrder::Rendezvous { tags: parse_rendezvous_tags(object, children)?, first };
            Ok(FailoverOptions { order, ..options })
        }
        "DeterministicOrderPolicy" => {
            object.check(&DETERMINISTIC)?;
            Ok(FailoverOptions {
                order: parse_by_key(object, children, first)?,
                children_max: parse_count(&object.require("max_tries", "the maximum number of children to ask")?)?,
                tries_max: parse_count(&object.require("max_error_tries", "the maximum number of failures")?)?,
                exclude_errors: object
                    .get("exclude_errors")
                    .map_or(Ok(FailoverErrorSet::NONE), |node| parse_error_set(&node))?,
                ..options
            })
        }
        other => {
            let node = object.get("type").unwrap_or_else(|| object.node.clone());
            let known = suggestion(other, "policies", POLICIES);
            Err(node.error(format!("no failover policy is named {other:?}{known}")))
        }
    }
}

fn parse_count(node: &Node<'_>) -> Result<u32, ConfigurationError> {
    Ok(node.integer("children", 1, TRIES_MAX)? as u32)
}

fn parse_by_key(
    object: &Object<'_>,
    children: &[&Handle],
    first_child: &Handle,
) -> Result<FailoverOrder, ConfigurationError> {
    let hash = object.get("hash").map_or(Ok(KeyHash::default()), |node| parse_hash(&node))?;
    hash.check(children.len()).map_err(|error| object.node.error(error.to_string()))?;
    let mut first = FirstHash::of(first_child);
    let domains = match object.flag("enable_failure_domains")? {
        true => {
            let mut names = DomainNames::default();
            if let Some(pool) = first.hash.as_ref().and(first_child.pool()) {
                first.domains = pool.failure_domains.iter().map(|name| Some(names.number(name))).collect();
            }
            children.iter().map(|child| names.number_of_server(child)).collect()
        }
        false => Vec::new(),
    };
    first.is_asked_again = object.flag("ignore_normal_reply_index")?;
    Ok(FailoverOrder::ByKey { hash, first, domains })
}

/// Failure domains by number, in the order in which they are found.
#[derive(Default)]
struct DomainNames(Vec<Arc<str>>);

impl DomainNames {
    fn number(&mut self, name: &Arc<str>) -> u32 {
        let known = self.0.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.0.push(name.clone());
            self.0.len() - 1
        }) as u32
    }

    fn number_of_server(&mut self, handle: &Handle) -> Option<u32> {
        let (pool, entry) = handle.place_in_pool()?;
        pool.failure_domains.get(entry).map(|name| self.number(name))
    }
}

/// The tags at `tags`, or those that pools give to the children if these are servers.
fn parse_rendezvous_tags(object: &Object<'_>, children: &[&Handle]) -> Result<Vec<String>, ConfigurationError> {
    let others = &children[1..];
    let node = object.get("tags").unwrap_or_else(|| object.node.clone());
    let tags = match object.get("tags") {
        Some(node) => parse_tags(&node)?,
        None => {
            let tag = |handle: &&Handle| {
                let (pool, entry) = handle.place_in_pool()?;
                pool.tags.get(entry).cloned()
            };
            others.iter().map_while(tag).collect()
        }
    };
    match tags.len() == others.len() {
        true => Ok(tags),
        false => Err(node.error(format!(
            "{} tags for {} children behind the first: expected \"tags\" with one for each child but the first",
            tags.len(),
            others.len()
        ))),
    }
}
