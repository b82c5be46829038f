//! One cluster's pipeline: from the commit log to acknowledged deletes and a position on disk (§4.1).
//!
//! ```text
//! reader (log, gate) -> window -> batches -> delivery -> acknowledgements -> window -> position -> disk
//! ```
//!
//! It runs as one future that drops all its work when it is dropped. Nothing is shared with the pipelines of other
//! clusters but the database, so a cluster that is down delays no other.
//!
//! * A key that is not acknowledged is sent again, later and later, until it is. Others go on meanwhile: keys that fail
//!   take no room in the window, and never all of the batches.
//! * The window bounds what is owed; when it is full the reader waits, and the database's log keeps the rest. That
//!   keys fail is a state of its own, and so is that too many fail for reading to go on.
//! * No commit is taken before the first position is on disk: the next start would begin at a later present.
//! * The position on disk never passes a commit that is owed a delete. After a crash, deletes are sent again: at least
//!   once.
//! * Batches make themselves: up to [`Options::batches_in_flight_max`] travel at once, and what arrives while they do
//!   travels together in the next.

pub mod delivery;
mod log_reader;
pub mod pending;
pub mod positions;
mod retry_queue;

pub use log_reader::{Ended, OnPositionLost};

use crate::{
    Commits, Log, Position, Start,
    observe::{
        Condition, Herald, Pace,
        stats::{ClusterStatistics, State, Statistics},
    },
};
use delivery::{Delivery, Verdict};
use log_reader::{Passed, Reader};
use pending::{Limits, OutBatch, Window};
use positions::{PositionError, PositionStore, Record};
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

/// The most keys of one cluster that fail before reading waits.
pub const FAILING_KEYS_MAX: usize = 1_000_000;
/// The most bytes of those keys.
pub const FAILING_BYTES_MAX: usize = 64 << 20;

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
                failing_keys_max: FAILING_KEYS_MAX,
                failing_bytes_max: FAILING_BYTES_MAX,
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
        let mut running = Running {
            pipeline: self,
            figures,
            window: None,
            recorded: false,
            held: None,
            work: Work::default(),
            voice: Voice::default(),
        };
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
    /// How many of the batches hold keys that have failed before.
    retries: usize,
    saving: bool,
    /// When the position is to be saved next.
    save_at: Option<Instant>,
}

impl Work {
    /// Keys that have failed before leave one batch to the others, where there are several: a server that hangs holds
    /// up the batches of its keys.
    fn may_retry(&self, batches_max: usize) -> bool {
        self.batches < batches_max && self.retries < (batches_max - 1).max(1)
    }
}

/// A piece of work that has been done.
enum Done {
    Batch(OutBatch, Vec<Verdict>),
    Saved(Record, Result<(), PositionError>),
}

/// What is said of trouble, and when it was said last.
#[derive(Default)]
struct Voice {
    herald: Herald,
    /// Why the last delete that failed did.
    why: String,
    unroutable: Pace,
    unsaved: Pace,
}

struct Running {
    pipeline: Pipeline,
    figures: Arc<ClusterStatistics>,
    /// The identity of the log and what is owed; known when the reader has begun.
    window: Option<(String, Window)>,
    /// Whether a position has been saved.
    recorded: bool,
    /// Read, and waiting for room.
    held: Option<Commits>,
    work: Work,
    voice: Voice,
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
            self.tell();
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
                next = passed.recv(), if self.takes() && ended.is_none() => match next {
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

    /// Whether more may be taken from the reader.
    fn takes(&self) -> bool {
        self.held.is_none() && (self.window.is_none() || self.recorded)
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
            let may_retry = self.work.may_retry(self.pipeline.options.batches_in_flight_max);
            let Some(batch) = window.batch(Instant::now(), may_retry) else { return };
            let keys = batch.keys();
            self.work.batches += 1;
            self.work.retries += usize::from(batch.is_retry());
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

    fn settle(&mut self, batch: OutBatch, verdicts: &[Verdict]) {
        self.work.batches -= 1;
        self.work.retries -= usize::from(batch.is_retry());
        self.count(&batch, verdicts);
        let settled: Vec<bool> = verdicts.iter().map(Verdict::is_settled).collect();
        let (_, window) = self.window.as_mut().expect("a batch comes from a window");
        let before = window.position().clone();
        let paid = window.settle(batch, &settled, Instant::now());
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

    fn count(&mut self, batch: &OutBatch, verdicts: &[Verdict]) {
        let mut refused = None;
        for (index, verdict) in verdicts.iter().enumerate() {
            match verdict {
                Verdict::Applied => self.figures.invalidations.add(1),
                Verdict::Unroutable(why) => {
                    self.figures.unroutable.add(1);
                    if self.voice.unroutable.allows(Instant::now()) {
                        let key = String::from_utf8_lossy(&batch.keys()[index]).into_owned();
                        tracing::warn!(
                            cluster = self.figures.name,
                            key,
                            why,
                            "a key that the cluster's routers have no route for: nothing to delete there"
                        );
                    }
                }
                Verdict::Refused(why) => {
                    self.figures.retried.add(1);
                    refused.get_or_insert(why);
                }
            }
        }
        if let Some(why) = refused {
            self.voice.why.clone_from(why);
        }
    }

    /// Says how deletes fare: in the state at once, in the log when that has changed.
    fn tell(&mut self) {
        let Some((_, window)) = &self.window else { return };
        let (keys, key_bytes) = window.failing();
        let condition = match (keys, window.is_blocked() && self.held.is_some()) {
            (0, _) => Condition::Fine,
            (_, false) => Condition::Retrying,
            (_, true) => Condition::Blocked,
        };
        let (cluster, why) = (&self.figures.name, &self.voice.why);
        self.figures.set_trouble(match condition {
            Condition::Fine => None,
            Condition::Retrying => Some(State::Retrying(why.clone())),
            Condition::Blocked => Some(State::Blocked(format!(
                "deletes of {keys} keys ({key_bytes} bytes) are not acknowledged, so reading waits: {why}"
            ))),
        });
        match self.voice.herald.tell(condition, Instant::now()) {
            None => {}
            Some(Condition::Fine) => tracing::info!(cluster, "all deletes are acknowledged again"),
            Some(Condition::Retrying) => {
                tracing::warn!(cluster, keys, why, "deletes are not acknowledged; they are kept and sent again");
            }
            Some(Condition::Blocked) => tracing::error!(
                cluster,
                keys,
                key_bytes,
                why,
                "too many deletes are not acknowledged: reading waits, and all of this cluster's keys grow stale"
            ),
        }
    }

    fn report_lag(&self) {
        let held = self.held.iter().flat_map(|held| &held.commits).map(|commit| commit.keys.len()).sum::<usize>();
        let owed = self.window.as_ref().map_or(0, |(_, window)| window.keys());
        self.figures.set_lag_keys(owed + held);
        if let Some((_, window)) = &self.window {
            self.figures.set_failing(window.failing());
            self.figures.set_commits_merged(window.merged());
        }
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
            Ok(()) => {
                self.recorded = true;
                self.figures.set_saved(record.position);
            }
            Err(why) => {
                // An older position on disk costs repeated deletes after a crash, and loses none.
                self.figures.save_failures.add(1);
                if self.voice.unsaved.allows(Instant::now()) {
                    tracing::error!(cluster = self.figures.name, %why, "the position was not saved; it is tried again");
                }
                self.save_soon();
            }
        }
    }

    /// When to look again though nothing has come.
    fn timer(&self) -> Option<Instant> {
        let may_retry = self.work.may_retry(self.pipeline.options.batches_in_flight_max);
        let retry = self.window.as_ref().filter(|_| may_retry).and_then(|(_, window)| window.next_retry());
        let save = self.work.save_at.filter(|_| !self.work.saving);
        [retry, save, self.voice.herald.next()].into_iter().flatten().min()
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
