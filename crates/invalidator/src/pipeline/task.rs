//! The event loop of a pipeline: admits commits, sends batches, applies their results, and saves the position.

mod saving;

use super::{
    Pipeline,
    batch_window::{BatchNumber, BatchWindow},
    delivery::{DeleteResult, WaitingRouter},
    linger::Linger,
    log_reader::{LogReader, PipelineError, ReaderMessage},
    pending::{InFlightBatch, PendingDeletes},
    positions::{PositionError, SavedPosition},
    waiting_routers::{ReadingNumber, WaitingRouters},
};
use crate::{
    Commits, Position, SourceError,
    keys::Flush,
    observe::{
        DeliveryHealth, HealthLogger, log_throttle,
        stats::{ClusterStatistics, PipelineState},
    },
};
use lookaside_client::spawn_in;
use lookaside_telemetry::LogThrottle;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

impl Pipeline {
    /// Runs until `shutdown` is true or its sender is dropped, and saves the position; or until an error that no retry
    /// can cure. May be dropped at any moment: a later run resumes from the saved position.
    pub async fn run(self, mut shutdown: watch::Receiver<bool>) -> Result<(), PipelineError> {
        let statistics = self.statistics.clusters()[self.cluster].clone();
        let (sender, commits) = mpsc::channel(1);
        let (mut reader, stops) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
        spawn_in(
            &mut reader,
            LogReader {
                log: self.log.clone(),
                delivery: self.delivery.clone(),
                positions: self.positions.clone(),
                start: self.options.start.clone(),
                on_position_lost: self.options.on_position_lost,
                read_keys_max: self.options.read_keys_max,
                statistics: statistics.clone(),
                sender,
                stops: stops.clone(),
            }
            .run(),
        );
        let (batches_in_flight_max, linger_max) = (self.options.batches_in_flight_max, self.options.linger_max);
        let mut watch_routers = JoinSet::new();
        let delivery = self.delivery.clone();
        spawn_in(&mut watch_routers, {
            let delivery = delivery.clone();
            async move { delivery.watch_routers().await }
        });
        let mut task = PipelineTask {
            pipeline: self,
            statistics,
            pending: None,
            saved: None,
            is_start_saved: false,
            buffered: None,
            in_flight: InFlight { window: BatchWindow::new(batches_in_flight_max), ..InFlight::default() },
            linger: Linger::new(linger_max),
            reader_stops: stops,
            started_after: None,
            waiting_routers: WaitingRouters::new(delivery),
            failure_log: FailureLog::default(),
        };
        let result = task.run(commits, reader, &mut shutdown).await;
        task.drain_and_save().await;
        let why = result.as_ref().map_or_else(|why| why.to_string(), |()| "shutdown".into());
        task.statistics.set_state(PipelineState::Stopped(why));
        result
    }
}

/// What runs besides the event loop.
#[derive(Default)]
struct InFlight {
    tasks: JoinSet<TaskResult>,
    window: BatchWindow,
    is_saving: bool,
    /// When the position is to be saved next.
    save_at: Option<Instant>,
}

enum TaskResult {
    Batch(BatchNumber, InFlightBatch, Vec<DeleteResult>),
    Save(SavedPosition, Result<(), PositionError>),
    /// The newest position in the log, looked up after the router began to wait.
    NewestPosition(WaitingRouter, Result<Position, SourceError>, ReadingNumber),
    Reported,
}

/// The throttles of the failure logs, and the last refusal.
struct FailureLog {
    health: HealthLogger,
    /// Why the last refused delete was refused.
    last_refusal: String,
    recovery: LogThrottle<Instant>,
    unroutable: LogThrottle<Instant>,
    save_failure: LogThrottle<Instant>,
}

impl Default for FailureLog {
    fn default() -> FailureLog {
        FailureLog {
            health: HealthLogger::default(),
            last_refusal: String::new(),
            recovery: log_throttle(),
            unroutable: log_throttle(),
            save_failure: log_throttle(),
        }
    }
}

struct PipelineTask {
    pipeline: Pipeline,
    statistics: Arc<ClusterStatistics>,
    /// The identity of the log and the pending deletes; `None` until the reader has started.
    pending: Option<(String, PendingDeletes)>,
    /// What was saved last; `None` if nothing was.
    saved: Option<SavedPosition>,
    /// Whether the position of the first start, or a later one, is saved.
    is_start_saved: bool,
    /// Commits that wait for capacity in `pending`.
    buffered: Option<Commits>,
    in_flight: InFlight,
    linger: Linger,
    /// How often the reader has stopped, and how often before its last start; `None` if it has not started.
    reader_stops: Arc<AtomicU64>,
    started_after: Option<u64>,
    waiting_routers: WaitingRouters,
    failure_log: FailureLog,
}

impl PipelineTask {
    /// Runs until `shutdown`, or until the reader has stopped and all its commits are delivered.
    async fn run(
        &mut self,
        mut commits: mpsc::Receiver<ReaderMessage>,
        mut reader: JoinSet<Result<(), PipelineError>>,
        shutdown: &mut watch::Receiver<bool>,
    ) -> Result<(), PipelineError> {
        let mut reader_result = None;
        loop {
            self.admit_buffered();
            self.send_batches();
            self.look_up_newest_positions();
            self.report_caught_up();
            self.report_health();
            self.save_when_due();
            if self.is_idle()
                && let Some(result) = reader_result.take()
            {
                return result;
            }
            let wakeup = self.next_wakeup();
            let delivery = self.pipeline.delivery.clone();
            tokio::select! {
                biased;
                () = wait_for_shutdown(shutdown) => return Ok(()),
                Some(result) = self.in_flight.tasks.join_next() => {
                    self.handle_result(result.expect("neither a delivery nor a save panics"));
                }
                // After the results: keys whose failure is known by now are released, too.
                () = delivery.recovered() => self.release_retries(),
                router = delivery.waiting_router() => self.waiting_routers.add(router),
                next = commits.recv(), if self.can_accept() && reader_result.is_none() => match next {
                    Some(ReaderMessage::StartAt { log_identity, position, is_saved, stops }) => {
                        self.started_after = Some(stops);
                        self.start_at(log_identity, position, is_saved);
                    }
                    Some(ReaderMessage::Commits(commits)) => self.buffered = Some(commits),
                    None => {
                        let result = reader.join_next().await.expect("there is one reader");
                        let result = result.expect("the reader does not panic");
                        self.report_reader_end(&result);
                        reader_result = Some(result);
                    }
                },
                () = sleep_until(wakeup.unwrap_or_else(Instant::now)), if wakeup.is_some() => {}
            }
        }
    }

    /// Whether more commits may be accepted from the reader.
    fn can_accept(&self) -> bool {
        self.buffered.is_none() && (self.pending.is_none() || self.is_start_saved)
    }

    /// Reports why the reader stopped. Commits that it has read are still delivered.
    fn report_reader_end(&self, result: &Result<(), PipelineError>) {
        if let Err(why) = result {
            let cluster = &self.statistics.name;
            tracing::error!(cluster, %why, "pipeline stopped: this cluster gets no more deletes");
            self.statistics.set_state(PipelineState::Stopped(why.to_string()));
        }
    }

    /// Starts, or resumes after a failure of the source, at `position`. The first position is saved at once: a restart
    /// must not start later than here. If it `is_saved` already, deletes do not wait for that: a standby would begin with
    /// them when the shared record is next renewed, up to a second later.
    fn start_at(&mut self, log_identity: String, position: Position, is_saved: bool) {
        if let Some((identity, pending)) = &mut self.pending {
            // After a failover another server continues the log, and positions are its own.
            *identity = log_identity;
            pending.advance(position);
            self.schedule_save();
        } else {
            self.pending = Some((log_identity, PendingDeletes::new(self.pipeline.options.limits, position)));
            self.is_start_saved = is_saved;
            self.in_flight.save_at = Some(Instant::now());
        }
    }

    /// Admits the buffered commits once there is capacity for all of them.
    fn admit_buffered(&mut self) {
        let Some((_, pending)) = &mut self.pending else { return };
        let is_reachable = self.pipeline.delivery.is_reachable();
        pending.set_reachable(is_reachable);
        self.in_flight.window.set_reachable(is_reachable);
        let count = |buffered: &Commits| buffered.commits.iter().map(|commit| commit.keys.len()).sum();
        let keys = self.buffered.as_ref().map_or(0, count);
        if let Some(buffered) = self.buffered.take_if(|_| pending.has_capacity(keys)) {
            let before = pending.safe_position().clone();
            // Prepared transactions hold it back. How far the log is read is saved beside it.
            let is_held_back = buffered.position == before;
            buffered.commits.into_iter().for_each(|commit| pending.admit(commit));
            pending.advance(buffered.position);
            if is_held_back || *pending.safe_position() != before {
                self.schedule_save();
            }
        }
        self.report_backlog();
    }

    /// Sends batches while keys wait and not too many batches are in flight.
    fn send_batches(&mut self) {
        let Some((_, pending)) = &mut self.pending else { return };
        let (now, window) = (Instant::now(), &mut self.in_flight.window);
        self.linger.update(pending.has_unsent(), now);
        while window.may_send(now) {
            if self.linger.holds(window.has_prompt_fresh(now) && !pending.has_full_batch(), now) {
                return;
            }
            let Some(batch) = pending.next_batch(now, window.may_retry(now)) else { return };
            let keys = batch.keys();
            let number = window.add(now, batch.is_retry());
            if !batch.is_retry() && self.linger.restart(pending.has_unsent(), now) {
                self.statistics.lingered_batches.add(1);
            }
            self.statistics.record_batch(keys.len());
            let delivery = self.pipeline.delivery.clone();
            spawn_in(&mut self.in_flight.tasks, async move {
                let results = delivery.delete(keys).await;
                TaskResult::Batch(number, batch, results)
            });
        }
    }

    /// Sends refused deletes again at once.
    fn release_retries(&mut self) {
        let Some((_, pending)) = &mut self.pending else { return };
        let now = Instant::now();
        let keys = pending.release_retries(now);
        if keys == 0 {
            return;
        }
        self.statistics.recoveries.add(1);
        if self.failure_log.recovery.allow(now).is_some() {
            tracing::info!(cluster = self.statistics.name, keys, "a router answers again; sending its deletes at once");
        }
    }

    /// The present time of reading; `None` if the log is not read now.
    fn reading(&self) -> Option<ReadingNumber> {
        self.started_after.filter(|stops| *stops == self.reader_stops.load(SeqCst))
    }

    /// Looks up the commits that must be deleted before routers that wait may serve gets, once the log is read.
    fn look_up_newest_positions(&mut self) {
        let Some(reading) = self.reading() else { return };
        for router in self.waiting_routers.begin_look_ups(reading) {
            let log = self.pipeline.log.clone();
            spawn_in(&mut self.in_flight.tasks, async move {
                let newest = log.newest_position().await;
                TaskResult::NewestPosition(router, newest, reading)
            });
        }
    }

    /// Tells waiting routers that everything committed before they began to wait is deleted, once it is.
    fn report_caught_up(&mut self) {
        let (Some((_, pending)), Some(reading)) = (&self.pending, self.reading()) else { return };
        let (log, safe_position) = (&self.pipeline.log, pending.safe_position());
        for router in self.waiting_routers.remove_reached(reading, |target| log.covers(safe_position, target)) {
            let delivery = self.pipeline.delivery.clone();
            spawn_in(&mut self.in_flight.tasks, async move {
                delivery.report_caught_up(router).await;
                TaskResult::Reported
            });
        }
    }

    fn handle_result(&mut self, result: TaskResult) {
        match result {
            TaskResult::Batch(number, batch, results) => {
                self.in_flight.window.remove(number);
                self.complete_batch(batch, &results);
            }
            TaskResult::Save(position, result) => self.complete_save(position, result),
            TaskResult::NewestPosition(router, newest, reading) => {
                self.waiting_routers.set_target(&router, newest.ok(), reading);
            }
            TaskResult::Reported => {}
        }
    }

    fn complete_batch(&mut self, batch: InFlightBatch, results: &[DeleteResult]) {
        self.count_results(&batch, results);
        let is_final: Vec<bool> = results.iter().map(DeleteResult::is_final).collect();
        let (_, pending) = self.pending.as_mut().expect("a batch holds pending keys");
        let before = pending.safe_position().clone();
        let acked = pending.complete(batch, &is_final, Instant::now());
        let has_moved = *pending.safe_position() != before;
        let now = (self.pipeline.wall_clock)();
        for commit in acked {
            let (statistics, cluster) = (&self.pipeline.statistics, self.pipeline.cluster);
            statistics.record_applied(cluster, &commit.position, commit.committed_at, now);
        }
        if has_moved {
            self.schedule_save();
        }
        self.report_backlog();
    }

    fn count_results(&mut self, batch: &InFlightBatch, results: &[DeleteResult]) {
        let mut refusal = None;
        for (index, result) in results.iter().enumerate() {
            match result {
                DeleteResult::Applied => match Flush::parse(batch.key(index)) {
                    Some(Flush::Cluster) => self.statistics.flushes.add(1),
                    Some(Flush::Prefix(_)) => self.statistics.pool_flushes.add(1),
                    None => self.statistics.invalidations.add(1),
                },
                DeleteResult::Unroutable(why) => {
                    self.statistics.unroutable.add(1);
                    if self.failure_log.unroutable.allow(Instant::now()).is_some() {
                        let key = String::from_utf8_lossy(batch.key(index)).into_owned();
                        tracing::warn!(
                            cluster = self.statistics.name,
                            key,
                            why,
                            "the cluster's routers have no route for this key; nothing to delete there"
                        );
                    }
                }
                DeleteResult::Refused(why) => {
                    self.statistics.retried.add(1);
                    refusal.get_or_insert(why);
                }
            }
        }
        if let Some(why) = refusal {
            self.failure_log.last_refusal.clone_from(why);
        }
    }

    /// Shows the health of delivery in the state at once, and logs it when it has changed.
    fn report_health(&mut self) {
        let Some((_, pending)) = &self.pending else { return };
        let (keys, key_bytes) = pending.retry_queue_size();
        let health = match (keys, pending.is_blocked() && self.buffered.is_some()) {
            (0, _) => DeliveryHealth::Healthy,
            (_, false) => DeliveryHealth::Retrying,
            (_, true) => DeliveryHealth::Blocked,
        };
        let (cluster, why) = (&self.statistics.name, &self.failure_log.last_refusal);
        self.statistics.set_delivery_state(match health {
            DeliveryHealth::Healthy => None,
            DeliveryHealth::Retrying => Some(PipelineState::Retrying(why.clone())),
            DeliveryHealth::Blocked => Some(PipelineState::Blocked(format!(
                "deletes of {keys} keys ({key_bytes} bytes) are not acknowledged, so reading waits: {why}"
            ))),
        });
        match self.failure_log.health.update(health, Instant::now()) {
            None => {}
            Some(DeliveryHealth::Healthy) => tracing::info!(cluster, "all deletes are acknowledged again"),
            Some(DeliveryHealth::Retrying) => {
                tracing::warn!(cluster, keys, why, "deletes are not acknowledged; retrying them");
            }
            Some(DeliveryHealth::Blocked) => tracing::error!(
                cluster,
                keys,
                key_bytes,
                why,
                "too many deletes are not acknowledged: reading waits, and all of this cluster's keys grow stale"
            ),
        }
    }

    fn report_backlog(&self) {
        let buffered = self.buffered.iter().flat_map(|buffered| &buffered.commits);
        let buffered_keys = buffered.map(|commit| commit.keys.len()).sum::<usize>();
        let pending_keys = self.pending.as_ref().map_or(0, |(_, pending)| pending.keys());
        self.statistics.set_pending_keys(pending_keys + buffered_keys);
        if let Some((_, pending)) = &self.pending {
            self.statistics.set_retry_queue_size(pending.retry_queue_size());
            self.statistics.set_commits_merged(pending.commits_merged());
            self.statistics.set_duplicates_removed(pending.duplicates_removed());
            self.statistics.set_oldest_pending(pending.oldest_committed_at());
        }
    }

    /// When to act next if nothing arrives before.
    fn next_wakeup(&self) -> Option<Instant> {
        let (now, window) = (Instant::now(), &self.in_flight.window);
        let pending = self.pending.as_ref().map(|(_, pending)| pending);
        let retry = pending.and_then(|pending| pending.next_retry_at(now)).zip(window.next_retry_at(now));
        let retry = retry.map(|(keys, window)| keys.max(window));
        let send = match pending.filter(|pending| pending.has_unsent()) {
            Some(pending) => {
                let may_linger = window.has_prompt_fresh(now) && !pending.has_full_batch();
                Some(self.linger.send_at(may_linger, now))
            }
            None => retry,
        };
        // A batch waits for its keys, and for a place in the window.
        let send = send.zip(window.next_send_at(now)).map(|(keys, window)| keys.max(window));
        let save = self.in_flight.save_at.filter(|_| !self.in_flight.is_saving);
        [send, save, self.failure_log.health.next_log_at()].into_iter().flatten().min()
    }

    fn is_idle(&self) -> bool {
        self.buffered.is_none()
            && self.in_flight.window.is_empty()
            && self.pending.as_ref().is_none_or(|(_, pending)| pending.keys() == 0)
    }
}

/// Returns when `shutdown` is true or its sender has been dropped.
async fn wait_for_shutdown(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|&is_requested| is_requested).await;
}
