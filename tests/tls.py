"""A server or router with a TLS port and a plain one, and what holds for both."""

import socket
import ssl

from certificates import Authority
from processes import Process, connect, stats
from pymemcache.client.base import Client


class TlsEndpoint(Process):
    """A daemon that listens on `port` with TLS and on `plain_port` without."""

    authority: Authority
    port: int
    plain_port: int

    def connect(self, context: ssl.SSLContext | None = None, port: int | None = None) -> ssl.SSLSocket:
        """A handshaken connection."""
        context = context or self.authority.context()
        plain = socket.create_connection(("127.0.0.1", port or self.port), timeout=10)
        try:
            return context.wrap_socket(plain, server_hostname="localhost")
        except BaseException:
            plain.close()
            raise

    def statistic(self, name: str) -> int:
        """One of `stats`."""
        return int(stats(self.plain_port)[name])


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """All up to `end`."""
    answer = b""
    while not answer.endswith(end):
        piece = connection.recv(65536)
        assert piece, f"closed behind {answer[-100:]!r}"
        answer += piece
    return answer


def serves(endpoint: TlsEndpoint, context: ssl.SSLContext | None = None, port: int | None = None) -> bool:
    """Whether a client is accepted. With TLS 1.3 a refusal shows only in the first reply."""
    try:
        with endpoint.connect(context, port) as connection:
            connection.sendall(b"version\r\n")
            return connection.recv(100).startswith(b"VERSION")
    except (ssl.SSLError, ConnectionError):
        return False


def check_pymemcache(endpoint: TlsEndpoint, version: ssl.TLSVersion) -> None:
    """pymemcache works through TLS of this version, and the plain port reaches the same items."""
    context = endpoint.authority.context()
    context.minimum_version = context.maximum_version = version
    client = Client(("localhost", endpoint.port), tls_context=context, timeout=10, default_noreply=False)
    large = bytes(range(256)) * 4000
    assert client.set("small", b"value") and client.set("large", large)
    assert client.get("small") == b"value" and client.get("large") == large
    assert connect(endpoint.plain_port).get("large") == large, "both ports reach the same items"
    assert client.get_many([f"k{n}" for n in range(500)]) == {}
    client.close()
