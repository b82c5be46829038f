//! What the numbers of `stats` mean, in a line each: the HELP that Prometheus shows beside a metric.
//!
//! Names that memcached has and that never move here say so, and why: nobody should wait for them to rise.

/// What the number of this name means.
pub(super) fn help_text(name: &str) -> Option<&'static str> {
    let found = HELP_TEXTS.binary_search_by_key(&name, |(known, _)| known);
    found.ok().map(|at| HELP_TEXTS[at].1)
}

/// In the order of their names.
#[rustfmt::skip]
const HELP_TEXTS: &[(&str, &str)] = &[
    ("accepting_conns", "0 while new connections wait: for a descriptor, or with no_maxconns_fast for a place under -c."),
    ("auth_cmds", "Logins that were tried."),
    ("auth_errors", "Logins that were refused: guesses, or a client with an old password."),
    ("bytes", "Memory in use, of limit_maxbytes: whole pages of items, and the index."),
    ("bytes_read", "Bytes that came from clients."),
    ("bytes_written", "Bytes that went to clients."),
    ("cas_badval", "Commands cas that were refused, since the item had changed."),
    ("cas_hits", "Commands cas that stored, since the item was unchanged."),
    ("cas_misses", "Commands cas whose key was not there."),
    ("cmd_flush", "Commands flush_all."),
    ("cmd_get", "Keys that were asked for."),
    ("cmd_meta", "Commands of the meta dialect."),
    ("cmd_set", "Stores of all kinds."),
    ("cmd_touch", "Keys that were given a new expiry by touch, gat or gats, found or not."),
    ("conn_yields", "Always 0: what a connection may do in a turn is bounded by bytes and not counted."),
    ("connection_structures", "As curr_connections: no connection is kept for later."),
    ("crawler_items_checked", "Always 0: there is no crawler."),
    ("crawler_reclaimed", "Always 0: there is no crawler; see transient_expirations."),
    ("curr_connections", "Connections that clients hold."),
    ("curr_items", "Items that are held, expired ones that nobody has met among them."),
    ("decr_hits", "Commands decr that found their key."),
    ("decr_misses", "Commands decr that did not find their key."),
    ("delete_hits", "Deletes that removed a value."),
    ("delete_misses", "Deletes of keys without a value; their leases are void all the same."),
    ("direct_reclaims", "Always 0: whoever stores makes room, and nobody else."),
    ("evicted_active", "Always 0: there is no list of active items."),
    ("evicted_unfetched", "Items that were evicted and never asked for."),
    ("evictions", "Items that left before they expired, to make room."),
    ("expired_unfetched", "Items that expired and were never asked for."),
    ("get_expired", "Always 0: an expired item counts once, in reclaimed, whoever meets it."),
    ("get_flushed", "Always 0: a key that flush_all has removed counts as any other miss."),
    ("get_hits", "Keys that were asked for and found."),
    ("get_misses", "Keys that were asked for and not found."),
    ("hash_bytes", "Memory of the index."),
    ("hash_is_expanding", "Always 0: the index grows a little with each store."),
    ("hash_power_level", "The binary logarithm of the places in the index."),
    ("hold_off_refusals", "Adds that were refused since a delete holds the key off."),
    ("hold_offs_merged", "Hold-offs that were merged for want of room: adds of other keys are refused with theirs."),
    ("idle_kicks", "Connections that were closed since they were idle for too long."),
    ("incr_hits", "Commands incr that found their key."),
    ("incr_misses", "Commands incr that did not find their key."),
    ("lease_hot_misses", "Misses that were told to wait, for somebody else fills the key already."),
    ("lease_sets_refused", "Stores under a lease that a delete or another store had voided: stale values that were kept out."),
    ("lease_sets_stored", "Stores under a lease that was still good."),
    ("lease_tokens", "Lease tokens that were handed out: misses that were told to fill their key."),
    ("leases_forgotten", "Leases that were forgotten for want of room: the fills that come for them are refused."),
    ("limit_maxbytes", "The limit of memory, -m or cache_memlimit."),
    ("listen_disabled_num", "How often new connections had to wait."),
    ("log_watcher_sent", "Lines that were sent to watchers."),
    ("log_watcher_skipped", "Lines that watchers did not get since they read too slowly."),
    ("log_watchers", "Connections that watch."),
    ("log_worker_dropped", "Lines for watchers that were lost since a thread had no room for them."),
    ("log_worker_written", "Lines for watchers that were collected from the threads."),
    ("lru_bumps_dropped", "Always 0: there is no LRU."),
    ("lru_crawler_running", "Always 0: there is no LRU to crawl through."),
    ("lru_crawler_starts", "A constant of memcached's: there is no LRU to crawl through."),
    ("lru_maintainer_juggles", "A constant of memcached's: there is no LRU to maintain."),
    ("lrutail_reflocked", "Always 0: there is no LRU."),
    ("malloc_fails", "Always 0: the store's memory is mapped at the start."),
    ("max_connections", "How many connections there may be, -c."),
    ("moves_to_cold", "Always 0: there is no LRU."),
    ("moves_to_warm", "Always 0: there is no LRU."),
    ("moves_within_lru", "Always 0: there is no LRU."),
    ("pid", "The process id."),
    ("pointer_size", "Bits of a pointer."),
    ("read_buf_bytes", "Memory of partial commands, whose rest has not come."),
    ("read_buf_bytes_free", "Always 0: what is free is the system's."),
    ("read_buf_count", "Connections that have sent a part of a command."),
    ("read_buf_oom", "Connections closed because partial commands took more than read_buf_mem_limit in all."),
    ("reclaimed", "Items that had expired when their memory was taken back."),
    ("rejected_connections", "Connections that were closed since there were max_connections."),
    ("reserved_fds", "File descriptors that memcached would keep from clients; a constant here."),
    ("response_obj_bytes", "Memory of replies that their clients have not read yet."),
    ("response_obj_count", "Connections that do not read their replies."),
    ("response_obj_oom", "Connections closed because unread replies took more than resp_obj_mem_limit in all."),
    ("round_robin_fallback", "Always 0: connections go to the thread that has the fewest."),
    ("rusage_system", "Processor time spent in the kernel for the server, in seconds."),
    ("rusage_user", "Processor time spent in the server itself, in seconds."),
    ("slab_global_page_pool", "Pages that belong to no slab class."),
    ("slab_reassign_busy_deletes", "Always 0: no item is held while it is read."),
    ("slab_reassign_busy_items", "Always 0: no item is held while it is read."),
    ("slab_reassign_busy_nomem", "Always 0: a page moves without memory from elsewhere."),
    ("slab_reassign_chunk_rescues", "Always 0: pieces of large items count in slab_reassign_rescues."),
    ("slab_reassign_inline_reclaim", "Always 0: a page moves without memory from elsewhere."),
    ("slab_reassign_rescues", "Items that were moved to other pages, so that theirs could go to another slab class."),
    ("slab_reassign_running", "Always 0: pages move while somebody stores, by nobody else."),
    ("slabs_moved", "Pages that went from one slab class to another."),
    ("ssl_handshake_errors", "Handshakes of TLS that failed."),
    ("ssl_new_sessions", "Handshakes of TLS that succeeded."),
    ("ssl_proto_errors", "Connections that broke the rules of TLS after their handshake."),
    ("stale_hits", "Stale values that were shown, marked as such."),
    ("store_no_memory", "Always 0: stores that found no memory are answered and not counted."),
    ("store_too_large", "Always 0: values over -I are refused before they are counted."),
    ("threads", "Worker threads, -t."),
    ("time", "The server's clock, in seconds since 1970."),
    ("time_in_listen_disabled_us", "How long new connections had to wait, in microseconds."),
    ("time_since_server_cert_refresh", "Seconds since the certificates were read."),
    ("total_connections", "Connections that were accepted."),
    ("total_items", "Items that were ever stored."),
    ("touch_hits", "Touches that found their key."),
    ("touch_misses", "Touches that did not find their key."),
    ("transient_expirations", "Short-lived items that left in the second in which they expired."),
    ("transients_untimed", "Short-lived items that found no timer and wait for eviction."),
    ("udp_replies_refused", "Replies by UDP that were larger than their client is allowed, so that an error or nothing went out."),
    ("unexpected_napi_ids", "Always 0: connections go to the thread that has the fewest."),
    ("uptime", "Seconds since the server has started."),
    ("warm_restart_attach_ms", "How long it took to take the items over from the server before, in milliseconds."),
    ("warm_restart_items", "Items that were taken over from the server before."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_meaning_is_found() {
        assert!(HELP_TEXTS.iter().all(|(name, text)| help_text(name) == Some(*text)));
        assert!(HELP_TEXTS.is_sorted_by(|before, after| before.0 < after.0));
        assert_eq!(help_text("no such name"), None);
    }
}
