"""The calls of `lookaside.Client` through a router, and what they count."""

import asyncio
import threading

import pytest
from lookaside import (
    AsyncClient,
    CacheUnavailableError,
    Client,
    ClosedError,
    ConfigurationError,
    DeadlineExceededError,
    Hedge,
    InvalidKeyError,
    RefusedError,
    RouterOptions,
    Udp,
    Window,
)
from processes import free_port, frozen


def test_a_value_is_stored_read_and_deleted(cache):
    assert cache.get("k") is None
    assert cache.get("k", default="none") == "none"
    cache.set("k", "value")
    assert cache.get("k") == cache.get(b"k") == "value"
    assert cache.delete("k") is True
    assert cache.delete("k") is False
    assert cache.get("k") is None


def test_many_keys_are_read_at_once(cache):
    for number in range(100):
        cache.set(f"many:{number}", number)
    before = cache.stats()["round_trips"]
    keys = [f"many:{number}" for number in range(110)]
    assert cache.get_many(keys) == {f"many:{number}": number for number in range(100)}
    assert cache.stats()["round_trips"] - before == 1
    assert cache.get_many([]) == {}


def test_a_value_expires(cache, cluster):
    cache.set("short", "x", ttl=1)
    cache.set("long", "x", ttl=3600 * 24 * 60)
    assert cache.get_many(["short", "long"]) == {"short": "x", "long": "x"}
    servers = [cluster.client().raw_command(b"mg long t", b"\r\n")]
    remaining = int(servers[0].split(b" t")[1])
    assert 3600 * 24 * 59 < remaining <= 3600 * 24 * 60, "more than 30 days are no Unix time"


@pytest.mark.parametrize("ttl", [0, -1])
def test_a_ttl_that_means_nothing_is_refused(cache, ttl):
    with pytest.raises(ConfigurationError, match="expected more than 0"):
        cache.set("k", "x", ttl=ttl)


@pytest.mark.parametrize("key", ["", "two words", "x" * 251, b"\n"])
def test_an_invalid_key_is_refused(cache, key):
    for call in (cache.get, cache.delete, lambda key: cache.get_many(["good", key]), lambda key: cache.set(key, 1)):
        with pytest.raises(InvalidKeyError):
            call(key)
    with pytest.raises(InvalidKeyError):
        cache.get_or_load(key, lambda: pytest.fail("nothing is loaded"))


def test_a_key_of_another_type_is_refused(cache):
    with pytest.raises(TypeError, match="a key is str or bytes, not int"):
        cache.get(42)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "no router"),
        ((["nowhere"],), "not HOST:PORT"),
        ((["127.0.0.1:x"],), "not HOST:PORT"),
    ],
)
def test_bad_routers_are_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        Client(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout is 0 s; expected more than 0"),
        ({"compression": "rot13"}, "rot13"),
        ({"config": "/a/file"}, "expected file:PATH"),
        ({"config": "etcds://h:1/k"}, "needs tls="),
        ({"hedge": Hedge("/a/b/")}, "replicas are read directly"),
        ({"udp": Udp()}, "routers are reached by TCP"),
        ({"window": None}, "window= without config="),
        ({"window": Window.fixed(5)}, "window= without config="),
        ({"send_updates_directly": True}, "without config="),
        ({"router_options": RouterOptions(allow_only_gets=True)}, "router_options= without config="),
        ({"config": "file:/nowhere", "window": Window(min=200)}, "initial 100, min 200"),
        ({"config": "file:/nowhere", "window": Window.fixed(0)}, "expected 1 <= min"),
        ({"config": "file:/nowhere", "window": Window(control="paper")}, "control .paper."),
        ({"config": "file:/nowhere", "window": Window(wait=0)}, "window: wait is 0 s; expected more than 0"),
        ({"config": "file:/nowhere", "udp": Udp(port=65_536)}, "port 65536; expected 1 to 65535"),
        ({"config": "file:/nowhere", "udp": Udp(timeout=-1)}, "udp: timeout is -1 s; expected more than 0"),
        ({"config": "file:/nowhere", "router_options": RouterOptions(lease_miss_age=60)}, "without leases=True"),
        ({"router_options": RouterOptions(leases=True, lease_miss_age=0)}, "expected 1 to 3600"),
        ({"router_options": RouterOptions(leases=True, lease_hot_miss_wait=2)}, "expected 0 to 1 s"),
        ({"router_options": RouterOptions(connect_timeout=0)}, "router_options: connect_timeout is 0 s"),
        ({"router_options": RouterOptions(big_value_split_threshold=-1)}, "-1; expected 0 or more"),
        ({"config": "file:/nowhere", "hedge": Hedge("/a/b/", share_max=2)}, "share_max 2"),
        ({"config": "file:/nowhere", "hedge": Hedge("a")}, "hedge: replicas: .*routing prefix"),
        ({"config": "file:/nowhere", "routing_prefix": "a"}, "routing_prefix: .*routing prefix"),
        ({"config": "file:/nowhere/at/all"}, "/nowhere/at/all"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Client(["127.0.0.1:1"], **options)


def test_no_router_that_answers_is_an_error_but_not_for_a_read_through():
    with Client([f"127.0.0.1:{free_port()}"]) as cache:
        for call in (
            lambda: cache.get("k"),
            lambda: cache.get_many(["k", "l"]),
            lambda: cache.set("k", 1),
            lambda: cache.delete("k"),
        ):
            with pytest.raises(CacheUnavailableError):
                call()
        assert cache.get_or_load("k", lambda: "loaded") == "loaded"


def test_a_router_that_is_gone_is_replaced_by_the_next_one(address):
    with Client([f"127.0.0.1:{free_port()}", address]) as cache:
        cache.set("k", "x")
        assert cache.get("k") == "x"


def test_a_router_that_hangs_costs_the_timeout_at_most(cluster, cache):
    cache.set("k", "old")
    with frozen(cluster.router):
        with pytest.raises(DeadlineExceededError):
            cache.get("k", timeout=0.05)
        assert cache.get_or_load("k", lambda: "loaded", timeout=0.05, wait=0) == "loaded"
    assert cache.get("k") == "old", "what was loaded without an answer was not filled"


def test_a_value_that_is_too_large_is_refused(cache):
    with pytest.raises(RefusedError, match="too large"):
        cache.set("k", b"x" * (2 << 20))
    assert cache.get_or_load("k", lambda: b"x" * (2 << 20)) == b"x" * (2 << 20)


def test_a_closed_client_refuses_calls(address):
    cache = Client([address])
    cache.set("k", 1)
    cache.close()
    cache.close()
    with pytest.raises(ClosedError):
        cache.get("k")


def test_a_pool_is_a_prefix(cache):
    users = cache.pool("user:")
    users.set("1", "ada")
    assert cache.get("user:1") == "ada"
    assert users.pool("x:").get("1") is None
    assert users.get_or_load("2", lambda: "bob") == cache.get("user:2") == "bob"
    assert users.get_many(["1", "2"]) == {"1": "ada", "2": "bob"}
    assert users.delete("1") and cache.get("user:1") is None


def test_explain_names_the_pool_and_the_server(cache, cluster):
    explanation = cache.explain("user:1")
    assert explanation.pool == "wildcard"
    assert explanation.server in {f"127.0.0.1:{server.port}" for server in cluster.servers}
    deleted = cache.explain("user:1", "delete")
    assert deleted.pools == ("wildcard", "gutter") and len(deleted.servers) == 2
    assert "PoolRoute" in str(explanation)


def test_threads_share_a_client(cache):
    failures = []

    def work(thread: int) -> None:
        try:
            for round_ in range(200):
                key = f"thread:{thread}:{round_ % 10}"
                cache.set(key, round_)
                assert cache.get(key) == round_
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_other_threads_run_while_a_call_waits(cache, cluster):
    """The GIL is released: another thread ends a wait that would otherwise end with the timeout."""
    cache.set("k", "x")
    cluster.router.freeze()
    thaw = threading.Timer(0.1, cluster.router.thaw)
    thaw.start()
    assert cache.get("k", timeout=20) == "x"
    thaw.join()


def test_a_page_has_statistics_of_its_own(address, cache):
    page = cache.with_own_statistics()
    cache.set("k", 1)
    assert page.get("k") == 1 and page.pool("user:").get("k") is None
    assert page.get_or_load("l", lambda: 2) == 2
    mine, all_ = page.stats(), cache.stats()
    assert (mine["gets"], mine["hits"], mine["loads"], mine["fills"]) == (3, 1, 1, 1)
    assert mine["bytes_written"] == 1 and all_["bytes_written"] == 2
    assert all_["gets"] == 3 and cache.with_own_statistics().stats()["gets"] == 0

    async def main() -> None:
        async with AsyncClient([address], timeout=5) as later:
            pages = [later.with_own_statistics() for _ in range(3)]
            found = await asyncio.gather(*(page.get("k") for page in [*pages, later, pages[0].pool("")]))
            assert found == [1] * 5
            assert [page.stats()["gets"] for page in [*pages, later]] == [2, 1, 1, 5]
            assert [page.stats()["round_trips"] for page in [*pages, later]] == [1, 1, 1, 4]

    asyncio.run(main())


def test_the_gets_of_many_pages_in_one_turn_are_one_batch_for_each_page(address, cache):
    cache.set("k", 1)

    async def main() -> None:
        async with AsyncClient([address], timeout=5) as all_:
            pages = [all_.with_own_statistics() for _ in range(300)]
            found = await asyncio.gather(*(page.get(key, 0) for key in ["k", "l", "m"] for page in pages))
            assert found == [1] * 300 + [0] * 600
            counted = [page.stats() for page in pages]
            assert {(page["gets"], page["hits"], page["round_trips"]) for page in counted} == {(3, 1, 1)}
            assert all_.stats()["round_trips"] == 300

    asyncio.run(main())
