//! The text for Prometheus, format 0.0.4.
//!
//! Every number of `stats` is a metric `lookaside_server_<name>`, so that dashboards can use either. A number that
//! never falls, except by `stats reset`, is a counter.

use super::help::help_text;
use crate::observe::metrics::hot_keys::HotKeys;
use crate::observe::metrics::latency::CommandClass;
use crate::observe::metrics::{KEYS_PER_SAMPLE, REPLIES_PER_SAMPLE};
use crate::session::execute::{LOOKASIDE_VERSION, VERSION};
use crate::shared::ServerState;
use lookaside_store::Now;
use lookaside_telemetry::{Exposition, HistogramSum, MetricKind};
use std::fmt::Write;

/// At most this many hot keys are shown.
const HOT_KEYS_MAX: usize = 20;

/// The statistics that may fall, or are constant.
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
    "memory_bytes",
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

pub(crate) fn render(state: &ServerState, now: Now) -> String {
    let mut out = Exposition::new("lookaside_server_");
    out.family("info", MetricKind::Gauge, "The version that runs, and the release of memcached that it behaves like.");
    out.sample(&[("version", LOOKASIDE_VERSION), ("memcached_version", VERSION)], 1);
    write_stats(state, now, &mut out);
    write_latencies(state, &mut out);
    write_hot_keys(state, &mut out);
    out.into_text()
}

fn write_stats(state: &ServerState, now: Now, out: &mut Exposition) {
    let mut stats = Vec::new();
    state.write_stats(b"", now, &mut stats);
    let stats = String::from_utf8_lossy(&stats);
    for line in stats.lines() {
        let Some((name, value)) = line.strip_prefix("STAT ").and_then(|stat| stat.split_once(' ')) else { continue };
        if value.parse::<f64>().is_err() || name.ends_with("version") {
            continue;
        }
        let kind = if GAUGES.contains(&name) { MetricKind::Gauge } else { MetricKind::Counter };
        match help_text(name) {
            Some(help_text) => out.single(name, kind, help_text, value),
            None => out.single(name, kind, &format!("{name} of the command stats."), value),
        }
    }
}

fn write_latencies(state: &ServerState, out: &mut Exposition) {
    let help = format!(
        "Time from a worker's wake-up until the reply is passed to the kernel, by the first command of the reply; one of {REPLIES_PER_SAMPLE} replies is timed."
    );
    out.family("reply_seconds", MetricKind::Histogram, &help);
    for class in CommandClass::ALL {
        let mut sum = HistogramSum::default();
        for sampler in state.net.worker_handles.iter().filter_map(|handle| handle.sampler.as_ref()) {
            sampler.latencies.add_to(class, &mut sum);
        }
        out.histogram(&[("command", class.name())], &sum);
    }
}

fn write_hot_keys(state: &ServerState, out: &mut Exposition) {
    let mut all = HotKeys::default();
    for sampler in state.net.worker_handles.iter().filter_map(|handle| handle.sampler.as_ref()) {
        all.add(&sampler.hot_keys());
    }
    let help = format!(
        "Lower bound of a key's share of all keys requested or stored recently; one of {KEYS_PER_SAMPLE} is sampled."
    );
    out.family("hot_key_share", MetricKind::Gauge, &help);
    for (key, samples) in all.top(HOT_KEYS_MAX) {
        let share = samples as f64 / all.samples as f64;
        out.sample(&[("key", &escape(&key))], format_args!("{share:.4}"));
    }
    out.single(
        "hot_key_samples",
        MetricKind::Gauge,
        "The number of keys that the shares are computed from.",
        all.samples,
    );
}

/// A key as text. Bytes other than printable ASCII are written as `\xff`.
fn escape(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    for &byte in key {
        match byte {
            b' '..=b'~' => text.push(byte.into()),
            _ => drop(write!(text, "\\x{byte:02x}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_key_is_escape() {
        assert_eq!(escape(b"user:42"), "user:42");
        assert_eq!(escape(b"a\"b\\"), "a\"b\\");
        assert_eq!(escape(b"\xff\n"), "\\xff\\x0a");
    }
}
