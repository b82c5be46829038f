//! Compares what a monitor counts with what the servers had.
//!
//! For each look of the monitor, the answers of the servers at that time are known, with the time at which the item was
//! stored, and when its delete was committed. A value that was stored before is old, one that was stored later is new.
//! The monitor may say that it does not know, where it promises no more:
//!
//! ```text
//!        mark of the server     end of the log is looked up     commit is read, first look
//! -------------|-----------------------------|-----------|----------------|--------> time
//!   stored here: old                      stored here: perhaps undecided      stored here: new
//! ```

use crate::{
    database::SimulatedDatabase,
    item_log::{ItemLog, ServerAnswer},
    region::names::address,
};
use lookaside_monitor::{
    asking::Through,
    questions::FindingObserver,
    sampling::{AgeCounts, ClusterWatch, Finding, Look, Moment, Sample, Seen, Verdict},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::time::Instant;

/// The monitor's clock shows this at the beginning of a run.
const BEGUN_MS: u64 = 1_000_000;
/// A value that some server has known for this long to be stored, when its delete is committed, must be found to be old:
/// the time between two look-ups of the log's end, how long an answer takes, and a part for the drift of clocks.
const KNOWN_FOR_MIN: Duration = Duration::from_millis(1_700);
/// The first look comes at most this long after the commit was read.
const FIRST_LOOK_MAX: Duration = Duration::from_secs(2);

/// The monitor's clock.
#[derive(Clone, Copy)]
pub(super) struct MonitorTime {
    begun: Instant,
    /// How much slower it is than that of the servers.
    slowness: u32,
}

impl MonitorTime {
    pub(super) fn new(slowness: u32) -> MonitorTime {
        MonitorTime { begun: Instant::now(), slowness }
    }

    pub(super) fn now(self) -> Moment {
        Moment { ms: BEGUN_MS + (self.begun.elapsed() / self.slowness).as_millis() as u64 }
    }

    /// When the clock began to show `moment`.
    fn instant(self, moment: Moment) -> Instant {
        self.begun + Duration::from_millis(moment.ms - BEGUN_MS) * self.slowness
    }
}

/// A cluster that a monitor watches.
#[derive(Clone, Debug)]
pub(super) struct WatchedCluster {
    pub(super) name: String,
    pub(super) through: Through,
    /// The hosts that are asked.
    pub(super) asked: Vec<String>,
    /// The servers that may have the items.
    pub(super) servers: Vec<String>,
}

/// What the checker counts for one watched cluster. Clones count the same.
#[derive(Clone)]
pub(super) struct MonitorCheck {
    watched: Arc<WatchedCluster>,
    items: ItemLog,
    database: SimulatedDatabase,
    time: MonitorTime,
    counted: Arc<Mutex<Counted>>,
}

#[derive(Default)]
struct Counted {
    by_age_s: BTreeMap<u32, AgeCounts>,
    /// The first verdict that the checker does not share; `None` if there was none.
    difference: Option<String>,
}

impl MonitorCheck {
    pub(super) fn new(
        watched: WatchedCluster,
        items: ItemLog,
        database: SimulatedDatabase,
        time: MonitorTime,
    ) -> MonitorCheck {
        MonitorCheck { watched: Arc::new(watched), items, database, time, counted: Arc::default() }
    }

    pub(super) fn watched(&self) -> &WatchedCluster {
        &self.watched
    }

    /// Judges what the monitor finds.
    pub(super) fn observer(&self) -> FindingObserver {
        let check = self.clone();
        Box::new(move |finding| check.record(finding))
    }

    fn record(&self, finding: &Finding) {
        let judged = finding.looks.iter().map(|(verdict, look)| self.judge(&finding.sample, *verdict, look));
        let judged: Result<Vec<Verdict>, String> = judged.collect();
        let (verdict, why) = match judged {
            Ok(verdicts) => (verdicts.into_iter().max(), None),
            Err(why) => (None, Some(why)),
        };
        let mut counted = self.counted();
        if let Some(verdict) = verdict {
            counted.by_age_s.entry(finding.age_s).or_default().add(verdict);
        }
        if verdict != Some(finding.verdict) {
            let key = String::from_utf8_lossy(&finding.sample.key);
            let difference = format!(
                "{key}, deleted by commit {}, is {:?} at {} s, not {verdict:?}: {:?}; {why:?}",
                finding.sample.position.0, finding.verdict, finding.age_s, finding.looks
            );
            counted.difference.get_or_insert(difference);
        }
    }

    /// The right verdict on a look, of which the monitor has said `verdict`. The error says that no server can have
    /// answered like this.
    fn judge(&self, sample: &Sample, verdict: Verdict, look: &Look) -> Result<Verdict, String> {
        let seen_cas = match &look.seen {
            Seen::Failed(_) => return Ok(Verdict::Failed),
            Seen::Absent | Seen::Hidden => None,
            Seen::Item(item) => Some(item.cas),
        };
        let answers = self.answers(sample, look.sent_at, look.received_at);
        // A router may have asked any of its servers, and items of two servers may have the same CAS unique.
        let is_of_asked = |answer: &&ServerAnswer| {
            self.watched.through == Through::Routers || address(&answer.server).0.as_ref() == look.from
        };
        let candidates = answers.iter().filter(is_of_asked);
        let candidates = candidates.filter(|answer| answer.item.map(|item| item.cas) == seen_cas);
        let right: Vec<Verdict> = candidates.map(|answer| self.judge_answer(sample, verdict, answer)).collect();
        let shared = right.iter().find(|right| **right == verdict).or(right.first());
        shared.copied().ok_or_else(|| format!("the servers have answered {answers:?}"))
    }

    fn judge_answer(&self, sample: &Sample, verdict: Verdict, answer: &ServerAnswer) -> Verdict {
        let Some(item) = answer.item else { return Verdict::Absent };
        let position = sample.position.0.parse().expect("positions of the simulated log are numbers");
        let committed_at = self.database.logged_at(position).expect("the commit is in the log");
        let is_old = item.stored_at < committed_at;
        match verdict {
            Verdict::Undecided if !is_old || self.may_be_undecided(sample, answer, item.stored_at, committed_at) => {
                Verdict::Undecided
            }
            Verdict::New if is_old && self.was_answered_by_another(sample, answer) => Verdict::New,
            _ if is_old => Verdict::Old,
            _ => Verdict::New,
        }
    }

    /// Whether the monitor need not know that the value was stored before the commit.
    fn may_be_undecided(
        &self,
        sample: &Sample,
        answer: &ServerAnswer,
        stored_at: Instant,
        committed_at: Instant,
    ) -> bool {
        let known_since = self.items.first_mark_after(&answer.server, stored_at);
        sample.not_before.is_none() || known_since.is_none_or(|known| known + KNOWN_FOR_MIN > committed_at)
    }

    /// Whether a router's first answer may have come from another server.
    fn was_answered_by_another(&self, sample: &Sample, answer: &ServerAnswer) -> bool {
        let first = self.answers(sample, sample.read_at, sample.read_at + FIRST_LOOK_MAX);
        self.watched.through == Through::Routers && first.iter().any(|first| first.server != answer.server)
    }

    /// What servers of the cluster have answered about the key. The monitor's times are rounded down.
    fn answers(&self, sample: &Sample, from: Moment, to: Moment) -> Vec<ServerAnswer> {
        let to = self.time.instant(to + Duration::from_millis(1));
        let mut answers = self.items.answers(&sample.key, self.time.instant(from), to);
        answers.retain(|answer| self.watched.servers.iter().any(|server| **server == *answer.server));
        answers
    }

    /// Compares the monitor's counts with those of the checker. The monitor has sampled `sampled` deletes.
    pub(super) fn compare(&self, cluster: &ClusterWatch, sampled: u64) -> Result<(), String> {
        let counted = self.counted();
        if let Some(difference) = &counted.difference {
            return Err(difference.clone());
        }
        for (age_s, monitor) in cluster.counts() {
            let found = counted.by_age_s.get(&age_s).copied().unwrap_or_default();
            let looks = found.answered() + found.failed;
            let checker = AgeCounts { late: sampled - looks.min(sampled), ..found };
            if *monitor != checker {
                return Err(format!("at {age_s} s the monitor has counted {monitor:?}, the checker {checker:?}"));
            }
        }
        Ok(())
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().expect("one thread runs a simulation")
    }
}
