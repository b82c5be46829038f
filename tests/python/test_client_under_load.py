"""Clients that read servers directly, under load, while servers die, restart, hang, answer late and change: no
call returns an old value or that of another key, none takes longer than it may, and nothing is left of the client."""

import asyncio
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from etcd import Etcd
from forwarder import LateServer
from lookaside import AsyncClient, Client, LookasideError
from processes import Server, eventually, free_port, frozen, stats
from test_client_direct import Router, text_of, wait_permitted
from test_client_lifetime import resources

TIMEOUT_S = 3.0
# For the interpreter and a loaded machine. Less than a second timeout: a call that waits twice is found.
MARGIN_S = 2.5
KEYS = [f"load:{number}" for number in range(40)]


class Reads:
    """What clients read, and how long it took."""

    def __init__(self) -> None:
        self.versions = itertools.count(1)
        # Each key's row: it is changed first, then its key is deleted, then `floor` rises.
        self.rows = dict.fromkeys(KEYS, 0)
        self.floor = dict.fromkeys(KEYS, 0)
        self.wrong: list = []
        self.longest_s = 0.0
        self.calls = 0
        self.failed = 0

    def load(self, keys: list[str]) -> dict:
        """The rows."""
        return {key: [key, self.rows[key]] for key in keys}

    async def load_later(self, keys: list[str]) -> dict:
        """The rows, for coroutines."""
        return self.load(keys)

    def check(self, floor: dict, found: dict | None, began: float) -> None:
        """Each value is of its key, and not older than what was deleted before the call. None if the call failed."""
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        self.calls += 1
        self.failed += found is None
        for key, (name, version) in (found or {}).items():
            if name != key or version < floor[key]:
                self.wrong.append((key, name, version, floor[key]))


def change_rows(reads: Reads, cache: Client, ended: threading.Event) -> None:
    """Changes rows and deletes their keys."""
    while not ended.is_set():
        for key in KEYS:
            version = next(reads.versions)
            reads.rows[key] = version
            try:
                cache.delete(key)
            except LookasideError:
                # It may have been deleted, or not: readers may see either value.
                continue
            reads.floor[key] = version
        ended.wait(0.01)


def read_in_threads(reads: Reads, cache: Client, ended: threading.Event) -> None:
    """Reads in four threads until the end."""

    def read() -> None:
        while not ended.is_set():
            floor, began = dict(reads.floor), time.monotonic()
            try:
                reads.check(floor, cache.get_many(KEYS), began)
            except LookasideError:
                reads.check(floor, None, began)
            floor, began = dict(reads.floor), time.monotonic()
            reads.check(floor, cache.get_or_load_many(KEYS, reads.load, wait=0.1), began)

    with ThreadPoolExecutor(4) as threads:
        for ended_read in [threads.submit(read) for _ in range(4)]:
            ended_read.result()


def read_in_an_event_loop(reads: Reads, cache: AsyncClient, ended: threading.Event) -> None:
    """Reads in twenty tasks until the end."""

    async def read() -> None:
        while not ended.is_set():
            floor, began = dict(reads.floor), time.monotonic()
            try:
                reads.check(floor, await cache.get_many(KEYS), began)
            except LookasideError:
                reads.check(floor, None, began)
            floor, began = dict(reads.floor), time.monotonic()
            reads.check(floor, await cache.get_or_load_many(KEYS, reads.load_later, wait=0.1), began)
            await asyncio.sleep(0.005)

    async def main() -> None:
        async with cache:
            await asyncio.gather(*(read() for _ in range(20)))
            assert len(asyncio.all_tasks()) == 1
            assert cache.stats()["direct.direct_reads"] > 0

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_no_wrong_value_no_hang_and_nothing_left(tmp_path, servers, kind):
    # The package keeps a pair of sockets for the process from its first call on. The forwarder has threads and
    # descriptors, too: they are counted before it starts, and after it has ended.
    with Client([f"127.0.0.1:{free_port()}"]) as first:
        assert first.get_or_load("k", lambda: 1) == 1
    before = resources()
    etcd = Etcd(tmp_path)
    late = LateServer(servers[1].port)
    etcd.put("lookaside", text_of([servers[0], late, servers[2]]))
    router = Router(tmp_path, f"etcd://127.0.0.1:{etcd.port}/lookaside")
    reads, ended = Reads(), threading.Event()
    try:
        with Client([router.address], timeout=5) as writer:
            cache = kind([router.address], config=router.config, timeout=TIMEOUT_S)
            wait_permitted(cache)
            work = read_in_threads if kind is Client else read_in_an_event_loop
            with ThreadPoolExecutor(2) as threads:
                running = [
                    threads.submit(work, reads, cache, ended),
                    threads.submit(change_rows, reads, writer, ended),
                ]
                try:
                    cause_faults(reads, router, servers, late, etcd)
                finally:
                    ended.set()
            for work_ended in running:
                work_ended.result()
            assert reads.wrong == [] and reads.calls > 20
            assert reads.longest_s < TIMEOUT_S + MARGIN_S
            if kind is Client:
                assert cache.stats()["direct.direct_reads"] > 0
                cache.close()
    finally:
        router.thaw()
        router.stop()
        late.close()
        etcd.stop()
    eventually(lambda: resources() <= before, "the clients' threads and descriptors are gone")


def wait_changed(reads: Reads) -> None:
    """Until each row has changed, and the delete of its key is acknowledged."""
    floor = dict(reads.floor)
    eventually(lambda: all(reads.floor[key] > floor[key] for key in KEYS), "rows change", seconds=30)


def wait_read(server: Server) -> None:
    """Until values have been found at a server."""
    hits = int(stats(server.port)["get_hits"])
    eventually(lambda: int(stats(server.port)["get_hits"]) > hits, "the server is read", seconds=30)


def cause_faults(reads: Reads, router: Router, servers: list, late: LateServer, etcd: Etcd) -> None:
    """Each fault lasts until some more calls have ended. The second server is behind `late`."""

    def some_calls() -> None:
        calls = reads.calls + 6
        eventually(lambda: reads.calls >= calls, "calls end", seconds=30)

    some_calls()
    with frozen(servers[0]):
        some_calls()
    some_calls()
    # One of those that the configuration names. Its keys' deletes are acknowledged although it is gone.
    servers[0].kill()
    wait_changed(reads)
    some_calls()
    servers[0].restart()
    wait_changed(reads)
    wait_read(servers[0])
    # In time; then at about the time at which it is given up, so that some replies find no request any more.
    late.delay_s = 0.04
    wait_read(servers[1])
    some_calls()
    late.delay_s = 0.3
    wait_changed(reads)
    some_calls()
    late.delay_s = 0.0
    wait_read(servers[1])
    etcd.put("lookaside", text_of([servers[0], late]))
    some_calls()
    servers[2].kill()
    some_calls()
    etcd.freeze()
    some_calls()
    with frozen(servers[1]):
        some_calls()
    etcd.thaw()
    with frozen(router):
        # It is the only one: calls without a permit wait for it until they fail.
        failed = reads.failed
        eventually(lambda: reads.failed >= failed + 6, "calls fail", seconds=30)
    some_calls()
