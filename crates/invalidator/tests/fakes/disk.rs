//! Disks in memory, for the position of one cluster.

use super::{Cluster, Database, ms};
use lookaside_invalidator::{
    Position,
    pipeline::positions::{PositionError, PositionStore, SavedPosition},
};
use lookaside_routing::BoxFuture;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};
use tokio::time::sleep;

/// A disk that checks, at every save, that no commit up to the saved position has a pending delete.
pub struct Disk {
    pub saved: Mutex<Option<SavedPosition>>,
    /// Whether saves hang.
    pub hangs: AtomicBool,
    /// The commits up to here are not checked.
    pub first_position: usize,
    pub database: Arc<Database>,
    pub cluster: Arc<Cluster>,
}

impl Disk {
    pub fn new(database: &Arc<Database>, cluster: &Arc<Cluster>, first_position: usize) -> Arc<Disk> {
        let (saved, hangs) = (Mutex::new(None), AtomicBool::new(false));
        Arc::new(Disk { saved, hangs, first_position, database: database.clone(), cluster: cluster.clone() })
    }

    pub fn position(&self) -> Option<usize> {
        let saved = self.saved.lock().expect("no panic while it is held");
        saved.as_ref().map(|saved| saved.position.0.parse().expect("a number"))
    }

    pub fn put(&self, log: &str, position: usize) {
        let position = Position(position.to_string());
        let saved = SavedPosition { log_identity: log.into(), position, prepared: None };
        *self.saved.lock().expect("no panic while it is held") = Some(saved);
    }

    fn check(&self, upto: usize) {
        let database = self.database.state();
        let cluster = self.cluster.state();
        if cluster.flushes > 0 {
            return;
        }
        for (number, commit) in database.commits[..upto].iter().enumerate().skip(self.first_position) {
            for key in &commit.keys {
                let is_deleted = cluster.deleted.iter().any(|(deleted, at)| deleted == key && *at >= commit.visible_at);
                assert!(
                    is_deleted,
                    "position {upto} passed commit {}: {key} was never deleted once it was visible",
                    number + 1
                );
            }
        }
    }
}

impl PositionStore for Disk {
    fn load(&self) -> BoxFuture<'_, Result<Option<SavedPosition>, PositionError>> {
        Box::pin(async { Ok(self.saved.lock().expect("no panic while it is held").clone()) })
    }

    fn save(&self, saved: SavedPosition) -> BoxFuture<'_, Result<(), PositionError>> {
        Box::pin(async move {
            sleep(ms(2)).await;
            while self.hangs.load(Ordering::Relaxed) {
                sleep(ms(1)).await;
            }
            self.check(saved.position.0.parse().expect("a number"));
            *self.saved.lock().expect("no panic while it is held") = Some(saved);
            Ok(())
        })
    }
}

/// A disk for clusters that do not record their deletes in a [`Cluster`].
#[derive(Default)]
pub struct UncheckedDisk(Mutex<Option<SavedPosition>>);

impl UncheckedDisk {
    pub fn new() -> Arc<UncheckedDisk> {
        Arc::default()
    }
}

impl PositionStore for UncheckedDisk {
    fn load(&self) -> BoxFuture<'_, Result<Option<SavedPosition>, PositionError>> {
        Box::pin(async { Ok(self.0.lock().expect("no panic while it is held").clone()) })
    }

    fn save(&self, saved: SavedPosition) -> BoxFuture<'_, Result<(), PositionError>> {
        *self.0.lock().expect("no panic while it is held") = Some(saved);
        Box::pin(async { Ok(()) })
    }
}
