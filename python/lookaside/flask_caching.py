"""The backend of Flask-Caching: `CACHE_TYPE = "lookaside.flask_caching.LookasideCache"`.

docs/clients/python_backends.md describes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from flask import Flask
from flask_caching.backends.base import BaseCache

from .cache_backends import ABSENT_TTL_MAX_S, FAILURES, MISSES, ClientSettings, MissLog, encoding, log_not_stored
from .client_base import WAIT_S
from .errors import DecodeError, InvalidKeyError, LookasideError
from .key_templates import check_key

T = TypeVar("T")

log = logging.getLogger("lookaside.flask_caching")
miss_log = MissLog(log)

# A value that is not there.
MISSING = object()


def is_valid(key: str) -> bool:
    """Whether servers accept it."""
    try:
        check_key(key)
    except InvalidKeyError:
        return False
    return True


class LookasideCache(BaseCache):
    """A cache of Flask-Caching behind routers.

    A get that fails is a miss, and is logged. A set that fails is logged, and returns `False`; a delete that fails
    raises. A key that no server accepts is absent, and raises `InvalidKeyError` if it is to be set.

    `default_timeout` and timeouts are in seconds: 0 is without end, and with less than 0 a value has expired. `options`
    are those of `Client`, by CACHE_OPTIONS.
    """

    def __init__(
        self,
        routers: str | Sequence[str],
        default_timeout: int = 300,
        ignore_delete_many_errors: bool = False,
        key_prefix: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(default_timeout, ignore_delete_many_errors)
        self.key_prefix = key_prefix or ""
        self._client = ClientSettings(routers, options).client()

    @classmethod
    def factory(cls, app: Flask, config: dict[str, Any], args: list[Any], kwargs: dict[str, Any]) -> LookasideCache:
        """The cache of an application's configuration; CACHE_MEMCACHED_SERVERS are the routers."""
        routers = config["CACHE_MEMCACHED_SERVERS"]
        if not routers:
            raise ValueError('CACHE_MEMCACHED_SERVERS is not set; expected the routers, as ["127.0.0.1:5000"]')
        return cls(routers, *args, **{"key_prefix": config["CACHE_KEY_PREFIX"]} | kwargs)

    def get(self, key: str) -> Any:
        return self._get(key, None)

    def _get(self, key: str, default: Any) -> Any:
        try:
            return self._client.get(self.key_prefix + key, default)
        except InvalidKeyError:
            return default
        except MISSES as error:
            miss_log.record(self.key_prefix + key, error)
            return default

    def has(self, key: str) -> bool:
        return self._get(key, MISSING) is not MISSING

    def get_many(self, *keys: str) -> list[Any]:
        names = [self.key_prefix + key for key in keys]
        try:
            found = self._client.get_many(names)
        except FAILURES as error:
            miss_log.record(names[0], error, len(names) - 1)
            return [None] * len(keys)
        except (DecodeError, InvalidKeyError):
            # One key or value that is malformed is not a miss of the others.
            return [self.get(key) for key in keys]
        return [found.get(name) for name in names]

    def get_or_load(
        self, key: str, loader: Callable[[], T], timeout: Any = None, *, stale: bool = False, wait: float = WAIT_S
    ) -> T:
        """The value, from the cache or the loader, as by `Client.get_or_load`.

        Of all processes that miss the key, one loads, and no value from before a delete is stored: the interface of
        Flask-Caching has no call that could promise that.
        """
        ttl = self._ttl(timeout)
        if ttl == 0:
            return loader()
        absent_ttl = ABSENT_TTL_MAX_S if ttl is None else ttl
        with encoding():
            return self._client.get_or_load(
                self.key_prefix + key, loader, ttl=ttl, absent_ttl=absent_ttl, stale=stale, wait=wait
            )

    def set(self, key: str, value: Any, timeout: Any = None) -> bool:
        name, ttl = self.key_prefix + key, self._ttl(timeout)
        try:
            if ttl == 0:
                self._client.delete(name)
            else:
                with encoding():
                    self._client.set(name, value, ttl=ttl)
        except FAILURES as error:
            log_not_stored(log, name, error)
            return False
        return True

    def set_many(self, mapping: Mapping[str, Any], timeout: Any = None) -> list[Any]:
        """Returns the keys that were stored."""
        ttl = self._ttl(timeout)
        values = {self.key_prefix + key: value for key, value in mapping.items()}
        not_stored: dict[str, LookasideError] = {}
        try:
            if ttl == 0:
                self._client.delete_many(values)
            else:
                with encoding():
                    not_stored = self._client.set_many(values, ttl=ttl)
        except FAILURES as error:
            not_stored = dict.fromkeys(values, error)
        for name, reason in not_stored.items():
            log_not_stored(log, name, reason)
        return [key for key in mapping if self.key_prefix + key not in not_stored]

    def add(self, key: str, value: Any, timeout: Any = None) -> bool:
        name, ttl = self.key_prefix + key, self._ttl(timeout)
        if ttl == 0:
            return not self.has(key)
        try:
            with encoding():
                return self._client.add(name, value, ttl=ttl)
        except FAILURES as error:
            log.warning("a value of %s was not added: %s", name, error)
            return False

    def delete(self, key: str) -> bool:
        """Whether there was a value. A delete that fails raises."""
        try:
            return self._client.delete(self.key_prefix + key)
        except InvalidKeyError:
            return False

    def delete_many(self, *keys: str) -> list[Any]:
        """Returns the keys, which have no value now. A delete that fails is a `RuntimeError`, or logged."""
        names = [self.key_prefix + key for key in keys]
        try:
            self._client.delete_many([name for name in names if is_valid(name)])
        except FAILURES as error:
            if not self.ignore_delete_many_errors:
                raise RuntimeError(f"not all of {len(keys)} keys were deleted: {error}") from error
            log.warning("not all of %s keys were deleted: %s", len(keys), error)
            return []
        return list(keys)

    def clear(self) -> bool:
        """Empties all servers of the cluster, whichever program has filled them; whether routers allow it."""
        try:
            self._client.flush_all()
        except FAILURES as error:
            log.warning("the cache was not cleared: %s", error)
            return False
        return True

    def inc(self, key: str, delta: int = 1) -> int | None:
        """Adds to an int, which is 0 if there is none. It is atomic for ints of 0 or more."""
        return self._change(key, delta)

    def dec(self, key: str, delta: int = 1) -> int | None:
        """Subtracts likewise. Below 0 it is not atomic: of two calls at once that pass 0, one may end there."""
        return self._change(key, -delta)

    def _change(self, key: str, delta: int) -> int | None:
        name = self.key_prefix + key
        try:
            before = self._client.get(name)
            ttl = self._ttl(None)
            # An add without a reply may have been executed: it is an error, and nothing follows it.
            if before is None and (ttl == 0 or self._client.add(name, delta, ttl=ttl)):
                return delta
            if before is None or (isinstance(before, int) and min(before, before + delta) >= 0):
                # A server knows no number below 0, and stops there.
                changed = self._client.incr(name, delta) if delta >= 0 else self._client.decr(name, -delta)
                if changed is not None:
                    return changed
            changed = (before or 0) + delta
            return changed if self.set(key, changed) else None
        except FAILURES as error:
            log.warning("%s may not be changed: %s", name, error)
            return None

    def _ttl(self, timeout: Any) -> float | None:
        """Seconds; `None` if the value does not expire, 0 if it has expired already."""
        seconds = self._normalize_timeout(timeout)
        return None if seconds == 0 else max(seconds, 0)
