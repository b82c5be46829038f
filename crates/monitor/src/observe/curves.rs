//! The curves of a report: one for each cluster, and one for each pair of regions (where the log is, where the cluster
//! is).

use super::MonitorReport;
use crate::sampling::{AgeCounts, SavedAge};
use std::collections::BTreeMap;

/// What was found, by the age of the delete.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The cluster, or both regions.
    pub name: String,
    /// The region of the log, whose deletes these are.
    pub from_region: String,
    /// The region of the cluster.
    pub to_region: String,
    /// Ages in ascending order.
    pub ages: Vec<SavedAge>,
}

impl Curve {
    /// The name for people: of a cluster that is not in the log's region with its region, as on the command line, since
    /// regions may have clusters of one name.
    pub fn label(&self) -> String {
        let Curve { name, from_region, to_region, .. } = self;
        match from_region == to_region || name.starts_with(&format!("{from_region} to ")) {
            true => name.clone(),
            false => format!("{to_region}/{name}"),
        }
    }
}

/// The curves of the clusters, and those of the pairs of regions.
pub fn curves(report: &MonitorReport) -> (Vec<Curve>, Vec<Curve>) {
    let from_region = &report.region;
    let mut by_region: BTreeMap<&str, BTreeMap<u32, AgeCounts>> = BTreeMap::new();
    let mut clusters = Vec::new();
    for cluster in &report.clusters {
        let sums = by_region.entry(&cluster.region).or_default();
        for age in &cluster.ages {
            let sum = sums.entry(age.age_s).or_default();
            *sum = sum.plus(&age.counts);
        }
        clusters.push(Curve {
            name: cluster.name.clone(),
            from_region: from_region.clone(),
            to_region: cluster.region.clone(),
            ages: cluster.ages.clone(),
        });
    }
    let pairs = by_region.into_iter().map(|(to_region, sums)| Curve {
        name: format!("{from_region} to {to_region}"),
        from_region: from_region.clone(),
        to_region: to_region.into(),
        ages: sums.into_iter().map(|(age_s, counts)| SavedAge { age_s, counts }).collect(),
    });
    (clusters, pairs.collect())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{observe::ClusterReport, sampling::SampleCounts};

    /// Two clusters in the log's region and one in another, with these numbers of old values of 1,000 at 1 s and 60 s.
    pub fn report(old: [[u64; 2]; 3]) -> MonitorReport {
        let names = [("one", "east"), ("two", "east"), ("far", "west")];
        let clusters = names.into_iter().zip(old).map(|((name, region), old)| ClusterReport {
            name: name.into(),
            region: region.into(),
            ages: [1, 60]
                .into_iter()
                .zip(old)
                .map(|(age_s, old)| SavedAge {
                    age_s,
                    counts: AgeCounts { old, absent: 1_000 - old, failed: 5, ..AgeCounts::default() },
                })
                .collect(),
            pending: 0,
        });
        let counts = SampleCounts { commits: 2_000, deletes: 10_000, sampled: 1_005, ..SampleCounts::default() };
        let clusters = clusters.collect();
        MonitorReport { region: "east".into(), sample: 10, log: None, position: None, counts, clusters }
    }

    #[test]
    fn clusters_of_a_region_are_added_up() {
        let (clusters, pairs) = curves(&report([[3, 1], [4, 0], [100, 50]]));
        assert_eq!(clusters.iter().map(|curve| curve.name.as_str()).collect::<Vec<_>>(), ["one", "two", "far"]);
        let old = |curve: &Curve| curve.ages.iter().map(|age| age.counts.old).collect::<Vec<_>>();
        assert_eq!(
            pairs.iter().map(|curve| (curve.name.as_str(), old(curve))).collect::<Vec<_>>(),
            [("east to east", vec![7, 1]), ("east to west", vec![100, 50])]
        );
        assert_eq!(pairs[0].ages[0].counts.old_share(), Some(0.0035));
        let labels: Vec<String> = clusters.iter().chain(&pairs).map(Curve::label).collect();
        assert_eq!(labels, ["one", "two", "west/far", "east to east", "east to west"]);
    }
}
