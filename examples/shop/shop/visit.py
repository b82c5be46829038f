"""One request: its customer, and what the cache and the database did for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from lookaside import LookasideError
from sqlalchemy.orm import Session

from .database import Database, StatementLog
from .traced_client import CallLog, TracedClient

#: The visit that the running thread or task serves.
VISIT: ContextVar["Visit"] = ContextVar("visit")


@dataclass
class Visit(StatementLog, CallLog):
    """What a page needs."""

    cache: TracedClient = field(kw_only=True)
    database: Database = field(kw_only=True)
    customer: int = field(kw_only=True)

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
    """Makes the visits, which share a client and the connections to the database."""

    def __init__(self, database_url: str, router: str) -> None:
        self.database = Database(database_url, lambda: VISIT.get(None))
        self._cache = TracedClient([router], VISIT.get)

    @contextmanager
    def begin(self, customer: int, is_bypassed: bool) -> Iterator[Visit]:
        """The visit of a request, which the calling thread serves."""
        visit = Visit(cache=self._cache, database=self.database, customer=customer, is_bypassed=is_bypassed)
        token = VISIT.set(visit)
        try:
            yield visit
        finally:
            VISIT.reset(token)

    def close(self) -> None:
        """Ends the client, and the connections to the database."""
        self._cache.close()
        self.database.engine.dispose()
