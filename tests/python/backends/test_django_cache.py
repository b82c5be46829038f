"""The cache backend of Django, by its blocking methods and by those for asyncio.

Django's own tests are run by test_django_cache_suite.py.
"""

import asyncio
import datetime
import logging
import os
import threading
from functools import partial

import pytest
from django.core.cache.backends.base import InvalidCacheKey
from django.core.cache.backends.memcached import PyLibMCCache, PyMemcacheCache
from django.core.exceptions import ImproperlyConfigured
from lookaside import AsyncClient, CacheUnavailableError, Client, EncodeError, RefusedError
from lookaside.cache_backends import FAILURES, MissLog
from lookaside.django import LookasideCache
from processes import connect, eventually, free_port, run_in_children

OBJECTS = [
    None, True, 0, 7, -7, 2**70, 1.5, "", "grün", b"", b"\0\xff", [1, (2,)], {"a": {1, 2}},
    datetime.datetime(2020, 2, 29, tzinfo=datetime.UTC),
]  # fmt: skip


def make(address: str, **options) -> LookasideCache:
    """A backend, as Django makes one of CACHES."""
    parameters = {name: options.pop(name) for name in list(options) if name.isupper()}
    return LookasideCache(address, {"OPTIONS": options, **parameters})


@pytest.fixture
def cache(address):
    """A backend of the server or cluster."""
    return make(address)


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: repr(value)[:20])
def test_a_value_is_read_as_it_was_stored(cache, call, value):
    call(cache, "set", "k", value)
    found = call(cache, "get", "k", "missing")
    assert (found, type(found)) == (value, type(value))
    assert call(cache, "get_many", ["k", "other"]) == {"k": value}
    assert call(cache, "get_or_set", "fresh", lambda: value) == value
    assert call(cache, "get", "fresh", "missing") == value


@pytest.mark.parametrize("other_class", [PyMemcacheCache, PyLibMCCache])
def test_the_backends_of_django_share_its_cache(address, call, other_class):
    """Processes that have moved and those that have not read each other's values under the same keys."""
    parameters = {"KEY_PREFIX": "shop", "VERSION": 3}
    ours, theirs = make(address, **parameters), other_class(address, dict(parameters))
    for value in OBJECTS:
        call(ours, "set", "ours", value)
        theirs.set("theirs", value)
        assert (theirs.get("ours", "missing"), call(ours, "get", "theirs", "missing")) == (value, value)
    call(ours, "set", "n", 41)
    assert (theirs.incr("n"), call(ours, "incr", "n")) == (42, 43)
    assert call(ours, "delete", "theirs") is True and theirs.get("theirs") is None
    theirs.set_many({"a": 1, "b": "x"})
    assert call(ours, "get_many", ["a", "b", "c"]) == {"a": 1, "b": "x"}
    theirs.close()


def test_json_instead_of_pickles(address, call):
    cache = make(address, pickle=False)
    call(cache, "set", "k", {"a": [1]})
    assert call(cache, "get", "k") == {"a": [1]}
    with pytest.raises(TypeError):
        call(cache, "set", "k", object())
    call(make(address), "set", "pickled", {1})
    assert call(cache, "get", "pickled", "missing") == "missing", "pickles are not read"


def test_what_pickle_refuses_raises_what_pickle_raises(cache, call):
    for name, arguments in (
        ("set", (threading.Lock(),)),
        ("add", (threading.Lock(),)),
        ("get_or_set", (threading.Lock,)),
    ):
        with pytest.raises(TypeError, match="pickle") as raised:
            call(cache, name, "k", *arguments)
        assert not isinstance(raised.value, EncodeError)


TIMEOUTS = [(None, -1), (60, 60), (59.5, 60), (40 * 86_400, 40 * 86_400), (0, None), (-5, None)]


@pytest.mark.parametrize(("timeout", "expected"), TIMEOUTS)
@pytest.mark.parametrize("how", ["set", "set_many", "add", "touch", "get_or_set", "default"])
def test_timeouts(address, plain, call, how, timeout, expected):
    """`expected` is the time that the server shows: -1 for no end, and `None` if there is no value."""
    cache = make(address, TIMEOUT=timeout if how == "default" else 7)
    match how:
        case "set_many":
            assert call(cache, "set_many", {"k": 1}, timeout) == []
        case "touch":
            call(cache, "set", "k", 1, 9)
            assert call(cache, "touch", "k", timeout) is True
        case "default":
            if timeout is not None and timeout != int(timeout):
                expected = int(timeout)
            call(cache, "set", "k", 1)
        case _:
            assert call(cache, how, "k", 1, timeout) in (None, True, 1)
    shown = plain.raw_command(b"mg :1:k t").split(b" t")
    assert len(shown) == (1 if expected is None else 2)
    if expected is not None:
        assert expected - 2 <= int(shown[1]) <= expected
    if how == "add":
        assert call(cache, "add", "k", 2, timeout) is (expected is None)


def test_none_is_cached_for_as_long_as_any_value(cache, plain, call):
    assert call(cache, "get_or_set", "k", lambda: None, 500) is None
    assert call(cache, "get", "k", "missing") is None
    assert 498 <= int(plain.raw_command(b"mg :1:k t").split(b" t")[1]) <= 500


def test_counters(cache, call):
    for name in ("incr", "decr"):
        with pytest.raises(ValueError, match="'n' not found"):
            call(cache, name, "n")
    call(cache, "set", "n", 5)
    assert [call(cache, "incr", "n", 10), call(cache, "decr", "n", 3), call(cache, "incr", "n", -2)] == [15, 12, 10]
    assert call(cache, "decr", "n", 99) == 0, "as memcached"
    assert call(cache, "get", "n") == 0
    call(cache, "set", "n", "text")
    with pytest.raises(RefusedError):
        call(cache, "incr", "n")


def test_keys_that_no_server_accepts(cache, call):
    for key in ("two words", "a" * 248, "ü" * 124):
        for name, arguments in (
            ("get", [key]), ("set", [key, 1]), ("add", [key, 1]), ("incr", [key]), ("touch", [key]), ("delete", [key]),
            ("get_many", [[key]]), ("set_many", [{key: 1}]), ("delete_many", [[key]]), ("get_or_set", [key, 1]),
            ("has_key", [key]),
        ):  # fmt: skip
            with pytest.raises(InvalidCacheKey):
                call(cache, name, *arguments)
    call(cache, "set", "ü" * 120, 1)
    assert call(cache, "get", "ü" * 120) == 1


def test_a_value_that_cannot_be_read_is_a_miss(cache, plain, call):
    """A class that a later version of the program has, or another program's flags."""
    plain.set(":1:pickled", b"cnot_there\nClass\n.", flags=1)
    plain.set(":1:foreign", b"x", flags=3)
    call(cache, "set", "k", 1)
    assert call(cache, "get", "pickled", "missing") == call(cache, "get", "foreign", "missing") == "missing"
    assert call(cache, "get_many", ["pickled", "k", "foreign"]) == {"k": 1}
    assert call(cache, "get_or_set", "pickled", lambda: 2) == 2


def test_a_value_that_is_too_large_does_not_leave_the_one_before(cache, call):
    call(cache, "set", "k", "small")
    with pytest.raises(RefusedError):
        call(cache, "set", "k", "x" * 2_000_000)
    assert call(cache, "get", "k") is None
    call(cache, "set", "k", "small")
    assert call(cache, "set_many", {"k": "x" * 2_000_000, "other": 1}) == ["k"]
    assert call(cache, "get_many", ["k", "other"]) == {"other": 1}


def test_threads_that_miss_one_key_call_its_default_once(any_address):
    """A stampede of a hundred threads. Each has a backend of its own, as Django makes them."""
    calls, values, together, clients = [], [], threading.Barrier(100), []

    def default() -> str:
        calls.append(1)
        eventually(lambda: all(client.stats()["gets"] for client in clients), "all have asked")
        return "value"

    def read() -> None:
        cache = make(any_address, wait=20, timeout=60)
        # Its own counters: a repeated lookup of a thread that waits counts as well.
        cache._client = cache._client.with_own_statistics()
        clients.append(cache._client)
        together.wait()
        values.append(cache.get_or_set("hot:threads", default))

    threads = [threading.Thread(target=read) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (values, len(calls)) == (["value"] * 100, 1)


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_coroutines_that_miss_one_key_call_its_default_once(any_address, is_coroutine):
    calls = []

    async def main() -> list[str]:
        cache = make(any_address, wait=20, timeout=60)
        clients = [cache._async_client().with_own_statistics() for _ in range(100)]

        async def read(client: AsyncClient) -> str:
            cache = make(any_address, wait=20, timeout=60)
            cache._async_client = lambda: client
            return await cache.aget_or_set(f"hot:{is_coroutine}", default)

        async def default() -> str:
            calls.append(1)
            while not all(client.stats()["gets"] for client in clients):
                await asyncio.sleep(0.001)
            return "value"

        def default_at_once() -> str:
            calls.append(1)
            return "value"

        default = default if is_coroutine else default_at_once
        return await asyncio.gather(*map(read, clients))

    assert asyncio.run(main()) == ["value"] * 100
    assert len(calls) == 1


def test_a_value_from_before_a_delete_is_not_stored(cache, address, call):
    """The row changes between its read and its fill."""

    def default() -> str:
        make(address).delete("row")
        return "old"

    assert call(cache, "get_or_set", "row", default) == "old"
    assert call(cache, "get", "row") is None
    assert call(cache, "get_or_set", "row", "new") == "new"
    assert call(cache, "get", "row") == "new"


def test_a_router_that_takes_leases_refuses_such_a_set(leasing, call):
    """It raises nothing, and the value that another process has stored since stays."""
    key = f"row:{call.__name__}"
    cache, other = make(leasing), connect(int(leasing.split(":")[1]))
    assert call(cache, "get", key) is None
    other.delete(f":1:{key}")
    assert other.get(f":1:{key}") is None
    assert other.set(f":1:{key}", "newer", flags=16)
    call(cache, "set", key, "old")
    assert call(cache, "get", key) == "newer"
    call(cache, "delete", key)
    assert call(cache, "get", key) is None
    call(cache, "set", key, "new")
    assert call(cache, "get", key) == "new"
    other.close()


def test_without_a_server_gets_miss_and_writes_raise(dead, call, caplog, monkeypatch):
    monkeypatch.setattr("lookaside.django.cache.miss_log", MissLog(logging.getLogger("lookaside.django.cache"), 0))
    cache = make(dead, timeout=0.5)
    assert call(cache, "get", "k", "missing") == "missing"
    assert call(cache, "get_many", ["a", "b"]) == {}
    assert call(cache, "has_key", "k") is False
    missed = [line.split(" failed, and is a miss: ")[0] for line in caplog.messages]
    assert missed == ["a get of :1:k and 0 others", "a get of :1:a and 1 others", "a get of :1:k and 0 others"]
    caplog.clear()
    assert call(cache, "get_or_set", "k", lambda: "loaded") == "loaded"
    for name, arguments in (
        ("set", ["k", 1]), ("add", ["k", 1]), ("incr", ["k"]), ("touch", ["k"]),
        ("set", ["k", 1, 0]),
    ):  # fmt: skip
        with pytest.raises(FAILURES):
            call(cache, name, *arguments)
    with caplog.at_level(logging.WARNING, "lookaside.django.cache"):
        assert call(cache, "set_many", {"a": 1, "b": 2}) == ["a", "b"]
    assert [line.split(" was not stored: ")[0] for line in caplog.messages] == ["a value of :1:a", "a value of :1:b"]

    caplog.clear()
    logging_cache = make(dead, timeout=0.5, on_failed_set="log")
    with caplog.at_level(logging.WARNING, "lookaside.django.cache"):
        call(logging_cache, "set", "k", 1)
    assert [line.startswith("a value of :1:k was not stored") for line in caplog.messages] == [True]
    with pytest.raises(FAILURES):
        call(logging_cache, "add", "k", 1)


def test_without_a_router_deletes_raise(call):
    cache = make(f"127.0.0.1:{free_port()}", timeout=0.5)
    for name, arguments in (("delete", ["k"]), ("delete_many", [["k"]]), ("clear", [])):
        with pytest.raises(CacheUnavailableError):
            call(cache, name, *arguments)


def test_a_router_may_refuse_to_be_cleared(leasing, call):
    with pytest.raises(RefusedError):
        call(make(leasing), "clear")


def test_several_routers(address, call):
    """The first that answers is used, whichever way they are listed."""
    gone = f"127.0.0.1:{free_port()}"
    for location in ([gone, address], f"{gone};{address}", f"{gone}, {address}"):
        cache = make(location)
        call(cache, "set", "k", 1)
        assert call(cache, "get", "k") == 1


def test_wrong_options_are_refused(address):
    with pytest.raises(ImproperlyConfigured, match="on_failed_set"):
        make(address, on_failed_set="ignore")
    with pytest.raises(TypeError, match="MAX_ENTRIES"):
        LookasideCache(address, {"OPTIONS": {"MAX_ENTRIES": 30}})


def test_all_backends_of_a_process_share_a_client(address):
    """Django makes one for each thread, and for each request of an asynchronous server."""
    made = []
    threads = [threading.Thread(target=lambda: made.append(make(address))) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(cache._client) for cache in made}) == 1
    assert len({id(cache._async_client()) for cache in made}) == 1
    assert make(address, timeout=3)._client is not made[0]._client
    made[0].close()
    made[0].set("k", 1)
    assert made[1].get("k") == 1


def test_event_loops_that_end_leave_no_descriptor(cache):
    """As `async_to_sync` starts them."""

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    asyncio.run(cache.aget("k"))
    before = count()
    for _ in range(20):
        asyncio.run(cache.aget("k"))
    assert count() <= before + 1


def test_workers_that_are_forked(cache, address, call):
    """gunicorn forks its workers, here from a process that has used the cache."""
    call(cache, "set", "k", "parent")

    def work(number: int) -> None:
        own = make(address)
        assert call(cache, "get", "k") == call(own, "get", "k") == "parent"
        call(own, "set", f"worker:{number}", number)

    run_in_children([partial(work, number) for number in range(3)])
    assert call(cache, "get_many", [f"worker:{number}" for number in range(3)]) == {
        f"worker:{number}": number for number in range(3)
    }


def test_a_direct_client(running, plain, call, tmp_path):
    """Gets go to the servers, by the routers' configuration."""
    if not hasattr(running, "configuration_path"):
        pytest.skip("there is no router")
    cache = make(
        f"127.0.0.1:{running.port}",
        config=f"file:{running.configuration_path}",
        routing_prefix=f"/local/{running.name}/",
        KEY_PREFIX="direct",
    )
    call(cache, "set", "k", [1])
    assert call(cache, "get", "k") == [1]
    assert isinstance(cache._client, Client)
