//! The time that an invalidator is active: it renews the record, with what is to be saved, until another one has
//! replaced it.

use super::{
    heartbeat::{BEAT_EVERY, OwnHeartbeat},
    member_options::CurrentOptions,
    own_lock::OwnLock,
    record::{EXPIRES_AFTER, ElectionRecord, RecordError, RecordStore, RecordVersion, SharedState},
    session_lock::SessionLock,
};
use crate::observe::{election_stats::ElectionStatistics, log_throttle};
use lookaside_sync::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};

/// How often the record is renewed.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// The delay after a failed renewal.
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// How long a save waits for its renewal. The pipeline that waits repeats it.
const SAVE_WAIT_MAX: Duration = Duration::from_secs(3);

/// The time that this invalidator is active.
pub struct Term {
    store: Arc<dyn RecordStore>,
    statistics: Arc<ElectionStatistics>,
    /// `None` if options are not compared.
    options: Option<CurrentOptions>,
    own_lock: Arc<OwnLock>,
    own_heartbeat: Arc<OwnHeartbeat>,
    is_takeover: bool,
    contents: Mutex<TermContents>,
    /// How many changes are stored; `None` once another invalidator is active.
    progress: watch::Sender<Option<u64>>,
    /// Whether changes are stored at once, as the invalidator is about to end.
    is_closing: AtomicBool,
    wake: Notify,
}

struct TermContents {
    /// The version that was stored last, as far as is known.
    version: RecordVersion,
    /// The lock that it names, and the time without a beat after which a standby replaces it.
    lock: Option<SessionLock>,
    hung_after: Option<Duration>,
    /// What is stored.
    stored: SharedState,
    /// What is to be stored, after this many changes.
    wanted: SharedState,
    changes: u64,
    renewed_at: Instant,
}

/// The result of a renewal.
enum Renewal {
    Stored,
    /// The record is ours, and has another version than was expected: a reply was lost, or the database lost a write.
    Retry,
    /// Another invalidator is active.
    Lost(String),
}

impl Term {
    /// A term that begins with `record`, which is stored. `is_takeover` if another invalidator was active just before.
    pub(super) fn new(
        store: Arc<dyn RecordStore>,
        record: ElectionRecord,
        statistics: Arc<ElectionStatistics>,
        options: Option<CurrentOptions>,
        own_lock: Arc<OwnLock>,
        own_heartbeat: Arc<OwnHeartbeat>,
        is_takeover: bool,
    ) -> Term {
        statistics.set_active(true);
        statistics.record_renewal();
        own_heartbeat.record_renewal();
        let ElectionRecord { version, lock, hung_after, state } = record;
        statistics.set_session_lock(lock.is_some());
        let contents = TermContents {
            version,
            lock,
            hung_after,
            stored: state.clone(),
            wanted: state,
            changes: 0,
            renewed_at: Instant::now(),
        };
        Term {
            store,
            statistics,
            options,
            own_lock,
            own_heartbeat,
            is_takeover,
            contents: Mutex::new(contents),
            progress: watch::Sender::new(Some(0)),
            is_closing: AtomicBool::new(false),
            wake: Notify::new(),
        }
    }

    /// Whether this invalidator has taken over from another one that was active while it stood by.
    pub fn is_takeover(&self) -> bool {
        self.is_takeover
    }

    /// What is stored.
    pub fn state(&self) -> SharedState {
        self.contents.lock().stored.clone()
    }

    /// Whether the record was renewed so recently that no other invalidator can have replaced it since, unless the
    /// session of this one has ended. Then both may be certain for a second, until this one finds itself replaced.
    pub fn is_certain(&self) -> bool {
        let (renewed_at, hung_after) = {
            let contents = self.contents.lock();
            (contents.renewed_at, contents.hung_after)
        };
        // The database may still hold a session that has failed here: a standby sees it hang.
        let is_silent = hung_after.is_some_and(|limit| self.own_heartbeat.silence() >= limit);
        let is_recent = renewed_at.elapsed() < RENEW_EVERY * 2 && !is_silent;
        is_recent && self.progress.borrow().is_some()
    }

    /// Whether a beat was missing since the last renewal for at least the time after which a standby replaces the
    /// record.
    fn was_silent(&self) -> bool {
        let hung_after = self.contents.lock().hung_after;
        hung_after.is_some_and(|limit| self.own_heartbeat.pause() >= limit)
    }

    /// Renews the record until another invalidator is active. To be polled for as long as this one is active.
    pub async fn hold(&self) {
        let mut throttle = log_throttle();
        let mut due_at = self.contents.lock().renewed_at + RENEW_EVERY;
        let mut beat_at = self.first_beat();
        loop {
            self.wait_until_due(due_at, &mut beat_at).await;
            due_at = Instant::now() + RENEW_EVERY;
            match self.renew().await {
                Ok(Renewal::Stored) => {
                    beat_at = self.first_beat();
                    self.statistics.set_failure(None);
                }
                Ok(Renewal::Retry) => due_at = Instant::now(),
                Ok(Renewal::Lost(other)) => {
                    tracing::warn!(active = other, "stepping down: another invalidator is active");
                    self.end();
                    return;
                }
                Err(RecordError(why)) => {
                    self.statistics.failures.add(1);
                    if throttle.allow(Instant::now()).is_some() {
                        tracing::warn!(
                            why,
                            "the shared state cannot be renewed; deletes go on, positions are not saved"
                        );
                    }
                    self.statistics.set_failure(Some(why));
                    sleep(RETRY_DELAY).await;
                    due_at = Instant::now();
                }
            }
        }
    }

    /// From now on changes are stored at once: the invalidator is about to end.
    pub fn begin_close(&self) {
        self.is_closing.store(true, Relaxed);
        self.wake.notify_one();
    }

    /// Gives the record up, so that a standby need not wait until it expires. [`Term::hold`] must not be polled any
    /// more.
    pub async fn resign(&self) {
        self.is_closing.store(true, Relaxed);
        // The second attempt is for a renewal whose result is unknown.
        for _ in 0..2 {
            match self.replace(String::new()).await {
                Ok(Renewal::Retry) => {}
                Ok(Renewal::Stored) => {
                    tracing::info!("resigned: a standby may become active");
                    break;
                }
                Ok(Renewal::Lost(_)) => break,
                Err(RecordError(why)) => {
                    tracing::warn!(why, "cannot resign; a standby becomes active when the record expires");
                    break;
                }
            }
        }
        self.end();
    }

    /// Changes what is to be stored, and waits until it is. Returns at once if it is stored already, which another
    /// invalidator that is active now has taken over.
    pub(super) async fn save(&self, change: impl FnOnce(&mut SharedState)) -> Result<(), RecordError> {
        let number = {
            let mut contents = self.contents.lock();
            change(&mut contents.wanted);
            if contents.wanted == contents.stored {
                return match *self.progress.borrow() {
                    Some(_) => Ok(()),
                    None => Err(not_active()),
                };
            }
            contents.changes += 1;
            contents.changes
        };
        self.wait_until_stored(number).await
    }

    /// The same, but waits in any case for a renewal that begins after this: nothing else shows that no other
    /// invalidator is active.
    pub(super) async fn save_and_renew(&self, change: impl FnOnce(&mut SharedState)) -> Result<(), RecordError> {
        let number = {
            let mut contents = self.contents.lock();
            change(&mut contents.wanted);
            contents.changes += 1;
            contents.changes
        };
        self.wait_until_stored(number).await
    }

    async fn wait_until_stored(&self, number: u64) -> Result<(), RecordError> {
        self.wake.notify_one();
        let mut progress = self.progress.subscribe();
        let is_stored = progress.wait_for(|stored| stored.is_none_or(|stored| stored >= number));
        match timeout(SAVE_WAIT_MAX, is_stored).await {
            Ok(Ok(stored)) if stored.is_some() => Ok(()),
            Ok(_) => Err(not_active()),
            Err(_) => Err(RecordError(format!("the shared state was not renewed within {SAVE_WAIT_MAX:?}"))),
        }
    }

    /// Returns when the record is to be renewed, and beats until then, first at `beat_at`.
    async fn wait_until_due(&self, due_at: Instant, beat_at: &mut Option<Instant>) {
        loop {
            let due_in = due_at.saturating_duration_since(Instant::now());
            let has_change = || {
                let stored = *self.progress.borrow();
                stored.is_some_and(|stored| stored < self.contents.lock().changes)
            };
            if due_in.is_zero() || (self.is_closing.load(Relaxed) && has_change()) {
                return;
            }
            let beat_in = beat_at.map_or(due_in, |at| at.saturating_duration_since(Instant::now()));
            if beat_in.is_zero() {
                *beat_at = self.beat().await.map(|()| Instant::now() + BEAT_EVERY);
                // A standby may have taken this process for hung. A renewal shows whether one did.
                if beat_at.is_some() && self.was_silent() {
                    return;
                }
                continue;
            }
            let _ = timeout(due_in.min(beat_in), self.wake.notified()).await;
        }
    }

    /// When the first beat over a session is due; `None` if the record names no lock.
    fn first_beat(&self) -> Option<Instant> {
        self.contents.lock().lock.map(|_| Instant::now())
    }

    /// Shows that this process lives. `None` if there is no session that can: the next renewal makes one.
    async fn beat(&self) -> Option<()> {
        let beaten = self.store.beat().await;
        match beaten {
            Ok(true) => self.own_heartbeat.record(),
            Ok(false) | Err(_) => self.own_heartbeat.interrupt(),
        }
        beaten.is_ok().then_some(())
    }

    async fn renew(&self) -> Result<Renewal, RecordError> {
        let holder = self.contents.lock().version.holder.clone();
        self.replace(holder).await
    }

    /// Replaces the record by one of `holder`, which is empty for none, with what is to be stored.
    async fn replace(&self, holder: String) -> Result<Renewal, RecordError> {
        let lock = match holder.is_empty() {
            true => None,
            false => self.own_lock.hold(&*self.store).await?,
        };
        let (expected, record, changes) = {
            let mut contents = self.contents.lock();
            contents.wanted.options = self.options.as_ref().map(|options| options());
            let version = RecordVersion { holder, counter: contents.version.counter + 1 };
            let hung_after = lock.map(|_| self.own_heartbeat.hung_after());
            let record = ElectionRecord { version, lock, hung_after, state: contents.wanted.clone() };
            (contents.version.clone(), record, contents.changes)
        };
        let started_at = Instant::now();
        if self.store.replace(Some(&expected), &record).await? {
            let mut contents = self.contents.lock();
            contents.version = record.version;
            contents.lock = lock;
            contents.hung_after = record.hung_after;
            contents.stored = record.state;
            contents.renewed_at = started_at;
            drop(contents);
            // A renewal is a sign of life, too.
            self.own_heartbeat.record();
            self.own_heartbeat.record_renewal();
            self.statistics.record_renewal();
            self.statistics.set_session_lock(lock.is_some());
            self.progress.send_replace(Some(changes));
            return Ok(Renewal::Stored);
        }
        match self.store.read().await? {
            Some(found) if found.version.holder == expected.holder => {
                let mut contents = self.contents.lock();
                contents.version = found.version;
                contents.lock = found.lock;
                contents.hung_after = found.hung_after;
                contents.stored = found.state;
                Ok(Renewal::Retry)
            }
            Some(found) => {
                self.give_up_misleading_lock();
                Ok(Renewal::Lost(found.version.holder))
            }
            None => Ok(Renewal::Lost("none: the row was deleted".into())),
        }
    }

    /// Gives the lock up if this invalidator was replaced sooner than a record expires, and it did not hang: a standby
    /// has taken the session for ended. It was not, or another one would end likewise.
    fn give_up_misleading_lock(&self) {
        let was_silent = self.was_silent();
        let contents = self.contents.lock();
        if contents.lock.is_some() && contents.renewed_at.elapsed() < EXPIRES_AFTER && !was_silent {
            self.own_lock.give_up("another invalidator took over from this one, which runs: its session has ended");
        }
    }

    fn end(&self) {
        self.progress.send_replace(None);
        self.statistics.set_active(false);
        self.statistics.set_session_lock(false);
    }
}

fn not_active() -> RecordError {
    RecordError("another invalidator is active".into())
}
