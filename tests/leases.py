"""`lease-get` and `lease-set` over a plain socket, and the read path of a look-aside client (§3.2.1)."""

import socket
import time
from collections.abc import Callable

HOT_MISS = 1
# Replies to a fill whose lease a delete has voided.
REFUSED = (b"NOT_STORED", b"STALE_STORED")


class ErrorReply(AssertionError):
    """An error instead of a value or a token."""


class LeaseClient:
    """One connection to a server or router."""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout: float = 10) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout)
        self.reader = self.socket.makefile("rb")

    def close(self) -> None:
        """Ends the connection."""
        self.reader.close()
        self.socket.close()

    def command(self, line: bytes, data: bytes | None = None) -> bytes:
        """Sends a command with a one-line answer."""
        self.send(line + b"\r\n" + (data + b"\r\n" if data is not None else b""))
        return self.reply()

    def send(self, *requests: bytes) -> None:
        """Sends requests whose replies are read later."""
        self.socket.sendall(b"".join(requests))

    def reply(self) -> bytes:
        """A reply of one line."""
        return self.reader.readline().rstrip(b"\r\n")

    def lease_get(self, key: str) -> tuple[bytes | None, int, bytes | None]:
        """(value, 0, None) for a hit; (None, token, stale value or None) for a miss."""
        self.send(b"lease-get %s\r\n" % key.encode())
        return self.lease_reply()

    def lease_reply(self) -> tuple[bytes | None, int, bytes | None]:
        """The reply to a `lease-get` that was sent."""
        line = self.reader.readline()
        head = line.split()
        if head[0] == b"VALUE":
            value = self.block(int(head[3]))
            answer = (value, 0, None)
        else:
            if head[0] != b"LVALUE":
                raise ErrorReply(line)
            stale = self.block(int(head[4]))
            answer = (None, int(head[2]), stale or None)
        assert self.reader.readline() == b"END\r\n"
        return answer

    def block(self, value_bytes: int) -> bytes:
        """A data block with its line end."""
        data = self.reader.read(value_bytes + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    def lease_set(self, key: str, token: int, value: bytes) -> bytes:
        """The server's reply."""
        return self.command(b"lease-set %s %d 0 0 %d" % (key.encode(), token, len(value)), value)

    def read(self, key: str, load: Callable[[], bytes], has_writers: bool = False) -> bytes:
        """Look aside: a hit, or load and fill under the lease, or wait for the holder of the lease.

        With `has_writers` a fill may be refused, since the key was deleted meanwhile."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            value, token, _ = self.lease_get(key)
            if value is not None:
                return value
            if token > HOT_MISS:
                value = load()
                stored = self.lease_set(key, token, value)
                assert stored == b"STORED" or (has_writers and stored in REFUSED), stored
                return value
            time.sleep(0.002)
        raise AssertionError(f"{key} was not filled")
