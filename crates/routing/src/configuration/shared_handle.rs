//! What several handles may refer to by name: a named handle, or a route among the servers of a pool.

use std::fmt;

/// A handle that several others may refer to. It is parsed, and built, once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SharedHandle<'a> {
    /// One of the named handles.
    Named(&'a str),
    /// The route at index `at` of a pool's servers.
    PoolEntry { pool: &'a str, at: usize },
}

impl SharedHandle<'_> {
    /// The message of an error: it leads back to itself through the handles between.
    pub(super) fn circle(&self, from_itself: &[SharedHandle<'_>]) -> String {
        let circle: Vec<String> = from_itself.iter().chain([self]).map(SharedHandle::to_string).collect();
        let what = match self {
            SharedHandle::Named(name) => format!("the named handle {name:?}"),
            SharedHandle::PoolEntry { pool, .. } => format!("a route among the servers of pool {pool:?}"),
        };
        format!("{what} leads back to itself: {}", circle.join(" -> "))
    }
}

impl fmt::Display for SharedHandle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharedHandle::Named(name) => f.write_str(name),
            SharedHandle::PoolEntry { pool, at } => write!(f, "Pool|{pool}[{at}]"),
        }
    }
}
