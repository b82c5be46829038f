//! The description of a tree: its nodes with their arguments, checked.
//!
//! Every route describes itself by a [`RouteConfig`] in its own file under `cluster/`.
//!
//! ```text
//!   text -- Parser --> Handle -- TreeBuilder --> Arc<dyn Route>
//! ```

use super::pool::Pool;
use crate::{Environment, KeyHash, Route};
use bytes::Bytes;
use std::{any::Any, fmt::Debug, sync::Arc};

/// A node of the tree, described.
#[derive(Clone, Debug, PartialEq)]
pub enum Handle {
    /// A route and its arguments.
    Route(Arc<dyn RouteConfig>),
    /// One server of a pool, by its index.
    Server {
        /// The pool.
        pool: Arc<Pool>,
        /// The index in [`Pool::servers`].
        server: usize,
    },
    /// A route among the servers of a pool.
    PoolEntry {
        /// The pool.
        pool: Arc<Pool>,
        /// The index among the entries of its `servers`.
        entry: usize,
        /// The route.
        route: Box<Handle>,
    },
    /// The handle at this index of [`crate::Configuration::named`].
    Named(usize),
}

impl Handle {
    pub(crate) fn route(config: impl RouteConfig) -> Handle {
        Handle::Route(Arc::new(config))
    }

    /// The name of the node in messages: the route's type as in configurations, with the pool or the reply that
    /// distinguishes it (`PoolRoute|main`). A server is named as in a list of children.
    pub fn label(&self) -> String {
        match self {
            Handle::Route(config) => config.label(),
            Handle::Server { pool, server } => format!("Pool|{}[{}]", pool.name, pool.entry_index(*server)),
            Handle::PoolEntry { route, .. } => route.label(),
            Handle::Named(_) => "named handle".to_owned(),
        }
    }

    /// The pool of a server, or of a route over all servers of a pool; `None` for other nodes.
    pub fn pool(&self) -> Option<&Arc<Pool>> {
        match self {
            Handle::Route(config) => config.pool(),
            Handle::Server { pool, .. } => Some(pool),
            Handle::PoolEntry { .. } | Handle::Named(_) => None,
        }
    }

    /// The pool among whose entries it is, and its index among them; `None` if it is no entry of a pool.
    pub(crate) fn place_in_pool(&self) -> Option<(&Pool, usize)> {
        match self {
            Handle::Server { pool, server } => Some((pool, pool.entry_index(*server))),
            Handle::PoolEntry { pool, entry, .. } => Some((pool, *entry)),
            Handle::Route(_) | Handle::Named(_) => None,
        }
    }

    /// As [`RouteConfig::mcrouter_names`]; none for other nodes.
    pub fn mcrouter_names(&self) -> Vec<String> {
        match self {
            Handle::Route(config) => config.mcrouter_names(),
            _ => Vec::new(),
        }
    }

    /// The arguments of the route; `None` if the node is not a route that `T` describes.
    pub fn config<T: RouteConfig>(&self) -> Option<&T> {
        let Handle::Route(config) = self else { return None };
        let config: &dyn Any = &**config;
        config.downcast_ref()
    }
}

/// The arguments of one route. They are checked: [`RouteConfig::build`] cannot fail.
pub trait RouteConfig: DynEq + Debug + Send + Sync {
    /// The route's type as in configurations, such as `PoolRoute`.
    fn name(&self) -> &'static str;

    /// See [`Handle::label`].
    fn label(&self) -> String {
        match self.pool() {
            Some(pool) => format!("{}|{}", self.name(), pool.name),
            None => self.name().to_owned(),
        }
    }

    /// The pool whose servers are the children of the route; `None` for a route over other routes.
    fn pool(&self) -> Option<&Arc<Pool>> {
        None
    }

    /// Names and values of the arguments that distinguish the route from others of its type in a description of the
    /// tree.
    fn options(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The name that mcrouter prints for the type: by default the type without `Route`, in lower case with hyphens.
    fn mcrouter_name(&self) -> String {
        hyphenated(self.name())
    }

    /// What mcrouter prints for the route, the outermost first: it has several routes in the place of some. By default
    /// the name of the type, with the options behind it.
    fn mcrouter_names(&self) -> Vec<String> {
        let options = self.options().into_iter().map(|(name, value)| format!("|{name}={value}"));
        vec![self.mcrouter_name() + &options.collect::<String>()]
    }

    /// The hash by which the route picks one of its children for a key, and the number of these; `None` if it picks
    /// otherwise.
    fn key_hash(&self) -> Option<(&KeyHash, usize)> {
        None
    }

    /// Whether servers below the route store keys under other names than clients use, so that a key that is found on a
    /// server does not pass the route a second time as it did the first time; or store keys that no delete reaches.
    fn changes_keys(&self) -> bool {
        false
    }

    /// The keys that the route may have changed to `changed`, both without routing prefixes, and perhaps others. Of keys
    /// that differ only in bytes which the route overwrites, one with the new bytes and one with others are enough. By
    /// default none: the route leaves keys as they are.
    fn keys_changed_to(&self, changed: &[u8]) -> Vec<Bytes> {
        let _ = changed;
        Vec::new()
    }

    /// Whether a read through the route stores what it has found elsewhere. It must do so by
    /// [`Environment::filling_router`], if there is one.
    fn fills_on_reads(&self) -> bool {
        false
    }

    /// Whether the route sends a read to one child, and to another one only if that has failed, with the client's key;
    /// and returns the reply as it is. Then the child may send it through a router, which has the same route above the
    /// child: the read passes it twice. By default false.
    fn passes_reads(&self) -> bool {
        false
    }

    /// Builds the route and its children.
    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route>;
}

/// The name of a type without `Route`, in lower case with hyphens.
pub(super) fn hyphenated(name: &str) -> String {
    let mut hyphenated = String::new();
    for letter in name.strip_suffix("Route").unwrap_or(name).chars() {
        if letter.is_ascii_uppercase() && !hyphenated.is_empty() {
            hyphenated.push('-');
        }
        hyphenated.push(letter.to_ascii_lowercase());
    }
    hyphenated
}

/// Builds the children of routes, and provides the environment.
pub trait TreeBuilder {
    /// Builds the route that `handle` describes. Named handles are built once and shared.
    fn build(&mut self, handle: &Handle) -> Arc<dyn Route>;

    /// Builds a route for each server of `pool`, in order.
    fn build_servers(&mut self, pool: &Pool) -> Vec<Arc<dyn Route>>;

    /// The beginning of the stored keys that the tree is built for: children that none of them reaches may be left out.
    /// `None` if it is built for all keys.
    fn key_prefix(&self) -> Option<&[u8]>;

    /// Clock, background work and log of the tree.
    fn environment(&self) -> &Environment;

    /// A seed that no other route of this tree has.
    fn next_seed(&mut self) -> u64;

    /// Tells that the route that is being built stores in `child` copies that no delete of a client reaches.
    fn store_undeleted(&mut self, child: &Arc<dyn Route>);

    /// Builds each of `handles`, in order.
    fn build_all(&mut self, handles: &[Handle]) -> Vec<Arc<dyn Route>> {
        handles.iter().map(|handle| self.build(handle)).collect()
    }

    /// Builds the route that `handle` describes, if there is one.
    fn build_optional(&mut self, handle: &Option<Handle>) -> Option<Arc<dyn Route>> {
        handle.as_ref().map(|handle| self.build(handle))
    }
}

/// Equality of values whose types are not known. Implemented for every type that has `PartialEq`.
pub trait DynEq: Any {
    /// Whether `other` is of the same type and equal.
    fn equals(&self, other: &dyn Any) -> bool;
}

impl<T: Any + PartialEq> DynEq for T {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref().is_some_and(|other: &T| other == self)
    }
}

impl PartialEq for dyn RouteConfig {
    fn eq(&self, other: &Self) -> bool {
        self.equals(other as &dyn Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_types_are_separated_by_hyphens() {
        for (kind, name) in [
            ("AllSyncRoute", "all-sync"),
            ("OperationSelectorRoute", "operation-selector"),
            ("BigValueRoute", "big-value"),
            ("NullRoute", "null"),
        ] {
            assert_eq!(hyphenated(kind), name);
        }
    }
}
