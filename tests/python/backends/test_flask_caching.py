"""The backend of Flask-Caching."""

import copy
import datetime
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import patch

import pytest
from flask import Flask
from flask_caching import Cache
from flask_caching.backends import MemcachedCache
from lookaside import CacheUnavailableError, Client, InvalidKeyError
from lookaside.cache_backends import MissLog
from lookaside.flask_caching import LookasideCache
from processes import Cluster, eventually, free_port, frozen, run_in_children

OBJECTS = [None, True, 0, 7, -7, 2**70, 1.5, "", "grün", b"", b"\0\xff", [1, (2,)], {"a": {1, 2}}]


@pytest.fixture
def cache(address):
    """A backend of the server or cluster."""
    return LookasideCache([address], key_prefix="shop_")


@pytest.fixture
def application(address):
    """An application and its cache."""
    application = Flask("shop")
    cache = Cache(
        application,
        config={
            "CACHE_TYPE": "lookaside.flask_caching.LookasideCache",
            "CACHE_MEMCACHED_SERVERS": [address],
            "CACHE_DEFAULT_TIMEOUT": 60,
            "CACHE_OPTIONS": {"timeout": 5},
        },
    )
    with application.app_context():
        yield application, cache


def test_views_and_functions(application, plain):
    application, cache = application
    calls = []

    @application.route("/")
    @cache.cached(timeout=30)
    def index():
        calls.append("index")
        return f"call {len(calls)}"

    @cache.memoize()
    def double(number):
        calls.append(number)
        return 2 * number

    @cache.cached(key_prefix="nothing", cache_none=True)
    def nothing():
        calls.append("nothing")

    client = application.test_client()
    assert client.get("/").data == client.get("/").data == b"call 1"
    assert plain.raw_command(b"mg flask_cache_view// t") in (b"HD t30", b"HD t29")
    assert [double(3), double(3), double(4)] == [6, 6, 8]
    assert [nothing(), nothing()] == [None, None]
    cache.delete_memoized(double, 3)
    assert [double(3), double(4)] == [6, 8]
    assert calls == ["index", 3, 4, "nothing", 3]
    assert cache.clear() is True
    assert client.get("/").data == b"call 6"


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: repr(value)[:20])
def test_a_value_is_read_as_it_was_stored(cache, value):
    assert cache.set("k", value) is True
    found = cache.get("k")
    assert (found, type(found)) == (value, type(value))
    assert cache.has("k") and not cache.has("other")
    assert cache.get_many("k", "other") == [value, None]
    assert cache.get_dict("k", "other") == {"k": value, "other": None}
    assert cache.get_or_load("fresh", lambda: value) == value and cache.has("fresh")


def test_flask_cachings_memcached_backend_shares_its_cache(address, cache):
    """Processes that have moved and those that have not read each other's values under the same keys."""
    theirs = MemcachedCache([address], key_prefix="shop_")
    for value in OBJECTS:
        cache.set("ours", value)
        theirs.set("theirs", value)
        assert (theirs.get("ours"), cache.get("theirs")) == (value, value)
    assert sorted(cache.set_many({"a": 1, "b": "x"})) == ["a", "b"]
    assert theirs.get_many("a", "b", "c") == cache.get_many("a", "b", "c") == [1, "x", None]
    assert (theirs.inc("a", 2), cache.inc("a", 3), theirs.get("a")) == (3, 6, 6)


TIMEOUTS = [(None, 300), (60, 60), (0, -1), (-1, None), (40 * 86_400, 40 * 86_400), (datetime.timedelta(minutes=1), 60)]


@pytest.mark.parametrize(("timeout", "expected"), TIMEOUTS, ids=[str(timeout) for timeout, _ in TIMEOUTS])
@pytest.mark.parametrize("how", ["set", "set_many", "add", "get_or_load", "default"])
def test_timeouts(address, plain, how, timeout, expected):
    """`expected` is the time that the server shows: -1 for no end, and `None` if there is no value."""
    options = {"default_timeout": timeout} if how == "default" and timeout is not None else {}
    cache = LookasideCache(address, **options)
    match how:
        case "set_many":
            assert cache.set_many({"k": 1}, timeout) == ["k"]
        case "get_or_load":
            assert cache.get_or_load("k", lambda: 1, timeout) == 1
        case "default":
            assert cache.set("k", 1) is True
        case _:
            assert getattr(cache, how)("k", 1, timeout) is True
    shown = plain.raw_command(b"mg k t").split(b" t")
    assert len(shown) == (1 if expected is None else 2)
    if expected is not None:
        assert expected - 2 <= int(shown[1]) <= expected
    if how == "add":
        assert cache.add("k", 2, timeout) is (expected is None)


def test_counters(cache):
    assert [cache.inc("n", 5), cache.inc("n"), cache.dec("n", 2), cache.get("n")] == [5, 6, 4, 4]
    assert [cache.dec("n", 7), cache.get("n"), cache.inc("n"), cache.inc("n", 4)] == [-3, -3, -2, 2]
    assert [cache.dec("m", 2), cache.get("m")] == [-2, -2]


def test_counters_are_atomic(cache):
    with ThreadPoolExecutor(8) as threads:
        counted = list(threads.map(lambda _: cache.inc("n"), range(200)))
    assert sorted(counted) == list(range(1, 201))


def test_a_counter_whose_first_reply_is_lost_counts_once(tmp_path):
    """The router hangs while it has the `add`, and executes it later."""
    cluster = Cluster("hangs", tmp_path)
    try:
        cache = LookasideCache(f"127.0.0.1:{cluster.port}", timeout=0.5)
        assert cache.get("n") is None
        add = Client.add

        def add_late(*arguments, **options) -> bool:
            with frozen(cluster.router):
                return add(*arguments, **options)

        with patch.object(Client, "add", add_late):
            assert cache.inc("n", 5) is None
        eventually(lambda: cache.get("n") is not None, "the add is executed")
        assert cache.get("n") == 5
    finally:
        cluster.stop()


def test_a_counter_that_expires_at_once(address):
    cache = LookasideCache(address, default_timeout=-1)
    assert (cache.inc("n", 5), cache.get("n")) == (5, None)


def test_deletes(cache):
    cache.set_many({"a": 1, "b": 2})
    assert (cache.delete("a"), cache.delete("a")) == (True, False)
    assert cache.delete_many("a", "b") == ["a", "b"]
    assert not cache.has("b")


def test_keys_that_no_server_accepts(cache):
    for key in ("two words", "a" * 250):
        assert cache.get(key) is None and not cache.has(key) and cache.delete(key) is False
        cache.set("k", 1)
        assert cache.get_many(key, "k") == [None, 1]
        assert cache.delete_many(key, "k") == [key, "k"] and not cache.has("k")
        with pytest.raises(InvalidKeyError):
            cache.set(key, 1)


def test_a_value_that_cannot_be_read_is_a_miss(cache, plain):
    plain.set("shop_pickled", b"cnot_there\nClass\n.", flags=1)
    cache.set("k", 1)
    assert cache.get("pickled") is None
    assert cache.get_many("pickled", "k") == [None, 1]
    assert cache.get_or_load("pickled", lambda: 2) == 2


def test_what_pickle_refuses_raises_what_pickle_raises(cache):
    for store in (cache.set, cache.add, lambda key, value: cache.get_or_load(key, lambda: value)):
        with pytest.raises(TypeError, match="pickle"):
            store("k", threading.Lock())


def test_a_value_that_is_too_large_does_not_leave_the_one_before(cache, caplog):
    cache.set("k", "small")
    with caplog.at_level(logging.WARNING, "lookaside.flask_caching"):
        assert cache.set("k", "x" * 2_000_000) is False
    assert "shop_k was not stored: " in caplog.text and "too large" in caplog.text
    assert cache.get("k") is None


def test_threads_that_miss_one_key_load_it_once(address):
    cache = LookasideCache([address], timeout=60)
    calls, together, clients = [], threading.Barrier(100), []

    def load() -> str:
        calls.append(1)
        eventually(lambda: all(client.stats()["gets"] for client in clients), "all have asked")
        return "value"

    def read(_: int) -> str:
        own = copy.copy(cache)
        # Its own counters: a repeated lookup of a thread that waits counts as well.
        own._client = cache._client.with_own_statistics()
        clients.append(own._client)
        together.wait()
        return own.get_or_load("hot", load, wait=20)

    with ThreadPoolExecutor(100) as threads:
        assert list(threads.map(read, range(100))) == ["value"] * 100
    assert len(calls) == 1


def test_a_value_from_before_a_delete_is_not_stored(cache):
    def load() -> str:
        cache.delete("row")
        return "old"

    assert cache.get_or_load("row", load) == "old"
    assert cache.get("row") is None


def test_without_a_server_gets_miss_and_writes_are_false(dead, caplog, monkeypatch):
    monkeypatch.setattr("lookaside.flask_caching.miss_log", MissLog(logging.getLogger("lookaside.flask_caching"), 0))
    cache = LookasideCache(dead, timeout=0.5, key_prefix="shop_")
    assert cache.get("k") is None and not cache.has("k") and cache.get_many("a", "b") == [None, None]
    missed = [line.split(" failed, and is a miss: ")[0] for line in caplog.messages]
    assert missed == ["a get of shop_k and 0 others", "a get of shop_k and 0 others", "a get of shop_a and 1 others"]
    caplog.clear()
    assert cache.get_or_load("k", lambda: "loaded") == "loaded"
    with caplog.at_level(logging.WARNING, "lookaside.flask_caching"):
        assert cache.set("k", 1) is False and cache.add("k", 1) is False
        assert cache.set_many({"k": 1}) == [] and cache.set("k", 1, -1) is False
        assert cache.inc("k") is None
    assert len(caplog.messages) >= 5 and "a value of shop_k was not added: " in caplog.text


def test_without_a_router_deletes_raise(caplog):
    gone = f"127.0.0.1:{free_port()}"
    cache = LookasideCache(gone, timeout=0.5)
    with pytest.raises(CacheUnavailableError):
        cache.delete("k")
    with pytest.raises(RuntimeError):
        cache.delete_many("k")
    assert LookasideCache(gone, ignore_delete_many_errors=True).delete_many("k") == []
    assert cache.clear() is False
    assert "was not cleared" in caplog.text


def test_an_application_without_routers_is_refused():
    with pytest.raises(ValueError, match="CACHE_MEMCACHED_SERVERS"):
        Cache(Flask("shop"), config={"CACHE_TYPE": "lookaside.flask_caching.LookasideCache"})


def test_workers_that_are_forked(cache):
    """gunicorn forks its workers, here from a process that has used the cache."""
    cache.set("k", "parent")

    def work(number: int) -> None:
        assert cache.get("k") == "parent" and cache.set(f"worker:{number}", number)

    run_in_children([partial(work, number) for number in range(3)])
    assert cache.get_many(*(f"worker:{number}" for number in range(3))) == [0, 1, 2]
