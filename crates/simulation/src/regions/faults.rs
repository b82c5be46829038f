//! Faults of several regions: those of each region, and replication that stands still, pools of markers that do not
//! answer, and a promotion.

use super::{Regions, density::Density};
use crate::{
    fault_log::FailedPart,
    region::{SimulatedRegion, names::markers_host},
};
use std::time::Duration;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

/// The longest time for which a pool of markers does not answer.
const MARKER_FAULT_MS_MAX: u64 = 1_500;

impl Regions {
    /// Injects faults until `end`, then waits until all are repaired.
    pub(super) async fn inject_faults(&self, rng: &mut fastrand::Rng, end: Instant) {
        let mut faults = JoinSet::new();
        for region in self.all.iter() {
            let (faulty, mut own) = (region.clone(), rng.fork());
            faults.spawn_local(async move { faulty.inject_faults(&mut own, end).await });
            faults.spawn_local(inject_marker_faults(region.clone(), self.density, rng.fork(), end));
            faults.spawn_local(self.clone().stop_replication_at_times(region.index, rng.fork(), end));
        }
        if self.has_promotion {
            let (regions, mut own) = (self.clone(), rng.fork());
            faults.spawn_local(async move {
                sleep(Duration::from_millis(own.u64(regions.density.promotion_at_ms()))).await;
                let target = 1 + own.usize(0..regions.all.len() - 1);
                regions.promote(target, &mut own).await;
            });
        }
        faults.join_all().await;
    }

    async fn stop_replication_at_times(self, region: usize, mut rng: fastrand::Rng, end: Instant) {
        while Instant::now() < end {
            sleep(Duration::from_millis(rng.u64(self.density.fault_interval_ms()))).await;
            let until = Instant::now() + Duration::from_millis(rng.u64(0..self.density.replication_stop_ms_max()));
            self.links[region].stop_until(until);
            self.all[region].checker.count(|tally| tally.replication_stops += 1);
        }
    }
}

/// The server of the pool hangs, or is cut off from a router. It does not die: its markers would be lost.
async fn inject_marker_faults(region: SimulatedRegion, density: Density, mut rng: fastrand::Rng, end: Instant) {
    let server = markers_host(region.index);
    while Instant::now() < end {
        sleep(Duration::from_millis(rng.u64(density.fault_interval_ms()))).await;
        let duration = Duration::from_millis(rng.u64(0..MARKER_FAULT_MS_MAX));
        region.checker.count(|tally| tally.faults += 1);
        if rng.bool() {
            let fault = region.faults.begin(None, FailedPart::Server(server.clone()));
            region.hang_host(&server, duration).await;
            region.faults.end(fault);
        } else {
            let routers: Vec<String> = region
                .clusters()
                .flat_map(|cluster| region.plan.routers(cluster))
                .map(|router| router.host())
                .collect();
            let fault = region.faults.begin(None, FailedPart::Delivery);
            region.cut(&routers[rng.usize(0..routers.len())], &server, duration).await;
            region.faults.end(fault);
        }
    }
}
