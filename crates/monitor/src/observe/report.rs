//! What was found, without the samples: what metrics, table, JSON and figure show.

use crate::{
    sampling::{SampleCounts, Sampler, SavedAge, SavedCluster},
    state::SavedState,
};

/// The counts of a monitor. Its size does not depend on the number of samples.
#[derive(Clone, Debug, PartialEq)]
pub struct MonitorReport {
    /// The region whose log is read.
    pub region: String,
    /// The deletes, one in how many.
    pub sample: u32,
    /// The log that is read; `None` before the first read.
    pub log: Option<String>,
    /// The position up to which it was read; `None` before the first read.
    pub position: Option<String>,
    /// What was read and sampled.
    pub counts: SampleCounts,
    /// The clusters, in the order in which they were given.
    pub clusters: Vec<ClusterReport>,
}

/// What was found in a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterReport {
    /// Its name.
    pub name: String,
    /// The region that it is in.
    pub region: String,
    /// By age, in ascending order.
    pub ages: Vec<SavedAge>,
    /// The samples that have not reached the last age.
    pub pending: usize,
}

impl MonitorReport {
    /// That of a running monitor.
    pub fn of_sampler(region: &str, sample: u32, sampler: &Sampler) -> MonitorReport {
        let clusters = sampler.clusters.iter().map(|cluster| ClusterReport {
            name: cluster.name.clone(),
            region: cluster.region.clone(),
            ages: cluster.counts().map(|(age_s, counts)| SavedAge { age_s, counts: *counts }).collect(),
            pending: cluster.pending(),
        });
        MonitorReport {
            region: region.into(),
            sample,
            log: sampler.log_identity().map(ToOwned::to_owned),
            position: sampler.position().map(|position| position.0.clone()),
            counts: sampler.counts,
            clusters: clusters.collect(),
        }
    }

    /// That of a state file.
    pub fn of_state(state: SavedState) -> MonitorReport {
        let cluster = |cluster: SavedCluster| ClusterReport {
            pending: cluster.pending.len(),
            name: cluster.name,
            region: cluster.region,
            ages: cluster.ages,
        };
        MonitorReport {
            region: state.region,
            sample: state.sample,
            log: state.sampler.log,
            position: state.sampler.position,
            counts: state.sampler.counts,
            clusters: state.sampler.clusters.into_iter().map(cluster).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::SamplerOptions;

    #[test]
    fn a_saved_monitor_has_the_report_of_the_running_one() {
        let options = SamplerOptions { one_in: 10, ages_s: vec![1, 60], pending_max: 5 };
        let mut sampler = Sampler::new(options, [("one", "east"), ("far", "west")]);
        sampler.start_reading("log", &lookaside_invalidator::Position("7".into()));
        let state = SavedState {
            version: crate::state::VERSION,
            boot: "b".into(),
            region: "east".into(),
            sample: 10,
            sampler: sampler.save(),
        };
        let report = MonitorReport::of_sampler("east", 10, &sampler);
        assert_eq!(report, MonitorReport::of_state(state));
        assert_eq!((report.log.as_deref(), report.position.as_deref()), (Some("log"), Some("7")));
        assert_eq!(report.clusters.len(), 2);
    }
}
