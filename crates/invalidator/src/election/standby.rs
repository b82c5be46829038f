//! A standby: reads the record until it may replace it, and is active then.

use super::{
    member_options::{CurrentOptions, MemberOptions, OptionsComparison},
    record::{ElectionRecord, RecordError, RecordStore, RecordVersion},
    seen_record::SeenRecord,
    term::Term,
};
use crate::observe::{election_stats::ElectionStatistics, log_throttle};
use lookaside_sync::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// A standby becomes active when the record has not changed for this long. Long enough for two failed renewals.
const EXPIRES_AFTER: Duration = Duration::from_secs(3);
/// How often a standby reads the record.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// An invalidator that can become active.
pub struct Standby {
    store: Arc<dyn RecordStore>,
    /// Shown to operators; need not be unique.
    name: String,
    statistics: Arc<ElectionStatistics>,
    random: fn() -> u64,
    seen: Mutex<SeenRecord>,
    /// `None` if options are not compared.
    options: Option<CurrentOptions>,
    comparison: Mutex<OptionsComparison>,
}

/// A version of the record, and since when it has been read without interruption.
struct UnchangedRecord {
    version: RecordVersion,
    since: Instant,
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
        Standby { store, name, statistics, random, seen, options: None, comparison }
    }

    /// Compares its options with those of the active one, and states them when it is that.
    pub fn with_options(self, options: CurrentOptions) -> Standby {
        Standby { options: Some(options), ..self }
    }

    /// Waits until this invalidator is active. May be dropped: a record that it stored nevertheless expires.
    pub async fn wait_until_active(&self) -> Arc<Term> {
        let holder = format!("{} {:016x}", self.name, (self.random)());
        let (mut unchanged, mut throttle, mut logged_holder) = (None, log_throttle(), None);
        loop {
            match self.try_replace(&holder, &mut unchanged).await {
                Ok(Some(record)) => {
                    self.statistics.takeovers.add(1);
                    let former = logged_holder.unwrap_or_default();
                    tracing::info!(holder, former, "this invalidator is active now");
                    return Arc::new(Term::new(
                        self.store.clone(),
                        record,
                        self.statistics.clone(),
                        self.options.clone(),
                    ));
                }
                Ok(None) => {
                    self.statistics.set_failure(None);
                    let other = unchanged.as_ref().map(|unchanged| unchanged.version.holder.clone());
                    if other.is_some() && other != logged_holder {
                        tracing::info!(active = other, "this is a standby: another invalidator is active");
                        logged_holder = other;
                    }
                }
                Err(RecordError(why)) => {
                    // The active one may be unable to renew, too.
                    unchanged = None;
                    self.statistics.failures.add(1);
                    if throttle.allow(Instant::now()).is_some() {
                        tracing::warn!(why, "the shared state cannot be read; no takeover meanwhile");
                    }
                    self.statistics.set_failure(Some(why));
                }
            }
            sleep(POLL_EVERY).await;
        }
    }

    /// The record of this invalidator, once it is stored; `None` while another one is active.
    async fn try_replace(
        &self,
        holder: &str,
        unchanged: &mut Option<UnchangedRecord>,
    ) -> Result<Option<ElectionRecord>, RecordError> {
        let found = self.store.read().await?;
        let now = Instant::now();
        if let Some(record) = found.as_ref().filter(|record| record.version.holder == holder) {
            // It was stored, and the reply to that was lost.
            self.seen.lock().replace(record.clone());
            return Ok(found);
        }
        self.seen.lock().observe(found.as_ref());
        let options: Option<MemberOptions> = self.options.as_ref().map(|options| options());
        if let (Some(own), Some(record)) = (&options, &found) {
            self.comparison.lock().observe(own, record, &self.statistics);
        }
        if let Some(record) = &found {
            let seen = unchanged.take_if(|seen| seen.version == record.version);
            let seen =
                unchanged.insert(seen.unwrap_or(UnchangedRecord { version: record.version.clone(), since: now }));
            if !record.version.holder.is_empty() && now - seen.since < EXPIRES_AFTER {
                return Ok(None);
            }
        }
        let (counter, mut state) = self.seen.lock().next(found.as_ref());
        state.options = options;
        let record = ElectionRecord { version: RecordVersion { holder: holder.to_owned(), counter }, state };
        let is_replaced = self.store.replace(found.as_ref().map(|record| &record.version), &record).await?;
        if is_replaced {
            self.seen.lock().replace(record.clone());
            if let (Some(own), Some(former)) = (&record.state.options, &found) {
                self.comparison.lock().report_takeover(own, former, &self.statistics);
            }
        }
        Ok(is_replaced.then_some(record))
    }
}
