//! mcrouter's configuration language: from text to a tree of routes, in two steps.
//!
//! ```text
//!   text  -- read() -->  Configuration  -- build() -->  RootRoute
//!         where it is wrong:           what it says     asks a `Destinations` for each server
//!         line, column, path
//! ```
//!
//! No request passes here; the tree that comes out serves every verb. Reading touches no server, so that a file can be
//! checked anywhere, and a bad one is refused while the tree of the last good one serves on.
//!
//! What mcrouter has and we do not is either refused with its name (it would change where requests go) or reported in
//! [`Configuration::warnings`] and ignored (it would not). Nothing is passed over in silence: a key that nobody knows
//! is an error.
//!
//! Absent on purpose: files. Whoever calls this reads and watches them.

mod build;
mod copies;
mod error;
mod failover;
mod fault_policy;
mod handle;
mod hash;
mod json;
mod json_cursor;
mod label;
mod limits;
mod long_form;
mod macros;
mod names;
mod pool;
mod replicas;
mod tiers;
mod transport;

pub use build::Destinations;
pub use error::{ConfigurationError, ConfigurationWarning};
pub use failover::{FailoverOptions, FailoverOrder, SharedPairs};
pub use fault_policy::TkoLimit;
pub use handle::{Handle, Shadow};
pub use pool::{DestinationSettings, Pool};
pub use tiers::SharedProgress;
pub use transport::{Protocol, Security, TlsPolicy, Transport};

use crate::{Address, RoutingPrefix};
use json_cursor::{Document, Keys, Node};
use names::Names;
use std::collections::BTreeMap;

/// What holds where the text does not say otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// The tree for keys without a routing prefix, and the name of the only tree of a `route`. Default `/././`.
    pub prefix: RoutingPrefix,
    /// How long to wait for a reply, in milliseconds. Default 1000, as mcrouter's.
    pub server_timeout_ms: u64,
    /// How long to wait for a connection, in milliseconds. Default `None`: as long as for a reply.
    pub connect_timeout_ms: Option<u64>,
}

impl Default for Defaults {
    fn default() -> Self {
        Defaults { prefix: RoutingPrefix::default(), server_timeout_ms: 1_000, connect_timeout_ms: None }
    }
}

/// What a configuration says, checked: every name in it leads somewhere.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The trees and the routing prefixes that lead to them.
    pub trees: Vec<(Vec<RoutingPrefix>, Handle)>,
    /// Handles that others refer to by [`Handle::Named`], each behind those that it refers to itself.
    pub named: Vec<(String, Handle)>,
    /// What stands between the router and each server of a pool.
    pub protections: BTreeMap<Address, TlsPolicy>,
    /// Which of the trees takes keys without a prefix.
    pub default_prefix: RoutingPrefix,
    /// What was ignored.
    pub warnings: Vec<ConfigurationWarning>,
}

const TOP: Keys = Keys {
    known: &["macros", "pools", "route", "routes", "named_handles"],
    ignored: &["routing_options"],
    refused: &[],
};

impl Configuration {
    /// Reads a configuration: JSON with C and C++ comments.
    ///
    /// ```
    /// use lookaside_routing::{Configuration, Defaults};
    /// let text = r#"{
    ///     "pools": { "A": { "servers": ["127.0.0.1:5001"] } }, // one server
    ///     "route": "PoolRoute|B"
    /// }"#;
    /// let error = Configuration::read(text, &Defaults::default()).unwrap_err();
    /// assert_eq!(error.to_string(), "line 3, column 14, at route: no pool is named \"B\"; known pools: A");
    /// ```
    pub fn read(text: &str, defaults: &Defaults) -> Result<Configuration, ConfigurationError> {
        let value = macros::expand(text, json::parse(text)?)?;
        let document = Document::new(text);
        let top = document.top(&value).object("an object with \"pools\" and \"route\"")?;
        top.check(&TOP)?;
        let mut names = Names::read(&top, defaults)?;
        let trees = match (top.get("route"), top.get("routes")) {
            (Some(route), None) => vec![(vec![defaults.prefix.clone()], names.handle(&route)?)],
            (None, Some(routes)) => read_routes(&routes, &mut names, defaults)?,
            (Some(_), Some(routes)) => {
                return Err(routes.error("\"route\" and \"routes\" both stand: expected one of them"));
            }
            (None, None) => return Err(top.node.error("\"route\" is missing: expected \"route\" or \"routes\"")),
        };
        let protections = names.protections();
        let named = names.into_named(&top)?;
        let (default_prefix, warnings) = (defaults.prefix.clone(), document.into_warnings());
        Ok(Configuration { trees, named, protections, default_prefix, warnings })
    }

    /// The configuration in `text` with its macros replaced and its comments gone, as JSON without blanks.
    ///
    /// ```
    /// use lookaside_routing::Configuration;
    /// let text = r#"{ "macros": { "n": { "type": "constDef", "result": 2 } }, "a": ["%n%", "b"] } // c"#;
    /// assert_eq!(Configuration::preprocessed(text).unwrap(), r#"{"a":[2,"b"]}"#);
    /// ```
    pub fn preprocessed(text: &str) -> Result<String, ConfigurationError> {
        Ok(macros::expand(text, json::parse(text)?)?.to_string())
    }
}

const ROUTES_ENTRY: Keys = Keys { known: &["aliases", "route"], ignored: &[], refused: &[] };

/// Routing prefixes and the tree that they lead to.
type Trees = Vec<(Vec<RoutingPrefix>, Handle)>;

/// `[{aliases, route}]`, or `{"/region/cluster/": route}`.
fn read_routes<'a>(routes: &Node<'a>, names: &mut Names<'a>, defaults: &Defaults) -> Result<Trees, ConfigurationError> {
    let mut trees = Trees::new();
    if routes.is_object() {
        for (name, route) in routes.object("routes by prefix")?.entries() {
            let prefix = read_prefix(&route, name, &trees, &[])?;
            trees.push((vec![prefix], names.handle(&route)?));
        }
    } else {
        for entry in routes.array("a list of {\"aliases\", \"route\"}")? {
            let entry = entry.object("an object with \"aliases\" and \"route\"")?;
            entry.check(&ROUTES_ENTRY)?;
            let mut prefixes = Vec::new();
            for alias in entry.require("aliases", "a list of routing prefixes")?.array("a list of routing prefixes")? {
                let text = alias.string("a routing prefix such as \"/region/cluster/\"")?;
                prefixes.push(read_prefix(&alias, text, &trees, &prefixes)?);
            }
            trees.push((prefixes, names.handle(&entry.require("route", "a route")?)?));
        }
    }
    if !trees.iter().any(|(names, _)| names.contains(&defaults.prefix)) {
        let known: Vec<&str> = trees.iter().flat_map(|(names, _)| names).map(RoutingPrefix::as_str).collect();
        let (default, known) = (&defaults.prefix, known.join(", "));
        return Err(routes.error(format!(
            "no route is named {default}, where keys without a prefix go; known: {known}. \
             Add it to a route's \"aliases\", or start with --route-prefix and one of these"
        )));
    }
    Ok(trees)
}

/// The prefix that `text` is, if no tree has it yet, nor the one that is being read.
fn read_prefix(
    node: &Node<'_>,
    text: &str,
    trees: &Trees,
    others: &[RoutingPrefix],
) -> Result<RoutingPrefix, ConfigurationError> {
    let prefix = RoutingPrefix::parse(text).map_err(|error| node.error(error.to_string()))?;
    match trees.iter().flat_map(|(names, _)| names).chain(others).any(|other| *other == prefix) {
        true => Err(node.error(format!("{prefix} stands twice: expected each routing prefix once"))),
        false => Ok(prefix),
    }
}
