"""Connections as `stats conns` lists them, and connections that are idle for too long."""

import socket
import subprocess
import time

import pytest
from processes import PROGRAMS, Process, Server, answers, connect, eventually, free_port, stats


def connections(port: int) -> dict[str, dict[str, str]]:
    """The fields of `stats conns` by descriptor."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"stats conns\r\n")
        answer = b""
        while not answer.endswith(b"END\r\n"):
            answer += connection.recv(65536)
    row: dict[str, dict[str, str]] = {}
    for line in answer.decode().splitlines()[:-1]:
        _, name, value = line.split(" ", 2)
        descriptor, name = name.split(":", 1)
        row.setdefault(descriptor, {})[name] = value
    return row


def of(port: int, client: socket.socket) -> dict[str, str]:
    """The fields of `stats conns` for this client."""
    host, number = client.getsockname()[:2]
    found = [row for row in connections(port).values() if row["addr"].endswith(f"{host}:{number}")]
    return found[0] if found else {}


def test_stats_conns_lists_clients_and_their_states(tmp_path):
    server = Server("server", tmp_path, "-t", "2")
    port = server.port
    try:
        connect(port).set("large", b"v" * 900_000)
        listening = [row for row in connections(port).values() if row["state"] == "conn_listening"]
        assert [row["addr"] for row in listening] == [f"tcp:127.0.0.1:{port}"]
        clients = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(3)]
        idle, partial, slow = clients
        partial.sendall(b"set a 0 0 100\r\nonly a part")
        for _ in range(20):
            slow.sendall(b"get large\r\n")
        eventually(lambda: of(port, idle).get("state") == "conn_read", "an idle client")
        eventually(lambda: of(port, partial).get("state") == "conn_nread", "a client that has not finished")
        eventually(lambda: of(port, slow).get("state") == "conn_mwrite", "a client that does not read")
        row = of(port, idle)
        assert row["listen_addr"] == f"tcp:127.0.0.1:{port}" and int(row["secs_since_last_cmd"]) <= 20
        idle.close()
        eventually(lambda: len(connections(port)) == 1 + 2 + 1, "the closed one is gone; the one that asks is there")
    finally:
        server.stop()


def test_stats_conns_of_a_unix_socket_and_of_udp(tmp_path):
    port, path = free_port(), tmp_path / "m.sock"
    server = Process("server", [PROGRAMS / "lookaside-server", "-s", path, "-t", "1"], tmp_path)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            # The file is there before the server listens.
            server.wait_ready(lambda: client.connect_ex(str(path)) == 0)
            client.sendall(b"stats conns\r\n")
            assert client.recv(4096).count(f":addr unix:{path}\r\n".encode()) == 2
    finally:
        server.stop()
    server = Server("server", tmp_path, "-U", str(port))
    try:
        udp = [row for row in connections(server.port).values() if row.get("UDP") == "UDP"]
        assert [row["addr"] for row in udp] == [f"udp:127.0.0.1:{port}"]
    finally:
        server.stop()


@pytest.mark.parametrize("option", [["--idle-timeout", "1"], ["-o", "idle_timeout=1"]])
def test_idle_connections_are_closed_and_busy_ones_are_not(tmp_path, option):
    server = Server("server", tmp_path, "-t", "2", *option)
    try:
        idle = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(20)]
        half = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        half.sendall(b"set a 0 0 10\r\nonly")
        busy = socket.create_connection(("127.0.0.1", server.port), timeout=20)

        def keep_busy_until(condition) -> None:
            def step() -> bool:
                busy.sendall(b"mn\r\n")
                assert busy.recv(100) == b"MN\r\n"
                return condition()

            eventually(step, "idle connections are closed")

        keep_busy_until(lambda: int(stats(server.port)["idle_kicks"]) >= 21)
        assert all(client.recv(100) == b"" for client in [*idle, half])
        assert connect(server.port).stats("settings")[b"idle_timeout"] == 1
    finally:
        server.stop()


def test_without_the_option_idle_clients_stay(server):
    client = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    deadline = time.monotonic() + 0.2
    eventually(lambda: time.monotonic() > deadline and answers(server.port), "a moment passes")
    client.sendall(b"mn\r\n")
    assert client.recv(100) == b"MN\r\n"
    assert "idle_kicks" not in stats(server.port), "as with memcached"


def test_an_invalid_idle_timeout_is_refused():
    command = [PROGRAMS / "lookaside-server", "-p", str(free_port()), "-o", "idle_timeout=soon"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 2 and "idle_timeout" in ended.stderr
