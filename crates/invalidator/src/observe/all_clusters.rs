//! The latency from a commit to its last acknowledged delete in all clusters.

use super::distribution::{Distribution, LATENCY_US_MAX};
use std::{
    collections::{BTreeMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
};

/// The most commits tracked until all clusters have applied them. Beyond it the oldest is dropped and counted: a
/// cluster that is down must not use up memory.
pub(super) const TRACKED_COMMITS_MAX: usize = 1 << 16;

/// A digest of a position, which may be long. If two of the tracked commits have the same one, with one chance in
/// billions, the latency of one is that of the other.
type PositionDigest = u64;

fn digest(position: &str) -> PositionDigest {
    let mut hasher = DefaultHasher::new();
    position.hash(&mut hasher);
    hasher.finish()
}

/// Tracks commits until all clusters have applied them.
#[derive(Debug)]
pub(super) struct AllClustersLatency {
    pub latency_us: Distribution,
    /// By position: the clusters that have applied the commit.
    applied_by: BTreeMap<PositionDigest, Vec<usize>>,
    /// The positions in the order of their first application, some of them no longer tracked.
    pub(super) order: VecDeque<PositionDigest>,
    /// Commits that are no longer tracked because too many were.
    pub untracked: u64,
}

impl AllClustersLatency {
    pub fn new() -> AllClustersLatency {
        AllClustersLatency {
            latency_us: Distribution::new(LATENCY_US_MAX),
            applied_by: BTreeMap::new(),
            order: VecDeque::new(),
            untracked: 0,
        }
    }

    /// Records that `cluster`, one of `clusters`, has applied the commit at `position`.
    pub fn record_applied(&mut self, cluster: usize, clusters: usize, position: &str, latency_us: u64) {
        if clusters == 1 {
            return self.latency_us.record(latency_us);
        }
        let position = digest(position);
        match self.applied_by.get_mut(&position) {
            Some(applied) => {
                if !applied.contains(&cluster) {
                    applied.push(cluster);
                }
                if applied.len() == clusters {
                    // Its position stays in `order` until it is the oldest there: see below.
                    self.applied_by.remove(&position);
                    self.latency_us.record(latency_us);
                }
            }
            None => {
                self.applied_by.insert(position, vec![cluster]);
                self.order.push_back(position);
            }
        }
        while self.order.len() > TRACKED_COMMITS_MAX
            || self.order.front().is_some_and(|oldest| !self.applied_by.contains_key(oldest))
        {
            let Some(oldest) = self.order.pop_front() else { break };
            if self.applied_by.remove(&oldest).is_some() {
                self.untracked += 1;
            }
        }
    }
}
