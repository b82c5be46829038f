//! A scripted cluster that records its deletes.

use super::{Database, ms};
use bytes::Bytes;
use lookaside_invalidator::pipeline::delivery::{DeleteResult, Delivery, Refusal};
use lookaside_routing::BoxFuture;
use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// How long a router waits for a server that hangs.
const HUNG_FOR: Duration = Duration::from_secs(2);

/// A cluster that records its deletes.
pub struct Cluster {
    database: Arc<Database>,
    state: Mutex<ClusterState>,
}

pub struct ClusterState {
    /// The deletes that were applied, and when.
    pub deleted: Vec<(String, Instant)>,
    /// The keys of each batch, in the order of sending.
    pub batches: Vec<Vec<String>>,
    pub in_flight: usize,
    pub in_flight_max: usize,
    pub flushes: usize,
    /// Why flushes are refused; `None` if they are not.
    pub flush_refusal: Option<String>,
    /// Keys whose deletes are refused.
    pub refused: Vec<String>,
    /// Deletes of keys with this prefix are refused, as if their server were dead.
    pub dead_prefix: Option<String>,
    /// A batch that has a key with this prefix gets no reply for [`HUNG_FOR`], and then the key is refused: its server
    /// hangs.
    pub hung_prefix: Option<String>,
    /// Keys that no router has a route for.
    pub unroutable: Vec<String>,
    /// Whether batches get no reply.
    pub hangs: bool,
    pub delay: Duration,
    /// In how many of 100 deletes it fails. Half of these are applied all the same.
    pub failing_percent: u32,
    pub rng: fastrand::Rng,
}

impl Cluster {
    pub fn new(database: &Arc<Database>) -> Arc<Cluster> {
        let state = ClusterState {
            deleted: Vec::new(),
            batches: Vec::new(),
            in_flight: 0,
            in_flight_max: 0,
            flushes: 0,
            flush_refusal: None,
            refused: Vec::new(),
            dead_prefix: None,
            hung_prefix: None,
            unroutable: Vec::new(),
            hangs: false,
            delay: ms(1),
            failing_percent: 0,
            rng: fastrand::Rng::with_seed(2),
        };
        Arc::new(Cluster { database: database.clone(), state: Mutex::new(state) })
    }

    pub fn state(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock().expect("no test panics while it holds this")
    }

    pub fn deletes_of(&self, key: &str) -> usize {
        self.state().deleted.iter().filter(|(deleted, _)| deleted == key).count()
    }
}

impl Delivery for Cluster {
    fn delete(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<DeleteResult>> {
        Box::pin(async move {
            let keys: Vec<String> = keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
            self.database.state().events.push(format!("delete {}", keys.join(" ")));
            let (hangs, delay) = {
                let mut state = self.state();
                let is_hung = keys.iter().any(|key| has_prefix(key, &state.hung_prefix));
                state.batches.push(keys.clone());
                state.in_flight += keys.len();
                state.in_flight_max = state.in_flight_max.max(state.in_flight);
                let delay = if is_hung { HUNG_FOR } else { state.delay };
                let jitter = state.rng.f64();
                (state.hangs, if state.failing_percent > 0 { delay.mul_f64(jitter * 4.0) } else { delay })
            };
            if hangs {
                std::future::pending::<()>().await;
            }
            sleep(delay).await;
            let mut state = self.state();
            state.in_flight -= keys.len();
            keys.into_iter().map(|key| state.apply(key)).collect()
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move {
            sleep(ms(1)).await;
            if let Some(refusal) = self.state().flush_refusal.clone() {
                return Err(refusal);
            }
            self.state().flushes += 1;
            self.database.state().events.push("flush".into());
            Ok(())
        })
    }
}

fn has_prefix(key: &str, prefix: &Option<String>) -> bool {
    prefix.as_ref().is_some_and(|prefix| key.starts_with(prefix))
}

impl ClusterState {
    fn apply(&mut self, key: String) -> DeleteResult {
        let fails = self.failing_percent > 0 && self.rng.u32(0..100) < self.failing_percent;
        if self.unroutable.contains(&key) {
            return DeleteResult::Unroutable("no route: scripted failure".into());
        }
        let dead = has_prefix(&key, &self.dead_prefix) || has_prefix(&key, &self.hung_prefix);
        if dead || self.refused.contains(&key) || (fails && self.rng.bool()) {
            return DeleteResult::Refused("SERVER_ERROR scripted failure".into());
        }
        self.deleted.push((key, Instant::now()));
        if fails { DeleteResult::Refused("the reply was lost".into()) } else { DeleteResult::Applied }
    }
}
