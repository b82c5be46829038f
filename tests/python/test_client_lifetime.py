"""Clients that are dropped, closed or cancelled in the middle of a call, and with the event loop around them."""

import asyncio
import gc
import os
import select
import time
from dataclasses import dataclass

import pytest
from leases import LeaseClient
from lookaside import AsyncClient, ClosedError
from processes import eventually, frozen

TEST_S = 60
# For this long the servers keep a lease whose holder is gone.
LEASE_S = 10


@dataclass(frozen=True)
class Resources:
    """What this process has."""

    threads: int
    descriptors: int

    def __le__(self, other: "Resources") -> bool:
        return self.threads <= other.threads and self.descriptors <= other.descriptors


def resources() -> Resources:
    """The threads and descriptors of this process."""
    return Resources(len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")))


def is_lease_free(port: int, key: str) -> bool:
    """Whether another client gets the lease of a key."""
    other = LeaseClient(port)
    try:
        return other.lease_get(key)[1] > 1
    finally:
        other.close()


def test_pools_of_an_event_loop_share_its_descriptor(address):
    async def main() -> None:
        async with AsyncClient([address], timeout=5) as cache:
            await cache.pool("first:").set("k", 1)
            before = resources()
            for number in range(50):
                pool = cache.pool(f"{number}:")
                await pool.set("k", number)
                assert await pool.get("k") == number
                assert await pool.pool("x:").get("k") is None
            assert resources() == before

    asyncio.run(main())


def test_a_dropped_client_ends_while_its_event_loop_runs(address):
    async def use() -> None:
        cache = AsyncClient([address], timeout=5)
        await cache.pool("a:").set("k", 1)

    async def main() -> None:
        await use()
        before = resources()
        for _ in range(10):
            await use()
        gc.collect()
        deadline = time.monotonic() + 10
        while not resources() <= before and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert resources() <= before

    asyncio.run(main())


def test_close_waits_for_a_loader_and_wakes_its_caller(address, cluster):
    async def main() -> None:
        cache = AsyncClient([address], timeout=5)
        loading, loaded = asyncio.Event(), asyncio.Event()

        async def load() -> str:
            loading.set()
            await loaded.wait()
            return "value"

        read = asyncio.create_task(cache.get_or_load("k", load))
        await loading.wait()
        closing = asyncio.create_task(cache.close())
        # `close` has begun once calls are refused. If it waited for nothing, it would end in the same turn.
        with pytest.raises(ClosedError):
            while True:
                await cache.get("other")
        assert not closing.done()
        loaded.set()
        assert await asyncio.wait_for(read, 10) == "value"
        await asyncio.wait_for(closing, 10)

    asyncio.run(main())
    assert cluster.client().get("k") == b"value", "it was stored"


def test_close_may_be_cancelled_and_called_again(address):
    async def main() -> None:
        cache = AsyncClient([address], timeout=5)
        loading, loaded = asyncio.Event(), asyncio.Event()

        async def load() -> str:
            loading.set()
            await loaded.wait()
            return "value"

        async with AsyncClient([address]) as other:
            # The first runtime of a process opens a few descriptors for all.
            await other.get("k")
        before = resources()
        read = asyncio.create_task(cache.get_or_load("k", load))
        await loading.wait()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(cache.close(), 0.05)
        loaded.set()
        assert await asyncio.wait_for(read, 10) == "value"
        await asyncio.wait_for(cache.close(), 10)
        for _ in range(3):
            with pytest.raises(ClosedError):
                await cache.get("k")
        while not resources() <= before:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), TEST_S))


def test_an_event_loop_that_is_closed_with_a_reply_on_its_way_releases_the_lease(address, cluster):
    """No task will run the loader."""
    cache = AsyncClient([address], timeout=5)

    async def absent() -> None:
        """Finds no row."""

    async def leave() -> None:
        asyncio.create_task(cache.get_or_load("k", absent))
        # The task asks, and then the event loop has its last turn before the reply has come.
        await asyncio.sleep(0)

    asyncio.run(cache.set("other", 1))
    with frozen(cluster.router):
        asyncio.run(leave())
    eventually(lambda: cache.stats()["misses"] == 1, "the reply has come")
    before = resources()

    async def use() -> None:
        await cache.set("other", 1)

    asyncio.run(use())
    eventually(lambda: is_lease_free(cluster.port, "k"), "the lease is released", seconds=LEASE_S / 2)
    asyncio.run(use())
    assert resources() <= before
    asyncio.run(cache.close())


def test_a_read_that_is_cancelled_with_its_reply_releases_the_lease(address, cluster):
    """Reply and cancellation come in one turn of the event loop, and its error is kept."""

    async def main() -> None:
        cache = AsyncClient([address], timeout=5)
        await cache.set("other", 1)

        async def never() -> None:
            raise AssertionError("it was cancelled")

        channel, loop = cache._channel, asyncio.get_running_loop()
        loop.remove_reader(channel.fileno())
        task = asyncio.create_task(cache.get_or_load("k", never))
        while not select.select([channel.fileno()], [], [], 0)[0]:
            await asyncio.sleep(0.001)
        channel.complete()
        task.cancel()
        loop.add_reader(channel.fileno(), channel.complete)
        kept = []
        try:
            await task
        except asyncio.CancelledError as cancelled:
            kept.append(cancelled)
        assert kept
        await asyncio.wait_for(cache.close(), 5)
        # Long before the lease ends by itself.
        eventually(lambda: is_lease_free(cluster.port, "k"), "the lease is released", 5)

    asyncio.run(main())
