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
use crate::net::buffer_accounting::Holdings;
use crate::net::connection_table::Entry;
use crate::net::peer_address;
use crate::observe::counters::Counts;
use crate::observe::event_log::{Uses, kind};
use crate::observe::watchers::WATCHERS_MAX;
use crate::session::context::{Dialects, Process};
use crate::session::execute::VERSION;
use crate::session::reply;
use crate::startup::Daemon;
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
    counts: Counts,
    store: Statistics,
    connections_total: u64,
    connections_rejected: u64,
}

impl Process for Daemon {
    fn stats(&self, arguments: &[u8], now: Now, out: &mut Vec<u8>) {
        let mut words = arguments.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
        match words.next().unwrap_or_default() {
            b"" => self.general(now, out),
            b"settings" => self.settings(out),
            b"reset" => {
                *self.baseline.lock().unwrap_or_else(PoisonError::into_inner) = self.totals();
                self.desks.iter().for_each(|desk| desk.attention.forget_prefixes());
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
                    self.desks.iter().for_each(|desk| desk.attention.give(kind::PREFIXES, kinds));
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

    fn allows_shut_down(&self) -> bool {
        self.arguments.enable_shutdown
    }

    fn shut_down(&self) -> bool {
        if self.arguments.enable_shutdown {
            tracing::info!("a client has sent shutdown");
            self.stop();
        }
        self.arguments.enable_shutdown
    }

    fn refuses_watchers(&self) -> Option<&'static str> {
        if self.arguments.disable_watch {
            return Some("CLIENT_ERROR watch commands not allowed");
        }
        let is_full = self.watchers.count.load(Ordering::Relaxed) >= WATCHERS_MAX;
        is_full.then_some("WATCHER_TOO_MANY log watcher limit reached")
    }

    fn login_refused(&self, user: Option<&[u8]>, descriptor: Option<i32>, now: Now) {
        self.refused_logins.tell(user, descriptor, now.unix_ms);
    }

    fn refresh_certificates(&self) -> Result<(), String> {
        let certificates = self.guard.certificates.as_ref().ok_or("Error TLS not enabled")?;
        certificates.refresh(self.clock.now().unix_ms).map_err(|error| error.to_string())
    }

    fn dumps(&self) -> bool {
        !self.arguments.compatible.disable_dumping
    }

    fn allows_flush(&self) -> bool {
        !self.arguments.compatible.disable_flush_all
    }

    fn tracks_sizes(&self) -> bool {
        self.arguments.compatible.tracks_sizes()
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
        let (user_s, system_s) = processor_seconds();
        let mut told = Told::default();
        told.add("pid", std::process::id());
        told.add("uptime", (now.unix_ms - self.clock.started().unix_ms) / 1000);
        told.add("time", now.unix_ms / 1000);
        told.add("version", VERSION);
        told.add("pointer_size", usize::BITS);
        told.add("rusage_user", format_args!("{user_s:.6}"));
        told.add("rusage_system", format_args!("{system_s:.6}"));
        told.add("max_connections", self.arguments.connections_max);
        told.add("curr_connections", self.connections_open());
        told.add("connection_structures", self.connections_open());
        told.add("total_connections", totals.connections_total - baseline.connections_total);
        told.add("rejected_connections", totals.connections_rejected - baseline.connections_rejected);
        let sum = |of: fn(&Holdings) -> u64| self.desks.iter().map(|desk| of(&desk.holdings)).sum::<u64>();
        told.add("response_obj_count", sum(|holdings| holdings.output.connections()));
        told.add("response_obj_bytes", sum(|holdings| holdings.output.bytes()));
        told.add("read_buf_count", sum(|holdings| holdings.input.connections()));
        told.add("read_buf_bytes", sum(|holdings| holdings.input.bytes()));
        let session_cache =
            self.guard.certificates.as_ref().is_some_and(|certificates| certificates.options.session_cache);
        for (name, count) in totals.counts.since(&baseline.counts).named() {
            match name {
                "idle_kicks" if self.arguments.idle_timeout_s() == 0 => {}
                "ssl_new_sessions" if !session_cache => {}
                "ssl_handshake_errors" | "ssl_proto_errors" if self.guard.certificates.is_none() => {}
                _ => told.add(name, count),
            }
        }
        if let Some(certificates) = &self.guard.certificates {
            told.add("time_since_server_cert_refresh", (now.unix_ms - certificates.refreshed_ms()) / 1000);
        }
        let dropped = self.desks.iter().map(|desk| desk.attention.lines_dropped.load(Ordering::Relaxed)).sum::<u64>();
        let dropped = dropped + self.evictions.lines_dropped.load(Ordering::Relaxed);
        told.add("log_worker_dropped", dropped);
        told.add("log_worker_written", self.watchers.written.load(Ordering::Relaxed));
        told.add("log_watcher_skipped", self.watchers.skipped.load(Ordering::Relaxed));
        told.add("log_watcher_sent", self.watchers.sent.load(Ordering::Relaxed));
        told.add("log_watchers", self.watchers.count.load(Ordering::Relaxed));
        told.add("limit_maxbytes", self.store.memory_limit());
        told.add("accepting_conns", u8::from(self.accepting.is_open()));
        told.add("listen_disabled_num", self.accepting.pauses());
        told.add("time_in_listen_disabled_us", self.accepting.paused_us());
        told.add("threads", self.desks.len());
        store_stats(&totals.store, &baseline.store, &mut told);
        if let Some(warmth) = &self.warmth {
            told.add("warm_restart_items", warmth.items);
            told.add("warm_restart_attach_ms", warmth.attach_ms);
        }
        told.render(names::GENERAL, out);
    }

    fn settings(&self, out: &mut Vec<u8>) {
        let arguments = &self.arguments;
        let mut told = Told::default();
        told.add("maxbytes", self.store.memory_limit());
        told.add("maxconns", arguments.connections_max);
        told.add("tcpport", self.tcp_port.load(Ordering::Relaxed));
        told.add("udpport", arguments.udp_port);
        told.add("inter", if arguments.listen.is_empty() { "127.0.0.1".into() } else { arguments.listen.join(",") });
        told.add("verbosity", self.log.verbosity());
        if let Some(path) = &arguments.unix_path {
            told.add("domain_socket", path.display());
        }
        told.add("umask", format_args!("{:o}", arguments.unix_mode));
        told.add("tcp_backlog", arguments.backlog);
        told.add("binding_protocol", protocol_name(self.dialects));
        told.add(
            "auth_enabled_ascii",
            arguments.auth_path.as_ref().map_or("no".into(), |path| path.display().to_string()),
        );
        told.add("auth_enabled_sasl", if arguments.enable_sasl { "yes" } else { "no" });
        told.add("shutdown_command", if arguments.enable_shutdown { "yes" } else { "no" });
        let counts_prefixes = self.desks.iter().any(|desk| desk.attention.is_given_to(kind::PREFIXES));
        told.add("detail_enabled", if counts_prefixes { "yes" } else { "no" });
        told.add("stat_key_prefix", char::from(arguments.prefix_delimiter.unwrap_or(b':')));
        told.add("idle_timeout", arguments.idle_timeout_s());
        told.add("read_buf_mem_limit", arguments.compatible.read_limit_bytes());
        told.add("num_threads", self.desks.len());
        told.add("num_threads_per_udp", self.desks.len());
        told.add("item_size_max", self.options.item_bytes_max);
        told.add("lru_crawler", if self.crawls.load(Ordering::Relaxed) { "yes" } else { "no" });
        if let Some(certificates) = &self.guard.certificates {
            tls_settings(&certificates.options, &mut told);
        }
        if let Some(warmth) = &self.warmth {
            told.add(
                if arguments.memory_file.is_some() { "memory_file" } else { "warm_restart" },
                warmth.name.as_str(),
            );
        }
        told.add("growth_factor", format_args!("{:.2}", self.options.growth_factor));
        told.add("chunk_size", self.arguments.slab_bytes_min);
        told.add("slab_automove", u8::from(self.store.is_rebalanced()));
        told.add("track_sizes", if self.tracks_sizes() { "yes" } else { "no" });
        told.add("flush_enabled", if self.allows_flush() { "yes" } else { "no" });
        told.add("dump_enabled", if self.dumps() { "yes" } else { "no" });
        if let Some(numbers) = arguments.udp_worker_ports() {
            told.add("udp_worker_ports", format_args!("{}-{}", numbers.start(), numbers.end()));
        }
        told.add("resp_obj_mem_limit", arguments.compatible.reply_limit_bytes());
        told.add("lease_interval_ms", self.options.lease_interval_ms);
        told.add("lease_interval_outlasts_delete", self.options.lease_interval_outlasts_delete);
        told.add("stale_ms", self.options.stale_ms);
        told.add("age_exponent", self.options.age_exponent);
        told.add("transient_seconds", self.options.transient_s);
        told.render(names::SETTINGS, out);
    }

    /// `stats detail dump`
    fn prefixes(&self, out: &mut Vec<u8>) {
        let mut sum = BTreeMap::new();
        self.desks.iter().for_each(|desk| desk.attention.add_prefixes(&mut sum));
        for (prefix, Uses { gets, hits, sets, deletes }) in sum {
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
        for Entry { descriptor, active_s, state } in self.roster.entries() {
            let Some((peer, local)) = peer_address::of(descriptor) else { continue };
            stat(&format!("{descriptor}:addr"), peer, out);
            stat(&format!("{descriptor}:listen_addr"), local, out);
            stat(&format!("{descriptor}:state"), state.name(), out);
            stat(&format!("{descriptor}:secs_since_last_cmd"), uptime_s.saturating_sub(active_s), out);
        }
    }
}

/// memcached's words for what clients may speak.
fn protocol_name(dialects: Dialects) -> &'static str {
    match dialects {
        Dialects::Both => "auto-negotiate",
        Dialects::Text => "ascii",
        Dialects::Binary => "binary",
    }
}

/// Statistics on their way into memcached's order.
#[derive(Default)]
struct Told(Vec<(&'static str, String)>);

impl Told {
    fn add(&mut self, name: &'static str, value: impl Display) {
        self.0.push((name, value.to_string()));
    }

    /// First `names`, each with what is known or else with its default, or left out where that is empty; then what
    /// memcached has no name for.
    fn render(mut self, names: &[(&'static str, &str)], out: &mut Vec<u8>) {
        for (name, default) in names {
            match self.0.iter().position(|(told, _)| told == name) {
                Some(at) => stat(name, self.0.remove(at).1, out),
                None if default.is_empty() => {}
                None => stat(name, default, out),
            }
        }
        self.0.iter().for_each(|(name, value)| stat(name, value, out));
    }
}

fn tls_settings(options: &TlsOptions, told: &mut Told) {
    let key_path = options.key_path.as_ref().map_or("(null)".to_string(), |path| path.display().to_string());
    let authorities = options.authorities_path.as_ref().map_or("NULL".to_string(), |path| path.display().to_string());
    told.add("ssl_enabled", "yes");
    told.add("ssl_chain_cert", options.chain_path.display());
    told.add("ssl_key", key_path);
    told.add("ssl_verify_mode", options.verify_mode);
    told.add("ssl_keyformat", if options.key_format == KeyFormat::Pem { 1 } else { 2 });
    told.add("ssl_ciphers", if options.ciphers.is_empty() { "NULL".to_string() } else { options.ciphers.join(":") });
    told.add("ssl_ca_cert", authorities);
    told.add("ssl_session_cache", if options.session_cache { "yes" } else { "no" });
    told.add("ssl_min_version", if options.only_tls13 { "tlsv1.3" } else { "tlsv1.2" });
}

fn store_stats(store: &Statistics, baseline: &Statistics, told: &mut Told) {
    told.add("bytes", store.memory_bytes);
    told.add("curr_items", store.items);
    told.add("hash_bytes", store.index_bytes);
    told.add("hash_power_level", (store.index_bytes / SLOT_BYTES).max(1).ilog2());
    told.add("slab_global_page_pool", store.pages_free);
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
        told.add(name, value.saturating_sub(before));
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
