//! A router that crashes and loses the file of the configurations that it covers, while its pool changes. It is within
//! the promise of [ADR 012] if one of its peers replies when it starts; others may hang. If the routers share a
//! history, all of them may lose their files at once.
//!
//! [ADR 012]: ../../../../docs/adr/012-resize.md

use super::SimulatedRegion;
use super::guarantee::DisabledGuarantee;
use super::names::RouterName;
use super::reconfigure::{Delivery, ROLLOUT};
use super::resize::{PoolServers, ResizedPool};
use std::time::Duration;
use tokio::{task::JoinSet, time::sleep};

/// Longer than a router asks its peers when it starts.
const START_MAX: Duration = Duration::from_millis(1_200);

/// How long a change may take before all routers lose their files. They forget a configuration after five seconds.
const UNTIL_LOST_MS_MAX: u64 = 12_000;

impl SimulatedRegion {
    /// Crashes `router`, removes its file, and starts it after `duration` with a configuration that the others may not
    /// have seen yet.
    pub(super) async fn lose_coverage(&self, router: RouterName, duration: Duration, rng: &mut fastrand::Rng) {
        let peers: Vec<RouterName> = self.plan.routers(router.cluster).filter(|peer| *peer != router).collect();
        let reserved: Vec<String> = self.plan.routers(router.cluster).map(RouterName::host).collect();
        let reserved = [reserved, peers.iter().map(|peer| link(router, *peer)).collect()].concat();
        let count = reserved.iter().take_while(|name| self.programs.begin_fault(name)).count();
        if count == reserved.len() {
            self.checker.count(|tally| tally.lost_coverages += 1);
            self.crash_router(router, rng).await;
            self.coverages.borrow()[&router].lose();
            sleep(duration).await;
            self.start_without_coverage(router, &peers, rng).await;
        }
        reserved.iter().take(count).for_each(|name| self.programs.end_fault(name));
    }

    /// Changes the servers of a cluster, then crashes all of its routers and removes their files, in the middle of the
    /// change or after it. They start after `duration`, most often by the former servers.
    pub(super) async fn lose_all_coverages(&self, cluster: usize, duration: Duration, rng: &mut fastrand::Rng) {
        let routers: Vec<RouterName> = self.plan.routers(cluster).collect();
        let reserved: Vec<String> = routers.iter().map(|router| router.host()).collect();
        let count = reserved.iter().take_while(|name| self.programs.begin_fault(name)).count();
        if count == reserved.len() {
            let former = PoolServers::of(&self.configuration(routers[0]), ResizedPool::Servers);
            let changed = former.changed(&self.plan.all_pool_servers(cluster), rng);
            self.change_servers(cluster, &changed, |_| Delivery::random(rng, ROLLOUT)).await;
            sleep(Duration::from_millis(rng.u64(0..UNTIL_LOST_MS_MAX))).await;
            for router in &routers {
                // It may have been started just now.
                self.wait_for_router(*router).await;
                self.checker.count(|tally| tally.lost_coverages += 1);
                self.crash_router(*router, rng).await;
                self.coverages.borrow()[router].lose();
            }
            if rng.u8(0..4) > 0 {
                self.change_servers(cluster, &former, |_| Delivery::AtRestart).await;
            }
            sleep(duration).await;
            for router in &routers {
                self.start_router(*router, rng.u64(..));
            }
        }
        reserved.iter().take(count).for_each(|name| self.programs.end_fault(name));
    }

    async fn start_without_coverage(&self, router: RouterName, peers: &[RouterName], rng: &mut fastrand::Rng) {
        for peer in peers {
            // It may have been started just now.
            self.wait_for_router(*peer).await;
        }
        let mut during = JoinSet::new();
        if let [hung, _, ..] = peers
            && rng.bool()
        {
            let (region, host) = (self.clone(), hung.host());
            self.checker.count(|tally| tally.hangs += 1);
            during.spawn_local(async move { region.programs.hang(&host, START_MAX * 2).await });
            sleep(Duration::from_millis(1)).await;
        }
        let all = self.plan.all_pool_servers(router.cluster);
        let changed = PoolServers::of(&self.configuration(router), ResizedPool::Servers).changed(&all, rng);
        let (region, mut rng) = (self.clone(), rng.fork());
        let seed = rng.u64(..);
        during.spawn_local(async move {
            let delivery =
                |other| if other == router { Delivery::AtRestart } else { Delivery::random(&mut rng, ROLLOUT) };
            region.change_servers(router.cluster, &changed, delivery).await;
        });
        // The file of the restarted router is written first.
        sleep(Duration::from_millis(1)).await;
        let is_cut = self.disabled == DisabledGuarantee::Coverage;
        let hosts = || peers.iter().filter(|_| is_cut).map(|peer| (router.host(), peer.host()));
        hosts().for_each(|(host, peer)| self.network.cut(&host, &peer));
        self.start_router(router, seed);
        sleep(START_MAX).await;
        hosts().for_each(|(host, peer)| self.network.heal(&host, &peer));
        during.join_all().await;
    }
}

/// The name under which a fault reserves the link between two routers.
pub(super) fn link(one: RouterName, other: RouterName) -> String {
    format!("{}={}", one.min(other).host(), one.max(other).host())
}
