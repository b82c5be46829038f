"""Writes docs/reference/{flags,metrics,statistics}.md from what the built programs print.

Flags come from `--help`; statistics from `stats` of a running server, router and invalidator; metrics and their
meanings from `/metrics`. The meaning of a statistic comes from `MEANINGS`, or is the HELP text of the metric of the
same name. Values are not shown.

    make reference                              builds the programs and writes the pages
    LOOKASIDE_PROGRAMS=target/release python tests/generate_reference.py

The exit code is 1 if a statistic has no meaning. `tests/test_reference.py` compares the names on the committed pages
with what the programs print.
"""

import re
import sys
import tempfile
from pathlib import Path

from observed_programs import Observed, observe
from processes import ROOT
from reference_flags import flags
from reference_pages import Page, Table

REFERENCE = ROOT / "docs" / "reference"

# memcached's settings that `stats settings` prints and that have no effect here.
WITHOUT_EFFECT = (
    "reqs_per_event", "hashpower_init", "slab_automove_ratio", "slab_automove_window", "slab_automove_freeratio",
    "lru_crawler_sleep", "lru_crawler_tocrawl", "tail_repair_time", "lru_maintainer_thread",
    "lru_segmented", "hot_lru_pct", "warm_lru_pct", "hot_max_factor", "warm_max_factor", "temp_lru", "temporary_ttl",
    "inline_ascii_response", "ext_item_size", "ext_item_age", "ext_low_ttl", "ext_recache_rate", "ext_wbuf_size",
    "ext_compact_under", "ext_drop_under", "ext_max_sleep", "ext_max_frag", "ext_drop_unread",
    "ssl_kernel_tls", "proxy_enabled", "proxy_uring_enabled", "num_napi_ids",
)  # fmt: skip

# Counters of LRU lists and of their crawler, in `stats items`.
OF_LRU_LISTS = (
    "tailrepairs", "evicted_active", "crawler_reclaimed", "crawler_items_checked", "lrutail_reflocked",
    "moves_to_cold", "moves_to_warm", "moves_within_lru", "direct_reclaims", "hits_to_hot", "hits_to_warm",
    "hits_to_cold", "hits_to_temp",
)  # fmt: skip

# Group of statistics -> regular expression of a name -> meaning. Groups of the same program are tried in order.
MEANINGS: dict[str, dict[str, str]] = {
    "lookaside-server: stats": {
        "version": "The release of memcached that this server behaves like.",
        "lookaside_version": "The release of this server.",
        "slab_reassign_last_busy_status": "Always `none`: no page move waits for an item.",
        "ssl_new_sessions": "TLS handshakes that did not resume a session.",
        "ssl_handshake_errors": "Clients that came with the wrong certificate, version or protocol.",
        "ssl_proto_errors": "Connections closed because of a TLS protocol error after the handshake.",
        "time_since_server_cert_refresh": "Seconds since the certificates were read.",
        "warm_restart_items": "Items taken over from the region at the start (`--warm-restart`).",
        "warm_restart_attach_ms": "Milliseconds that attaching the region took.",
    },
    "lookaside-server: stats settings": {
        "maxbytes": "Memory limit in bytes (`-m`).",
        "lookaside_version": "The release of this server.",
        "memory_limit_max": "How far `cache_memlimit` may raise the limit, in bytes (`--memory-limit-max`).",
        "maxconns": "Maximum number of connections (`-c`).",
        "tcpport": "TCP port (`-p`); 0 is off.",
        "udpport": "UDP port (`-U`); 0 is off.",
        "udp_worker_ports": "UDP ports of single worker threads (`--udp-worker-ports`).",
        "inter": "Addresses listened on (`-l`).",
        "verbosity": "Log level (`-v`, `verbosity`).",
        "oldest": "Age of the oldest item; always 0 here.",
        "evictions": "Whether a full store evicts; `off` with `-M`.",
        "domain_socket": "Path of the Unix socket (`-s`).",
        "umask": "Access mode of the Unix socket, in octal (`-a`).",
        "shutdown_command": "Whether `shutdown` is allowed (`-A`).",
        "growth_factor": "Growth factor of chunk sizes from one slab class to the next (`-f`).",
        "chunk_size": "Bytes for key, value and flags in the smallest chunk (`-n`).",
        "num_threads": "Worker threads (`-t`).",
        "num_threads_per_udp": "Worker threads that serve the UDP port.",
        "stat_key_prefix": "Character that ends the prefix of a key, for `stats detail` (`-D`).",
        "detail_enabled": "Whether `stats detail` counts (`-D`, `stats detail on`).",
        "tcp_backlog": "Backlog of the listeners (`-b`).",
        "binding_protocol": "Protocol that clients may use (`-B`).",
        "auth_enabled_sasl": "Whether SASL authentication is required (`-S`).",
        "auth_enabled_ascii": "Whether the text protocol requires a password (`-Y`).",
        "item_size_max": "Largest item (`-I`).",
        "maxconns_fast": "Whether connections over `-c` are closed; `no` if they wait.",
        "slab_reassign": "Always `yes`: pages can move between slab classes.",
        "slab_automove": "Whether pages move between slab classes by themselves (`-o slab_automove`).",
        "lru_crawler": "Whether `lru_crawler` may crawl (`lru_crawler enable`, `disable`).",
        "ssl_wbuf_size": "As given (`-o ssl_wbuf_size`, in bytes); without effect here.",
        "slab_chunk_max": "Largest chunk; larger items are chained.",
        "flush_enabled": "Whether `flush_all` is allowed (`-F`).",
        "dump_enabled": "Whether keys may be listed (`-X`).",
        "idle_timeout": "Seconds after which idle connections are closed; 0 is never.",
        "watcher_logbuf_size": "Buffer of a watcher.",
        "worker_logbuf_size": "Buffer of a thread for lines to watchers.",
        "read_buf_mem_limit": "Limit on partial commands (`-o read_buf_mem_limit`); 0 is none.",
        "resp_obj_mem_limit": "Limit on unread replies (`-o resp_obj_mem_limit`); 0 is none.",
        "track_sizes": "Whether `stats sizes` counts (`-o track_sizes`).",
        "ssl_enabled": "Whether TLS is on (`-Z`).",
        "ssl_chain_cert": "File of the server's certificate chain.",
        "ssl_key": "File of its private key.",
        "ssl_verify_mode": "Whether clients must have a certificate.",
        "ssl_keyformat": "Format of the private key: 1 is PEM, 2 is DER.",
        "ssl_ciphers": "Cipher suites that are allowed; `NULL` is the default list.",
        "ssl_ca_cert": "File of the CAs that sign clients' certificates.",
        "ssl_session_cache": "Whether TLS sessions can be resumed.",
        "ssl_min_version": "Lowest version of TLS that is accepted.",
        "memory_file": "File whose path names the shared memory (`-e`).",
        "warm_restart": "Name of the shared memory (`--warm-restart`).",
        "client_flags_size": "Bytes of client flags.",
        "login_timeout": "Seconds that a client may take to log in (`--login-timeout`); 0 is no limit.",
        "lease_interval_ms": "Least time between two lease tokens of a key (`--lease-interval`).",
        "lease_interval_outlasts_delete": "Whether a delete leaves that time running.",
        "stale_ms": "How long a deleted value may be shown as stale (`--stale-seconds`).",
        "age_exponent": "Weight of chunk sizes when pages are balanced (`--age-exponent`).",
        "transient_seconds": "Longest exptime of items that leave when they expire (`--transient-seconds`).",
        "hash_algorithm": "The hash of the index; a constant.",
        "cas_enabled": "Always `yes`.",
        **dict.fromkeys(WITHOUT_EFFECT, "memcached's setting; without effect here."),
    },
    "lookaside-server: stats items": {
        "items:CLASS:number": "Items of the class; an estimate in large classes.",
        "items:CLASS:number_(hot|warm)": "Always 0: all items are cold.",
        "items:CLASS:number_cold": "As `number`: all items are cold.",
        "items:CLASS:number_temp": "Always 0: all items are cold.",
        "items:CLASS:age_(hot|warm)": "Always 0: all items are cold.",
        "items:CLASS:age": "Seconds since the next victim was last requested.",
        "items:CLASS:mem_requested": "Bytes of key, value and header; an estimate in large classes.",
        "items:CLASS:evicted": "Items evicted.",
        "items:CLASS:evicted_nonzero": "Evicted items that had an expiry.",
        "items:CLASS:evicted_time": "Mean age in seconds of the items evicted last.",
        "items:CLASS:outofmemory": "Stores that found no memory.",
        "items:CLASS:reclaimed": "Items whose memory was taken back after they had expired.",
        "items:CLASS:expired_unfetched": "Items that expired and were never fetched.",
        "items:CLASS:evicted_unfetched": "Items that were evicted and never fetched.",
        **{f"items:CLASS:{name}": "Always 0: there is no LRU list, and no crawler of one." for name in OF_LRU_LISTS},
    },
    "lookaside-server: stats slabs": {
        "CLASS:chunk_size": "Bytes of a chunk.",
        "CLASS:chunks_per_page": "Chunks in a page.",
        "CLASS:total_pages": "Pages of the class.",
        "CLASS:total_chunks": "Chunks of the class.",
        "CLASS:used_chunks": "Chunks in use.",
        "CLASS:free_chunks": "Free chunks.",
        "CLASS:free_chunks_end": "Free chunks that were never used.",
        "CLASS:cmd_set": "Stores into the class.",
        "CLASS:pages_gained": "Pages that came from other classes.",
        "CLASS:pages_given": "Pages that went to other classes.",
        "CLASS:(get|delete|incr|decr|cas|touch)_hits": "Always 0: hits are not counted by class.",
        "CLASS:cas_badval": "Always 0: it is not counted by class.",
        "active_slabs": "Slab classes that have pages.",
        "total_malloced": "Bytes of the pages in use.",
    },
    "lookaside-server: stats sizes": {
        "SIZE": "Items of this size, rounded up to 32 bytes, above a megabyte to a megabyte (needs `-o track_sizes`).",
    },
    "lookaside-server: stats conns": {
        "FD:addr": "The client's address; of a listener its own.",
        "FD:listen_addr": "The listener that accepted the connection.",
        "FD:UDP": "The UDP socket of a worker thread.",
        "FD:state": "What the connection waits for.",
        "FD:secs_since_last_cmd": "Seconds since its last command.",
    },
    "lookaside-server: stats workingset": {
        "seconds": "The first argument: how many seconds back an item counts as in use.",
        "one_in": "The second argument: one key of this number is sampled.",
        "sampled": "Items that were sampled.",
        "items": "Items in use within that time: the sample multiplied.",
        "bytes": "Their bytes: the sample multiplied.",
        "(prefix|class):.*": "The same by key prefix or slab class.",
    },
    "lookaside-router: stats": {
        "pid": "The process id.",
        "uptime": "Seconds since the start.",
        "time": "The clock, in seconds since 1970.",
        "version": "The version.",
        "threads": "Threads (`--num-proxies`).",
        "max_connections": "Maximum number of client connections (`-c`).",
        "curr_connections": "Client connections.",
        "reply_bytes": "Bytes of large values in replies that are not sent yet.",
        "input_bytes": "Bytes of the buffers of large commands that are half received or in progress; at most 1 GiB.",
        "delete_bytes": "Bytes of deletes in progress behind others of their connection; about 64 MiB at most.",
        "pointer_size": "Bits of a pointer.",
        "total_connections": "Client connections accepted.",
        "rejected_connections": "Client connections closed at once because of `-c`: no other one could be closed.",
        "evicted_connections": "Client connections closed because of `-c`: the least recently used, for a new one.",
        "closed_foreign_protocol": "Client connections closed because the client spoke HTTP, or began a TLS handshake.",
        "closed_long_line": "Client connections closed because of a line over 2,048 bytes, or a multiget over 512 KB.",
        "output_bytes": "Bytes of large replies that clients have not read yet; at most 1 GiB.",
        "closed_output_bound": "Client connections closed because of the bound on `output_bytes`.",
        "idle_kicks": "Client connections closed because of `--idle-timeout`.",
        "closed_input_bound": "Client connections closed because of the bound on `input_bytes`.",
        "login_timeouts": "Client connections closed because the client did not log in within `--login-timeout-ms`.",
        "stalled_connections": "Client connections closed: replies not read, or a large command not ended in time.",
        "accept_errors": "Failures to accept a connection.",
        "auth_cmds": "Logins that were tried (`-Y`, `-S`).",
        "auth_errors": "Of these, those that were refused.",
        "cmd_(get|gat|lease_get)": "Keys requested by this verb.",
        "cmd_(lease_set|touch|delete)": "Requests of this verb.",
        "cmd_set": "`set`, `add`, `replace`, `append`, `prepend` and `cas`.",
        "cmd_arithmetic": "`incr` and `decr`.",
        "cmd_meta": "Meta commands.",
        "cmd_flush": "`flush_all`, refused ones included.",
        "get_hits": "Keys found, by any verb that gets.",
        "get_misses": "Keys not found, lease misses included.",
        "get_failures": "Keys that no server answered.",
        "delete_hits": "Deletes that found a value.",
        "delete_misses": "Deletes that found no value.",
        "delete_failures": "Deletes that no server confirmed.",
        "other_failures": "Other requests that no server answered, or that a server refused.",
        "touch_hits": "Touches that found their key.",
        "touch_misses": "Touches that did not find their key.",
        "lease_tokens": "Lease tokens passed on to clients.",
        "lease_hot_misses": "Lease-gets answered with: another client holds the lease.",
        "lease_sets_stored": "Lease-sets that stored a value.",
        "lease_sets_void": "Lease-sets refused, or kept only as stale, because the token was void.",
        "bad_commands": "Commands that are unknown or not allowed.",
        "batches": "Batches handed to the routes.",
        "batched_requests": "Requests in those batches.",
        "overlapped_batches": "Batches of deletes that did not wait for an earlier one of their connection.",
        "bytes_read": "Bytes from clients.",
        "bytes_written": "Bytes to clients.",
        "config_age": "Seconds since the configuration in force was loaded.",
        "config_last_attempt": "When a configuration was last tried, in seconds since 1970.",
        "config_last_success": "When a configuration was last loaded, in seconds since 1970.",
        "config_failures": "Configurations that were refused or could not be read.",
        "config_last_refusal": "Why the last one was refused.",
        "ssl_new_sessions": "TLS handshakes of clients.",
        "ssl_handshake_errors": "Failed TLS handshakes of clients.",
        "time_since_server_cert_refresh": "Seconds since the certificates were read.",
        "background_running": "Batches that run without a waiting client.",
        "background_fan_outs": "Batches of which some children ran on after the client's reply.",
        "background_copies": "Copies that no client waits for: shadows, fills of an L1.",
        "background_blocked": "Batches whose client waited because too many were in the background.",
        "background_dropped": "Copies dropped because too many were in the background.",
        "window_size": "Requests that may be outstanding (`--window`), over all threads.",
        "window_outstanding": "Requests in the window.",
        "window_waiting": "Requests that wait for the window.",
        "spool_deletes": "Deletes written to the spool.",
        "spool_repeated": "Deletes that were in the backlog already and were not written again.",
        "spool_recovered": "Spooled deletes of an earlier run, found on disk at the start.",
        "spool_replayed": "Spooled and recovered deletes that their server has applied since.",
        "spool_refused": "Spooled deletes that their server refused permanently.",
        "spool_overflows": "Servers whose backlog exceeded its limit and was replaced by a flush.",
        "spool_flushes": "Servers flushed instead of a replay.",
        "spool_append_failures": "Deletes that could not be written and failed.",
        "spool_refused_no_peer": "Deletes refused because a peer could not be informed.",
        "spool_forwarded": "Spooled deletes that a peer delivered.",
        "spool_replay_failures": "Failed attempts to replay.",
        "spool_pending": "The backlog: undelivered deletes.",
        "spool_pending_bytes": "Their bytes on disk.",
        "spool_servers_fenced": "Servers that are not read because of this router's backlog.",
        "spool_servers_fenced_by_peers": "Servers that are not read because of another router's backlog.",
        "spool_peers_unreachable": "Routers of `--spool-peers` that do not answer.",
        "resize_state": (
            "The step of a change of the configuration: `steady`, `covering`, `emptying`, `waiting_for_peers`, "
            "`recording`, `warming_up`, `draining`, `purging`."
        ),
        "resize_history": (
            "Where the history of changes is: `recorded` in etcd, for all routers of the cluster; `away` while etcd "
            "does not answer; `refused` if it refuses to write; `unused` if the configuration is not from etcd."
        ),
        "configurations_covered": "Configurations to whose servers deletes go; more than 1 during a change.",
        "configuration_changes": "How often another configuration came into force.",
        "former_owner_hits": "Values found at the former owners of keys that have moved.",
        "former_owner_misses": "Keys that have moved and were not at their former owners, either.",
        "former_owner_errors": "Reads that former owners did not answer in time.",
        "former_owner_fills": "Values copied from former owners to new ones.",
        "covering_deletes": "Deletes sent to servers that only other covered configurations name for their keys.",
        "servers_emptied": "Servers flushed before they joined a pool.",
        "lease_voids_refused": (
            "Attempts to void the leases of a server that has leases and does not know `lease-void-all`: upgrade it."
        ),
        "purge_keys_checked": "Keys listed at servers in search of copies that a former configuration placed.",
        "purge_keys_removed": "Keys deleted because only a former configuration placed them there.",
        "plain_lease_misses": "Keys whose misses are remembered for clients that know no leases.",
        "plain_lease_tokens": "Lease tokens remembered for clients that know no leases (`--leases`, `LeaseRoute`).",
        "plain_lease_hot_misses": "Misses of such clients while another client held the token, after the wait.",
        "plain_lease_hot_hits": "Misses of such clients that another client's fill ended while they were held back.",
        "plain_lease_stale_hits": "Misses of such clients that were answered by a stale value.",
        "plain_lease_sets_stored": "Sets of such clients stored under the token of their miss.",
        "plain_lease_sets_refused": (
            "Sets of such clients refused because a delete or another set came after their miss, or it had no token."
        ),
        "plain_lease_unleased_passed": "Sets without a miss on their connection that were passed on.",
        "plain_lease_unleased_refused": "Sets without a miss on their connection that were refused.",
        "plain_lease_unleased_added": "Sets without a miss on their connection that were passed on as `add`.",
        "plain_lease_misses_expired": "Remembered misses that were forgotten because no set came.",
        "plain_lease_misses_dropped": (
            "Misses that there was no space for: nothing is filled over their connections for a while."
        ),
        "spares_in_use": "Spares that serve in a server's place and can be read.",
        "spare_takeovers": "How often a spare began to serve.",
        "spare_returns": "How often a server got its place back.",
        "spare_refusals": "Spares not used because they could not be flushed.",
        "read_permits": "Permits given to clients that read servers directly.",
        "read_permits_refused": "Requests for such a permit that were refused.",
        "pools_failing_open": "Pools at their TKO limit (`tko_tracker`).",
        "start_gate_open": "0 while all but deletes wait for the invalidator (`--wait-for-invalidator`).",
        "start_gate_refused": "Requests refused meanwhile.",
        "num_servers": "Destinations: one for each server, timeout and thread.",
        "num_servers_new": "Of these, those that no request has needed yet.",
        "num_servers_up": "Those with a connection.",
        "num_servers_closed": "Those whose connection has ended.",
        "num_servers_down": "Those that are TKO, or could not connect.",
        "num_suspect_servers": "Servers that have failed since their last reply.",
        "num_(soft|hard)_tko_count": "Servers that are TKO after timeouts, or because they cannot be connected to.",
        "num_connections_opened": "Connections to servers made.",
        "num_connections_closed": "Of these, those that have ended.",
        "destination_pending_reqs": "Requests that wait to be written to a server.",
        "destination_inflight_reqs": "Requests written to servers and not answered.",
        "proxy_reqs_processing|proxy_request_num_outstanding": "The sum of both.",
        "proxy_reqs_waiting": "Always 0: requests are not held back before they are routed.",
        "duration_us|processing_time_us": "How long servers take to answer, with queues: a mean of moving averages.",
        "cmd_.*_count": "Clients' requests, keys of a get one by one.",
        "cmd_.*_out": "Requests to servers per second, without those of failover and shadows.",
        "cmd_.*_out_all": "Requests to servers per second.",
        "cmd_(gets|gats|add|replace|append|prepend|cas|incr|decr|metaget|flushall|flushre)": "As with `_count`.",
        "result_.*_all_count": "Requests to servers that ended this way.",
        "result_.*_count": "The same without those of failover and shadows.",
        "result_.*_all": "Requests to servers that ended this way, per second.",
        "result_.*": "The same without those of failover and shadows.",
        "request_sent|request_replied|request_success|request_error|final_result_error": "Its `_count`, per second.",
        "request_(sent|replied)_count": "Clients' requests.",
        "request_success_count": "Those that ended without an error.",
        "(request_error|final_result_error)_count": "Those that ended with an error.",
        "dev_null_requests": "Requests that a `DevNullRoute` has dropped.",
        "failover_all": "Requests sent to another child of a failover route, one for each child.",
        "failover_(all|.*_policy)_failed": "Those that failed there, too.",
        "failover_conditional": "Failures after which `failover_errors` or `failover_limit` kept a request from another"
        " child.",
        "failover_rate_limited": "Of these, those that `failover_limit` kept.",
        "failover_(inorder|least_failures|deterministic_order|rendezvous)_policy": "Requests that this policy sent to"
        " another child, one for each.",
        "failover_policy_result_error": "Failures of any child after which the policy is asked for the next one, but"
        " for those of servers that are TKO.",
        "failover_policy_tko_error": "The same of servers that are TKO.",
        "failover_num_collisions": "Draws of `DeterministicOrderPolicy` that picked a child that was asked before.",
        "failover_num_failed_domain_collisions": "Its draws of a child in a failure domain that had failed:"
        " passed over.",
        "failover_same_failure_domain": "Requests that it sent to a failure domain that had failed, as no other was"
        " left.",
        "redirected_lease_set_count": "`lease-set`s sent to the child that issued their token, instead of the first.",
        "configs_from_disk": "Configurations taken from a copy on disk (`--config-cache`, `--config-dump-root`).",
        "asynclog_requests": "Deletes that were spooled.",
        "asynclog_requests_rate": "The same per second.",
        "asynclog_spool_success_rate": "The share of the deletes to be spooled that were.",
        "commandargs": "The command line.",
        "parent_pid|start_time": "The process that started the router, and when it did.",
        "num_proxies": "Threads.",
        "num_clients|num_client_connections": "Client connections.",
        "fibers_allocated": "Always 0: requests are tasks of tokio.",
        "ps_num_(minor|major)_faults": "Page faults of the process.",
        "(ps_user_time_sec|rusage_user)": "Processor time in user mode, in seconds.",
        "(ps_system_time_sec|rusage_system)": "Processor time in the kernel, in seconds.",
        "ps_rss|ps_vsize": "Memory of the process, in bytes.",
    },
    "lookaside-router: stats detailed": {
        "cmd_out": "Requests sent to servers.",
        "cmd_out_writes": "Writes in which they were sent.",
        "cmd_bad": "Commands that are unknown or not allowed.",
        "cmd_.*_in": "Requests of this verb, keys of a get one by one.",
        "cmd_.*_miss": "Requests of this verb: not found, or not stored.",
        "cmd_.*_error": "Requests of this verb to which a server replied with an error.",
        "cmd_.*_unavailable": "Requests of this verb that no server answered.",
    },
    "lookaside-router: stats servers_detailed": {
        "state": "`up`, `soft_tko`, `hard_tko` or `fenced`.",
        "sent": "Requests sent.",
        "failed": "Batches that timed out, could not be sent, lost their connection or got a malformed reply.",
        "outstanding": "Requests queued or sent and not answered.",
        "refused_tko": "Requests refused because the server was TKO or fenced.",
        "refused_busy": "Requests refused because of `--target-max-pending`.",
        "writes": "Writes to the connections.",
        "timeouts": "Batches that timed out.",
        "late": "Batches whose reply came after they had timed out.",
        "connects": "Connections made.",
        "connect_failures": "Connections that could not be made.",
        "connections_lost": "Connections that ended with requests outstanding.",
        "probes": "Probes sent.",
        "tko": "How often the server became TKO.",
        "moves|relocations": "How often the server's name led to another address.",
        "threads": "Threads that have a connection to it.",
        "spooled_deletes": "Its backlog in the spool.",
        "flush_pending": "1 if it is to be flushed before it is read.",
        "replaced_by": "The spare that serves in its place.",
        "stands_in_for": "The server in whose place this spare serves.",
    },
    "lookaside-invalidator: stats": {
        "version": "The version.",
        "invalidations_total|cluster:NAME:invalidations": "Deletes acknowledged.",
        "invalidations_retried|cluster:NAME:retried": "Deletes not acknowledged and sent again.",
        "(cluster:NAME:)?flushes": "Flushes of the cluster acknowledged: demanded by rules, or after a lost position.",
        "(cluster:NAME:)?pool_flushes": 'Flushes of pools acknowledged (`otherwise = "flush-pools"`), once for each'
        " prefix of keys.",
        "(cluster:NAME:)?statements_without_rows": "MariaDB, MySQL: statements that change rows and are in the log"
        " without them; keys that only rows name are not deleted.",
        "(cluster:NAME:)?transactions_unfinished": "MariaDB, MySQL: transactions without an end in the log; their keys"
        " are deleted.",
        "(cluster:NAME:)?changes_without_gtid": "MariaDB, MySQL: statements and rows with keys outside of any"
        " transaction; these keys are deleted.",
        "unroutable|cluster:NAME:unroutable": "Deletes that the routers have no route for; not sent again.",
        "batches|cluster:NAME:batches": "Batches sent.",
        "(cluster:NAME:)?keys_rejected": "Keys of commits that no server accepts (too long, with white space);"
        " ignored.",
        "(cluster:NAME:)?lingered_batches": "Batches that waited for more keys while another one was unanswered"
        " (`--linger-ms-max`).",
        "(cluster:NAME:)?duplicates_removed": "Keys of commits that needed no delete of their own, as a pending one"
        " covers them.",
        "(cluster:NAME:)?deletes_sent": "Deletes sent to routers: also copies for a second router, and retries.",
        "(cluster:NAME:)?delete_bytes": "The bytes of these.",
        "(cluster:NAME:)?packets": "The packets that these need, each of 1,448 bytes of data at most.",
        "(cluster:NAME:)?packets_unbatched": "The packets if each delete of each commit were sent by itself.",
        "keys_per_batch": "Mean number of keys in a batch.",
        "keys_per_packet": "`deletes_sent` divided by `packets`.",
        "bytes_per_packet": "`delete_bytes` divided by `packets`.",
        "cluster:NAME:oldest_pending_ms": "Age of the oldest commit with a pending delete.",
        "cluster:NAME:source_lag_ms": "For how long the saved position has been behind the end of the log; `-` while"
        " that is unknown.",
        "cluster:NAME:source_lag_transactions": "Transactions between the two (SQLite: rows); `-` for PostgreSQL.",
        "cluster:NAME:source_lag_transaction_ids": "PostgreSQL: about how many transaction ids were given out between"
        " the two; `-` for others.",
        "cluster:NAME:source_lag_bytes": "Bytes of the log between the two; `-` for SQLite, and while that is unknown.",
        "source_failures|cluster:NAME:source_failures": "Failures to read the commit log.",
        "positions_lost|cluster:NAME:positions_lost": "How often the log no longer reached back to the position.",
        "(cluster:NAME:)?flush_failures": "How often no router flushed the cluster after a lost position; retried.",
        "(cluster:NAME:)?save_failures": "Failures to save a position.",
        "role": "`active` or `standby` (`--shared-state`); `active` without a standby.",
        "renewal_age_ms": "Milliseconds since the active one last wrote the shared state; `-` of a standby, or without"
        " `--shared-state`.",
        "takeovers": "How often this invalidator became active (`--shared-state`).",
        "source_lookup_failures_not_connected": "Look-ups of the end of the log that made no connection.",
        "source_lookup_failures_unreachable": "Those that the database did not answer.",
        "source_lookup_failures_refused": "Those that the database refused, as it would a start: a privilege, a login.",
        "source_lookup_failures_unsafe_settings": "Those that found unsafe settings (`source_unusable`).",
        "source_lookup_failures_incomplete": "Those that could not look up bytes.",
        "takeovers_at_session_end": "How often it did because the session of the former active one had ended.",
        "takeovers_at_hang": "How often it did because the former active one had shown no sign of life.",
        "session_lock": "1 of the active one while its session holds a lock, and of a standby that sees it: it takes"
        " over at once.",
        "shared_state_failures": "Failures to read or write the shared state.",
        "shared_options_differ": "1 if this is a standby and the active invalidator has other clusters, rules or "
        "another slot (`--shared-state`).",
        "shared_state_why": "The last failure; absent after a success.",
        "spool_segments": "PostgreSQL: files of the spool. This and the others of the spool are 0 or `-` without one.",
        "spool_bytes": "Their bytes (`--spool-bytes-max`).",
        "spool_commits": "Commits written to the spool.",
        "spool_failures": "Failures to write or sync the spool; nothing is read meanwhile.",
        "spool_gaps": "How often the log no longer reached back to the end of the spool.",
        "spool_kept_segments": "Segments that every cluster has acknowledged, kept for a replay"
        " (`--spool-keep-hours`).",
        "spool_kept_bytes": "Their bytes (`--spool-keep-bytes`).",
        "spool_kept_discarded": "Kept segments that were removed because the disk was full.",
        "spool_discarded_segments": "Segments that were removed because the spool was full, and that clusters needed.",
        "spool_keys_rejected": "Keys of commits that no server accepts, found while the log was read into the spool;"
        " part of `keys_rejected`.",
        "spool_messages_untransactional": "Messages of the log that are not part of a transaction; ignored.",
        "spool_messages_oversized": "Messages and rows of the log of over 16 MiB; ignored.",
        "spool_position": "The position up to which the log was read.",
        "spool_synced_position": "The position up to which the spool survives a crash; the log is released up to here.",
        "(cluster:NAME:)?hedged_batches": "Batches that a second router got too (`--hedge-delay-ms`).",
        "(cluster:NAME:)?rerouted": "Deletes that one router refused and that were sent to another one at once.",
        "(cluster:NAME:)?router_refusals": "Deletes that one router refused and another one applied.",
        "(cluster:NAME:)?router_demotions": "How often a router was asked after the others for a while, as it did not"
        " apply what another one applied.",
        "(cluster:NAME:)?router_failures": "How often a router stopped answering.",
        "cluster:NAME:routers_tko": "Routers that do not answer; batches go to the others first.",
        "cluster:NAME:router_configs": "Different configurations of the cluster's routers: 1, or 0 if there is one"
        " router; more while a change is loaded.",
        "cluster:NAME:recoveries": "How often a router answered after none had; failed deletes are then sent at once.",
        "cluster:NAME:start_gates_opened": "How often a router was notified that it may serve.",
        "rules": "Row rules in use (`--rules`).",
        "rules_uncovered": "PostgreSQL: rules whose table is missing, or not all of whose changes are in the log.",
        "outboxes_unpublished": "PostgreSQL: outbox tables whose rows are not in the log: their keys are not deleted.",
        "rules_loaded": "How often the rule file was loaded.",
        "rules_refused": "How often a changed rule file was refused; the rules before it stay.",
        "row_changes": "Changes of rows and tables with a rule. This and the following count once for each cluster.",
        "row_keys": "Keys that rules named.",
        "row_keys_refused": "Keys by rules that no server accepts: over 250 bytes, spaces, control characters.",
        "row_changes_inexpressible": "Changes of which not all keys can be written.",
        "row_changes_without_key": "Changes that named no key.",
        "row_flushes": "Changes for which rules demanded a flush of the cluster or of pools (`otherwise`).",
        "commits_in_all_clusters": "Commits that all clusters have applied, as far as they were followed.",
        "commits_untracked": "Commits not followed any more because too many were.",
        "connections_displaced": "Connections of `--listen` closed because one more than 64 was opened.",
        "latency_us_(p50|p99|max)": "Microseconds from a commit's logged time to the last cluster's acknowledgement.",
        "cluster:NAME:latency_us_.*": "Microseconds from a commit's logged time to this cluster's acknowledgement.",
        "cluster:NAME:state": "`starting`, `running`, `retrying`, `blocked`, `source_failing`, `flush_failing`, "
        "`stopped` or `standby`.",
        "cluster:NAME:why": "Why it is not `running`.",
        "cluster:NAME:position": "The position that a restart resumes from.",
        "cluster:NAME:pending_keys": "Deletes not yet acknowledged.",
        "cluster:NAME:retry_queue_keys": "Keys whose deletes failed and are retried.",
        "cluster:NAME:retry_queue_bytes": "Their bytes.",
        "cluster:NAME:commits": "Commits whose deletes were all acknowledged.",
        "cluster:NAME:commits_merged": "Commits merged with others because many were pending.",
    },
}  # fmt: skip


def meaning_of(group: str, name: str, helps: dict[str, str]) -> str:
    """What a statistic means; empty if that is unknown."""
    for expression, meaning in MEANINGS.get(group, {}).items():
        if re.fullmatch(expression, name):
            return meaning
    program, _, command = group.partition(": ")
    return helps.get(f"{program.replace('-', '_')}_{name}", "") if command == "stats" else ""


def statistics(seen: Observed) -> Page:
    """The page of statistics."""
    helps = {name: meaning for metrics in seen.metrics.values() for name, _, _, meaning in metrics}
    tables = [
        Table(group, ("name", "meaning"), [(name, meaning_of(group, name, helps)) for name in names])
        for group, names in seen.stats.items()
    ]
    head = (
        "What `stats` and its groups print. Some lines appear only with an option or in a state. Further groups:"
        " the server's `stats detail dump` and `stats cachedump`"
        " ([metrics](../operating/metrics.md#inspecting-one-server));"
        " the router's `all` (as `stats`), `cmd-in`, `cmd-out`, `cmd-error` and `count` (parts of `detailed`) and"
        " `servers` and"
        " `suspect_servers` (a line for each server, in mcrouter's format)."
    )
    return Page("statistics", "Statistics", head, tables)


def metrics(seen: Observed) -> Page:
    """The page of metrics."""
    columns = ("metric", "type", "labels", "meaning")
    tables = [Table(program, columns, rows) for program, rows in seen.metrics.items()]
    head = "What `GET /metrics` prints with `--metrics-address`; [metrics](../operating/metrics.md) explains it."
    return Page("metrics", "Metrics", head, tables)


def pages(folder: Path) -> list[Page]:
    """All pages, from the programs that are built."""
    seen = observe(folder)
    return [flags(), metrics(seen), statistics(seen)]


def without_meaning(page: Page) -> list[str]:
    """The names on a page whose meaning is unknown."""
    return [f"{table.heading}: {row[0]}" for table in page.tables for row in table.rows if not row[-1]]


def main() -> int:
    """Writes the pages."""
    REFERENCE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        written = pages(Path(folder))
    unknown = []
    for page in written:
        (REFERENCE / f"{page.name}.md").write_text(page.markdown())
        unknown += without_meaning(page)
    for name in unknown:
        print(f"no meaning: {name} (add it to MEANINGS in {Path(__file__).name})", file=sys.stderr)
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
