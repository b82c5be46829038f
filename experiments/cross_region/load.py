"""The users of two regions: a writer at the master, and a filler in each region that keeps rows cached.

The writer changes one row after the other, always in the same order, and deletes nothing: all deletes are the
invalidators'. No row is changed again before the monitor has asked about it for the last time: a delete that was lost
would else be hidden by the next one. A filler reads all keys every few seconds, and fills the ones that are missing
under leases. It fills a key when two sweeps in a row have missed it, so that it does not refill a key in the
milliseconds between its delete and the monitor's first question: that question would not tell the new value from the
old one.
"""

import random
import threading
import time

import pymysql
from leases import HOT_MISS, LeaseClient
from monitor import OLD_ENOUGH_MS, age_min_ms
from processes import connect, eventually
from pymemcache.exceptions import MemcacheError

from experiments.cross_region.regions import OneRegion, TwoRegions

SWEEP_S = 3.0
PAGE = 200
# Between the last question about a row and its next change.
SPARE_S = 8.0
# The last keys that are filled. They are on all servers.
LAST_KEYS = 20
# A router that does not answer for this long is given up, and the other one is asked.
TIMEOUT_S = 2.0
FILLED_S = 120.0
FAILURES = (OSError, MemcacheError, pymysql.MySQLError, AssertionError, EOFError, IndexError, ValueError)


def rows_for(rate: float, age_s_max: int) -> int:
    """How many rows there are."""
    return int(rate * (age_s_max + SPARE_S))


def keys_of(rows: int) -> list[str]:
    """The keys of the rows."""
    return [f"row:{row}" for row in range(rows)]


class Writer(threading.Thread):
    """Commits at a steady rate, and catches up when it was held up."""

    def __init__(self, regions: TwoRegions, rows: int, rate: float, seconds: float, seed: int) -> None:
        super().__init__(name="writer", daemon=True)
        self.database = regions.master.database
        self.rate, self.commits_max = rate, int(rate * seconds)
        self.order = random.Random(f"order of rows {seed}").sample(range(rows), rows)
        self.commits = 0
        self.is_over = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with self.database.connect() as connection, connection.cursor() as cursor:
                begun = time.monotonic()
                while self.commits < self.commits_max and not self.is_over.is_set():
                    self.is_over.wait(max(0.0, begun + self.commits / self.rate - time.monotonic()))
                    cursor.execute(self.database.change(self.order[self.commits % len(self.order)]))
                    self.commits += 1
        except BaseException as failure:
            self.failure = failure


class Filler(threading.Thread):
    """Reads all keys of a region by one of its routers, and fills what is missing."""

    def __init__(self, region: OneRegion, rows: int) -> None:
        super().__init__(name=f"filler of {region.name}", daemon=True)
        self.region, self.keys = region, keys_of(rows)
        self.router = 0
        self.reads = self.hits = self.failed_sweeps = 0
        self.missed: set[str] = set()
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.is_set():
            try:
                missed = self.sweep()
                self.fill(sorted(missed & self.missed))
                self.missed = missed
            except FAILURES:
                self.failed_sweeps += 1
                self.router += 1
            self.is_over.wait(SWEEP_S)

    def place(self):
        """Where the router that is asked at present listens."""
        routers = self.region.cluster.routers
        return routers[self.router % len(routers)].place

    def sweep(self) -> set[str]:
        """The keys that are not cached."""
        place, missed = self.place(), set()
        client = connect(place.port, TIMEOUT_S, place.host)
        try:
            for begin in range(0, len(self.keys), PAGE):
                page = self.keys[begin : begin + PAGE]
                found = client.get_many(page)
                missed.update(set(page) - set(found))
                self.reads += len(page)
                self.hits += len(found)
        finally:
            client.close()
        return missed

    def fill(self, keys: list[str]) -> None:
        """Fills keys from the region's own database."""
        if not keys:
            return
        place = self.place()
        client = LeaseClient(place.port, place.host, TIMEOUT_S)
        try:
            with self.region.database.connect() as connection, connection.cursor() as cursor:
                for key in keys:
                    value, token, _ = client.lease_get(key)
                    if value is None and token > HOT_MISS:
                        cursor.execute("SELECT version FROM versions WHERE id = %s", (key.removeprefix("row:"),))
                        client.lease_set(key, token, str(cursor.fetchone()[0]).encode())
        finally:
            client.close()

    def fill_all(self) -> None:
        """Caches all rows, while nothing is written."""
        place = self.place()
        client = connect(place.port, TIMEOUT_S, place.host)
        try:
            rows = self.region.database.run("SELECT id, version FROM versions")
            values = {f"row:{row}": str(version) for row, version in rows}
            for begin in range(0, len(self.keys), PAGE):
                refused = client.set_many({key: values[key] for key in self.keys[begin : begin + PAGE]})
                assert not refused, refused
        finally:
            client.close()

    def wait_old(self) -> None:
        """Waits until the cached values are so old that the monitor tells them from later ones."""
        place = self.place()
        for key in self.keys[-LAST_KEYS:]:
            eventually(
                lambda key=key: age_min_ms(place.port, key, place.host) > OLD_ENOUGH_MS, f"{key} is old", FILLED_S
            )

    def cached_share(self) -> float:
        """The part of its reads that were hits."""
        return self.hits / self.reads if self.reads else 0.0


class Load:
    """The writer and both fillers: they run inside this context."""

    def __init__(self, regions: TwoRegions, rows: int, rate: float, seconds: float, seed: int) -> None:
        self.writer = Writer(regions, rows, rate, seconds, seed)
        self.fillers = [Filler(region, rows) for region in regions.regions]

    def fill(self) -> None:
        """Caches all rows in both regions."""
        for filler in self.fillers:
            filler.fill_all()
        for filler in self.fillers:
            filler.wait_old()

    def __enter__(self) -> "Load":
        for thread in (*self.fillers, self.writer):
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        for thread in (*self.fillers, self.writer):
            thread.is_over.set()
        for thread in (*self.fillers, self.writer):
            thread.join(FILLED_S)
