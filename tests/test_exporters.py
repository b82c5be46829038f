"""What monitoring programs read of memcached: the names, the types, and the counters that alone say what happened.

The names are those that the public exporters for Prometheus and the agents of monitoring systems document.
"""

import re
import socket

import pytest
from processes import Server, connect, eventually, stats

INTEGER, DECIMAL, SWITCH = r"\d+", r"\d+\.\d+", r"yes|no|on|off"

GENERAL = {
    INTEGER: (
        "pid uptime time pointer_size max_connections curr_connections total_connections rejected_connections "
        "connection_structures response_obj_oom response_obj_count response_obj_bytes read_buf_count "
        "read_buf_bytes read_buf_bytes_free read_buf_oom reserved_fds cmd_get cmd_set cmd_flush cmd_touch cmd_meta "
        "get_hits get_misses get_expired get_flushed delete_misses delete_hits incr_misses incr_hits decr_misses "
        "decr_hits cas_misses "
        "cas_hits cas_badval touch_hits touch_misses store_too_large store_no_memory auth_cmds auth_errors bytes_read "
        "bytes_written limit_maxbytes accepting_conns listen_disabled_num time_in_listen_disabled_us threads "
        "conn_yields hash_power_level hash_bytes hash_is_expanding slab_reassign_rescues slab_reassign_running "
        "slabs_moved lru_crawler_running lru_crawler_starts lru_maintainer_juggles malloc_fails log_worker_dropped "
        "log_worker_written log_watcher_skipped log_watcher_sent log_watchers bytes curr_items total_items "
        "slab_global_page_pool expired_unfetched evicted_unfetched evicted_active evictions reclaimed "
        "crawler_reclaimed crawler_items_checked lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru "
        "direct_reclaims lru_bumps_dropped"
    ),
    DECIMAL: "rusage_user rusage_system",
    r"\d+\.\d+\.\d+": "version lookaside_version",
}
SETTINGS = {
    INTEGER: (
        "maxbytes maxconns tcpport udpport verbosity oldest num_threads item_size_max tcp_backlog hashpower_init "
        "slab_chunk_max lru_crawler_sleep lru_crawler_tocrawl tail_repair_time hot_lru_pct warm_lru_pct temporary_ttl "
        "idle_timeout watcher_logbuf_size worker_logbuf_size reqs_per_event chunk_size slab_automove "
        "slab_automove_window"
    ),
    DECIMAL: "growth_factor hot_max_factor warm_max_factor slab_automove_ratio",
    SWITCH: (
        "evictions detail_enabled cas_enabled auth_enabled_sasl maxconns_fast slab_reassign lru_crawler flush_enabled "
        "dump_enabled lru_maintainer_thread lru_segmented temp_lru track_sizes inline_ascii_response shutdown_command"
    ),
}
ITEMS = (
    "number number_hot number_warm number_cold age_hot age_warm age mem_requested evicted evicted_nonzero evicted_time "
    "outofmemory tailrepairs reclaimed expired_unfetched evicted_unfetched evicted_active crawler_reclaimed "
    "crawler_items_checked lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru direct_reclaims hits_to_hot "
    "hits_to_warm hits_to_cold hits_to_temp"
)
SLABS = (
    "chunk_size chunks_per_page total_pages total_chunks used_chunks free_chunks free_chunks_end get_hits cmd_set "
    "delete_hits incr_hits decr_hits cas_hits cas_badval touch_hits"
)
HEADER_BYTES = 16


def ask(port: int, request: bytes, end: bytes = b"END\r\n") -> str:
    """The reply to a request, up to `end`."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        received = b""
        while not received.endswith(end):
            piece = connection.recv(1 << 16)
            assert piece, received
            received += piece
        return received.decode()


def listed(port: int, which: bytes) -> dict[str, str]:
    """The lines of a `stats` command."""
    lines = ask(port, b"stats %s\r\n" % which).splitlines()[:-1]
    return dict(line.removeprefix("STAT ").split(" ", 1) for line in lines)


@pytest.fixture
def crawl_free(tmp_path):
    """A server whose items have no timers, and no stale values: they stay until something finds that they expired."""
    server = Server("crawl-free", tmp_path, "--transient-seconds", "0", "--stale-seconds", "0")
    yield server
    server.stop()


@pytest.mark.parametrize(("which", "types"), [(b"", GENERAL), (b"settings", SETTINGS)])
def test_every_name_has_the_type_that_exporters_parse(server, which, types):
    connect(server.port).set("key", b"value")
    values = listed(server.port, which)
    for pattern, names in types.items():
        for name in names.split():
            assert re.fullmatch(pattern, values.get(name, "missing")), f"{name}: {values.get(name)}"


def test_each_slab_class_has_every_name(server):
    connect(server.port).set("key", b"value")
    for which, form, names in ((b"items", "items:{}:{}", ITEMS), (b"slabs", "{}:{}", SLABS)):
        values = listed(server.port, which)
        for name in names.split():
            assert values[form.format(1, name)].isdigit(), name
    assert listed(server.port, b"slabs")["active_slabs"] == "1"


def test_an_empty_server_uses_no_bytes(server):
    values = stats(server.port)
    assert values["bytes"] == values["curr_items"] == "0" and int(values["memory_bytes"]) > 0
    client = connect(server.port)
    client.set("key", b"x" * 100)
    assert stats(server.port)["bytes"] == str(HEADER_BYTES + 103), "header, key and value"
    client.delete("key")
    client.flush_all()
    assert stats(server.port)["bytes"] == "0"


def test_the_version_is_digits_and_dots_alone(server):
    assert ask(server.port, b"version\r\n", b"\r\n") == "VERSION 1.6.45\r\n"
    values, settings = stats(server.port), listed(server.port, b"settings")
    assert values["version"] == "1.6.45" and values["lookaside_version"] == settings["lookaside_version"]


def test_large_values_count_whole_in_mem_requested(server):
    client = connect(server.port)
    for number in range(33):
        client.set(f"key:{number}", b"x" * 60_000)
    values = listed(server.port, b"items")
    requested = sum(int(value) for name, value in values.items() if name.endswith(":mem_requested"))
    assert requested == int(stats(server.port)["bytes"]) and 1_980_000 < requested < 1_990_000


def test_gets_of_what_has_expired_or_was_flushed(server, crawl_free):
    for port in (server.port, crawl_free.port):
        client = connect(port)
        for number in range(10):
            client.set(f"flushed:{number}", b"x")
        client.flush_all()
        for number in range(10):
            client.set(f"brief:{number}", b"x", expire=1)
        eventually(lambda client=client: client.get("brief:9") is None, "they expire")
        for number in range(9):
            assert client.get(f"brief:{number}") is None and client.get(f"brief:{number}") is None
            assert client.get(f"flushed:{number}") is None
        values = stats(port)
        assert (values["get_expired"], values["get_flushed"]) == ("10", "9")
        assert int(values["get_misses"]) >= 28, "each is a miss too"
        client.close()


def test_stores_that_are_too_large(server):
    value = b"x" * 1_100_000
    requests = [
        b"set key 0 0 1100000\r\n%s\r\n" % value,
        b"set key 0 0 1100000 noreply\r\n%s\r\nmn\r\n" % value,
        b"ms key 1100000\r\n%s\r\n" % value,
        b"add key 0 0 1048570\r\n%s\r\n" % value[:1_048_570],
    ]
    for request in requests:
        ask(server.port, request, b"\r\n")
    assert stats(server.port)["store_too_large"] == str(len(requests))


def test_a_store_over_an_item_that_has_expired_reclaims_it(crawl_free):
    client = connect(crawl_free.port)
    client.set("key", b"x", expire=-1)
    client.set("key", b"y")
    assert stats(crawl_free.port)["reclaimed"] == "1"


def test_a_crawl_reclaims_what_has_expired(crawl_free):
    port, client = crawl_free.port, connect(crawl_free.port)
    brief = b"".join(b"set brief:%d 0 1 1 noreply\r\nx\r\n" % number for number in range(20_000))
    lasting = b"".join(b"set lasting:%d 0 0 1 noreply\r\nx\r\n" % number for number in range(1_000))
    ask(port, brief + lasting + b"mn\r\n", b"MN\r\n")
    eventually(lambda: client.get("brief:19999") is None, "the last of them expires")
    before = stats(port)
    assert before["curr_items"] == "20999" and before["crawler_reclaimed"] == before["lru_crawler_starts"] == "0"
    assert ask(port, b"lru_crawler crawl all\r\n", b"\r\n") == "OK\r\n"
    eventually(lambda: stats(port)["lru_crawler_running"] == "0", "the crawl ends")
    values = stats(port)
    assert values["curr_items"] == "1000" and values["crawler_reclaimed"] == "19999"
    assert (values["crawler_items_checked"], values["lru_crawler_starts"]) == ("20999", "1")
    assert ask(port, b"lru_crawler crawl 0\r\n", b"\r\n") == "BADCLASS invalid class id\r\n"
    assert ask(port, b"lru_crawler disable\r\nlru_crawler crawl all\r\n", b"disabled\r\n").startswith("OK")


def test_turns_that_end_with_input_left_are_counted(server):
    client = connect(server.port)
    client.set("key", b"x" * 1_000)
    assert stats(server.port)["conn_yields"] == "0"
    requests = b"get key\r\n" * 10_000
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(requests)
        received = 0
        while received < 10_000 * len(b"VALUE key 0 1000\r\n" + b"x" * 1_000 + b"\r\nEND\r\n"):
            received += len(connection.recv(1 << 20))
    assert int(stats(server.port)["conn_yields"]) > 0
