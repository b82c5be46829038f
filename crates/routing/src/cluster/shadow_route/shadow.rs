//! One entry of a list `shadows`.
//!
//! | key | value | without it |
//! |---|---|---|
//! | `target` | a route | the entry is skipped |
//! | `index_range` | `[first, end]`: servers of the pool, or children; `end` is not included | none, so nothing is copied |
//! | `key_fraction_range` | `[start, end]`: parts of all keys, both included | none, so nothing is copied |
//! | `key_fraction_range_rv` | the runtime variable with the range that replaces `key_fraction_range` | |
//! | `keys_to_shadow` | routing keys, in place of the three above | |
//! | `requests_fraction` | the share of the requests for these keys, drawn at random | 1 |
//!
//! As in mcrouter, an entry that is wrong, be it within its target, copies nothing and does not refuse the
//! configuration; a warning says what is wrong. `shadows` that are no list are none. A named handle of a target must be
//! right all the same: others may use it.

use super::{Copies, shadowed_keys::ShadowedKeys, token_pairs::TokenPairs};
use crate::{
    Environment, KeyFraction, Route, SERVERS_MAX,
    configuration::{ConfigurationError, Handle, Keys, Node, Object, Parser, TreeState, parse_key_fraction},
};
use bytes::Bytes;
use std::{collections::BTreeSet, ops::Range, sync::Arc};

/// The description of one shadow.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shadow {
    pub(crate) target: Handle,
    indices: Range<usize>,
    keys: KeysConfig,
    /// From 0 to 1.
    requests_share: f64,
    pairs: TreeState<TokenPairs>,
}

#[derive(Clone, Debug, PartialEq)]
enum KeysConfig {
    Fraction { range: Option<KeyFraction>, variable: Option<Arc<str>> },
    Listed(Arc<BTreeSet<Bytes>>),
}

impl Shadow {
    /// Whether it copies requests for the server, or child, at this index.
    pub(crate) fn is_of_index(&self, at: usize) -> bool {
        self.indices.contains(&at)
    }

    /// Its copies to `target`, the built one. Pairs of tokens are shared by all trees of a configuration.
    pub(super) fn copies(&self, target: Arc<dyn Route>, environment: &Environment, seed: u64) -> Copies {
        let copies = Copies::new(target, self.keys(environment), environment, seed).of_share(self.requests_share);
        Copies { pairs: self.pairs.0.clone(), ..copies }
    }

    fn keys(&self, environment: &Environment) -> ShadowedKeys {
        match &self.keys {
            KeysConfig::Listed(keys) => ShadowedKeys::Listed(keys.clone()),
            KeysConfig::Fraction { range, variable: Some(name) } => ShadowedKeys::Variable {
                name: name.clone(),
                variables: environment.shadows.variables.clone(),
                otherwise: *range,
            },
            KeysConfig::Fraction { range: Some(range), variable: None } => ShadowedKeys::Fraction(*range),
            KeysConfig::Fraction { range: None, variable: None } => ShadowedKeys::None,
        }
    }
}

const KEYS: Keys = Keys::known(&[
    "target",
    "index_range",
    "key_fraction_range",
    "key_fraction_range_rv",
    "keys_to_shadow",
    "requests_fraction",
])
.ignoring(&["validate_replies", "index_range_rv"]);

/// Parses the `shadows` of a pool or a route; none by default.
pub(crate) fn parse_shadows<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Vec<Shadow> {
    let Some(list) = object.get("shadows") else { return Vec::new() };
    let entries = list.array("a list of shadows").unwrap_or_else(|error| {
        list.warn(format!("there are no shadows: {}", error.message));
        Vec::new()
    });
    let parse = |node: Node<'a>| match parse_entry(&node, parser) {
        Ok(shadow) => Some(shadow),
        Err(error) => {
            node.warn(format!("this shadow is skipped: {}", error.message));
            None
        }
    };
    entries.into_iter().filter_map(parse).collect()
}

fn parse_entry<'a>(node: &Node<'a>, parser: &mut Parser<'a>) -> Result<Shadow, ConfigurationError> {
    let object = node.object("a shadow: an object with a \"target\"")?;
    object.check(&KEYS)?;
    let target = object.require("target", "a route")?;
    let listed = object.get("keys_to_shadow").map(|node| parse_keys(&node)).transpose()?;
    let indices = object.get("index_range").map(|node| parse_index_range(&node)).transpose()?;
    let range = object.get("key_fraction_range").map(|node| parse_key_fraction(&node)).transpose()?;
    let variable = object.get("key_fraction_range_rv").map(|node| parse_name(&node)).transpose()?;
    let requests_share =
        object.get("requests_fraction").map_or(Ok(1.0), |node| node.number("a share of requests", 0.0, 1.0))?;
    let (indices, keys) = match listed {
        Some(_) if indices.is_some() || range.is_some() || variable.is_some() => {
            return Err(object.node.error("expected \"keys_to_shadow\" or ranges, found both"));
        }
        Some(keys) => (0..SERVERS_MAX, KeysConfig::Listed(keys)),
        None => {
            let missing = match (&indices, &range, &variable) {
                (None, ..) => Some("index_range"),
                (_, None, None) => Some("key_fraction_range"),
                _ => None,
            };
            if let Some(missing) = missing {
                node.warn(format!("this shadow copies nothing: it has no {missing:?}"));
            }
            (indices.unwrap_or(0..0), KeysConfig::Fraction { range, variable })
        }
    };
    // Last: what a target uses stays only if the entry does.
    let target = parser.handle_or_error(&target)?;
    Ok(Shadow { target, indices, keys, requests_share, pairs: TreeState::default() })
}

fn parse_keys(node: &Node<'_>) -> Result<Arc<BTreeSet<Bytes>>, ConfigurationError> {
    let key = |node: &Node<'_>| Ok(Bytes::copy_from_slice(node.string("a key")?.as_bytes()));
    node.array("a list of keys")?.iter().map(key).collect::<Result<_, _>>().map(Arc::new)
}

fn parse_name(node: &Node<'_>) -> Result<Arc<str>, ConfigurationError> {
    node.string("the name of a runtime variable").map(Arc::from)
}

const AN_INDEX_RANGE: &str = "the first index of a server and the one behind the last, such as [0, 4]";

fn parse_index_range(node: &Node<'_>) -> Result<Range<usize>, ConfigurationError> {
    let index = |node: &Node<'_>| Ok(node.integer("a server's index", 0, i64::from(u32::MAX))? as usize);
    match &*node.array(AN_INDEX_RANGE)? {
        [first, end] => {
            let (first, end) = (index(first)?, index(end)?);
            match first <= end {
                true => Ok(first..end),
                false => Err(node.error(format!("the range is backwards: expected {AN_INDEX_RANGE}"))),
            }
        }
        other => Err(node.error(format!("{} numbers: expected {AN_INDEX_RANGE}", other.len()))),
    }
}
