"""`-m` holds whatever is stored. `cache_memlimit` moves it: a lowered limit gives memory back to the system, a raised
one uses it again."""

import random
import socket
from collections.abc import Iterator

import pytest
from load import MEGABYTE, LatencyProbe, read, resident_bytes
from processes import Server, eventually, stats

# `-m` bounds items, their headers and the index. The process may have this share more, beside what it has when empty:
# buffers of its threads, lists that grow with the index.
OVER_LIMIT = 0.05

# The limit is stored this many times over.
TIMES_LIMIT = 10

# Latency bounds of another client while memory is full: median and maximum.
WAIT_S_P50, WAIT_S_MAX = 0.1, 5.0


def ask(port: int, request: bytes) -> bytes:
    """One line for one line."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        return connection.recv(200)


def fill(port: int, name: bytes) -> None:
    """More than 64 MB."""
    commands = (b"set %s:%d 0 0 9000 noreply\r\n%s\r\n" % (name, number, b"x" * 9_000) for number in range(8_000))
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for command in commands:
            connection.sendall(command)
        connection.sendall(b"mn\r\n")
        assert connection.recv(100) == b"MN\r\n"


def test_a_lowered_limit_gives_memory_back(tmp_path):
    server = Server("server", tmp_path)
    try:
        fill(server.port, b"before")
        full_bytes = resident_bytes(server)
        assert full_bytes > 50 * MEGABYTE
        assert ask(server.port, b"cache_memlimit 257\r\n").startswith(b"MEMLIMIT_ADJUST_FAILED")
        assert ask(server.port, b"cache_memlimit 7\r\n").startswith(b"MEMLIMIT_TOO_SMALL")
        assert ask(server.port, b"cache_memlimit 16\r\n") == b"OK\r\n"
        assert int(stats(server.port)["limit_maxbytes"]) == 16 * MEGABYTE
        eventually(lambda: int(stats(server.port)["memory_bytes"]) <= 16 * MEGABYTE, "pages are cleared")
        assert resident_bytes(server) < full_bytes - 40 * MEGABYTE
        assert 1_000 < int(stats(server.port)["curr_items"]) < 2_000
        # Memory freed by a flush is returned too, and can be used again when the limit is raised.
        assert ask(server.port, b"cache_memlimit 64\r\n") == b"OK\r\n"
        fill(server.port, b"after")
        assert int(stats(server.port)["memory_bytes"]) > 50 * MEGABYTE
        assert ask(server.port, b"flush_all\r\n") == b"OK\r\n"
        assert ask(server.port, b"cache_memlimit 16\r\n") == b"OK\r\n"
        assert resident_bytes(server) < full_bytes - 40 * MEGABYTE
    finally:
        server.stop()


def test_the_limit_is_raised_without_a_restart(tmp_path):
    server = Server("server", tmp_path, "-m", "16")
    try:
        empty_bytes = resident_bytes(server)
        fill(server.port, b"before")
        full = stats(server.port)
        assert int(full["memory_bytes"]) <= 16 * MEGABYTE and int(full["evictions"]) > 0
        assert ask(server.port, b"cache_memlimit 64\r\n") == b"OK\r\n", "four times -m"
        assert ask(server.port, b"cache_memlimit 65\r\n").startswith(b"MEMLIMIT_ADJUST_FAILED")
        assert stats(server.port)["limit_maxbytes"] == str(64 * MEGABYTE)
        fill(server.port, b"after")
        raised = stats(server.port)
        assert 60 * MEGABYTE < int(raised["memory_bytes"]) <= 64 * MEGABYTE
        assert resident_bytes(server) - empty_bytes <= 64 * MEGABYTE * (1 + OVER_LIMIT)
        assert int(raised["curr_items"]) > 3 * int(full["curr_items"])
        assert ask(server.port, b"cache_memlimit 16\r\n") == b"OK\r\n"
        eventually(lambda: int(stats(server.port)["memory_bytes"]) <= 16 * MEGABYTE, "pages are cleared")
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("arguments", "highest"), [(["--memory-limit-max", "100"], 100), (["--memory-limit-max", "0"], 16)]
)
def test_the_highest_limit_can_be_chosen(tmp_path, arguments, highest):
    server = Server("server", tmp_path, "-m", "16", *arguments)
    try:
        assert ask(server.port, b"cache_memlimit %d\r\n" % (highest + 1)).startswith(b"MEMLIMIT_ADJUST_FAILED")
        assert ask(server.port, b"cache_memlimit %d\r\n" % highest) == b"OK\r\n"
    finally:
        server.stop()


def stores(sizes: list[int], exptimes: list[int], total_bytes: int) -> Iterator[bytes]:
    """Batches of sets of distinct keys of `total_bytes` bytes in all. The same sequence each time."""
    dice, value, stored, number = random.Random(6), b"v" * max(sizes), 0, 0
    while stored < total_bytes:
        commands = []
        commands_bytes = 0
        while commands_bytes < MEGABYTE:
            size = dice.choice(sizes)
            commands.append(b"set key:%d 0 %d %d noreply\r\n" % (number, dice.choice(exptimes), size))
            commands += (value[:size], b"\r\n")
            commands_bytes += size + 10
            number += 1
        stored += commands_bytes
        yield b"".join(commands)


@pytest.mark.parametrize(
    ("megabytes", "sizes", "exptimes"),
    [
        pytest.param(8, [10, 60, 200, 1_000, 3_000], [0], id="small"),
        pytest.param(32, [20, 100, 500, 1_000, 2_000, 5_000, 20_000, 100_000], [0, 0, 5, 1_000], id="mixed"),
        pytest.param(64, [2_000, 300_000, 600_000, 1_000_000], [0], id="large"),
        pytest.param(8, [100, 1_000, 3_000], [1, 2, 3, 60], id="short-lived"),
    ],
)
def test_ten_times_the_limit_in_distinct_keys(tmp_path, megabytes, sizes, exptimes):
    server = Server("server", tmp_path, "-m", str(megabytes))
    try:
        probe = LatencyProbe(server.port)
        empty, limit, most = resident_bytes(server), megabytes * MEGABYTE, 0
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            for commands in stores(sizes, exptimes, TIMES_LIMIT * limit):
                connection.sendall(commands)
                probe.store()
                most = max(most, resident_bytes(server))
            connection.sendall(b"set last 0 0 4\r\nlast\r\nget last\r\n")
            answer = b"STORED\r\nVALUE last 0 4\r\nlast\r\nEND\r\n"
            assert read(connection, len(answer)) == answer
        values = stats(server.port)
        assert most <= empty + limit * (1 + OVER_LIMIT), f"{(most - empty) / limit:.3f} of the limit"
        assert int(values["bytes"]) < int(values["memory_bytes"]) <= limit
        # Memory is full, and holds the items that were stored last.
        assert most > empty + limit * 0.9, f"{(most - empty) / limit:.3f} of the limit"
        assert int(values["evictions"]) > 0 and int(values["curr_items"]) > 0
        assert probe.waited_at_most(0.5) < WAIT_S_P50 and probe.waited_at_most(1) < WAIT_S_MAX
    finally:
        assert server.stop() == 0
