"""Flags of mcrouter's that limit what a client or a server may have in progress: what each of them does."""

import socket
import threading
from itertools import count

from mcrouter_setups import Setup, reply, set_of, setup
from processes import eventually, stats
from routers import router
from scripted import scripted


def pool(*servers: str) -> dict:
    """The configuration of one pool."""
    return {"pools": {"A": {"servers": list(servers)}}, "route": "PoolRoute|A"}


def test_a_client_that_does_not_read_is_disconnected_after_the_client_timeout(tmp_path):
    """The default is a minute, far more than this test waits."""
    with setup(tmp_path) as it:
        it.file("r.json", pool(it.address("one")))
        it.start("-f", tmp_path / "r.json", "--client-timeout", "300")
        assert it.ask(set_of("k", "x" * 1_000_000)) == [b"STORED\r\n"]
        with socket.create_connection(("127.0.0.1", it.port), timeout=20) as client:
            client.sendall(b"get k\r\n" * 60)
            eventually(lambda: stats(it.port)["stalled_connections"] == "1", "it is disconnected")
            received = 0
            while piece := client.recv(1 << 20):
                received += len(piece)
            assert received < 60 * 1_000_000


def test_requests_of_one_client_in_progress(tmp_path):
    """Beyond --max-client-outstanding-reqs its socket is not read until the requests before have been answered."""
    arguments = ("--max-client-outstanding-reqs", "2", "-t", "20000")
    with scripted("hold") as (server,), router(tmp_path, pool(server.address), *arguments) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.sendall(b"".join(b"get %d\r\n" % number for number in range(6)))
            eventually(lambda: server.lines, "the first are at the server")
            server.released.set()
            replies = client.makefile("rb")
            assert [replies.readline() for _ in range(6)] == [b"END\r\n"] * 6
        assert server.lines == [b"get 0 1\r\n", b"get 2 3\r\n", b"get 4 5\r\n"]


def test_requests_of_one_server_in_progress(tmp_path):
    """Beyond --target-max-inflight-requests they wait at the router, whichever client has sent them."""
    with scripted("hold") as (server,):
        arguments = ("--target-max-inflight-requests", "2", "-t", "20000")
        with router(tmp_path, pool(server.address), *arguments) as port:
            asking = [threading.Thread(target=reply, args=(port, f"get {number}\r\n".encode())) for number in range(5)]

            def waiting() -> tuple[str, str]:
                values = stats(port)
                return values["destination_inflight_reqs"], values["destination_pending_reqs"]

            for thread in asking:
                thread.start()
            eventually(lambda: waiting() == ("2", "3"), "two are sent, and three wait")
            assert sum(len(line.split()) - 1 for line in server.lines) <= 2, server.lines
            server.released.set()
            for thread in asking:
                thread.join()
            assert waiting() == ("0", "0")
        asked = sorted(key for line in server.lines for key in line.split()[1:])
        assert asked == [b"0", b"1", b"2", b"3", b"4"]


def test_lease_tokens_of_a_shadow_that_are_remembered(tmp_path):
    """With room for one pair of tokens the last lease is filled at the shadow, and the one before is not."""
    filled = {}
    for pairs in ("1", "1024"):
        with setup(tmp_path) as it:
            shadow = {"target": "PoolRoute|new", "index_range": [0, 1], "key_fraction_range": [0, 1]}
            pools = {name: {"servers": [it.address(name)]} for name in ("main", "new")}
            it.file("r.json", {"pools": pools, "route": {"type": "PoolRoute", "pool": "main", "shadows": [shadow]}})
            it.start("-f", tmp_path / "r.json", "--max-shadow-token-map-size", pairs)
            filled[pairs] = first_and_last_filled(it)
    assert filled == {"1": (False, True), "1024": (True, True)}


def first_and_last_filled(it: Setup) -> tuple[bool, bool]:
    """Whether the shadow has each of two keys that are filled after both were leased.

    The shadow is asked for its lease after the client has the reply. A fill that overtakes it finds no token, and the
    attempt is repeated with other keys.
    """
    found = (False, False)
    attempts = count()

    def is_in_time() -> bool:
        nonlocal found
        number = next(attempts)
        keys = [f"first:{number}", f"last:{number}"]
        tokens = [it.ask(f"lease-get {key}\r\n".encode())[0].split()[2].decode() for key in keys]
        wait_for_copies(it, f"leases:{number}")
        for key, token in zip(keys, tokens, strict=True):
            assert it.ask(f"lease-set {key} {token} 0 0 1\r\nv\r\n".encode()) == [b"STORED\r\n"]
        wait_for_copies(it, f"fills:{number}")
        found = (it.at("new", keys[0]) == b"v", it.at("new", keys[1]) == b"v")
        return found[1]

    eventually(is_in_time, "the shadow has a value that was stored under the last lease")
    return found


def wait_for_copies(it: Setup, marker: str) -> None:
    """Waits until the shadow has seen all earlier requests: one connection leads to it."""
    assert it.ask(set_of(marker, "v")) == [b"STORED\r\n"]
    eventually(lambda: it.at("new", marker) == b"v", "the marker has been copied")


def test_shard_splits_can_be_ignored(tmp_path):
    """With --disable-shard-split-route a key of a split shard is stored as it is."""
    with setup(tmp_path) as it:
        it.file("id.json", {"route": "NullRoute"})
        it.start("-f", tmp_path / "id.json")
        host_id = int(it.ask(b"get __mcrouter__.hostid\r\n")[0].split(b"\r\n")[1])
        # This host has a split of its own, which is not the first.
        splits = next(splits for splits in (29, 28, 27, 26) if host_id % splits)
        route = {"type": "PoolRoute", "pool": "A", "shard_splits": {"17": splits}}
        it.file("r.json", pool(it.address("one")) | {"route": route})
        for arguments, is_split in (((), True), (("--disable-shard-split-route",), False)):
            it.start("-f", tmp_path / "r.json", *arguments)
            key = f"user:17:{is_split}"
            assert it.ask(set_of(key, "v")) == [b"STORED\r\n"]
            assert (it.at("one", key) is None) == is_split
