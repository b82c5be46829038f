//! What `stats` says: memcached's names, and ours for leases, stale values and hold-offs.
//!
//! Absent: `get_expired`. The store counts expired items once, whoever comes upon them: that is `reclaimed`.
//!
//! The threads' counters are summed here, at the moment of asking; no request pays for it.

use crate::daemon::Daemon;
use crate::{Counts, Process, VERSION, render};
use lookaside_store::{Now, Statistics};
use std::fmt::Display;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// What had been counted when `stats reset` came last.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    counts: Counts,
    store: Statistics,
    connections_total: u64,
    connections_rejected: u64,
}

impl Process for Daemon {
    fn stats(&self, arguments: &[u8], now: Now, out: &mut Vec<u8>) {
        match arguments.trim_ascii() {
            b"" => self.general(now, out),
            b"settings" => self.settings(out),
            b"reset" => {
                *self.baseline.lock().unwrap_or_else(PoisonError::into_inner) = self.totals();
                return render::line(b"RESET", out);
            }
            b"items" | b"slabs" | b"sizes" | b"conns" => {}
            _ => return render::line(b"ERROR", out),
        }
        render::line(b"END", out);
    }

    fn set_verbosity(&self, level: u32) {
        self.log.set_verbosity(level);
    }

    /// The store's memory is fixed from the start: only the limit that it has can be set.
    fn set_memory_limit(&self, megabytes: u64) -> bool {
        megabytes == self.arguments.memory_megabytes
    }

    fn shut_down(&self) -> bool {
        if self.arguments.enable_shutdown {
            tracing::info!("a client has sent shutdown");
            self.stop();
        }
        self.arguments.enable_shutdown
    }

    fn crawls(&self) -> bool {
        self.crawls.load(Ordering::Relaxed)
    }

    fn set_crawls(&self, crawls: bool) {
        self.crawls.store(crawls, Ordering::Relaxed);
    }
}

impl Daemon {
    fn totals(&self) -> Baseline {
        let mut counts = Counts::default();
        for desk in &self.desks {
            counts.add(&desk.counters.snapshot());
        }
        Baseline {
            counts,
            store: self.store.statistics(),
            connections_total: self.connections_total.load(Ordering::Relaxed),
            connections_rejected: self.connections_rejected.load(Ordering::Relaxed),
        }
    }

    fn general(&self, now: Now, out: &mut Vec<u8>) {
        let totals = self.totals();
        let baseline = self.baseline.lock().unwrap_or_else(PoisonError::into_inner);
        let started = self.clock.started();
        let (user_s, system_s) = processor_seconds();
        stat("pid", std::process::id(), out);
        stat("uptime", (now.unix_ms - started.unix_ms) / 1000, out);
        stat("time", now.unix_ms / 1000, out);
        stat("version", VERSION, out);
        stat("pointer_size", usize::BITS, out);
        stat("rusage_user", format_args!("{user_s:.6}"), out);
        stat("rusage_system", format_args!("{system_s:.6}"), out);
        stat("max_connections", self.arguments.connections_max, out);
        stat("curr_connections", self.connections_open(), out);
        stat("total_connections", totals.connections_total - baseline.connections_total, out);
        stat("rejected_connections", totals.connections_rejected - baseline.connections_rejected, out);
        for (name, count) in totals.counts.since(&baseline.counts).named() {
            stat(name, count, out);
        }
        stat("limit_maxbytes", self.options.memory_bytes_max, out);
        stat("accepting_conns", 1, out);
        stat("threads", self.desks.len(), out);
        store_stats(&totals.store, &baseline.store, out);
    }

    fn settings(&self, out: &mut Vec<u8>) {
        let arguments = &self.arguments;
        stat("maxbytes", self.options.memory_bytes_max, out);
        stat("maxconns", arguments.connections_max, out);
        stat("tcpport", self.tcp_port.load(Ordering::Relaxed), out);
        stat("udpport", arguments.udp_port, out);
        let addresses = if arguments.listen.is_empty() { "127.0.0.1".to_string() } else { arguments.listen.join(",") };
        stat("inter", addresses, out);
        stat("verbosity", self.log.verbosity(), out);
        stat("num_threads", self.desks.len(), out);
        stat("item_size_max", self.options.item_bytes_max, out);
        stat("cas_enabled", "yes", out);
        stat("evictions", "on", out);
        stat("lease_interval_ms", self.options.lease_interval_ms, out);
        stat("lease_interval_outlasts_delete", self.options.lease_interval_outlasts_delete, out);
        stat("stale_ms", self.options.stale_ms, out);
    }
}

fn store_stats(store: &Statistics, baseline: &Statistics, out: &mut Vec<u8>) {
    stat("bytes", store.memory_bytes, out);
    stat("curr_items", store.items, out);
    let since_reset = [
        ("total_items", store.items_total, baseline.items_total),
        ("evictions", store.evictions, baseline.evictions),
        ("reclaimed", store.expirations, baseline.expirations),
        ("lease_tokens", store.lease_tokens, baseline.lease_tokens),
        ("lease_hot_misses", store.lease_hot_misses, baseline.lease_hot_misses),
        ("lease_sets_stored", store.lease_sets_stored, baseline.lease_sets_stored),
        ("lease_sets_refused", store.lease_sets_refused, baseline.lease_sets_refused),
        ("stale_hits", store.stale_hits, baseline.stale_hits),
        ("hold_off_refusals", store.hold_off_refusals, baseline.hold_off_refusals),
        ("leases_forgotten", store.leases_forgotten, baseline.leases_forgotten),
        ("hold_offs_merged", store.hold_offs_merged, baseline.hold_offs_merged),
    ];
    for (name, value, before) in since_reset {
        stat(name, value.saturating_sub(before), out);
    }
}

fn stat(name: &str, value: impl Display, out: &mut Vec<u8>) {
    render::line(format!("STAT {name} {value}").as_bytes(), out);
}

/// Processor time of this process in user and in system mode, in seconds; zeros where there is no `/proc`.
fn processor_seconds() -> (f64, f64) {
    /// The unit of `/proc/self/stat`: the kernel reports these fields in hundredths of a second everywhere.
    const TICKS_PER_SECOND: f64 = 100.0;
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field, the program's name in parentheses, may hold spaces: count from behind it.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let seconds = |index| fields.split_whitespace().nth(index).and_then(|ticks| ticks.parse::<f64>().ok());
    (seconds(11).unwrap_or(0.0) / TICKS_PER_SECOND, seconds(12).unwrap_or(0.0) / TICKS_PER_SECOND)
}
