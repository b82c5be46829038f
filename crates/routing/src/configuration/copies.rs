//! The long form of routes that ask several copies. No request passes here.

use super::{
    Handle, Shadow,
    error::ConfigurationError,
    json_cursor::{Keys, Node, Object},
    long_form::{boxed, children, keys},
    names::Names,
};
use crate::{KEY_COPIES_MAX, KeyFraction, SERVERS_MAX};

type Read = Result<Handle, ConfigurationError>;

fn all<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Result<Vec<Handle>, ConfigurationError> {
    object.check(&keys(&["type", "name", "children"]))?;
    children(object, "children", names)
}

pub(super) fn all_async_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    Ok(Handle::AllAsync { children: all(object, names)? })
}

pub(super) fn all_fastest_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    Ok(Handle::AllFastest { children: all(object, names)? })
}

pub(super) fn all_initial_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    Ok(Handle::AllInitial { children: all(object, names)? })
}

pub(super) fn all_majority_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    Ok(Handle::AllMajority { children: all(object, names)? })
}

pub(super) fn shadow_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    object.check(&Keys { known: &["type", "name", "target", "shadows"], ignored: &["shadow_policy"], refused: &[] })?;
    let normal = boxed(&object.require("target", "a route")?, names)?;
    Ok(Handle::Shadowed { normal, shadows: shadows(&object.require("shadows", "a list of shadows")?, names)? })
}

const SHADOW: Keys = Keys {
    known: &["target", "index_range", "key_fraction_range"],
    ignored: &["validate_replies"],
    refused: &["key_fraction_range_rv", "keys_to_shadow", "requests_fraction"],
};

/// `[{target, index_range, key_fraction_range}]`
pub(super) fn shadows<'a>(node: &Node<'a>, names: &mut Names<'a>) -> Result<Vec<Shadow>, ConfigurationError> {
    let mut shadows = Vec::new();
    for node in node.array("a list of shadows")? {
        let object = node.object("a shadow: an object with a \"target\"")?;
        object.check(&SHADOW)?;
        let target = *boxed(&object.require("target", "a route")?, names)?;
        let servers = object.get("index_range").map_or(Ok((0, SERVERS_MAX)), |node| index_range(&node))?;
        let keys = object.get("key_fraction_range").map_or(Ok(KeyFraction::ALL), |node| fraction_range(&node))?;
        shadows.push(Shadow { target, keys, servers });
    }
    Ok(shadows)
}

const AN_INDEX_RANGE: &str = "the first and the last index of a server, such as [0, 3]";

fn index_range(node: &Node<'_>) -> Result<(usize, usize), ConfigurationError> {
    let index = |node: &Node<'_>| Ok(node.integer("a server's index", 0, SERVERS_MAX as i64)? as usize);
    match &*node.array(AN_INDEX_RANGE)? {
        [first, last] => {
            let range = (index(first)?, index(last)?);
            if range.0 > range.1 {
                Err(node.error(format!("the range is backwards: expected {AN_INDEX_RANGE}")))
            } else {
                Ok(range)
            }
        }
        other => Err(node.error(format!("{} numbers: expected {AN_INDEX_RANGE}", other.len()))),
    }
}

const A_FRACTION_RANGE: &str = "where the keys begin and end, as parts of 1, such as [0, 0.25]";

fn fraction_range(node: &Node<'_>) -> Result<KeyFraction, ConfigurationError> {
    let millionths = |node: &Node<'_>| {
        let part = node.number("a part of all keys", 0.0, 1.0)?;
        Ok::<u32, ConfigurationError>((part * f64::from(KeyFraction::WHOLE)).round() as u32)
    };
    match &*node.array(A_FRACTION_RANGE)? {
        [start, end] => {
            let range = KeyFraction { start: millionths(start)?, end: millionths(end)? };
            if range.start > range.end {
                Err(node.error(format!("the range is backwards: expected {A_FRACTION_RANGE}")))
            } else {
                Ok(range)
            }
        }
        other => Err(node.error(format!("{} numbers: expected {A_FRACTION_RANGE}", other.len()))),
    }
}

pub(super) fn key_split_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    object.check(&keys(&["type", "name", "destination", "replicas", "all_sync", "first_hit"]))?;
    let flag = |key| object.get(key).map_or(Ok(false), |node| node.boolean());
    let copies = object.require("replicas", "how many copies of a key there are")?;
    Ok(Handle::KeySplit {
        copies: copies.integer("copies of a key", 1, KEY_COPIES_MAX as i64)? as usize,
        all_sync: flag("all_sync")?,
        first_hit: flag("first_hit")?,
        destination: boxed(&object.require("destination", "a route")?, names)?,
    })
}
