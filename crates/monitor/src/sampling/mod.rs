//! Which deletes are asked about and when, what an answer means, and what was found. Sans-I/O: time, commits and
//! answers come in as arguments, so that a simulation can run it.

mod cluster_watch;
mod counts;
mod end_of_log;
mod moment;
mod sample;
mod saved;
mod verdict;

pub use cluster_watch::{ClusterWatch, DueBatch, Finding, PendingSample, late_after};
pub use counts::{AgeCounts, SampleCounts};
pub use end_of_log::{EndOfLog, EndsOfLog};
pub use moment::Moment;
pub use sample::{Sample, is_sampled};
pub use saved::{SavedAge, SavedCluster, SavedPending, SavedSample, SavedSampler};
pub use verdict::{AgeBounds, Baseline, Look, Seen, SeenItem, Verdict, judge};

use lookaside_invalidator::{Commits, Position, keys::Flush};
use std::{sync::Arc, time::Duration};

/// Whether all commits up to the second position are among those up to the first
/// ([`lookaside_invalidator::CommitLog::covers`]).
pub type Covers<'a> = &'a dyn Fn(&Position, &Position) -> bool;

/// How much is sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplerOptions {
    /// One delete in this many.
    pub one_in: u32,
    /// The ages at which clusters are asked, in seconds, ascending.
    pub ages_s: Vec<u32>,
    /// The most samples of a cluster at a time.
    pub pending_max: usize,
}

/// The samples of all clusters. A clone shares the samples with it, so that it costs no allocation for each.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplerOptions,
    /// The clusters, in the order in which they were given.
    pub clusters: Vec<ClusterWatch>,
    /// What was read and sampled.
    pub counts: SampleCounts,
    ends: EndsOfLog,
    /// The log that `position` is of; `None` before the first.
    log_identity: Option<String>,
    /// All up to here was read.
    position: Option<Position>,
    /// The log is open.
    is_open: bool,
}

impl Sampler {
    /// Without samples, for clusters with these names and regions.
    pub fn new<'a>(options: SamplerOptions, clusters: impl IntoIterator<Item = (&'a str, &'a str)>) -> Sampler {
        let ages_s: Arc<[u32]> = options.ages_s.as_slice().into();
        let clusters = clusters.into_iter().map(|(name, region)| ClusterWatch::new(name, region, ages_s.clone()));
        Sampler {
            clusters: clusters.collect(),
            options,
            counts: SampleCounts::default(),
            ends: EndsOfLog::default(),
            log_identity: None,
            position: None,
            is_open: false,
        }
    }

    /// Where to read on in this log; `None` if it was not read before.
    pub fn resume_from(&self, log_identity: &str) -> Option<Position> {
        self.position.clone().filter(|_| self.log_identity.as_deref() == Some(log_identity))
    }

    /// Reading starts at `position` of this log. What was known about the end of another log is dropped.
    pub fn start_reading(&mut self, log_identity: &str, position: &Position) {
        if self.log_identity.as_deref() != Some(log_identity) {
            self.ends.clear();
            self.log_identity = Some(log_identity.into());
        }
        self.position = Some(position.clone());
        self.is_open = true;
    }

    /// Reading has failed, and starts again.
    pub fn stop_reading(&mut self) {
        self.counts.source_failures += 1;
        self.is_open = false;
    }

    /// The log that is read; `None` before the first read.
    pub fn log_identity(&self) -> Option<&str> {
        self.log_identity.as_deref()
    }

    /// The position up to which the log was read; `None` before the first read.
    pub fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    /// Whether the log is read, and its end was looked up lately, so that old values can be recognised. Without
    /// look-ups the time in which a commit can have been grows, until looks at the first age are late, and values from
    /// before the commit are undecided.
    pub fn is_watching(&self, now: Moment) -> bool {
        let first_age = Duration::from_secs(self.options.ages_s.first().copied().unwrap_or_default().into());
        let is_recent = |begun_at: Moment| now - begun_at <= late_after(first_age);
        self.is_open && self.ends.newest_begun_at().is_some_and(is_recent)
    }

    /// Reading starts at the present end of the log next time.
    pub fn drop_position(&mut self) {
        self.position = None;
    }

    /// Adds the result of a look-up of the end of the log that is read.
    pub fn add_end_of_log(&mut self, log_identity: &str, end: EndOfLog) {
        if self.log_identity.as_deref() == Some(log_identity) {
            self.ends.add(end);
        }
    }

    /// Adds commits, which readers see since `read_at` at the latest, and samples their deletes.
    pub fn add_commits(&mut self, commits: &Commits, read_at: Moment, covers: Covers<'_>) {
        for commit in &commits.commits {
            self.counts.commits += u64::from(!commit.keys.is_empty());
            let mut demands_flush = false;
            for key in &commit.keys {
                if Flush::parse(key).is_some() {
                    demands_flush = true;
                    continue;
                }
                self.counts.deletes += 1;
                if !is_sampled(key, &commit.position, self.options.one_in) {
                    continue;
                }
                self.add_sample(Sample {
                    key: key.clone(),
                    position: commit.position.clone(),
                    committed_at: commit.committed_at,
                    not_before: self.ends.not_before(&commit.position, covers),
                    read_at,
                });
            }
            self.counts.flushes += u64::from(demands_flush);
        }
        self.ends.drop_read(&commits.position, covers);
        self.position = Some(commits.position.clone());
    }

    /// All clusters have the same samples, so that their counts can be compared.
    fn add_sample(&mut self, sample: Sample) {
        if self.clusters.iter().any(|cluster| cluster.pending() >= self.options.pending_max) {
            self.counts.dropped += 1;
            return;
        }
        self.counts.sampled += 1;
        let sample = Arc::new(sample);
        self.clusters.iter_mut().for_each(|cluster| cluster.add(sample.clone()));
    }
}
