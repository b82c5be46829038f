//! Requests of clients that concern the process, not its items ([`ServerControl`]).

use crate::net::peer_address;
use crate::net::watchers::WATCHERS_MAX;
use crate::session::context::ServerControl;
use crate::session::crawl::ClassSet;
use crate::shared::ServerState;
use lookaside_store::Now;
use std::sync::atomic::Ordering;

impl ServerControl for ServerState {
    fn stats(&self, arguments: &[u8], now: Now, out: &mut Vec<u8>) {
        self.write_stats(arguments, now, out);
    }

    fn set_verbosity(&self, level: u32) {
        self.log.set_verbosity(level);
    }

    /// Address space is reserved at the start: the limit can be raised up to `--memory-limit-max`.
    fn set_memory_limit(&self, megabytes: u64) -> bool {
        let is_set = megabytes <= self.arguments.memory_megabytes_max()
            && self.store.set_memory_limit((megabytes as usize) << 20);
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
            tracing::info!("stopping: a client has sent shutdown");
            self.stop();
        }
        self.arguments.enable_shutdown
    }

    fn watch_refusal(&self) -> Option<&'static str> {
        if self.arguments.disable_watch {
            return Some("CLIENT_ERROR watch commands not allowed");
        }
        let is_full = self.net.watchers.count.load(Ordering::Relaxed) >= WATCHERS_MAX;
        is_full.then_some("WATCHER_TOO_MANY log watcher limit reached")
    }

    fn record_refused_login(&self, user: Option<&[u8]>, descriptor: Option<i32>, now: Now) {
        let peer = || descriptor.and_then(peer_address::endpoints).map(|(peer, _)| peer);
        self.login_log.record(user, peer, now.unix_ms);
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

    fn reclaim_expired(&self, classes: ClassSet, now: Now) -> bool {
        self.expiry_crawl.start(&self.store, classes, now)
    }

    fn is_crawler_enabled(&self) -> bool {
        self.is_crawler_enabled.load(Ordering::Relaxed)
    }

    fn set_crawler_enabled(&self, is_enabled: bool) {
        self.is_crawler_enabled.store(is_enabled, Ordering::Relaxed);
    }
}
