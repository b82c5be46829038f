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
mod leased_keys;

pub use builder::Destinations;
pub use leased_keys::LeasedKeys;

use crate::{
    Address, BigValueRoute, ConfigurationError, ConfigurationErrors, ConfigurationWarning, Defaults, Handle,
    LeaseRoute, LoggingRoute, MacroInputs, RootRoute, RoutingPrefix, TlsPolicy, TreeBuilder,
    cluster::{REGISTRY, only_gets_route::OnlyGetsRoute},
    configuration::{Document, Json, Keys, Node, Parser, expand_macros, parse_json, parse_routers},
    key::stored_key_start,
};
use builder::Builder;
use std::collections::BTreeMap;

/// A parsed configuration, checked: every name in it resolves.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The trees and the routing prefixes that lead to them.
    pub trees: Vec<(Vec<RoutingPrefix>, Handle)>,
    /// The handles that [`Handle::Named`] refers to, each behind those that it refers to itself: those of
    /// `named_handles` by their names, and routes among the servers of pools (`Pool|A[1]`).
    pub named: Vec<(String, Handle)>,
    /// The TLS policy of each server.
    pub tls_policies: BTreeMap<Address, TlsPolicy>,
    tls_places: BTreeMap<Address, ConfigurationError>,
    /// The prefix of the tree for keys without one.
    pub default_prefix: RoutingPrefix,
    /// The routers that it names for clients of the cluster of the default prefix; empty if it names none.
    pub routers: Vec<Address>,
    /// The keys whose misses its routes need ([`crate::Context::misses`]); `None` if they need none.
    pub leased_keys: Option<LeasedKeys>,
    sends_unknown_to_default: bool,
    broadcasts_in_background: bool,
    /// Warnings about ignored keys.
    pub warnings: Vec<ConfigurationWarning>,
}

const TOP: Keys =
    Keys::known(&["macros", "pools", "route", "routes", "named_handles", "routers"]).ignoring(&["routing_options"]);

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
    ///
    /// All errors that do not follow from others are found, up to 20, unless the text is not valid JSON or its macros
    /// cannot be expanded: then the first.
    pub fn parse(text: &str, defaults: &Defaults) -> Result<Configuration, ConfigurationErrors> {
        Configuration::parse_with(text, defaults, &MacroInputs::NONE)
    }

    /// As [`Configuration::parse`], with macros that may use `inputs`.
    pub fn parse_with(
        text: &str,
        defaults: &Defaults,
        inputs: &MacroInputs<'_>,
    ) -> Result<Configuration, ConfigurationErrors> {
        let (value, of_macros) = expand_macros(text, parse_json(text)?, inputs)?;
        let document = Document::new(text);
        let parsed = parse_top(&value, &document.top(&value), defaults);
        let (configuration, warnings) = document.finish_parsing(parsed)?;
        Ok(Configuration { warnings: of_macros.into_iter().chain(warnings).collect(), ..configuration })
    }

    /// Checks the TLS policy of each server by `check`, which returns a message if the policy cannot be used: routing
    /// knows nothing of certificates. Reports one server of each pool.
    pub fn check_tls_policies(
        &self,
        check: impl Fn(&Address, &TlsPolicy) -> Result<(), String>,
    ) -> Result<(), ConfigurationErrors> {
        let mut errors = ConfigurationErrors::default();
        for (server, place) in &self.tls_places {
            let is_pool_reported = |error: &ConfigurationError| error.path == place.path && error.line == place.line;
            if !errors.iter().any(is_pool_reported)
                && let Err(message) = check(server, &self.tls_policies[server])
            {
                errors.add(ConfigurationError { message, ..place.clone() });
            }
        }
        errors.into_sorted().map_or(Ok(()), Err)
    }

    /// Builds the tree.
    pub fn build(&self, destinations: &mut dyn Destinations) -> RootRoute {
        let mut builder = Builder::new(destinations, &self.named);
        builder.build_all_named();
        let trees = self.trees.iter().map(|(names, handle)| (names.clone(), builder.build(handle))).collect();
        let background = self.broadcasts_in_background.then(|| builder.environment().background.clone());
        let root = RootRoute::new(self.default_prefix.clone(), trees);
        root.expect("the parser checks that there is a default tree")
            .with_unknown_sent_to_default(self.sends_unknown_to_default)
            .with_broadcasts_in(background)
    }

    /// Passes to `destinations` the servers that may hold a key that begins with `key_prefix`, as a client writes it,
    /// and perhaps others: those of all parts of the tree that a request for such a key may reach, whatever its verb
    /// and whatever fails. They are found as [`Configuration::build`] finds all servers, so no route can be forgotten.
    pub fn visit_servers_of_keys(&self, key_prefix: &[u8], destinations: &mut dyn Destinations) {
        let start = stored_key_start(key_prefix).unwrap_or_default();
        // With a routing prefix, or the start of one, any tree may be meant.
        let is_any_tree = key_prefix.first().is_none_or(|&first| first == b'/');
        let mut builder = Builder::new(destinations, &self.named).for_keys(start);
        for (names, handle) in &self.trees {
            if is_any_tree || names.contains(&self.default_prefix) {
                builder.build(handle);
            }
        }
    }

    /// The configuration in `text` with its macros expanded and without comments, as JSON without white space.
    ///
    /// ```
    /// use lookaside_routing::Configuration;
    /// let text = r#"{ "macros": { "n": { "type": "constDef", "result": 2 } }, "a": ["%n%", "b"] } // c"#;
    /// assert_eq!(Configuration::expand_macros(text).unwrap(), r#"{"a":[2,"b"]}"#);
    /// ```
    pub fn expand_macros(text: &str) -> Result<String, ConfigurationError> {
        Configuration::expand_macros_with(text, &MacroInputs::NONE)
    }

    /// As [`Configuration::expand_macros`], with macros that may use `inputs`.
    pub fn expand_macros_with(text: &str, inputs: &MacroInputs<'_>) -> Result<String, ConfigurationError> {
        Ok(expand_macros(text, parse_json(text)?, inputs)?.0.to_string())
    }
}

/// Parses the whole configuration. Some errors are only reported.
fn parse_top(value: &Json, top: &Node<'_>, defaults: &Defaults) -> Result<Configuration, ConfigurationError> {
    let top = top.object("an object with \"pools\" and \"route\"")?;
    top.check(&TOP)?;
    let routers = match top.get("routers") {
        Some(node) => parse_routers(&node, &defaults.prefix).inspect_err(|error| node.report(error)),
        None => Ok(Vec::new()),
    };
    let mut parser = Parser::new(&top, defaults, &REGISTRY)?;
    let trees = match (top.get("route"), top.get("routes")) {
        (Some(route), None) => Ok(vec![(vec![defaults.prefix.clone()], parser.handle(&route))]),
        (None, Some(routes)) => parse_routes(&routes, &mut parser, defaults),
        (Some(_), Some(routes)) => Err(routes.error("\"route\" and \"routes\" are both set: expected one of them")),
        (None, None) => Err(top.missing("route", "\"route\" or \"routes\"")),
    };
    let lease_scope = parser.lease_scope().max(defaults.leases.map(|settings| settings.scope));
    let (tls_policies, tls_places) = (parser.tls_policies(), parser.tls_places());
    let named = parser.into_named_handles(&top)?;
    let default_prefix = defaults.prefix.clone();
    let mut trees = trees?;
    if let Some(settings) = defaults.big_values {
        trees = wrap_each(trees, |tree| BigValueRoute::handle(tree, settings));
    }
    if let Some(settings) = defaults.leases {
        trees = wrap_each(trees, |tree| LeaseRoute::handle(tree, settings));
    }
    let handles = trees.iter().map(|(_, tree)| tree);
    let leased_keys = lease_scope.map(|scope| LeasedKeys::of(scope, handles, &named, value));
    if defaults.logs_requests {
        trees = wrap_each(trees, LoggingRoute::handle);
    }
    if defaults.allows_only_gets {
        trees = wrap_each(trees, OnlyGetsRoute::handle);
    }
    Ok(Configuration {
        trees,
        named,
        tls_policies,
        tls_places,
        default_prefix,
        routers: routers?,
        leased_keys,
        sends_unknown_to_default: defaults.sends_unknown_prefix_to_default,
        broadcasts_in_background: defaults.broadcasts_in_background,
        warnings: Vec::new(),
    })
}

const ROUTES_ENTRY: Keys = Keys::known(&["aliases", "route"]);

type Trees = Vec<(Vec<RoutingPrefix>, Handle)>;

/// Puts a route above every tree.
fn wrap_each(trees: Trees, wrap: impl Fn(Handle) -> Handle) -> Trees {
    trees.into_iter().map(|(names, tree)| (names, wrap(tree))).collect()
}

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
            trees.push((vec![prefix], parser.handle(&route)));
        }
    } else {
        routes.parse_elements("a list of {\"aliases\", \"route\"}", |entry| {
            let entry = entry.object("an object with \"aliases\" and \"route\"")?;
            entry.check(&ROUTES_ENTRY)?;
            let mut prefixes = Vec::new();
            for alias in entry.require("aliases", "a list of routing prefixes")?.array("a list of routing prefixes")? {
                let text = alias.string("a routing prefix such as \"/region/cluster/\"")?;
                prefixes.push(parse_prefix(&alias, text, &trees, &prefixes)?);
            }
            trees.push((prefixes, parser.handle(&entry.require("route", "a route")?)));
            Ok(())
        })?;
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
