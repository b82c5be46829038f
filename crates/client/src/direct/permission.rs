//! What a direct client may read now: by which tree, until when. A batch takes one shared lock here.
//!
//! Invariant: before a permission begins or is extended, the servers that its permit names as fenced are fenced here.

use super::permit::{PERMIT_DURATION, Permit};
use super::routers::NO_ROUTER;
use super::settings::TreeSettings;
use super::tree::DirectTree;
use crate::Fence;
use crate::config::ConfigId;
use lookaside_routing::Address;
use lookaside_sync::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// The state of a direct client, shared with its tasks.
pub(super) struct DirectState {
    pub(super) settings: TreeSettings,
    /// Whether the routers are those that the configuration names.
    follows_named_routers: bool,
    /// The options of routers that this client reads by
    /// ([`Defaults::data_options`](lookaside_routing::Defaults::data_options)).
    pub(super) data_options: String,
    permission: RwLock<Option<Permission>>,
    /// Notified once a router has given a permit, or all have been asked in vain.
    pub(super) first_reply: Notify,
    trees: Mutex<Trees>,
    /// Raised while a permit names the server. Locked alone, by the task that renews the permit.
    fences: Mutex<BTreeMap<Address, Fence>>,
}

/// What may be sent to servers directly.
#[derive(Clone)]
pub(super) struct Permission {
    until: Instant,
    pub(super) tree: Arc<DirectTree>,
}

/// Why a permit is of no use to this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnusedPermit {
    /// The client has no tree of its configuration.
    OtherConfiguration,
    /// The router has options that decide where a key is, or what clients get for it, and the client has others.
    OtherOptions,
    /// All reads of its configuration go through routers ([`DirectTree::is_for_routers_only`]).
    ForRoutersOnly,
}

/// The tree of the newest configuration, and the one that permits name, whose limits on TKO servers hold.
struct Trees {
    /// `None` before a configuration was read.
    newest: Option<Arc<DirectTree>>,
    /// `None` before the first permit: then the limits of the newest tree hold.
    permitted: Option<Arc<DirectTree>>,
}

impl DirectState {
    /// `tree` is `None` if no configuration was read yet. With `follows_named_routers` each new configuration replaces
    /// the routers.
    pub(super) fn new(settings: TreeSettings, follows_named_routers: bool, tree: Option<DirectTree>) -> DirectState {
        if let Some(tree) = &tree {
            settings.tko_trackers.set_pool_limits(tree.tko_limits.clone());
        }
        let trees = Mutex::new(Trees { newest: tree.map(Arc::new), permitted: None });
        DirectState {
            data_options: settings.defaults.data_options(),
            settings,
            follows_named_routers,
            permission: RwLock::default(),
            first_reply: Notify::new(),
            trees,
            fences: Mutex::default(),
        }
    }

    /// Waits until a router has replied, or all have been asked in vain, for at most `limit`.
    pub(super) async fn wait_for_reply(&self, limit: Duration) {
        let _ = timeout(limit, self.first_reply.notified()).await;
    }

    /// The permission of a batch that begins now; `None` if it must go through a router.
    pub(super) fn permission(&self) -> Option<Permission> {
        let permission = self.permission.read();
        permission.as_ref().filter(|permission| Instant::now() < permission.until).cloned()
    }

    /// Begins or extends the permission by a permit that was requested at `requested_at`.
    pub(super) fn apply(&self, permit: &Permit, requested_at: Instant) -> Result<(), UnusedPermit> {
        if permit.data_options != self.data_options {
            return Err(UnusedPermit::OtherOptions);
        }
        let tree = self.tree(permit.configuration).ok_or(UnusedPermit::OtherConfiguration)?;
        if tree.is_for_routers_only {
            return Err(UnusedPermit::ForRoutersOnly);
        }
        self.set_fences(permit);
        tree.serve_spares(&permit.spares);
        // Whatever the router says: it counts on no longer one.
        let until = requested_at + permit.duration.min(PERMIT_DURATION);
        *self.permission.write() = Some(Permission { until, tree });
        Ok(())
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
        let (newest, permitted) = (trees.newest.as_ref()?, &trees.permitted);
        let is_known = permitted.as_ref().is_some_and(|permitted| Arc::ptr_eq(permitted, newest));
        if newest.id == configuration && !is_known {
            self.settings.tko_trackers.set_pool_limits(newest.tko_limits.clone());
            if permitted.as_ref().is_some_and(|permitted| permitted.leased_keys != newest.leased_keys) {
                self.settings.leases.increase_version();
            }
            trees.permitted = Some(newest.clone());
        }
        trees.permitted.clone().filter(|permitted| permitted.id == configuration)
    }

    /// Builds the tree of a new configuration, which is read by once a permit names it. The routers that it names are
    /// used at once: the former ones may be gone.
    pub(super) async fn set_newest(&self, text: &str, ready_max: Duration) -> Result<(), String> {
        let old = self.trees.lock().newest.clone();
        let tree = Arc::new(DirectTree::build(text, &self.settings, old.as_deref())?);
        if self.follows_named_routers {
            self.use_named_routers(&tree.routers)?;
        }
        tree.destinations.wait_until_ready(ready_max).await;
        let mut trees = self.trees.lock();
        if trees.permitted.is_none() {
            self.settings.tko_trackers.set_pool_limits(tree.tko_limits.clone());
        }
        trees.newest = Some(tree);
        Ok(())
    }

    fn use_named_routers(&self, named: &[Address]) -> Result<(), String> {
        let routers = &self.settings.routers;
        if named.is_empty() {
            let used = routers.addresses();
            if used.is_empty() {
                return Err(NO_ROUTER.to_owned());
            }
            tracing::warn!(
                ?used,
                "the new configuration names no routers for this client, so it goes on with those of the last one; \
                 add \"routers\", or name them where the client is made, before it is restarted"
            );
        } else if routers.replace(named) {
            tracing::info!(routers = ?named, "new routers");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct::Routers;
    use crate::tree::{BackgroundTasks, HostInfo};
    use crate::{DestinationOptions, Listener, Network, Stream, TkoTrackers};
    use lookaside_routing::{BoxFuture, Defaults, TkoReason};
    use std::collections::BTreeSet;
    use std::io;

    /// Connecting never ends.
    struct SilentNetwork;

    impl Network for SilentNetwork {
        fn connect<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
            Box::pin(std::future::pending())
        }

        fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
            Box::pin(std::future::pending())
        }
    }

    fn state(text: &str) -> DirectState {
        let (network, tko_trackers) = (Arc::new(SilentNetwork), TkoTrackers::new());
        let routers = Routers::new([Address("router:1".into())], network.clone(), &DestinationOptions::default());
        let settings = TreeSettings {
            network,
            defaults: Defaults::default(),
            options: DestinationOptions { tko_trackers: Some(tko_trackers.clone()), ..DestinationOptions::default() },
            tko_trackers,
            host: HostInfo::from_name("", 0),
            background_tasks: BackgroundTasks::default(),
            updates_directly: false,
            udp: None,
            window: None,
            failover_timeout: None,
            routers: Arc::new(routers),
            leases: Arc::default(),
            counters: Arc::default(),
        };
        let tree = DirectTree::build(text, &settings, None).expect("the configuration is valid");
        DirectState::new(settings, false, Some(tree))
    }

    fn permit(text: &str) -> Permit {
        Permit {
            duration: PERMIT_DURATION,
            configuration: ConfigId::of(text).expect("the configuration is valid"),
            data_options: String::new(),
            fenced: BTreeSet::new(),
            spares: BTreeSet::new(),
            takes_leases: false,
        }
    }

    /// Once the limits were those of the newest tree as soon as it was built: while permits still named the one before
    /// it, its pools had the limits of other servers, or none.
    #[tokio::test(start_paused = true)]
    async fn limits_on_tko_servers_are_those_of_the_tree_that_is_read() {
        let limited = r#"{ "pools": { "main": { "servers": ["a:1", "b:1"],
            "tko_tracker": { "num_tko_threshold_upper": 1, "num_tko_threshold_lower": 0 } } },
            "route": "PoolRoute|main" }"#;
        let next = r#"{ "pools": { "next": { "servers": ["a:1", "b:1", "c:1"] } }, "route": "PoolRoute|next" }"#;
        let state = state(limited);
        let trackers = state.settings.tko_trackers.clone();
        let server = trackers.tracker(&Address("a:1".into()));
        let epoch = server.epoch().expect("up");
        assert!(trackers.mark_tko(&Address("a:1".into()), &server, epoch, TkoReason::ConnectFailed));
        assert_eq!(trackers.fail_open_pools(), ["main"], "before the first permit");
        assert_eq!(state.apply(&permit(limited), Instant::now()), Ok(()));
        state.set_newest(next, Duration::ZERO).await.expect("the configuration is valid");
        assert_eq!(trackers.fail_open_pools(), ["main"], "permits name the first configuration");
        assert_eq!(state.apply(&permit(limited), Instant::now()), Ok(()));
        assert_eq!(trackers.fail_open_pools(), ["main"]);
        assert_eq!(state.apply(&permit(next), Instant::now()), Ok(()));
        assert!(trackers.fail_open_pools().is_empty(), "the second has no limit");
    }
}
