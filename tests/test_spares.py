"""A server stays dead: a spare takes its place, and what was deleted meanwhile is read from neither (§3.3)."""

import json
import urllib.request

import pytest
from processes import PROGRAMS, Process, Server, answers, connect, eventually, free_port, stats
from resized_region import Router, text_of


class Spared:
    """Two servers and a spare behind a router with a spool."""

    def __init__(self, log_dir) -> None:
        self.servers = [Server(name, log_dir) for name in ("first", "second")]
        self.spare = Server("spare", log_dir)
        self.port, self.metrics_port = free_port(), free_port()
        pool = {
            "servers": [f"127.0.0.1:{server.port}" for server in self.servers],
            "spares": [f"127.0.0.1:{self.spare.port}"],
            "spare_after_ms": 500,
        }
        configuration = json.dumps({"pools": {"main": pool}, "route": "PoolRoute|main"})
        command = [
            PROGRAMS / "lookaside-router", "-p", self.port, "--num-proxies", "2", "--config-str", configuration,
            "--probe-timeout-initial", "50", "--probe-timeout-max", "200", "--spool", log_dir / "spool",
            "--metrics-address", self.metrics_port,
        ]  # fmt: skip
        self.router = Process("router", command, log_dir)
        self.router.wait_ready(lambda: answers(self.port))

    def stat(self, name: str) -> int:
        """A figure of the router."""
        return int(stats(self.port)[name])

    def metric(self, name: str) -> int:
        """The same as Prometheus reads it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"lookaside_router_{name} "))

    def stop(self) -> None:
        """Ends all."""
        for process in [self.router, *self.servers, self.spare]:
            process.stop()


@pytest.fixture
def spared(tmp_path):
    """Two servers and a spare."""
    spared = Spared(tmp_path)
    yield spared
    spared.stop()


def test_a_spare_takes_the_place_of_a_dead_server_and_gives_it_back(spared):
    old_life = connect(spared.spare.port)
    keys = [f"key:{number}" for number in range(40)]
    for key in keys:
        old_life.set(key, b"of an earlier life")
    old_life.close()
    client = connect(spared.port)
    for key in keys:
        client.set(key, b"first")
    victim, other = spared.servers
    victim.kill()
    eventually(lambda: spared.stat("spares_in_use") == 1, "the spare serves")
    assert (spared.metric("spares_serving"), spared.metric("spare_takeovers_total")) == (1, 1)

    of_victim = [key for key in keys if client.get(key) is None]
    assert 0 < len(of_victim) < len(keys), "the other server's keys stay where they are"
    assert int(stats(other.port)["cmd_get"]) == len(keys) - len(of_victim)
    for key in of_victim:
        client.set(key, b"second")
    client.delete(of_victim[0], noreply=False)
    assert client.get(of_victim[0]) is None
    assert all(client.get(key) == b"second" for key in of_victim[1:])
    places = client.get("__mcrouter__.spares").decode().splitlines()
    assert places == [f"main 127.0.0.1:{victim.port} replaced_by:127.0.0.1:{spared.spare.port}"]

    victim.restart()
    eventually(lambda: spared.stat("spare_returns") == 1, "the server has its place again")
    assert (spared.metric("spares_serving"), spared.metric("spare_returns_total")) == (0, 1)
    assert spared.stat("spool_replayed") == 1
    before = int(stats(victim.port)["cmd_get"])
    assert all(client.get(key) is None for key in of_victim), "it was restarted, and is empty"
    assert int(stats(victim.port)["cmd_get"]) == before + len(of_victim)
    client.close()


@pytest.fixture
def peers(tmp_path):
    """A server, a server that becomes its spare, and two routers that are each other's peers."""
    started = [Server(name, tmp_path) for name in ("server", "spare")]
    ports = [free_port(), free_port()]
    text = text_of(started[:1])
    try:
        for port, peer in (ports, ports[::-1]):
            started.append(Router(tmp_path, text, port, [peer]))
        yield started
    finally:
        for process in started:
            process.stop()


def test_a_new_spare_serves_only_when_all_peers_send_deletes_there(peers):
    """The other router still has the former file, which does not name the spare."""
    server, spare, router, other = peers
    other.kill()
    server.kill()
    with_spare = text_of([server], spares=[f"127.0.0.1:{spare.port}"], spare_after_ms=100)
    router.configure(with_spare)
    waits = "waiting_for_peers"
    eventually(lambda: stats(router.port)["resize_state"] == waits, "it waits for the other", 20)
    assert not router.reads_by(with_spare) and router.admin("spares") == ""

    other.restart()
    eventually(
        lambda: router.reads_by(with_spare) and stats(router.port)["spares_in_use"] == "1", "the spare serves", 30
    )
    through_router, through_other, at_spare = (connect(port) for port in (router.port, other.port, spare.port))
    assert through_router.set("key", b"old", noreply=False) and at_spare.get("key") == b"old"
    assert not other.reads_by(with_spare)
    through_other.delete("key", noreply=False)
    assert at_spare.get("key") is None
    for client in (through_router, through_other, at_spare):
        client.close()
