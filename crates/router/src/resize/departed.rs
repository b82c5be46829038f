//! Servers that have departed.

use lookaside_routing::Address;
use std::collections::BTreeSet;

/// The most servers that are remembered. If there were more, servers of pools that are new are emptied, too.
const DEPARTED_MAX: usize = 1_000;

/// Servers that were covered once and then were not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Departed {
    /// The oldest first.
    pub(crate) servers: Vec<Address>,
    /// There were more than are remembered.
    pub(crate) is_incomplete: bool,
    /// Those of `servers` that were in no configuration of which it is known that it was read. They may be another
    /// cluster's.
    pub(crate) unread: BTreeSet<Address>,
}

impl Departed {
    /// Adds servers of this cluster.
    pub(crate) fn add(&mut self, servers: impl IntoIterator<Item = Address>) {
        for server in servers {
            self.unread.remove(&server);
            self.push(server);
        }
        self.limit();
    }

    /// Adds servers of configurations that were not read, as far as is known. Those that are there as servers of this
    /// cluster remain that.
    pub(crate) fn add_unread(&mut self, servers: impl IntoIterator<Item = Address>) {
        for server in servers {
            if !self.servers.contains(&server) {
                self.unread.insert(server.clone());
            }
            self.push(server);
        }
        self.limit();
    }

    /// Adds `servers`, of which those in `unread` are of configurations that were not read, as far as is known.
    pub(crate) fn add_marked(&mut self, servers: impl IntoIterator<Item = Address>, unread: &BTreeSet<Address>) {
        for server in servers {
            match unread.contains(&server) {
                true => self.add_unread([server]),
                false => self.add([server]),
            }
        }
    }

    pub(crate) fn add_all(&mut self, other: &Departed) {
        self.add_marked(other.servers.iter().cloned(), &other.unread);
        self.is_incomplete |= other.is_incomplete;
    }

    /// Those of `servers` that have departed were in a configuration that was read.
    pub(crate) fn record_read(&mut self, servers: &BTreeSet<Address>) {
        self.unread.retain(|server| !servers.contains(server));
    }

    pub(crate) fn remove(&mut self, servers: &BTreeSet<Address>) {
        self.servers.retain(|server| !servers.contains(server));
        self.unread.retain(|server| !servers.contains(server));
    }

    /// Whether `server` has departed and is this cluster's.
    pub(crate) fn has_own(&self, server: &Address) -> bool {
        self.servers.contains(server) && !self.unread.contains(server)
    }

    fn push(&mut self, server: Address) {
        self.servers.retain(|known| *known != server);
        self.servers.push(server);
    }

    fn limit(&mut self) {
        let excess = self.servers.len().saturating_sub(DEPARTED_MAX);
        self.is_incomplete |= excess > 0;
        for server in self.servers.drain(..excess) {
            self.unread.remove(&server);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_not_remembered_for_ever() {
        let server = |number: usize| Address(format!("s:{number}").into());
        let mut departed = Departed::default();
        departed.add((0..DEPARTED_MAX).map(server));
        departed.add([server(0)]);
        assert_eq!((departed.servers.len(), departed.is_incomplete), (DEPARTED_MAX, false));
        departed.add([server(DEPARTED_MAX)]);
        assert!(departed.is_incomplete && !departed.servers.contains(&server(1)));
        assert!(departed.servers.contains(&server(0)), "it departed again");
    }

    #[test]
    fn a_server_that_was_read_once_is_this_clusters() {
        let [read, unread] = ["read:1", "unread:1"].map(|name| Address(name.into()));
        let mut departed = Departed::default();
        departed.add([read.clone()]);
        departed.add_unread([unread.clone(), read.clone()]);
        let mut other = Departed::default();
        other.add_all(&departed);
        assert_eq!((other.has_own(&read), other.has_own(&unread)), (true, false));
        assert_eq!(other.servers.len(), 2);
        other.record_read(&[unread.clone()].into());
        assert!(other.has_own(&unread));
        departed.add([unread.clone()]);
        assert!(departed.has_own(&unread));
        departed.remove(&[read.clone()].into());
        assert!(!departed.has_own(&read) && departed.has_own(&unread));
    }
}
