"""Connections of the applications: to the routers of a cluster, and to the database. All run in one event loop."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from chaos.region import Cluster, Place, Region

REPLY_S = 3.0
NO_LEASE = -1

Failure = (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, asyncio.LimitOverrunError)


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


async def read_stats(place: Place) -> dict[str, str]:
    """`stats` of a process."""
    async with asyncio.timeout(REPLY_S):
        reader, writer = await asyncio.open_connection(place.host, place.port)
        try:
            writer.write(b"stats\r\n")
            lines = (await reader.readuntil(b"END\r\n")).decode().splitlines()
        finally:
            writer.close()
    return {name: value for _, name, value in (line.split(" ", 2) for line in lines[:-1])}


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
        """The result of `statements(cursor)`; one of the database's `errors` closes the connection."""
        return await asyncio.to_thread(self.run_here, statements)

    def run_here(self, statements: Callable) -> object:
        """The same, in this thread."""
        try:
            if self.connection is None:
                self.connection = self.database.connect_application()
            with self.connection.cursor() as cursor:
                return statements(cursor)
        except self.database.errors:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self.connection is not None:
            with contextlib.suppress(*self.database.errors):
                self.connection.close()
            self.connection = None
