//! Prometheus's text format, version 0.0.4: metric families, each followed by its samples.
//!
//! ```text
//!   # HELP lookaside_router_batches_total Batches that clients' requests came in.
//!   # TYPE lookaside_router_batches_total counter
//!   lookaside_router_batches_total 42
//! ```

use crate::histogram::{BUCKETS, HistogramSum};
use std::fmt::{Display, Write as _};

/// The type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only increases, until the process or the counted object ends.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// Counts by size.
    Histogram,
    /// A count and a sum.
    Summary,
}

impl MetricKind {
    fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Summary => "summary",
        }
    }
}

/// Builds the text, one metric family after another.
#[derive(Debug)]
pub struct Exposition {
    prefix: &'static str,
    family: String,
    text: String,
}

impl Exposition {
    /// An empty text; every name gets the prefix.
    pub fn new(prefix: &'static str) -> Exposition {
        Exposition { prefix, family: String::new(), text: String::new() }
    }

    /// Begins the family `name`. `help` is one or more sentences.
    pub fn family(&mut self, name: &str, kind: MetricKind, help: &str) {
        self.family = format!("{}{name}", self.prefix);
        let family = &self.family;
        // Writing to a String does not fail.
        let _ = writeln!(self.text, "# HELP {family} {help}\n# TYPE {family} {}", kind.name());
    }

    /// Adds a sample to the last family.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.line("", labels, value);
    }

    /// Adds a family with one sample.
    pub fn single(&mut self, name: &str, kind: MetricKind, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(&[], value);
    }

    /// Adds the samples of a histogram of durations, in seconds.
    pub fn histogram(&mut self, labels: &[(&str, &str)], sum: &HistogramSum) {
        let mut below = 0;
        let below: Vec<(f64, u64)> = (sum.buckets.iter().enumerate().take(BUCKETS - 1))
            .map(|(bucket, count)| {
                below += count;
                ((1u64 << bucket) as f64 / 1e6, below)
            })
            .collect();
        self.buckets(labels, &below, sum.count(), sum.sum_us as f64 / 1e6);
    }

    /// Adds the samples of a histogram of any unit: each bound with the number of values up to it, then the number and
    /// the sum of all values.
    pub fn buckets(&mut self, labels: &[(&str, &str)], below: &[(f64, u64)], count: u64, sum: f64) {
        for (bound, below) in below {
            self.line("_bucket", &[labels, &[("le", &bound.to_string())]].concat(), below);
        }
        self.line("_bucket", &[labels, &[("le", "+Inf")]].concat(), count);
        self.line("_sum", labels, sum);
        self.line("_count", labels, count);
    }

    /// Adds the samples of a summary of durations: their number, and their sum in seconds.
    pub fn summary(&mut self, labels: &[(&str, &str)], sum: &HistogramSum) {
        self.line("_sum", labels, sum.sum_us as f64 / 1e6);
        self.line("_count", labels, sum.count());
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.text
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(&self.family);
        self.text.push_str(suffix);
        for (at, (name, value)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{name}=\"", if at == 0 { '{' } else { ',' });
            escape(value, &mut self.text);
            self.text.push('"');
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

fn escape(value: &str, text: &mut String) {
    for character in value.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            character => text.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Histogram;

    #[test]
    fn label_may_hold_any_text() {
        let mut exposition = Exposition::new("a_");
        exposition.family("b", MetricKind::Gauge, "C.");
        exposition.sample(&[("d", "e\"\\\n"), ("f", "")], 1.5);
        exposition.sample(&[], 2);
        let expected = "# HELP a_b C.\n# TYPE a_b gauge\na_b{d=\"e\\\"\\\\\\n\",f=\"\"} 1.5\na_b 2\n";
        assert_eq!(exposition.into_text(), expected);
    }

    #[test]
    fn buckets_count_all_values_up_to_their_bound() {
        let (mut exposition, histogram, mut sum) = (Exposition::new(""), Histogram::default(), HistogramSum::default());
        [1, 2, 2, 9_999_999].into_iter().for_each(|took_us| histogram.record(took_us));
        sum.add(&histogram);
        exposition.family("t_seconds", MetricKind::Histogram, "T.");
        exposition.histogram(&[("x", "y")], &sum);
        let text = exposition.into_text();
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(lines[0], "t_seconds_bucket{x=\"y\",le=\"0.000001\"} 1");
        assert_eq!(lines[1], "t_seconds_bucket{x=\"y\",le=\"0.000002\"} 3");
        assert_eq!(
            lines[20..],
            [
                "t_seconds_bucket{x=\"y\",le=\"+Inf\"} 4",
                "t_seconds_sum{x=\"y\"} 10.000004",
                "t_seconds_count{x=\"y\"} 4",
            ]
        );
    }
}
