//! Reads of an application whose client knows no leases: `get` or `gets`, and after a miss a `set` or `add` over the
//! same connection, or another one of a pool. Its routers take leases for it (`LeaseRoute`).
//!
//! The tasks of an application share its connections, have their own, or have a pool, as a seed decides. A read that
//! failed is not stored: real clients close the connection, or the application does not store.

use super::application::{Application, key};
use crate::value::version_of;
use bytes::Bytes;
use lookaside_client::Origin;
use lookaside_protocol::{Operation, Reply, Request, StoreMode};
use lookaside_routing::{Batch, Context, Outcomes, Route};
use std::sync::Arc;

impl Application {
    /// Reads some keys by one multiget.
    pub(super) async fn read_plain(&mut self) {
        let number = self.rng.usize(1..=4);
        let mut keys: Vec<String> = (0..number).map(|_| key(&mut self.rng)).collect();
        keys.dedup();
        let reads_in_progress: Vec<_> = keys.iter().map(|key| self.begin_read(key)).collect();
        let router = self.rng.usize(0..self.routes.len());
        let route = self.connection(router);
        let get = Operation::Get { cas: self.rng.u8(0..4) == 0 };
        let outcomes = ask(&route, keys.iter().map(|key| request(key, get.clone())).collect()).await;
        for ((key, read_in_progress), outcome) in keys.iter().zip(reads_in_progress).zip(outcomes) {
            let is_miss = match outcome {
                Ok(Reply::Value { value, .. }) => {
                    self.region.checker.end_read(read_in_progress, version_of(&value), Origin::Cache);
                    continue;
                }
                outcome => matches!(outcome, Ok(Reply::Miss)),
            };
            let Ok(value) = self.load(key).await;
            self.region.checker.end_read(read_in_progress, version_of(&value), Origin::Database);
            if is_miss {
                self.store_plain(router, key, value).await;
            }
        }
    }

    async fn store_plain(&mut self, router: usize, key: &str, value: Bytes) {
        let route = self.connection(router);
        let mode = if self.rng.u8(0..4) == 0 { StoreMode::Add } else { StoreMode::Set };
        let store = Operation::Store { mode, flags: 0, exptime: 0, value, cas: false };
        let outcomes = ask(&route, vec![request(key, store)]).await;
        self.region.checker.count(|tally| match outcomes[..] {
            [Ok(Reply::Stored)] => tally.plain_sets_stored += 1,
            [Ok(Reply::NotStored)] => tally.plain_sets_refused += 1,
            _ => {}
        });
    }
}

impl Application {
    /// Any connection to a router.
    pub(super) fn connection(&mut self, router: usize) -> Arc<dyn Route> {
        let connections = &self.routes[router];
        connections[self.rng.usize(0..connections.len())].clone()
    }
}

pub(super) fn request(key: &str, operation: Operation<Bytes>) -> Request<Bytes> {
    Request { key: Bytes::copy_from_slice(key.as_bytes()), operation }
}

pub(super) async fn ask(route: &Arc<dyn Route>, batch: Batch) -> Outcomes {
    route.route(batch, &Context::default()).await
}
