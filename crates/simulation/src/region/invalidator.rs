//! The invalidator: a production pipeline for each cluster, on the simulated database's log and a disk that survives
//! it.

use super::names::{address, cluster_name, invalidator_host};
use super::{DisabledGuarantee, SimulatedRegion};
use crate::{
    checker::{Checker, OUTDATED_MAX},
    database::ClusterLog,
    process::Process,
};
use bytes::Bytes;
use lookaside_invalidator::{
    Start,
    keys::Flush,
    observe::stats::Statistics,
    pipeline::{
        Options, Pipeline,
        delivery::{DeleteResult, Delivery, Refusal, RouterDelivery, WaitingRouter, connect_routers},
        positions::{PositionError, PositionStore, SavedPosition},
    },
};
use lookaside_routing::BoxFuture;
use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};
use tokio::{sync::watch, task::JoinSet};

/// How long a router may take to answer a batch.
const ROUTER_TIMEOUT_MS: u64 = 1_000;

/// A cluster's position file, which survives the daemon.
#[derive(Clone, Default)]
pub(super) struct Disk(Arc<Mutex<Option<SavedPosition>>>);

struct PositionFile {
    disk: Disk,
    cluster: usize,
    checker: Checker,
}

impl PositionStore for PositionFile {
    fn load(&self) -> BoxFuture<'_, Result<Option<SavedPosition>, PositionError>> {
        let saved = self.disk.0.lock().expect("one thread runs a simulation").clone();
        Box::pin(async move { Ok(saved) })
    }

    fn save(&self, saved: SavedPosition) -> BoxFuture<'_, Result<(), PositionError>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let position = saved.position.0.parse().expect("positions of the simulated log are numbers");
            *self.disk.0.lock().expect("one thread runs a simulation") = Some(saved);
            self.checker.record_acknowledged(&cluster_name(self.cluster), position);
            Ok(())
        })
    }
}

/// Delivers, and records each acknowledged key in the checker.
struct CheckedDelivery {
    routers: RouterDelivery,
    log: ClusterLog,
    cluster: usize,
    checker: Checker,
    disabled: DisabledGuarantee,
}

impl Delivery for CheckedDelivery {
    fn delete(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<DeleteResult>> {
        Box::pin(async move {
            // Commits that have passed the gate are visible: a client that fills a key after this delete has read at
            // least them.
            let covered = self.log.gated_position();
            if self.disabled == DisabledGuarantee::Promptness {
                tokio::time::sleep(OUTDATED_MAX * 3 / 2).await;
            }
            let mut results = self.routers.delete(keys.clone()).await;
            if self.disabled == DisabledGuarantee::Acknowledgement {
                results.fill(DeleteResult::Applied);
            }
            for (key, _) in keys.iter().zip(&results).filter(|(_, result)| **result == DeleteResult::Applied) {
                let key = match Flush::parse(key) {
                    Some(Flush::Prefix(prefix)) => prefix,
                    _ => key,
                };
                let key = std::str::from_utf8(key).expect("our keys are text");
                self.checker.record_applied(&cluster_name(self.cluster), key, covered);
            }
            results
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        self.routers.flush()
    }

    fn is_reachable(&self) -> bool {
        self.routers.is_reachable()
    }

    fn watch_routers(&self) -> BoxFuture<'_, ()> {
        self.routers.watch_routers()
    }

    fn recovered(&self) -> BoxFuture<'_, ()> {
        self.routers.recovered()
    }

    fn waiting_router(&self) -> BoxFuture<'_, WaitingRouter> {
        self.routers.waiting_router()
    }

    fn report_caught_up(&self, router: WaitingRouter) -> BoxFuture<'_, ()> {
        self.routers.report_caught_up(router)
    }

    fn announce_again(&self, router: &WaitingRouter) {
        self.routers.announce_again(router);
    }
}

impl SimulatedRegion {
    /// Starts the daemon with a pipeline for each cluster, from the positions on its disk.
    pub(crate) fn start_invalidator(&self, seed: u64) {
        let names: Vec<String> = self.clusters().map(cluster_name).collect();
        let statistics = Statistics::new(names.iter().map(String::as_str));
        let pipelines: Vec<Pipeline> =
            self.clusters().map(|cluster| self.build_pipeline(cluster, statistics.clone(), seed)).collect();
        let process = Process::default();
        self.programs.start(&invalidator_host(self.index), process.clone(), async move {
            // It is never shut down, only killed.
            let (_shutdown_sender, shutdown) = watch::channel(false);
            let mut tasks = JoinSet::new();
            for pipeline in pipelines {
                tasks.spawn(process.task(pipeline.run(shutdown.clone())));
            }
            let result = tasks.join_next().await;
            panic!("a pipeline stopped by itself: {result:?}");
        });
    }

    /// The connections of the invalidator to the routers of a cluster.
    pub(super) fn connect_routers(&self, cluster: usize, statistics: &Statistics, seed: u64) -> RouterDelivery {
        let addresses: Vec<String> =
            self.plan.routers(cluster).map(|router| address(&router.host()).0.to_string()).collect();
        let network = self.network.host(&invalidator_host(self.index));
        connect_routers(
            &addresses,
            ROUTER_TIMEOUT_MS,
            &network,
            &statistics.clusters()[cluster - self.clusters().start],
            seed ^ cluster as u64,
        )
    }

    fn build_pipeline(&self, cluster: usize, statistics: Arc<Statistics>, seed: u64) -> Pipeline {
        let routers = self.connect_routers(cluster, &statistics, seed);
        let log = ClusterLog::new(self.invalidated.clone(), self.plan.commits_per_flush);
        let delivery = CheckedDelivery {
            routers,
            log: log.clone(),
            cluster,
            checker: self.checker.clone(),
            disabled: self.disabled,
        };
        let disk = self.positions.borrow_mut().entry(cluster).or_default().clone();
        Pipeline {
            log: Arc::new(log),
            delivery: Arc::new(delivery),
            positions: Arc::new(PositionFile { disk, cluster, checker: self.checker.clone() }),
            statistics,
            cluster: cluster - self.clusters().start,
            wall_clock: Arc::new(|| SystemTime::UNIX_EPOCH),
            options: Options { start: Start::Earliest, ..Options::default() },
        }
    }
}
