//! Servers that have departed.

use lookaside_routing::Address;

/// The most servers that are remembered. If there were more, servers of pools that are new are emptied, too.
const DEPARTED_MAX: usize = 1_000;

/// Servers that were covered once and then were not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Departed {
    /// The oldest first.
    pub(crate) servers: Vec<Address>,
    /// There were more than are remembered.
    pub(crate) is_incomplete: bool,
}

impl Departed {
    pub(crate) fn add(&mut self, servers: impl IntoIterator<Item = Address>) {
        for server in servers {
            self.servers.retain(|known| *known != server);
            self.servers.push(server);
        }
        let excess = self.servers.len().saturating_sub(DEPARTED_MAX);
        self.is_incomplete |= excess > 0;
        self.servers.drain(..excess);
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
}
