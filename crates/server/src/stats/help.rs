//! The HELP texts that Prometheus shows beside the statistics.
//!
//! The text of a statistic that memcached has and that is constant here says so, and why.

/// The text for a statistic.
pub(super) fn help_text(name: &str) -> Option<&'static str> {
    let found = HELP_TEXTS.binary_search_by_key(&name, |(known, _)| known);
    found.ok().map(|at| HELP_TEXTS[at].1)
}

/// Sorted by name.
#[rustfmt::skip]
const HELP_TEXTS: &[(&str, &str)] = &[
    ("accepting_conns", "0 while new connections wait for a file descriptor, or with no_maxconns_fast for the number of connections to fall below -c."),
    ("auth_cmds", "Login attempts."),
    ("auth_errors", "Refused logins: guesses, or a client with an old password."),
    ("bytes", "Memory in use, out of limit_maxbytes: whole pages of items, and the index."),
    ("bytes_read", "Bytes received from clients."),
    ("bytes_written", "Bytes sent to clients."),
    ("cas_badval", "Commands cas that were refused because the item had changed."),
    ("cas_hits", "Commands cas that stored because the item had not changed."),
    ("cas_misses", "Commands cas that did not find their key."),
    (
        "closed_foreign_protocol",
        "Connections closed because their client spoke HTTP or began a TLS handshake: a browser or a scanner.",
    ),
    ("closed_long_line", "Connections closed because of a command line over 2,048 bytes, or a multiget over 1 MB."),
    ("cmd_flush", "Commands flush_all."),
    ("cmd_get", "Keys requested."),
    ("cmd_meta", "Meta commands."),
    ("cmd_set", "Storage commands of all kinds."),
    ("cmd_touch", "Keys requested by touch, gat or gats, found or not."),
    ("conn_yields", "Always 0: the work for a connection in one round is bounded by bytes, and not counted."),
    ("connection_structures", "As curr_connections: no connection structures are kept for reuse."),
    ("crawler_items_checked", "Always 0: there is no crawler."),
    ("crawler_reclaimed", "Always 0: there is no crawler; see transient_expirations."),
    ("curr_connections", "Open client connections."),
    ("curr_items", "Items in the store, including expired ones that no access has found yet."),
    ("decr_hits", "Commands decr that found their key."),
    ("decr_misses", "Commands decr that did not find their key."),
    ("delete_hits", "Deletes that removed a value."),
    ("delete_misses", "Deletes of keys without a value; their leases are voided all the same."),
    ("direct_reclaims", "Always 0: every store makes space itself."),
    ("evicted_active", "Always 0: there is no list of active items."),
    ("evicted_unfetched", "Evicted items that were never requested."),
    ("evictions", "Items removed before they expired, to make space."),
    ("expired_unfetched", "Expired items that were never requested."),
    ("get_expired", "Always 0: an expired item counts once, in reclaimed, at whichever access finds it."),
    ("get_flushed", "Always 0: a key that flush_all has removed counts as any other miss."),
    ("get_hits", "Requested keys that were found."),
    ("get_misses", "Requested keys that were not found."),
    ("hash_bytes", "Memory of the index."),
    ("hash_is_expanding", "Always 0: the index grows a little with each store."),
    ("hash_power_level", "The binary logarithm of the number of slots in the index."),
    ("hold_off_refusals", "Adds that were refused because of a delete's hold-off."),
    ("hold_offs_merged", "Hold-offs that were merged because their table was full: they refuse adds of other keys too."),
    ("idle_kicks", "Connections that were closed because they were idle for too long."),
    ("incr_hits", "Commands incr that found their key."),
    ("incr_misses", "Commands incr that did not find their key."),
    ("lease_hot_misses", "Misses that got no lease token, because another client is already filling the key."),
    ("lease_sets_refused", "Stores under a lease that a delete or another store had voided: stale values that were kept out."),
    ("lease_sets_stored", "Stores under a valid lease."),
    ("lease_tokens", "Lease tokens issued: misses whose client is to fill the key."),
    ("leases_displaced", "Leases dropped because their table was full: fills under them are refused."),
    ("limit_maxbytes", "The memory limit, -m or cache_memlimit."),
    ("listen_disabled_num", "How often new connections had to wait."),
    ("log_watcher_sent", "Lines sent to watchers."),
    ("log_watcher_skipped", "Lines that watchers missed because they read too slowly."),
    ("log_watchers", "Connections that watch."),
    ("log_worker_dropped", "Lines for watchers that were dropped because a thread's buffer was full."),
    ("log_worker_written", "Lines for watchers that were collected from the threads."),
    ("lru_bumps_dropped", "Always 0: there is no LRU."),
    ("lru_crawler_running", "Always 0: there is no LRU to crawl through."),
    ("lru_crawler_starts", "A constant of memcached's: there is no LRU to crawl through."),
    ("lru_maintainer_juggles", "A constant of memcached's: there is no LRU to maintain."),
    ("lrutail_reflocked", "Always 0: there is no LRU."),
    ("malloc_fails", "Always 0: the store's memory is mapped at the start."),
    ("max_connections", "The maximum number of connections, -c."),
    ("moves_to_cold", "Always 0: there is no LRU."),
    ("moves_to_warm", "Always 0: there is no LRU."),
    ("moves_within_lru", "Always 0: there is no LRU."),
    ("pid", "The process id."),
    ("pointer_size", "Bits of a pointer."),
    ("read_buf_bytes", "Memory of partial commands."),
    ("read_buf_bytes_free", "Always 0: free memory belongs to the system."),
    ("read_buf_count", "Connections with a partial command."),
    ("read_buf_oom", "Connections closed because partial commands exceeded read_buf_mem_limit."),
    ("reclaimed", "Expired items whose memory was freed."),
    ("rejected_connections", "Connections that were refused because there were max_connections."),
    ("reserved_fds", "File descriptors that memcached would keep from clients; a constant here."),
    ("response_obj_bytes", "Memory of replies that clients have not read yet."),
    ("response_obj_count", "Connections that do not read their replies."),
    ("response_obj_oom", "Connections closed because unread replies exceeded resp_obj_mem_limit."),
    ("round_robin_fallback", "Always 0: connections go to the thread that has the fewest."),
    ("rusage_system", "Processor time in the kernel, in seconds."),
    ("rusage_user", "Processor time in user mode, in seconds."),
    ("slab_global_page_pool", "Pages that belong to no slab class."),
    ("slab_reassign_busy_deletes", "Always 0: no item is pinned while it is read."),
    ("slab_reassign_busy_items", "Always 0: no item is pinned while it is read."),
    ("slab_reassign_busy_nomem", "Always 0: moving a page needs no other memory."),
    ("slab_reassign_chunk_rescues", "Always 0: pieces of large items count in slab_reassign_rescues."),
    ("slab_reassign_inline_reclaim", "Always 0: moving a page needs no other memory."),
    ("slab_reassign_rescues", "Items moved to other pages, so that their page could be given to another slab class."),
    ("slab_reassign_running", "Always 0: pages move during stores, not in a thread."),
    ("slabs_moved", "Pages moved from one slab class to another."),
    ("ssl_handshake_errors", "Failed TLS handshakes."),
    ("ssl_new_sessions", "Successful TLS handshakes."),
    ("ssl_proto_errors", "TLS protocol errors after the handshake."),
    ("stale_hits", "Stale values that were returned, marked as such."),
    ("store_no_memory", "Always 0: stores that find no memory get an error and are not counted."),
    ("store_too_large", "Always 0: values over -I are refused before they are counted."),
    ("threads", "Worker threads, -t."),
    ("time", "The server's clock, in seconds since 1970."),
    ("time_in_listen_disabled_us", "How long new connections had to wait, in microseconds."),
    ("time_since_server_cert_refresh", "Seconds since the certificates were read."),
    ("total_connections", "Connections accepted."),
    ("total_items", "Items ever stored."),
    ("touch_hits", "Touches that found their key."),
    ("touch_misses", "Touches that did not find their key."),
    ("transient_expirations", "Short-lived items removed in the second in which they expired."),
    ("transients_untimed", "Short-lived items without a timer, which wait for eviction."),
    ("udp_replies_refused", "UDP replies that exceeded their client's bound, so that an error or nothing was sent."),
    ("unexpected_napi_ids", "Always 0: connections go to the thread that has the fewest."),
    ("uptime", "Seconds since the start of the server."),
    ("warm_restart_attach_ms", "How long attaching or creating the region took, in milliseconds."),
    ("warm_restart_items", "Items attached from the predecessor."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_found() {
        assert!(HELP_TEXTS.iter().all(|(name, text)| help_text(name) == Some(*text)));
        assert!(HELP_TEXTS.is_sorted_by(|before, after| before.0 < after.0));
        assert_eq!(help_text("no such name"), None);
    }
}
