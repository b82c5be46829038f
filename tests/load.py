"""Many clients at once, and their cost to a server: memory, descriptors, CPU time, latency of others."""

import resource
import socket
import time
import warnings
from pathlib import Path

from processes import Process

KILOBYTE = 1 << 10
MEGABYTE = 1 << 20

# Descriptors that a test process needs besides its clients.
DESCRIPTORS_BESIDE = 256

# Longest wait, in seconds, before a test fails.
PATIENCE_S = 20.0


def clients_allowed(wanted: int) -> int:
    """`wanted`, or as many as the descriptor limit allows, with a warning."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard - DESCRIPTORS_BESIDE)
    if allowed < wanted:
        warnings.warn(f"{allowed} clients instead of {wanted}: ulimit -Hn is {hard}", stacklevel=2)
    return allowed


def resident_bytes(process: Process) -> int:
    """The resident memory of a process, without the kernel's socket buffers."""
    status = Path(f"/proc/{process.running.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * KILOBYTE


def descriptors(process: Process) -> int:
    """The number of open descriptors of a process."""
    return len(list(Path(f"/proc/{process.running.pid}/fd").iterdir()))


def processor_s(process: Process) -> float:
    """CPU time of a process in seconds, with a resolution of a nanosecond."""
    threads = Path(f"/proc/{process.running.pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def client(port: int, receive_bytes: int | None = None) -> socket.socket:
    """A connected socket; with a small buffer if it is not going to read."""
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(PATIENCE_S)
    connection.connect(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def open_connections(port: int, count: int) -> list[socket.socket]:
    """Opens `count` connections."""
    return [client(port) for _ in range(count)]


def close(clients: list[socket.socket]) -> None:
    """Closes all connections."""
    for one in clients:
        one.close()


def read(connection: socket.socket, count: int) -> bytes:
    """Reads exactly `count` bytes."""
    got = bytearray()
    while len(got) < count:
        piece = connection.recv(min(count - len(got), MEGABYTE))
        assert piece, f"the connection ended behind {bytes(got[-100:])!r}"
        got += piece
    return bytes(got)


def ask_all(clients: list[socket.socket]) -> None:
    """Sends a request on every connection and checks the reply."""
    for connection in clients:
        connection.sendall(b"mn\r\n")
    for connection in clients:
        assert read(connection, 4) == b"MN\r\n"


class LatencyProbe:
    """A healthy client beside the load: sends requests, checks the replies and records their latency."""

    ANSWER = b"VALUE neighbour 0 9\r\nas it was\r\nEND\r\n"

    def __init__(self, port: int) -> None:
        self.connection = client(port)
        self.waited_s: list[float] = []
        self.store()

    def ask(self) -> None:
        """Sends one get."""
        self.exchange(b"get neighbour\r\n", self.ANSWER)

    def store(self) -> None:
        """Sends one set."""
        self.exchange(b"set neighbour 0 0 9\r\nas it was\r\n", b"STORED\r\n")

    def exchange(self, request: bytes, answer: bytes) -> None:
        """Sends a request, checks the reply and records the latency."""
        begin = time.perf_counter()
        self.connection.sendall(request)
        assert read(self.connection, len(answer)) == answer
        self.waited_s.append(time.perf_counter() - begin)

    def waited_at_most(self, share: float) -> float:
        """The latency, in seconds, that `share` of the requests did not exceed."""
        return sorted(self.waited_s)[int(share * (len(self.waited_s) - 1))]

    def close(self) -> None:
        """Closes the connection."""
        self.connection.close()
