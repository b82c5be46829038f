"""Look-aside applications, and the poller of the invalidator's position. All run in one event loop.

A reader asks a router of its cluster for a page of keys, loads what is missing from the database, and fills it under
the lease. Some fills are delayed, as by a slow application: a lease must refuse them if the row changed meanwhile. A
writer commits the next version of a key, with the key in a comment of its SQL, and may delete it in its own cluster.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import pymysql
from leases import HOT_MISS
from mariadb import PASSWORD, USER

from chaos.checker import Checker, compose_value
from chaos.region import Cluster, Region

TABLE = "rows_of_app"
DELETED = (b"DELETED\r\n", b"NOT_FOUND\r\n")
REPLY_S = 3.0
DATABASE_REPLY_S = 60.0
RETRY_S = 0.05
POLL_S = 0.05
DELAYS_S = ((0.9, 0.0, 0.003), (0.98, 0.02, 0.1), (1.0, 0.2, 1.0))
NO_LEASE = -1
FILLERS = 4

Failure = (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, asyncio.LimitOverrunError)


@dataclass(frozen=True)
class Load:
    """How much is asked of the region, by applications of all clusters together."""

    keys: int = 200
    readers: int = 4
    reads: float = 2000.0
    page: int = 16
    writers: int = 2
    writes: float = 60.0
    own_deletes: float = 0.5
    has_leases: bool = True


@dataclass
class Reply:
    """The answer to one `lease-get` or `get`."""

    value: bytes | None = None
    token: int = 0
    is_error: bool = False


class CacheConnection:
    """A connection to one router of a cluster; after a failure, to the next one."""

    def __init__(self, cluster: Cluster, first: int) -> None:
        self.cluster, self.turn = cluster, first
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def router(self) -> str:
        """The router that it asks."""
        return self.cluster.routers[self.turn % len(self.cluster.routers)].name

    async def exchange(self, request: bytes, read_replies: Callable) -> object:
        """The replies to a request. After a failure the connection is closed, and the next router's turn comes."""
        try:
            async with asyncio.timeout(REPLY_S):
                if self.streams is None:
                    place = self.cluster.routers[self.turn % len(self.cluster.routers)].place
                    self.streams = await asyncio.open_connection(place.host, place.port)
                reader, writer = self.streams
                writer.write(request)
                return await read_replies(reader)
        except BaseException:
            self.close()
            self.turn += 1
            raise

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None

    async def get_page(self, keys: list[str], has_leases: bool) -> list[Reply]:
        """A reply for each key, in order."""
        verb = "lease-get" if has_leases else "get"
        request = "".join(f"{verb} {key}\r\n" for key in keys).encode()

        async def read(reader: asyncio.StreamReader) -> list[Reply]:
            return [await read_value(reader) for _ in keys]

        return await self.exchange(request, read)

    async def command(self, request: bytes) -> bytes:
        """A command with an answer of one line."""
        return await self.exchange(request, lambda reader: reader.readuntil(b"\n"))


async def read_value(reader: asyncio.StreamReader) -> Reply:
    """The reply to a get or a lease-get of one key."""
    head = await reader.readuntil(b"\n")
    fields = head.split()
    if fields and fields[0] == b"END":
        return Reply(token=NO_LEASE)
    if not fields or fields[0] not in (b"VALUE", b"LVALUE"):
        return Reply(is_error=True)
    data = await reader.readexactly(int(fields[-1]) + 2)
    end = await reader.readuntil(b"\n")
    if end != b"END\r\n":
        raise ConnectionError(f"{end!r} behind a value")
    if fields[0] == b"VALUE":
        return Reply(value=data[:-2])
    return Reply(token=int(fields[2]))


class DatabaseConnection:
    """A connection whose statements run in a thread, one at a time, and which reconnects."""

    def __init__(self, region: Region) -> None:
        self.database = region.database
        self.connection = None

    async def run(self, statements: Callable) -> object:
        """The result of `statements(cursor)`; a `pymysql.MySQLError` or `OSError` closes the connection."""
        return await asyncio.to_thread(self.run_here, statements)

    def run_here(self, statements: Callable) -> object:
        """The same, in this thread."""
        try:
            if self.connection is None:
                self.connection = pymysql.connect(
                    host=self.database.host, port=self.database.port, user=USER, password=PASSWORD, database="app",
                    autocommit=True, connect_timeout=2, read_timeout=DATABASE_REPLY_S,
                )  # fmt: skip
            with self.connection.cursor() as cursor:
                return statements(cursor)
        except (pymysql.MySQLError, OSError):
            self.close()
            raise

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self.connection is not None:
            with contextlib.suppress(pymysql.MySQLError, OSError):
                self.connection.close()
            self.connection = None


def create_rows(region: Region, keys: list[str]) -> None:
    """Version 1 of every key."""
    with region.database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {TABLE} (id VARCHAR(40) PRIMARY KEY, version BIGINT NOT NULL) ENGINE=InnoDB")
        cursor.executemany(f"INSERT INTO {TABLE} VALUES (%s, 1)", keys)


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
        except (*Failure, pymysql.MySQLError):
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

        def update(cursor) -> tuple[float, str]:
            # A statement of a connection that failed may still be executed later, so it must not undo a newer one.
            cursor.execute(
                f"UPDATE {TABLE} SET version = %s WHERE id = %s AND version < %s /* lookaside: {key} */",
                (version, key, version),
            )
            committed_s = time.monotonic()
            cursor.execute("SELECT @@last_gtid")
            return committed_s, cursor.fetchone()[0]

        try:
            committed_s, position = await self.rows.run(update)
        except (pymysql.MySQLError, OSError):
            self.checker.counts["commits in doubt"] += 1
            return await self.resolve(key, version)
        self.checker.record_commit(key, version, committed_s, sequence_of(position))
        return True

    async def resolve(self, key: str, version: int) -> bool:
        """Whether a commit whose answer was lost has happened."""

        def look(cursor) -> tuple[int, str]:
            now = load_versions(cursor, [key])[key]
            cursor.execute("SELECT @@gtid_binlog_pos")
            return now, cursor.fetchone()[0]

        while not self.is_over:
            try:
                now, position = await self.rows.run(look)
            except (pymysql.MySQLError, OSError):
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


def sequence_of(position: str) -> int:
    """The last number of a MariaDB GTID."""
    return int(position.rsplit("-", 1)[-1] or 0)


async def poll_positions(region: Region, checker: Checker) -> None:
    """Tells the checker what the invalidator has durably passed, until it is cancelled."""
    place = region.invalidator.place
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
