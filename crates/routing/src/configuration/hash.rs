//! How a pool's or a route's hash is written, and where its names and weights come from. No request passes here.
//!
//! ```text
//!   "hash": "Ch3"                                             a function's name
//!   "hash": {"hash_func": "Ch3", "salt": "x", "weights": [...], "tags": [...]}
//! ```
//!
//! A hash of a pool that says no weights or tags has the pool's. A server without a tag is named as the client in
//! question would name it.

use super::{
    Handle, Pool,
    error::{ConfigurationError, suggestion},
    json_cursor::{Keys, Node, Object},
    long_form::children,
    names::Names,
    pool::weights,
};
use crate::{Address, HashFunction, KeyHash, NamesNeeded};
use std::net::IpAddr;

/// A salt is put behind every key that is hashed.
const SALT_BYTES_MAX: usize = 250;

const KEYS: Keys = Keys { known: &["hash_func", "salt", "weights", "tags"], ignored: &[], refused: &[] };

/// The hash at `node`, or the default, over the servers of `pool`, which is named at `pool_node`.
pub(super) fn pool_hash<'a>(
    node: Option<Node<'a>>,
    pool: &Pool,
    pool_node: &Node<'a>,
) -> Result<KeyHash, ConfigurationError> {
    let mut hash = node.as_ref().map_or(Ok(KeyHash::default()), own_hash)?;
    let node = node.unwrap_or_else(|| pool_node.clone());
    if hash.weights.is_empty() {
        hash.weights.clone_from(&pool.weights);
    }
    if hash.names.is_empty() {
        hash.names = names(hash.function, pool, &node)?;
    }
    checked(hash, pool.servers.len(), &node)
}

/// The hash at `node`, as it is said there.
pub(super) fn own_hash(node: &Node<'_>) -> Result<KeyHash, ConfigurationError> {
    if node.as_string().is_some() {
        return Ok(KeyHash { function: function(node)?, ..KeyHash::default() });
    }
    let object = node.object("a hash function's name, or an object with \"hash_func\"")?;
    object.check(&KEYS)?;
    key_hash(&object)
}

pub(super) fn hash_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys {
        known: &["type", "name", "children", "hash_func", "salt", "weights", "tags"],
        ignored: &["error_on_empty"],
        refused: &[],
    })?;
    let hash = key_hash(object)?;
    let children = children(object, "children", names)?;
    let hash = checked(hash, children.len(), &object.node)?;
    Ok(Handle::Hash { children, hash })
}

fn checked(hash: KeyHash, servers: usize, node: &Node<'_>) -> Result<KeyHash, ConfigurationError> {
    hash.check(servers).map_err(|error| node.error(error.to_string()))?;
    Ok(hash)
}

/// `hash_func`, `salt`, `weights` and `tags`.
fn key_hash(object: &Object<'_>) -> Result<KeyHash, ConfigurationError> {
    Ok(KeyHash {
        function: object.get("hash_func").map_or(Ok(HashFunction::default()), |node| function(&node))?,
        salt: object.get("salt").map_or(Ok(String::new()), |node| salt(&node))?,
        weights: object.get("weights").map_or(Ok(Vec::new()), |node| weights(&node))?,
        names: object.get("tags").map_or(Ok(Vec::new()), |node| tags(&node))?,
    })
}

pub(super) fn salt(node: &Node<'_>) -> Result<String, ConfigurationError> {
    let salt = node.string("the salt, a string")?;
    match salt.len() <= SALT_BYTES_MAX {
        true => Ok(salt.to_owned()),
        false => Err(node.error(format!("{} bytes of salt: expected at most {SALT_BYTES_MAX}", salt.len()))),
    }
}

pub(super) fn tags(node: &Node<'_>) -> Result<Vec<String>, ConfigurationError> {
    let tag = |node: &Node<'_>| Ok(node.string("a tag, a string")?.to_owned());
    node.array("a list of tags, one for each server or child")?.iter().map(tag).collect()
}

fn function(node: &Node<'_>) -> Result<HashFunction, ConfigurationError> {
    let name = node.string("a hash function's name")?;
    HashFunction::named(name).ok_or_else(|| {
        let known: Vec<String> = HashFunction::all().map(|function| function.name().into_owned()).collect();
        let known = suggestion(name, "hash functions", known.iter().map(String::as_str));
        node.error(format!("the hash function {name:?} is not supported{known}"))
    })
}

/// The port that libmemcached and twemproxy leave out of a server's name.
const USUAL_PORT: &str = ":11211";

/// What a server is called where names are hashed.
fn names(function: HashFunction, pool: &Pool, node: &Node<'_>) -> Result<Vec<String>, ConfigurationError> {
    let needed = function.names_needed();
    if needed == NamesNeeded::No || !pool.tags.is_empty() {
        return Ok(pool.tags.clone());
    }
    let name = |Address(address): &Address| match needed {
        NamesNeeded::HostAndOddPort => Ok(address.strip_suffix(USUAL_PORT).unwrap_or(address).to_owned()),
        NamesNeeded::AddressAndPort if !is_ipv4(address) => Err(node.error(format!(
            "{} names servers by their resolved address, and {address:?} has none here: expected \"tags\" such as \
             \"cache1/10.0.0.1:11211\"",
            function.name()
        ))),
        _ => Ok(address.to_string()),
    };
    pool.servers.iter().map(name).collect()
}

fn is_ipv4(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4())
}
