"""The router's spool: deletes without an acknowledgement are spooled, and their server is fenced until replay (§5)."""

import time

import pytest
from leases import LeaseClient
from processes import PROGRAMS, Process, answers, connect, eventually, free_port, frozen, stats
from test_gutter import key_of_server

ROUNDS = 12


class Router(Process):
    """A router of two threads in front of a cluster's servers, with a spool."""

    def __init__(self, cluster, spool, log_dir, *arguments: str, port: int | None = None) -> None:
        self.port = port or free_port()
        command = [
            PROGRAMS / "lookaside-router", "-p", self.port, "-R", f"/local/{cluster.name}/", "--num-proxies", "2",
            "-f", cluster.configuration_path, "--server-timeout", "200", "--probe-timeout-initial", "50",
            "--probe-timeout-max", "200", "--spool", spool, *arguments,
        ]  # fmt: skip
        super().__init__(f"spooling-router-{self.port}", command, log_dir)
        self.wait_ready(lambda: answers(self.port))

    def restart(self) -> None:
        """Starts it again on the same port and spool."""
        self.start()
        self.wait_ready(lambda: answers(self.port))

    def pending(self) -> int:
        """The number of fenced servers."""
        return int(stats(self.port)["spool_servers_fenced"])

    def delete(self, key: str) -> bytes:
        """The answer to a delete."""
        client = LeaseClient(self.port)
        try:
            return client.command(b"delete " + key.encode())
        finally:
            client.close()

    def get(self, key: str) -> bytes | None:
        """A value, by a connection of its own: it may be any thread's."""
        client = connect(self.port)
        try:
            return client.get(key)
        finally:
            client.close()


@pytest.fixture
def router(cluster, tmp_path):
    """A router with a spool."""
    router = Router(cluster, tmp_path / "spool", tmp_path)
    yield router
    router.stop()


def serves(server, router, key) -> bool:
    """Whether a get through the router reaches the server."""
    before = int(stats(server.port)["cmd_get"])
    router.get(key)
    return int(stats(server.port)["cmd_get"]) > before


def test_a_server_that_was_unreachable_is_never_read_stale(cluster, router):
    victim = cluster.servers[0]
    key = key_of_server(cluster, victim)
    for round_number in range(ROUNDS):
        value = b"round %d" % round_number
        client = connect(router.port)
        assert client.set(key, value)
        client.close()
        with frozen(victim):
            assert router.delete(key) in (b"NOT_FOUND", b"DELETED")
            assert router.get(key) is None
            assert router.pending() > 0
            if round_number % 3 == 2:
                router.kill()
        if round_number % 3 == 2:
            router.restart()
        deadline = time.monotonic() + 20
        while not serves(victim, router, key):
            assert router.get(key) is None, round_number
            assert time.monotonic() < deadline, router.log()
        assert router.get(key) is None, round_number
        assert router.pending() == 0
    figures = stats(router.port)
    assert figures["spool_append_failures"] == "0"
    assert not list((router.log_path.parent / "spool").glob("*/*.deletes")), "all is worked off"


def test_a_restarted_router_keeps_servers_with_a_backlog_fenced(cluster, router):
    victim = cluster.servers[0]
    key = key_of_server(cluster, victim)
    victim_client = connect(victim.port)
    assert victim_client.set(key, b"old")
    victim.freeze()
    try:
        assert router.delete(key) in (b"NOT_FOUND", b"DELETED")
        router.kill()
        router.restart()
        servers = LeaseClient(router.port)
        servers.socket.sendall(b"stats servers_detailed\r\n")
        lines = iter(servers.reader.readline, b"END\r\n")
        line = next(line for line in list(lines) if f":{victim.port} ".encode() in line)
        assert f"127.0.0.1:{victim.port} state:fenced".encode() in line and b"spooled_deletes:1" in line
        servers.close()
        for _ in range(20):
            assert router.get(key) is None
    finally:
        victim.thaw()
    eventually(lambda: router.pending() == 0, "the delete is replayed")
    assert victim_client.get(key) is None
    victim_client.close()


def test_a_server_with_too_large_a_backlog_is_flushed(cluster, tmp_path):
    router = Router(cluster, tmp_path / "spool", tmp_path, "--spool-bytes-max", "4096")
    victim = cluster.servers[0]
    key = key_of_server(cluster, victim)
    try:
        client = connect(router.port)
        assert client.set(key, b"never deleted")
        with frozen(victim):
            for number in range(400):
                client.delete(f"key:{number}")
            assert int(stats(router.port)["spool_overflows"]) > 0
            assert client.get(f"__mcrouter__.spool(127.0.0.1:{victim.port})") == b"flush_pending"
            router.kill()
        client.close()
        router.restart()
        eventually(lambda: router.pending() == 0, "the server is flushed")
        assert router.get(key) is None
        assert "will be flushed" in router.log()
    finally:
        router.stop()


def test_damaged_and_torn_segments_are_recovered(cluster, router):
    victim = cluster.servers[0]
    key = key_of_server(cluster, victim)
    for damage, removed in ((b"\x20\x00\x00", "0"), (None, "1")):
        client = connect(router.port)
        assert client.set(key, b"old") and client.set(key + "x", b"old")
        client.close()
        with frozen(victim):
            # The first delete is in a file that is being replayed. Its repeat is in the next, and so are those of the
            # other keys that this server has.
            for name in (key, key, *(f"other:{number}" for number in range(40))):
                router.delete(name)
            router.kill()
            _, file = sorted((router.log_path.parent / "spool").glob(f"*{victim.port}/*.deletes"))
            content = bytearray(file.read_bytes())
            if damage:
                content += damage
            else:
                content[20] ^= 0x10
            file.write_bytes(content)
        router.restart()
        eventually(lambda: router.pending() == 0, "it is worked off")
        assert stats(router.port)["spool_flushes"] == removed
        assert router.get(key) is None


def test_two_routers_cannot_have_one_spool(cluster, router, tmp_path):
    with pytest.raises(AssertionError, match="in use by another router"):
        Router(cluster, tmp_path / "spool", tmp_path)


def test_a_delete_fails_when_the_spool_cannot_be_written(cluster, tmp_path):
    spool = tmp_path / "spool"
    router = Router(cluster, spool, tmp_path)
    victim = cluster.servers[0]
    key = key_of_server(cluster, victim)
    try:
        # A file stands in the place of the server's folder: nothing can be spooled for it.
        (spool / f"127.0.0.1%3A{victim.port}").write_text("in the way")
        with frozen(victim):
            assert router.delete(key).startswith(b"SERVER_ERROR")
        eventually(lambda: router.delete(key) in (b"DELETED", b"NOT_FOUND"), "it is deleted after all")
        assert int(stats(router.port)["spool_append_failures"]) > 0
    finally:
        router.stop()


def test_no_router_of_a_cluster_reads_a_server_that_a_peer_has_fenced(cluster, tmp_path):
    ports = [free_port(), free_port()]
    routers = [
        Router(cluster, tmp_path / f"spool-{own}", tmp_path, "--spool-peers", f"127.0.0.1:{other}", port=own)
        for own, other in (ports, reversed(ports))
    ]
    victim = cluster.servers[0]
    key = key_of_server(cluster, victim)
    try:
        for round_number in range(4):
            client = connect(routers[1].port)
            assert client.set(key, b"round %d" % round_number)
            client.close()
            with frozen(victim):
                eventually(lambda: routers[0].delete(key) in (b"NOT_FOUND", b"DELETED"), "both know")
                assert routers[1].get(key) is None
                assert int(stats(routers[1].port)["spool_servers_fenced_by_peers"]) > 0
                if round_number % 2:
                    routers[1].kill()
            if round_number % 2:
                routers[1].restart()
            deadline = time.monotonic() + 20
            while not serves(victim, routers[1], key):
                assert routers[1].get(key) is None, round_number
                assert time.monotonic() < deadline, routers[1].log()
            assert routers[1].get(key) is None, round_number
        assert stats(routers[1].port)["spool_flushes"] == "0", "no peer was silent for too long"
        assert "server fenced by peer" in routers[1].log()
        eventually(lambda: "peer released its fence" in routers[1].log(), "the fence is released")
        assert "spool peer unreachable" in routers[0].log()
        assert "spool peer reachable again" in routers[0].log()
    finally:
        for router in routers:
            router.stop()


def test_a_peer_is_warned_of_only_when_a_delete_needs_it(cluster, tmp_path):
    """Routers of a cluster are started one by one: each once warned of those that were not there yet."""
    ports = [free_port(), free_port()]

    def start(own: int, other: int) -> Router:
        options = ("--spool-peers", f"127.0.0.1:{other}", "--config-cache", tmp_path / f"cache-{own}.json")
        return Router(cluster, tmp_path / f"spool-{own}", tmp_path, *options, "-l", "127.0.0.1", port=own)

    first, key = start(*ports), key_of_server(cluster, cluster.servers[0])
    routers = [first]
    try:
        unneeded = "spool peer unreachable; no delete needs it now"
        eventually(lambda: unneeded in first.log(), "it is not there yet")
        assert stats(first.port)["spool_peers_unreachable"] == "1"
        routers.append(start(*reversed(ports)))
        eventually(lambda: "spool peer reachable again" in first.log(), "it is there")
        assert stats(first.port)["spool_peers_unreachable"] == "0"
        assert all(" WARN " not in router.log() for router in routers), [router.log() for router in routers]
        routers[1].kill()
        eventually(lambda: first.log().count(unneeded) == 2, "it is gone")
        with frozen(cluster.servers[0]):
            assert first.delete(key).startswith(b"SERVER_ERROR")
            needed = "spool peer unreachable: deletes that a server does not answer fail"
            eventually(lambda: needed in first.log(), "a delete needs it")
        assert first.log().count(unneeded) == 2 and first.log().count(needed) == 1
    finally:
        for router in routers:
            router.stop()


def test_routers_that_share_servers_and_remember_nothing_are_warned_of(cluster, tmp_path):
    peers = ("--spool-peers", f"127.0.0.1:{free_port()}")
    for options, is_warned in [((), False), (peers, True), ((*peers, "--config-cache", tmp_path / "last.json"), False)]:
        router = Router(cluster, tmp_path / "spool", tmp_path, *options)
        router.stop()
        assert ("this one has no --config-cache" in router.log()) == is_warned, router.log()


def test_a_router_named_as_its_own_peer_is_reported(cluster, tmp_path):
    port = free_port()
    router = Router(cluster, tmp_path / "spool", tmp_path, "--spool-peers", f"127.0.0.1:{port}", port=port)
    try:
        eventually(lambda: "is this router itself" in router.log(), "the log says so")
    finally:
        router.stop()
