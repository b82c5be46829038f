"""The backend of dogpile.cache: `make_region().configure("lookaside", arguments={"url": ["127.0.0.1:5000"]})`.

Values are stored as dogpile.cache's backends for pylibmc and pymemcache store them, and keys are the same, so that
processes can move from these to this one while others still use them. docs/clients/python_backends.md describes it.

A region elects the creator of a value by a mutex, and stores the value itself. That is not a lease: an expired value,
which the others go on using, is there, and only a miss has a lease. So the mutex is a key of its own, which `add`
creates, as `dogpile.cache.pylibmc` and others have it, too.

A creator that has missed has a lease besides:

    get k             a plain get, as many threads may miss
    mutex acquired    and a lookup of k, with a lease of its own
    get k             again, by the region, except in `get_or_create_multi`: what the lookup has found
    creator runs
    set k             under the token of that lease, so not if the key was deleted meanwhile
    mutex released    the token too, if it was not used

| the lookup | the set |
|---|---|
| takes the lease | under its token |
| finds that the server knows no leases | a plain one |
| finds that another client has it, and waits in vain | none: the value is used, and not stored |
| the same, at a router that takes leases for plain clients | a plain one, without a wait |
| fails, or is refused | none |

Such a router may have taken the token for the first get; then it stores the plain set under it, and else refuses. The
lookup is no plain get, since each miss of a plain get must have one set, or such a router stores nothing after the next
delete.

A region stores without deletes, too, so the mutex and the lookup are never hedged, and plain gets only if the replicas
get every update (`lookaside.Hedge.plain_gets`). Nor do they go by UDP: a lost datagram is a miss, and a lock that is
missed is not released.
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

from .cache_backends import FAILURES, MISSES, ClientSettings, MissLog, encoding, log_not_stored
from .client import Client
from .connection_settings import Hedge
from .errors import ConfigurationError, DecodeError, EncodeError, InvalidKeyError, LookasideError
from .key_templates import check_key

log = logging.getLogger("lookaside.dogpile")
miss_log = MissLog(log)

#: How long a creator may take, by default, in seconds. Then another one begins.
LOCK_TIMEOUT_S = 60.0
#: The first and the longest pause between two attempts to acquire a lock.
PAUSE_S, PAUSE_MAX_S = 0.002, 0.1
#: How long a creator waits for another client that has the lease of its key, in seconds, and half of its own time at
#: most: by default a server gives the next lease after this time (`--lease-interval`).
HOT_MISS_WAIT_S = 10.0

#: A router is asked how it routes a key by one that names it. What is cut off does not choose a route.
EXPLAINED_BYTES_MAX = 200

CLIENT_OPTIONS = (
    "config", "config_required", "routing_prefix", "router_options", "udp", "window", "tls", "hedge", "timeout",
    "pickle", "compression", "compression_bytes_min",
)  # fmt: skip


class LookasideBackend(CacheBackend):
    """A cache of dogpile behind routers.

    | argument | meaning |
    |---|---|
    | `url` | the routers |
    | `distributed_lock` | whether one creator runs in all processes (the default), or one in each |
    | `lock_timeout` | how long a creator may take, in seconds (60) |
    | `memcached_expire_time` | when values leave the cache, in seconds; without it, or with 0, they stay |
    | `hedge` | that of `Client`, for gets; only with `plain_gets` |
    | `config`, `config_required`, `routing_prefix`, `udp`, `tls`, `timeout`, `pickle`, `compression`,
      `compression_bytes_min` | those of `Client` |

    A get that fails is a miss, and is logged. A set that fails is logged, as the value is there. A delete that fails
    raises.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        options = {name: arguments[name] for name in CLIENT_OPTIONS if name in arguments}
        self._is_pickling = options.get("pickle", True)
        hedge: Hedge | None = options.pop("hedge", None)
        # A replica without a set or an add would return an older value, and a lock that was released; a lost datagram
        # would be a lock that is gone.
        by_tcp = {name: value for name, value in options.items() if name != "udp"}
        self._lock_client = ClientSettings(arguments["url"], by_tcp).client()
        if hedge is not None and hedge.plain_gets:
            options["hedge"] = hedge
        self._client = ClientSettings(arguments["url"], options).client()
        # dogpile.cache's own backends know 0, too.
        self._ttl: float | None = arguments.get("memcached_expire_time") or None
        if self._ttl is not None and self._ttl < 0:
            raise ConfigurationError(f"memcached_expire_time is {self._ttl}; expected seconds, or 0 for no end")
        self._lock_timeout = float(arguments.get("lock_timeout") or LOCK_TIMEOUT_S)
        self._creations = Creations(self._lock_client, min(HOT_MISS_WAIT_S, self._lock_timeout / 2))
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
        if not self._is_lock_distributed:
            return None
        return CreationMutex(self._creations, key, DistributedMutex(self._lock_client, key, self._lock_timeout))

    def get(self, key: str) -> BackendFormatted:
        creation = self._creations.of_this_thread(key)
        try:
            return to_value(self._client.get(key) if creation is None else creation.found())
        except MISSES as error:
            miss_log.record(key, error)
            return NO_VALUE

    def get_multi(self, keys: Iterable[str]) -> Sequence[BackendFormatted]:
        names = list(keys)
        try:
            found = self._client.get_many(names)
        except FAILURES as error:
            miss_log.record(names[0], error, len(names) - 1)
            found = {}
        except DecodeError:
            # One value that cannot be read is not a miss of the others.
            return [self.get(name) for name in names]
        return [to_value(found.get(name)) for name in names]

    def set(self, key: str, value: BackendSetType) -> None:
        self._check_values([value])
        creation = self._creations.of_this_thread(key)
        try:
            with encoding():
                if creation is None or not creation.fill(value, self._ttl):
                    self._client.set(key, value, ttl=self._ttl)
        except FAILURES as error:
            log_not_stored(log, key, error)

    def set_multi(self, mapping: Mapping[str, BackendSetType]) -> None:
        self._check_values(mapping.values())
        others = {}
        for key, value in mapping.items():
            creation = self._creations.of_this_thread(key)
            try:
                with encoding():
                    if creation is None or not creation.fill(value, self._ttl):
                        others[key] = value
            except FAILURES as error:
                log_not_stored(log, key, error)
        with encoding():
            not_stored = self._client.set_many(others, ttl=self._ttl) if others else {}
        for key, why in not_stored.items():
            log_not_stored(log, key, why)

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


class Creation:
    """A value that a thread may create, as it holds the mutex of its key, and the lease that it has for that."""

    def __init__(self, client: Client, key: str, hot_miss_wait: float) -> None:
        self._client, self._core, self._key, self._hot_miss_wait = client, client._core, key, hot_miss_wait
        self.thread = threading.get_ident()
        self._token: int | None = None
        self._found: Any = None
        # Whether the region has not asked yet for what was found.
        self._is_new = False
        # Why no value may be stored; None if one may be.
        self._obstacle: str | LookasideError | None = None

    def look_up(self) -> None:
        """Looks for the value of the key; if there is none, takes the lease, or waits while another client has it."""
        self._found, self._obstacle, self._is_new = None, None, True
        try:
            self.release()
            self._found, self._token, is_hot = self._wait_for_lease()
        except FAILURES as error:
            # A key may be deleted while a plain set of its old value is on its way. A router refuses for a server that
            # does not answer; `look_up` does not fail for one without leases.
            self._obstacle = error
        except DecodeError:
            # A value that cannot be read is replaced.
            pass
        else:
            if is_hot:
                self._obstacle = "another client is loading it"
            elif self._found is not None:
                self._obstacle = "another client has stored one"

    def _wait_for_lease(self) -> tuple[Any, int | None, bool]:
        """The value, the token, and whether another client has one, after `_hot_miss_wait` at the latest."""
        pause, waits_until = PAUSE_S, time.monotonic() + self._hot_miss_wait
        is_router_asked = False
        while True:
            looked_up = self._core.look_up(self._key, None)
            if not looked_up[2] or time.monotonic() >= waits_until:
                return looked_up
            if not is_router_asked and self._is_leased_by_router():
                # The token is remembered there, for this client or for one that waits for the mutex.
                return None, None, False
            is_router_asked = True
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)

    def _is_leased_by_router(self) -> bool:
        """Whether a router takes leases for the plain requests of this key."""
        explained = self._key.encode()[:EXPLAINED_BYTES_MAX].decode(errors="ignore")
        try:
            steps = self._client.explain(explained).text.splitlines()
        except LookasideError:
            return False
        return any(step.lstrip().startswith("LeaseRoute") for step in steps)

    def found(self) -> Any:
        """What was found since the region has last asked; None if there is no value."""
        if not self._is_new:
            self.look_up()
        self._is_new = False
        if self._found is not None:
            # If the region creates another one, this one has expired.
            self._obstacle = None
        return self._found

    def fill(self, value: BackendSetType, ttl: float | None) -> bool:
        """Stores a value under the lease, unless the key was deleted meanwhile; False if a plain set may store it."""
        token, self._token = self._token, None
        if token is not None:
            if not self._core.fill(self._key, token, value, ttl, None):
                log.debug("a value of %s was not stored: it was deleted while it was created", self._key)
        elif isinstance(self._obstacle, LookasideError):
            log_not_stored(log, self._key, self._obstacle)
        elif self._obstacle is not None:
            log.debug("a value of %s was not stored: %s", self._key, self._obstacle)
        return token is not None or self._obstacle is not None

    def release(self) -> None:
        """Ends the lease, if it was not used."""
        token, self._token = self._token, None
        if token is not None:
            self._core.release(self._key, token, None)


class Creations:
    """What the threads of this process may create, by key: a mutex has one owner."""

    def __init__(self, client: Client, hot_miss_wait: float) -> None:
        self._client, self._hot_miss_wait = client, hot_miss_wait
        self._by_key: dict[str, Creation] = {}

    def of_this_thread(self, key: str) -> Creation | None:
        """None if this thread does not hold the mutex of the key."""
        creation = self._by_key.get(key)
        return creation if creation is not None and creation.thread == threading.get_ident() else None

    def begin(self, key: str, has_missed: bool) -> None:
        """This thread holds the mutex of the key, and has missed the key, or has a value that has expired."""
        creation = self._by_key[key] = Creation(self._client, key, self._hot_miss_wait)
        if has_missed:
            creation.look_up()

    def end(self, key: str) -> None:
        """The mutex is about to be released, by any thread: a runner of creators has one of its own."""
        creation = self._by_key.pop(key, None)
        try:
            if creation is not None:
                creation.release()
        except LookasideError as error:
            log.debug("the lease of %s was not released, and expires: %s", key, error)


class CreationMutex(CacheMutex):
    """A mutex whose owner may create the value of a key."""

    def __init__(self, creations: Creations, key: str, mutex: CacheMutex) -> None:
        self._creations, self._key, self._mutex = creations, key, mutex

    def acquire(self, wait: bool = True) -> bool:
        acquired = self._mutex.acquire(wait)
        if acquired:
            try:
                # A region waits for a mutex only if it has no value to use meanwhile.
                self._creations.begin(self._key, has_missed=wait)
            except BaseException:
                self.release()
                raise
        return acquired

    def release(self) -> None:
        try:
            self._creations.end(self._key)
        finally:
            # Also if the handler of a signal has raised: other threads of this process wait for it.
            self._mutex.release()

    def locked(self) -> bool:
        return self._mutex.locked()


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
