//! What a direct client may read now: by which tree, until when. A read takes one shared lock here.
//!
//! Invariant: before a permission begins or is extended, the servers that its permit names as fenced are fenced here.

use super::counters::DirectCounters;
use super::permit::Permit;
use super::routers::Routers;
use super::settings::TreeSettings;
use super::tree::DirectTree;
use crate::Fence;
use crate::config::ConfigId;
use lookaside_routing::Address;
use lookaside_sync::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;

/// The state of a direct client, shared with its tasks.
pub(super) struct DirectState {
    pub(super) settings: TreeSettings,
    pub(super) routers: Routers,
    pub(super) counters: DirectCounters,
    /// `None` before the first permit.
    permission: RwLock<Option<Permission>>,
    trees: Mutex<Trees>,
    /// Raised while a permit names the server. Locked alone, by the task that renews the permit.
    fences: Mutex<BTreeMap<Address, Fence>>,
}

struct Permission {
    until: Instant,
    tree: Arc<DirectTree>,
}

/// The tree of the newest configuration, and the one that permits name.
struct Trees {
    newest: Arc<DirectTree>,
    permitted: Option<Arc<DirectTree>>,
}

impl DirectState {
    pub(super) fn new(settings: TreeSettings, routers: Routers, tree: DirectTree) -> DirectState {
        let trees = Mutex::new(Trees { newest: Arc::new(tree), permitted: None });
        let (counters, permission, fences) = (DirectCounters::default(), RwLock::default(), Mutex::default());
        DirectState { settings, routers, counters, permission, trees, fences }
    }

    /// The tree by which a read that begins now may go to servers; `None` if it must go through a router.
    pub(super) fn permitted_tree(&self) -> Option<Arc<DirectTree>> {
        let permission = self.permission.read();
        let permission = permission.as_ref()?;
        (Instant::now() < permission.until).then(|| permission.tree.clone())
    }

    /// Begins or extends the permission by a permit that was requested at `requested_at`. False if the client has no
    /// tree of its configuration.
    pub(super) fn apply(&self, permit: &Permit, requested_at: Instant) -> bool {
        let Some(tree) = self.tree(permit.configuration) else { return false };
        self.set_fences(permit);
        tree.serve_spares(&permit.spares);
        *self.permission.write() = Some(Permission { until: requested_at + permit.duration, tree });
        true
    }

    fn set_fences(&self, permit: &Permit) {
        let mut fences = self.fences.lock();
        for server in &permit.fenced {
            let raise = || {
                let fence = self.settings.tko_trackers.fence(server);
                fence.raise();
                fence
            };
            fences.entry(server.clone()).or_insert_with(raise);
        }
        fences.retain(|server, fence| {
            let is_named = permit.fenced.contains(server);
            if !is_named {
                fence.lower();
            }
            is_named
        });
    }

    /// The tree of the configuration that a permit names, which is kept from then on.
    fn tree(&self, configuration: ConfigId) -> Option<Arc<DirectTree>> {
        let mut trees = self.trees.lock();
        if trees.newest.id == configuration {
            trees.permitted = Some(trees.newest.clone());
        }
        trees.permitted.clone().filter(|permitted| permitted.id == configuration)
    }

    /// Builds the tree of a new configuration, which is read by once a permit names it.
    pub(super) async fn set_newest(&self, text: &str, ready_max: std::time::Duration) -> Result<(), String> {
        let old = self.trees.lock().newest.clone();
        let tree = Arc::new(DirectTree::build(text, &self.settings, Some(&old))?);
        tree.destinations.wait_until_ready(ready_max).await;
        self.trees.lock().newest = tree;
        Ok(())
    }
}
