//! Saves the position of a pipeline: some time after it moved, one save at a time, and at the end. Part of the
//! [`task`](super).

use super::{PipelineTask, TaskResult};
use crate::pipeline::positions::{PositionError, SavedPosition};
use lookaside_client::spawn_in;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How long a pipeline waits at shutdown for the results of batches in flight.
const SHUTDOWN_WAIT_MAX: Duration = Duration::from_secs(1);

impl PipelineTask {
    pub(super) fn schedule_save(&mut self) {
        let at = Instant::now() + self.pipeline.options.save_every;
        self.in_flight.save_at.get_or_insert(at);
    }

    pub(super) fn save_when_due(&mut self) {
        if self.in_flight.is_saving || self.in_flight.save_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        let position = self.position_to_save().expect("the position has moved");
        self.in_flight.save_at = None;
        self.in_flight.is_saving = true;
        let positions = self.pipeline.positions.clone();
        spawn_in(&mut self.in_flight.tasks, async move {
            let result = positions.save(position.clone()).await;
            TaskResult::Save(position, result)
        });
    }

    fn position_to_save(&self) -> Option<SavedPosition> {
        let (log_identity, pending) = self.pending.as_ref()?;
        let (log_identity, position) = (log_identity.clone(), pending.safe_position().clone());
        let prepared = self.pipeline.log.prepared_state_at(&position);
        Some(SavedPosition { log_identity, position, prepared })
    }

    pub(super) fn complete_save(&mut self, saved: SavedPosition, result: Result<(), PositionError>) {
        self.in_flight.is_saving = false;
        match result {
            Ok(()) => {
                self.pipeline.log.release(&saved.position);
                self.statistics.set_saved_position(saved.position.clone());
                self.saved = Some(saved);
                self.is_start_saved = true;
            }
            Err(why) => {
                // An older position on disk costs repeated deletes after a crash, and loses none.
                self.statistics.save_failures.add(1);
                if self.failure_log.save_failure.allow(Instant::now()).is_some() {
                    tracing::error!(cluster = self.statistics.name, %why, "saving the position failed; retrying");
                }
                self.schedule_save();
            }
        }
    }

    /// Collects the results in flight, for a limited time, and saves the position.
    pub(super) async fn drain_and_save(&mut self) {
        let deadline = Instant::now() + SHUTDOWN_WAIT_MAX;
        while let Ok(Some(result)) = timeout_at(deadline, self.in_flight.tasks.join_next()).await {
            self.handle_result(result.expect("neither a delivery nor a save panics"));
        }
        let unsaved = self.position_to_save().filter(|position| Some(position) != self.saved.as_ref());
        // A save that still hangs would finish later and replace a newer position by its older one.
        if let Some(position) = unsaved.filter(|_| !self.in_flight.is_saving) {
            let result = self.pipeline.positions.save(position.clone()).await;
            self.complete_save(position, result);
        }
    }
}
