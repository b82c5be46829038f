//! Inheritance between pools: a key that a pool does not set is taken from the pool that its `inherit` names.

use super::{
    error::{ConfigurationError, suggestion},
    json_cursor::{Node, Object},
};
use std::collections::BTreeMap;

/// The `pools` of a configuration before they are parsed.
pub(super) type PoolNodes<'a> = BTreeMap<&'a str, Node<'a>>;

/// The object of a pool, followed by those of the pools that it inherits from, nearest first.
pub(super) struct InheritanceChain<'a> {
    own: Object<'a>,
    parents: Vec<(&'a str, Object<'a>)>,
}

impl<'a> InheritanceChain<'a> {
    pub(super) fn parse(name: &str, node: &Node<'a>, pools: &PoolNodes<'a>) -> Result<Self, ConfigurationError> {
        let mut seen = vec![name.to_owned()];
        let own = node.object("a pool: an object with \"servers\"")?;
        let mut parents: Vec<(&'a str, Object<'a>)> = Vec::new();
        while let Some(parent) = parents.last().map_or(&own, |(_, object)| object).get("inherit") {
            let text = parent.string("the name of the pool to inherit from")?;
            if let Some(at) = seen.iter().position(|name| name == text) {
                let circle = [&seen[at..], &[text.to_owned()]].concat().join(" -> ");
                return Err(parent.error(format!("the pool {text:?} inherits from itself: {circle}")));
            }
            let known = || suggestion(text, "pools", pools.keys().copied());
            let node = pools.get(text).ok_or_else(|| parent.error(format!("no pool is named {text:?}{}", known())))?;
            parents.push((text, node.object("a pool: an object with \"servers\"")?));
            seen.push(text.to_owned());
        }
        Ok(InheritanceChain { own, parents })
    }

    pub(super) fn own(&self) -> &Object<'a> {
        &self.own
    }

    /// The value of `key` in the nearest object that has it.
    pub(super) fn get(&self, key: &str) -> Option<Node<'a>> {
        self.get_with_owner(key).map(|(_, value)| value)
    }

    /// The value of `key` in the nearest object that has it, and the pool whose object that is; `None` for the own one.
    pub(super) fn get_with_owner(&self, key: &str) -> Option<(Option<&'a str>, Node<'a>)> {
        let own = self.own.get(key).map(|value| (None, value));
        own.or_else(|| self.parents.iter().find_map(|(name, object)| Some((Some(*name), object.get(key)?))))
    }

    /// The first `Some` that `parse` makes of an object, nearest first: for a setting that is spread over several keys.
    pub(super) fn nearest<T>(
        &self,
        parse: impl Fn(&Object<'a>) -> Result<Option<T>, ConfigurationError>,
    ) -> Result<Option<T>, ConfigurationError> {
        let objects = std::iter::once(&self.own).chain(self.parents.iter().map(|(_, object)| object));
        objects.map(parse).find_map(Result::transpose).transpose()
    }
}
