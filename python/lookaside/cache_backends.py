"""What the cache backends of Django, dogpile.cache and Flask-Caching share: clients, and which errors are misses.

A framework makes backends as it likes: Django makes one for each thread, and for each request of an asynchronous
server. A client has a thread and connections, so all backends with the same settings share one.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from .async_client import AsyncClient
from .client import Client
from .errors import (
    CacheUnavailableError,
    DeadlineExceededError,
    DecodeError,
    EncodeError,
    LookasideError,
    NotStoredError,
    RefusedError,
)

#: A cache that fails. A get that fails so is a miss.
FAILURES = (CacheUnavailableError, DeadlineExceededError, RefusedError)
#: A value that cannot be read is a miss, too: a later version of the program may have written it.
MISSES = (*FAILURES, DecodeError)

#: How often a get that fails is logged, in seconds.
MISS_LOG_INTERVAL_S = 1.0

#: The longest time for which it is cached that a loader has returned `None`: a year.
ABSENT_TTL_MAX_S = 365 * 86_400.0

# Not guarded by a lock, which a fork could leave locked: `setdefault` is atomic, and a second client is dropped.
_clients: dict[tuple[Any, ...], Client] = {}
_async_clients: dict[tuple[Any, ...], AsyncClient] = {}


class ClientSettings:
    """The routers and options of a client, and the clients of this process that have them."""

    def __init__(self, routers: str | Sequence[str], options: dict[str, Any]) -> None:
        """`routers` may be one text, with commas or semicolons between them; none if the configuration names them.

        By default objects are pickled, and a configuration may follow: to make a client waits for nothing, and a cache
        that is away is no error, as with backends of other caches.
        """
        found = re.split("[;,]", routers) if isinstance(routers, str) else routers
        self._routers = tuple(name for router in found if (name := router.strip()))
        self._options = {"pickle": True, "config_required": False} | options
        self._identity = (self._routers, *sorted(self._options.items()))

    def client(self) -> Client:
        """The client for functions that block. It is made by the first call, and never closed."""
        client = _clients.get(self._identity)
        return client or _clients.setdefault(self._identity, Client(self._routers, **self._options))

    def async_client(self) -> AsyncClient:
        """The client for asyncio, likewise."""
        client = _async_clients.get(self._identity)
        return client or _async_clients.setdefault(self._identity, AsyncClient(self._routers, **self._options))


@contextlib.contextmanager
def encoding() -> Iterator[None]:
    """Raises what pickle has raised for a value that it refuses, as the backends of other caches do."""
    try:
        yield
    except EncodeError as error:
        raise error.__cause__ or error from None


class MissLog:
    """Logs gets that fail, which are misses: one in a second, as each get fails while the cache is away."""

    def __init__(self, log: logging.Logger, interval_s: float = MISS_LOG_INTERVAL_S) -> None:
        self._log, self._interval_s = log, interval_s
        self._next_at, self._left_out = 0.0, 0

    def record(self, key: str, error: LookasideError, others: int = 0) -> None:
        """A get of `key`, and of this number of other keys, has failed. Threads may miscount what is left out."""
        now = time.monotonic()
        if now < self._next_at:
            self._left_out += 1
            return
        self._next_at, left_out = now + self._interval_s, self._left_out
        self._left_out = 0
        self._log.warning(
            "a get of %s and %s others failed, and is a miss: %s (%s failed gets before it were not logged)",
            key, others, error, left_out,
        )  # fmt: skip


def log_not_stored(log: logging.Logger, key: str, error: LookasideError) -> None:
    """Logs why a value was not stored, in place of raising it."""
    if isinstance(error, NotStoredError):
        # A router that takes leases: the value may be older than a delete. The one that is there is not.
        log.debug("a value of %s was not stored: it was not read under the key's lease", key)
    else:
        log.warning("a value of %s was not stored: %s", key, error)
