"""A client that reads servers directly, by the configuration of its routers."""

import asyncio
import json
import os
import signal
import time

import pytest
from both_clients import KINDS, open_client
from direct_routers import Router, start_router_of_replicas, wait_permitted
from etcd import Etcd
from leases import LeaseClient
from lookaside import AsyncClient, CacheUnavailableError, Client, Hedge, LookasideError
from processes import connect, eventually, frozen, run_in_children, stats

KEYS = [f"row:{number}" for number in range(60)]
# A permit is valid for this long; the client asks for the next one before that.
PERMIT_S = 0.2
# The constructor of a client that needs its configuration waits for it during this time.
CONFIGURATION_S = 10


def text_of(servers) -> str:
    """A configuration with one pool."""
    addresses = [f"127.0.0.1:{server.port}" for server in servers]
    return json.dumps({"pools": {"main": {"servers": addresses, "server_timeout": 300}}, "route": "PoolRoute|main"})


@pytest.fixture
def router(tmp_path, servers):
    """A router over three servers, and the file of its configuration."""
    file = tmp_path / "router.json"
    file.write_text(text_of(servers))
    router = Router(tmp_path, f"file:{file}")
    yield router
    router.thaw()
    router.stop()


@pytest.fixture
def direct(router):
    """A client that has its first permit."""
    with Client([router.address], config=router.config, timeout=5) as cache:
        wait_permitted(cache)
        yield cache


def test_gets_go_to_servers_and_all_else_through_the_router(direct, router):
    before = stats(router.port)
    direct.set(KEYS[0], 0)
    for number, key in enumerate(KEYS[1:], 1):
        assert direct.get_or_load(key, lambda number=number: number) == number
    assert direct.get_many(KEYS) == dict(zip(KEYS, range(60), strict=True))
    assert [direct.get(key) for key in KEYS] == list(range(60))
    assert direct.delete(KEYS[0]) is True
    assert direct.get(KEYS[0]) is None
    after = stats(router.port)
    assert after.get("cmd_lease_get") == before.get("cmd_lease_get")
    figures = direct.stats()
    assert figures["direct.direct_reads"] >= 179 and figures["direct.unpermitted_reads"] == 0
    assert figures["direct.router_requests"] == 61
    assert direct.explain(KEYS[0]).pool == "main"


@pytest.mark.parametrize("kind", KINDS)
def test_a_pool_explains_the_keys_that_it_sends(tmp_path, servers, kind):
    """Once the prefix was left out: the explanation was that of another key, with its pool and its server."""
    users, rest = ({"servers": [f"127.0.0.1:{server.port}"]} for server in servers[:2])
    pools = {"users": users, "rest": rest}
    routes = {"type": "PrefixSelectorRoute", "policies": {"user:": "PoolRoute|users"}, "wildcard": "PoolRoute|rest"}
    other = {"aliases": ["/west/other/"], "route": "PoolRoute|users"}
    file = tmp_path / "prefixes.json"
    file.write_text(json.dumps({"pools": pools, "routes": [{"aliases": ["/west/own/"], "route": routes}, other]}))
    router = Router(tmp_path, f"file:{file}", "-R", "/west/own/")
    try:
        with open_client(kind, [router.address], timeout=5) as cache:
            assert cache.explain("1").pool == "rest"
            users = cache.pool("user:")
            explained = users.explain("1")
            assert (explained.key, explained.pool) == ("user:1", "users")
            assert explained.server == f"127.0.0.1:{servers[0].port}"
            users.set("1", "ada")
            assert connect(servers[0].port).get("user:1") == b"ada"
            assert cache.pool("/west/other/").explain("1", "delete").pool == "users"
    finally:
        router.stop()


def test_permits_are_renewed_while_there_are_no_calls(direct):
    """No call drives the runtime: the keeper does."""
    renewed = direct.stats()["direct.permits"] + 5
    began = time.monotonic()
    eventually(lambda: direct.stats()["direct.permits"] >= renewed, "permits are renewed")
    assert time.monotonic() - began > PERMIT_S, "a permit is asked for every 70 ms"
    assert direct.stats()["direct.permits_unanswered"] == 0


def test_without_a_permit_reads_go_through_the_router(direct, router):
    direct.set("k", 1)
    router.freeze()
    eventually(lambda: direct.stats()["direct.is_permitted"] == 0, "the permit ends")
    with pytest.raises(LookasideError):
        direct.get("k", timeout=0.1)
    router.thaw()
    wait_permitted(direct)
    assert direct.get("k") == 1


def test_a_server_is_not_read_after_a_delete_that_it_missed_was_acknowledged(direct, router, servers):
    operator = LeaseClient(router.port)
    for round_number in range(4):
        for key in KEYS:
            direct.set(key, round_number)
        wait_permitted(direct)
        with frozen(servers[round_number % 3]):
            for key in KEYS[:4]:
                assert operator.command(b"delete " + key.encode()) in (b"DELETED", b"NOT_FOUND")
        for key in KEYS[:4]:
            assert direct.get_or_load(key, lambda: "new", wait=0) == "new", (round_number, key)
        eventually(lambda: stats(router.port)["spool_servers_fenced"] == "0", "its deletes are replayed")
    operator.close()
    assert direct.stats()["direct.direct_reads"] > 0


def test_a_server_that_is_gone_fails_its_own_keys_only(direct, servers):
    for key in KEYS:
        direct.set(key, 1)
    servers[0].kill()
    found = direct.get_many(KEYS)
    assert 0 < len(found) < len(KEYS) and set(found.values()) == {1}
    assert direct.stats()["errors"] > 0
    assert direct.get_or_load_many(KEYS, lambda keys: [1] * len(keys)) == dict.fromkeys(KEYS, 1)
    lost = next(key for key in KEYS if key not in found)
    with pytest.raises(CacheUnavailableError, match=f"no reply from the cache: 127.0.0.1:{servers[0].port}: "):
        direct.get(lost)


def test_an_event_loop_reads_servers_directly(router):
    async def main() -> None:
        async with AsyncClient([router.address], config=router.config, timeout=5) as cache:
            await asyncio.to_thread(wait_permitted, cache)
            await asyncio.gather(*(cache.set(key, key) for key in KEYS))
            assert await asyncio.gather(*(cache.get(key) for key in KEYS)) == KEYS
            assert cache.stats()["direct.direct_reads"] >= len(KEYS)

    asyncio.run(main())


LOOKUPS = {
    "get": lambda cache: cache.get("k"),
    "get_many": lambda cache: cache.get_many(["k"])["k"],
    "get_or_load": lambda cache: cache.get_or_load("k", lambda: "loaded"),
}


@pytest.fixture
def replicated(tmp_path, servers):
    """A router over servers that are replicas."""
    router = start_router_of_replicas(tmp_path, servers)
    yield router
    router.stop()


def hedged(router, **options):
    """The arguments of a client of the first server, whose late lookups the second one answers."""
    hedge = Hedge("/west/p1/", delay=0.02, share_max=1, **options)
    return {"config": router.config, "routing_prefix": "/west/p0/", "hedge": hedge, "timeout": 60}


@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_late_lookup_is_answered_by_a_replica(replicated, servers, kind, lookup):
    with open_client(kind, [replicated.address], **hedged(replicated, plain_gets=lookup != "get_or_load")) as cache:
        wait_permitted(cache)
        for server in servers:
            assert connect(server.port).set("k", "replicated", flags=16)
        with frozen(servers[0]):
            assert LOOKUPS[lookup](cache) == "replicated"
        figures = cache.stats()
        assert figures["hedges"] == figures["hedges_won"] == 1 and figures["loads"] == 0, figures


@pytest.mark.parametrize("kind", KINDS)
def test_a_get_is_not_older_than_the_last_set(replicated, servers, kind):
    """Replicas get deletes, and not sets. Once a late get returned the replica's value."""
    with open_client(kind, [replicated.address], **hedged(replicated)) as cache:
        wait_permitted(cache)
        assert connect(servers[1].port).set("session", "old", flags=16)
        cache.set("session", "new")
        with frozen(servers[0]):
            for late in (lambda: cache.get("session", timeout=0.2), lambda: cache.get_many(["session"], timeout=0.2)):
                with pytest.raises(LookasideError):
                    late()
        eventually(lambda: cache.get("session") == "new", "the server is read again")
        assert cache.stats()["hedges"] == 0


def test_a_configuration_in_etcd_is_followed(tmp_path, servers):
    etcd = Etcd(tmp_path)
    source = f"etcd://127.0.0.1:{etcd.port}/lookaside"
    etcd.put("lookaside", text_of(servers[:2]))
    router = Router(tmp_path, source)
    try:
        with Client([router.address], config=source, timeout=5) as cache:
            wait_permitted(cache)
            cache.set("k", 1)
            assert cache.get("k") == 1
            etcd.put("lookaside", text_of(servers))
            eventually(lambda: cache.stats()["direct.configurations"] == 1, "the new configuration is read")
            before = int(stats(servers[2].port)["cmd_get"])

            def is_third_server_read() -> bool:
                cache.get_many(KEYS)
                return int(stats(servers[2].port)["cmd_get"]) > before

            eventually(is_third_server_read, "reads go to the server that was added")
    finally:
        router.stop()
        etcd.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_does_not_wait_for_the_configuration(tmp_path, servers, kind):
    """Once the first call of a child waited for etcd, for 10 s whatever its timeout was, and then raised."""
    etcd = Etcd(tmp_path)
    source = f"etcd://127.0.0.1:{etcd.port}/lookaside"
    etcd.put("lookaside", text_of(servers))
    router = Router(tmp_path, source)
    called = tmp_path / "called"
    try:
        with open_client(kind, [router.address], config=source, timeout=CONFIGURATION_S) as cache:
            wait_permitted(cache)
            cache.set("k", 1)

            def child() -> None:
                began = time.monotonic()
                # It needs an event loop of its own, as the other one is its parent's.
                found = asyncio.run(cache.client.get("k")) if kind == "AsyncClient" else cache.get("k")
                assert found == 1 and time.monotonic() - began < CONFIGURATION_S
                assert cache.stats()["direct.direct_reads"] == 0, "through the router"
                called.touch()
                wait_permitted(cache)

            def restart_etcd() -> None:
                eventually(called.exists, "the child has called", 2 * CONFIGURATION_S)
                # Not `thaw`: etcd is no child of this process.
                os.kill(etcd.running.pid, signal.SIGCONT)

            etcd.freeze()
            run_in_children([child, restart_etcd])
    finally:
        etcd.thaw()
        router.stop()
        etcd.stop()
