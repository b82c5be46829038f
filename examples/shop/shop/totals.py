"""What the cache did for all requests since the shop was opened, second by second for the page /cache."""

import itertools
import socket
import threading
from collections import Counter, deque
from dataclasses import dataclass

SAMPLES = 60


@dataclass
class Sample:
    """One second."""

    requests: int
    hits: int
    loads: int
    #: From the commit to the cluster's acknowledgement of its deletes, since the invalidator's start; None if unknown.
    delete_p50_ms: float | None
    delete_p99_ms: float | None

    @property
    def hit_ratio(self) -> float | None:
        """From 0 to 1; None if nothing was read."""
        keys = self.hits + self.loads
        return self.hits / keys if keys else None


class Totals:
    """Counts requests. Threads may share it."""

    def __init__(self, invalidator: str) -> None:
        self._invalidator = invalidator
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._before: Counter[str] = Counter()
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        #: The invalidator's statistics; empty if it does not answer.
        self.invalidator: dict[str, str] = {}

    def add(self, summary: dict[str, int]) -> None:
        """Counts a request."""
        with self._lock:
            self._counts.update(summary)
            self._counts["requests"] += 1

    @property
    def counts(self) -> Counter[str]:
        """The sums of all requests' summaries, and their number."""
        with self._lock:
            return Counter(self._counts)

    def sample(self) -> None:
        """Ends a second."""
        self.invalidator = fetch_stats(self._invalidator)
        now = self.counts
        done = {name: now[name] - self._before[name] for name in ("requests", "hits", "loads")}
        self.samples.append(Sample(**done, delete_p50_ms=self.latency_ms("p50"), delete_p99_ms=self.latency_ms("p99")))
        self._before = now

    def latency_ms(self, percentile: str) -> float | None:
        """From commit to empty; None before the first delete, and while the invalidator does not answer."""
        return int(self.invalidator.get(f"latency_us_{percentile}", 0)) / 1_000 or None


def fetch_stats(address: str, timeout_s: float = 0.5) -> dict[str, str]:
    """`stats` of a daemon, in memcached's text protocol; empty if it does not answer."""
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(b"stats\r\n")
            reply = connection.makefile("r", newline="\r\n")
            lines = list(itertools.takewhile(lambda line: line != "END\r\n", reply))
    except OSError:
        return {}
    return dict(line.split(maxsplit=2)[1:] for line in map(str.strip, lines) if line.count(" ") >= 2)
