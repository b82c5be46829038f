//! From JSON to [`Handle`]s: how routes are written, named handles, and lists of children.
//!
//! ```text
//!   {"type": "PoolRoute", "pool": "A"}    an object with its keys
//!   "PoolRoute|A"                         the short form of the same
//!   "name"                                one of the named handles
//!   "Pool|A"                              in a list of children: each server of the pool
//!   ["PoolRoute|A"]                       in a place for one route: a list that has one
//! ```
//!
//! Routes may also be among the servers of a pool (`pool_entries.rs`).
//!
//! A [`Registry`] lists the route types, each of which parses its own arguments and calls back for its children.
//!
//! A named handle, or a route among the servers of a pool, is parsed at the first reference, so they may stand in any
//! order. One that leads back to itself is detected because it is still being parsed.

use super::{
    defaults::Defaults,
    error::{ConfigurationError, suggestion},
    handle::Handle,
    json_cursor::{Keys, Node, Object},
    pool::{ParsedPool, RouteEntry},
    pool_entries::PoolEntries,
    pools::{Pools, TlsPolicies},
    route_type::RouteType,
    shared_handle::SharedHandle,
    transport::TlsPolicy,
};
use crate::{Address, LeaseScope};
use std::collections::BTreeMap;

/// What a handle with an error is replaced with. It is no handle that exists: one that did would, where it is the one
/// with the error, refer to itself.
const NODE_WITH_ERROR: Handle = Handle::Named(usize::MAX);

/// The deepest tree, in handles. Parsing recurses, and so does every request.
const DEPTH_MAX: usize = 100;

/// The most handles of a configuration that are left out because of an error; one more refuses it. The named handles
/// that each of them refers to are parsed again, so nested ones could take exponential time.
const LEFT_OUT_MAX: usize = 100;

const A_ROUTE: &str = "a route: an object with a \"type\", or a string such as \"PoolRoute|A\"";

pub(crate) struct Registry {
    pub(crate) types: &'static [RouteType],
    /// Types of mcrouter that are not supported, to distinguish them from typing errors.
    pub(crate) unsupported: &'static [&'static str],
    /// The handle in the place of children that an empty list of that name does not have.
    pub(crate) no_children: fn(&str) -> Handle,
}

impl Registry {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.types.iter().map(RouteType::name)
    }

    fn unknown_type(&self, node: &Node<'_>, name: &str) -> ConfigurationError {
        let error = self.unknown_or_unsupported(node, name);
        // mcrouter's words, for scripts that search for them.
        let message = format!("{} (Unknown RouteHandle: {name} line: {})", error.message, error.line);
        ConfigurationError { message, ..error }
    }

    fn unknown_or_unsupported(&self, node: &Node<'_>, name: &str) -> ConfigurationError {
        match self.unsupported.contains(&name) {
            true => {
                let known = self.names().collect::<Vec<_>>().join(", ");
                node.error(format!("mcrouter's {name} is not supported; known routes: {known}"))
            }
            false => {
                let known = suggestion(name, "routes", self.names());
                node.error(format!("no route is named {name:?}{known}"))
            }
        }
    }
}

pub(crate) struct Parser<'a> {
    registry: &'static Registry,
    pools: Pools<'a>,
    named_nodes: BTreeMap<&'a str, Node<'a>>,
    /// The shared handles that are being parsed, outermost first.
    in_progress: Vec<SharedHandle<'a>>,
    /// Parsed shared handles, each behind those that it refers to.
    done: Vec<(String, Handle)>,
    done_by_name: BTreeMap<SharedHandle<'a>, ParsedHandle>,
    /// The number of handles around the one that is being parsed.
    depth: usize,
    /// The maximum of `depth` within the shared handle that is being parsed.
    depth_reached: usize,
    /// The misses of clients that handles need; `None` if none does.
    lease_scope: Option<LeaseScope>,
    splits_shards: bool,
    /// The handles that were left out because of an error.
    left_out: usize,
}

/// What a handle that is left out may have changed.
struct ParserState<'a> {
    done: usize,
    done_by_name: BTreeMap<SharedHandle<'a>, ParsedHandle>,
    depth_reached: usize,
    lease_scope: Option<LeaseScope>,
    tls_policies: TlsPolicies,
}

#[derive(Clone, Copy)]
struct ParsedHandle {
    at: usize,
    /// Handles on the longest path below it, itself included.
    height: usize,
}

impl<'a> Parser<'a> {
    /// Parses all pools; named handles are parsed when they are referred to.
    pub(crate) fn new(
        top: &Object<'a>,
        defaults: &Defaults,
        registry: &'static Registry,
    ) -> Result<Self, ConfigurationError> {
        let pool_nodes = match top.get("pools") {
            Some(node) => node.object("an object with a pool for each name")?.entries().collect(),
            None => BTreeMap::new(),
        };
        let pools = Pools::parse(pool_nodes, defaults);
        let named_nodes = match top.get("named_handles") {
            Some(node) => named_handles(&node)?,
            None => BTreeMap::new(),
        };
        Ok(Parser {
            registry,
            pools,
            named_nodes,
            in_progress: Vec::new(),
            done: Vec::new(),
            done_by_name: BTreeMap::new(),
            depth: 0,
            depth_reached: 0,
            lease_scope: None,
            splits_shards: defaults.splits_shards,
            left_out: 0,
        })
    }

    /// Parses a handle. An error is reported, and another handle is returned in its place, so that the errors of its
    /// siblings are found too. No such handle is ever built: the configuration is refused.
    pub(crate) fn handle(&mut self, node: &Node<'a>) -> Handle {
        self.depth += 1;
        let handle = self.enter(node, 0).and_then(|()| self.handle_at_depth(node));
        self.depth -= 1;
        handle.unwrap_or_else(|error| {
            node.report(&error);
            NODE_WITH_ERROR
        })
    }

    pub(crate) fn parse_required(&mut self, object: &Object<'a>, key: &str) -> Result<Handle, ConfigurationError> {
        Ok(self.handle(&object.require(key, "a route")?))
    }

    /// Parses a handle that is left out if it has an error. Then nothing of it stays but the error that is returned. An
    /// error of a named handle or of a pool that it refers to is that of the whole configuration, as anywhere else.
    pub(crate) fn handle_or_error(&mut self, node: &Node<'a>) -> Result<Handle, ConfigurationError> {
        if self.left_out >= LEFT_OUT_MAX {
            return Ok(self.handle(node));
        }
        let before = ParserState {
            done: self.done.len(),
            done_by_name: self.done_by_name.clone(),
            depth_reached: self.depth_reached,
            lease_scope: self.lease_scope,
            tls_policies: self.pools.save_tls_policies(),
        };
        let trial = node.begin_trial();
        let handle = self.handle(node);
        node.end_trial(trial).map(|()| handle).inspect_err(|_| {
            self.left_out += 1;
            self.done.truncate(before.done);
            self.done_by_name = before.done_by_name;
            self.depth_reached = before.depth_reached;
            self.lease_scope = before.lease_scope;
            self.pools.restore_tls_policies(before.tls_policies);
        })
    }

    pub(crate) fn optional(&mut self, object: &Object<'a>, key: &str) -> Option<Handle> {
        object.get(key).map(|node| self.handle(&node))
    }

    /// Parses the list at `key`. In the place of an empty one there is a handle that refuses every request.
    pub(crate) fn children(&mut self, object: &Object<'a>, key: &str) -> Result<Vec<Handle>, ConfigurationError> {
        let children = self.optional_children(object, key)?;
        Ok(self.or_refusal(children, key))
    }

    /// The children of the list at `key`, or if there are none, a handle that refuses every request.
    fn or_refusal(&self, children: Vec<Handle>, key: &str) -> Vec<Handle> {
        if children.is_empty() { vec![(self.registry.no_children)(key)] } else { children }
    }

    /// Parses the list at `key`, which may be empty.
    pub(crate) fn optional_children(
        &mut self,
        object: &Object<'a>,
        key: &str,
    ) -> Result<Vec<Handle>, ConfigurationError> {
        let node = object.require(key, "a list of routes")?;
        let children = self.list(&node)?;
        if children.is_empty() {
            node.warn("the list is empty");
        }
        Ok(children)
    }

    /// Parses the `children` of a route that has no other argument.
    pub(crate) fn only_children(&mut self, object: &Object<'a>) -> Result<Vec<Handle>, ConfigurationError> {
        object.check(&Keys::known(&["type", "name", "children"]))?;
        self.children(object, "children")
    }

    /// Parses the children in `Type|children`: the servers of `Pool|A`, or one handle.
    pub(crate) fn short_children(
        &mut self,
        node: &Node<'a>,
        argument: Option<&str>,
    ) -> Result<Option<Vec<Handle>>, ConfigurationError> {
        let Some(text) = argument else { return Ok(None) };
        let children = self.short_list(node, text)?;
        Ok(Some(self.or_refusal(children, "children")))
    }

    /// Parses a named handle, or the short form of a route.
    pub(crate) fn short_handle(&mut self, node: &Node<'a>, text: &str) -> Result<Handle, ConfigurationError> {
        if let Some(handle) = self.resolve_name(node, text)? {
            return Ok(handle);
        }
        let (kind, argument) = text.split_once('|').map_or((text, None), |(kind, argument)| (kind, Some(argument)));
        if let Some(route) = self.registry.types.iter().find(|route| route.name() == kind) {
            return route.parse_short_form(node, argument, self)?.ok_or_else(|| {
                node.error(match argument {
                    None => {
                        format!("{kind} needs its arguments: expected {kind}|... or an object with \"type\": {kind:?}")
                    }
                    Some(_) => format!("{kind} has no short form: expected an object with \"type\": {kind:?}"),
                })
            });
        }
        match argument {
            Some(_) if kind == "Pool" => Err(node.error(format!(
                "{text:?} is a list of servers: expected one route, such as \"PoolRoute|...\" over them"
            ))),
            None if !self.registry.unsupported.contains(&kind) => {
                let types = self.registry.names().map(|name| -> &'a str { name });
                let known = suggestion(kind, "names", self.named_nodes.keys().copied().chain(types));
                Err(node.error(format!("no handle is named {kind:?}{known}")))
            }
            _ => Err(self.registry.unknown_type(node, kind)),
        }
    }

    pub(crate) fn pool(&mut self, node: &Node<'a>, name: &str) -> Result<PoolEntries, ConfigurationError> {
        let parsed = self.pools.get(node, name)?;
        self.pool_entries(node, parsed)
    }

    /// The pool at the key `pool`, by name or inline, and its place.
    pub(crate) fn pool_of_route(&mut self, object: &Object<'a>) -> Result<(PoolEntries, Node<'a>), ConfigurationError> {
        let node = object.require("pool", "the name of a pool")?;
        let pool = match node.is_object() {
            true => self.inline_pool(&node)?,
            false => self.pool(&node, node.string("the name of a pool, or a pool")?)?,
        };
        Ok((pool, node))
    }

    fn inline_pool(&mut self, node: &Node<'a>) -> Result<PoolEntries, ConfigurationError> {
        let parsed = self.pools.parse_inline(node)?;
        self.pool_entries(node, parsed)
    }

    /// Parses the routes of a pool that `node` refers to.
    fn pool_entries(&mut self, node: &Node<'a>, parsed: ParsedPool<'a>) -> Result<PoolEntries, ConfigurationError> {
        let route = |entry: &RouteEntry<'a>| match entry.owner {
            Some(pool) => self.shared_handle(node, SharedHandle::PoolEntry { pool, at: entry.at }, &entry.node),
            None => Ok(self.handle(&entry.node)),
        };
        let routes: Result<Vec<Handle>, ConfigurationError> = parsed.routes.iter().map(route).collect();
        Ok(PoolEntries::new(parsed.pool, routes?))
    }

    /// The handle that `handle` refers to by name, or `handle` itself.
    pub(crate) fn resolve<'h>(&'h self, mut handle: &'h Handle) -> &'h Handle {
        while let Handle::Named(at) = handle {
            match self.done.get(*at) {
                Some((_, named)) => handle = named,
                // It is NODE_WITH_ERROR.
                None => break,
            }
        }
        handle
    }

    /// The same; of a route among the servers of a pool, the route.
    pub(crate) fn resolve_route<'h>(&'h self, handle: &'h Handle) -> &'h Handle {
        let mut handle = self.resolve(handle);
        while let Handle::PoolEntry { route, .. } = handle {
            handle = self.resolve(route);
        }
        handle
    }

    /// Records that a handle needs the misses of clients. The wider scope serves the others, too.
    pub(crate) fn use_leases(&mut self, scope: LeaseScope) {
        self.lease_scope = self.lease_scope.max(Some(scope));
    }

    pub(crate) fn lease_scope(&self) -> Option<LeaseScope> {
        self.lease_scope
    }

    /// See [`Defaults::splits_shards`].
    pub(crate) fn splits_shards(&self) -> bool {
        self.splits_shards
    }

    pub(crate) fn tls_policies(&self) -> BTreeMap<Address, TlsPolicy> {
        self.pools.tls_policies()
    }

    pub(crate) fn tls_places(&self) -> BTreeMap<Address, ConfigurationError> {
        self.pools.tls_places()
    }

    /// The shared handles. Those without a reference are parsed now, so that their errors are reported; of these, routes
    /// of pools are then dropped, as no tree uses their servers.
    pub(crate) fn into_named_handles(mut self, top: &Object<'a>) -> Result<Vec<(String, Handle)>, ConfigurationError> {
        let names: Vec<&str> = self.named_nodes.keys().copied().collect();
        for name in names {
            self.resolve_name(&top.node, name)?;
        }
        let used = self.done.len();
        for name in self.pools.names() {
            self.pool(&top.node, name)?;
        }
        self.done.truncate(used);
        Ok(self.done)
    }

    fn handle_at_depth(&mut self, node: &Node<'a>) -> Result<Handle, ConfigurationError> {
        if is_list(node) {
            return self.only_element(node);
        }
        if let Some(text) = node.as_string() {
            return self.short_handle(node, text);
        }
        let object = node.object(A_ROUTE)?;
        let type_node = object.require("type", "the route's type, such as \"PoolRoute\"")?;
        let name = type_node.string("the route's type")?;
        match self.registry.types.iter().find(|route| route.accepts(name)) {
            Some(route) => route.parse_object(&object, self),
            None => Err(self.registry.unknown_type(&type_node, name)),
        }
    }

    /// The one handle that a list has, in a place for one.
    fn only_element(&mut self, node: &Node<'a>) -> Result<Handle, ConfigurationError> {
        let mut handles = self.list(node)?;
        match (handles.pop(), handles.len()) {
            (Some(only), 0) => Ok(only),
            (last, others) => {
                let found = others + usize::from(last.is_some());
                Err(node.error(format!(
                    "a list of {found} routes or servers: expected one route, such as \"PoolRoute|...\" over servers"
                )))
            }
        }
    }

    /// Checks that the tree may be `height` handles deeper here.
    fn enter(&mut self, node: &Node<'_>, height: usize) -> Result<(), ConfigurationError> {
        let reached = self.depth + height;
        self.depth_reached = self.depth_reached.max(reached);
        match reached > DEPTH_MAX {
            true => Err(node.error(format!("the tree is more than {DEPTH_MAX} handles deep here: expected fewer"))),
            false => Ok(()),
        }
    }

    fn resolve_name(&mut self, node: &Node<'a>, name: &str) -> Result<Option<Handle>, ConfigurationError> {
        let Some((&name, target)) = self.named_nodes.get_key_value(name) else { return Ok(None) };
        let target = target.clone();
        self.shared_handle(node, SharedHandle::Named(name), &target).map(Some)
    }

    /// The handle that `node` refers to, and that `target` describes.
    fn shared_handle(
        &mut self,
        node: &Node<'a>,
        shared: SharedHandle<'a>,
        target: &Node<'a>,
    ) -> Result<Handle, ConfigurationError> {
        if let Some(&ParsedHandle { at, height }) = self.done_by_name.get(&shared) {
            self.enter(node, height)?;
            return Ok(Handle::Named(at));
        }
        if let Some(at) = self.in_progress.iter().position(|other| *other == shared) {
            return Err(node.error(shared.circle(&self.in_progress[at..])));
        }
        self.in_progress.push(shared);
        let reached_outside = std::mem::replace(&mut self.depth_reached, self.depth);
        let handle = self.handle(target);
        let height = self.depth_reached - self.depth;
        self.depth_reached = self.depth_reached.max(reached_outside);
        self.in_progress.pop();
        let at = self.done.len();
        self.done.push((shared.to_string(), handle));
        self.done_by_name.insert(shared, ParsedHandle { at, height });
        Ok(Handle::Named(at))
    }

    fn short_list(&mut self, node: &Node<'a>, text: &str) -> Result<Vec<Handle>, ConfigurationError> {
        match text.strip_prefix("Pool|") {
            Some(pool) => Ok(self.pool(node, pool)?.handles()),
            None => Ok(vec![self.short_handle(node, text)?]),
        }
    }

    /// Parses a list of handles, pools and further lists, one handle, or one pool; a pool stands for its servers, and
    /// an empty string for nothing.
    fn list(&mut self, node: &Node<'a>) -> Result<Vec<Handle>, ConfigurationError> {
        match node.is_array() {
            true => Ok(node.parse_elements("a list of routes", |element| self.list(element))?.concat()),
            false => self.element(node),
        }
    }

    fn element(&mut self, element: &Node<'a>) -> Result<Vec<Handle>, ConfigurationError> {
        match element.as_string() {
            Some("") => Ok(Vec::new()),
            Some(text) => self.short_list(element, text),
            None if is_pool(element)? => Ok(self.inline_pool(element)?.handles()),
            None => match self.several(element)? {
                Some(handles) => Ok(handles),
                None => Ok(vec![self.handle(element)]),
            },
        }
    }

    /// Parses an object that stands for several routes of a list; `None` if it is one route.
    fn several(&mut self, element: &Node<'a>) -> Result<Option<Vec<Handle>>, ConfigurationError> {
        let object = element.object(A_ROUTE)?;
        let Some(name) = object.get("type").and_then(|kind| kind.as_string()) else { return Ok(None) };
        let Some(route) = self.registry.types.iter().find(|route| route.accepts(name)) else { return Ok(None) };
        self.depth += 1;
        let handles = self.enter(element, 0).and_then(|()| route.parse_list(&object, self).transpose());
        self.depth -= 1;
        handles
    }
}

/// Whether a place for one route has a list: an array, or the servers of a pool.
fn is_list(node: &Node<'_>) -> bool {
    match node.as_string() {
        Some(text) => text.starts_with("Pool|"),
        None => node.is_array() || node.is_object() && is_pool(node).unwrap_or(false),
    }
}

fn is_pool(node: &Node<'_>) -> Result<bool, ConfigurationError> {
    Ok(node.object(A_ROUTE)?.get("type").and_then(|kind| kind.as_string()) == Some("Pool"))
}

/// The nodes of named handles: a list of handles that have a `name`, or an object of handles by name.
fn named_handles<'a>(node: &Node<'a>) -> Result<BTreeMap<&'a str, Node<'a>>, ConfigurationError> {
    if node.is_object() {
        return Ok(node.object("handles by name")?.entries().collect());
    }
    let mut handles = BTreeMap::new();
    for handle in node.array("a list of handles with a \"name\", or an object of handles by name")? {
        let name = handle.object("a handle with a \"name\"")?.require("name", "the handle's name")?;
        let text = name.string("the handle's name")?;
        if handles.insert(text, handle).is_some() {
            return Err(name.error(format!("two named handles are named {text:?}: expected each name once")));
        }
    }
    Ok(handles)
}
