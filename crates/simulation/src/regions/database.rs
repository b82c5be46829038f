//! The databases of all regions: one is the master and accepts writes, the others follow it.

use crate::database::SimulatedDatabase;
use bytes::Bytes;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// The database of one region. Clones share it.
#[derive(Clone)]
pub(super) struct RegionDatabase {
    pub(super) content: SimulatedDatabase,
    is_read_only: Arc<AtomicBool>,
}

impl RegionDatabase {
    pub(super) fn new(content: SimulatedDatabase, is_read_only: bool) -> RegionDatabase {
        RegionDatabase { content, is_read_only: Arc::new(AtomicBool::new(is_read_only)) }
    }

    /// Writes `key` in a transaction that names `names`, too. Returns its version when new readers see it; `None` if
    /// the database refuses writes.
    pub(super) async fn write(&self, key: &str, names: Vec<Bytes>) -> Option<u64> {
        if self.is_read_only.load(Relaxed) {
            return None;
        }
        Some(self.content.write_naming(key, names).await)
    }

    /// The version of `key` that a query reads, at some moment while it runs.
    pub(super) async fn query(&self, key: &str) -> u64 {
        tokio::time::sleep(self.content.query_time()).await;
        let version = self.content.read(key);
        tokio::time::sleep(self.content.query_time()).await;
        version
    }

    pub(super) fn set_read_only(&self, is_read_only: bool) {
        self.is_read_only.store(is_read_only, Relaxed);
    }
}
