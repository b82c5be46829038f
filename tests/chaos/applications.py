"""Look-aside applications, and the poller of the invalidator's position. All run in one event loop.

A reader asks a router of its cluster for a page of keys, loads what is missing from the database, and fills it under
the lease. Some fills are delayed, as by a slow application: a lease must refuse them if the row changed meanwhile. A
writer commits the next version of a key, with the key in a comment of its SQL, and may delete it in its own cluster.
"""

import asyncio
import random
import time
from dataclasses import dataclass

from leases import HOT_MISS

from chaos.checker import Checker, compose_value
from chaos.connections import NO_LEASE, REPLY_S, CacheConnection, DatabaseConnection, Failure
from chaos.databases import TABLE, sequence_of
from chaos.region import Cluster, Place, Region

DELETED = (b"DELETED\r\n", b"NOT_FOUND\r\n")
RETRY_S = 0.05
POLL_S = 0.05
DELAYS_S = ((0.9, 0.0, 0.003), (0.98, 0.02, 0.1), (1.0, 0.2, 1.0))
FILLERS = 4


@dataclass(frozen=True)
class Load:
    """How much is asked of the region, by applications of all clusters together."""

    keys: int = 200
    readers: int = 8
    reads: float = 2000.0
    page: int = 16
    writers: int = 4
    writes: float = 60.0
    own_deletes: float = 0.5
    has_leases: bool = True


def create_rows(region: Region, keys: list[str]) -> None:
    """Version 1 of every key."""
    with region.database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {TABLE} (id VARCHAR(40) PRIMARY KEY, version BIGINT NOT NULL)")
        cursor.executemany(f"INSERT INTO {TABLE} VALUES (%s, 1)", [(key,) for key in keys])


def load_versions(cursor, keys: list[str]) -> dict[str, int]:
    """The committed versions."""
    marks = ",".join(["%s"] * len(keys))
    cursor.execute(f"SELECT id, version FROM {TABLE} WHERE id IN ({marks})", keys)
    return dict(cursor.fetchall())


class Pace:
    """Turns at random times, `rate` a second in the mean; turns that were missed are skipped."""

    def __init__(self, rng: random.Random, rate: float) -> None:
        self.rng, self.rate = rng, rate
        self.due_s = time.monotonic()

    async def wait(self) -> None:
        """Until the next turn."""
        self.due_s = max(self.due_s + self.rng.expovariate(self.rate), time.monotonic() - 0.1)
        await asyncio.sleep(max(0.0, self.due_s - time.monotonic()))


class Reader:
    """An application that looks aside."""

    def __init__(self, region: Region, cluster: Cluster, number: int, load: Load, seed: int, checker: Checker) -> None:
        self.rng = random.Random(f"reader {cluster.name} {number} {seed}")
        self.cluster, self.load, self.checker = cluster, load, checker
        self.cache = CacheConnection(cluster, number)
        self.fillers = [Filler(region, cluster, number, self.rng, checker) for _ in range(FILLERS)]
        self.keys = list(checker.keys)

    async def run(self) -> None:
        """Reads pages until it is cancelled."""
        pace = Pace(self.rng, self.load.reads / self.load.page / self.load.readers)
        while True:
            await pace.wait()
            page = self.rng.sample(self.keys, self.load.page)
            try:
                await self.read(page)
            except Failure:
                self.checker.counts["failed pages"] += 1
                await asyncio.sleep(RETRY_S)

    async def read(self, page: list[str]) -> None:
        """Reads one page, checks it, and has the missing keys filled."""
        floors = [self.checker.acknowledged(self.cluster.name, key) for key in page]
        begin_s, router = time.monotonic(), self.cache.router
        try:
            replies = await self.cache.get_page(page, self.load.has_leases)
        except Failure:
            self.checker.samples.record_page(begin_s, time.monotonic(), len(page))
            raise
        errors = sum(reply.is_error for reply in replies)
        self.checker.counts["errors"] += errors
        self.checker.samples.record_page(begin_s, time.monotonic(), errors)
        missing = []
        for key, reply, floor in zip(page, replies, floors, strict=True):
            if reply.value is not None:
                self.checker.check_read(self.cluster.name, router, key, reply.value, begin_s, floor)
            elif reply.token == HOT_MISS:
                self.checker.counts["hot misses"] += 1
            elif not reply.is_error:
                self.checker.counts["misses"] += 1
                missing.append((key, reply.token))
        # A bounded number of fills: a database that hangs keeps that many threads waiting, and no more.
        idle = next((filler for filler in self.fillers if filler.is_idle), None)
        if missing and idle:
            idle.begin(missing)

    def close(self) -> None:
        """Closes its connections and ends its fills."""
        self.cache.close()
        for filler in self.fillers:
            filler.close()


class Filler:
    """The part of a reader that loads rows and fills them, one page at a time."""

    def __init__(self, region: Region, cluster: Cluster, number: int, rng: random.Random, checker: Checker) -> None:
        self.rng, self.checker = rng, checker
        self.cache = CacheConnection(cluster, number)
        self.rows = DatabaseConnection(region)
        self.task: asyncio.Task | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it can begin."""
        return self.task is None or self.task.done()

    def begin(self, missing: list[tuple[str, int]]) -> None:
        """Fills keys, each under its token, in the background."""
        self.task = asyncio.create_task(self.fill(missing))

    async def fill(self, missing: list[tuple[str, int]]) -> None:
        """Loads the rows and fills them, some of them late."""
        try:
            versions = await self.rows.run(lambda cursor: load_versions(cursor, [key for key, _ in missing]))
            draw = self.rng.random()
            _, low, high = next(delay for delay in DELAYS_S if draw <= delay[0])
            await asyncio.sleep(self.rng.uniform(low, high))
            for key, token in missing:
                value = compose_value(key, versions[key])
                verb, lease = ("set", "") if token == NO_LEASE else ("lease-set", f" {token}")
                head = f"{verb} {key}{lease} 0 0 {len(value)}\r\n".encode()
                answer = await self.cache.command(head + value + b"\r\n")
                self.checker.counts["fills" if answer == b"STORED\r\n" else "refused fills"] += 1
        except (*Failure, *self.rows.database.errors):
            self.checker.counts["failed fills"] += 1

    def close(self) -> None:
        """Ends the fill and closes the connections."""
        if self.task is not None:
            self.task.cancel()
        self.cache.close()
        self.rows.close()


class Writer:
    """An application that commits. Each key has one writer."""

    def __init__(self, region: Region, cluster: Cluster, number: int, load: Load, seed: int, checker: Checker) -> None:
        self.rng = random.Random(f"writer {number} {seed}")
        self.cluster, self.load, self.checker = cluster, load, checker
        self.cache = CacheConnection(cluster, number)
        self.rows = DatabaseConnection(region)
        self.keys = list(checker.keys)[number :: load.writers]
        self.is_over = False

    async def run(self) -> None:
        """Commits until `is_over`."""
        pace = Pace(self.rng, self.load.writes / self.load.writers)
        while not self.is_over:
            await pace.wait()
            key = self.rng.choice(self.keys)
            version = self.checker.begin_commit(key)
            if not await self.commit(key, version):
                continue
            if self.rng.random() < self.load.own_deletes:
                await self.delete(key, version)

    async def commit(self, key: str, version: int) -> bool:
        """Commits a version; whether it is in the database. Waits for a database that is away."""

        database = self.rows.database

        def update(cursor) -> tuple[float, str]:
            cursor.execute(database.change(key), (version, key, version))
            committed_s = time.monotonic()
            cursor.execute(database.position_of_commit)
            return committed_s, cursor.fetchone()[0]

        try:
            committed_s, position = await self.rows.run(update)
        except database.errors:
            self.checker.counts["commits in doubt"] += 1
            return await self.resolve(key, version)
        self.checker.record_commit(key, version, committed_s, sequence_of(position))
        return True

    async def resolve(self, key: str, version: int) -> bool:
        """Whether a commit whose answer was lost has happened."""

        database = self.rows.database

        def look(cursor) -> tuple[int, str]:
            now = load_versions(cursor, [key])[key]
            cursor.execute(database.end_of_log)
            return now, cursor.fetchone()[0]

        while not self.is_over:
            try:
                now, position = await self.rows.run(look)
            except database.errors:
                await asyncio.sleep(RETRY_S)
                continue
            if now != version:
                return False
            self.checker.record_commit(key, version, time.monotonic(), sequence_of(position))
            return True
        return False

    async def delete(self, key: str, version: int) -> None:
        """Deletes in its own cluster, so that it reads its own write."""
        try:
            answer = await self.cache.command(f"delete {key}\r\n".encode())
        except Failure:
            self.checker.counts["failed deletes"] += 1
            return
        if answer in DELETED:
            self.checker.record_delete(self.cluster.name, key, version, time.monotonic(), "the writer's own delete")
        else:
            self.checker.counts["failed deletes"] += 1

    def close(self) -> None:
        """Closes its connections."""
        self.cache.close()
        self.rows.close()


async def poll_positions(place: Place, checker: Checker) -> None:
    """Tells the checker what an invalidator has durably passed, until it is cancelled."""
    while True:
        try:
            async with asyncio.timeout(REPLY_S):
                reader, writer = await asyncio.open_connection(place.host, place.port)
            while True:
                await asyncio.sleep(POLL_S)
                writer.write(b"stats\r\n")
                async with asyncio.timeout(REPLY_S):
                    text = (await reader.readuntil(b"END\r\n")).decode()
                for cluster, position in positions(text).items():
                    checker.record_position(cluster, position, time.monotonic())
        except Failure:
            await asyncio.sleep(RETRY_S)


def positions(stats_text: str) -> dict[str, int]:
    """The durable position of each cluster."""
    found = {}
    for line in stats_text.splitlines():
        words = line.split()
        if len(words) >= 3 and words[1].startswith("cluster:") and words[1].endswith(":position"):
            found[words[1].split(":")[1]] = sequence_of(words[-1])
    return found
