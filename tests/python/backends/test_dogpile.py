"""The backend of dogpile.cache: dogpile.cache's own tests of backends, which it is published with, and further ones."""

import contextlib
import itertools
import json
import logging
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
from direct_routers import Router, start_router_of_replicas, wait_permitted
from dogpile.cache import make_region, register_backend
from dogpile.cache.api import NO_VALUE, CachedValue
from dogpile.testing import fixtures
from lookaside import CacheUnavailableError, Client, ConfigurationError, Hedge, Udp
from lookaside.cache_backends import MissLog
from lookaside.dogpile import Creations, LookasideBackend
from lossy_server import LossyServer
from processes import READY_S, ROOT, Cluster, Server, connect, eventually, free_port, frozen, run_in_children

# As the installed package does it.
register_backend("lookaside", "lookaside.dogpile", "LookasideBackend")

KEYS_WITHOUT_SPACES = {"key_mangler": lambda key: key.replace(" ", "_")}


class OnRunning:
    """dogpile.cache's tests, on the server or cluster."""

    backend = "lookaside"
    region_args = KEYS_WITHOUT_SPACES

    @pytest.fixture(autouse=True)
    def arguments(self, address):
        """The arguments of the backend, which the address is one of."""
        self.config_args = {"arguments": {"url": [address], **self.lock}}

    lock: dict = {}

    @classmethod
    def setup_class(cls):
        """There is always a server."""


class TestPublished(OnRunning, fixtures._GenericBackendTestSuite):
    """A mutex of all processes."""


class TestPublishedWithLocalLock(OnRunning, fixtures._GenericBackendTestSuite):
    """A mutex of this process."""

    lock = {"distributed_lock": False}


class TestPublishedMutex(OnRunning, fixtures._GenericMutexTestSuite):
    """The mutex itself."""


class TestPublishedSerializers(OnRunning, fixtures._GenericSerializerTestSuite, fixtures._GenericBackendTestSuite):
    """A region that makes bytes of values itself."""

    region_args = KEYS_WITHOUT_SPACES | fixtures._GenericSerializerTestSuite.region_args


def region(address: str, backend: str = "lookaside", expires_s: float | None = None, **arguments):
    """A region of dogpile.cache."""
    return make_region().configure(backend, expires_s, arguments={"url": [address], **arguments})


@pytest.mark.parametrize("backend", ["dogpile.cache.pymemcache", "dogpile.cache.pylibmc"])
def test_the_backends_of_dogpile_share_its_cache(address, backend):
    """Processes that have moved and those that have not read each other's values, and elect one creator."""
    ours, theirs = region(address), region(address, backend, distributed_lock=True, lock_timeout=60)
    for value in (None, 7, "grün", b"\0\xff", [1, (2,)], {"a": {1, 2}}):
        ours.set("ours", value)
        theirs.set("theirs", value)
        assert (theirs.get("ours"), ours.get("theirs")) == (value, value)
    ours.set_multi({"a": 1, "b": "x"})
    assert theirs.get_multi(["a", "b", "c"]) == [1, "x", NO_VALUE]
    mutex, other = ours.backend.get_mutex("k"), theirs.backend.get_mutex("k")
    assert mutex.acquire() and other.locked() and not other.acquire(False)
    mutex.release()
    assert other.acquire(False) and mutex.locked() and not mutex.acquire(False)
    other.release()


def test_json_instead_of_pickles(address):
    options = {"serializer": lambda value: json.dumps(value).encode(), "deserializer": json.loads}
    json_region = make_region(**options).configure("lookaside", arguments={"url": address, "pickle": False})
    json_region.set("k", {"a": [1]})
    assert json_region.get("k") == {"a": [1]}
    with pytest.raises(ValueError, match="serializer"):
        region(address, pickle=False).set("k", {"a": [1]})
    region(address).set("pickled", {1})
    assert json_region.get("pickled") is NO_VALUE, "pickles are not read"


def test_what_another_program_has_stored_is_a_miss(address, plain):
    plain.set("text", "x", flags=16)
    plain.set("pickled", b"cnot_there\nClass\n.", flags=1)
    ours = region(address)
    ours.set("k", 1)
    assert (ours.get("text"), ours.get("pickled")) == (NO_VALUE, NO_VALUE)
    assert ours.get_multi(["text", "pickled", "k"]) == [NO_VALUE, NO_VALUE, 1]
    assert ours.get_or_create("pickled", lambda: 2) == ours.get("pickled") == 2


def test_threads_of_two_regions_create_a_value_once(address):
    """A stampede of a hundred threads. Regions share no mutex in a process, as two processes share none."""
    regions, together, calls = [region(address), region(address)], threading.Barrier(100), []
    get, asked = LookasideBackend.get, set()

    def get_and_record(backend: LookasideBackend, key: str):
        found = get(backend, key)
        asked.add(threading.get_ident())
        return found

    def create() -> str:
        calls.append(1)
        eventually(lambda: len(asked) == 100, "all have missed")
        return "value"

    def read(number: int) -> str:
        together.wait()
        return regions[number % 2].get_or_create("hot", create)

    with patch.object(LookasideBackend, "get", get_and_record), ThreadPoolExecutor(100) as threads:
        assert list(threads.map(read, range(100))) == ["value"] * 100
    assert len(calls) == 1


def test_processes_create_a_value_once(address, plain, tmp_path):
    """gunicorn's workers, forked from a process that has used the region."""
    shared = region(address)
    shared.set("other", 1)
    calls = tmp_path / "calls"

    def create() -> str:
        with calls.open("a") as log:
            log.write("x")
        eventually(lambda: plain.get("arrived") == b"4", "all have missed")
        return "value"

    plain.set("arrived", "0")

    def work() -> None:
        assert shared.get("hot") is NO_VALUE
        shared.backend._client.incr("arrived")
        assert shared.get_or_create("hot", create) == "value"

    run_in_children([work] * 4)
    assert calls.read_text() == "x"


def test_an_expired_value_is_used_while_another_region_creates(address):
    one, other = region(address, expires_s=60), region(address, expires_s=60)
    one.set("k", "old")
    mutex = one.backend.get_mutex("k")
    assert mutex.acquire(False)
    assert other.get_or_create("k", lambda: "new", expiration_time=0) == "old"
    mutex.release()
    assert other.get_or_create("k", lambda: "new", expiration_time=0) == "new"


def test_a_lock_that_has_passed_to_another_is_not_released(address, plain):
    """Its creator took longer than the lock lives."""
    mutex = region(address).backend.get_mutex("k")
    assert mutex.acquire()
    plain.delete("_lockk")
    assert plain.set("_lockk", "another one's", flags=16)
    mutex.release()
    assert plain.get("_lockk") == b"another one's"


def test_an_add_without_a_reply_leaves_no_lock(tmp_path):
    """The router hangs while it is asked for the lock, and executes it later: others must not wait for the lock."""
    cluster = Cluster("hangs", tmp_path)
    try:
        ours = region(f"127.0.0.1:{cluster.port}", timeout=0.5)
        mutex = ours.backend.get_mutex("k")
        assert ours.get("k") is NO_VALUE
        client = ours.backend._client
        with patch.object(type(client), "get", lambda *_: None), frozen(cluster.router):
            assert mutex.acquire(), "without a reply this process creates"
        eventually(lambda: client.get("_lockk") is not None, "the add is executed")
        mutex.release()
        assert client.get("_lockk") is None
    finally:
        cluster.stop()


def test_a_lock_ends_by_itself(address):
    """Its process has ended."""
    backend = region(address, lock_timeout=1).backend
    assert backend.get_mutex("k").acquire()
    other = backend.get_mutex("k")
    assert not other.acquire(False)
    eventually(lambda: other.acquire(False), "the lock ends")
    other.release()


def test_a_mutex_that_is_never_released_is_not_waited_for_without_end(address, plain):
    plain.set("_lockk", "left behind", flags=16)
    mutex = region(address, lock_timeout=0.2).backend.get_mutex("k")
    started = time.monotonic()
    assert mutex.acquire()
    assert 0.2 <= time.monotonic() - started < 5
    mutex.release()
    assert plain.get("_lockk") == b"left behind"


def test_keys_that_no_server_accepts_are_hashed(address, plain):
    ours = region(address)
    for key in ("two words", "a" * 300, "ü" * 130):
        assert ours.get_or_create(key, lambda key=key: f"{len(key)}") == ours.get(key) == f"{len(key)}"
    ours.set("user:42", 1)
    assert plain.get("user:42") is not None, "others are as they are"
    long = "a" * 250
    assert ours.get_or_create(long, lambda: 1) == ours.get(long) == 1


def test_expiry_and_unknown_arguments(address, plain):
    region(address, memcached_expire_time=60, foreign=1).set("k", 1)
    assert 58 <= int(plain.raw_command(b"mg k t").split(b" t")[1]) <= 60
    for arguments in ({}, {"memcached_expire_time": 0}):
        region(address, **arguments).set("k", 1)
        assert plain.raw_command(b"mg k t") == b"HD t-1"
    with pytest.raises(ConfigurationError, match="memcached_expire_time"):
        region(address, memcached_expire_time=-1)


def test_a_region_behind_a_router_that_takes_leases(leasing):
    """Values and locks are stored, as both have been missed."""
    one, other = region(leasing), region(leasing)
    assert one.get_or_create("k", lambda: 1) == other.get_or_create("k", lambda: 2) == 1
    for _ in range(3):
        mutex = one.backend.get_mutex("k")
        assert mutex.acquire() and not other.backend.get_mutex("k").acquire(False)
        mutex.release()
    one.delete("k")
    assert [other.get_or_create("k", lambda number=number: number) for number in (2, 3)] == [2, 2]


def test_a_hot_key_is_stored_again_after_each_delete(any_address):
    """Once a router that takes leases stored nothing over a connection that went on to miss the key: a region missed
    twice for each set, and threads that waited for another one's value had a miss without a set.
    """
    ours, created = region(any_address), itertools.count()
    get = LookasideBackend.get

    def read_at_once(all_have_missed: threading.Barrier, asked: set) -> set[int]:
        def get_and_wait(backend: LookasideBackend, key: str):
            found = get(backend, key)
            if threading.get_ident() not in asked:
                asked.add(threading.get_ident())
                all_have_missed.wait(READY_S)
            return found

        with patch.object(LookasideBackend, "get", get_and_wait), ThreadPoolExecutor(4) as threads:
            reads = [threads.submit(ours.get_or_create, "stored:again", lambda: next(created)) for _ in range(4)]
            return {read.result() for read in reads}

    for number in range(4):
        assert read_at_once(threading.Barrier(4), set()) == {number}
        assert ours.get("stored:again") == number
        ours.delete("stored:again")


def test_a_value_that_was_deleted_while_it_was_created_is_not_stored(any_address):
    ours, other = region(any_address), region(any_address, timeout=4)
    assert ours.backend._client is not other.backend._client

    def create() -> str:
        other.delete("deleted")
        return "read before the delete"

    assert ours.get_or_create("deleted", create) == "read before the delete"
    assert ours.get("deleted") is NO_VALUE
    assert ours.get_or_create("deleted", lambda: "new") == ours.get("deleted") == "new"


def test_a_creator_that_fails_gives_its_lease_back(address):
    ours = region(address)
    with pytest.raises(ZeroDivisionError):
        ours.get_or_create("k", lambda: 1 // 0)
    with Client([address], timeout=60) as cache:
        assert cache.get_or_load("k", lambda: "loaded", wait=60) == cache.get("k") == "loaded"
        assert cache.stats()["hot_miss_waits"] == 0, "no other client held the lease"


@contextlib.contextmanager
def loading(address: str, key: str):
    """While another client holds the lease of the key; its value is the one that is sent, and stored at the end."""
    may_end, is_loading = threading.Event(), threading.Event()
    loaded: list[str] = []

    def load() -> str:
        is_loading.set()
        assert may_end.wait(READY_S)
        return loaded[-1]

    def end(value: str) -> None:
        loaded.append(value)
        may_end.set()

    with Client([address], timeout=60, pickle=True) as other, ThreadPoolExecutor(1) as thread:
        read = thread.submit(other.get_or_load, key, load)
        assert is_loading.wait(READY_S)
        yield end
        end("too late")
        read.result()


def test_a_creator_whose_key_another_client_loads_waits_for_its_value(address):
    ours = region(address)
    with loading(address, "k") as end, ThreadPoolExecutor(1) as thread:
        read = thread.submit(ours.get_or_create, "k", lambda: pytest.fail("the database is read twice"))
        eventually(lambda: ours.key_is_locked("k"), "it would create the value")
        assert not read.done()
        end(CachedValue("loaded", {"ct": time.time(), "v": 2}))
        assert read.result() == "loaded"


@pytest.mark.parametrize("is_multi", [False, True])
def test_a_creator_without_a_lease_stores_nothing(address, is_multi):
    """Once it stored by a plain set, so that the key could have an old value after a delete."""
    ours = region(address, lock_timeout=0.4)

    def create(*_: str) -> str | list[str]:
        ours.delete("k")
        return ["read before the delete"] if is_multi else "read before the delete"

    with loading(address, "k"):
        if is_multi:
            assert ours.get_or_create_multi(["k"], create) == ["read before the delete"]
        else:
            assert ours.get_or_create("k", create) == "read before the delete"
        assert ours.get("k") is NO_VALUE


def test_values_that_were_deleted_while_they_were_created_together_are_not_stored(any_address):
    ours, other = region(any_address), region(any_address, timeout=4)

    def create(*keys: str) -> list[str]:
        other.delete("multi:deleted")
        return [f"{key} before the delete" for key in keys]

    keys = ["multi:deleted", "multi:other"]
    assert ours.get_or_create_multi(keys, create) == [f"{key} before the delete" for key in keys]
    assert ours.get_multi(keys) == [NO_VALUE, "multi:other before the delete"]
    assert ours.get_or_create_multi(keys, lambda *keys: ["new" for _ in keys])[0] == "new"
    assert ours.get("multi:deleted") == "new"


def test_a_mutex_is_released_although_its_lease_is_not(address):
    """The handler of a signal may raise while the lease is returned. Once the mutex stayed locked in this process."""
    ours = region(address)
    mutex = ours.backend.get_mutex("k")
    assert mutex.acquire()
    with patch.object(Creations, "end", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        mutex.release()
    assert mutex.acquire(False), "it is free"
    mutex.release()


def test_a_mutex_is_released_if_the_lookup_behind_it_raises(address):
    mutex = region(address).backend.get_mutex("k")
    with patch.object(Creations, "begin", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        mutex.acquire()
    assert mutex.acquire(False), "it is free"
    mutex.release()


@pytest.fixture
def replicated(tmp_path, servers):
    """A router over servers that are replicas."""
    router = start_router_of_replicas(tmp_path, servers)
    yield router
    router.stop()


def test_a_mutex_and_a_creator_are_not_hedged(replicated, servers):
    """A replica that gets deletes alone may have a lock that was released, and a value from before a set."""
    router = replicated
    hedge = Hedge("/west/p1/", delay=0.001, share_max=1, plain_gets=True)
    options = {"config": router.config, "config_required": True, "routing_prefix": "/west/p0/", "timeout": 1.5}
    ours = region(router.address, hedge=hedge, **options)
    mutex, client = ours.backend.get_mutex("k"), ours.backend._client
    for cache in (client, ours.backend._lock_client):
        wait_permitted(cache)
    for key in ("_lockk", "k"):
        assert connect(servers[1].port).set(key, "of the replica", flags=16)
    with frozen(servers[0]):
        assert client.get("k") == "of the replica", "gets are hedged"
        assert mutex.acquire(False), "the cache does not answer; the replica has a lock"
        creation = ours.backend._creations.of_this_thread("k")
        assert creation is not None and creation.found() is None
    mutex.release()
    without = region(router.address, hedge=Hedge("/west/p1/"), **options)
    assert without.backend._client is without.backend._lock_client


@pytest.fixture
def lossy(tmp_path):
    """A server that refuses commands and loses datagrams when the test says so."""
    server = Server("lossy", tmp_path)
    lossy = LossyServer(server.port)
    yield lossy
    lossy.close()
    server.stop()


@pytest.mark.parametrize(
    ("refusal", "is_stored"),
    [("SERVER_ERROR Reply timeout", False), ("ERROR", True), ("SERVER_ERROR ERROR reply received from server.", True)],
)
def test_a_creator_whose_lookup_is_refused_stores_nothing_unless_there_are_no_leases(lossy, refusal, is_stored):
    """Once each refusal was taken for that of a server without leases, also a router's for a server that does not
    answer: the value was stored by a plain set, although the key might have been deleted meanwhile.
    """
    lossy.refused, lossy.refusal = (b"lease-get ",), refusal.encode() + b"\r\n"
    ours = region(f"127.0.0.1:{lossy.port}", timeout=20)
    assert ours.get_or_create("k", lambda: "created") == "created"
    assert ours.get("k") == ("created" if is_stored else NO_VALUE)
    assert not ours.key_is_locked("k")


def test_a_lock_is_released_although_datagrams_are_lost(tmp_path, lossy):
    """Once its owner took the lost datagram for a lock that has ended, and left it to all others until it did."""
    file = tmp_path / "udp.json"
    pool = {"servers": [f"127.0.0.1:{lossy.port}"], "server_timeout": 30_000}
    file.write_text(json.dumps({"pools": {"main": pool}, "route": "PoolRoute|main"}))
    router = Router(tmp_path, f"file:{file}")
    try:
        udp = Udp(port=lossy.udp_port, timeout=0.05)
        ours = region(router.address, config=router.config, config_required=True, udp=udp, timeout=60)
        for client in (ours.backend._client, ours.backend._lock_client):
            wait_permitted(client)
        lossy.replies = "lost"
        assert ours.get("k") is NO_VALUE and ours.backend._client.stats()["udp.lost"] == 1, "gets go by UDP"
        mutex = ours.backend.get_mutex("k")
        assert mutex.acquire(False)
        assert connect(lossy.target).get("_lockk")
        mutex.release()
        assert connect(lossy.target).get("_lockk") is None
    finally:
        router.stop()


@pytest.mark.parametrize("is_lock_distributed", [True, False])
def test_without_a_server_values_are_created(dead, caplog, monkeypatch, is_lock_distributed):
    monkeypatch.setattr("lookaside.dogpile.miss_log", MissLog(logging.getLogger("lookaside.dogpile"), 0))
    ours = region(dead, timeout=0.5, distributed_lock=is_lock_distributed)
    assert (ours.get("k"), ours.get_multi(["a", "b"])) == (NO_VALUE, [NO_VALUE] * 2)
    missed = [line.split(" failed, and is a miss: ")[0] for line in caplog.messages]
    assert missed == ["a get of k and 0 others", "a get of a and 1 others"]
    assert ours.key_is_locked("k") is False
    with caplog.at_level(logging.WARNING, "lookaside.dogpile"):
        assert ours.get_or_create("k", lambda: "created") == "created"
    assert "a value of k was not stored" in caplog.text


def test_without_a_router_deletes_raise():
    ours = region(f"127.0.0.1:{free_port()}", timeout=0.5)
    for delete in (lambda: ours.delete("k"), lambda: ours.delete_multi(["k"])):
        with pytest.raises(CacheUnavailableError):
            delete()


def test_the_package_registers_the_backend():
    """As dogpile.cache finds it in the installed package."""
    project = tomllib.loads((ROOT / "python" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["dogpile.cache"] == {"lookaside": "lookaside.dogpile:LookasideBackend"}
    assert LookasideBackend.__module__ == "lookaside.dogpile"
