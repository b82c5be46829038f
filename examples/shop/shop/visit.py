"""One request: its client, its customer, and what the cache and the database did for it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from lookaside import LookasideError
from sqlalchemy.orm import Session

from .database import Database, StatementLog
from .traced_client import CacheCall, TracedClient

VISIT: ContextVar["Visit | None"] = ContextVar("visit", default=None)


@dataclass
class Visit(StatementLog):
    """What a page needs."""

    cache: TracedClient = field(kw_only=True)
    database: Database = field(kw_only=True)
    customer: int = field(kw_only=True)

    @property
    def calls(self) -> list[CacheCall]:
        """What the cache did so far."""
        return self.cache.calls

    def count(self, *outcomes: str) -> int:
        """How many keys had one of these outcomes."""
        return sum(call.count(*outcomes) for call in self.calls)

    def total(self, name: str) -> float:
        """The sum of a number of its calls."""
        return sum(getattr(call, name) for call in self.calls)

    def summary(self) -> dict[str, int]:
        """What the response's header X-Cache and the totals have."""
        return {
            "keys": sum(len(call.outcomes) for call in self.calls),
            "hits": self.count("hit", "waited", "stale"),
            "loads": self.count("loaded", "unstored"),
            "lease_waits": int(self.total("lease_waits")),
            "stale": int(self.total("stale")),
            "round_trips": int(self.total("round_trips")),
            "statements": len(self.statements),
        }

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A transaction of the customer, who sees its effect on the next page.

        The invalidator deletes the keys that it names in every cluster, some milliseconds after the commit. Deleting
        them here as well, in this shop's own cluster, is for a customer who is faster.
        """
        with self.database.transaction() as session:
            yield session
        try:
            for key in dict.fromkeys(self.keys_named):
                self.cache.delete(key)
        except LookasideError:
            pass  # The invalidator's delete is kept until it arrives.


class Visits:
    """Makes the visits. Each thread that serves requests has a client of its own (`traced_client` says why)."""

    def __init__(self, database_url: str, router: str) -> None:
        self.database = Database(database_url, VISIT.get)
        self._router = router
        self._threads = threading.local()
        self._clients: list[TracedClient] = []

    @contextmanager
    def begin(self, customer: int, is_bypassed: bool) -> Iterator[Visit]:
        """The visit of a request, which the calling thread serves."""
        cache = self._client()
        cache.calls, cache.is_bypassed = [], is_bypassed
        visit = Visit(cache=cache, database=self.database, customer=customer)
        token = VISIT.set(visit)
        try:
            yield visit
        finally:
            VISIT.reset(token)

    def _client(self) -> TracedClient:
        if not hasattr(self._threads, "client"):
            self._threads.client = TracedClient([self._router])
            self._clients.append(self._threads.client)
        return self._threads.client

    def close(self) -> None:
        """Ends all clients, and the connections to the database."""
        for client in self._clients:
            client.close()
        self.database.engine.dispose()
