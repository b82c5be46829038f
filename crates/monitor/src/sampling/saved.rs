//! The form in which counts and samples are kept over restarts.
//!
//! Position, samples and counts are saved together. After a crash the log is read again from that position, so each
//! delete is counted once, although looks that were made after the save are made again.

use super::{
    AgeCounts, Baseline, ClusterWatch, EndOfLog, Moment, PendingSample, Sample, SampleCounts, Sampler,
    end_of_log::EndsOfLog,
};
use lookaside_invalidator::Position;
use lookaside_protocol::percent;
use serde::{Deserialize, Serialize};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

/// A [`Sampler`] as it is saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedSampler {
    /// The log, and the position up to which it was read; `None` before the first read.
    pub log: Option<String>,
    /// As above.
    pub position: Option<String>,
    /// The ends of the log that later commits need, with their times.
    pub ends: Vec<(Moment, String)>,
    /// What was read and sampled.
    pub counts: SampleCounts,
    /// The clusters.
    pub clusters: Vec<SavedCluster>,
}

/// A cluster as it is saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedCluster {
    /// Its name.
    pub name: String,
    /// The region that it is in.
    pub region: String,
    /// What was found.
    pub ages: Vec<SavedAge>,
    /// The samples, each queue in order.
    pub samples: Vec<SavedSample>,
}

/// What was found at one age.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedAge {
    /// The age in seconds.
    pub age_s: u32,
    /// What was found.
    pub counts: AgeCounts,
}

/// A sample as it is saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedSample {
    /// Percent-encoded.
    key: String,
    position: String,
    /// Unix time in milliseconds.
    committed_at_ms: u64,
    not_before: Option<Moment>,
    read_at: Moment,
    /// The age of the next look in seconds; 0 for the first.
    next_age_s: u32,
    baselines: Vec<Baseline>,
}

impl SavedSample {
    fn of(next_age_s: u32, pending: &PendingSample) -> SavedSample {
        let PendingSample { sample, baselines } = pending;
        let committed_at = sample.committed_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        SavedSample {
            key: percent::encode(&sample.key).to_string(),
            position: sample.position.0.clone(),
            committed_at_ms: committed_at.as_millis() as u64,
            not_before: sample.not_before,
            read_at: sample.read_at,
            next_age_s,
            baselines: baselines.clone(),
        }
    }

    fn into_pending(self) -> Option<(u32, PendingSample)> {
        let sample = Sample {
            key: percent::decode(self.key.as_bytes())?,
            position: Position(self.position),
            committed_at: SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(self.committed_at_ms))?,
            not_before: self.not_before,
            read_at: self.read_at,
        };
        Some((self.next_age_s, PendingSample { sample: Arc::new(sample), baselines: self.baselines }))
    }
}

impl SavedSampler {
    /// Drops what means nothing by another clock, after a restart of the host: all samples and times. Dropped samples are
    /// counted.
    pub fn drop_times(&mut self) {
        self.ends.clear();
        let samples = self.clusters.iter_mut().map(|cluster| std::mem::take(&mut cluster.samples).len());
        self.counts.dropped += samples.max().unwrap_or_default() as u64;
    }
}

impl Sampler {
    /// Its form for the state file.
    pub fn save(&self) -> SavedSampler {
        let clusters = self.clusters.iter().map(|cluster| SavedCluster {
            name: cluster.name.clone(),
            region: cluster.region.clone(),
            ages: cluster.counts().map(|(age_s, counts)| SavedAge { age_s, counts: *counts }).collect(),
            samples: cluster.samples().map(|(next_age_s, pending)| SavedSample::of(next_age_s, pending)).collect(),
        });
        SavedSampler {
            log: self.log_identity.clone(),
            position: self.position.as_ref().map(|position| position.0.clone()),
            ends: self.ends.iter().map(|end| (end.begun_at, end.position.0.clone())).collect(),
            counts: self.counts,
            clusters: clusters.collect(),
        }
    }

    /// Continues where an earlier process has stopped. Clusters that this one does not have are left out, and so are ages.
    /// Samples that were at such an age are counted as dropped.
    pub fn restore(&mut self, saved: SavedSampler) {
        self.log_identity = saved.log;
        self.position = saved.position.map(Position);
        self.ends = EndsOfLog::default();
        saved.ends.into_iter().for_each(|(begun_at, position)| {
            self.ends.add(EndOfLog { begun_at, position: Position(position) });
        });
        self.counts = saved.counts;
        for saved in saved.clusters {
            let is_same = |cluster: &&mut ClusterWatch| cluster.name == saved.name;
            let Some(cluster) = self.clusters.iter_mut().find(is_same) else { continue };
            saved.ages.into_iter().for_each(|age| {
                cluster.restore_counts(age.age_s, age.counts);
            });
            for sample in saved.samples {
                let is_restored = sample
                    .into_pending()
                    .is_some_and(|(next_age_s, pending)| cluster.restore_sample(next_age_s, pending));
                self.counts.dropped += u64::from(!is_restored);
            }
        }
    }
}
