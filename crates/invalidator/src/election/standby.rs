//! A standby: reads the record until it may replace it, and is active then.

use super::{
    heartbeat::{BEAT_EVERY, OwnHeartbeat, WatchedHeartbeat},
    member_options::{CurrentOptions, MemberOptions, OptionsComparison},
    own_lock::OwnLock,
    record::{EXPIRES_AFTER, ElectionRecord, RecordError, RecordStore, RecordVersion},
    seen_record::SeenRecord,
    session_lock::WatchedLock,
    term::Term,
};
use crate::observe::{election_stats::ElectionStatistics, log_throttle};
use lookaside_sync::Mutex;
use std::{fmt, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// An invalidator that can become active.
pub struct Standby {
    store: Arc<dyn RecordStore>,
    /// Shown to operators; need not be unique.
    name: String,
    statistics: Arc<ElectionStatistics>,
    random: fn() -> u64,
    own_lock: Arc<OwnLock>,
    own_heartbeat: Arc<OwnHeartbeat>,
    seen: Mutex<SeenRecord>,
    /// `None` if options are not compared.
    options: Option<CurrentOptions>,
    comparison: Mutex<OptionsComparison>,
}

/// What is known of the active one since the last failure to read the record.
#[derive(Default)]
struct View {
    /// `None` if there was no record.
    unchanged: Option<UnchangedRecord>,
    lock: WatchedLock,
    heartbeat: WatchedHeartbeat,
}

/// A version of the record, and since when it has been read without interruption.
struct UnchangedRecord {
    version: RecordVersion,
    since: Instant,
}

/// Whether another invalidator was active while this one stood by. One that has just been started finds the record of
/// one that is long dead, too, and waits for it to expire.
#[derive(Default)]
struct WatchedRenewals {
    last: Option<RecordVersion>,
    were_seen: bool,
}

impl WatchedRenewals {
    fn observe(&mut self, record: Option<&UnchangedRecord>) {
        let Some(UnchangedRecord { version, .. }) = record else { return };
        if self.last.as_ref() != Some(version) {
            self.were_seen |= self.last.replace(version.clone()).is_some();
        }
    }
}

/// Why the record may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vacancy {
    /// There is none.
    NoRecord,
    /// Its holder has given it up.
    Resigned,
    /// It has not changed for [`EXPIRES_AFTER`].
    Expired,
    /// The session that stored it has ended.
    SessionEnded,
    /// The session that stored it has not beaten for this long.
    Hung(Duration),
    /// It was replaced already, by an attempt whose result was unknown.
    AlreadyReplaced,
}

impl fmt::Display for Vacancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Vacancy::NoRecord => "there was none",
            Vacancy::Resigned => "the former one ended in order",
            Vacancy::Expired => "the former one has not renewed the shared state for 3 s",
            Vacancy::SessionEnded => "the session of the former one has ended",
            Vacancy::Hung(limit) => {
                return write!(f, "the former one has shown no sign of life for {} ms", limit.as_millis());
            }
            Vacancy::AlreadyReplaced => "an earlier attempt has succeeded, of which the reply was lost",
        })
    }
}

impl Standby {
    /// A standby that is shown as `name`. `random` must return another number at each call, in each process.
    pub fn new(
        store: Arc<dyn RecordStore>,
        name: String,
        statistics: Arc<ElectionStatistics>,
        random: fn() -> u64,
    ) -> Standby {
        let (seen, comparison) = (Mutex::default(), Mutex::default());
        let own_lock = Arc::new(OwnLock::new(random, statistics.clone()));
        let own_heartbeat = Arc::default();
        Standby { store, name, statistics, random, own_lock, own_heartbeat, seen, options: None, comparison }
    }

    /// Compares its options with those of the active one, and states them when it is that.
    pub fn with_options(self, options: CurrentOptions) -> Standby {
        Standby { options: Some(options), ..self }
    }

    /// Waits until this invalidator is active. May be dropped: a record that it stored nevertheless expires.
    pub async fn wait_until_active(&self) -> Arc<Term> {
        let holder = format!("{} {:016x}", self.name, (self.random)());
        let (mut view, mut throttle, mut logged_holder) = (View::default(), log_throttle(), None);
        let mut renewals = WatchedRenewals::default();
        loop {
            match self.try_replace(&holder, &mut view).await {
                Ok(Some((record, vacancy))) => {
                    self.statistics.takeovers.add(1);
                    match vacancy {
                        Vacancy::SessionEnded => self.statistics.takeovers_at_session_end.add(1),
                        Vacancy::Hung(_) => self.statistics.takeovers_at_hang.add(1),
                        _ => {}
                    }
                    let former = logged_holder.unwrap_or_default();
                    tracing::info!(holder, former, why = %vacancy, "this invalidator is active now");
                    return Arc::new(Term::new(
                        self.store.clone(),
                        record,
                        self.statistics.clone(),
                        self.options.clone(),
                        self.own_lock.clone(),
                        self.own_heartbeat.clone(),
                        renewals.were_seen,
                    ));
                }
                Ok(None) => {
                    renewals.observe(view.unchanged.as_ref());
                    // What delays a look delays a beat, too.
                    self.own_heartbeat.record();
                    self.statistics.set_failure(None);
                    self.statistics.set_session_lock(view.lock.is_held());
                    let other = view.unchanged.as_ref().map(|unchanged| unchanged.version.holder.clone());
                    if other.is_some() && other != logged_holder {
                        tracing::info!(active = other, "this is a standby: another invalidator is active");
                        logged_holder = other;
                    }
                }
                Err(RecordError(why)) => {
                    // The active one may be unable to renew, too.
                    view = View::default();
                    self.own_heartbeat.interrupt();
                    self.statistics.set_session_lock(false);
                    self.statistics.failures.add(1);
                    if throttle.allow(Instant::now()).is_some() {
                        tracing::warn!(why, "the shared state cannot be read; no takeover meanwhile");
                    }
                    self.statistics.set_failure(Some(why));
                }
            }
            sleep(BEAT_EVERY).await;
        }
    }

    /// The record of this invalidator, once it is stored, and why it could be; `None` while another one is active.
    async fn try_replace(
        &self,
        holder: &str,
        view: &mut View,
    ) -> Result<Option<(ElectionRecord, Vacancy)>, RecordError> {
        let found = self.store.read().await?;
        if let Some(record) = found.as_ref().filter(|record| record.version.holder == holder) {
            // It was stored, and the reply to that was lost.
            self.seen.lock().replace(record.clone());
            return Ok(Some((record.clone(), Vacancy::AlreadyReplaced)));
        }
        self.seen.lock().observe(found.as_ref());
        let options: Option<MemberOptions> = self.options.as_ref().map(|options| options());
        if let (Some(own), Some(record)) = (&options, &found) {
            self.comparison.lock().observe(own, record, &self.statistics);
        }
        let vacancy = match &found {
            None => Some(Vacancy::NoRecord),
            Some(record) => self.find_vacancy(record, view).await?,
        };
        let Some(vacancy) = vacancy else { return Ok(None) };
        let lock = self.own_lock.hold(&*self.store).await?;
        let (counter, mut state) = self.seen.lock().next(found.as_ref());
        state.options = options;
        let version = RecordVersion { holder: holder.to_owned(), counter };
        let hung_after = lock.map(|_| self.own_heartbeat.hung_after());
        let record = ElectionRecord { version, lock, hung_after, state };
        let is_replaced = self.store.replace(found.as_ref().map(|record| &record.version), &record).await?;
        if is_replaced {
            self.seen.lock().replace(record.clone());
            if let (Some(own), Some(former)) = (&record.state.options, &found) {
                self.comparison.lock().report_takeover(own, former, &self.statistics);
            }
        }
        Ok(is_replaced.then_some((record, vacancy)))
    }

    /// Why `record`, which was read now, may be replaced; `None` if it may not.
    async fn find_vacancy(&self, record: &ElectionRecord, view: &mut View) -> Result<Option<Vacancy>, RecordError> {
        let now = Instant::now();
        let seen = view.unchanged.take_if(|seen| seen.version == record.version);
        let seen = seen.unwrap_or(UnchangedRecord { version: record.version.clone(), since: now });
        let is_expired = now - view.unchanged.insert(seen).since >= EXPIRES_AFTER;
        if record.version.holder.is_empty() {
            return Ok(Some(Vacancy::Resigned));
        }
        if is_expired {
            return Ok(Some(Vacancy::Expired));
        }
        let Some(lock) = record.lock else {
            (view.lock, view.heartbeat) = Default::default();
            return Ok(None);
        };
        let sighting = self.store.look_up_lock(lock).await?;
        if view.lock.observe(lock, sighting) {
            return Ok(Some(Vacancy::SessionEnded));
        }
        let is_hung = view.heartbeat.observe(&record.version, lock, record.hung_after, sighting);
        Ok(record.hung_after.filter(|_| is_hung).map(Vacancy::Hung))
    }
}
