"""Memory of an idle client of the router (§3.1: many connections of clients become few to servers)."""

import json
import socket

from load import resident_bytes
from processes import PROGRAMS, Process, Server, answers, connect, eventually, free_port, stats

CLIENTS = 600
VALUE_BYTES = 12_000
# The state of a session and of its socket. Buffers for a reply and a read would be 14 KB more.
IDLE_BYTES_MAX = 7_000


def ask(port: int) -> socket.socket:
    """A connection that has got the value."""
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.sendall(b"get k\r\n")
    answer = b""
    while not answer.endswith(b"END\r\n"):
        answer += client.recv(1 << 16)
    assert len(answer) > VALUE_BYTES
    return client


def test_an_idle_client_holds_no_buffers(tmp_path):
    server, port = Server("server", tmp_path), free_port()
    pools = {"main": {"servers": [f"127.0.0.1:{server.port}"]}}
    tree = json.dumps({"pools": pools, "route": "PoolRoute|main"})
    words = [PROGRAMS / "lookaside-router", "-p", port, "--num-proxies", "1", "--config-str", tree]
    router, clients = Process("router", words, tmp_path), []
    try:
        router.wait_ready(lambda: answers(port))
        connect(port).set("k", b"v" * VALUE_BYTES)
        clients += [ask(port) for _ in range(20)]
        before = resident_bytes(router)
        clients += [ask(port) for _ in range(CLIENTS)]
        each = (resident_bytes(router) - before) / CLIENTS
        assert each < IDLE_BYTES_MAX, f"{each:.0f} bytes an idle client"
        for client in clients:
            client.close()
        eventually(lambda: int(stats(port)["curr_connections"]) == 1, "the clients are gone")
    finally:
        router.stop()
        server.stop()
