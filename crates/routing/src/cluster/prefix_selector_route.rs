//! Pools by key prefix, and a wildcard pool for the rest (§3.2.2 of the paper).
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the child with the longest prefix that the routing key starts with; else to the wildcard |
//!
//! Without a wildcard, a key that matches no prefix fails with "no route".

use crate::{
    Batch, BoxFuture, Context, Outcomes, Route,
    cluster::no_route::NoRoute,
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder},
    key::{routing_key, routing_key_start},
    split::split,
};
use std::{collections::BTreeMap, sync::Arc};

/// Selects a child by key prefix.
pub struct PrefixSelectorRoute {
    /// Sorted, so that all entries that a key starts with are on one chain of `parent`s.
    prefixes: Vec<PrefixEntry>,
    /// One for each prefix; the wildcard is last.
    children: Vec<Arc<dyn Route>>,
}

struct PrefixEntry {
    prefix: Box<[u8]>,
    /// The longest other prefix that this one starts with.
    parent: Option<usize>,
}

impl PrefixSelectorRoute {
    /// Sends keys that start with a prefix of `policies` to its child, all others to `wildcard`.
    pub fn new(policies: BTreeMap<String, Arc<dyn Route>>, wildcard: Option<Arc<dyn Route>>) -> Self {
        let mut prefixes: Vec<PrefixEntry> = Vec::with_capacity(policies.len());
        let mut children = Vec::with_capacity(policies.len() + 1);
        for (prefix, child) in policies {
            let prefix: Box<[u8]> = prefix.into_bytes().into();
            let before = prefixes.len().checked_sub(1);
            let parent = longest_prefix(&prefixes, before, &prefix);
            prefixes.push(PrefixEntry { prefix, parent });
            children.push(child);
        }
        children.push(wildcard.unwrap_or_else(|| Arc::new(NoRoute::new("no prefix fits the key, and no wildcard"))));
        PrefixSelectorRoute { prefixes, children }
    }

    fn choose(&self, key: &[u8]) -> usize {
        let after = self.prefixes.partition_point(|entry| *entry.prefix <= *key);
        longest_prefix(&self.prefixes, after.checked_sub(1), key).unwrap_or(self.prefixes.len())
    }
}

impl Route for PrefixSelectorRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        split(&self.children, batch, context, |request| self.choose(&routing_key(request)))
    }
}

/// The longest entry that `key` starts with, given the last entry that sorts at or before `key`. All entries between a
/// prefix of the key and the key start with that prefix, too; so the result is that last entry, or one of its parents.
fn longest_prefix(entries: &[PrefixEntry], last: Option<usize>, key: &[u8]) -> Option<usize> {
    let mut candidate = last;
    while let Some(at) = candidate {
        if key.starts_with(&entries[at].prefix) {
            return Some(at);
        }
        candidate = entries[at].parent;
    }
    None
}

/// The children that keys with the same beginning may choose.
struct ChosenChildren {
    /// What their routing keys begin with; `None` if that may be anything.
    start: Option<Vec<u8>>,
    /// The bytes of the longest prefix that all of them have, so that they choose no shorter one; `None` if there is
    /// none.
    longest: Option<usize>,
}

impl ChosenChildren {
    fn of<'a>(prefixes: impl Iterator<Item = &'a String>, key_prefix: Option<&[u8]>) -> ChosenChildren {
        let start = key_prefix.map(|start| routing_key_start(start).to_vec());
        let shared =
            |start: &Vec<u8>| prefixes.filter(|prefix| start.starts_with(prefix.as_bytes())).map(String::len).max();
        ChosenChildren { longest: start.as_ref().and_then(shared), start }
    }

    fn has(&self, prefix: &str) -> bool {
        self.start.as_ref().is_none_or(|start| {
            let is_shared = start.starts_with(prefix.as_bytes()) && self.longest == Some(prefix.len());
            is_shared || prefix.as_bytes().starts_with(start)
        })
    }

    fn has_wildcard(&self) -> bool {
        self.longest.is_none()
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("PrefixSelectorRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    policies: BTreeMap<String, Handle>,
    wildcard: Option<Handle>,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "policies", "wildcard"]))?;
    let mut policies = BTreeMap::new();
    if let Some(node) = object.get("policies") {
        for (prefix, policy) in node.object("an object with a route for each key prefix")?.entries() {
            policies.insert(prefix.to_owned(), parser.handle(&policy));
        }
    }
    let wildcard = parser.optional(object, "wildcard");
    if policies.is_empty() && wildcard.is_none() {
        return Err(object.node.error("no key would have a route: expected \"policies\" or a \"wildcard\""));
    }
    Ok(Handle::route(Config { policies, wildcard }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn passes_reads(&self) -> bool {
        true
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let chosen = ChosenChildren::of(self.policies.keys(), tree.key_prefix());
        let policies = self.policies.iter().filter(|(prefix, _)| chosen.has(prefix));
        let policies = policies.map(|(prefix, handle)| (prefix.clone(), tree.build(handle))).collect();
        let wildcard = self.wildcard.as_ref().filter(|_| chosen.has_wildcard());
        Arc::new(PrefixSelectorRoute::new(policies, wildcard.map(|handle| tree.build(handle))))
    }
}
