"""A client that records what each of its calls did, for the panel of the page that made it.

All threads share it. The counters of one call are those of a client that makes this call alone (`with_own_statistics`).
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from lookaside import Client, LookasideError
from lookaside.plan import values_in_order


@dataclass
class CacheCall:
    """What one call did. `outcomes` has, for each key:

    - `hit`: the value was in the cache
    - `waited`: another client was loading the value; it was in the cache a moment later
    - `stale`: another client was loading the value; the value from before the delete was returned
    - `absent`: it was not cached, and was not loaded
    - `loaded`: it was read from the database, and stored in the cache
    - `unstored`: it was read from the database, and not stored: a delete came in between, or the cache did not answer
    """

    name: str
    outcomes: dict[str, str] = field(default_factory=dict)
    round_trips: int = 0
    #: Lookups that were repeated while another client was loading the value.
    lease_waits: int = 0
    stale: int = 0
    errors: int = 0
    #: Without the loader's time.
    seconds: float = 0.0

    def count(self, *outcomes: str) -> int:
        """How many keys had one of these outcomes."""
        return sum(outcome in outcomes for outcome in self.outcomes.values())


@dataclass
class CallLog:
    """What the calls of one request did."""

    calls: list[CacheCall] = field(default_factory=list)
    #: Loads everything, as if there were no cache.
    is_bypassed: bool = False


class TracedClient(Client):
    """`current_log` returns the log of the request that the calling thread serves.

    A plan makes one call for each of its levels.
    """

    def __init__(self, routers: list[str], current_log: Callable[[], CallLog]) -> None:
        super().__init__(routers)
        self._current_log = current_log

    def get_many(self, keys: Iterable[Any], **options: Any) -> dict[Any, Any]:
        names, log = list(keys), self._current_log()
        if log.is_bypassed or not names:
            return {}
        call = CacheCall("get_many", dict.fromkeys(names, "absent"), round_trips=1)
        log.calls.append(call)
        started = time.perf_counter()
        try:
            values = super().get_many(names, **options)
        except LookasideError:
            call.errors = 1
            raise
        finally:
            call.seconds = time.perf_counter() - started
        call.outcomes.update(dict.fromkeys(values, "hit"))
        return values

    def get_or_load(self, key: str, loader: Callable[[], Any], **options: Any) -> Any:
        return self.get_or_load_many([key], lambda _: [loader()], **options)[key]

    def get_or_load_many(self, keys: Iterable[Any], loader: Callable[[list[Any]], Any], **options: Any) -> Any:
        names, log = list(dict.fromkeys(keys)), self._current_log()
        if not names:
            return {}
        if log.is_bypassed:
            return dict(zip(names, values_in_order(names, loader(names)), strict=True))
        loaded: set[str] = set()
        loading_s = 0.0

        def load(missing: list[str]) -> Any:
            nonlocal loading_s
            loaded.update(missing)
            started = time.perf_counter()
            try:
                return loader(missing)
            finally:
                loading_s += time.perf_counter() - started

        counted, started = self.with_own_statistics(), time.perf_counter()
        # It is a client of this class, too: the plain method is called, which records nothing.
        values = Client.get_or_load_many(counted, names, load, **options)
        seconds = time.perf_counter() - started - loading_s
        done = counted.stats()
        # Each key ends as a hit, as a stale value, or as a loaded one.
        stale = max(0, len(names) - len(loaded) - done["hits"])
        call = CacheCall("get_or_load", {}, done["round_trips"], done["hot_miss_waits"], stale, done["errors"], seconds)
        found = "hit" if not call.lease_waits else "waited"
        if stale and stale == len(names) - len(loaded):
            found = "stale"
        is_stored = done["fills"] >= len(loaded)
        call.outcomes = {key: ("loaded" if is_stored else "unstored") if key in loaded else found for key in names}
        log.calls.append(call)
        return values
