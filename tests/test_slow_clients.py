"""Clients that send slowly, never read or are idle: their cost is bounded, and no other client waits for them.

Waiting is bounded generously, for the machine may be busy; memory is bounded closely. Kernel memory for sockets is not
counted: the system bounds that (`net.ipv4.tcp_mem`).
"""

import contextlib
import socket
import struct
import time

import pytest
from load import (
    KILOBYTE,
    MEGABYTE,
    LatencyProbe,
    ask_all,
    client,
    clients_allowed,
    close,
    open_connections,
    processor_s,
    read,
    resident_bytes,
)  # fmt: skip
from processes import Server, connect, eventually, stats

CLIENTS = 10_000

# Memory limit of one idle connection, in bytes.
IDLE_BYTES_MAX = 200

# Memory limit of a connection that has sent a part of a short command, in bytes.
PARTIAL_BYTES_MAX = 600

# Latency bounds of the probe under any load: median, 90th percentile and maximum. On a quiet
# machine it takes a hundredth of that.
WAIT_S_P50, WAIT_S_P90, WAIT_S_MAX = 0.05, 0.5, 5.0

# Limits of one round of a worker for a connection: bytes rendered and bytes read (`REPLY_BYTES_MAX`, `READ_BYTES_MAX`).
REPLY_BYTES, READ_BYTES = 256 * KILOBYTE, 16 * KILOBYTE


@pytest.fixture
def loaded_server(tmp_path):
    """A server with one thread and a high connection limit."""
    server = Server("server", tmp_path, "-c", str(CLIENTS + 100), "-b", "4096")
    yield server
    server.stop()


def assert_waits(probe: LatencyProbe) -> None:
    """The probe's latency was within its bounds."""
    waits = [probe.waited_at_most(share) for share in (0.5, 0.9, 1)]
    bounds = (WAIT_S_P50, WAIT_S_P90, WAIT_S_MAX)
    assert all(wait < bound for wait, bound in zip(waits, bounds, strict=True)), f"{waits} s, allowed {bounds}"


def slow_request(number: int) -> tuple[bytes, bytes, bytes]:
    """The bytes that a slow client has sent, the bytes that follow one by one, and the expected reply."""
    binary_get = struct.pack(">BBHBBHIIQ", 0x80, 0, 6, 0, 0, 0, 6, number, 0)
    binary_answer = struct.pack(">BBHBBHIIQ", 0x81, 0, 0, 4, 0, 0, 10, number, 3) + struct.pack(">I", 7) + b"steady"
    requests = (
        (b"get st", b"eady\r\n", b"VALUE steady 7 6\r\nsteady\r\nEND\r\n"),
        (b"set own%d 0 0 4\r\n" % number, b"abcd\r\n", b"STORED\r\n"),
        (b"mg stea", b"dy v\r\n", b"VA 6\r\nsteady\r\n"),
        (binary_get, b"steady", binary_answer),
    )
    return requests[number % len(requests)]


def test_ten_thousand_clients_that_send_a_byte_a_second(loaded_server):
    count = clients_allowed(CLIENTS)
    probe = LatencyProbe(loaded_server.port)
    probe.connection.sendall(b"set steady 7 0 6\r\nsteady\r\n")
    assert read(probe.connection, 8) == b"STORED\r\n"
    clients = open_connections(loaded_server.port, count)
    requests = [slow_request(number) for number in range(count)]
    probe.ask()
    before = resident_bytes(loaded_server)
    for connection, (begun, _, _) in zip(clients, requests, strict=True):
        connection.sendall(begun)
    second, at_most = time.monotonic(), 0
    for byte_at in range(6):
        for number, connection in enumerate(clients):
            connection.sendall(requests[number][1][byte_at : byte_at + 1])
            if number % 500 == 0:
                probe.ask()
        at_most = max(at_most, resident_bytes(loaded_server))
        second += 1
        eventually(lambda until=second: probe.ask() or time.monotonic() >= until, "a second passes")
    for number, (connection, (_, _, answer)) in enumerate(zip(clients, requests, strict=True)):
        got = read(connection, len(answer))
        # A CAS unique tells when something was stored, which is not the client's to know.
        if got[:1] == b"\x81":
            got, answer = got[:16] + got[24:], answer[:16] + answer[24:]
        assert got == answer, f"client {number}"
    assert_waits(probe)
    stored = 128 * KILOBYTE + count // 4 * 100
    assert at_most - before < count * PARTIAL_BYTES_MAX + stored, f"{(at_most - before) / count:.0f} bytes a client"
    close(clients)


def test_idle_clients_cost_little_and_do_not_slow_others(loaded_server, server):
    count = clients_allowed(CLIENTS)
    busy, alone = LatencyProbe(loaded_server.port), LatencyProbe(server.port)
    ask_and_go(loaded_server.port, 200)
    before = resident_bytes(loaded_server)
    clients = open_connections(loaded_server.port, count)
    ask_all(clients)
    idle_bytes = (resident_bytes(loaded_server) - before) / count
    assert idle_bytes < IDLE_BYTES_MAX, f"{idle_bytes:.0f} bytes for each idle client"
    # In turns, for the machine may be slower at one time than at another.
    turns = [(processor_s_of(loaded_server, busy), processor_s_of(server, alone)) for _ in range(20)]
    beside_s, alone_s = (min(costs) for costs in zip(*turns, strict=True))
    assert beside_s < 3 * alone_s, f"{beside_s * 1e6:.1f} us beside {count} idle clients, {alone_s * 1e6:.1f} us alone"
    assert_waits(busy)
    ask_all(clients)
    close(clients)


def ask_and_go(port: int, count: int) -> None:
    """`count` clients send a request and disconnect, so that one-time growth has happened."""
    clients = open_connections(port, count)
    ask_all(clients)
    close(clients)
    eventually(lambda: int(stats(port)["curr_connections"]) < 10, "they are gone")


def processor_s_of(server: Server, busy: LatencyProbe, requests: int = 200) -> float:
    """The server's CPU time for one request, the mean of `count` requests in sequence."""
    begin = processor_s(server)
    for _ in range(requests):
        busy.ask()
    return (processor_s(server) - begin) / requests


def test_a_value_that_was_only_announced_takes_no_memory(loaded_server):
    probe = LatencyProbe(loaded_server.port)
    clients = open_connections(loaded_server.port, 300)
    ask_all(clients)
    before = resident_bytes(loaded_server)
    sent = 20 * KILOBYTE
    for number, connection in enumerate(clients):
        connection.sendall(b"set announced%d 0 0 1000000\r\n" % number)
        probe.ask()
        connection.sendall(b"x" * sent)
    eventually(lambda: int(stats(loaded_server.port)["read_buf_bytes"]) >= len(clients) * sent, "all of it has come")
    values = stats(loaded_server.port)
    assert int(values["read_buf_count"]) == len(clients)
    assert int(values["read_buf_bytes"]) < len(clients) * (2 * sent + 100)
    of_each = (resident_bytes(loaded_server) - before) / len(clients)
    assert of_each < 2 * sent + PARTIAL_BYTES_MAX, f"{of_each:.0f} bytes for {sent} sent"
    close(clients)
    eventually(lambda: int(stats(loaded_server.port)["read_buf_bytes"]) == 0, "they are gone")
    eventually(lambda: resident_bytes(loaded_server) < before + MEGABYTE, "their memory is given back")
    assert_waits(probe)


def test_clients_that_never_read_are_no_longer_read_from(loaded_server):
    value_bytes, asked = 1_000_000, 50
    probe = LatencyProbe(loaded_server.port)
    probe.connection.sendall(b"set large 0 0 %d\r\n%s\r\n" % (value_bytes, b"v" * value_bytes))
    assert read(probe.connection, 8) == b"STORED\r\n"
    answer = b"VALUE large 0 %d\r\n%s\r\nEND\r\n" % (value_bytes, b"v" * value_bytes)
    before = resident_bytes(loaded_server)
    clients = [client(loaded_server.port, receive_bytes=16 * KILOBYTE) for _ in range(100)]
    for connection in clients:
        connection.sendall(b"get large\r\n" * asked)
        probe.ask()
    eventually(lambda: states(loaded_server.port).count(b"conn_mwrite") == len(clients), "all of them are waited for")
    # More commands stay in the socket: nothing of them is read.
    for connection in clients:
        connection.setblocking(False)
        try:
            while True:
                connection.send(b"get large\r\n" * 1000)
        except BlockingIOError:
            pass
    for _ in range(100):
        probe.ask()
    of_each = (resident_bytes(loaded_server) - before) / len(clients)
    assert of_each < len(answer) + REPLY_BYTES + READ_BYTES, f"{of_each:.0f} bytes for each"
    values = stats(loaded_server.port)
    kept_bytes = int(values["response_obj_bytes"])
    assert int(values["response_obj_count"]) == len(clients)
    assert len(clients) * MEGABYTE // 4 < kept_bytes < len(clients) * (len(answer) + REPLY_BYTES), kept_bytes
    assert_waits(probe)
    # A client that reads after all gets everything.
    reader = clients.pop()
    reader.settimeout(20)
    for _ in range(asked):
        assert read(reader, len(answer)) == answer
    reader.close()
    close(clients)
    eventually(lambda: int(stats(loaded_server.port)["curr_connections"]) < 10, "they are gone")
    assert int(stats(loaded_server.port)["response_obj_bytes"]) == 0
    eventually(lambda: resident_bytes(loaded_server) < before + 8 * MEGABYTE, "their memory is given back")


def states(port: int) -> list[bytes]:
    """The state of each connection."""
    with client(port) as connection:
        connection.sendall(b"stats conns\r\n")
        values = b""
        while not values.endswith(b"END\r\n"):
            values += connection.recv(MEGABYTE)
    return [line.split()[2] for line in values.split(b"\r\n") if b":state " in line]


def test_blocked_clients_cost_no_cpu_time(loaded_server):
    probe = LatencyProbe(loaded_server.port)
    probe.connection.sendall(b"set large 0 0 1000000\r\n%s\r\n" % (b"v" * 1_000_000))
    assert read(probe.connection, 8) == b"STORED\r\n"
    clients = [client(loaded_server.port, receive_bytes=16 * KILOBYTE) for _ in range(150)]
    unread, gone, partial = clients[:50], clients[50:100], clients[100:]
    for connection in unread + gone:
        connection.sendall(b"get large\r\n" * 50)
    for connection in gone:
        connection.shutdown(socket.SHUT_WR)
    for connection in partial:
        connection.sendall(b"set part 0 0 1000\r\nx")
    waiting = [b"conn_mwrite"] * 100 + [b"conn_nread"] * 50
    eventually(
        lambda: [state in waiting for state in states(loaded_server.port)].count(True) == 150, "all are waited for"
    )
    begin, processor = time.monotonic(), processor_s(loaded_server)
    eventually(lambda: time.monotonic() > begin + 1, "a second passes")
    spent_s = processor_s(loaded_server) - processor
    assert spent_s < 0.1, f"{spent_s:.3f} s of processor time in a second without requests"
    close(clients)


def test_limits_on_buffers_of_all_clients(tmp_path):
    value_bytes = 1_000_000
    options = "read_buf_mem_limit=8,resp_obj_mem_limit=4"
    server = Server("server", tmp_path, "-t", "2", "-o", options)

    def within_the_limit(name: str, limit_bytes: int, connection_bytes: int):
        """What exceeds the limit is the connection that each worker is about to close, and gone at once."""
        buffered_bytes = int(stats(server.port)[name])
        assert buffered_bytes <= limit_bytes + 2 * (connection_bytes + 256 * KILOBYTE), name
        eventually(lambda: int(stats(server.port)[name]) <= limit_bytes, f"{name} is within its limit")

    try:
        neighbours = [LatencyProbe(server.port) for _ in range(4)]
        neighbours[0].connection.sendall(b"set large 0 0 %d\r\n%s\r\n" % (value_bytes, b"v" * value_bytes))
        assert read(neighbours[0].connection, 8) == b"STORED\r\n"
        greedy = [client(server.port, receive_bytes=16 * KILOBYTE) for _ in range(40)]
        for connection in greedy:
            connection.sendall(b"get large\r\n" * 50)
            within_the_limit("response_obj_bytes", 4 * MEGABYTE, value_bytes)
        eventually(lambda: int(stats(server.port)["response_obj_oom"]) >= 20, "those beyond the limit are closed")
        slow = open_connections(server.port, 40)
        for connection in slow:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"set part 0 0 1000000\r\n" + b"x" * 500_000)
            within_the_limit("read_buf_bytes", 8 * MEGABYTE, value_bytes)
        eventually(lambda: int(stats(server.port)["read_buf_oom"]) >= 20, "those beyond the limit are closed")
        for probe in neighbours:
            probe.ask()
        close(greedy + slow)
        eventually(lambda: int(stats(server.port)["response_obj_bytes"]) == 0, "all is given back")
        eventually(lambda: int(stats(server.port)["read_buf_bytes"]) == 0, "all is given back")
        settings = connect(server.port).stats("settings")
        assert settings[b"read_buf_mem_limit"] == 8 * MEGABYTE
    finally:
        server.stop()
