//! What is saved in the shared record: the position of a pipeline, the marks of the spool, and what was seen of tables.

use super::{record::RecordError, term::Term};
use crate::{
    SourceError,
    observe::log_throttle,
    pipeline::positions::{PositionError, PositionFile, PositionStore, SavedPosition},
    source::postgres::SeenTables,
    spool::{SpoolMarks, SpoolMarksState},
};
use lookaside_routing::BoxFuture;
use lookaside_sync::Mutex;
use lookaside_telemetry::LogThrottle;
use std::sync::Arc;
use tokio::time::Instant;

const RECORD_WENT_BACK: &str = "the database has lost what the active invalidator had saved: it is a replica that had \
                                received less";

/// The position of one cluster.
pub struct SharedPositions {
    term: Arc<Term>,
    cluster: String,
    /// Where an invalidator without a standby has the position. It counts until one is shared; then it is a copy, for
    /// one without a standby to resume from.
    file: PositionFile,
    failure_log: Arc<Mutex<LogThrottle<Instant>>>,
}

impl SharedPositions {
    /// The position of `cluster`, at first the one in `file`.
    pub fn new(term: Arc<Term>, cluster: &str, file: PositionFile) -> SharedPositions {
        let failure_log = Arc::new(Mutex::new(log_throttle()));
        SharedPositions { term, cluster: cluster.to_owned(), file, failure_log }
    }
}

impl PositionStore for SharedPositions {
    fn load(&self) -> BoxFuture<'_, Result<Option<SavedPosition>, PositionError>> {
        Box::pin(async {
            if let Some(saved) = self.term.state().positions.remove(&self.cluster) {
                return Ok(Some(saved));
            }
            let from_file = self.file.load().await?;
            if let Some(saved) = &from_file {
                let (cluster, position) = (&self.cluster, &saved.position.0);
                tracing::info!(cluster, position, "beginning at the position in --state-dir: none is shared yet");
            }
            Ok(from_file)
        })
    }

    fn loss(&self) -> Option<String> {
        self.term.state().lost.contains(&self.cluster).then(|| RECORD_WENT_BACK.to_owned())
    }

    fn save(&self, position: SavedPosition) -> BoxFuture<'_, Result<(), PositionError>> {
        Box::pin(async move {
            let (cluster, copy) = (self.cluster.clone(), position.clone());
            let saved = self.term.save(|state| {
                state.lost.remove(&cluster);
                state.positions.insert(cluster, position);
            });
            saved.await.map_err(|error| PositionError::NotShared { why: error.0 })?;
            // Without it, or with an older one, deletes are repeated.
            if let Err(why) = self.file.save(copy).await
                && self.failure_log.lock().allow(Instant::now()).is_some()
            {
                tracing::warn!(cluster = self.cluster, %why, "the copy of the shared position cannot be saved");
            }
            Ok(())
        })
    }
}

/// The marks of the spool.
pub struct SharedMarks(pub Arc<Term>);

impl SpoolMarks for SharedMarks {
    fn state(&self) -> SpoolMarksState {
        let state = self.0.state();
        SpoolMarksState { losses: state.losses, loss_reason: state.loss_reason, is_starting: state.is_starting }
    }

    fn save(&self, marks: SpoolMarksState) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(async move {
            let saved = self.0.save_and_renew(|state| {
                state.losses = marks.losses;
                state.loss_reason = marks.loss_reason;
                state.is_starting = marks.is_starting;
            });
            saved.await.map_err(|error| SourceError::SpoolFailed { why: error.0 })
        })
    }
}

/// What was seen of tables with a rule.
#[derive(Clone)]
pub struct SharedTables(pub Arc<Term>);

impl SharedTables {
    /// What is stored; `None` if that is unknown.
    pub fn load(&self) -> Option<SeenTables> {
        self.0.state().tables
    }

    /// Replaces it with the next renewal.
    pub async fn save(&self, tables: SeenTables) -> Result<(), RecordError> {
        self.0.save(|state| state.tables = Some(tables)).await
    }
}
