"""Set-ups as users of mcrouter have them: a configuration and a command line, started as they are."""

import json
import socket
from contextlib import ExitStack, contextmanager
from pathlib import Path

from processes import PROGRAMS, Process, Server, answers, free_port


class Setup:
    """Servers by name, and a router that is started with a command line of mcrouter's."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.servers: dict[str, Server] = {}
        self.port = 0
        self.router: Process | None = None

    def address(self, name: str) -> str:
        """The address of the server of that name, which is started at the first call."""
        if name not in self.servers:
            server = Server(name, self.folder)
            self.stack.callback(server.stop)
            self.servers[name] = server
        return f"127.0.0.1:{self.servers[name].port}"

    def file(self, name: str, content: dict | str) -> Path:
        """A file of the configuration."""
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
        return path

    def start(self, *arguments: object) -> None:
        """Starts the router on a free port."""
        self.port = free_port()
        self.router = Process("router", [PROGRAMS / "lookaside-router", "-p", self.port, *arguments], self.folder)
        self.stack.callback(self.router.stop)
        self.router.wait_ready(lambda: answers(self.port))

    def ask(self, *requests: bytes) -> list[bytes]:
        """The reply of the router to each request."""
        return [reply(self.port, request) for request in requests]

    def at(self, name: str, key: str) -> bytes | None:
        """The value of a key at a server; `None` if it has none."""
        found = reply(self.servers[name].port, f"get {key}\r\n".encode())
        return found.split(b"\r\n")[1] if found.startswith(b"VALUE") else None

    def holders(self, key: str) -> set[str]:
        """The names of the servers that have a key."""
        return {name for name in self.servers if self.at(name, key) is not None}


@contextmanager
def setup(folder: Path):
    """A set-up whose processes end with it."""
    with ExitStack() as stack:
        yield Setup(folder, stack)


def reply(port: int, request: bytes) -> bytes:
    """All that a daemon replies to a request."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request + b"quit\r\n")
        return connection.makefile("rb").read()


def set_of(key: str, value: str, exptime: int = 0) -> bytes:
    """The request that stores a value."""
    return f"set {key} 0 {exptime} {len(value)}\r\n{value}\r\n".encode()


def hit(key: str, value: str) -> bytes:
    """The reply to a get that finds it."""
    return f"VALUE {key} 0 {len(value)}\r\n{value}\r\nEND\r\n".encode()
