//! What `stats` says: memcached's names in its order ([`names`]), and behind them ours for leases, stale values and
//! hold-offs.
//!
//! `stats items` and `stats slabs` are in [`classes`].
//!
//! Never rising: `get_expired`. The store counts expired items once, whoever comes upon them: that is `reclaimed`.
//!
//! The threads' counters are summed here, at the moment of asking; no request pays for it.

mod names;
mod slab_classes;

use crate::cli::tls::{KeyFormat, TlsOptions};
use crate::net::buffer_accounting::BufferAccounting;
use crate::net::connection_table::Entry;
use crate::net::peer_address;
use crate::observe::counters::CounterSnapshot;
use crate::observe::event_log::{PrefixCounts, kind};
use crate::observe::watchers::WATCHERS_MAX;
use crate::session::context::{Protocols, ServerControl};
use crate::session::execute::VERSION;
use crate::session::reply;
use crate::startup::ServerState;
use lookaside_store::{Now, Statistics};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// What one item takes in the index.
const SLOT_BYTES: u64 = 8;

/// What had been counted when `stats reset` came last.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    counters: CounterSnapshot,
    store: Statistics,
    connections_total: u64,
    connections_rejected: u64,
}

impl ServerControl for ServerState {
    fn stats(&self, arguments: &[u8], now: Now, out: &mut Vec<u8>) {
        let mut words = arguments.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
        match words.next().unwrap_or_default() {
            b"" => self.general(now, out),
            b"settings" => self.settings(out),
            b"reset" => {
                *self.baseline.lock().unwrap_or_else(PoisonError::into_inner) = self.totals();
                self.worker_handles.iter().for_each(|handle| handle.events.reset_prefixes());
                return reply::line(b"RESET", out);
            }
            b"items" => self.items(now, out),
            b"slabs" => self.slabs(now, out),
            b"sizes" if !self.tracks_sizes() => stat("sizes_status", "disabled", out),
            // A client of the text dialect does not come here: sizes are told by a walk, which this dialect has not.
            b"sizes" => {
                stat("sizes_status", "error", out);
                stat("sizes_error", "told in the text protocol alone", out);
            }
            b"conns" => self.connections(now, out),
            b"detail" => match words.next() {
                Some(switch @ (b"on" | b"off")) => {
                    let kinds = if switch == b"on" { kind::PREFIXES } else { 0 };
                    self.worker_handles.iter().for_each(|handle| handle.events.set_interest(kind::PREFIXES, kinds));
                    return reply::line(b"OK", out);
                }
                Some(b"dump") => self.prefixes(out),
                _ => return reply::line(b"CLIENT_ERROR usage: stats detail on|off|dump", out),
            },
            b"extstore" | b"proxy" | b"proxyfuncs" | b"proxybe" => {}
            _ => return reply::line(b"ERROR", out),
        }
        reply::line(b"END", out);
    }

    fn set_verbosity(&self, level: u32) {
        self.log.set_verbosity(level);
    }

    /// The store's memory is mapped from the start: the limit can be lowered, and raised again as far as that.
    fn set_memory_limit(&self, megabytes: u64) -> bool {
        let is_set =
            megabytes <= self.arguments.memory_megabytes && self.store.set_memory_limit((megabytes as usize) << 20);
        if is_set {
            tracing::info!("cache_memlimit: the memory limit is {megabytes} MB now");
        }
        is_set
    }

    fn allows_shutdown(&self) -> bool {
        self.arguments.enable_shutdown
    }

    fn shut_down(&self) -> bool {
        if self.arguments.enable_shutdown {
            tracing::info!("a client has sent shutdown");
            self.stop();
        }
        self.arguments.enable_shutdown
    }

    fn watch_refusal(&self) -> Option<&'static str> {
        if self.arguments.disable_watch {
            return Some("CLIENT_ERROR watch commands not allowed");
        }
        let is_full = self.watchers.count.load(Ordering::Relaxed) >= WATCHERS_MAX;
        is_full.then_some("WATCHER_TOO_MANY log watcher limit reached")
    }

    fn record_refused_login(&self, user: Option<&[u8]>, descriptor: Option<i32>, now: Now) {
        self.login_log.record(user, descriptor, now.unix_ms);
    }

    fn refresh_certificates(&self) -> Result<(), String> {
        let certificates = self.secrets.certificates.as_ref().ok_or("Error TLS not enabled")?;
        certificates.refresh(self.clock.now().unix_ms).map_err(|error| error.to_string())
    }

    fn allows_key_dump(&self) -> bool {
        !self.arguments.compatible.disable_dumping
    }

    fn allows_flush(&self) -> bool {
        !self.arguments.compatible.disable_flush_all
    }

    fn tracks_sizes(&self) -> bool {
        self.arguments.compatible.tracks_sizes()
    }

    fn is_crawler_enabled(&self) -> bool {
        self.is_crawler_enabled.load(Ordering::Relaxed)
    }

    fn set_crawler_enabled(&self, is_crawler_enabled: bool) {
        self.is_crawler_enabled.store(is_crawler_enabled, Ordering::Relaxed);
    }
}

impl ServerState {
    fn totals(&self) -> Baseline {
        let mut counters = CounterSnapshot::default();
        for handle in &self.worker_handles {
            counters.add(&handle.counters.snapshot());
        }
        Baseline {
            counters,
            store: self.store.statistics(),
            connections_total: self.connections_total.load(Ordering::Relaxed),
            connections_rejected: self.connections_rejected.load(Ordering::Relaxed),
        }
    }

    fn general(&self, now: Now, out: &mut Vec<u8>) {
        let totals = self.totals();
        let baseline = self.baseline.lock().unwrap_or_else(PoisonError::into_inner);
        let (user_s, system_s) = processor_seconds();
        let mut stats = StatList::default();
        stats.add("pid", std::process::id());
        stats.add("uptime", (now.unix_ms - self.clock.started().unix_ms) / 1000);
        stats.add("time", now.unix_ms / 1000);
        stats.add("version", VERSION);
        stats.add("pointer_size", usize::BITS);
        stats.add("rusage_user", format_args!("{user_s:.6}"));
        stats.add("rusage_system", format_args!("{system_s:.6}"));
        stats.add("max_connections", self.arguments.connections_max);
        stats.add("curr_connections", self.connections_open());
        stats.add("connection_structures", self.connections_open());
        stats.add("total_connections", totals.connections_total - baseline.connections_total);
        stats.add("rejected_connections", totals.connections_rejected - baseline.connections_rejected);
        let sum = |of: fn(&BufferAccounting) -> u64| {
            self.worker_handles.iter().map(|handle| of(&handle.buffers)).sum::<u64>()
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
                _ => stats.add(name, count),
            }
        }
        if let Some(certificates) = &self.secrets.certificates {
            stats.add("time_since_server_cert_refresh", (now.unix_ms - certificates.refreshed_ms()) / 1000);
        }
        let dropped =
            self.worker_handles.iter().map(|handle| handle.events.lines_dropped.load(Ordering::Relaxed)).sum::<u64>();
        let dropped = dropped + self.evictions.lines_dropped.load(Ordering::Relaxed);
        stats.add("log_worker_dropped", dropped);
        stats.add("log_worker_written", self.watchers.written.load(Ordering::Relaxed));
        stats.add("log_watcher_skipped", self.watchers.skipped.load(Ordering::Relaxed));
        stats.add("log_watcher_sent", self.watchers.sent.load(Ordering::Relaxed));
        stats.add("log_watchers", self.watchers.count.load(Ordering::Relaxed));
        stats.add("limit_maxbytes", self.store.memory_limit());
        stats.add("accepting_conns", u8::from(self.accept_pause.is_accepting()));
        stats.add("listen_disabled_num", self.accept_pause.pauses());
        stats.add("time_in_listen_disabled_us", self.accept_pause.paused_us());
        stats.add("threads", self.worker_handles.len());
        store_stats(&totals.store, &baseline.store, &mut stats);
        if let Some(warm_start) = &self.warm_start {
            stats.add("warm_restart_items", warm_start.items);
            stats.add("warm_restart_attach_ms", warm_start.attach_ms);
        }
        stats.render(names::GENERAL, out);
    }

    fn settings(&self, out: &mut Vec<u8>) {
        let arguments = &self.arguments;
        let mut stats = StatList::default();
        stats.add("maxbytes", self.store.memory_limit());
        stats.add("maxconns", arguments.connections_max);
        stats.add("tcpport", self.tcp_port.load(Ordering::Relaxed));
        stats.add("udpport", arguments.udp_port);
        stats.add("inter", if arguments.listen.is_empty() { "127.0.0.1".into() } else { arguments.listen.join(",") });
        stats.add("verbosity", self.log.verbosity());
        if let Some(path) = &arguments.unix_path {
            stats.add("domain_socket", path.display());
        }
        stats.add("umask", format_args!("{:o}", arguments.unix_mode));
        stats.add("tcp_backlog", arguments.backlog);
        stats.add("binding_protocol", protocol_name(self.protocols));
        stats.add(
            "auth_enabled_ascii",
            arguments.auth_path.as_ref().map_or("no".into(), |path| path.display().to_string()),
        );
        stats.add("auth_enabled_sasl", if arguments.enable_sasl { "yes" } else { "no" });
        stats.add("shutdown_command", if arguments.enable_shutdown { "yes" } else { "no" });
        let counts_prefixes = self.worker_handles.iter().any(|handle| handle.events.is_enabled(kind::PREFIXES));
        stats.add("detail_enabled", if counts_prefixes { "yes" } else { "no" });
        stats.add("stat_key_prefix", char::from(arguments.prefix_delimiter.unwrap_or(b':')));
        stats.add("idle_timeout", arguments.idle_timeout_s());
        stats.add("read_buf_mem_limit", arguments.compatible.read_limit_bytes());
        stats.add("num_threads", self.worker_handles.len());
        stats.add("num_threads_per_udp", self.worker_handles.len());
        stats.add("item_size_max", self.options.item_bytes_max);
        stats.add("lru_crawler", if self.is_crawler_enabled.load(Ordering::Relaxed) { "yes" } else { "no" });
        if let Some(certificates) = &self.secrets.certificates {
            tls_settings(&certificates.options, &mut stats);
        }
        if let Some(warm_start) = &self.warm_start {
            stats.add(
                if arguments.memory_file.is_some() { "memory_file" } else { "warm_restart" },
                warm_start.name.as_str(),
            );
        }
        stats.add("growth_factor", format_args!("{:.2}", self.options.growth_factor));
        stats.add("chunk_size", self.arguments.slab_bytes_min);
        stats.add("slab_automove", u8::from(self.store.is_rebalanced()));
        stats.add("track_sizes", if self.tracks_sizes() { "yes" } else { "no" });
        stats.add("flush_enabled", if self.allows_flush() { "yes" } else { "no" });
        stats.add("dump_enabled", if self.allows_key_dump() { "yes" } else { "no" });
        if let Some(numbers) = arguments.udp_worker_ports() {
            stats.add("udp_worker_ports", format_args!("{}-{}", numbers.start(), numbers.end()));
        }
        stats.add("resp_obj_mem_limit", arguments.compatible.reply_limit_bytes());
        stats.add("lease_interval_ms", self.options.lease_interval_ms);
        stats.add("lease_interval_outlasts_delete", self.options.lease_interval_outlasts_delete);
        stats.add("stale_ms", self.options.stale_ms);
        stats.add("age_exponent", self.options.age_exponent);
        stats.add("transient_seconds", self.options.transient_s);
        stats.render(names::SETTINGS, out);
    }

    /// `stats detail dump`
    fn prefixes(&self, out: &mut Vec<u8>) {
        let mut sum = BTreeMap::new();
        self.worker_handles.iter().for_each(|handle| handle.events.add_prefixes(&mut sum));
        for (prefix, PrefixCounts { gets, hits, sets, deletes }) in sum {
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(&prefix);
            reply::line(format!(" get {gets} hit {hits} set {sets} del {deletes}").as_bytes(), out);
        }
    }

    /// `stats conns`: what listens, then who is connected, each in the order of descriptors.
    fn connections(&self, now: Now, out: &mut Vec<u8>) {
        let uptime_s = self.clock.uptime_s(now);
        for (descriptor, address) in self.listening.get().into_iter().flatten() {
            let is_udp = address.starts_with("udp");
            if is_udp {
                stat(&format!("{descriptor}:UDP"), "UDP", out);
            }
            stat(&format!("{descriptor}:addr"), address, out);
            stat(&format!("{descriptor}:state"), if is_udp { "conn_read" } else { "conn_listening" }, out);
            stat(&format!("{descriptor}:secs_since_last_cmd"), uptime_s, out);
        }
        for Entry { descriptor, active_s, phase } in self.connection_table.entries() {
            let Some((peer, local)) = peer_address::endpoints(descriptor) else { continue };
            stat(&format!("{descriptor}:addr"), peer, out);
            stat(&format!("{descriptor}:listen_addr"), local, out);
            stat(&format!("{descriptor}:state"), phase.name(), out);
            stat(&format!("{descriptor}:secs_since_last_cmd"), uptime_s.saturating_sub(active_s), out);
        }
    }
}

/// memcached's words for what clients may speak.
fn protocol_name(protocols: Protocols) -> &'static str {
    match protocols {
        Protocols::Both => "auto-negotiate",
        Protocols::Text => "ascii",
        Protocols::Binary => "binary",
    }
}

/// Statistics on their way into memcached's order.
#[derive(Default)]
struct StatList(Vec<(&'static str, String)>);

impl StatList {
    fn add(&mut self, name: &'static str, value: impl Display) {
        self.0.push((name, value.to_string()));
    }

    /// First `names`, each with what is known or else with its default, or left out where that is empty; then what
    /// memcached has no name for.
    fn render(mut self, names: &[(&'static str, &str)], out: &mut Vec<u8>) {
        for (name, default) in names {
            match self.0.iter().position(|(stats, _)| stats == name) {
                Some(index) => stat(name, self.0.remove(index).1, out),
                None if default.is_empty() => {}
                None => stat(name, default, out),
            }
        }
        self.0.iter().for_each(|(name, value)| stat(name, value, out));
    }
}

fn tls_settings(options: &TlsOptions, stats: &mut StatList) {
    let key_path = options.key_path.as_ref().map_or("(null)".to_string(), |path| path.display().to_string());
    let authorities = options.authorities_path.as_ref().map_or("NULL".to_string(), |path| path.display().to_string());
    stats.add("ssl_enabled", "yes");
    stats.add("ssl_chain_cert", options.chain_path.display());
    stats.add("ssl_key", key_path);
    stats.add("ssl_verify_mode", options.verify_mode);
    stats.add("ssl_keyformat", if options.key_format == KeyFormat::Pem { 1 } else { 2 });
    stats.add("ssl_ciphers", if options.ciphers.is_empty() { "NULL".to_string() } else { options.ciphers.join(":") });
    stats.add("ssl_ca_cert", authorities);
    stats.add("ssl_session_cache", if options.session_cache { "yes" } else { "no" });
    stats.add("ssl_min_version", if options.only_tls13 { "tlsv1.3" } else { "tlsv1.2" });
}

fn store_stats(store: &Statistics, baseline: &Statistics, stats: &mut StatList) {
    stats.add("bytes", store.memory_bytes);
    stats.add("curr_items", store.items);
    stats.add("hash_bytes", store.index_bytes);
    stats.add("hash_power_level", (store.index_bytes / SLOT_BYTES).max(1).ilog2());
    stats.add("slab_global_page_pool", store.pages_free);
    let since_reset = [
        ("total_items", store.items_total, baseline.items_total),
        ("evictions", store.evictions, baseline.evictions),
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
        ("leases_forgotten", store.leases_forgotten, baseline.leases_forgotten),
        ("hold_offs_merged", store.hold_offs_merged, baseline.hold_offs_merged),
    ];
    for (name, value, before) in since_reset {
        stats.add(name, value.saturating_sub(before));
    }
}

fn stat(name: &str, value: impl Display, out: &mut Vec<u8>) {
    reply::line(format!("STAT {name} {value}").as_bytes(), out);
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
