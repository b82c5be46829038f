//! The text that Prometheus reads, format 0.0.4.
//!
//! Every number of `stats` is there as `lookaside_server_<its name>`, so that a dashboard made for the one can be made
//! for the other. What rises and never falls, but for `stats reset`, is a counter.

use super::hot_keys::HotKeys;
use super::latency::{BUCKETS, Class, Sum};
use super::meanings::meaning;
use super::{KEYS_PER_SAMPLE, REPLIES_PER_SAMPLE};
use crate::daemon::Daemon;
use crate::{Process, VERSION};
use lookaside_store::Now;
use std::fmt::Write;

/// How many hot keys are told.
const HOT_KEYS_MAX: usize = 20;

/// The names of `stats` that may fall, or never move.
const GAUGES: &[&str] = &[
    "accepting_conns",
    "bytes",
    "connection_structures",
    "curr_connections",
    "curr_items",
    "hash_bytes",
    "hash_is_expanding",
    "hash_power_level",
    "limit_maxbytes",
    "log_watchers",
    "lru_crawler_running",
    "max_connections",
    "pid",
    "pointer_size",
    "read_buf_bytes",
    "read_buf_bytes_free",
    "read_buf_count",
    "reserved_fds",
    "response_obj_bytes",
    "response_obj_count",
    "slab_global_page_pool",
    "slab_reassign_running",
    "threads",
    "time",
    "time_since_server_cert_refresh",
    "uptime",
];

/// All metrics of the process.
pub(crate) fn render(daemon: &Daemon, now: Now) -> String {
    let mut text = String::new();
    family(&mut text, "info", "gauge", "The version that runs.");
    let _ = writeln!(text, "lookaside_server_info{{version=\"{VERSION}\"}} 1");
    statistics(daemon, now, &mut text);
    latencies(daemon, &mut text);
    hot_keys(daemon, &mut text);
    text
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP lookaside_server_{name} {help}\n# TYPE lookaside_server_{name} {kind}");
}

fn statistics(daemon: &Daemon, now: Now, text: &mut String) {
    let mut told = Vec::new();
    daemon.stats(b"", now, &mut told);
    let told = String::from_utf8_lossy(&told);
    for line in told.lines() {
        let Some((name, value)) = line.strip_prefix("STAT ").and_then(|stat| stat.split_once(' ')) else { continue };
        if value.parse::<f64>().is_err() || name == "version" {
            continue;
        }
        let kind = if GAUGES.contains(&name) { "gauge" } else { "counter" };
        match meaning(name) {
            Some(meaning) => family(text, name, kind, meaning),
            None => family(text, name, kind, &format!("{name} of the command stats.")),
        }
        let _ = writeln!(text, "lookaside_server_{name} {value}");
    }
}

fn latencies(daemon: &Daemon, text: &mut String) {
    let help = format!(
        "From a worker's wake-up to the reply's handing over to the kernel, one of {REPLIES_PER_SAMPLE} replies, by its first command."
    );
    family(text, "reply_seconds", "histogram", &help);
    for class in Class::ALL {
        let mut sum = Sum::default();
        for measure in daemon.desks.iter().filter_map(|desk| desk.measure.as_ref()) {
            measure.latencies.add_to(class, &mut sum);
        }
        let (name, mut below) = (class.name(), 0);
        for (bucket, count) in sum.buckets.iter().enumerate().take(BUCKETS - 1) {
            below += count;
            let bound_s = (1u64 << bucket) as f64 / 1e6;
            let _ =
                writeln!(text, "lookaside_server_reply_seconds_bucket{{command=\"{name}\",le=\"{bound_s}\"}} {below}");
        }
        let count: u64 = sum.buckets.iter().sum();
        let _ = writeln!(text, "lookaside_server_reply_seconds_bucket{{command=\"{name}\",le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "lookaside_server_reply_seconds_sum{{command=\"{name}\"}} {}", sum.sum_us as f64 / 1e6);
        let _ = writeln!(text, "lookaside_server_reply_seconds_count{{command=\"{name}\"}} {count}");
    }
}

fn hot_keys(daemon: &Daemon, text: &mut String) {
    let mut all = HotKeys::default();
    for measure in daemon.desks.iter().filter_map(|desk| desk.measure.as_ref()) {
        all.add(&measure.hot_keys());
    }
    let help = format!(
        "The share that a key has of all keys asked for or stored lately, at least; one of {KEYS_PER_SAMPLE} is looked at."
    );
    family(text, "hot_key_share", "gauge", &help);
    for (key, samples) in all.top(HOT_KEYS_MAX) {
        let share = samples as f64 / all.samples as f64;
        let _ = writeln!(text, "lookaside_server_hot_key_share{{key=\"{}\"}} {share:.4}", label(&key));
    }
    family(text, "hot_key_samples", "gauge", "How many keys the shares were made from.");
    let _ = writeln!(text, "lookaside_server_hot_key_samples {}", all.samples);
}

/// A key as a label's value. What is no printable ASCII is told as `\\xff`, the backslash escaped, for a label has no
/// escape for that.
fn label(key: &[u8]) -> String {
    let mut label = String::with_capacity(key.len());
    for &byte in key {
        match byte {
            b'"' => label.push_str("\\\""),
            b'\\' => label.push_str("\\\\"),
            b' '..=b'~' => label.push(byte.into()),
            _ => drop(write!(label, "\\\\x{byte:02x}")),
        }
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_holds_any_key() {
        assert_eq!(label(b"user:42"), "user:42");
        assert_eq!(label(b"a\"b"), "a\\\"b");
        assert_eq!(label(b"a\\b"), "a\\\\b");
        assert_eq!(label(b"\xff\n"), "\\\\xff\\\\x0a");
    }
}
