//! Two pipelines of the same database, one of them with its gate switched off.

use crate::fakes::{Fixture, UncheckedDisk, ms, until};
use bytes::Bytes;
use lookaside_invalidator::{
    CommitLog, Start,
    pipeline::{
        Options, Pipeline,
        delivery::{DeleteResult, Delivery, Refusal},
    },
};
use lookaside_routing::BoxFuture;
use std::{
    future::ready,
    sync::{Arc, Mutex},
};
use tokio::time::sleep;

/// A cluster that applies all, and remembers it.
#[derive(Default)]
struct RecordingCluster(Mutex<Vec<Bytes>>);

impl RecordingCluster {
    fn has(&self, key: &str) -> bool {
        self.0.lock().expect("no panic while it is held").iter().any(|deleted| deleted == key)
    }
}

impl Delivery for RecordingCluster {
    fn delete(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<DeleteResult>> {
        let results = vec![DeleteResult::Applied; keys.len()];
        self.0.lock().expect("no panic while it is held").extend(keys);
        Box::pin(ready(results))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(ready(Ok(())))
    }
}

pub struct TwoPipelines {
    gated: Arc<RecordingCluster>,
    open: Arc<RecordingCluster>,
    _fixture: Fixture,
}

impl TwoPipelines {
    /// Returns when both read: `gated`, and `open`, whose gate is off.
    pub async fn start(gated: Arc<dyn CommitLog>, open: Arc<dyn CommitLog>) -> TwoPipelines {
        let fixture = Fixture::new(2);
        let clusters: [Arc<RecordingCluster>; 2] = Default::default();
        for (index, log) in [gated, open].into_iter().enumerate() {
            let pipeline = Pipeline {
                log,
                delivery: clusters[index].clone(),
                positions: UncheckedDisk::new(),
                options: Options { start: Start::Now, ..Options::default() },
                ..fixture.pipeline(index)
            };
            tokio::spawn(pipeline.run(fixture.shutdown.subscribe()));
        }
        let state = |name: &str| fixture.stat(&format!("cluster:{name}:state"));
        until("both read", || state("a") == "running" && state("b") == "running").await;
        let [gated, open] = clusters;
        TwoPipelines { gated, open, _fixture: fixture }
    }

    /// Returns when `key` was deleted by the pipeline without a gate, and fails if it is by the other one, too.
    pub async fn check_only_without_gate(&self, key: &str) {
        until("it is deleted without the gate", || self.open.has(key)).await;
        // Both have the commit by now, or in a moment.
        for _ in 0..100 {
            assert!(!self.gated.has(key), "the gate lets it through");
            sleep(ms(3)).await;
        }
    }

    /// Returns when both have deleted `key`.
    pub async fn check_both(&self, key: &str) {
        until("it passes the gate", || self.gated.has(key) && self.open.has(key)).await;
    }
}
