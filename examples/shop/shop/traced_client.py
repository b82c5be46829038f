"""A client that records what each of its calls did, for the page's panel.

`stats` counts what a client did. A client that one thread uses alone does one call at a time, so the difference between
two readings is what the call between them did.
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


class TracedClient(Client):
    """To be used by one thread. A plan makes one call for each of its levels."""

    def __init__(self, routers: list[str]) -> None:
        super().__init__(routers)
        #: What was done since they were cleared.
        self.calls: list[CacheCall] = []
        #: Loads everything, as if there were no cache.
        self.is_bypassed = False

    def get_many(self, keys: Iterable[Any], **options: Any) -> dict[Any, Any]:
        names = list(keys)
        if self.is_bypassed or not names:
            return {}
        call = CacheCall("get_many", dict.fromkeys(names, "absent"), round_trips=1)
        self.calls.append(call)
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
        names = list(dict.fromkeys(keys))
        if not names:
            return {}
        if self.is_bypassed:
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

        before, started = self.stats(), time.perf_counter()
        values = super().get_or_load_many(names, load, **options)
        seconds = time.perf_counter() - started - loading_s
        after = self.stats()
        done = {name: count - before[name] for name, count in after.items()}
        # Each key ends as a hit, as a stale value, or as a loaded one.
        stale = max(0, len(names) - len(loaded) - done["hits"])
        call = CacheCall("get_or_load", {}, done["round_trips"], done["hot_miss_waits"], stale, done["errors"], seconds)
        found = "hit" if not call.lease_waits else "waited"
        if stale and stale == len(names) - len(loaded):
            found = "stale"
        is_stored = done["fills"] >= len(loaded)
        call.outcomes = {key: ("loaded" if is_stored else "unstored") if key in loaded else found for key in names}
        self.calls.append(call)
        return values
