"""The client of a replica region, for asyncio."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar, cast

from lookaside._lookaside import WriteCore
from lookaside.async_client import AsyncClient
from lookaside.client_base import ABSENT_TTL_S, WAIT_S
from lookaside.plan import Key, Ttl, ttl_of, values_in_order
from lookaside.remote_markers import BegunWrite, RemoteMarkers, Source, keys_by_source, values_by_key

T = TypeVar("T")


class AsyncRemoteWrite(BegunWrite):
    """A write that has begun. As an asynchronous context manager it finishes at the end, also after an exception."""

    def __init__(self, client: AsyncClient, core: WriteCore) -> None:
        super().__init__(core)
        self._client = client

    async def finish(self, *, timeout: float | None = None) -> None:
        """As `RemoteWrite.finish`."""
        await self._client._open_channel().update(self._client._core.finish_write(self._core), timeout)

    async def abort(self, *, timeout: float | None = None) -> None:
        """As `RemoteWrite.abort`."""
        await self._client._open_channel().update(self._client._core.abort_write(self._core), timeout)

    async def __aenter__(self) -> "AsyncRemoteWrite":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.finish()


class AsyncRegionalClient:
    """As `RegionalClient`, for asyncio: loaders are coroutine functions."""

    def __init__(self, client: AsyncClient, markers: RemoteMarkers | None = None) -> None:
        self._client = client._with_core(client._core.with_remote_markers(markers or RemoteMarkers()))

    async def begin_write(self, keys: Iterable[Key], *, timeout: float | None = None) -> AsyncRemoteWrite:
        """As `RegionalClient.begin_write`."""
        prepared = self._client._core.begin_write(keys)
        return AsyncRemoteWrite(self._client, await self._client._open_channel().update(prepared, timeout))

    async def get_or_load(
        self,
        key: Key,
        loader: Callable[[Source], Awaitable[T]],
        *,
        ttl: float | None = None,
        wait: float = WAIT_S,
        absent_ttl: float = ABSENT_TTL_S,
        timeout: float | None = None,
    ) -> T:
        """As `RegionalClient.get_or_load`."""

        async def load_one(_: list[Any], source: Source) -> list[T]:
            return [await loader(source)]

        return cast(T, (await self._client._read((key,), load_one, (ttl,), False, wait, absent_ttl, timeout))[0])

    async def get_or_load_many(
        self,
        keys: Iterable[Key],
        loader: Callable[[list[Any], Source], Awaitable[Any]],
        *,
        ttl: Ttl = None,
        wait: float = WAIT_S,
        absent_ttl: float = ABSENT_TTL_S,
        timeout: float | None = None,
    ) -> dict[Any, Any]:
        """As `RegionalClient.get_or_load_many`."""
        names = list(dict.fromkeys(keys))

        async def load(missing: list[Any], source: Source) -> list[Any]:
            return values_in_order(missing, await loader(missing, source))

        ttls = [ttl_of(ttl, name) for name in names] if callable(ttl) else (ttl,)
        values = await self._client._read(names, load, ttls, False, wait, absent_ttl, timeout)
        return dict(zip(names, values, strict=True))

    async def read_past_cache(
        self,
        keys: Iterable[Key],
        loader: Callable[[list[Any], Source], Awaitable[Any]],
        *,
        timeout: float | None = None,
    ) -> dict[Any, Any]:
        """As `RegionalClient.read_past_cache`. The keys of both databases are loaded at the same time; if one loader
        fails, the other one is cancelled, and has ended when its error is raised."""
        sources = await self.find_sources(keys, timeout=timeout)
        self._client._core.count_past_cache(list(sources), False)
        parts = keys_by_source(sources)
        loaded = await _gather([loader(names, source) for source, names in parts])
        values: dict[Any, Any] = {}
        for (_, names), part in zip(parts, loaded, strict=True):
            values |= values_by_key(names, part)
        return {name: values[name] for name in sources}

    async def read_master(
        self, keys: Iterable[Key], loader: Callable[[list[Any], Source], Awaitable[Any]]
    ) -> dict[Any, Any]:
        """As `RegionalClient.read_master`."""
        names = list(dict.fromkeys(keys))
        self._client._core.count_past_cache(names, True)
        return values_by_key(names, await loader(names, "master")) if names else {}

    async def find_sources(self, keys: Iterable[Key], *, timeout: float | None = None) -> dict[Any, Source]:
        """As `RegionalClient.find_sources`."""
        names = list(dict.fromkeys(keys))
        prepared = self._client._core.find_sources(names)
        sources = await self._client._open_channel().update(prepared, timeout)
        return dict(zip(names, sources, strict=True))

    def stats(self) -> dict[str, int]:
        """As `RegionalClient.stats`."""
        return self._client.stats()


async def _gather(loads: list[Awaitable[Any]]) -> list[Any]:
    """The results of all loads. None runs on when it raises: a loader may use a connection that its caller closes."""
    tasks = [asyncio.ensure_future(load) for load in loads]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
