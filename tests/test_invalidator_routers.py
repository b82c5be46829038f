"""An invalidator and the routers of a cluster that hang, die and come back: deletes reach the servers through another
router at once, and a router that starts shows nothing that changed while it was down. The same for a router that
refuses deletes because it does not reach a server. A server that hangs for longer than batches may be unanswered delays
deletes of its own cluster, and of no other."""

import itertools
import json
import time

import pytest
from journal import Journal
from processes import Cluster, Invalidator, Server, answers, connect, eventually, free_port, frozen, stats
from routers import ask

KEYS = 50
# The most batches of a cluster that are unanswered, and the shortest time in which as many are sent, four each 10 ms.
# docs/operating/invalidation.md has both.
WINDOW_BATCHES = 1_024
WINDOW_S = 2.5


@pytest.fixture
def journal(tmp_path):
    """A database."""
    journal = Journal(tmp_path / "app.db")
    yield journal
    journal.connection.close()


@pytest.fixture
def region(tmp_path, journal, request):
    """A cluster of two routers, started with the test's arguments, and an invalidator."""
    cluster = Cluster("one", tmp_path, getattr(request, "param", ()))
    invalidator = None
    try:
        cluster.add_router()
        invalidator = Invalidator(journal.url, [cluster], tmp_path / "state", tmp_path)
        yield cluster, invalidator
    finally:
        for router in cluster.routers:
            router.thaw()
        if invalidator:
            invalidator.stop()
        cluster.stop()


def delete_seconds(journal: Journal, port: int, key: str) -> float:
    """Stores a value, commits a change of it, and returns how long the value stays in the cache."""
    client = connect(port)
    assert client.set(key, "old", noreply=False)
    start = time.monotonic()
    journal.commit(key)
    eventually(lambda: client.get(key) is None, f"{key} is deleted")
    return time.monotonic() - start


def test_a_hung_router_delays_no_delete_by_its_timeout(region, journal):
    """Each router was tried for five seconds, one after the other. A second one gets the deletes after 0.2 s; a busy
    machine may be slower than that."""
    cluster, invalidator = region
    for hung, healthy in [(0, 1), (1, 0)]:
        cluster.routers[hung].freeze()
        taken = [delete_seconds(journal, cluster.ports[healthy], f"key:{hung}:{number}") for number in range(10)]
        print("milliseconds from commit to empty:", [round(1e3 * seconds) for seconds in taken])
        assert max(taken) < 2.5, taken
        eventually(lambda: stats(invalidator.port)["cluster:one:routers_tko"] == "1", "the hung one is TKO")
        cluster.routers[hung].thaw()
        eventually(lambda: stats(invalidator.port)["cluster:one:routers_tko"] == "0", "it answers again")


def test_both_routers_carry_deletes(region, journal):
    """One of them had all, and the other nothing until the first one hung."""
    cluster, _ = region
    numbers = itertools.count()

    def carried() -> list[int]:
        delete_seconds(journal, cluster.ports[0], f"key:{next(numbers)}")
        return [int(stats(port)["cmd_delete"]) for port in cluster.ports]

    eventually(lambda: min(carried()) >= KEYS // 5, "both have carried deletes", seconds=60)


def add_cut_router(cluster: Cluster, *arguments: str) -> None:
    """Adds a router that does not reach the first server, as the one that the invalidator asks first."""
    configuration = cluster.configuration()
    configuration["pools"]["wildcard"]["servers"][0] = f"127.0.0.1:{free_port()}"
    cluster.configuration_path = cluster.log_dir / "cut-router.json"
    cluster.configuration_path.write_text(json.dumps(configuration))
    cluster.router_arguments = arguments
    cluster.add_router()
    cluster.ports.reverse()
    cluster.routers.reverse()


@pytest.mark.parametrize("has_spool", [False, True], ids=["plain", "spool"])
def test_deletes_that_a_router_refuses_reach_the_server_through_another(tmp_path, journal, has_spool):
    """A router that reached neither a server nor its peer refused the deletes, and was asked again for as long as that
    lasted, although the other router reached the server."""
    cluster = Cluster("one", tmp_path)
    invalidator = None
    try:
        spool = ("--spool", str(tmp_path / "spool"), "--spool-peers", f"127.0.0.1:{free_port()}") if has_spool else ()
        add_cut_router(cluster, *spool)
        invalidator = Invalidator(journal.url, [cluster], tmp_path / "state", tmp_path)
        taken = [delete_seconds(journal, cluster.ports[1], f"key:{number}") for number in range(KEYS)]
        assert max(taken) < 2.5, taken
        figures = stats(invalidator.port)
        assert int(figures["router_refusals"]) + int(figures["hedged_batches"]) > 0, figures
    finally:
        if invalidator:
            invalidator.stop()
        cluster.stop()


def test_pending_deletes_are_sent_when_a_router_is_back(region, journal):
    """Keys that had failed waited out their retry of up to a second, behind those that were new. That they go at once
    is asserted with a paused clock (`crates/invalidator/tests/hung_routers.rs`); here, that a real router's return
    counts."""
    cluster, invalidator = region
    clients = [connect(server.port) for server in cluster.servers]
    for number in range(KEYS):
        connect(cluster.ports[0]).set(f"key:{number}", "old", noreply=False)
    for router in cluster.routers:
        router.kill()
    for number in range(KEYS):
        journal.commit(f"key:{number}")
    eventually(lambda: stats(invalidator.port)["cluster:one:retry_queue_keys"] == str(KEYS), "all fail")
    cluster.routers[1].start()
    cluster.routers[1].wait_ready(lambda: answers(cluster.ports[1]))
    keys = [f"key:{number}" for number in range(KEYS)]
    eventually(lambda: not any(client.get_many(keys) for client in clients), "all are deleted")
    assert stats(invalidator.port)["cluster:one:recoveries"] != "0"


@pytest.mark.parametrize("region", [("--wait-for-invalidator", "60")], indirect=True)
def test_a_router_that_waits_for_the_invalidator_shows_nothing_old(region, journal):
    """All routers of a cluster are down while rows change. The first that is back served old values until their deletes
    had been sent."""
    cluster, invalidator = region
    keys = [f"key:{number}" for number in range(KEYS)]
    eventually(lambda: stats(cluster.ports[0])["start_gate_open"] == "1", "the first gate opens")
    assert all(connect(cluster.ports[0]).set(key, "old", noreply=False) for key in keys)
    for router in cluster.routers:
        router.kill()
    # The invalidator is away for a moment, so that the router is certainly up before it.
    invalidator.freeze()
    for key in keys:
        journal.commit(key)
    cluster.routers[0].start()
    cluster.routers[0].wait_ready(lambda: answers(cluster.ports[0]))

    def reply_to(command: str) -> bytes:
        return ask(cluster.ports[0], "127.0.0.1", command.encode() + b"\r\n")

    assert stats(cluster.ports[0])["start_gate_open"] == "0"
    for command in (f"get {keys[0]}", f"set {keys[0]} 0 0 3\r\nold"):
        assert reply_to(command).startswith(b"SERVER_ERROR router waits for the invalidator")
    invalidator.thaw()
    seen = []
    eventually(lambda: seen.append(reply_to(f"get {keys[-1]}")) or seen[-1].endswith(b"END\r\n"), "it serves gets")
    assert all(reply == b"END\r\n" or reply.startswith(b"SERVER_ERROR router waits") for reply in seen), seen
    assert [key for key in keys if reply_to(f"get {key}") != b"END\r\n"] == []
    eventually(lambda: stats(invalidator.port)["cluster:one:start_gates_opened"] != "0", "that is counted")


def test_a_router_waits_for_the_invalidator_of_each_database(tmp_path, journal):
    """Keys of two databases: the gate opened when the first invalidator had caught up, and old values of the other
    database were served."""
    other = Journal(tmp_path / "other.db")
    cluster = Cluster("one", tmp_path, ("--wait-for-invalidator", "60", "--wait-for-sources", "2"))
    port, invalidators = cluster.ports[0], []
    try:
        # One database twice, by two invalidators, is one.
        for name in ("a", "b"):
            invalidators.append(Invalidator(journal.url, [cluster], tmp_path / f"state-{name}", tmp_path))
            eventually(lambda: stats(invalidators[-1].port)["cluster:one:start_gates_opened"] == "1", "it reports")
            assert stats(port)["start_gate_open"] == "0"
            assert ask(port, "127.0.0.1", b"get k\r\n").startswith(b"SERVER_ERROR router waits for the invalidator")
        invalidators.append(Invalidator(other.url, [cluster], tmp_path / "state-c", tmp_path))
        eventually(lambda: stats(port)["start_gate_open"] == "1", "the gate opens")
        assert ask(port, "127.0.0.1", b"get k\r\n") == b"END\r\n"
    finally:
        for invalidator in invalidators:
            invalidator.stop()
        cluster.stop()
        other.connection.close()


@pytest.mark.parametrize("region", [("--wait-for-invalidator", "1")], indirect=True)
def test_a_router_waits_no_longer_than_its_bound(region):
    """Without an invalidator."""
    cluster, invalidator = region
    invalidator.stop()
    cluster.routers[0].kill()
    cluster.routers[0].start()
    cluster.routers[0].wait_ready(lambda: answers(cluster.ports[0]))
    eventually(lambda: stats(cluster.ports[0])["start_gate_open"] == "1", "the bound is over")
    assert "has not caught up within --wait-for-invalidator" in cluster.routers[0].log()
    assert connect(cluster.ports[0]).get("key") is None


def stored_at(server: Server, keys: list[str]) -> list[str]:
    """Those of the keys that a server holds, in their order."""
    client = connect(server.port)
    try:
        found = client.get_many(keys)
    finally:
        client.close()
    return [key for key in keys if key in found]


def test_a_server_that_hangs_for_longer_than_the_window_delays_its_own_cluster_only(tmp_path, journal):
    """The router's server timeout is longer than the window of unanswered batches. While it is full, nothing is sent to
    its cluster, nor to the healthy server there; another cluster has its deletes at once; and none is lost."""
    clusters = [Cluster("slow", tmp_path, ("--server-timeout", "60000")), Cluster("fresh", tmp_path)]
    slow, fresh = clusters
    hung, healthy = slow.servers
    invalidator = None
    try:
        # Each key is a batch of its own, as when each commit names one and they come in fast.
        arguments = ("--batch-keys-max", "1", "--router-timeout-ms", "120000")
        invalidator = Invalidator(journal.url, clusters, tmp_path / "state", tmp_path, *arguments)
        keys = [f"key:{number}" for number in range(4 * WINDOW_BATCHES)]
        for cluster in clusters:
            assert cluster.client(30).set_many(dict.fromkeys(keys, "old")) == []
        first, *_ = stored_at(hung, keys)
        early, late, *others = stored_at(healthy, keys)
        others = others[: WINDOW_BATCHES + KEYS]
        assert len(others) == WINDOW_BATCHES + KEYS

        def figure(cluster: Cluster, name: str) -> str:
            return stats(invalidator.port)[f"cluster:{cluster.name}:{name}"]

        def held(cluster: Cluster, keys: list[str]) -> int:
            return sum(len(stored_at(server, keys)) for server in cluster.servers)

        with frozen(hung):
            # The batch of the first key is unanswered from here on, and so are all behind it.
            journal.commit(first)
            eventually(lambda: held(fresh, [first]) == 0, "the other cluster has it")
            journal.commit(early)
            eventually(lambda: stored_at(healthy, [early]) == [], "a healthy server does not wait for a hung one")
            start = time.monotonic()
            journal.commit(*others)
            eventually(lambda: figure(slow, "batches") == str(WINDOW_BATCHES), "the window is full", 60)
            assert time.monotonic() - start > WINDOW_S
            unsent = len(others) + 2 - WINDOW_BATCHES
            eventually(lambda: len(stored_at(healthy, others)) == unsent, "all that was sent is applied")
            eventually(lambda: held(fresh, others) == 0, "the other cluster has all")
            journal.commit(late)
            eventually(lambda: held(fresh, [late]) == 0, "and what is committed then")
            eventually(lambda: figure(slow, "pending_keys") == str(len(others) + 3), "it waits in the slow cluster")
            assert len(stored_at(healthy, [late, *others])) == unsent + 1
            assert figure(slow, "batches") == str(WINDOW_BATCHES) and figure(slow, "state") == "running"
            # A restart would send all of it again, and nothing of the other cluster.
            committed = str(len(others) + 3)
            eventually(lambda: figure(fresh, "position") == committed, "the position of the other cluster moves on")
            assert figure(slow, "position") == "0" and int(figure(slow, "oldest_pending_ms")) > WINDOW_S * 1e3
        eventually(lambda: figure(slow, "position") == committed, "all is acknowledged")
        assert held(slow, [first, early, late, *others]) == 0 and figure(slow, "pending_keys") == "0"
    finally:
        if invalidator:
            invalidator.stop()
        for cluster in clusters:
            cluster.stop()
