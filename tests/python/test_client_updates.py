"""`add`, `incr`, `decr`, `touch`, `set_many`, `delete_many` and `flush_all` of both clients."""

import pylibmc
import pytest
from both_clients import KINDS, open_client
from leases import LeaseClient
from lookaside import (
    CacheUnavailableError,
    Client,
    ConfigurationError,
    DeadlineExceededError,
    EncodeError,
    InvalidKeyError,
    NotStoredError,
    RefusedError,
)
from processes import Cluster, free_port, frozen
from pymemcache.client.base import Client as Pymemcache
from pymemcache.serde import pickle_serde


@pytest.fixture(params=KINDS)
def either(request, address):
    """A client of either kind, with calls that block."""
    with open_client(request.param, [address], timeout=5) as cache:
        yield cache


def test_add_stores_only_where_there_is_no_value(either):
    assert either.add("k", {"a": 1}) is True
    assert either.add("k", "other") is False
    assert either.get("k") == {"a": 1}
    either.delete("k")
    assert either.add("k", "after the delete", ttl=60) is True
    assert either.get("k") == "after the delete"
    with pytest.raises(EncodeError):
        either.add("k", object())


def test_numbers_that_were_set_are_counted(either, cluster, address):
    assert either.incr("n") is None and either.decr("n") is None
    either.set("n", 5)
    assert [either.incr("n"), either.incr("n", 37), either.decr("n", 2)] == [6, 43, 41]
    assert either.get("n") == 41
    assert either.decr("n", 50) == 0 and either.get("n") == 0, "decr leaves spaces behind the shorter number"
    either.set("n", 2**64 - 1)
    assert either.incr("n", 2) == 1
    other = Pymemcache(("127.0.0.1", cluster.port), serde=pickle_serde, default_noreply=False, timeout=5)
    assert other.incr("n", 6) == 7 == other.get("n") == pylibmc.Client([address]).get("n") == either.get("n")
    other.set("n", 8)
    assert either.incr("n") == 9


@pytest.mark.parametrize("value", ["text", -1, 1.5, None, 2**64])
def test_what_is_no_number_is_not_counted(either, value):
    either.set("k", value)
    with pytest.raises(RefusedError):
        either.incr("k")
    assert either.get("k") == value


@pytest.mark.parametrize("delta", [-1, 2**64, 1.5, "1"])
def test_a_delta_that_means_nothing_is_refused(either, delta):
    for call in (either.incr, either.decr):
        with pytest.raises(ConfigurationError, match="expected an int from 0"):
            call("k", delta)


def test_touch_sets_when_a_value_expires(either, cluster):
    assert either.touch("k", 60) is False
    either.set("k", 1, ttl=1)
    assert either.touch("k", 600) is True
    assert 590 < seconds_left(cluster, "k") <= 600
    assert either.touch("k", None) is True
    assert seconds_left(cluster, "k") == -1
    with pytest.raises(ConfigurationError):
        either.touch("k", 0)


def seconds_left(cluster, key: str) -> int:
    """Until a value expires; -1 if it does not."""
    return int(cluster.client().raw_command(f"mg {key} t".encode(), b"\r\n").split(b" t")[1])


def test_many_values_are_stored_and_deleted_in_one_round_trip_each(either):
    before = either.stats()["round_trips"]
    assert either.set_many({f"k:{number}": number for number in range(200)}, ttl=60) == {}
    assert either.get_many([f"k:{number}" for number in range(200)]) == {f"k:{number}": number for number in range(200)}
    assert either.delete_many(["k:1", b"k:2", "other"]) == {"k:1": True, b"k:2": True, "other": False}
    assert either.stats()["round_trips"] - before == 3
    assert either.get_many(["k:1", "k:2", "k:3"]) == {"k:3": 3}
    assert either.set_many({}) == {} and either.delete_many([]) == {}
    users = either.pool("user:")
    assert users.set_many({"1": "ada", b"2": "bob"}) == {} and either.get("user:2") == "bob"
    assert users.delete_many([b"2"]) == {b"2": True} and either.get_many(["user:1", "user:2"]) == {"user:1": "ada"}


def test_a_value_that_is_refused_is_named_with_the_reason(either):
    errors = either.set_many({"small": 1, "large": b"x" * (2 << 20)})
    assert list(errors) == ["large"]
    with pytest.raises(RefusedError, match="too large"):
        raise errors["large"]
    assert either.get_many(["small", "large"]) == {"small": 1}
    assert either.stats()["errors"] == 1


def test_nothing_is_sent_if_an_argument_is_wrong(either):
    either.set("a", "old")
    for wrong, error in (({"a": 1, "two words": 2}, InvalidKeyError), ({"a": 1, "b": object()}, EncodeError)):
        with pytest.raises(error):
            either.set_many(wrong)
    with pytest.raises(InvalidKeyError):
        either.delete_many(["a", "two words"])
    with pytest.raises(ConfigurationError):
        either.set_many({"a": 1}, ttl=0)
    assert either.get("a") == "old"


def test_a_cache_that_does_not_answer(either, cluster):
    either.set("k", 1)
    with frozen(cluster.router):
        errors = either.set_many({"k": 2, "l": 2}, timeout=0.1)
        assert {key: type(error) for key, error in errors.items()} == dict.fromkeys("kl", DeadlineExceededError)
        for call in (
            lambda: either.add("k", 2, timeout=0.1),
            lambda: either.incr("k", timeout=0.1),
            lambda: either.touch("k", 1, timeout=0.1),
            lambda: either.delete_many(["k", "l"], timeout=0.1),
        ):
            with pytest.raises(DeadlineExceededError):
                call()
    with Client([f"127.0.0.1:{free_port()}"]) as gone:
        errors = gone.set_many({"k": 2})
        assert list(errors) == ["k"] and isinstance(errors["k"], CacheUnavailableError)
        with pytest.raises(CacheUnavailableError, match="2 of 2 keys may not be deleted"):
            gone.delete_many(["k", "l"])
        with pytest.raises(CacheUnavailableError):
            gone.flush_all()


def test_a_loader_does_not_overwrite_what_was_added_meanwhile(either, cache):
    """An add voids the lease of a key, a count and a touch find no value and leave it."""

    def load_and(update):
        def load() -> str:
            update()
            return "loaded"

        return load

    assert cache.get_or_load("added", load_and(lambda: either.add("added", "new"))) == "loaded"
    assert either.get("added") == "new" and cache.stats()["fills_refused"] == 1
    for name, update in (("counted", lambda: either.incr("counted")), ("touched", lambda: either.touch("touched", 9))):
        assert cache.get_or_load(name, load_and(update)) == "loaded"
        assert either.get(name) == "loaded"
    assert cache.stats()["fills_refused"] == 1


def test_a_stale_value_is_none(either, cluster):
    either.set("n", 1)
    either.delete("n")
    holder = LeaseClient(cluster.port)
    try:
        assert holder.lease_get("n")[2] == b"1", "the value from before the delete"
        assert either.incr("n") is None and either.touch("n", 60) is False and either.delete("n") is False
        assert either.add("n", 2) is True
    finally:
        holder.close()


def test_a_cluster_is_flushed_only_if_its_router_allows_it(either):
    either.set("k", 1)
    with pytest.raises(RefusedError):
        either.flush_all()
    assert either.get("k") == 1


def test_a_cluster_is_flushed(tmp_path):
    permitting = Cluster("permitting", tmp_path, ("--enable-flush-cmd",))
    try:
        # The first router is gone.
        with Client([f"127.0.0.1:{free_port()}", f"127.0.0.1:{permitting.port}"]) as cache:
            assert cache.set_many({f"k:{number}": number for number in range(20)}) == {}
            cache.flush_all()
            assert cache.get_many([f"k:{number}" for number in range(20)]) == {}
    finally:
        permitting.stop()


def test_routers_that_take_leases_for_plain_clients_store_what_was_missed(tmp_path):
    leasing = Cluster("leasing", tmp_path, ("--leases",))
    try:
        with Client([f"127.0.0.1:{leasing.port}"], timeout=5) as cache:
            assert cache.add("k", 1) is False
            errors = cache.set_many({"k": 1})
            assert list(errors) == ["k"] and isinstance(errors["k"], NotStoredError)
            with pytest.raises(NotStoredError):
                cache.set("k", 1)
            assert cache.incr("k") is None, "a miss"
            assert cache.add("k", 1) is True
            assert cache.incr("k") == 2
    finally:
        leasing.stop()
