//! What the invalidator finds out about routers whose configurations differ: from the reports that they send to it.

use super::*;
use crate::{
    database::SimulatedDatabase,
    network::SimulatedNetwork,
    region::{DisabledGuarantee, LINK_MODEL, names::cluster_name, plan::RunPlan, run_to_end},
};
use lookaside_invalidator::{
    observe::stats::Statistics,
    pipeline::delivery::{RouterDelivery, config_check::DifferenceEffect},
};
use std::{collections::BTreeSet, ops::Range};
use tokio::time::{sleep, timeout};

const CLUSTER: usize = 0;
/// In simulated time.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A cluster, and the connections of an invalidator to its routers.
struct Cluster {
    region: SimulatedRegion,
    routers: usize,
    delivery: RouterDelivery,
    rng: fastrand::Rng,
}

fn router(index: usize) -> RouterName {
    RouterName { cluster: CLUSTER, index }
}

async fn wait_until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            sleep(Duration::from_millis(100)).await;
        }
    };
    assert!(timeout(WAIT_MAX, waiting).await.is_ok(), "{what}");
}

impl Cluster {
    async fn start(routers: usize, disabled: DisabledGuarantee) -> Cluster {
        let mut rng = fastrand::Rng::with_seed(routers as u64);
        let database = SimulatedDatabase::new(rng.u64(..), 0, true);
        let network = SimulatedNetwork::new(rng.u64(..), LINK_MODEL);
        let region = SimulatedRegion::new(0, RunPlan::of_peers(routers), database, network, disabled);
        region.start_clusters(&mut rng).await;
        let names: Vec<String> = region.clusters().map(cluster_name).collect();
        let statistics = Statistics::new(names.iter().map(String::as_str));
        let delivery = region.connect_routers(CLUSTER, &statistics, rng.u64(..));
        Cluster { region, routers, delivery, rng }
    }

    /// Takes a server out of the pool. The last router does not see that.
    async fn change_servers(&self) {
        let last = router(self.routers - 1);
        let delivery = |to| if to == last { Delivery::AtRestart } else { Delivery::After(Duration::ZERO) };
        let change = |configuration: &mut ClusterConfiguration| _ = configuration.servers.pop();
        self.region.reconfigure(CLUSTER, change, delivery).await;
    }

    fn active(&self, index: usize) -> Arc<ActiveConfigs> {
        self.region.routers.borrow()[&router(index)].active.borrow().clone()
    }

    /// Waits until these routers read by the configuration in their files.
    async fn wait_in_force(&self, routers: Range<usize>) {
        let is_in_force = |index| self.active(index).reads().text() == self.region.configuration_file(router(index));
        wait_until("in force", async || routers.clone().all(is_in_force)).await;
    }

    /// How many configurations the routers that answer read by, and what that means.
    async fn difference(&self) -> (usize, DifferenceEffect) {
        let digests = self.delivery.config_digests().await;
        let distinct: BTreeSet<&String> = digests.values().collect();
        (distinct.len(), self.delivery.difference_effect(digests.keys().copied()).await)
    }

    async fn kill(&mut self, index: usize) {
        self.region.crash_router(router(index), &mut self.rng).await;
    }

    async fn restart(&mut self, index: usize) {
        self.region.start_router(router(index), self.rng.u64(..));
        wait_until("it answers", async || self.delivery.config_digests().await.len() == self.routers).await;
    }
}

/// Each router's deletes reach the places by which the last one reads, also while another one is away.
#[test]
fn routers_cover_what_a_peer_reads_that_is_behind() {
    for routers in 2..=3 {
        run_to_end(async {
            let mut cluster = Cluster::start(routers, DisabledGuarantee::Nothing).await;
            assert_eq!(cluster.difference().await, (1, DifferenceEffect::Covered));
            cluster.change_servers().await;
            cluster.wait_in_force(0..routers - 1).await;
            assert_eq!(cluster.difference().await, (2, DifferenceEffect::Covered), "{routers}");
            cluster.kill(0).await;
            assert_eq!(cluster.difference().await, (routers - 1, DifferenceEffect::Covered), "{routers}");
            let effect = cluster.delivery.difference_effect(0..routers).await;
            assert_eq!(effect, DifferenceEffect::StaleReads, "one that sends no report may serve anything");
            cluster.restart(0).await;
            assert_eq!(cluster.difference().await, (2, DifferenceEffect::Covered), "{routers}");
        });
    }
}

/// No router reads by the new configuration before the one that is away covers it.
#[test]
fn routers_wait_for_a_peer_that_is_away_while_another_is_behind() {
    run_to_end(async {
        let mut cluster = Cluster::start(3, DisabledGuarantee::Nothing).await;
        cluster.kill(1).await;
        cluster.change_servers().await;
        wait_until("both are covered", async || [0, 2].iter().all(|index| cluster.active(*index).is_changing())).await;
        assert_eq!(cluster.difference().await, (1, DifferenceEffect::Covered));
        cluster.restart(1).await;
        cluster.wait_in_force(0..2).await;
        assert_eq!(cluster.difference().await, (2, DifferenceEffect::Covered));
    });
}

#[test]
fn routers_that_are_not_peers_serve_what_the_others_do_not_delete() {
    for routers in 2..=3 {
        run_to_end(async {
            let cluster = Cluster::start(routers, DisabledGuarantee::Peers).await;
            assert_eq!(cluster.difference().await, (1, DifferenceEffect::Covered));
            cluster.change_servers().await;
            cluster.wait_in_force(0..routers - 1).await;
            assert_eq!(cluster.difference().await, (2, DifferenceEffect::StaleReads), "{routers}");
        });
    }
}
