//! A configuration: from its text to a tree of routes, in two steps.
//!
//! ```text
//!   text  -- parse() -->  Configuration  -- build() -->  RootRoute
//!         errors: line,   description,    a `Destinations`
//!         column, path    checked         makes the leaves
//! ```
//!
//! Parsing reaches no server, so a configuration can be checked anywhere, and a bad one is refused while the tree of
//! the last good one continues to serve.
//!
//! Absent on purpose: files. The caller reads and watches them.

mod builder;

pub use builder::Destinations;

use crate::{
    Address, ConfigurationError, ConfigurationWarning, Defaults, Handle, RootRoute, RoutingPrefix, TlsPolicy,
    TreeBuilder,
    cluster::REGISTRY,
    configuration::{Document, Keys, Node, Parser, expand_macros, parse_json},
};
use builder::Builder;
use std::collections::BTreeMap;

/// A parsed configuration, checked: every name in it resolves.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The trees and the routing prefixes that lead to them.
    pub trees: Vec<(Vec<RoutingPrefix>, Handle)>,
    /// The handles that [`Handle::Named`] refers to, each behind those that it refers to itself.
    pub named: Vec<(String, Handle)>,
    /// The TLS policy of each server.
    pub tls_policies: BTreeMap<Address, TlsPolicy>,
    /// The prefix of the tree for keys without one.
    pub default_prefix: RoutingPrefix,
    /// Warnings about ignored keys.
    pub warnings: Vec<ConfigurationWarning>,
}

const TOP: Keys = Keys::known(&["macros", "pools", "route", "routes", "named_handles"]).ignoring(&["routing_options"]);

impl Configuration {
    /// Parses a configuration: JSON with C and C++ comments.
    ///
    /// ```
    /// use lookaside_routing::{Configuration, Defaults};
    /// let text = r#"{
    ///     "pools": { "A": { "servers": ["127.0.0.1:5001"] } }, // one server
    ///     "route": "PoolRoute|B"
    /// }"#;
    /// let error = Configuration::parse(text, &Defaults::default()).unwrap_err();
    /// assert_eq!(error.to_string(), "line 3, column 14, at route: no pool is named \"B\"; known pools: A");
    /// ```
    pub fn parse(text: &str, defaults: &Defaults) -> Result<Configuration, ConfigurationError> {
        let value = expand_macros(text, parse_json(text)?)?;
        let document = Document::new(text);
        let top = document.top(&value).object("an object with \"pools\" and \"route\"")?;
        top.check(&TOP)?;
        let mut parser = Parser::new(&top, defaults, &REGISTRY)?;
        let trees = match (top.get("route"), top.get("routes")) {
            (Some(route), None) => vec![(vec![defaults.prefix.clone()], parser.handle(&route)?)],
            (None, Some(routes)) => parse_routes(&routes, &mut parser, defaults)?,
            (Some(_), Some(routes)) => {
                return Err(routes.error("\"route\" and \"routes\" are both set: expected one of them"));
            }
            (None, None) => return Err(top.node.error("\"route\" is missing: expected \"route\" or \"routes\"")),
        };
        let tls_policies = parser.tls_policies();
        let named = parser.into_named_handles(&top)?;
        let (default_prefix, warnings) = (defaults.prefix.clone(), document.into_warnings());
        Ok(Configuration { trees, named, tls_policies, default_prefix, warnings })
    }

    /// Builds the tree.
    pub fn build(&self, destinations: &mut dyn Destinations) -> RootRoute {
        let mut builder = Builder::new(destinations);
        self.named.iter().for_each(|(_, handle)| builder.build_named(handle));
        let trees = self.trees.iter().map(|(names, handle)| (names.clone(), builder.build(handle))).collect();
        RootRoute::new(self.default_prefix.clone(), trees).expect("the parser checks that there is a default tree")
    }

    /// The configuration in `text` with its macros expanded and without comments, as JSON without white space.
    ///
    /// ```
    /// use lookaside_routing::Configuration;
    /// let text = r#"{ "macros": { "n": { "type": "constDef", "result": 2 } }, "a": ["%n%", "b"] } // c"#;
    /// assert_eq!(Configuration::expand_macros(text).unwrap(), r#"{"a":[2,"b"]}"#);
    /// ```
    pub fn expand_macros(text: &str) -> Result<String, ConfigurationError> {
        Ok(expand_macros(text, parse_json(text)?)?.to_string())
    }
}

const ROUTES_ENTRY: Keys = Keys::known(&["aliases", "route"]);

type Trees = Vec<(Vec<RoutingPrefix>, Handle)>;

/// Parses `[{aliases, route}]`, or `{"/region/cluster/": route}`.
fn parse_routes<'a>(
    routes: &Node<'a>,
    parser: &mut Parser<'a>,
    defaults: &Defaults,
) -> Result<Trees, ConfigurationError> {
    let mut trees = Trees::new();
    if routes.is_object() {
        for (name, route) in routes.object("routes by prefix")?.entries() {
            let prefix = parse_prefix(&route, name, &trees, &[])?;
            trees.push((vec![prefix], parser.handle(&route)?));
        }
    } else {
        for entry in routes.array("a list of {\"aliases\", \"route\"}")? {
            let entry = entry.object("an object with \"aliases\" and \"route\"")?;
            entry.check(&ROUTES_ENTRY)?;
            let mut prefixes = Vec::new();
            for alias in entry.require("aliases", "a list of routing prefixes")?.array("a list of routing prefixes")? {
                let text = alias.string("a routing prefix such as \"/region/cluster/\"")?;
                prefixes.push(parse_prefix(&alias, text, &trees, &prefixes)?);
            }
            trees.push((prefixes, parser.handle(&entry.require("route", "a route")?)?));
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

/// Parses the prefix `text`, which neither `trees` nor `others` may have already.
fn parse_prefix(
    node: &Node<'_>,
    text: &str,
    trees: &Trees,
    others: &[RoutingPrefix],
) -> Result<RoutingPrefix, ConfigurationError> {
    let prefix = RoutingPrefix::parse(text).map_err(|error| node.error(error.to_string()))?;
    match trees.iter().flat_map(|(names, _)| names).chain(others).any(|other| *other == prefix) {
        true => Err(node.error(format!("{prefix} is given twice: expected each routing prefix once"))),
        false => Ok(prefix),
    }
}
