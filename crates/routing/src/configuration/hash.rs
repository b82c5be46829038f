//! The hash of a pool or a route: how it is written, and where its names and weights come from.
//!
//! ```text
//!   "hash": "Ch3"                                             a function's name
//!   "hash": {"hash_func": "Ch3", "salt": "x", "weights": [...], "tags": [...]}
//! ```
//!
//! A hash of a pool without weights or tags takes those of the pool. Without a hash, a pool with weights has
//! `WeightedCh3`. A server without a tag has the name that the
//! client after which the hash is named would give it.

use super::{
    error::{ConfigurationError, suggestion},
    json_cursor::{Keys, Node, Object},
    pool::{Pool, parse_weights},
};
use crate::{Address, HashFunction, KeyHash, NamesNeeded};
use std::net::IpAddr;

/// A salt is appended to every key that is hashed.
const SALT_BYTES_MAX: usize = 250;

const KEYS: Keys = Keys::known(&["hash_func", "salt", "weights", "tags"]);

/// Parses the hash at `node`, or takes the default, over the entries of `pool`, which is named at `pool_node`.
pub(crate) fn parse_pool_hash<'a>(
    node: Option<Node<'a>>,
    pool: &Pool,
    pool_node: &Node<'a>,
) -> Result<KeyHash, ConfigurationError> {
    let mut hash = match &node {
        Some(node) => parse_hash(node)?,
        None if !pool.weights.is_empty() => KeyHash { function: HashFunction::WeightedCh3, ..KeyHash::default() },
        None => KeyHash::default(),
    };
    let node = node.unwrap_or_else(|| pool_node.clone());
    if hash.weights.is_empty() {
        hash.weights.clone_from(&pool.weights);
    }
    if hash.names.is_empty() {
        hash.names = server_names(hash.function, pool, &node)?;
    }
    check_servers(hash, pool.entry_count(), &node)
}

/// Parses the hash at `node`, without the names and weights of a pool.
pub(crate) fn parse_hash(node: &Node<'_>) -> Result<KeyHash, ConfigurationError> {
    if node.as_string().is_some() {
        return Ok(KeyHash { function: parse_function(node)?, ..KeyHash::default() });
    }
    let object = node.object("a hash function's name, or an object with \"hash_func\"")?;
    object.check(&KEYS)?;
    parse_hash_keys(&object)
}

pub(crate) fn check_servers(hash: KeyHash, servers: usize, node: &Node<'_>) -> Result<KeyHash, ConfigurationError> {
    hash.check(servers).map_err(|error| node.error(error.to_string()))?;
    Ok(hash)
}

/// Parses the keys `hash_func`, `salt`, `weights` and `tags` of an object.
pub(crate) fn parse_hash_keys(object: &Object<'_>) -> Result<KeyHash, ConfigurationError> {
    Ok(KeyHash {
        function: object.get("hash_func").map_or(Ok(HashFunction::default()), |node| parse_function(&node))?,
        salt: parse_salt(object)?,
        weights: object.get("weights").map_or(Ok(Vec::new()), |node| parse_weights(&node))?,
        names: object.get("tags").map_or(Ok(Vec::new()), |node| parse_tags(&node))?,
    })
}

pub(crate) fn parse_salt(object: &Object<'_>) -> Result<String, ConfigurationError> {
    let Some(node) = object.get("salt") else { return Ok(String::new()) };
    let salt = node.string("the salt, a string")?;
    match salt.len() <= SALT_BYTES_MAX {
        true => Ok(salt.to_owned()),
        false => Err(node.error(format!("{} bytes of salt: expected at most {SALT_BYTES_MAX}", salt.len()))),
    }
}

pub(crate) fn parse_tags(node: &Node<'_>) -> Result<Vec<String>, ConfigurationError> {
    let tag = |node: &Node<'_>| Ok(node.string("a tag, a string")?.to_owned());
    node.array("a list of tags, one for each server or child")?.iter().map(tag).collect()
}

fn parse_function(node: &Node<'_>) -> Result<HashFunction, ConfigurationError> {
    let name = node.string("a hash function's name")?;
    HashFunction::from_name(name).ok_or_else(|| {
        let known: Vec<String> = HashFunction::all().map(|function| function.name().into_owned()).collect();
        let known = suggestion(name, "hash functions", known.iter().map(String::as_str));
        node.error(format!("the hash function {name:?} is not supported{known}"))
    })
}

/// The port that libmemcached and twemproxy leave out of a server's name.
const DEFAULT_PORT: &str = ":11211";

/// The names of the servers of `pool`, for a hash of names.
fn server_names(function: HashFunction, pool: &Pool, node: &Node<'_>) -> Result<Vec<String>, ConfigurationError> {
    let needed = function.names_needed();
    if matches!(needed, NamesNeeded::No | NamesNeeded::Tags) || !pool.tags.is_empty() {
        return Ok(pool.tags.clone());
    }
    if !pool.routes_at.is_empty() {
        return Err(node.error(format!(
            "{} picks a server by its name, and a route among the servers has none: expected \"tags\"",
            function.name()
        )));
    }
    let name = |Address(address): &Address| match needed {
        NamesNeeded::HostAndOddPort => Ok(address.strip_suffix(DEFAULT_PORT).unwrap_or(address).to_owned()),
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
