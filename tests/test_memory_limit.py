"""`cache_memlimit`: a lowered limit gives memory back to the system, a raised one uses it again."""

import socket
from pathlib import Path

from processes import Server, eventually, statistics

MEGABYTE = 1 << 20


def ask(port: int, request: bytes) -> bytes:
    """One line for one line."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        return connection.recv(200)


def resident_bytes(server: Server) -> int:
    """What the process has of the machine's memory."""
    status = Path(f"/proc/{server.running.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


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
        assert ask(server.port, b"cache_memlimit 65\r\n").startswith(b"MEMLIMIT_ADJUST_FAILED")
        assert ask(server.port, b"cache_memlimit 7\r\n").startswith(b"MEMLIMIT_TOO_SMALL")
        assert ask(server.port, b"cache_memlimit 16\r\n") == b"OK\r\n"
        assert int(statistics(server.port)["limit_maxbytes"]) == 16 * MEGABYTE
        eventually(lambda: int(statistics(server.port)["bytes"]) <= 16 * MEGABYTE, "pages are cleared")
        assert resident_bytes(server) < full_bytes - 40 * MEGABYTE
        assert 1_000 < int(statistics(server.port)["curr_items"]) < 2_000
        # What is emptied at once goes back too, and the room is there again when the limit is raised.
        assert ask(server.port, b"cache_memlimit 64\r\n") == b"OK\r\n"
        fill(server.port, b"after")
        assert int(statistics(server.port)["bytes"]) > 50 * MEGABYTE
        assert ask(server.port, b"flush_all\r\n") == b"OK\r\n"
        assert ask(server.port, b"cache_memlimit 16\r\n") == b"OK\r\n"
        assert resident_bytes(server) < full_bytes - 40 * MEGABYTE
    finally:
        server.stop()
