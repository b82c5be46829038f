//! The table and the JSON of a report.

use super::{Curve, MonitorReport, age_name, curves};
use crate::sampling::AgeCounts;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// The report as JSON:
/// `{"region", "sample", "log", "position", "counts": {..}, "clusters": [..], "region_pairs": [..]}`. A curve has
/// `name`, `from_region`, `to_region` and `ages`; an age `age_s`, a number for each kind of look, and `old_share`,
/// which is null without an answer.
pub fn to_json(report: &MonitorReport) -> Value {
    let (clusters, pairs) = curves(report);
    let curves = |curves: Vec<Curve>| curves.iter().map(curve_json).collect::<Vec<Value>>();
    json!({
        "region": report.region,
        "sample": report.sample,
        "log": report.log,
        "position": report.position,
        "pending": report.clusters.iter().map(|cluster| cluster.pending).max().unwrap_or_default(),
        "counts": report.counts,
        "clusters": curves(clusters),
        "region_pairs": curves(pairs),
    })
}

fn curve_json(curve: &Curve) -> Value {
    let ages = curve.ages.iter().map(|age| {
        let counts = AgeCounts::NAMES.into_iter().zip(age.counts.values());
        let mut fields: Map<String, Value> = counts.map(|(name, count)| (name.to_owned(), json!(count))).collect();
        fields.insert("age_s".into(), json!(age.age_s));
        fields.insert("old_share".into(), json!(age.counts.old_share()));
        Value::Object(fields)
    });
    json!({
        "name": curve.name,
        "from_region": curve.from_region,
        "to_region": curve.to_region,
        "ages": ages.collect::<Vec<_>>(),
    })
}

/// The report as a table for people.
pub fn to_table(report: &MonitorReport) -> String {
    let counts = &report.counts;
    let (clusters, pairs) = curves(report);
    let mut text = format!(
        "{} deletes in {} commits read, {} sampled (one in {}), {} dropped\n\n{:<24} {:>7} {:>12}",
        counts.deletes, counts.commits, counts.sampled, report.sample, counts.dropped, "", "after", "old values"
    );
    for name in AgeCounts::NAMES {
        let _ = write!(text, " {name:>10}");
    }
    text.push('\n');
    for curve in clusters.iter().chain(&pairs) {
        for age in &curve.ages {
            let share = age.counts.old_share().map_or("-".to_owned(), |share| format!("{:.4} %", share * 100.0));
            let _ = write!(text, "{:<24} {:>7} {share:>12}", curve.label(), age_name(age.age_s));
            for count in age.counts.values() {
                let _ = write!(text, " {count:>10}");
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::curves::tests::report;

    #[test]
    fn every_count_is_in_the_json() {
        let json = to_json(&report([[3, 1], [4, 0], [100, 50]]));
        assert_eq!(json["counts"]["sampled"], 1_005);
        assert_eq!(json["clusters"][2]["ages"][1]["old"], 50);
        assert_eq!(json["clusters"][2]["ages"][1]["old_share"], 0.05);
        assert_eq!(json["region_pairs"][0]["name"], "east to east");
        assert_eq!(json["region_pairs"][0]["ages"][0]["failed"], 10);
    }

    #[test]
    fn the_table_has_a_line_for_each_curve_and_age() {
        let table = to_table(&report([[3, 1], [4, 0], [100, 50]]));
        let line =
            |start: &str| table.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{table}"));
        let words: Vec<&str> = line("one").split_whitespace().collect();
        assert_eq!(words, ["one", "1", "s", "0.3000", "%", "997", "0", "3", "0", "5", "0"]);
        assert!(line("east to west").contains("10.0000 %"), "{table}");
    }
}
