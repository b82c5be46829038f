"""`get_or_load`: leases, stampedes, stale sets, plans, cached functions."""

import datetime
import threading
import uuid

import pytest
from both_clients import KINDS, open_client
from leases import LeaseClient
from lookaside import Client, CycleError, DecodeError, EncodeError
from processes import connect, eventually


def test_a_miss_is_loaded_once_and_then_hits(cache):
    loads = []

    def load() -> dict:
        loads.append(1)
        return {"name": "ada"}

    assert [cache.get_or_load("user:1", load, ttl=60) for _ in range(3)] == [{"name": "ada"}] * 3
    assert len(loads) == 1


def test_an_absent_row_is_cached(cache):
    loads = []
    for _ in range(2):
        assert cache.get_or_load("user:2", lambda: loads.append(1)) is None
    assert len(loads) == 1
    assert cache.get("user:2", default="miss") is None, "there is a value: that there is no row"


@pytest.mark.parametrize("kind", KINDS)
def test_an_absent_row_is_cached_for_a_time_of_its_own_and_until_a_delete(kind, address, cluster):
    with open_client(kind, [address], timeout=5) as cache:
        assert cache.get_or_load("row", lambda: None, ttl=600, absent_ttl=20) is None
        assert 10 < ttl_at_server(cluster, "row") <= 20
        cache.delete("row")
        assert cache.get_or_load("row", lambda: "inserted", ttl=600, absent_ttl=20) == "inserted"
        assert 590 < ttl_at_server(cluster, "row") <= 600
        found = cache.get_or_load_many(["row", "none"], lambda keys: {}, absent_ttl=1)
        assert found == {"row": "inserted", "none": None}
        eventually(lambda: cache.get_or_load("none", lambda: "later", absent_ttl=1) == "later", "it is loaded again")


def test_threads_that_miss_one_key_load_it_once(address):
    """A stampede: all but one wait for the lease."""
    loads, values, together = [], [], threading.Barrier(20)

    def load() -> str:
        loads.append(1)
        # As long as the others take to ask.
        eventually(lambda: caches[0].stats()["gets"] + caches[1].stats()["gets"] >= 20, "all have asked")
        return "value"

    def read(cache: Client) -> None:
        together.wait()
        values.append(cache.get_or_load("hot", load, wait=20, timeout=60))

    with Client([address], timeout=5) as one, Client([address], timeout=5) as other:
        caches = [one, other]
        threads = [threading.Thread(target=read, args=(caches[number % 2],)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert values == ["value"] * 20
    assert len(loads) == 1


def test_a_fill_after_a_delete_is_refused(cache, cluster):
    """A stale set: the row changes between its read and its fill."""

    def load() -> str:
        old = "old"
        assert cluster.client().delete("row:1") is False
        return old

    assert cache.get_or_load("row:1", load) == "old"
    assert cache.stats()["fills_refused"] == 1
    assert cache.get("row:1") is None
    assert cache.get_or_load("row:1", lambda: "new") == "new"
    assert cache.get("row:1") == "new"


def test_the_loader_may_use_the_client(cache):
    def load() -> str:
        return cache.get_or_load("inner", lambda: "x") + cache.get("absent", default="y")

    assert cache.get_or_load("outer", load) == "xy"
    assert cache.get_many(["inner", "outer"]) == {"inner": "x", "outer": "xy"}


def test_other_threads_read_while_a_loader_runs(cache):
    """The loader runs outside the runtime, so it holds up no other thread."""
    loading, read = threading.Event(), threading.Event()

    def load() -> str:
        loading.set()
        assert read.wait(10)
        return "slow"

    thread = threading.Thread(target=lambda: cache.get_or_load("slow", load))
    thread.start()
    assert loading.wait(10)
    cache.set("other", "x")
    assert cache.get("other") == "x"
    read.set()
    thread.join()
    assert cache.get("slow") == "slow"


def test_a_loader_that_fails_releases_the_lease(cache, cluster):
    with pytest.raises(ZeroDivisionError):
        cache.get_or_load("k", lambda: 1 // 0)
    other = LeaseClient(cluster.port)
    try:
        eventually(lambda: other.lease_get("k")[1] > 1, "the next client gets a lease")
    finally:
        other.close()


def test_a_stale_value_is_returned_if_that_is_allowed(cache, cluster):
    cache.set("k", "old")
    cache.delete("k")
    holder = LeaseClient(cluster.port)
    try:
        _, token, stale = holder.lease_get("k")
        assert token > 1 and stale == b"old"
        assert cache.get_or_load("k", lambda: "loaded", stale=True) == "old"
        assert cache.get_or_load("k", lambda: "loaded", wait=0.01) == "loaded", "it does not wait longer"
        assert cache.get("k") is None
    finally:
        holder.close()


def test_many_keys_are_loaded_together(cache):
    cache.set("row:1", 1)
    asked = []

    def load(keys: list[str]) -> dict:
        asked.append(keys)
        return {key: int(key[4:]) for key in keys if key != "row:9"}

    rows = ["row:1", "row:2", "row:3", "row:2", "row:9"]
    assert cache.get_or_load_many(rows, load) == {"row:1": 1, "row:2": 2, "row:3": 3, "row:9": None}
    assert asked == [["row:2", "row:3", "row:9"]]
    assert cache.get_or_load_many(rows, lambda _: pytest.fail("all are cached")) == {
        "row:1": 1, "row:2": 2, "row:3": 3, "row:9": None,
    }  # fmt: skip


def test_a_loader_must_return_a_value_for_each_key(cache):
    with pytest.raises(ValueError, match="returned 1 values for 2 keys"):
        cache.get_or_load_many(["a", "b"], lambda keys: ["x"])


def test_a_value_that_cannot_be_stored_is_an_error(cache):
    with pytest.raises(EncodeError, match="type set"):
        cache.get_or_load("k", lambda: {1, 2})
    assert cache.get_or_load("k", lambda: "good") == "good"


def test_a_value_that_cannot_be_read_is_loaded(cache, address):
    with Client([address], pickle=True) as other:
        other.set("k", {1, 2})
    with pytest.raises(DecodeError, match="pickle=True"):
        cache.get("k")
    assert cache.get_or_load("k", lambda: "loaded") == "loaded"
    assert cache.get_or_load_many(["k"], lambda keys: ["loaded"]) == {"k": "loaded"}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_values_that_cannot_be_read_are_loaded(address, kind):
    """Once one such value made `AsyncClient` load all keys of a call, at each call."""
    keys, asked = ["a", "b", "c", "d"], []

    def load(missing: list) -> list:
        asked.append(missing)
        return [f"{key} loaded" for key in missing]

    with Client([address], pickle=True) as pickling, open_client(kind, [address], timeout=5) as cache:
        for key in ("b", "d"):
            pickling.set(key, {1, 2})
        cache.set("a", "a cached")
        cache.get_or_load("c", lambda: "c cached")
        for _ in range(2):
            found = cache.get_or_load_many(keys, load)
            assert found == {"a": "a cached", "b": "b loaded", "c": "c cached", "d": "d loaded"}
        assert asked == [["b", "d"]] * 2

        def fail(missing: list) -> list:
            raise OSError(f"no database for {missing}")

        with pytest.raises(OSError, match=r"no database for \['b', 'd'\]"):
            cache.get_or_load_many(keys, fail)


def test_cached_functions(cache):
    calls = []

    @cache.cached("user:{id}:{kind}", ttl=60)
    def user(id: int, kind: str = "plain") -> dict:
        """Reads a user."""
        calls.append((id, kind))
        return {"id": id, "kind": kind}

    assert user(1) == user(1, "plain") == user(id=1) == {"id": 1, "kind": "plain"}
    assert user(1, kind="full") == {"id": 1, "kind": "full"}
    assert calls == [(1, "plain"), (1, "full")]
    assert user.key(1) == "user:1:plain" and user.__doc__ == "Reads a user."
    assert user.delete(1) is True and user.delete(1) is False
    user(1)
    assert calls == [(1, "plain"), (1, "full"), (1, "plain")]


def test_arguments_are_written_into_keys_as_row_rules_write_columns(cache):
    @cache.cached("order:{id}:{day}:{is_new}")
    def order(id, day, is_new):
        return 1

    number = uuid.UUID("8F14E45F-CEEA-467F-A9F1-1B9F6B0D5A11")
    key = order.key(number, datetime.datetime(2026, 7, 1, 12, 30), True)
    assert key == "order:8f14e45f-ceea-467f-a9f1-1b9f6b0d5a11:2026-07-01T12:30:00:1"
    for inexpressible in (None, 1.5, float("nan")):
        with pytest.raises(ValueError, match="has no form in"):
            order.key(number, inexpressible, True)


def test_a_key_that_does_not_fit_its_function_is_refused(cache):
    with pytest.raises(ValueError, match=r"does not fit .*user\(id\)"):

        @cache.cached("user:{name}")
        def user(id):
            pass

    with pytest.raises(TypeError, match="AsyncClient"):

        @cache.cached("user:{id}")
        async def user_later(id):
            pass


def test_a_plan_takes_a_round_trip_for_each_level(cache):
    plan = cache.plan()
    user = plan.node(["user:1"], lambda keys: [{"friends": [2, 3]}])
    photos = plan.node(["photos:1"], lambda keys: [["p1"]])
    friends = plan.node(
        lambda user: [f"user:{id}" for id in user["user:1"]["friends"]],
        lambda keys: {key: {"name": key} for key in keys},
        after=[user],
    )
    for expected in (4, 2):
        before = cache.stats()["round_trips"]
        results = cache.run_plan(plan)
        assert results[photos] == {"photos:1": ["p1"]}
        assert results[friends] == {"user:2": {"name": "user:2"}, "user:3": {"name": "user:3"}}
        assert cache.stats()["round_trips"] - before == expected, "the first time, each level is filled"


def ttl_at_server(cluster, key: str) -> int:
    """Until a value expires, in seconds; -1 if it does not."""
    return int(cluster.client().raw_command(f"mg {key} t".encode(), b"\r\n").split(b" t")[1])


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_of_a_plan_have_ttls_of_their_own(kind, address, cluster):
    """In one level, which is one round trip all the same, and asks each loader once."""
    asked = []

    def loader(name):
        def load(keys):
            asked.append((name, sorted(keys)))
            return {key: key for key in keys}

        async def load_later(keys):
            return load(keys)

        return load if kind == "Client" else load_later

    with open_client(kind, [address], timeout=30) as cache:
        plan = cache.plan()
        short = plan.node(["short:1", "short:2"], loader("short"), ttl=100)
        plan.node(["plan:1", "short:1"], loader("plan"))
        plan.node(["endless"], loader("endless"), ttl=None)
        by_key = plan.node(["by:1", "by:2"], loader("by_key"), ttl=lambda key: 200 * int(key[3:]))
        below = plan.node(lambda values: [f"below:{key}" for key in values], loader("below"), after=[short], ttl=500)
        results = cache.run_plan(plan, ttl=300)
        assert results[by_key] == {"by:1": "by:1", "by:2": "by:2"}
        assert list(results[below]) == ["below:short:1", "below:short:2"]
        assert sorted(asked) == [
            ("below", ["below:short:1", "below:short:2"]),
            ("by_key", ["by:1", "by:2"]),
            ("endless", ["endless"]),
            ("plan", ["plan:1"]),
            ("short", ["short:1", "short:2"]),
        ]
        expected = {
            "short:1": 100, "short:2": 100, "plan:1": 300, "endless": -1,
            "by:1": 200, "by:2": 400, "below:short:1": 500,
        }  # fmt: skip
        for key, seconds in expected.items():
            assert seconds - 60 < ttl_at_server(cluster, key) <= seconds, key
        before = cache.stats()["round_trips"]
        cache.run_plan(plan, ttl=300)
        assert cache.stats()["round_trips"] - before == 2, "one for each level"


def test_many_keys_may_have_a_ttl_each(cache, cluster):
    found = cache.get_or_load_many(["a", "bb"], lambda keys: keys, ttl=lambda key: 100 * len(key))
    assert found == {"a": "a", "bb": "bb"}
    assert 90 < ttl_at_server(cluster, "a") <= 100 and 190 < ttl_at_server(cluster, "bb") <= 200


def test_a_plan_with_a_node_of_another_plan_is_refused(cache):
    plan, other = cache.plan(), cache.plan()
    plan.node(lambda values: ["a"], lambda keys: keys, after=[other.node(["b"], lambda keys: keys)])
    with pytest.raises(CycleError):
        cache.run_plan(plan)


def test_the_servers_hold_what_was_loaded(cache, cluster):
    cache.get_or_load("k", lambda: "x")
    assert connect(cluster.port).get("k") == b"x"
