//! One child for each key, by hash (§2 of the paper: keys are spread over servers through consistent hashing).
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the child that the key's hash picks; a single child gets everything |
//!
//! A multiget is split here: each child is asked once, all concurrently.

use crate::{
    Batch, BoxFuture, Context, KeyHash, Outcomes, Picker, Route,
    cluster::{error_route::no_children, latest_route, load_balancer_route, null_route},
    configuration::{
        ConfigurationError, Handle, Keys, Node, Object, Parser, RouteConfig, RouteType, TreeBuilder, check_servers,
        parse_hash_keys,
    },
    split::split,
};
use std::sync::Arc;

/// Spreads keys over children.
pub struct HashRoute {
    children: Vec<Arc<dyn Route>>,
    picker: Picker,
}

impl HashRoute {
    /// Spreads keys over `children` by `hash`.
    ///
    /// # Panics
    /// If `hash` cannot spread keys over that number of children (see [`KeyHash::picker_for`]).
    pub fn new(children: Vec<Arc<dyn Route>>, hash: KeyHash) -> Self {
        let picker = hash.picker_for(children.len()).expect("a hash that fits its children");
        HashRoute { children, picker }
    }
}

impl Route for HashRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        if let [only] = &*self.children {
            return only.route(batch, context);
        }
        split(&self.children, batch, context, |request| self.picker.pick_for(request))
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("HashRoute", parse).with_short_form(|node, argument, parser| {
    let children = parser.short_children(node, argument)?;
    Ok(children.map(|children| Handle::route(Config { children, hash: KeyHash::default() })))
});

#[derive(Debug, PartialEq)]
struct Config {
    children: Vec<Handle>,
    hash: KeyHash,
}

/// The name of a hash that is a route of its own, with its keys.
pub(crate) enum RouteHash<'a> {
    Latest(Object<'a>),
    LoadBalancer(Object<'a>),
}

impl<'a> RouteHash<'a> {
    /// Parses the hash of a pool; `None` if it is a function of the key.
    pub(crate) fn parse(node: &Node<'a>) -> Result<Option<RouteHash<'a>>, ConfigurationError> {
        match node.as_string() {
            Some(name) => Ok(RouteHash::of_name(Some(name), || node.as_empty_object())),
            None => Ok(RouteHash::of_keys(node.object("a hash function's name, or an object with \"hash_func\"")?)),
        }
    }

    /// The hash of an object with `hash_func` and the hash's own keys; `None` if it is a function of the key.
    fn of_keys(object: Object<'a>) -> Option<RouteHash<'a>> {
        let name = object.get("hash_func").and_then(|node| node.as_string());
        RouteHash::of_name(name, || object)
    }

    fn of_name(name: Option<&str>, object: impl FnOnce() -> Object<'a>) -> Option<RouteHash<'a>> {
        match name {
            Some(latest_route::HASH) => Some(RouteHash::Latest(object())),
            Some(load_balancer_route::HASH) => Some(RouteHash::LoadBalancer(object())),
            _ => None,
        }
    }
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    match RouteHash::of_keys(object.clone()) {
        Some(RouteHash::Latest(object)) => return latest_route::parse(&object, parser),
        Some(RouteHash::LoadBalancer(object)) => return load_balancer_route::parse(&object, parser),
        None => {}
    }
    object.check(
        &Keys::known(&["type", "name", "children", "hash_func", "salt", "weights", "tags"]).and(&["error_on_empty"]),
    )?;
    let hash = parse_hash_keys(object)?;
    let error_on_empty = object.get("error_on_empty").map_or(Ok(true), |node| node.boolean())?;
    let children = match parser.optional_children(object, "children")? {
        none if none.is_empty() && !error_on_empty => return Ok(null_route::TYPE.handle_without_arguments()),
        none if none.is_empty() => return Ok(no_children("")),
        children => children,
    };
    let hash = check_servers(hash, children.len(), &object.node)?;
    Ok(Handle::route(Config { children, hash }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn key_hash(&self) -> Option<(&KeyHash, usize)> {
        Some((&self.hash, self.children.len()))
    }

    fn passes_reads(&self) -> bool {
        true
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        Arc::new(HashRoute::new(tree.build_all(&self.children), self.hash.clone()))
    }
}
