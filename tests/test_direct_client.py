"""A client that reads servers directly: what its cluster has acknowledged as deleted it does not read."""

import json
import threading
import time

import pytest
from direct_client import DirectClient
from leases import LeaseClient
from processes import PROGRAMS, Process, Server, answers, eventually, free_port, frozen, stats

KEYS = [f"row:{number}" for number in range(60)]
# A router assumes that a permit is in use for this long.
PERMIT_S = 0.25


class Router(Process):
    """A router with a spool and, perhaps, peers."""

    def __init__(self, tmp_path, file, port: int, peers: list[int], *options: str) -> None:
        self.port = port
        command = [
            PROGRAMS / "lookaside-router", "-p", port, "--config", source_of(file), "--num-proxies", "2",
            "--server-timeout", "300",
            "--probe-timeout-initial", "50", "--probe-timeout-max", "200", "--spool", tmp_path / f"spool-{port}",
            *options,
        ]  # fmt: skip
        if peers:
            command += ["--spool-peers", ",".join(f"127.0.0.1:{peer}" for peer in peers)]
            command += ["--config-cache", tmp_path / f"cache-{port}.json"]
        super().__init__(f"router-{port}", command, tmp_path)
        self.wait_ready(lambda: answers(port))

    def restart(self) -> None:
        """Starts it again over the same spool."""
        self.start()
        self.wait_ready(lambda: answers(self.port))

    def delete(self, key: str) -> bytes:
        """The reply to a delete."""
        client = LeaseClient(self.port)
        try:
            return client.command(b"delete " + key.encode())
        finally:
            client.close()


def source_of(configuration) -> str:
    """A path, or what is in etcd, for `--config`."""
    return str(configuration) if str(configuration).startswith("etcd:") else f"file:{configuration}"


class UdpServer(Server):
    """A server whose UDP port is that of TCP."""

    def __init__(self, name: str, log_dir) -> None:
        self.port = free_port()
        command = [PROGRAMS / "lookaside-server", "-p", self.port, "-U", self.port, "-t", "2", "-m", "64"]
        Process.__init__(self, name, command, log_dir)
        self.wait_ready(lambda: answers(self.port))


def text_of(servers: list[Server], **pool) -> str:
    """A configuration with one pool."""
    addresses = [f"127.0.0.1:{server.port}" for server in servers]
    main = {"servers": addresses, "server_timeout": 300, **pool}
    return json.dumps({"pools": {"main": main}, "route": "PoolRoute|main"})


def replace(file, text: str) -> None:
    """Replaces the file, as an operator does, by a rename."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


@pytest.fixture
def start(tmp_path, servers):
    """Starts routers over the servers, and clients."""
    file, started = tmp_path / "router.json", []
    file.write_text(text_of(servers))

    def start_routers(count: int, *options: str) -> list[Router]:
        ports = [free_port() for _ in range(count)]
        routers = [Router(tmp_path, file, port, [peer for peer in ports if peer != port], *options) for port in ports]
        started.extend(routers)
        return routers

    def start_client(routers: list[Router], *options: str) -> DirectClient:
        client = DirectClient(file, [router.port for router in routers], *options)
        started.append(client)
        client.wait_permitted()
        return client

    yield file, start_routers, start_client
    for process in reversed(started):
        process.stop()


def commands(servers: list[Server], name: str) -> int:
    """A counter of all servers together."""
    return sum(int(stats(server.port)[name]) for server in servers)


def test_gets_go_to_servers_and_all_else_through_the_router(start, tmp_path):
    _, start_routers, start_client = start
    routers = start_routers(1)
    client = start_client(routers)
    before = int(stats(routers[0].port).get("cmd_lease_get", 0))
    row = tmp_path / "row"
    row.write_text("a value")
    for key in KEYS:
        assert client.call(f"read {key} {row}") == "miss"
        assert client.call(f"get {key}") == "hit a value", "it was filled through the router"
    assert client.call(f"delete {KEYS[0]}") == "deleted"
    assert client.get(KEYS[0]) is None
    assert int(stats(routers[0].port).get("cmd_lease_get", 0)) == before
    figures = client.statistics()
    assert figures["direct_reads"] >= 2 * len(KEYS) and figures["unpermitted_reads"] == 0
    assert figures["router_requests"] == len(KEYS) + 1
    assert int(stats(routers[0].port)["read_permits"]) > 0
    assert client.stop() == 0


def test_a_client_takes_leases_for_its_plain_requests_where_routers_do(start):
    _, start_routers, start_client = start
    (router,) = start_routers(1, "--leases", "--lease-hot-miss-wait", "20")
    client = start_client([router])
    assert client.call("plain k") == "miss"
    assert client.call("set k new") == "stored"
    assert (client.call("plain k"), client.get("k")) == ("hit new", "new")
    assert router.delete("k") == b"DELETED"
    assert client.call("plain k") == "miss"
    router.delete("k")
    assert client.call("set k old").startswith("error"), "it was read before the delete"
    assert client.get("k") is None
    assert client.call("set never_missed value").startswith("error"), "the router refuses a set without a miss"
    figures, shown = client.statistics(), stats(router.port)
    assert (figures["leased_reads"], figures["direct_reads"]) == (3, 5)
    assert (shown["plain_lease_sets_stored"], shown["plain_lease_sets_refused"]) == ("0", "0"), "it has seen no miss"


@pytest.mark.parametrize("without_miss", ["refuse", "pass", "only-if-absent"])
def test_a_set_through_another_router_than_its_miss_stores_nothing_old(start, without_miss):
    """Two threads of one client, and a router that dies between them. Once the routers took the leases: the first
    thread's value was stored by the second router, under the token of the second thread's miss."""
    _, start_routers, start_client = start
    options = ["--leases", "--lease-hot-miss-wait", "20", "--lease-set-without-miss", without_miss]
    routers = start_routers(2, *options)
    client = start_client(routers)
    assert client.call("plain k") == "miss", "the first thread reads the database: old"
    assert routers[1].delete("k") == b"NOT_FOUND"
    routers[0].kill()
    client.wait_permitted()
    eventually(lambda: client.call("delete absent") == "not_found", "the second router is used")
    assert client.call("plain k") == "miss", "the second thread reads the database: new"
    first, second = client.call("set k old"), client.call("set k new")
    assert first.startswith("error"), first
    assert client.call("plain k") in ("miss", "hit new")
    assert second == "stored" or second.startswith("error"), second


def test_updates_sent_directly_pass_through_routers_that_take_leases(start):
    """A set without a miss and the hold-off of a delete are theirs to judge: past them an old value was stored."""
    _, start_routers, start_client = start
    (router,) = start_routers(1, "--leases", "--lease-set-without-miss", "only-if-absent")
    client = start_client([router], "--updates-directly")
    assert client.call("set k 1") == "stored", "an add"
    assert client.call("set k 2").startswith("error"), "it is there"
    assert client.call("delete k") == "deleted"
    assert client.call("set k old").startswith("error"), "the delete has a hold-off"
    assert client.get("k") is None
    assert client.statistics()["direct_updates"] == 0


def test_a_server_is_not_read_after_a_delete_that_it_missed_was_acknowledged(start, servers):
    _, start_routers, start_client = start
    (router,) = start_routers(1)
    client = start_client([router])
    for round_number in range(8):
        for key in KEYS:
            assert client.call(f"set {key} {round_number}") == "stored"
        client.wait_permitted()
        with frozen(servers[round_number % 3]):
            for key in KEYS[:4]:
                assert router.delete(key) in (b"DELETED", b"NOT_FOUND")
            # The client may have reached the server before it was fenced; it answers when it continues.
        for key in KEYS[:4]:
            assert client.get(key) is None, (round_number, key)
        eventually(lambda: stats(router.port)["spool_servers_fenced"] == "0", "its deletes are replayed")
        for key in KEYS[:4]:
            assert client.get(key) is None, (round_number, key)
    assert client.statistics()["direct_reads"] > 0


def test_an_acknowledgement_waits_for_a_client_that_hangs_and_no_longer(start, servers):
    _, start_routers, start_client = start
    (router,) = start_routers(1)
    client = start_client([router])
    key = KEYS[0]
    assert client.call(f"set {key} old") == "stored"
    for server in servers:
        server.freeze()
    client.wait_permitted()
    client.freeze()
    began = time.monotonic()
    assert router.delete(key) == b"NOT_FOUND"
    waited = time.monotonic() - began
    assert 0.3 <= waited < 5, "the server timeout, and then the permit"
    for server in servers:
        server.thaw()
    client.thaw()
    for _ in range(50):
        assert client.get(key) is None


def test_routers_that_die_and_return(start, servers):
    _, start_routers, start_client = start
    routers = start_routers(2)
    client = start_client(routers)
    for key in KEYS:
        assert client.call(f"set {key} 1") == "stored"
    descriptors = client.descriptors()
    for victim in routers * 2:
        victim.kill()
        client.wait_permitted()
        assert client.get(KEYS[1]) == "1"

        # The other one may have been away a moment ago.
        def is_deleted() -> bool:
            return client.call(f"delete {KEYS[0]}") in ("deleted", "not_found")

        eventually(is_deleted, "the other router is found", 5)
        victim.restart()
    for router in routers:
        router.kill()
    eventually(lambda: not client.is_permitted(), "its permit ends", 5)
    assert client.call(f"get {KEYS[1]}").startswith("error")
    for router in routers:
        router.restart()
    client.wait_permitted()
    assert client.get(KEYS[1]) == "1"
    eventually(lambda: client.descriptors() <= descriptors + 2, "no descriptor is left over")


def test_servers_that_die_hang_and_return(start, servers):
    _, start_routers, start_client = start
    (router,) = start_routers(1)
    client = start_client([router])
    for key in KEYS:
        assert client.call(f"set {key} 1") == "stored"
    with frozen(servers[0]):
        began = time.monotonic()
        hits = sum(client.get(key) == "1" for key in KEYS)
        assert 0 < hits < len(KEYS) and time.monotonic() - began < 10, "keys of a server that hangs are errors, in time"
    servers[1].kill()
    hits = sum(client.get(key) == "1" for key in KEYS)
    assert 0 < hits < len(KEYS)
    eventually(lambda: sum(client.get(key) == "1" for key in KEYS) > hits - 2, "the server that hung is read again")


def test_no_old_value_is_read_while_the_configuration_changes_under_load(start, servers, tmp_path):
    file, start_routers, start_client = start
    routers = start_routers(2)
    client = start_client(routers)
    acknowledged, ends = dict.fromkeys(KEYS, 0), threading.Event()

    def write_row(key: str, number: int) -> None:
        replace(tmp_path / f"{key}.row", str(number))

    def write() -> None:
        number = 0
        while not ends.is_set():
            number += 1
            key = KEYS[number % len(KEYS)]
            write_row(key, number)
            if routers[number % 2].delete(key) in (b"DELETED", b"NOT_FOUND"):
                acknowledged[key] = number

    for key in KEYS:
        write_row(key, 0)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for pool in (servers[:2], servers, servers[1:], servers):
            replace(file, text_of(pool))
            until, direct = time.monotonic() + 20, client.statistics()["direct_reads"]
            steady = False
            while not steady or client.statistics()["direct_reads"] < direct + 200:
                assert time.monotonic() < until, "the client reads by the new configuration"
                for key in KEYS:
                    known = acknowledged[key]
                    reply = client.call(f"read {key} {tmp_path / f'{key}.row'}")
                    if reply.startswith("hit "):
                        assert int(reply.split()[1]) >= known, (key, reply, known)
                reads = [stats(router.port) for router in routers]
                steady = all(figures["configurations_covered"] == "1" for figures in reads) and client.is_permitted()
    finally:
        ends.set()
        writer.join()
    figures = client.statistics()
    assert figures["configurations"] >= 4 and figures["configurations_refused"] == 0


def test_gets_by_udp_and_a_server_that_hangs(start, tmp_path):
    file, start_routers, start_client = start
    servers = [UdpServer(f"udp-{index}", tmp_path) for index in range(2)]
    try:
        file.write_text(text_of(servers))
        (router,) = start_routers(1)
        client = start_client([router], "--udp")
        sizes = {key: 1 + 40 * number * number for number, key in enumerate(KEYS)}
        for key, size in sizes.items():
            assert client.call(f"set {key} {key:.<{size}}") == "stored"
        client.wait_permitted()
        for key, size in sizes.items():
            # A datagram may be lost when the machine is busy: then it is an error.
            assert client.call(f"get {key}") in (
                f"hit {key:.<{size}}",
                "error the cache refused: no reply by UDP in time",
            )
        figures = client.statistics()
        assert figures["udp_requests"] >= len(KEYS) * 0.9 and figures["direct_reads"] >= len(KEYS)
        assert figures["udp_malformed"] == figures["udp_reordered"] == figures["udp_unsent"] == 0
        with frozen(servers[0]):
            replies = [client.call(f"get {key}") for key in KEYS]
            assert any(reply.startswith("hit") for reply in replies)
            assert any(reply.startswith("error") for reply in replies)
            assert client.statistics()["udp_lost"] >= 3
        eventually(lambda: all(client.get(key) == f"{key:.<{sizes[key]}}" for key in KEYS), "it is read again", 60)
        assert router.delete(KEYS[0]) == b"DELETED"
        assert client.get(KEYS[0]) is None
        assert client.stop() == 0
    finally:
        for server in servers:
            server.stop()
