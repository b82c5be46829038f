//! The invalidator: a production pipeline for each cluster, on the simulated database's log and a disk that outlives it.

use super::{Broken, CLUSTERS, Region, address, cluster_name, router};
use crate::{checker::Checker, database::ClusterLog};
use bytes::Bytes;
use lookaside_client::{DestinationOptions, TcpDestination};
use lookaside_invalidator::{
    Start,
    observe::stats::Statistics,
    pipeline::{
        Options, Pipeline,
        delivery::{Delivery, Refusal, Routers, Verdict},
        positions::{PositionError, PositionStore, Record},
    },
};
use lookaside_routing::{BoxFuture, Destination};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};
use tokio::{sync::watch, task::JoinSet};

pub(super) const HOST: &str = "invalidator";

/// A cluster's position file: it outlives the daemon.
#[derive(Clone, Default)]
pub(super) struct Disk(Arc<Mutex<Option<Record>>>);

struct PositionFile {
    disk: Disk,
    cluster: usize,
    checker: Checker,
}

impl PositionStore for PositionFile {
    fn load(&self) -> BoxFuture<'_, Result<Option<Record>, PositionError>> {
        let record = self.disk.0.lock().expect("one thread runs a simulation").clone();
        Box::pin(async move { Ok(record) })
    }

    fn save(&self, record: Record) -> BoxFuture<'_, Result<(), PositionError>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let position = record.position.0.parse().expect("positions of the simulated log are numbers");
            *self.disk.0.lock().expect("one thread runs a simulation") = Some(record);
            self.checker.acknowledged(&cluster_name(self.cluster), position);
            Ok(())
        })
    }
}

/// Delivers, and tells the checker of each key that was acknowledged.
struct Witnessed {
    routers: Routers,
    log: ClusterLog,
    cluster: usize,
    checker: Checker,
    /// Whether every delete is said to be applied, as a broken daemon would.
    is_credulous: bool,
}

impl Delivery for Witnessed {
    fn delete(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<Verdict>> {
        Box::pin(async move {
            // What has passed the gate is visible: whoever fills a key after this delete has read at least that.
            let covered = self.log.passed();
            let mut verdicts = self.routers.delete(keys.clone()).await;
            if self.is_credulous {
                verdicts.fill(Verdict::Applied);
            }
            for (key, _) in keys.iter().zip(&verdicts).filter(|(_, verdict)| **verdict == Verdict::Applied) {
                let key = std::str::from_utf8(key).expect("our keys are text");
                self.checker.applied(&cluster_name(self.cluster), key, covered);
            }
            verdicts
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        self.routers.flush()
    }
}

impl Region {
    /// Starts the daemon with a pipeline for each cluster, from the positions on its disk.
    pub(super) fn start_invalidator(&self, seed: u64) {
        let names: Vec<String> = (0..CLUSTERS).map(cluster_name).collect();
        let statistics = Statistics::new(names.iter().map(String::as_str));
        let pipelines: Vec<Pipeline> =
            (0..CLUSTERS).map(|cluster| self.pipeline(cluster, statistics.clone(), seed)).collect();
        self.start(HOST, async move {
            // Nobody asks it to stop: it is killed.
            let (_running, shutdown) = watch::channel(false);
            let mut running = JoinSet::new();
            for pipeline in pipelines {
                running.spawn(pipeline.run(shutdown.clone()));
            }
            let ended = running.join_next().await;
            panic!("a pipeline ended by itself: {ended:?}");
        });
    }

    fn pipeline(&self, cluster: usize, statistics: Arc<Statistics>, seed: u64) -> Pipeline {
        let network = self.network.host(HOST);
        let options = DestinationOptions { server_timeout_ms: 1_000, seed, ..DestinationOptions::default() };
        let router = TcpDestination::new(address(&router::host(cluster)), network.clone(), options);
        let routers = Routers::new(vec![Arc::new(router) as Arc<dyn Destination>], network);
        let log = ClusterLog::new(self.database.clone());
        let delivery = Witnessed {
            routers,
            log: log.clone(),
            cluster,
            checker: self.checker.clone(),
            is_credulous: self.broken == Broken::Acknowledgement,
        };
        let disk = self.positions.borrow_mut().entry(cluster).or_default().clone();
        Pipeline {
            log: Arc::new(log),
            delivery: Arc::new(delivery),
            positions: Arc::new(PositionFile { disk, cluster, checker: self.checker.clone() }),
            statistics,
            cluster,
            wall: Arc::new(|| SystemTime::UNIX_EPOCH),
            options: Options { start: Start::Earliest, ..Options::default() },
        }
    }
}
