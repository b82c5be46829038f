"""Storms: connections that come and go by the thousand, more of them than the limit, and random bytes.

Behind each the server has as many descriptors as before, its memory back, and the probe was served all the time.
"""

import contextlib
import random
import resource
import socket
import ssl
import struct
import time
from pathlib import Path

import pytest
from certificates import Authority
from load import (
    MEGABYTE,
    LatencyProbe,
    ask_all,
    client,
    clients_allowed,
    close,
    descriptors,
    open_connections,
    processor_s,
    read,
    resident_bytes,
)
from processes import PROGRAMS, Process, Server, connect, eventually, free_port, stats

# How many come at a time.
WAVE = 500

# Descriptors that a server has beside its connections: listeners, epolls, the log.
DESCRIPTORS_BESIDE = 64

# Memory that may stay after a storm: capacity of lists that grew, and the allocator's own.
LEFT_BYTES_MAX = 4 * MEGABYTE

WAIT_S_MAX = 2.0


@pytest.fixture
def stormy(tmp_path):
    """A server with two threads."""
    server = Server("server", tmp_path, "-t", "2", "-c", "2000")
    yield server
    server.stop()


def leave(connection: socket.socket) -> None:
    """Closes the connection."""
    connection.close()


def reset(connection: socket.socket) -> None:
    """Closes with a RST, whatever is in flight."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def ask_and_reset(connection: socket.socket) -> None:
    """Closes while its reply is in flight."""
    connection.sendall(b"get neighbour\r\n" * 20)
    reset(connection)


def reset_within_a_value(connection: socket.socket) -> None:
    """Closes in the middle of a command."""
    connection.sendall(b"set half 0 0 100000\r\n" + b"x" * 50_000)
    reset(connection)


def half_close(connection: socket.socket) -> None:
    """Half-closes and waits for the other end."""
    connection.sendall(b"mn\r\nget hal")
    connection.shutdown(socket.SHUT_WR)
    assert read(connection, 4) == b"MN\r\n" and connection.recv(1) == b""
    connection.close()


@pytest.mark.parametrize("goes", [leave, reset, ask_and_reset, reset_within_a_value, half_close])
def test_a_connection_storm_leaks_nothing(stormy, goes):
    clients_allowed(WAVE)
    probe = LatencyProbe(stormy.port)
    close(open_connections(stormy.port, WAVE))
    eventually(lambda: int(stats(stormy.port)["curr_connections"]) <= 2, "a first wave is gone")
    before, before_bytes = descriptors(stormy), resident_bytes(stormy)
    for _ in range(4):
        for number, connection in enumerate(open_connections(stormy.port, WAVE)):
            goes(connection)
            if number % 50 == 0:
                probe.ask()
    eventually(lambda: descriptors(stormy) <= before, "the storm's descriptors are closed")
    eventually(lambda: int(stats(stormy.port)["curr_connections"]) <= 2, "closed connections are not counted")
    eventually(lambda: resident_bytes(stormy) < before_bytes + LEFT_BYTES_MAX, "the storm's memory is given back")
    assert probe.waited_at_most(1) < WAIT_S_MAX, probe.waited_at_most(1)
    assert connect(stormy.port).get("half") is None


def stats_of(probe: LatencyProbe) -> dict[str, str]:
    """`stats` by a connection that is there already."""
    probe.connection.sendall(b"stats\r\n")
    values = b""
    while not values.endswith(b"END\r\n"):
        values += probe.connection.recv(MEGABYTE)
    return dict(line.split(" ", 2)[1:] for line in values.decode().splitlines()[:-1])


def test_connections_over_the_limit_get_an_error(tmp_path):
    allowed, refused = 100, 400
    server = Server("server", tmp_path, "-c", str(allowed))
    try:
        probe = LatencyProbe(server.port)
        eventually(lambda: stats_of(probe)["curr_connections"] == "1", "the probing connection is gone")
        within = open_connections(server.port, allowed - 1)
        ask_all(within)
        for _ in range(refused):
            beyond = client(server.port)
            assert read(beyond, 33) == b"ERROR Too many open connections\r\n"
            assert beyond.recv(1) == b"", "it is closed"
            beyond.close()
            probe.ask()
        assert descriptors(server) < allowed + DESCRIPTORS_BESIDE
        ask_all(within)
        assert probe.waited_at_most(1) < WAIT_S_MAX
        close(within)
        eventually(lambda: answered(server.port), "connections are accepted again")
        assert int(stats(server.port)["rejected_connections"]) >= refused
    finally:
        server.stop()


def test_connections_over_the_limit_wait_without_maxconns_fast(tmp_path):
    allowed, waiting = 50, 200
    server = Server("server", tmp_path, "-c", str(allowed), "-o", "no_maxconns_fast")
    try:
        probe = LatencyProbe(server.port)
        eventually(lambda: int(stats_of(probe)["curr_connections"]) == 1, "the probing connection is gone")
        within = open_connections(server.port, allowed - 1)
        ask_all(within)
        eventually(lambda: stats_of(probe)["accepting_conns"] == "0", "it is full")
        queue = open_connections(server.port, waiting)
        for connection in queue:
            connection.sendall(b"mn\r\n")
            probe.ask()
        values = stats_of(probe)
        assert (values["curr_connections"], values["rejected_connections"]) == (str(allowed), "0")
        close(within)
        for connection in queue:
            assert read(connection, 4) == b"MN\r\n"
            connection.close()
        eventually(lambda: stats_of(probe)["accepting_conns"] == "1", "no connection waits any more")
        values = stats_of(probe)
        assert int(values["listen_disabled_num"]) >= 1 and values["rejected_connections"] == "0"
        assert probe.waited_at_most(1) < WAIT_S_MAX
    finally:
        server.stop()


def test_without_descriptors_connections_wait_and_the_log_is_not_flooded(tmp_path):
    def few_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))

    port = free_port()
    command = [PROGRAMS / "lookaside-server", "-p", port, "-t", "1", "-c", "1000"]
    server = Process("server", command, tmp_path, preexec_fn=few_descriptors)
    try:
        server.wait_ready(lambda: answered(port))
        probe = LatencyProbe(port)
        queue = open_connections(port, 100)
        eventually(lambda: stats_of(probe)["accepting_conns"] == "0", "there is no descriptor left")
        begin, processor = time.monotonic(), processor_s(server)
        eventually(lambda: probe.ask() or time.monotonic() > begin + 1, "a second passes")
        # The probe makes about 200 requests meanwhile.
        assert processor_s(server) - processor < 0.5, "the server must not poll"
        for connection in queue:
            connection.sendall(b"mn\r\n")
        for connection in queue:
            assert read(connection, 4) == b"MN\r\n"
            connection.close()
        eventually(lambda: stats_of(probe)["accepting_conns"] == "1", "there are descriptors again")
        assert server.log().count("out of file descriptors") == 1, server.log()
        probe.ask()
    finally:
        assert server.stop() == 0


def test_failed_handshakes_do_not_affect_others(tmp_path):
    certificate, key = Authority(tmp_path).sign("server")
    plain, secured = free_port(), free_port()
    command = [
        PROGRAMS / "lookaside-server", "-t", "1", "-c", "2000",
        "-Z", "-o", f"ssl_chain_cert={certificate},ssl_key={key}", "-l", f"notls:127.0.0.1:{plain},127.0.0.1:{secured}",
    ]  # fmt: skip
    server, dice = Process("server", command, tmp_path), random.Random(5)
    try:
        server.wait_ready(lambda: answered(plain))
        probe = LatencyProbe(plain)
        before = descriptors(server)
        hello, trusting_no_ca = bytes.fromhex("16030100c8010000c40303"), ssl.create_default_context()
        for number in range(600):
            with client(secured) as connection, contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
                if number % 3 == 0:
                    connection.sendall(hello[: dice.randrange(1, 12)] + dice.randbytes(dice.randrange(2_000)))
                elif number % 3 == 1:
                    connection.sendall(dice.randbytes(dice.randrange(1, 40_000)))
                else:
                    # A whole handshake by a client that then trusts no CA.
                    trusting_no_ca.wrap_socket(connection, server_hostname="localhost")
                if number % 2 == 0:
                    reset(connection)
            probe.ask()
        eventually(lambda: descriptors(server) <= before, "all of them are closed")
        values = stats(plain)
        assert int(values["ssl_handshake_errors"]) > 100
        assert probe.waited_at_most(1) < WAIT_S_MAX
        assert "panicked" not in server.log(), server.log()
    finally:
        assert server.stop() == 0


def answered(port: int) -> bool:
    """Whether one more connection is served."""
    with contextlib.suppress(ConnectionError), client(port) as connection:
        connection.sendall(b"mn\r\n")
        return connection.recv(4) == b"MN\r\n"
    return False


# A fuzzer's dictionary: words of every protocol, and bytes with a meaning in one of them.
WORDS = [
    b"get ", b"gets ", b"set ", b"add ", b"cas ", b"append ", b"incr ", b"touch ", b"gat ", b"delete ", b"lease-get ",
    b"lease-set ", b"mg ", b"ms ", b"md ", b"ma ", b"me ", b"mn", b"stats ", b"items", b"lru_crawler ", b"metadump all",
    b"noreply", b" k", b" v t f c", b" S5 T0 I", b" N60 vivify", b" 0 0 5", b" 0 0 99999", b" 0 0 -1",
    b" 18446744073709551616", b"\r\n", b"\n", b"\r", b"\0", b" ", b"hello\r\n", b"x" * 300, b"k" * 251, b"\x80",
    b"\x81", b"watch fetchers",
]  # fmt: skip


def senseless(dice: random.Random) -> bytes:
    """Bytes of one protocol or of none."""
    kind = dice.randrange(4)
    if kind == 0:
        return dice.randbytes(dice.randrange(1, 2000))
    if kind == 1:
        return b"".join(dice.choices(WORDS, k=dice.randrange(1, 60)))
    if kind == 2:
        return b"".join(binary_request(dice) for _ in range(dice.randrange(1, 20)))
    clean = bytearray(b"set k 0 0 5\r\nhello\r\nget k\r\nms k S5 T9\r\nhello\r\nmg k v\r\nincr n 1\r\n" * 5)
    for _ in range(dice.randrange(1, 8)):
        clean[dice.randrange(len(clean))] = dice.randrange(256)
    return bytes(clean)


def binary_request(dice: random.Random) -> bytes:
    """A binary request that may be valid; opcodes that empty the store or end a server are left out."""
    opcode = dice.choice([code for code in range(0x48) if code not in (0x07, 0x08, 0x17, 0x18)])
    extras, key, value = dice.randrange(0, 21), dice.randrange(0, 12), dice.randrange(0, 40)
    body = dice.choice([extras + key + value, extras + key + value, dice.randrange(1 << 32)])
    header = struct.pack(
        ">BBHBBHIIQ", 0x80, opcode, key, extras, 0, 0, body, dice.randrange(1 << 32), dice.choice([0, 7])
    )
    return header + dice.randbytes(extras + key + value)


def test_random_bytes_do_not_affect_others(tmp_path):
    udp_port = free_port()
    server = Server("server", tmp_path, "-t", "2", "-c", "2000", "-U", str(udp_port))
    dice = random.Random(4)
    try:
        probe = LatencyProbe(server.port)
        healthy = connect(server.port)
        assert all(healthy.set(f"kept:{number}", b"value %d" % number) for number in range(100))
        before = descriptors(server)
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for number in range(1500):
            with client(server.port) as connection, contextlib.suppress(ConnectionError, BlockingIOError):
                connection.setblocking(False)
                connection.send(senseless(dice))
                if number % 3 == 0:
                    probe.ask()
                    connection.send(senseless(dice))
                with contextlib.suppress(BlockingIOError):
                    connection.recv(MEGABYTE)
                if number % 2 == 0:
                    reset(connection)
            datagrams.sendto(senseless(dice)[:1400], ("127.0.0.1", udp_port))
            frame = struct.pack(">HHHH", number, 0, 1, 0)
            datagrams.sendto(frame + senseless(dice)[:1300], ("127.0.0.1", udp_port))
        datagrams.close()
        eventually(lambda: descriptors(server) <= before, "all of these connections are closed")
        assert [healthy.get(f"kept:{number}") for number in range(100)] == [b"value %d" % n for n in range(100)]
        assert probe.waited_at_most(1) < WAIT_S_MAX
        assert "panicked" not in server.log(), server.log()
    finally:
        assert server.stop() == 0


def test_a_vanished_client_is_detected_by_keepalive(server):
    """Connections had no keepalive: those of hosts that had lost their power stayed for ever, and their places too."""
    with client(server.port) as connection:
        connection.sendall(b"mn\r\n")
        assert read(connection, 4) == b"MN\r\n"
        ends = [f":{port:04X}" for port in (server.port, connection.getsockname()[1])]
        table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        # The fields: number, local and remote address, state, queues, which timer runs and when it ends.
        (timer,) = (words[5] for words in table if [words[1][8:], words[2][8:]] == ends)
        which, jiffies = timer.split(":")
        assert which == "02" and int(jiffies, 16) > 100 * 60, f"no keepalive timer: {timer}"
