//! Compares what a monitor counts with what the servers had.
//!
//! For each look of the monitor, the answers of the servers at that time are known, with the time at which the item was
//! stored, and when its delete was committed. A value that was stored before is old, one that was stored later is new.
//! The monitor may say that it does not know, or not ask, only where it promises no more:
//!
//! ```text
//!        mark of the server     end of the log is looked up     commit is read, first look
//! -------------|-----------------------------|-----------|----------------|--------> time
//!   stored here: old                      stored here: perhaps undecided      stored here: new
//! ```
//!
//! A value that was stored later may be undecided if there was no first answer to compare with, and only for some
//! seconds. Where no part of the cluster has failed, there is a first answer, and no look is late.

use crate::{
    database::SimulatedDatabase,
    fault_log::{Exposure, FaultLog},
    item_log::{ItemLog, ServerAnswer, StoredItem},
    region::names::address,
};
use lookaside_monitor::{
    asking::Through,
    questions::FindingObserver,
    sampling::{AgeCounts, Baseline, ClusterWatch, Finding, Look, Moment, Sample, Seen, Verdict, late_after},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::time::Instant;

/// The monitor's clock shows this at the beginning of a run.
const BEGUN_MS: u64 = 1_000_000;
/// A value that some server has known for this long to be stored, when its delete is committed, must be found to be
/// old: the time between two look-ups of the log's end, how long an answer takes, and a part for the drift of clocks.
const KNOWN_FOR_MIN: Duration = Duration::from_millis(1_700);
/// The first look comes at most this long after the commit was read.
const FIRST_LOOK_MAX: Duration = Duration::from_secs(2);

/// Without a first answer a value is known to be new if it was stored this long after the commit was read: how long a
/// server may be stopped between its clock and its sockets, the time between its marks, and how long an answer takes.
const DOUBTFUL_FOR_MAX: Duration = Duration::from_secs(8);
/// Beyond that by this part of its age: marks of long ago lie further apart.
const DOUBTFUL_SHARE: u32 = 10;

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
    /// The name of the cluster in the log of faults.
    pub(super) cluster: String,
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
    faults: FaultLog,
    time: MonitorTime,
    counted: Arc<Mutex<Counted>>,
}

/// A delete that the monitor samples: the position of its commit, and its key.
pub(super) type SampledDelete = (u64, Vec<u8>);

#[derive(Default)]
struct Counted {
    by_age_s: BTreeMap<u32, AgeCounts>,
    /// The deletes that were asked about at each age.
    asked: BTreeSet<(u32, SampledDelete)>,
    /// The first verdict that the checker does not share; `None` if there was none.
    difference: Option<String>,
}

impl MonitorCheck {
    pub(super) fn new(
        watched: WatchedCluster,
        items: ItemLog,
        database: SimulatedDatabase,
        faults: FaultLog,
        time: MonitorTime,
    ) -> MonitorCheck {
        MonitorCheck { watched: Arc::new(watched), items, database, faults, time, counted: Arc::default() }
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
        let judged = finding.looks.iter().map(|(verdict, look)| self.judge(finding, *verdict, look));
        let judged: Result<Vec<Verdict>, String> = judged.collect();
        let (verdict, why) = match judged {
            Ok(verdicts) => (verdicts.into_iter().max(), None),
            Err(why) => (None, Some(why)),
        };
        let mut counted = self.counted();
        counted.asked.insert((finding.age_s, (position_of(&finding.sample), finding.sample.key.clone())));
        if let Some(verdict) = verdict {
            counted.by_age_s.entry(finding.age_s).or_default().add(verdict);
        }
        if verdict != Some(finding.verdict) {
            let key = String::from_utf8_lossy(&finding.sample.key);
            let difference = format!(
                "{key}, deleted by commit {}, is {:?} at {} s, not {verdict:?}: {:?}, at first {:?}; {why:?}",
                finding.sample.position.0, finding.verdict, finding.age_s, finding.looks, finding.baselines
            );
            counted.difference.get_or_insert(difference);
        }
    }

    /// The right verdict on a look, of which the monitor has said `verdict`. The error says that no server can have
    /// answered like this.
    fn judge(&self, finding: &Finding, verdict: Verdict, look: &Look) -> Result<Verdict, String> {
        let seen_cas = match &look.seen {
            Seen::Failed(_) => return Ok(Verdict::Failed),
            Seen::Absent | Seen::Hidden => None,
            Seen::Item(item) => Some(item.cas),
        };
        let answers = self.answers(&finding.sample, look.sent_at, look.received_at);
        // A router may have asked any of its servers, and items of two servers may have the same CAS unique.
        let is_of_asked = |answer: &&ServerAnswer| {
            self.watched.through == Through::Routers || address(&answer.server).0.as_ref() == look.from
        };
        let candidates = answers.iter().filter(is_of_asked);
        let candidates = candidates.filter(|answer| answer.item.map(|item| item.cas) == seen_cas);
        let right: Vec<Verdict> = candidates.map(|answer| self.judge_answer(finding, verdict, look, answer)).collect();
        let shared = right.iter().find(|right| **right == verdict).or(right.first());
        shared.copied().ok_or_else(|| format!("the servers have answered {answers:?}"))
    }

    fn judge_answer(&self, finding: &Finding, verdict: Verdict, look: &Look, answer: &ServerAnswer) -> Verdict {
        let Some(item) = answer.item else { return Verdict::Absent };
        let sample = &finding.sample;
        let committed_at = self.committed_at(position_of(sample));
        let is_old = item.stored_at < committed_at;
        let may_be_undecided = || match is_old {
            true => self.may_old_be_undecided(sample, answer, item.stored_at, committed_at),
            false => self.may_new_be_undecided(finding, look, item),
        };
        match verdict {
            Verdict::Undecided if may_be_undecided() => Verdict::Undecided,
            Verdict::New if is_old && self.was_answered_by_another(sample, answer) => Verdict::New,
            _ if is_old => Verdict::Old,
            _ => Verdict::New,
        }
    }

    /// Whether the monitor need not know that the value was stored before the commit.
    fn may_old_be_undecided(
        &self,
        sample: &Sample,
        answer: &ServerAnswer,
        stored_at: Instant,
        committed_at: Instant,
    ) -> bool {
        let known_since = self.items.first_mark_after(&answer.server, stored_at);
        sample.not_before.is_none() || known_since.is_none_or(|known| known + KNOWN_FOR_MIN > committed_at)
    }

    /// Whether the monitor need not know that the value was stored after the commit.
    fn may_new_be_undecided(&self, finding: &Finding, look: &Look, item: StoredItem) -> bool {
        let Finding { sample, baselines, .. } = finding;
        let is_comparable = |first: &&Baseline| self.watched.through == Through::Routers || first.from == look.from;
        match baselines.iter().find(is_comparable) {
            // It was there at first, or another server had one with the same CAS unique.
            Some(first) if first.cas == Some(item.cas) => {
                let at_first = self.answers(sample, sample.read_at, sample.read_at + FIRST_LOOK_MAX);
                at_first.iter().any(|answer| answer.item.is_some_and(|other| other.cas == item.cas))
            }
            // It was stored before the commit was read.
            Some(_) => item.stored_at <= self.time.instant(sample.read_at + Duration::from_millis(1)),
            None => {
                let age = self.time.instant(look.received_at).duration_since(item.stored_at);
                let doubtful_until = self.time.instant(sample.read_at) + DOUBTFUL_FOR_MAX + age / DOUBTFUL_SHARE;
                item.stored_at < doubtful_until && !self.is_first_answer_due(sample)
            }
        }
    }

    /// Whether nothing kept the cluster from answering the first question.
    fn is_first_answer_due(&self, sample: &Sample) -> bool {
        let read_at = self.time.instant(sample.read_at);
        self.is_calm(read_at, read_at + FIRST_LOOK_MAX)
    }

    fn is_calm(&self, from: Instant, to: Instant) -> bool {
        self.faults.exposure(&self.watched.cluster, None, from, to) == Exposure::Calm
    }

    fn committed_at(&self, position: u64) -> Instant {
        self.database.logged_at(position).expect("the commit is in the log")
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

    /// Compares the monitor's counts with those of the checker, for the deletes that the monitor has sampled.
    pub(super) fn compare(&self, cluster: &ClusterWatch, sampled: &[SampledDelete]) -> Result<(), String> {
        let counted = self.counted();
        if let Some(difference) = &counted.difference {
            return Err(difference.clone());
        }
        for (age_s, monitor) in cluster.counts() {
            let found = counted.by_age_s.get(&age_s).copied().unwrap_or_default();
            let is_late = |delete: &&SampledDelete| !counted.asked.contains(&(age_s, (*delete).clone()));
            let late: Vec<&SampledDelete> = sampled.iter().filter(is_late).collect();
            if let Some((position, key)) = late.iter().find(|delete| !self.may_be_late(delete.0, age_s)) {
                let key = String::from_utf8_lossy(key);
                return Err(format!(
                    "{key}, deleted by commit {position}, was not asked about at {age_s} s, and nothing had failed"
                ));
            }
            let checker = AgeCounts { late: late.len() as u64, ..found };
            if *monitor != checker {
                return Err(format!("at {age_s} s the monitor has counted {monitor:?}, the checker {checker:?}"));
            }
        }
        Ok(())
    }

    /// Whether something may have kept the monitor from asking about a delete at this age in time.
    fn may_be_late(&self, position: u64, age_s: u32) -> bool {
        let (committed_at, age) = (self.committed_at(position), Duration::from_secs(age_s.into()));
        !self.is_calm(committed_at, committed_at + age + late_after(age))
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().expect("one thread runs a simulation")
    }
}

fn position_of(sample: &Sample) -> u64 {
    sample.position.0.parse().expect("positions of the simulated log are numbers")
}
