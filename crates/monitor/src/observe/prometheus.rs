//! The metrics in Prometheus's text format. No label holds a key.

use super::{MonitorReport, curves};
use crate::sampling::{AgeCounts, SampleCounts};
use lookaside_telemetry::{
    Exposition,
    MetricKind::{Counter, Gauge},
};

/// A counter of what was sampled.
type SampleFigure = (&'static str, fn(&SampleCounts) -> u64, &'static str);

const SAMPLE_COUNTERS: [SampleFigure; 7] = [
    ("commits_total", |counts| counts.commits, "Commits with keys that were read."),
    ("deletes_total", |counts| counts.deletes, "Keys of these."),
    ("sampled_total", |counts| counts.sampled, "Deletes that clusters are asked about (--sample)."),
    (
        "dropped_total",
        |counts| counts.dropped,
        "Chosen deletes that were given up: more than --pending-max at a time, or the host was restarted.",
    ),
    ("flushes_total", |counts| counts.flushes, "Commits that demand a flush, which is not watched."),
    (
        "positions_lost_total",
        |counts| counts.positions_lost,
        "How often the log no longer reached back to where the monitor had stopped.",
    ),
    ("source_failures_total", |counts| counts.source_failures, "Failures to read the commit log."),
];

/// What is not in the report.
#[derive(Clone, Copy, Debug)]
pub struct Liveness {
    /// The log is read, and its end was looked up lately.
    pub is_watching: bool,
    /// Failures to write the state file.
    pub saves_failed: u64,
}

/// The metrics of a report.
pub fn render(report: &MonitorReport, liveness: Liveness) -> String {
    let mut out = Exposition::new("lookaside_monitor_");
    out.family("info", Gauge, "The version that runs.");
    out.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    out.single(
        "watching",
        Gauge,
        "1 while the commit log is read and its end was looked up lately.",
        u8::from(liveness.is_watching),
    );
    for (name, value, help) in SAMPLE_COUNTERS {
        out.single(name, Counter, help, value(&report.counts));
    }
    out.single("save_failures_total", Counter, "Failures to write the state file.", liveness.saves_failed);
    out.family("pending_samples", Gauge, "Samples of the cluster that have not reached the last age.");
    for cluster in &report.clusters {
        out.sample(&[("cluster", &cluster.name), ("to_region", &cluster.region)], cluster.pending);
    }
    let (clusters, _) = curves(report);
    out.family(
        "looks_total",
        Counter,
        "Looks at a cluster at an age of the delete in seconds, by what was there: no value (absent), one stored after \
         the commit (new) or before it (old), one that may be either (undecided); failed without an answer, late if not \
         asked in time.",
    );
    for curve in &clusters {
        for age in &curve.ages {
            for (found, count) in AgeCounts::NAMES.into_iter().zip(age.counts.values()) {
                let labels: [(&str, &str); 5] = [
                    ("cluster", curve.name.as_str()),
                    ("from_region", &curve.from_region),
                    ("to_region", &curve.to_region),
                    ("age_s", &age.age_s.to_string()),
                    ("found", found),
                ];
                out.sample(&labels, count);
            }
        }
    }
    out.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::curves::tests::report;

    #[test]
    fn every_count_is_a_sample() {
        let text = render(&report([[3, 1], [4, 0], [100, 50]]), Liveness { is_watching: true, saves_failed: 2 });
        let labels = |cluster, to, age_s, found| {
            format!(
                "looks_total{{cluster=\"{cluster}\",from_region=\"east\",to_region=\"{to}\",age_s=\"{age_s}\",\
                 found=\"{found}\"}}"
            )
        };
        for line in [
            "deletes_total 10000".to_owned(),
            "sampled_total 1005".to_owned(),
            "save_failures_total 2".to_owned(),
            "watching 1".to_owned(),
            "pending_samples{cluster=\"far\",to_region=\"west\"} 0".to_owned(),
            format!("{} 100", labels("far", "west", 1, "old")),
            format!("{} 950", labels("far", "west", 60, "absent")),
            format!("{} 5", labels("one", "east", 1, "failed")),
        ] {
            assert!(text.contains(&format!("lookaside_monitor_{line}\n")), "{line}: {text}");
        }
    }
}
