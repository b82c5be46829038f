"""The calls of `lookaside.AsyncClient`, each in an event loop of its own."""

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from leases import LeaseClient
from lookaside import (
    AsyncClient,
    CacheUnavailableError,
    Client,
    ClosedError,
    DeadlineExceededError,
    DecodeError,
    InvalidKeyError,
)
from processes import eventually, free_port, frozen
from test_client_fork import run_in_child


async def absent() -> None:
    """A loader that finds no row."""


def run(address, test):
    """Runs a test with a client."""

    async def main():
        async with AsyncClient([address], timeout=5) as cache:
            return await test(cache)

    return asyncio.run(main())


def test_a_value_is_stored_read_and_deleted(address):
    async def test(cache: AsyncClient) -> None:
        assert await cache.get("k") is None
        assert await cache.get("k", default="none") == "none"
        await cache.set("k", {"a": 1}, ttl=60)
        assert await cache.get(b"k", timeout=3) == {"a": 1}
        assert await cache.get_many(["k", "l"]) == {"k": {"a": 1}}
        assert await cache.delete("k") is True
        assert await cache.delete("k") is False
        with pytest.raises(InvalidKeyError):
            await cache.get("two words")
        with pytest.raises(TypeError, match="not int"):
            await cache.get(42)

    run(address, test)


def test_gets_of_one_turn_are_one_round_trip(address):
    async def test(cache: AsyncClient) -> None:
        await asyncio.gather(*(cache.set(f"k:{number}", number) for number in range(900)))
        before = cache.stats()["round_trips"]
        values = await asyncio.gather(*(cache.get(f"k:{number}") for number in range(1_000)))
        assert values == [*range(900), *[None] * 100]
        assert cache.stats()["round_trips"] - before == 1

    run(address, test)


def test_a_thousand_coroutines_that_miss_one_key_load_it_once(address):
    """A stampede."""
    loads = []

    async def test(cache: AsyncClient) -> list:
        async def load() -> str:
            loads.append(1)
            while cache.stats()["gets"] < 1_000:
                await asyncio.sleep(0.001)
            return "value"

        return await asyncio.gather(*(cache.get_or_load("hot", load, wait=20, timeout=60) for _ in range(1_000)))

    assert run(address, test) == ["value"] * 1_000
    assert len(loads) == 1


def test_coroutines_of_two_processes_load_a_key_once(address, tmp_path):
    """The lease is the server's, so that processes need not know each other."""
    loads = tmp_path / "loads"
    loads.touch()

    async def read_all(cache: AsyncClient) -> list:
        async def load() -> str:
            with loads.open("a") as file:
                file.write("x")
            while cache.stats()["gets"] < 100:
                await asyncio.sleep(0.001)
            return "value"

        return await asyncio.gather(*(cache.get_or_load("hot", load, wait=20, timeout=60) for _ in range(100)))

    def child() -> None:
        assert run(address, read_all) == ["value"] * 100

    with ThreadPoolExecutor(2) as threads:
        for ended in [threads.submit(run_in_child, child) for _ in range(2)]:
            ended.result()
    assert loads.read_text() == "x"


def test_a_fill_after_a_delete_is_refused(address):
    """A stale set: the row changes between its read and its fill."""

    async def test(cache: AsyncClient) -> None:
        async def load() -> str:
            await cache.delete("row:1")
            return "old"

        async def load_new() -> str:
            return "new"

        assert await cache.get_or_load("row:1", load) == "old"
        assert cache.stats()["fills_refused"] == 1
        assert await cache.get("row:1") is None
        assert await cache.get_or_load("row:1", load_new) == "new"
        assert await cache.get("row:1") == "new"

    run(address, test)


def test_a_loader_that_fails_or_is_cancelled_releases_the_lease(address, cluster):
    async def test(cache: AsyncClient) -> None:
        async def fail() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await cache.get_or_load("failed", fail)
        loading = asyncio.Event()

        async def hang() -> None:
            loading.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(cache.get_or_load("cancelled", hang))
        await loading.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_for_leases, cluster.port, ["failed", "cancelled"])

    run(address, test)


def test_a_call_that_is_cancelled_before_its_reply_releases_the_lease(address, cluster):
    async def test(cache: AsyncClient) -> None:
        task = asyncio.create_task(cache.get_or_load("k", absent))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_for_leases, cluster.port, ["k"])

    run(address, test)


def wait_for_leases(port: int, keys: list[str]) -> None:
    """Until another client gets a lease for each key."""
    other = LeaseClient(port)
    try:
        for key in keys:
            eventually(lambda key=key: other.lease_get(key)[1] > 1, f"the lease of {key} is released")
    finally:
        other.close()


def test_many_keys_are_loaded_together(address):
    async def test(cache: AsyncClient) -> None:
        await cache.set("row:1", 1)
        asked = []

        async def load(keys: list[str]) -> dict:
            asked.append(keys)
            return {key: int(key[4:]) for key in keys}

        rows = ["row:1", "row:2", "row:3", "row:2"]
        for _ in range(2):
            assert await cache.get_or_load_many(rows, load) == {"row:1": 1, "row:2": 2, "row:3": 3}
        assert asked == [["row:2", "row:3"]]

        async def load_too_few(keys: list[str]) -> list:
            return []

        with pytest.raises(ValueError, match="returned 0 values for 1 keys"):
            await cache.get_or_load_many(["row:4"], load_too_few)

    run(address, test)


def test_cached_coroutines(address):
    calls = []

    async def test(cache: AsyncClient) -> None:
        @cache.cached("user:{id}", ttl=60)
        async def user(id: int) -> dict | None:
            calls.append(id)
            return {"id": id} if id < 5 else None

        assert [await user(1), await user(id=1), await user(7), await user(7)] == [{"id": 1}] * 2 + [None] * 2
        assert calls == [1, 7]
        assert user.key(1) == "user:1" and await user.delete(1) is True
        await user(1)
        assert calls == [1, 7, 1]
        with pytest.raises(TypeError, match=r"use Client\.cached"):
            cache.cached("user")(lambda: None)

    run(address, test)


def test_a_plan_takes_a_round_trip_for_each_level(address):
    async def load_user(keys: list[str]) -> list:
        return [{"friends": [2, 3]}]

    async def load_friends(keys: list[str]) -> dict:
        return {key: key.upper() for key in keys}

    async def test(cache: AsyncClient) -> None:
        plan = cache.plan()
        user = plan.node(["user:1"], load_user)
        friends = plan.node(lambda user: [f"user:{id}" for id in user["user:1"]["friends"]], load_friends, after=[user])
        other = plan.node(["x", "y"], load_friends)
        for _ in range(2):
            results = await cache.run_plan(plan)
            assert results[friends] == {"user:2": "USER:2", "user:3": "USER:3"}
            assert results[other] == {"x": "X", "y": "Y"}
        before = cache.stats()["round_trips"]
        await cache.run_plan(plan)
        assert cache.stats()["round_trips"] - before == 2

    run(address, test)


def test_pools_and_explanations(address):
    async def test(cache: AsyncClient) -> None:
        users = cache.pool("user:")
        await users.set("1", "ada")
        assert await cache.get("user:1") == await users.get("1") == "ada"
        assert (await cache.explain("user:1")).pool == "wildcard"

    run(address, test)


def test_failures(address, cluster):
    async def loaded() -> str:
        return "loaded"

    async def test(cache: AsyncClient) -> None:
        await cache.set("k", "old")
        cluster.router.freeze()
        try:
            with pytest.raises(DeadlineExceededError):
                await cache.get("k", timeout=0.05)
            assert await cache.get_or_load("k", loaded, timeout=0.05, wait=0) == "loaded"
        finally:
            cluster.router.thaw()
        assert await cache.get("k") == "old"
        cluster.client().set("pickled", b"\x80\x02N.", flags=1)
        with pytest.raises(DecodeError):
            await cache.get("pickled")
        assert await cache.get_or_load("pickled", loaded) == "loaded"
        async with AsyncClient([f"127.0.0.1:{free_port()}"]) as other:
            with pytest.raises(CacheUnavailableError):
                await other.get("k")
            with pytest.raises(CacheUnavailableError):
                await other.get_many(["k"])
            assert await other.get_or_load("k", loaded) == "loaded"

    run(address, test)


def test_a_closed_client_refuses_calls_and_finishes_those_that_were_made(address):
    async def main() -> None:
        cache = AsyncClient([address])
        await cache.set("k", 1)
        outstanding = asyncio.gather(*(cache.get("k") for _ in range(10)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await cache.close()
        assert await outstanding == [1] * 10
        with pytest.raises(ClosedError):
            await cache.get("k")
        await cache.close()

    asyncio.run(main())


def test_one_client_serves_one_event_loop_after_the_other_and_threads(address):
    cache = AsyncClient([address])

    async def use(name: str) -> str:
        await cache.set(name, name)
        return await cache.get(name)

    assert asyncio.run(use("a")) == "a"
    assert asyncio.run(use("b")) == "b"
    found = []
    threads = [threading.Thread(target=lambda n=n: found.append(asyncio.run(use(f"t{n}")))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["t0", "t1", "t2", "t3"]


def test_a_child_uses_its_parents_client(address):
    cache = AsyncClient([address])

    async def use(name: str) -> str:
        await cache.set(name, name)
        return await cache.get(name)

    def child() -> None:
        assert asyncio.run(use("child")) == "child"

    assert asyncio.run(use("parent")) == "parent"
    run_in_child(child)
    assert asyncio.run(use("parent-again")) == "parent-again"


def test_closed_clients_leave_no_thread_and_no_descriptor(address):
    def count(folder: str) -> int:
        return len(os.listdir(f"/proc/self/{folder}"))

    async def use(cache: AsyncClient) -> None:
        await cache.set("k", 1)

    run(address, use)
    before = (count("task"), count("fd"))
    for _ in range(20):
        run(address, use)
    eventually(lambda: (count("task"), count("fd")) <= before, "threads and descriptors are gone")


def test_a_frozen_server_does_not_stop_the_event_loop(address, cluster):
    async def test(cache: AsyncClient) -> None:
        await cache.set("k", 1)
        with frozen(cluster.router):
            waiting = asyncio.create_task(cache.get("k", timeout=0.3))
            turns = 0
            while not waiting.done():
                await asyncio.sleep(0.001)
                turns += 1
            assert turns > 20
            with pytest.raises(DeadlineExceededError):
                await waiting

    run(address, test)


def test_both_clients_share_values(address, cache):
    assert isinstance(cache, Client)
    cache.set("k", [1])

    async def test(other: AsyncClient) -> None:
        assert await other.get("k") == [1]

    run(address, test)
