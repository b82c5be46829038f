//! `stats settings`.

use super::list::StatList;
use super::names;
use crate::net::tls::options::{KeyFormat, TlsOptions};
use crate::observe::event_log::kind;
use crate::session::context::{Protocols, ServerControl};
use crate::session::execute::LOOKASIDE_VERSION;
use crate::shared::ServerState;
use std::sync::atomic::Ordering;

impl ServerState {
    pub(super) fn write_settings(&self, out: &mut Vec<u8>) {
        let arguments = &self.arguments;
        let mut stats = StatList::default();
        stats.add("lookaside_version", LOOKASIDE_VERSION);
        stats.add("maxbytes", self.store.memory_limit());
        stats.add("memory_limit_max", arguments.memory_megabytes_max() << 20);
        stats.add("evictions", if self.options.evictions { "on" } else { "off" });
        stats.add("maxconns", arguments.connections_max);
        stats.add("maxconns_fast", if arguments.compatible.waits_when_full() { "no" } else { "yes" });
        stats.add("tcpport", self.tcp_port.load(Ordering::Relaxed));
        stats.add("udpport", self.udp_port);
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
        let counts_prefixes = self.net.worker_handles.iter().any(|handle| handle.events.is_enabled(kind::PREFIXES));
        stats.add("detail_enabled", if counts_prefixes { "yes" } else { "no" });
        stats.add("stat_key_prefix", char::from(arguments.prefix_delimiter.unwrap_or(b':')));
        stats.add("idle_timeout", arguments.idle_timeout_s());
        stats.add("read_buf_mem_limit", arguments.compatible.read_limit_bytes());
        stats.add("num_threads", self.net.worker_handles.len());
        stats.add("num_threads_per_udp", self.net.worker_handles.len());
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
        stats.add("slab_automove", u8::from(self.store.is_rebalance_enabled()));
        stats.add("track_sizes", if self.tracks_sizes() { "yes" } else { "no" });
        stats.add("flush_enabled", if self.allows_flush() { "yes" } else { "no" });
        stats.add("dump_enabled", if self.allows_key_dump() { "yes" } else { "no" });
        if let Some(numbers) = arguments.udp_worker_ports() {
            stats.add("udp_worker_ports", format_args!("{}-{}", numbers.start(), numbers.end()));
        }
        stats.add("resp_obj_mem_limit", arguments.compatible.reply_limit_bytes());
        stats.add("login_timeout", arguments.login_timeout);
        stats.add("lease_interval_ms", self.options.lease_interval_ms);
        stats.add("lease_interval_outlasts_delete", self.options.lease_interval_outlasts_delete);
        stats.add("stale_ms", self.options.stale_ms);
        stats.add("age_exponent", self.options.age_exponent);
        stats.add("transient_seconds", self.options.transient_s);
        stats.render(names::SETTINGS, out);
    }
}

/// memcached's name for the protocols.
fn protocol_name(protocols: Protocols) -> &'static str {
    match protocols {
        Protocols::Both => "auto-negotiate",
        Protocols::Text => "ascii",
        Protocols::Binary => "binary",
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
    if let Some(kilobytes) = options.write_buffer_kilobytes {
        stats.add("ssl_wbuf_size", u64::from(kilobytes) << 10);
    }
    stats.add("ssl_session_cache", if options.session_cache { "yes" } else { "no" });
    stats.add("ssl_min_version", if options.only_tls13 { "tlsv1.3" } else { "tlsv1.2" });
}
