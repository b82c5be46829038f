"""The cache backend: `"BACKEND": "lookaside.django.LookasideCache"` in CACHES. See docs/clients/python_backends.md.

The asynchronous methods use `AsyncClient`. Django's own would call the others in a thread, of which a request has one:
the calls of its tasks would wait for each other, and `aget_or_set` for all code of the request that blocks.

`close`, which Django calls at the end of each request, does nothing: the connections are those of all threads.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.core.cache.backends.base import (
    DEFAULT_TIMEOUT,
    MEMCACHE_MAX_KEY_LENGTH,
    BaseCache,
    InvalidCacheKey,
    memcache_key_warnings,
)
from django.core.exceptions import ImproperlyConfigured

from ..cache_backends import ABSENT_TTL_MAX_S, FAILURES, MISSES, ClientSettings, MissLog, encoding, log_not_stored
from ..client_base import WAIT_S
from ..errors import DecodeError, LookasideError, NotStoredError

log = logging.getLogger("lookaside.django.cache")
miss_log = MissLog(log)


class LookasideCache(BaseCache):
    """A cache of Django behind the routers of LOCATION.

    A get that fails is a miss, and is logged. A write that fails raises; with the option `on_failed_set="log"`, a set
    does not.
    """

    def __init__(self, location: str | Sequence[str], params: Mapping[str, Any]) -> None:
        super().__init__(params)
        options = dict(params.get("OPTIONS") or {})
        self._wait: float = options.pop("wait", WAIT_S)
        self._stale: bool = options.pop("stale", False)
        on_failed_set = options.pop("on_failed_set", "raise")
        if on_failed_set not in ("raise", "log"):
            raise ImproperlyConfigured(f"on_failed_set is {on_failed_set!r}; expected 'raise' or 'log'")
        self._raises_failed_sets = on_failed_set == "raise"
        settings = ClientSettings(location, options)
        self._client, self._async_client = settings.client(), settings.async_client

    def validate_key(self, key: str) -> None:
        """Raises `InvalidCacheKey` for a key that no server accepts."""
        for warning in memcache_key_warnings(key):
            raise InvalidCacheKey(warning)
        if len(key.encode()) > MEMCACHE_MAX_KEY_LENGTH:
            raise InvalidCacheKey(f"Cache key {key!r} has over {MEMCACHE_MAX_KEY_LENGTH} bytes.")

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        key = self.make_and_validate_key(key, version=version)
        try:
            return self._client.get(key, default)
        except MISSES as error:
            miss_log.record(key, error)
            return default

    async def aget(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        key = self.make_and_validate_key(key, version=version)
        try:
            return await self._async_client().get(key, default)
        except MISSES as error:
            miss_log.record(key, error)
            return default

    def get_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        names = self._names(keys, version)
        try:
            found = self._client.get_many(names)
        except DecodeError:
            # One value that cannot be read is not a miss of the others.
            return dict(super().get_many(names.values(), version=version))
        except FAILURES as error:
            miss_log.record(next(iter(names)), error, len(names) - 1)
            return {}
        return {names[name]: value for name, value in found.items()}

    async def aget_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        names = self._names(keys, version)
        try:
            found = await self._async_client().get_many(names)
        except DecodeError:
            return dict(await super().aget_many(names.values(), version=version))
        except FAILURES as error:
            miss_log.record(next(iter(names)), error, len(names) - 1)
            return {}
        return {names[name]: value for name, value in found.items()}

    def get_or_set(self, key: Any, default: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> Any:
        """Of all processes that miss the key, one calls `default`, and no value from before a delete is stored."""
        ttl = self._ttl(timeout)
        if ttl == 0:
            return super().get_or_set(key, default, timeout=timeout, version=version)
        loader = default if callable(default) else lambda: default
        key = self.make_and_validate_key(key, version=version)
        with encoding():
            return self._client.get_or_load(key, loader, **self._load_options(ttl))

    async def aget_or_set(
        self, key: Any, default: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> Any:
        """As `get_or_set`. `default` may be a coroutine function, too."""

        async def load() -> Any:
            value = default() if callable(default) else default
            return await value if inspect.isawaitable(value) else value

        ttl = self._ttl(timeout)
        if ttl == 0:
            found = await self.aget(key, self._missing_key, version=version)
            return await load() if found is self._missing_key else found
        key = self.make_and_validate_key(key, version=version)
        with encoding():
            return await self._async_client().get_or_load(key, load, **self._load_options(ttl))

    def set(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> None:
        key, ttl = self.make_and_validate_key(key, version=version), self._ttl(timeout)
        if ttl == 0:
            self._client.delete(key)
            return
        with self._storing(key):
            # If the value is too large, the server removes the one before.
            self._client.set(key, value, ttl=ttl)

    async def aset(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> None:
        key, ttl = self.make_and_validate_key(key, version=version), self._ttl(timeout)
        client = self._async_client()
        if ttl == 0:
            await client.delete(key)
            return
        with self._storing(key):
            await client.set(key, value, ttl=ttl)

    def set_many(
        self, data: Mapping[Any, Any], timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> list[Any]:
        """Returns the keys that were not stored. Why is logged."""
        names, values, ttl = self._values(data, timeout, version)
        with encoding():
            if ttl == 0:
                self._client.delete_many(values)
                return []
            return not_stored(names, self._client.set_many(values, ttl=ttl))

    async def aset_many(
        self, data: Mapping[Any, Any], timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> list[Any]:
        names, values, ttl = self._values(data, timeout, version)
        with encoding():
            if ttl == 0:
                await self._async_client().delete_many(values)
                return []
            return not_stored(names, await self._async_client().set_many(values, ttl=ttl))

    def add(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        ttl = self._ttl(timeout)
        if ttl == 0:
            return not self.has_key(key, version=version)
        key = self.make_and_validate_key(key, version=version)
        # It raises whatever `on_failed_set` is: sessions take `False` for a key that is in use, and try others.
        with encoding():
            return self._client.add(key, value, ttl=ttl)

    async def aadd(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        ttl = self._ttl(timeout)
        if ttl == 0:
            return not await self.ahas_key(key, version=version)
        key = self.make_and_validate_key(key, version=version)
        with encoding():
            return await self._async_client().add(key, value, ttl=ttl)

    def touch(self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        key, ttl = self.make_and_validate_key(key, version=version), self._ttl(timeout)
        return self._client.delete(key) if ttl == 0 else self._client.touch(key, ttl)

    async def atouch(self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        key, ttl = self.make_and_validate_key(key, version=version), self._ttl(timeout)
        client = self._async_client()
        return await (client.delete(key) if ttl == 0 else client.touch(key, ttl))

    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """Adds to a number from 0 to 2**64 - 1, which stops at 0. `ValueError` if there is no value."""
        name = self.make_and_validate_key(key, version=version)
        number = self._client.incr(name, delta) if delta >= 0 else self._client.decr(name, -delta)
        return found_number(key, number)

    async def aincr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        name, client = self.make_and_validate_key(key, version=version), self._async_client()
        number = await (client.incr(name, delta) if delta >= 0 else client.decr(name, -delta))
        return found_number(key, number)

    def delete(self, key: Any, version: int | None = None) -> bool:
        return self._client.delete(self.make_and_validate_key(key, version=version))

    async def adelete(self, key: Any, version: int | None = None) -> bool:
        return await self._async_client().delete(self.make_and_validate_key(key, version=version))

    def delete_many(self, keys: Iterable[Any], version: int | None = None) -> None:
        self._client.delete_many(self._names(keys, version))

    async def adelete_many(self, keys: Iterable[Any], version: int | None = None) -> None:
        await self._async_client().delete_many(self._names(keys, version))

    def clear(self) -> None:
        """Empties all servers of the cluster, whichever program has filled them. Routers must allow it."""
        self._client.flush_all()

    async def aclear(self) -> None:
        await self._async_client().flush_all()

    def _names(self, keys: Iterable[Any], version: int | None) -> dict[str, Any]:
        """The keys as servers know them, and as the caller does."""
        return {self.make_and_validate_key(key, version=version): key for key in keys}

    def _values(
        self, data: Mapping[Any, Any], timeout: Any, version: int | None
    ) -> tuple[dict[str, Any], dict[str, Any], float | None]:
        """The names of keys, as `_names`, the values by these names, and their ttl."""
        names = self._names(data, version)
        return names, {name: data[key] for name, key in names.items()}, self._ttl(timeout)

    def _ttl(self, timeout: Any) -> float | None:
        """Seconds; `None` if the value does not expire, 0 if it has expired already."""
        if timeout is DEFAULT_TIMEOUT:
            timeout = self.default_timeout
        return None if timeout is None else max(timeout, 0)

    def _load_options(self, ttl: float | None) -> dict[str, Any]:
        # Django caches `None` as any other value.
        absent_ttl = ABSENT_TTL_MAX_S if ttl is None else ttl
        return {"ttl": ttl, "absent_ttl": absent_ttl, "stale": self._stale, "wait": self._wait}

    @contextlib.contextmanager
    def _storing(self, key: str) -> Iterator[None]:
        """What becomes of the errors of a set."""
        try:
            with encoding():
                yield
        except FAILURES as error:
            if self._raises_failed_sets and not isinstance(error, NotStoredError):
                raise
            log_not_stored(log, key, error)


def not_stored(names: Mapping[str, Any], errors: Mapping[str, LookasideError]) -> list[Any]:
    """The keys that were not stored, as the caller knows them, after their errors were logged."""
    for name, error in errors.items():
        log_not_stored(log, name, error)
    return [names[name] for name in errors]


def found_number(key: Any, number: int | None) -> int:
    """The number, if there is one."""
    if number is None:
        raise ValueError(f"Key '{key}' not found")
    return number
