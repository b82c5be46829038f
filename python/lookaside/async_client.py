"""The client for asyncio."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from lookaside._lookaside import Channel, ClientCore, LoadRequest
from lookaside.cached import KeyTemplate
from lookaside.client_base import ABSENT_TTL_S, FLUSH_TIMEOUT_S, WAIT_S, ClientBase
from lookaside.errors import LookasideError
from lookaside.event_loops import EventLoops
from lookaside.explanation import Explanation, explanation_key, parse_explanation
from lookaside.plan import Key, Level, Loader, Plan, PlanResults, Ttl, ttl_of, values_in_order

T = TypeVar("T")
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class CachedCoroutine(Protocol[P, R_co]):
    """A coroutine function whose results are cached."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key of the result of a call."""

    async def delete(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Deletes the result of a call; whether there was one."""


class AsyncClient(ClientBase):
    """A look-aside client for asyncio. Its arguments and calls are those of `Client`; loaders are coroutine functions.

    The gets that tasks make in one turn of the event loop travel as one batch. With `config`, the constructor blocks
    while it reads the configuration, unless that is not required. Several event loops may use one client, each from its
    own thread.
    """

    _is_async = True
    # Those of a client, its pools, and those with statistics of their own.
    _event_loops: EventLoops
    # The one that was used last.
    _channel: Channel | None = None

    def _prepare(self) -> None:
        self._event_loops = EventLoops(self._core)

    def _with_core(self, core: ClientCore) -> "AsyncClient":
        client = super()._with_core(core)
        client._event_loops = self._event_loops
        return client

    def _open_channel(self) -> Channel:
        """The channel of the running event loop."""
        loop = asyncio.get_running_loop()
        channel = self._channel
        if channel is None or channel.event_loop is not loop:
            channel = self._channel = self._event_loops.open_channel(loop).with_core(self._core)
        return channel

    async def get(self, key: Key, default: Any = None, *, timeout: float | None = None) -> Any:
        """As `Client.get`."""
        return await self._open_channel().get(key, default, timeout)

    async def get_many(self, keys: Iterable[Key], *, timeout: float | None = None) -> dict[Any, Any]:
        """As `Client.get_many`."""
        return await self._open_channel().get_many(keys, timeout)

    async def get_or_load(
        self,
        key: Key,
        loader: Callable[[], Awaitable[T]],
        *,
        ttl: float | None = None,
        stale: bool = False,
        wait: float = WAIT_S,
        absent_ttl: float = ABSENT_TTL_S,
        timeout: float | None = None,
    ) -> T:
        """As `Client.get_or_load`. A call that is cancelled releases its lease, and the next one loads."""

        async def load_one(_: list[Any], _source: Any) -> list[T]:
            return [await loader()]

        return cast(T, (await self._read((key,), load_one, (ttl,), stale, wait, absent_ttl, timeout))[0])

    async def get_or_load_many(
        self,
        keys: Iterable[Key],
        loader: Loader,
        *,
        ttl: Ttl = None,
        stale: bool = False,
        wait: float = WAIT_S,
        absent_ttl: float = ABSENT_TTL_S,
        timeout: float | None = None,
    ) -> dict[Any, Any]:
        """As `Client.get_or_load_many`."""
        names = list(dict.fromkeys(keys))

        async def load(missing: list[Any], _source: Any) -> list[Any]:
            return values_in_order(missing, await loader(missing))

        ttls = [ttl_of(ttl, name) for name in names] if callable(ttl) else (ttl,)
        values = await self._read(names, load, ttls, stale, wait, absent_ttl, timeout)
        return dict(zip(names, values, strict=True))

    async def _read(
        self, keys: Sequence[Key], load: Callable[[list[Any], Any], Awaitable[list[Any]]], *options: Any
    ) -> list[Any]:
        """`load` gets keys, and the name of the database to load them from, None without remote markers."""
        future = self._open_channel().read(keys, *options)
        while True:
            try:
                step = await future
            except BaseException:
                # The reply, and with it a lease, may have come in the turn in which the task was cancelled. The
                # error's traceback, which holds it, may live long.
                if future.done() and not future.cancelled() and future.exception() is None:
                    step = future.result()
                    if isinstance(step, LoadRequest):
                        step.fail()
                raise
            if not isinstance(step, LoadRequest):
                values, undecodable = step
                if undecodable:
                    # They stay in the cache until they expire or are deleted. No marker was looked for.
                    loaded = await load([keys[index] for index in undecodable], "master")
                    for index, value in zip(undecodable, loaded, strict=True):
                        values[index] = value
                return values
            try:
                future = step.succeed(await load(step.keys, step.source))
            except BaseException:
                step.fail()
                raise

    async def set(self, key: Key, value: Any, *, ttl: float | None = None, timeout: float | None = None) -> None:
        """As `Client.set`."""
        await self._open_channel().update(self._core.set(key, value, ttl), timeout)

    async def set_many(
        self, values: Mapping[Any, Any], *, ttl: float | None = None, timeout: float | None = None
    ) -> dict[Any, LookasideError]:
        """As `Client.set_many`."""
        return await self._open_channel().update(self._core.set_many(values, ttl), timeout)

    async def add(self, key: Key, value: Any, *, ttl: float | None = None, timeout: float | None = None) -> bool:
        """As `Client.add`."""
        return await self._open_channel().update(self._core.add(key, value, ttl), timeout)

    async def incr(self, key: Key, delta: int = 1, *, timeout: float | None = None) -> int | None:
        """As `Client.incr`."""
        return await self._open_channel().update(self._core.incr(key, delta), timeout)

    async def decr(self, key: Key, delta: int = 1, *, timeout: float | None = None) -> int | None:
        """As `Client.decr`."""
        return await self._open_channel().update(self._core.decr(key, delta), timeout)

    async def touch(self, key: Key, ttl: float | None, *, timeout: float | None = None) -> bool:
        """As `Client.touch`."""
        return await self._open_channel().update(self._core.touch(key, ttl), timeout)

    async def delete(self, key: Key, *, timeout: float | None = None) -> bool:
        """As `Client.delete`."""
        return await self._open_channel().update(self._core.delete(key), timeout)

    async def delete_many(self, keys: Iterable[Key], *, timeout: float | None = None) -> dict[Any, bool]:
        """As `Client.delete_many`."""
        return await self._open_channel().update(self._core.delete_many(keys), timeout)

    async def flush_all(self, *, timeout: float = FLUSH_TIMEOUT_S) -> None:
        """As `Client.flush_all`."""
        await asyncio.to_thread(self._core.flush_all, timeout)

    def cached(
        self,
        key: str,
        *,
        ttl: float | None = None,
        stale: bool = False,
        wait: float = WAIT_S,
        absent_ttl: float = ABSENT_TTL_S,
    ) -> Callable[[Callable[P, Awaitable[T]]], CachedCoroutine[P, T]]:
        """Caches the results of a coroutine function, as `Client.cached` those of a function."""

        def decorate(function: Callable[P, Awaitable[T]]) -> CachedCoroutine[P, T]:
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"{function.__qualname__} is not a coroutine function: use Client.cached")
            template = KeyTemplate(key, function)

            @functools.wraps(function)
            async def read(*args: P.args, **kwargs: P.kwargs) -> T:
                return await self.get_or_load(
                    template.key(*args, **kwargs),
                    lambda: function(*args, **kwargs),
                    ttl=ttl,
                    stale=stale,
                    wait=wait,
                    absent_ttl=absent_ttl,
                )

            return cast(CachedCoroutine[P, T], template.add_attributes(read, self.delete))

        return decorate

    async def run_plan(
        self,
        plan: Plan,
        *,
        ttl: Ttl = None,
        stale: bool = False,
        wait: float = WAIT_S,
        absent_ttl: float = ABSENT_TTL_S,
    ) -> PlanResults:
        """As `Client.run_plan`. The loaders of one level run at the same time."""
        results = PlanResults()
        for nodes in list(plan.levels()):
            level = Level.of(nodes, results)

            async def load(missing: list[Any], level: Level = level) -> dict[Any, Any]:
                parts = list(level.to_load(missing))
                loaded = await asyncio.gather(*(node.load(keys) for node, keys in parts))
                values: dict[Any, Any] = {}
                for (_, keys), part in zip(parts, loaded, strict=True):
                    values.update(zip(keys, values_in_order(keys, part), strict=True))
                return values

            values = await self.get_or_load_many(
                level.keys, load, ttl=level.ttls(ttl), stale=stale, wait=wait, absent_ttl=absent_ttl
            )
            level.store(values, results)
        return results

    async def explain(self, key: str, verb: str = "get") -> Explanation:
        """As `Client.explain`."""
        full_key = self._core.full_key(key)
        reply = await asyncio.to_thread(self._core.ask_router, explanation_key(full_key, verb))
        return parse_explanation(full_key, verb, reply)

    async def close(self) -> None:
        """Waits for the calls of this event loop, and their loaders, then ends the client's thread and connections.

        No loader may wait for it.
        """
        self._core.close()
        self._channel = None
        await self._event_loops.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
