"""Crawls over all keys: `lru_crawler metadump` and `mgdump`, `stats cachedump`, `stats workingset`."""

import re
import socket

import pytest
from processes import Server, connect, eventually, stats

ITEMS = 20_000
LINE = re.compile(rb"key=(\S+) exp=(-?\d+) la=(\d+) cas=(\d+) fetch=(yes|no) cls=(\d+) size=(\d+) flags=(\d+) \n")


@pytest.fixture
def server(tmp_path):
    server = Server("server", tmp_path)
    yield server
    server.stop()


def ask(port: int, request: bytes, end: bytes) -> bytes:
    """The server's reply up to `end`."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        return read_until(connection, end)


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """All received bytes up to and including `end`."""
    received = bytearray()
    while not received.endswith(end):
        piece = connection.recv(1 << 16)
        assert piece, f"hung up after {bytes(received[-200:])}"
        received += piece
    return bytes(received)


def fill(port: int, count: int, prefix: str = "user", exptime: int = 0) -> None:
    """`count` small items with flags 5, stored in one go."""
    commands = (f"set {prefix}:{number} 5 {exptime} 5 noreply\r\nvalue\r\n" for number in range(count))
    ask(port, "".join(commands).encode() + b"mn\r\n", b"MN\r\n")


def test_every_key_is_listed(server):
    fill(server.port, ITEMS)
    for which in (b"all", b"hash"):
        listed = ask(server.port, b"lru_crawler metadump %s\r\n" % which, b"END\r\n")
        assert listed.startswith(b"OK\r\n")
        lines = LINE.findall(listed)
        assert {line[0] for line in lines} == {b"user%%3A%d" % number for number in range(ITEMS)}
        assert {(line[1], line[4], line[7]) for line in lines} == {(b"-1", b"no", b"5")}
        assert len(lines) == ITEMS
    listed = ask(server.port, b"lru_crawler mgdump all\r\n", b"EN\r\n")
    assert sorted(listed.split(b"\r\n")) == sorted(
        [b"", b"OK", b"EN", *(b"mg user:%d" % number for number in range(ITEMS))]
    )


def test_sizes_are_counted_where_that_was_asked_for(server, tmp_path):
    assert ask(server.port, b"stats sizes\r\n", b"END\r\n") == b"STAT sizes_status disabled\r\nEND\r\n"
    tracking = Server("tracking", tmp_path, "-o", "track_sizes")
    try:
        port = tracking.port
        assert ask(port, b"stats sizes\r\n", b"END\r\n") == b"END\r\n"
        fill(port, ITEMS)
        client = connect(port)
        client.set("large", b"x" * 600_000)
        values = ask(port, b"stats sizes\r\nversion\r\n", b"VERSION 1.6.45\r\n").split(b"END\r\n")[0]
        sizes = {int(size): int(count) for size, count in re.findall(rb"STAT (\d+) (\d+)\r\n", values)}
        assert sum(sizes.values()) == ITEMS + 1 and all(size % 32 == 0 for size in sizes)
        assert list(sizes) == sorted(sizes) and 600_000 < max(sizes) < 601_000 and min(sizes) <= 64
        client.delete("large")
        assert max(map(int, re.findall(rb"STAT (\d+)", ask(port, b"stats sizes x\r\n", b"END\r\n")))) < 600_000
        for word in (b"sizes_enable", b"sizes_disable"):
            assert ask(port, b"stats %s\r\n" % word, b"\r\n") == b"ERROR\r\n"
        assert client.stats("settings")[b"track_sizes"] in (True, b"yes")
    finally:
        tracking.stop()


def test_item_fields_and_commands_after_a_crawl(server):
    now = int(stats(server.port)["time"])
    ask(server.port, b"ms AGI= 3 b T100 E7 F1\r\nabc\r\nmg AGI= b\r\nmn\r\n", b"MN\r\n")
    listed = ask(server.port, b"lru_crawler metadump hash\r\nget a\r\n", b"END\r\nEND\r\n")
    key, end, access, cas, fetched, slab_class, size, flags = LINE.search(listed).groups()
    assert (key, cas, fetched, flags) == (b"%00b", b"7", b"yes", b"1")
    assert 0 <= int(end) - now - 100 <= 5 and 0 <= int(access) - now <= 5
    slabs = connect(server.port).stats("slabs")
    assert int(size) <= int(slabs[b"%s:chunk_size" % slab_class])
    assert ask(server.port, b"lru_crawler mgdump %s\r\n" % slab_class, b"EN\r\n") == b"OK\r\nmg AGI= b\r\nEN\r\n"
    other = b"%d" % (int(slab_class) + 1)
    assert ask(server.port, b"lru_crawler metadump %s\r\n" % other, b"END\r\n") == b"OK\r\nEND\r\n"
    # Only keys that a get can name, and no more than asked for.
    fill(server.port, 9)
    dump = ask(server.port, b"stats cachedump %s 3\r\n" % slab_class, b"END\r\n")
    assert len(re.findall(rb"ITEM user:\d \[5 b; 0 s\]\r\n", dump)) == 3 and dump.count(b"ITEM") == 3
    assert ask(server.port, b"stats cachedump %s 0\r\n" % slab_class, b"END\r\n").count(b"ITEM") == 9
    assert ask(server.port, b"stats cachedump 200 0\r\n", b"END\r\n") == b"END\r\n"


def test_an_unread_crawl_does_not_block_other_clients(server):
    fill(server.port, ITEMS)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        slow.sendall(b"lru_crawler metadump all\r\n" * 3 + b"version\r\n")
        # The only worker serves others, and the index grows during the crawl.
        other = connect(server.port)
        for number in range(200):
            other.set(f"meanwhile:{number}", "x")
            assert other.get(f"meanwhile:{number}") == b"x"
        fill(server.port, ITEMS, prefix="later")
        listed = read_until(slow, b"END\r\nVERSION " + other.version() + b"\r\n")
    walks = listed.split(b"END\r\n")[:3]
    for walk in walks:
        keys = [line[0] for line in LINE.findall(walk)]
        assert {b"user%%3A%d" % number for number in range(ITEMS)} <= set(keys)


def test_too_many_concurrent_crawls_are_refused(server):
    fill(server.port, ITEMS)
    connections = []
    try:
        for _ in range(20):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(b"lru_crawler metadump all\r\n")
            connections.append(connection)
        firsts = [connection.recv(4) for connection in connections]
        assert firsts.count(b"OK\r\n") == 16 and firsts.count(b"BUSY") == 4
    finally:
        for connection in connections:
            connection.close()
    # Crawls end with their connections.
    eventually(lambda: ask(server.port, b"lru_crawler metadump 99\r\n", b"\r\n").startswith(b"OK"), "a crawl can start")


def test_the_working_set_by_key_prefix(server):
    fill(server.port, 3_000, prefix="user")
    fill(server.port, 1_000, prefix="page")
    client = connect(server.port)
    client.set("alone", "x" * 1_000)
    values = working_set(server.port, b"stats workingset 600 1\r\n")
    assert values["sampled"] == 4_001 and values["items"] == 4_001
    assert (values["prefix:user:items"], values["prefix:page:items"], values["prefix:(none):items"]) == (
        3_000,
        1_000,
        1,
    )
    assert values["bytes"] == sum(value for name, value in values.items() if re.match(r"prefix:.*:bytes", name))
    assert values["items"] == sum(value for name, value in values.items() if re.match(r"class:\d+:items", name))
    sampled = working_set(server.port, b"stats workingset 600 10\r\n")
    assert 250 < sampled["sampled"] < 600
    assert sampled["items"] == 10 * sampled["sampled"]
    assert ask(server.port, b"stats workingset 0\r\n", b"\r\n").startswith(b"CLIENT_ERROR usage")


def working_set(port: int, request: bytes) -> dict[str, int]:
    """The answer to a `stats workingset`."""
    lines = ask(port, request, b"END\r\n").decode().splitlines()
    return {name: int(value) for _, name, value in (line.split(" ") for line in lines[:-1])}


def test_dumping_can_be_forbidden(tmp_path):
    server = Server("server", tmp_path, "-X")
    try:
        assert ask(server.port, b"lru_crawler metadump all\r\n", b"\r\n") == b"ERROR metadump not allowed\r\n"
        refusal = b"CLIENT_ERROR stats cachedump not allowed\r\n"
        assert ask(server.port, b"stats cachedump 1 0\r\n", b"\r\n") == refusal
    finally:
        server.stop()


def test_slabs_reassign_moves_pages_and_stats_show_it(tmp_path):
    server = Server("server", tmp_path, "-o", "slab_automove=0", "-f", "1.5", "-n", "48")
    try:
        client = connect(server.port)
        assert client.stats("settings")[b"growth_factor"] in (1.5, b"1.50")
        fill(server.port, ITEMS)
        client.set("large", "x" * 2_000)
        slabs = client.stats("slabs")
        small, large = sorted({int(name.split(b":")[0]) for name in slabs if b":" in name})
        pages = int(slabs[b"%d:total_pages" % small])
        assert pages > 1
        move = b"slabs reassign %d %d\r\n"
        assert ask(server.port, move % (large, small), b"\r\n").startswith(b"NOSPARE")
        assert ask(server.port, move % (small, large), b"\r\n") == b"OK\r\n"
        assert ask(server.port, move % (small, 255), b"\r\n").startswith(b"BADCLASS")
        after = client.stats("slabs")
        assert int(after[b"%d:total_pages" % small]) == pages - 1
        assert int(after[b"%d:total_pages" % large]) == 2
        assert int(stats(server.port)["slabs_moved"]) == 1
        items = client.stats("items")
        assert int(items[b"items:%d:number" % large]) == 1
        assert int(items[b"items:%d:evicted" % small]) == int(stats(server.port)["evictions"]) > 0
        assert str(client.stats("settings")[b"slab_automove"]) in ("0", "b'0'", "False")
        assert ask(server.port, b"slabs automove 1\r\n", b"\r\n") == b"OK\r\n"
        assert str(client.stats("settings")[b"slab_automove"]) in ("1", "b'1'", "True")
    finally:
        server.stop()
