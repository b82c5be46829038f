"""A client that reads servers directly while processes hang or are away: its calls end by their deadline, no value is
wrong, and no task or descriptor is left behind."""

import contextlib
import json
import threading
import time

import pytest
from direct_client import DirectClient
from etcd import Etcd
from processes import Server, eventually, free_port, frozen, silent_address, stats
from test_direct_client import KEYS, Router, UdpServer, replace, text_of

DEADLINE_MS = 400
# For a loaded machine: a tenth of what a call without a deadline may take.
MARGIN_MS = 600
ETCD_KEY = "lookaside/direct"


@contextlib.contextmanager
def routers_of(tmp_path, configuration, count: int = 2):
    """Routers of one cluster."""
    ports = [free_port() for _ in range(count)]
    with contextlib.ExitStack() as stops:
        routers = []
        for port in ports:
            router = Router(tmp_path, configuration, port, [peer for peer in ports if peer != port])
            stops.callback(router.stop)
            routers.append(router)
        yield routers


@contextlib.contextmanager
def client_of(configuration, routers: list[Router], *options: str):
    """A client whose calls have a deadline."""
    client = DirectClient(configuration, [router.port for router in routers], *options, "--deadline", str(DEADLINE_MS))
    try:
        client.wait_permitted()
        yield client
    finally:
        client.stop()


class Leaks:
    """The tasks, connections and other descriptors of a client at rest. It connects to a router
    when another is slow: one that had fewer connections than another at first may have as many."""

    def __init__(self, client: DirectClient) -> None:
        self.client, self.tasks = client, client.tasks()
        self.connections = client.connections()
        self.others = client.descriptors() - self.connections.total()

    def left_over(self) -> dict[str, int]:
        """What there is more of than at first."""
        now = self.client.connections()
        most = max(self.connections.values())
        ports = {port: count for port, count in now.items() if count > most}
        others = self.client.descriptors() - now.total()
        return ports | ({"others": others} if others > self.others else {})

    def check(self) -> None:
        """Waits until there are no more than at first."""
        eventually(lambda: self.client.tasks() <= self.tasks, f"no more than {self.tasks} tasks run")
        try:
            eventually(lambda: not self.left_over(), "no more descriptors are open than at first")
        except AssertionError:
            pytest.fail(f"left over: {self.left_over()}; at first: {self.connections}, and {self.others} others")


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_calls_end_in_time_while_processes_hang(tmp_path, protocol):
    """Servers and routers that are connected and never answer, one, some and all of them."""
    make = UdpServer if protocol == "udp" else Server
    options = ["--udp"] if protocol == "udp" else []
    file = tmp_path / "router.json"
    with contextlib.ExitStack() as stops:
        servers = []
        for index in range(3):
            servers.append(make(f"server-{index}", tmp_path))
            stops.callback(servers[-1].stop)
        file.write_text(text_of(servers))
        routers = stops.enter_context(routers_of(tmp_path, file))
        client = stops.enter_context(client_of(file, routers, *options))
        for key in KEYS:
            assert client.call(f"set {key} {key}") == "stored"

        def all_are_read() -> bool:
            return client.is_permitted() and all(client.get(key) == key for key in KEYS)

        # Once each, so that connections to both routers are made before leaks are looked for.
        for router in routers:
            with frozen(router):
                client.burst(1, KEYS)
                # None of the keys that are read: the frozen one may execute it once it goes on.
                eventually(lambda: client.call("delete absent") == "not_found", "the other one is used")
        eventually(all_are_read, "all is well")
        leaks = Leaks(client)
        for hung in ([servers[0]], [*servers], [routers[0]], [*routers], [*routers, *servers]):
            with contextlib.ExitStack() as thaws:
                for process in hung:
                    thaws.enter_context(frozen(process))
                until, slowest = time.monotonic() + 2, 0
                while time.monotonic() < until:
                    slowest = max(slowest, client.burst(20, KEYS)["slowest_ms"])
                    began = time.monotonic()
                    client.call(f"delete absent:{len(hung)}")
                    slowest = max(slowest, int((time.monotonic() - began) * 1000))
                    assert client.get(KEYS[0]) in (None, KEYS[0])
                assert slowest < DEADLINE_MS + MARGIN_MS, (slowest, [process.name for process in hung])
            eventually(all_are_read, f"all is well after {[process.name for process in hung]}", 60)
            leaks.check()
        figures = client.statistics()
        assert figures["direct_reads"] > 0 and figures["unpermitted_reads"] > 0


def test_servers_that_cannot_be_connected_to(tmp_path, servers):
    """A connection to the host is neither made nor refused."""
    file = tmp_path / "router.json"
    with silent_address() as silent:
        configuration = json.loads(text_of(servers))
        configuration["pools"]["main"]["servers"][1] = silent
        file.write_text(json.dumps(configuration))
        with routers_of(tmp_path, file) as routers, client_of(file, routers) as client:
            for key in KEYS:
                client.call(f"set {key} {key}")
            slowest = max(client.burst(20, KEYS)["slowest_ms"] for _ in range(20))
            assert slowest < DEADLINE_MS + MARGIN_MS
            values = [client.get(key) for key in KEYS]
            assert 0 < sum(value is not None for value in values) < len(KEYS)
            assert all(value in (None, key) for key, value in zip(KEYS, values, strict=True))
            leaks = Leaks(client)
            for _ in range(20):
                client.burst(20, KEYS)
            leaks.check()


def test_etcd_hangs_dies_and_returns_while_the_configuration_changes_under_load(tmp_path, servers):
    """Reads go on by the configuration that the client has, and follow each change; none returns a deleted value."""
    etcd = Etcd(tmp_path)
    etcd.put(ETCD_KEY, text_of(servers))
    source = f"etcd://127.0.0.1:{etcd.port}/{ETCD_KEY}"
    acknowledged, ends = dict.fromkeys(KEYS, 0), threading.Event()
    with contextlib.ExitStack() as stops:
        stops.callback(etcd.stop)
        routers = stops.enter_context(routers_of(tmp_path, source))
        client = stops.enter_context(client_of(source, routers))

        def write() -> None:
            number = 0
            while not ends.is_set():
                number += 1
                key = KEYS[number % len(KEYS)]
                replace(tmp_path / f"{key}.row", str(number))
                if routers[number % 2].delete(key) in (b"DELETED", b"NOT_FOUND"):
                    acknowledged[key] = number

        def read_all() -> None:
            for key in KEYS:
                known = acknowledged[key]
                reply = client.call(f"read {key} {tmp_path / f'{key}.row'}")
                if reply.startswith("hit "):
                    assert int(reply.split()[1]) >= known, (key, reply, known)

        def read_directly(count: int = 300) -> None:
            direct, until = client.statistics()["direct_reads"], time.monotonic() + 30
            while client.statistics()["direct_reads"] < direct + count:
                assert time.monotonic() < until, "the client reads servers"
                read_all()

        def follow(pool: list[Server], configurations: int) -> None:
            etcd.put(ETCD_KEY, text_of(pool))
            until, is_steady = time.monotonic() + 30, False
            while not is_steady:
                assert time.monotonic() < until, "the client reads by the new configuration"
                read_all()
                covered = [stats(router.port)["configurations_covered"] for router in routers]
                figures = client.statistics()
                is_steady = figures["configurations"] >= configurations and covered == ["1", "1"]
            read_directly()

        for key in KEYS:
            replace(tmp_path / f"{key}.row", "0")
        writer = threading.Thread(target=write)
        writer.start()
        try:
            read_directly()
            leaks = Leaks(client)
            with frozen(etcd):
                read_directly()
            follow(servers[:2], 1)
            etcd.kill()
            read_directly()
            etcd.restart()
            follow(servers, 2)
        finally:
            ends.set()
            writer.join()
        leaks.check()
        assert client.statistics()["configurations_refused"] <= 2, "only what could not be read"
