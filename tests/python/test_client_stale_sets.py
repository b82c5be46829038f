"""Stale sets: a client is delayed at each step between its lookup and its fill, and the row changes meanwhile.

A proxy in front of the only server stops the client's requests and their replies; the loader is the test's own.

    lookup_sent       the lease-get is on its way to the server
    lookup_replied    the server has given the lease, and the client does not know it
    before_read       the loader has not read the row
    after_read        the loader has read the row
    fill_sent         the lease-set is on its way to the server
    fill_replied      the server has stored the value, or not
    returned          the call is over

By a router, its requests are those of the client; a direct client sends the lease-get itself, by TCP or UDP, and one
with direct updates the lease-set, too. The delete goes to the server past the proxy, whose connections are stopped.
"""

import itertools
import json
import socket
import threading
from collections.abc import Callable
from typing import BinaryIO

import pytest
from both_clients import KINDS, open_client
from forwarder import PIECE_BYTES
from leases import HOT_MISS, LeaseClient
from lookaside import Udp
from lossy_server import LossyServer
from processes import Server, connect
from test_client_direct import Router, wait_permitted

STEPS = ["lookup_sent", "lookup_replied", "before_read", "after_read", "fill_sent", "fill_replied", "returned"]
# Each way with the options of its clients, and the counters of its lookups and its fills.
WAYS = {
    "router": ([], None, None),
    "direct": (["config"], "direct.direct_reads", None),
    "udp": (["config", "udp"], "udp.keys", None),
    "direct_updates": (["config", "send_updates_directly"], "direct.direct_reads", "direct.direct_updates"),
    "udp_direct_updates": (["config", "udp", "send_updates_directly"], "udp.keys", "direct.direct_updates"),
}
# Longer than a reply takes on a loaded machine.
UDP_TIMEOUT_S = 20
ACTIONS = ["delete", "update", "update_and_fill"]
#: What the client's requests are called, by the command.
REQUESTS = {b"lease-get": "lookup", b"lease-set": "fill", b"get": "lookup", b"set": "fill"}


class StoppingProxy(LossyServer):
    """Calls `reach` with the step, before a request for the key is forwarded, and before its reply is."""

    def __init__(self, target: int) -> None:
        self.reach: Callable[[str], None] = lambda step: None
        self.key = b""
        # What was asked for on the connection to the server.
        self.asked: dict[socket.socket, str] = {}
        super().__init__(target)

    def copy(self, source: socket.socket, destination: socket.socket, is_from_server: bool) -> None:
        del is_from_server
        try:
            while piece := source.recv(PIECE_BYTES):
                command, _, rest = piece.partition(b" ")
                if command in REQUESTS and self.key and rest.startswith(self.key):
                    self.asked[destination] = REQUESTS[command]
                    self.reach(f"{REQUESTS[command]}_sent")
                elif request := self.asked.pop(source, None):
                    self.reach(f"{request}_replied")
                destination.sendall(piece)
        except OSError:
            pass
        for end in (source, destination):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def exchange(self, command: bytes, server: socket.socket, reader: BinaryIO) -> bytes:
        is_of_key = bool(self.key) and command.partition(b" ")[2].startswith(self.key)
        if is_of_key:
            self.reach("lookup_sent")
        reply = super().exchange(command, server, reader)
        if is_of_key:
            self.reach("lookup_replied")
        return reply


class Scene:
    """A row, its key, and what changes both at one step of a read."""

    def __init__(self, server: Server, proxy: StoppingProxy, key: str, step: str, action: str) -> None:
        self.server, self.proxy, self.key, self.step, self.action = server, proxy, key, step, action
        self.row: str | None = "old"
        self.reached: list[str] = []
        self.changing = threading.Lock()

    def reach(self, step: str) -> None:
        """A step of the read: the row changes at the one of this scene, once, and then its key is deleted."""
        with self.changing:
            is_first = step not in self.reached
            self.reached.append(step)
            if step != self.step or not is_first:
                return
            self.row = None if self.action == "delete" else "new"
            connect(self.server.port).delete(self.key)
            if self.action == "update_and_fill":
                self.fill_by_another_client()

    def fill_by_another_client(self) -> None:
        """Another client reads the new row, and has it cached before this one goes on."""
        other = LeaseClient(self.server.port)
        _, token, _ = other.lease_get(self.key)
        assert token > HOT_MISS
        # As text, which is what the Python client reads.
        assert other.command(b"lease-set %s %d 16 0 3" % (self.key.encode(), token), b"new") == b"STORED"
        other.close()

    def load(self) -> str | None:
        """Reads the row."""
        self.reach("before_read")
        row = self.row
        self.reach("after_read")
        return row


@pytest.fixture(scope="module")
def region(tmp_path_factory):
    """A server behind a proxy, and a router."""
    folder = tmp_path_factory.mktemp("stale")
    server = Server("server", folder)
    proxy = StoppingProxy(server.port)
    file = folder / "router.json"
    pool = {"servers": [f"127.0.0.1:{proxy.port}"], "server_timeout": 30_000}
    file.write_text(json.dumps({"pools": {"A": pool}, "route": "PoolRoute|A"}))
    router = Router(folder, f"file:{file}")
    yield server, proxy, router
    router.stop()
    proxy.close()
    server.stop()


@pytest.fixture(scope="module", params=itertools.product(KINDS, WAYS), ids="-".join)
def cache(request, region):
    """A client of each kind, by each way."""
    kind, way = request.param
    _, proxy, router = region
    options, *counters = WAYS[way]
    values = {
        "config": router.config,
        "udp": Udp(port=proxy.udp_port, timeout=UDP_TIMEOUT_S),
        "send_updates_directly": True,
    }
    with open_client(kind, [router.address], timeout=60, **{option: values[option] for option in options}) as cache:
        if way != "router":
            wait_permitted(cache)
        cache.counters = counters
        yield cache


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("step", STEPS)
def test_no_value_from_before_a_change_is_cached_after_it(request, region, cache, step, action):
    server, proxy, _ = region
    key = f"row:{request.node.name}".translate(str.maketrans("[]", "::"))
    scene = Scene(server, proxy, key, step, action)
    before = cache.stats()
    proxy.key, proxy.reach = key.encode(), scene.reach
    try:
        found = cache.get_or_load(key, scene.load)
    finally:
        proxy.reach = lambda step: None
    scene.reach("returned")
    assert set(STEPS) - {"returned"} <= set(scene.reached) or step == "lookup_sent" and action == "update_and_fill"
    assert found in ("old", scene.row)
    after = cache.stats()
    for request_sent, counter in zip(("lookup_sent", "fill_sent"), cache.counters, strict=True):
        if counter and request_sent in scene.reached:
            assert after[counter] > before[counter], f"{request_sent} by another way"
    cached = cache.get(key, default="nothing")
    assert cached in ("nothing", scene.row), f"the row is {scene.row!r}, and {cached!r} is cached"
    assert cache.get_or_load(key, scene.load) == scene.row
    assert cache.get(key) == scene.row


def test_without_leases_the_same_scenes_show_stale_values(region):
    """A client that gets, reads the row and sets: the check above can fail."""
    server, proxy, router = region
    stale = set()
    client = connect(router.port, timeout=60)
    for step in STEPS:
        scene = Scene(server, proxy, f"plain:{step}", step, "update")
        proxy.key, proxy.reach = scene.key.encode(), scene.reach
        assert client.get(scene.key) is None
        client.set(scene.key, scene.load())
        proxy.reach = lambda step: None
        scene.reach("returned")
        if client.get(scene.key) == b"old":
            stale.add(step)
    assert stale == {"after_read", "fill_sent"}
