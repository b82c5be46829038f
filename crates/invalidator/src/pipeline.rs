//! One cluster's pipeline: from the commit log to acknowledged deletes and a position on disk (§4.1).
//!
//! ```text
//! reader (log, gate) -> window -> batches -> delivery -> acknowledgements -> window -> position -> disk
//! ```
//!
//! It runs as one future that drops all its work when it is dropped. Nothing is shared with the pipelines of other
//! clusters but the database, so a cluster that is down delays no other.
//!
//! * A key that is not acknowledged is sent again, later and later, until it is. Others go on meanwhile.
//! * The window bounds what is owed; when it is full the reader waits, and the database's log keeps the rest.
//! * The position on disk never passes a commit that is owed a delete. After a crash, deletes are sent again: at least
//!   once.
//! * Batches make themselves: up to [`Options::batches_in_flight_max`] travel at once, and what arrives while they do
//!   travels together in the next.

use crate::{
    Commits, Log, Position, Start,
    delivery::{Delivery, Refusal},
    positions::{PositionError, PositionStore, Record},
    reader::{Ended, OnPositionLost, Passed, Reader},
    statistics::{ClusterStatistics, State, Statistics},
    window::{Limits, OutBatch, Window},
};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until, timeout_at},
};

/// How long a pipeline that is asked to stop waits for the answers to what it has sent.
const SHUTDOWN_MAX: Duration = Duration::from_secs(1);

/// Tells the time of day. Given by the caller, so that a simulation can have its own.
pub type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// How a pipeline works.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bounds of the window and its batches.
    pub limits: Limits,
    /// So many batches travel at once.
    pub batches_in_flight_max: usize,
    /// About so many keys are read at once; each read costs one call of the gate.
    pub read_keys_max: usize,
    /// The position is saved this long after it moved, so that a busy log costs a few writes a second.
    pub save_every: Duration,
    /// Where to begin when no position has been saved.
    pub start: Start,
    /// What to do when the log no longer reaches back to the position.
    pub on_position_lost: OnPositionLost,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            limits: Limits {
                keys_max: 65_536,
                batch_keys_max: 1_000,
                batch_bytes_max: 65_536,
                retry_min: Duration::from_millis(10),
                retry_max: Duration::from_secs(1),
            },
            batches_in_flight_max: 4,
            read_keys_max: 4_096,
            save_every: Duration::from_millis(100),
            start: Start::Now,
            on_position_lost: OnPositionLost::Stop,
        }
    }
}

/// What a pipeline works with.
pub struct Pipeline {
    /// The commit log.
    pub log: Arc<dyn Log>,
    /// The way to the cluster.
    pub delivery: Arc<dyn Delivery>,
    /// Where the position is kept.
    pub positions: Arc<dyn PositionStore>,
    /// The figures of the daemon.
    pub statistics: Arc<Statistics>,
    /// Which of its clusters this is.
    pub cluster: usize,
    /// The time of day.
    pub wall: WallClock,
    /// How to work.
    pub options: Options,
}

impl Pipeline {
    /// Runs until `shutdown` says true (or its sender is gone), and saves the position; or until there is no going on.
    /// May be dropped at any moment: a later run goes on from the saved position.
    pub async fn run(self, mut shutdown: watch::Receiver<bool>) -> Result<(), Ended> {
        let figures = self.statistics.clusters()[self.cluster].clone();
        let (sender, passed) = mpsc::channel(1);
        let mut reader = JoinSet::new();
        reader.spawn(
            Reader {
                log: self.log.clone(),
                delivery: self.delivery.clone(),
                positions: self.positions.clone(),
                start: self.options.start.clone(),
                on_position_lost: self.options.on_position_lost,
                read_keys_max: self.options.read_keys_max,
                statistics: figures.clone(),
                passed: sender,
            }
            .run(),
        );
        let mut running =
            Running { pipeline: self, figures, window: None, held: None, work: Work::default(), failing: false };
        let ended = running.run(passed, reader, &mut shutdown).await;
        running.finish().await;
        running
            .figures
            .set_state(State::Stopped(ended.as_ref().map_or_else(|why| why.to_string(), |()| "asked to".into())));
        ended
    }
}

/// What is under way.
#[derive(Default)]
struct Work {
    tasks: JoinSet<Done>,
    batches: usize,
    saving: bool,
    /// When the position is to be saved next.
    save_at: Option<Instant>,
}

/// A piece of work that has been done.
enum Done {
    Batch(OutBatch, Vec<Result<(), Refusal>>),
    Saved(Record, Result<(), PositionError>),
}

struct Running {
    pipeline: Pipeline,
    figures: Arc<ClusterStatistics>,
    /// The identity of the log and what is owed; known when the reader has begun.
    window: Option<(String, Window)>,
    /// Read, and waiting for room.
    held: Option<Commits>,
    work: Work,
    /// Whether the last batch brought a failure.
    failing: bool,
}

impl Running {
    async fn run(
        &mut self,
        mut passed: mpsc::Receiver<Passed>,
        mut reader: JoinSet<Result<(), Ended>>,
        shutdown: &mut watch::Receiver<bool>,
    ) -> Result<(), Ended> {
        let mut ended = None;
        loop {
            self.admit();
            self.send();
            self.save_when_due();
            if self.is_idle()
                && let Some(ended) = ended.take()
            {
                return ended;
            }
            let timer = self.timer();
            tokio::select! {
                biased;
                () = asked_to_stop(shutdown) => return Ok(()),
                Some(done) = self.work.tasks.join_next() => self.done(done.expect("neither a delivery nor a save panics")),
                next = passed.recv(), if self.held.is_none() && ended.is_none() => match next {
                    Some(Passed::From { log, position }) => self.begin(log, position),
                    Some(Passed::Commits(commits)) => self.held = Some(commits),
                    None => {
                        let result = reader.join_next().await.expect("there is one reader");
                        ended = Some(self.reader_ended(result.expect("the reader does not panic")));
                    }
                },
                () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => {}
            }
        }
    }

    /// What has been read is still delivered.
    fn reader_ended(&self, result: Result<(), Ended>) -> Result<(), Ended> {
        if let Err(why) = &result {
            tracing::error!(cluster = self.figures.name, %why, "this cluster gets no more deletes");
            self.figures.set_state(State::Stopped(why.to_string()));
        }
        result
    }

    /// Reading begins. The first time a restart must not begin later than here, so this is saved at once.
    fn begin(&mut self, log: String, position: Position) {
        if let Some((_, window)) = &mut self.window {
            window.advance(position);
            self.save_soon();
        } else {
            self.window = Some((log, Window::new(self.pipeline.options.limits, position)));
            self.work.save_at = Some(Instant::now());
        }
    }

    /// Takes on what is held, when there is room for all of it.
    fn admit(&mut self) {
        let Some((_, window)) = &mut self.window else { return };
        let keys = self.held.as_ref().map_or(0, |held| held.commits.iter().map(|commit| commit.keys.len()).sum());
        if let Some(held) = self.held.take_if(|_| window.has_room(keys)) {
            let before = window.position().clone();
            held.commits.into_iter().for_each(|commit| window.admit(commit));
            window.advance(held.position);
            if *window.position() != before {
                self.save_soon();
            }
        }
        self.report_lag();
    }

    /// Sends batches while keys are ready and not too many are on their way.
    fn send(&mut self) {
        let Some((_, window)) = &mut self.window else { return };
        while self.work.batches < self.pipeline.options.batches_in_flight_max {
            let Some(batch) = window.batch(Instant::now()) else { return };
            let keys = batch.keys();
            self.work.batches += 1;
            self.figures.batches.add(1);
            self.figures.batch_keys.add(keys.len() as u64);
            let delivery = self.pipeline.delivery.clone();
            self.work.tasks.spawn(async move {
                let verdicts = delivery.delete(keys).await;
                Done::Batch(batch, verdicts)
            });
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Batch(batch, verdicts) => self.settle(batch, &verdicts),
            Done::Saved(record, result) => self.saved(record, result),
        }
    }

    fn settle(&mut self, batch: OutBatch, verdicts: &[Result<(), Refusal>]) {
        self.work.batches -= 1;
        let applied: Vec<bool> = verdicts.iter().map(Result::is_ok).collect();
        let mut failed = verdicts.iter().filter_map(|verdict| verdict.as_ref().err());
        self.figures.retried.add(failed.clone().count() as u64);
        self.tell_change(failed.next());
        self.figures.invalidations.add(applied.iter().filter(|&&applied| applied).count() as u64);
        let (_, window) = self.window.as_mut().expect("a batch comes from a window");
        let before = window.position().clone();
        let paid = window.settle(batch, &applied, Instant::now());
        let moved = *window.position() != before;
        let now = (self.pipeline.wall)();
        for commit in paid {
            self.pipeline.statistics.applied(self.pipeline.cluster, &commit.position, commit.committed_at, now);
        }
        if moved {
            self.save_soon();
        }
        self.report_lag();
    }

    /// Says once that a cluster fails, and once that it no longer does.
    fn tell_change(&mut self, why: Option<&Refusal>) {
        let cluster = &self.figures.name;
        match why {
            Some(why) if !self.failing => {
                tracing::warn!(cluster, why, "deletes are not acknowledged; they are kept and sent again");
            }
            None if self.failing => tracing::info!(cluster, "deletes are acknowledged again"),
            _ => {}
        }
        self.failing = why.is_some();
    }

    fn report_lag(&self) {
        let held = self.held.iter().flat_map(|held| &held.commits).map(|commit| commit.keys.len()).sum::<usize>();
        let owed = self.window.as_ref().map_or(0, |(_, window)| window.keys());
        self.figures.set_lag_keys(owed + held);
    }

    fn save_soon(&mut self) {
        let at = Instant::now() + self.pipeline.options.save_every;
        self.work.save_at.get_or_insert(at);
    }

    fn save_when_due(&mut self) {
        if self.work.saving || self.work.save_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        let record = self.record().expect("the position has moved");
        self.work.save_at = None;
        self.work.saving = true;
        let positions = self.pipeline.positions.clone();
        self.work.tasks.spawn(async move {
            let result = positions.save(record.clone()).await;
            Done::Saved(record, result)
        });
    }

    fn record(&self) -> Option<Record> {
        let (log, window) = self.window.as_ref()?;
        Some(Record { log: log.clone(), position: window.position().clone() })
    }

    fn saved(&mut self, record: Record, result: Result<(), PositionError>) {
        self.work.saving = false;
        match result {
            Ok(()) => self.figures.set_saved(record.position),
            Err(why) => {
                // An older position on disk costs repeated deletes after a crash, and loses none.
                self.figures.save_failures.add(1);
                tracing::error!(cluster = self.figures.name, %why, "the position was not saved; it is tried again");
                self.save_soon();
            }
        }
    }

    /// When to look again though nothing has come.
    fn timer(&self) -> Option<Instant> {
        let may_send = self.work.batches < self.pipeline.options.batches_in_flight_max;
        let retry = self.window.as_ref().filter(|_| may_send).and_then(|(_, window)| window.next_retry());
        let save = self.work.save_at.filter(|_| !self.work.saving);
        [retry, save].into_iter().flatten().min()
    }

    fn is_idle(&self) -> bool {
        self.held.is_none()
            && self.work.batches == 0
            && self.window.as_ref().is_none_or(|(_, window)| window.keys() == 0)
    }

    /// Takes in the answers that are on their way, for a limited time, and saves the position.
    async fn finish(&mut self) {
        let until = Instant::now() + SHUTDOWN_MAX;
        while let Ok(Some(done)) = timeout_at(until, self.work.tasks.join_next()).await {
            self.done(done.expect("neither a delivery nor a save panics"));
        }
        // A save that still hangs must not be overtaken: it would end up as the newer one.
        let unsaved = self.record().filter(|record| Some(&record.position) != self.figures.saved().as_ref());
        if let Some(record) = unsaved.filter(|_| !self.work.saving) {
            let result = self.pipeline.positions.save(record.clone()).await;
            self.saved(record, result);
        }
    }
}

/// Also when nobody is left who could ask.
async fn asked_to_stop(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|&asked| asked).await;
}
