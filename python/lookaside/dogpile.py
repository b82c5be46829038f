"""The backend of dogpile.cache: `make_region().configure("lookaside", arguments={"url": ["127.0.0.1:5000"]})`.

Values are stored as dogpile.cache's backends for pylibmc and pymemcache store them, and keys are the same, so that
processes can move from these to this one while others still use them. docs/clients/python_backends.md describes it.

A region elects the creator of a value by a mutex, and stores the value itself. That is not a lease: an expired value,
which the others go on using, is there, and only a miss has a lease. So the mutex is a key of its own, which `add`
creates, as `dogpile.cache.pylibmc` and others have it, too.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dogpile.cache.api import NO_VALUE, BackendFormatted, BackendSetType, CacheBackend, CachedValue, CacheMutex
from dogpile.cache.util import sha1_mangle_key

from .cache_backends import FAILURES, MISSES, ClientSettings, encoding, log_not_stored
from .client import Client
from .errors import ConfigurationError, EncodeError, InvalidKeyError, LookasideError
from .key_templates import check_key

log = logging.getLogger("lookaside.dogpile")

#: How long a creator may take, by default, in seconds. Then another one begins.
LOCK_TIMEOUT_S = 60.0
#: The first and the longest pause between two attempts to acquire a lock.
PAUSE_S, PAUSE_MAX_S = 0.002, 0.1

CLIENT_OPTIONS = (
    "config", "config_required", "routing_prefix", "udp", "tls", "hedge", "timeout", "pickle", "compression",
    "compression_bytes_min",
)  # fmt: skip


class LookasideBackend(CacheBackend):
    """A cache of dogpile behind routers.

    | argument | meaning |
    |---|---|
    | `url` | the routers |
    | `distributed_lock` | whether one creator runs in all processes (the default), or one in each |
    | `lock_timeout` | how long a creator may take, in seconds (60) |
    | `memcached_expire_time` | when values leave the cache, in seconds; without it, or with 0, they stay |
    | `config`, `config_required`, `routing_prefix`, `udp`, `tls`, `hedge`, `timeout`, `pickle`, `compression`,
      `compression_bytes_min` | those of `Client` |

    A get that fails is a miss. A set that fails is logged, as the value is there. A delete that fails raises.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        options = {name: arguments[name] for name in CLIENT_OPTIONS if name in arguments}
        self._is_pickling = options.get("pickle", True)
        self._client = ClientSettings(arguments["url"], options).client()
        # dogpile.cache's own backends know 0, too.
        self._ttl: float | None = arguments.get("memcached_expire_time") or None
        if self._ttl is not None and self._ttl < 0:
            raise ConfigurationError(f"memcached_expire_time is {self._ttl}; expected seconds, or 0 for no end")
        self._lock_timeout = float(arguments.get("lock_timeout") or LOCK_TIMEOUT_S)
        self._is_lock_distributed: bool = arguments.get("distributed_lock", True)

    def key_mangler(self, key: str) -> str:
        """The key as it is; its SHA-1 if no server accepts it. The one of a region comes before this."""
        try:
            check_key(key)
        except InvalidKeyError:
            return sha1_mangle_key(key.encode())
        return key

    def has_lock_timeout(self) -> bool:
        return self._is_lock_distributed

    def get_mutex(self, key: str) -> CacheMutex | None:
        return DistributedMutex(self._client, key, self._lock_timeout) if self._is_lock_distributed else None

    def get(self, key: str) -> BackendFormatted:
        try:
            return to_value(self._client.get(key))
        except MISSES:
            return NO_VALUE

    def get_multi(self, keys: Iterable[str]) -> Sequence[BackendFormatted]:
        names = list(keys)
        try:
            found = self._client.get_many(names)
        except FAILURES:
            found = {}
        except MISSES:
            # One value that cannot be read is not a miss of the others.
            return [self.get(name) for name in names]
        return [to_value(found.get(name)) for name in names]

    def set(self, key: str, value: BackendSetType) -> None:
        self._check_values([value])
        try:
            with encoding():
                self._client.set(key, value, ttl=self._ttl)
        except FAILURES as error:
            log_not_stored(log, key, error)

    def set_multi(self, mapping: Mapping[str, BackendSetType]) -> None:
        self._check_values(mapping.values())
        with encoding():
            not_stored = self._client.set_many(mapping, ttl=self._ttl)
        for key, error in not_stored.items():
            log_not_stored(log, key, error)

    def _check_values(self, values: Iterable[BackendSetType]) -> None:
        if not self._is_pickling and not all(isinstance(value, bytes) for value in values):
            raise EncodeError("pickle is False, so values are stored only by a region that has a serializer")

    def delete(self, key: str) -> None:
        self._client.delete(key)

    def delete_multi(self, keys: Iterable[str]) -> None:
        self._client.delete_many(keys)


def to_value(found: Any) -> BackendFormatted:
    """What a region expects. Another program may have stored something else under the key."""
    return found if isinstance(found, CachedValue | bytes) else NO_VALUE


class DistributedMutex(CacheMutex):
    """A lock of all processes: a key that the one that has added it deletes, or that expires.

    It elects, and does not guarantee: a creator that takes longer than the lock lives has a successor beside it. While
    the cache does not answer, each process creates.
    """

    def __init__(self, client: Client, key: str, timeout: float) -> None:
        self._client, self._timeout = client, timeout
        name = f"_lock{key}"
        try:
            check_key(name)
        except InvalidKeyError:
            name = f"_lock{sha1_mangle_key(key.encode())}"
        self._name = name
        # The threads of a region share a mutex. One of them at a time asks the cache.
        self._local = threading.Lock()
        self._mark: str | None = None

    def acquire(self, wait: bool = True) -> bool:
        if not self._local.acquire(wait):
            return False
        try:
            acquired = self._acquire(wait)
        except BaseException:
            self._local.release()
            raise
        if not acquired:
            self._local.release()
        return acquired

    def _acquire(self, wait: bool) -> bool:
        mark, pause = secrets.token_hex(8), PAUSE_S
        waits_until = time.monotonic() + self._timeout
        while True:
            try:
                # A router that takes leases adds only what has been missed.
                if self._client.get(self._name) is None:
                    # An add without a reply may have been executed: `release` looks.
                    self._mark = mark
                    if self._client.add(self._name, mark, ttl=self._timeout):
                        return True
                    self._mark = None
            except MISSES:
                return True
            if not wait:
                return False
            if time.monotonic() > waits_until:
                log.warning("%s was locked for %s s: this process creates the value, too", self._name, self._timeout)
                return True
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)

    def release(self) -> None:
        mark, self._mark = self._mark, None
        try:
            # A lock that has expired, or was evicted, may be another one's.
            if mark is not None and self._client.get(self._name) == mark:
                self._client.delete(self._name)
        except LookasideError as error:
            log.warning("a lock of %s was not released: it ends within %s s: %s", self._name, self._timeout, error)
        finally:
            self._local.release()

    def locked(self) -> bool:
        try:
            return self._client.get(self._name) is not None
        except MISSES:
            return self._local.locked()
