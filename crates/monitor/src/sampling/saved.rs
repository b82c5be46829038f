//! The form in which counts and samples are kept over restarts.
//!
//! A sample is saved once, and what each cluster knows of it beside the cluster. Position, samples and counts are saved
//! together. After a crash the log is read again from that position, so each delete is counted once, although looks
//! that were made after the save are made again.

use super::{
    AgeCounts, Baseline, ClusterWatch, EndOfLog, Moment, PendingSample, Sample, SampleCounts, Sampler,
    end_of_log::EndsOfLog,
};
use lookaside_invalidator::Position;
use lookaside_protocol::percent;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeSet, HashMap},
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
    /// The samples of all clusters.
    pub samples: Vec<SavedSample>,
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
    /// The samples that have not reached the last age, each queue in order.
    pub pending: Vec<SavedPending>,
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
}

/// A sample in a cluster, as an array: the index of the sample, the age of the next look in seconds (0 for the first),
/// and what the first look has found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedPending(usize, u32, Vec<Baseline>);

impl From<&Sample> for SavedSample {
    fn from(sample: &Sample) -> SavedSample {
        let committed_at = sample.committed_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        SavedSample {
            key: percent::encode(&sample.key).to_string(),
            position: sample.position.0.clone(),
            committed_at_ms: committed_at.as_millis() as u64,
            not_before: sample.not_before,
            read_at: sample.read_at,
        }
    }
}

impl SavedSample {
    fn into_sample(self) -> Option<Sample> {
        Some(Sample {
            key: percent::decode(self.key.as_bytes())?,
            position: Position(self.position),
            committed_at: SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(self.committed_at_ms))?,
            not_before: self.not_before,
            read_at: self.read_at,
        })
    }
}

/// The samples of all clusters, each once.
#[derive(Default)]
struct SampleTable {
    samples: Vec<SavedSample>,
    indices: HashMap<*const Sample, usize>,
}

impl SampleTable {
    fn index_of(&mut self, sample: &Arc<Sample>) -> usize {
        *self.indices.entry(Arc::as_ptr(sample)).or_insert_with(|| {
            self.samples.push(SavedSample::from(&**sample));
            self.samples.len() - 1
        })
    }
}

impl SavedSampler {
    /// Drops what means nothing by another clock, after a restart of the host: all samples and times. Dropped samples
    /// are counted.
    pub fn drop_times(&mut self) {
        self.ends.clear();
        self.clusters.iter_mut().for_each(|cluster| cluster.pending.clear());
        self.counts.dropped += std::mem::take(&mut self.samples).len() as u64;
    }
}

impl Sampler {
    /// Its form for the state file.
    pub fn save(&self) -> SavedSampler {
        let mut table = SampleTable::default();
        let mut save = |(next_age_s, pending): (u32, &PendingSample)| {
            SavedPending(table.index_of(&pending.sample), next_age_s, pending.baselines.to_vec())
        };
        let clusters = self.clusters.iter().map(|cluster| SavedCluster {
            name: cluster.name.clone(),
            region: cluster.region.clone(),
            ages: cluster.counts().map(|(age_s, counts)| SavedAge { age_s, counts: *counts }).collect(),
            pending: cluster.samples().map(&mut save).collect(),
        });
        let clusters: Vec<SavedCluster> = clusters.collect();
        SavedSampler {
            log: self.log_identity.clone(),
            position: self.position.as_ref().map(|position| position.0.clone()),
            ends: self.ends.iter().map(|end| (end.begun_at, end.position.0.clone())).collect(),
            counts: self.counts,
            samples: table.samples,
            clusters,
        }
    }

    /// Continues where an earlier process has stopped. Clusters that this one does not have are left out, and so are
    /// ages. Samples that were at such an age are counted as dropped.
    pub fn restore(&mut self, saved: SavedSampler) {
        self.log_identity = saved.log;
        self.position = saved.position.map(Position);
        self.ends = EndsOfLog::default();
        saved.ends.into_iter().for_each(|(begun_at, position)| {
            self.ends.add(EndOfLog { begun_at, position: Position(position) });
        });
        self.counts = saved.counts;
        let samples: Vec<Option<Arc<Sample>>> =
            saved.samples.into_iter().map(|sample| sample.into_sample().map(Arc::new)).collect();
        let mut dropped = BTreeSet::new();
        for saved in saved.clusters {
            let is_same = |cluster: &&mut ClusterWatch| cluster.name == saved.name && cluster.region == saved.region;
            let Some(cluster) = self.clusters.iter_mut().find(is_same) else { continue };
            saved.ages.into_iter().for_each(|age| {
                cluster.restore_counts(age.age_s, age.counts);
            });
            for SavedPending(index, next_age_s, baselines) in saved.pending {
                let sample = samples.get(index).cloned().flatten();
                let restore =
                    |sample| cluster.restore_sample(next_age_s, PendingSample { sample, baselines: baselines.into() });
                if !sample.is_some_and(restore) {
                    dropped.insert(index);
                }
            }
        }
        self.counts.dropped += dropped.len() as u64;
    }
}
