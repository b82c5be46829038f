//! A server may be **held** for other routers, which owe it something ([`super::peers`]): then the fence stays up until
//! each has released it, or has been silent for so long that the server is made to forget instead.

use super::ids::Owner;
use super::server_log::Server;
use tokio::time::Instant;

/// Another router owes the server something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    /// Of the owner's messages: what comes late is not taken for what is new.
    sequence: u64,
    until: Instant,
}

/// Routers whose last release is remembered, for each server.
const RELEASED_MAX: usize = 1_000;

impl Server {
    /// Another router owes the server something, says its message `sequence`, which counts until `until`.
    pub(super) fn hold(&self, owner: Owner, sequence: u64, until: Instant) {
        let mut state = self.state();
        let hold = state.holds.entry(owner).or_insert(Hold { sequence, until });
        if hold.sequence <= sequence {
            *hold = Hold { sequence, until };
        }
        self.fence.raise();
    }

    /// Whether the owner has taken back since what it says in its message `sequence`.
    pub(super) fn is_outdated(&self, owner: Owner, sequence: u64) -> bool {
        self.state().released.get(&owner).is_some_and(|released| sequence < *released)
    }

    /// Whether it is held for `owner`.
    pub(super) fn is_held_for(&self, owner: Owner) -> bool {
        self.state().holds.contains_key(&owner)
    }

    /// For how many other routers it is held.
    pub(super) fn holds(&self) -> usize {
        self.state().holds.len()
    }

    /// The other router owes nothing more, says its message `sequence`. False if something newer was said.
    pub(super) fn release(&self, owner: Owner, sequence: u64) -> bool {
        let mut state = self.state();
        let is_newest = state.holds.get(&owner).is_some_and(|hold| hold.sequence < sequence);
        if is_newest {
            state.holds.remove(&owner);
            if state.released.len() >= RELEASED_MAX {
                // A message that was held up so long is no worse than a router that is silent: the server forgets.
                state.released.clear();
            }
            state.released.insert(owner, sequence);
            self.lower_if_free(&state);
        }
        is_newest
    }

    /// The server will forget, so the hold of a router that is still silent counts no more. False if it has spoken since.
    pub(super) fn expire(&self, owner: Owner, now: Instant) -> bool {
        let mut state = self.state();
        let is_silent = state.holds.get(&owner).is_some_and(|hold| hold.until <= now);
        if is_silent {
            state.holds.remove(&owner);
            self.lower_if_free(&state);
        }
        is_silent
    }

    /// Routers that have been silent for too long.
    pub(super) fn overdue(&self, now: Instant) -> Vec<Owner> {
        self.state().holds.iter().filter(|(_, hold)| hold.until <= now).map(|(owner, _)| *owner).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_client::TkoTrackers;
    use lookaside_routing::Address;

    #[test]
    fn of_two_messages_of_a_router_the_newer_counts_whichever_comes_last() {
        let address = Address("here:1".into());
        let fence = TkoTrackers::new().fence(&address);
        let server = Server::new(address, "here".into(), fence);
        let (owner, until) = (Owner(7), Instant::now() + std::time::Duration::from_secs(1));
        server.hold(owner, 3, until);
        assert!(!server.release(owner, 2), "held up on an old connection");
        assert!(server.is_fenced());
        assert!(server.release(owner, 4) && !server.is_fenced());
        assert!(server.is_outdated(owner, 3) && !server.is_outdated(owner, 5));
        server.hold(owner, 5, until);
        assert!(!server.expire(owner, Instant::now()) && server.is_fenced(), "it has spoken lately");
        assert!(server.expire(owner, until) && !server.is_fenced());
    }
}
