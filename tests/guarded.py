"""Servers and routers that require passwords."""

import json
import os
import socket

from processes import PROGRAMS, Process, free_port
from pymemcache.client.base import Client

LOGIN = b"set login 0 0 10\r\nada secret\r\n"
UNAUTHENTICATED = b"CLIENT_ERROR unauthenticated\r\n"


class Guarded(Process):
    """A daemon whose text clients must log in, those of the binary protocol too with `sasl`. It has a user `ada`."""

    def __init__(self, folder, name: str, command: list, *, sasl: bool, users: str) -> None:
        self.users = folder / f"{name}-users"
        self.users.write_text(users)
        command = [*command, "-Y", self.users, *(["-S"] if sasl else [])]
        self.port = int(command[command.index("-p") + 1])
        super().__init__(name, command, folder, env={**os.environ, "MEMCACHED_SASL_PWDB": str(self.users)})
        self.wait_ready(lambda: "listening" in self.log())

    def client(self) -> Client:
        """A client that has logged in."""
        client = Client(("127.0.0.1", self.port), timeout=10, default_noreply=False)
        assert client.set("login", "ada secret")
        return client

    def exchange(self, *lines: bytes) -> list[bytes]:
        """A reply to each request of one connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            replies = []
            for line in lines:
                connection.sendall(line)
                replies.append(connection.recv(4096))
            return replies


class GuardedServer(Guarded):
    """A server that requires passwords."""

    def __init__(self, folder, *arguments: object, sasl: bool = False, users: str = "ada:secret\n") -> None:
        command = [PROGRAMS / "lookaside-server", "-p", free_port(), "-t", "2", *arguments]
        super().__init__(folder, "server", command, sasl=sasl, users=users)


def one_server(server_port: int) -> str:
    """The configuration of a router with one server."""
    pool = {"servers": [f"127.0.0.1:{server_port}"], "server_timeout": 300}
    return json.dumps({"pools": {"main": pool}, "route": "PoolRoute|main"})


class GuardedRouter(Guarded):
    """A router that requires passwords, in front of one server."""

    def __init__(self, folder, server_port: int, *arguments: object, sasl: bool = False, name: str = "router") -> None:
        port = [] if "-p" in arguments else ["-p", free_port()]
        command = [
            PROGRAMS / "lookaside-router", "--config-str", one_server(server_port), "--num-proxies", "2",
            *port, *arguments,
        ]  # fmt: skip
        super().__init__(folder, name, command, sasl=sasl, users="ada:secret\n")
