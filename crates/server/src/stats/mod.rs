//! Statistics for operators: the command `stats`, and metrics for Prometheus.
//!
//! | command | file |
//! |---|---|
//! | `stats`, `stats reset`, `stats detail` | here |
//! | `stats settings` | [`settings`] |
//! | `stats items`, `stats slabs` | [`slab_classes`] |
//! | `stats conns` | [`connections`] |
//! | `stats sizes`, `cachedump`, `workingset` | crawls: [`crate::session::crawl`] |
//! | `GET /metrics` | [`prometheus`], [`help`] |
//!
//! memcached's statistics come first, in its order ([`names`]), followed by ours for leases, stale values and
//! hold-offs.
//!
//! The threads' counters are added up when `stats` is called; no request pays for it.

mod connections;
mod help;
mod list;
mod names;
pub(crate) mod prometheus;
mod settings;
mod slab_classes;

use crate::net::buffer_accounting::BufferAccounting;
use crate::observe::baseline::Baseline;
use crate::observe::counters::CounterSnapshot;
use crate::observe::event_log::kind;
use crate::observe::prefix_stats::PrefixCounts;
use crate::session::execute::{LOOKASIDE_VERSION, VERSION};
use crate::session::reply;
use crate::shared::ServerState;
use list::{StatList, stat};
use lookaside_store::{Now, Statistics};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// The size of an item's slot in the index.
const SLOT_BYTES: u64 = 8;

impl ServerState {
    /// Appends the reply to `stats <arguments>`.
    pub(crate) fn write_stats(&self, arguments: &[u8], now: Now, out: &mut Vec<u8>) {
        let mut words = arguments.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
        match words.next().unwrap_or_default() {
            b"" => self.write_general(now, out),
            b"settings" => self.write_settings(out),
            b"reset" => {
                *self.baseline.lock() = self.totals();
                self.net.worker_handles.iter().for_each(|handle| handle.events.prefixes.reset());
                return reply::write_line(b"RESET", out);
            }
            b"items" => self.write_items(now, out),
            b"slabs" => self.write_slabs(now, out),
            b"sizes" if !self.arguments.compatible.tracks_sizes() => stat("sizes_status", "disabled", out),
            // Only the binary protocol gets here: in the text protocol a crawl answers, which the binary one lacks.
            b"sizes" => {
                stat("sizes_status", "error", out);
                stat("sizes_error", "available in the text protocol only", out);
            }
            b"conns" => self.write_connections(now, out),
            b"detail" => match words.next() {
                Some(switch @ (b"on" | b"off")) => {
                    let kinds = if switch == b"on" { kind::PREFIXES } else { 0 };
                    self.net.worker_handles.iter().for_each(|handle| handle.events.set_interest(kind::PREFIXES, kinds));
                    return reply::write_line(b"OK", out);
                }
                Some(b"dump") => self.write_prefixes(out),
                _ => return reply::write_line(b"CLIENT_ERROR usage: stats detail on|off|dump", out),
            },
            b"extstore" | b"proxy" | b"proxyfuncs" | b"proxybe" => {}
            _ => return reply::write_line(b"ERROR", out),
        }
        reply::write_line(b"END", out);
    }

    fn totals(&self) -> Baseline {
        let mut counters = CounterSnapshot::default();
        for handle in &self.net.worker_handles {
            counters.add(&handle.counters.snapshot());
        }
        Baseline {
            counters,
            store: self.store.statistics(),
            connections_total: self.net.connections_total.value(),
            connections_rejected: self.net.connections_rejected.value(),
        }
    }

    fn write_general(&self, now: Now, out: &mut Vec<u8>) {
        // In this order: after a reset in between, the baseline would be above the totals.
        let baseline = self.baseline.lock();
        let totals = self.totals();
        let (user_s, system_s) = processor_seconds();
        let mut stats = StatList::default();
        stats.add("pid", std::process::id());
        stats.add("uptime", (now.unix_ms - self.clock.started().unix_ms) / 1000);
        stats.add("time", now.unix_ms / 1000);
        stats.add("version", VERSION);
        stats.add("lookaside_version", LOOKASIDE_VERSION);
        stats.add("pointer_size", usize::BITS);
        stats.add("rusage_user", format_args!("{user_s:.6}"));
        stats.add("rusage_system", format_args!("{system_s:.6}"));
        stats.add("max_connections", self.arguments.connections_max);
        stats.add("curr_connections", self.net.connections_open());
        stats.add("connection_structures", self.net.connections_open());
        stats.add("total_connections", totals.connections_total - baseline.connections_total);
        stats.add("rejected_connections", totals.connections_rejected - baseline.connections_rejected);
        let sum = |of: fn(&BufferAccounting) -> u64| {
            self.net.worker_handles.iter().map(|handle| of(&handle.buffers)).sum::<u64>()
        };
        stats.add("response_obj_count", sum(|buffers| buffers.output.connections()));
        stats.add("response_obj_bytes", sum(|buffers| buffers.output.bytes()));
        stats.add("read_buf_count", sum(|buffers| buffers.input.connections()));
        stats.add("read_buf_bytes", sum(|buffers| buffers.input.bytes()));
        let session_cache =
            self.secrets.certificates.as_ref().is_some_and(|certificates| certificates.options.session_cache);
        for (name, count) in totals.counters.since(&baseline.counters).named() {
            match name {
                "idle_kicks" if self.arguments.idle_timeout_s() == 0 => {}
                "ssl_new_sessions" if !session_cache => {}
                "ssl_handshake_errors" | "ssl_proto_errors" if self.secrets.certificates.is_none() => {}
                // The store refuses some of them itself, and counts those.
                "store_too_large" => {
                    stats.add(name, count + totals.store.stores_too_large - baseline.store.stores_too_large);
                }
                _ => stats.add(name, count),
            }
        }
        if let Some(certificates) = &self.secrets.certificates {
            // Another thread may have loaded them since this one read the clock.
            let age_ms = now.unix_ms.saturating_sub(certificates.refreshed_ms());
            stats.add("time_since_server_cert_refresh", age_ms / 1000);
        }
        self.write_log_stats(&mut stats);
        stats.add("lru_crawler_running", u8::from(self.expiry_crawl.is_running()));
        stats.add("lru_crawler_starts", self.expiry_crawl.starts.value());
        stats.add("crawler_reclaimed", self.expiry_crawl.items_reclaimed.value());
        stats.add("crawler_items_checked", self.expiry_crawl.items_checked.value());
        stats.add("limit_maxbytes", self.store.memory_limit());
        stats.add("accepting_conns", u8::from(self.net.accept_pause.is_accepting()));
        stats.add("listen_disabled_num", self.net.accept_pause.pauses());
        stats.add("time_in_listen_disabled_us", self.net.accept_pause.paused_us());
        stats.add("threads", self.net.worker_handles.len());
        store_stats(&totals.store, &baseline.store, &mut stats);
        if let Some(warm_start) = &self.warm_start {
            stats.add("warm_restart_items", warm_start.items);
            stats.add("warm_restart_attach_ms", warm_start.attach_ms);
        }
        stats.render(names::GENERAL, out);
    }

    /// The statistics of `watch`.
    fn write_log_stats(&self, stats: &mut StatList) {
        let sinks = self.net.worker_handles.iter().map(|handle| &handle.events).chain([&*self.evictions]);
        let dropped: u64 = sinks.map(|sink| sink.lines_dropped.load(Ordering::Relaxed)).sum();
        stats.add("log_worker_dropped", dropped);
        stats.add("log_worker_written", self.net.watchers.written.value());
        stats.add("log_watcher_skipped", self.net.watchers.skipped.value());
        stats.add("log_watcher_sent", self.net.watchers.sent.value());
        stats.add("log_watchers", self.net.watchers.count.load(Ordering::Relaxed));
    }

    /// `stats detail dump`
    fn write_prefixes(&self, out: &mut Vec<u8>) {
        let mut sum = BTreeMap::new();
        self.net.worker_handles.iter().for_each(|handle| handle.events.prefixes.add_to(&mut sum));
        for (prefix, PrefixCounts { gets, hits, sets, deletes }) in sum {
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(&prefix);
            reply::write_line(format!(" get {gets} hit {hits} set {sets} del {deletes}").as_bytes(), out);
        }
    }
}

fn store_stats(store: &Statistics, baseline: &Statistics, stats: &mut StatList) {
    stats.add("bytes", store.items_bytes);
    stats.add("memory_bytes", store.memory_bytes);
    stats.add("curr_items", store.items);
    stats.add("hash_bytes", store.index_bytes);
    stats.add("hash_power_level", (store.index_bytes / SLOT_BYTES).max(1).ilog2());
    stats.add("slab_global_page_pool", store.pages_free);
    let since_reset = [
        ("total_items", store.items_total, baseline.items_total),
        ("evictions", store.evictions, baseline.evictions),
        ("get_expired", store.gets_expired, baseline.gets_expired),
        ("get_flushed", store.gets_flushed, baseline.gets_flushed),
        ("store_no_memory", store.stores_out_of_memory, baseline.stores_out_of_memory),
        ("reclaimed", store.expirations, baseline.expirations),
        ("evicted_unfetched", store.evictions_unfetched, baseline.evictions_unfetched),
        ("expired_unfetched", store.expirations_unfetched, baseline.expirations_unfetched),
        ("slabs_moved", store.page_moves, baseline.page_moves),
        ("slab_reassign_rescues", store.items_moved, baseline.items_moved),
        ("transient_expirations", store.transient_expirations, baseline.transient_expirations),
        ("transients_untimed", store.transients_untimed, baseline.transients_untimed),
        ("lease_tokens", store.lease_tokens, baseline.lease_tokens),
        ("lease_hot_misses", store.lease_hot_misses, baseline.lease_hot_misses),
        ("lease_sets_stored", store.lease_sets_stored, baseline.lease_sets_stored),
        ("lease_sets_refused", store.lease_sets_refused, baseline.lease_sets_refused),
        ("stale_hits", store.stale_hits, baseline.stale_hits),
        ("hold_off_refusals", store.hold_off_refusals, baseline.hold_off_refusals),
        ("leases_displaced", store.leases_displaced, baseline.leases_displaced),
        ("hold_offs_merged", store.hold_offs_merged, baseline.hold_offs_merged),
    ];
    for (name, value, before) in since_reset {
        stats.add(name, value.saturating_sub(before));
    }
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
