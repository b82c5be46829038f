//! New configurations: each router of a cluster sees a new one at a moment of its own, or only when it is restarted.

use super::SimulatedRegion;
use super::configuration::ClusterConfiguration;
use super::names::{RouterName, spares};
use super::router_program::RouterCommand;
use lookaside_router::{ActiveConfigs, RouterConfig};
use std::{iter, sync::Arc, time::Duration};
use tokio::task::JoinSet;

/// How long it may take until the last router sees a new file.
pub(super) const ROLLOUT: Duration = Duration::from_secs(2);
/// How long a router may take to put a configuration in force, because it waits for its connections.
const IN_FORCE_MAX: Duration = Duration::from_millis(2_100);

/// When a router sees a new configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    After(Duration),
    /// Its watch of the file is broken, so it reads the file only when it starts.
    AtRestart,
}

impl Delivery {
    /// Within `latest`, and in one of eight cases only at a restart.
    pub(super) fn random(rng: &mut fastrand::Rng, latest: Duration) -> Delivery {
        match rng.u8(0..8) {
            0 => Delivery::AtRestart,
            _ => Delivery::After(Duration::from_micros(rng.u64(0..latest.as_micros() as u64))),
        }
    }
}

impl SimulatedRegion {
    /// The text of the configuration that a router reads when it starts.
    pub(super) fn configuration_file(&self, router: RouterName) -> String {
        self.text_of(&self.configuration(router))
    }

    /// The text of the file.
    pub(super) fn text_of(&self, configuration: &ClusterConfiguration) -> String {
        let text = configuration.text(self.disabled);
        self.configurations_by_text.borrow_mut().entry(text.clone()).or_insert_with(|| configuration.clone());
        text
    }

    /// The servers that the routers of a cluster read `key` from now; `None` if that is not known. Computed when it is
    /// called: few reads need it.
    pub(crate) fn owners(&self, cluster: usize, key: &str) -> impl Fn() -> Option<Vec<String>> + use<> {
        let routers = self.routers.borrow();
        let of_cluster = routers.iter().filter(|(router, _)| router.cluster == cluster);
        let active: Vec<Arc<ActiveConfigs>> = of_cluster.map(|(_, router)| router.active.borrow().clone()).collect();
        let (configurations, key) = (self.configurations_by_text.clone(), key.to_owned());
        move || {
            let configurations = configurations.borrow();
            let owner = |config: &RouterConfig| configurations.get(config.text())?.owner(&key).cloned();
            let owners = |active: &Arc<ActiveConfigs>| {
                let configs = iter::once(active.reads()).chain(active.former());
                configs.map(|config| owner(config)).collect::<Vec<_>>()
            };
            active.iter().flat_map(owners).collect()
        }
    }

    pub(super) fn configuration(&self, router: RouterName) -> ClusterConfiguration {
        let configurations = self.configurations.borrow();
        configurations.get(&router).cloned().unwrap_or_else(|| ClusterConfiguration::of(self.plan, router.cluster))
    }

    /// Changes the configuration of a cluster. Each router sees it when `delivery` says so. Returns when all of them
    /// have been sent it.
    pub(super) async fn reconfigure(
        &self,
        cluster: usize,
        change: impl Fn(&mut ClusterConfiguration) + Clone + 'static,
        mut delivery: impl FnMut(RouterName) -> Delivery,
    ) {
        let mut deliveries = JoinSet::new();
        for router in self.plan.routers(cluster) {
            let (region, delivery, change) = (self.clone(), delivery(router), change.clone());
            deliveries.spawn_local(async move {
                if let Delivery::After(delay) = delivery {
                    tokio::time::sleep(delay).await;
                }
                let mut configuration = region.configuration(router);
                change(&mut configuration);
                region.configurations.borrow_mut().insert(router, configuration.clone());
                if let (Delivery::After(_), Some(running)) = (delivery, region.routers.borrow().get(&router)) {
                    // A router that is down reads the file when it starts.
                    let _ = running.commands.send(RouterCommand::Configure(region.text_of(&configuration)));
                }
            });
        }
        while deliveries.join_next().await.is_some() {}
    }

    /// Writes the same servers again, as a tool does that renders the file from a template.
    pub(super) async fn rewrite_servers(&self, cluster: usize, rng: &mut fastrand::Rng) {
        self.reconfigure(cluster, |_| {}, |_| Delivery::random(rng, ROLLOUT)).await;
    }

    /// Adds the spares that are missing, or takes some away, while they serve or not. Spares leave in runs in which
    /// servers do: routers that do not know each other do not agree on it.
    pub(super) async fn change_spares(&self, cluster: usize, rng: &mut fastrand::Rng) {
        let all = spares(cluster);
        let is_complete = self.configuration(RouterName { cluster, index: 0 }).spares == all;
        if !self.plan.has_resizes || !is_complete {
            return self.add_spares(cluster, rng).await;
        }
        let (kept, departing): (Vec<String>, Vec<String>) = all.into_iter().partition(|_| rng.u8(0..4) == 0);
        self.checker.count(|tally| tally.spare_departures += departing.len() as u64);
        self.departed_spares.borrow_mut().extend(departing);
        let change = move |configuration: &mut ClusterConfiguration| configuration.spares.clone_from(&kept);
        self.reconfigure(cluster, change, |_| Delivery::random(rng, ROLLOUT)).await;
    }

    /// Adds the missing spares. All routers must have them before one of them lets one serve ([ADR 010]), which is at
    /// least three seconds after it has seen it: so none of them is down or hangs until each has put them in force.
    ///
    /// [ADR 010]: ../../../../docs/adr/010-spares.md
    async fn add_spares(&self, cluster: usize, rng: &mut fastrand::Rng) {
        let hosts: Vec<String> = self.plan.routers(cluster).map(RouterName::host).collect();
        let reserved = hosts.iter().take_while(|host| self.programs.begin_fault(host)).count();
        if reserved == hosts.len() {
            let change = move |configuration: &mut ClusterConfiguration| configuration.spares = spares(cluster);
            self.reconfigure(cluster, change, |_| Delivery::After(Duration::from_millis(rng.u64(0..500)))).await;
            tokio::time::sleep(IN_FORCE_MAX).await;
        }
        hosts.iter().take(reserved).for_each(|host| self.programs.end_fault(host));
    }

    /// A change that has nothing to do with which server has a key: timeouts and expiries.
    pub(super) async fn change_timeouts(&self, cluster: usize, rng: &mut fastrand::Rng) {
        let (server_timeout_ms, spare_after_ms) = (rng.u64(100..400), rng.u64(300..2_000));
        let gutter_exptime_s = rng.u32(1..6);
        let change = move |configuration: &mut ClusterConfiguration| {
            configuration.server_timeout_ms = server_timeout_ms;
            configuration.spare_after_ms = spare_after_ms;
            configuration.gutter_exptime_s = gutter_exptime_s;
        };
        self.reconfigure(cluster, change, |_| Delivery::random(rng, ROLLOUT)).await;
    }
}

#[cfg(test)]
mod tests;
