//! What a direct client may read now: by which tree, until when; and whether its plain requests need leases of its own.
//! A batch takes one shared lock here, or two.
//!
//! Invariant: before a permission begins or is extended, the servers that its permit names as fenced are fenced here.

use super::counters::DirectCounters;
use super::permit::{PERMIT_DURATION, Permit};
use super::routers::Routers;
use super::settings::TreeSettings;
use super::tree::DirectTree;
use crate::Fence;
use crate::config::ConfigId;
use lookaside_routing::Address;
use lookaside_sync::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// The state of a direct client, shared with its tasks.
pub(super) struct DirectState {
    pub(super) settings: TreeSettings,
    pub(super) routers: Routers,
    pub(super) counters: DirectCounters,
    /// The options of routers that this client reads by
    /// ([`Defaults::data_options`](lookaside_routing::Defaults::data_options)).
    pub(super) data_options: String,
    permission: RwLock<Option<Permission>>,
    /// Until when plain requests may be sent as they are: a router has said that it takes no leases. `None` if none has, or
    /// one has said since that it does.
    unleased_until: RwLock<Option<Instant>>,
    /// Increases with each reply that said so, and when a configuration leases other keys. Misses of requests that are sent
    /// as they are are not remembered, so not all are known after that
    /// ([`Leasing::version`](lookaside_routing::Leasing::version)).
    leasing_version: AtomicU64,
    /// Notified once a router has given a permit, or all have been asked in vain.
    pub(super) first_reply: Notify,
    trees: Mutex<Trees>,
    /// Raised while a permit names the server. Locked alone, by the task that renews the permit.
    fences: Mutex<BTreeMap<Address, Fence>>,
}

/// How long a router's word that it takes no leases holds, from the moment at which it was asked: far longer than a permit,
/// so that nothing changes for clients of routers without leases while these are too slow to give permits.
const UNLEASED_FOR: Duration = Duration::from_secs(10);

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
    /// Its configuration warms a cluster up. A client that read by it would ask the warm cluster for every miss, and
    /// never store what it finds.
    WarmUp,
}

/// The tree of the newest configuration, and the one that permits name, whose limits on TKO servers hold.
struct Trees {
    /// `None` before a configuration was read.
    newest: Option<Arc<DirectTree>>,
    /// `None` before the first permit: then the limits of the newest tree hold.
    permitted: Option<Arc<DirectTree>>,
}

impl DirectState {
    /// `tree` is `None` if no configuration was read yet.
    pub(super) fn new(settings: TreeSettings, routers: Routers, tree: Option<DirectTree>) -> DirectState {
        if let Some(tree) = &tree {
            settings.tko_trackers.set_pool_limits(tree.tko_limits.clone());
        }
        let trees = Mutex::new(Trees { newest: tree.map(Arc::new), permitted: None });
        DirectState {
            data_options: settings.defaults.data_options(),
            settings,
            routers,
            counters: DirectCounters::default(),
            permission: RwLock::default(),
            unleased_until: RwLock::default(),
            leasing_version: AtomicU64::new(0),
            first_reply: Notify::new(),
            trees,
            fences: Mutex::default(),
        }
    }

    /// A router has said whether it takes leases for plain clients, in reply to a request that was sent at `requested_at`.
    pub(super) fn record_leases(&self, takes_leases: bool, requested_at: Instant) {
        if !takes_leases {
            // First: a plain request that is sent as it is has seen the reply.
            self.leasing_version.fetch_add(1, SeqCst);
        }
        *self.unleased_until.write() = (!takes_leases).then(|| requested_at + UNLEASED_FOR);
    }

    /// Waits until a router has replied, or all have been asked in vain, for at most `limit`.
    pub(super) async fn wait_for_reply(&self, limit: Duration) {
        let _ = timeout(limit, self.first_reply.notified()).await;
    }

    /// Whether plain requests need leases of the client's own: routers take leases for plain clients, or none has said
    /// lately that it does not.
    pub(super) fn needs_leases(&self) -> bool {
        self.unleased_until.read().is_none_or(|until| Instant::now() >= until)
    }

    /// Not all misses are known of plain requests that were sent while it was smaller.
    pub(super) fn leasing_version(&self) -> u64 {
        self.leasing_version.load(SeqCst)
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
        if tree.warms_up {
            return Err(UnusedPermit::WarmUp);
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
                self.leasing_version.fetch_add(1, SeqCst);
            }
            trees.permitted = Some(newest.clone());
        }
        trees.permitted.clone().filter(|permitted| permitted.id == configuration)
    }

    /// Builds the tree of a new configuration, which is read by once a permit names it.
    pub(super) async fn set_newest(&self, text: &str, ready_max: Duration) -> Result<(), String> {
        let old = self.trees.lock().newest.clone();
        let tree = Arc::new(DirectTree::build(text, &self.settings, old.as_deref())?);
        tree.destinations.wait_until_ready(ready_max).await;
        let mut trees = self.trees.lock();
        if trees.permitted.is_none() {
            self.settings.tko_trackers.set_pool_limits(tree.tko_limits.clone());
        }
        trees.newest = Some(tree);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let settings = TreeSettings {
            network: network.clone(),
            defaults: Defaults::default(),
            options: DestinationOptions { tko_trackers: Some(tko_trackers.clone()), ..DestinationOptions::default() },
            tko_trackers,
            host: HostInfo::from_name("", 0),
            background_tasks: BackgroundTasks::default(),
            updates_directly: false,
            udp: None,
            window: None,
            failover_timeout: None,
        };
        let routers = Routers::new([Address("router:1".into())], network, &DestinationOptions::default());
        let tree = DirectTree::build(text, &settings, None).expect("the configuration is valid");
        DirectState::new(settings, routers, Some(tree))
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

    /// Once the limits were those of the newest tree as soon as it was built: while permits still named the one before it,
    /// its pools had the limits of other servers, or none.
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
