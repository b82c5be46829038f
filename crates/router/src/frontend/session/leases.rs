//! The misses of a session's client, which the tree's `LeaseRoute`s need ([`lookaside_routing::ClientMisses`]), over
//! changes of the tree and of the process.
//!
//! | before | what is not known |
//! |---|---|
//! | this process, trees that lease the same keys | nothing |
//! | a tree that leased none, or other keys | misses of those that it did not lease |
//! | another process | all misses, unless it knew that there were none |

use super::Session;
use crate::frontend::context::SessionContext;
use crate::tree::Tree;
use lookaside_routing::ClientMisses;
use std::net::IpAddr;
use std::sync::Arc;

/// The state of a connection that is new, or that another process has served: then its client may have misses that are
/// not known if `has_misses`. `None` if no route needs it.
pub(super) fn misses_at_start(
    context: &SessionContext,
    address: Option<IpAddr>,
    has_misses: bool,
) -> Option<Arc<ClientMisses>> {
    let clients = context.shared.lease_clients();
    context.tree().leasing().map(|leasing| match has_misses {
        true => clients.add_blind(leasing, address),
        false => clients.add(leasing, address),
    })
}

impl Session<'_> {
    /// Called before requests are routed by `tree`.
    pub(super) fn prepare_misses(&mut self, tree: &Tree) {
        let Some(leasing) = tree.leasing() else { return };
        match &self.client.misses {
            Some(misses) if misses.scope() == leasing.scope => misses.advance_to(leasing.version),
            _ => {
                let clients = self.context.shared.lease_clients();
                self.client.misses = Some(clients.add_blind(leasing, self.client.client));
            }
        }
    }

    /// Whether the client may have misses that no set has answered, as far as another process needs to know. That one
    /// may lease any keys.
    pub(super) fn may_have_misses(&self) -> bool {
        let tree = self.context.tree();
        let version = tree.leasing().unwrap_or_default().version;
        !tree.leases_all_keys() || self.client.misses.as_ref().is_none_or(|misses| misses.has_any(version))
    }
}
