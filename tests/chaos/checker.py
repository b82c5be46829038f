"""The versions of every key, and what each read was allowed to see.

Everything here runs in one thread, and times are read from one clock. The time of a commit is the moment at which the
database had confirmed it, so staleness is never overstated by more than the clock's resolution. A delete counts as
acknowledged when this program has seen the acknowledgement, which is later than it was sent: a read that begins after
that and is older cannot be explained by a race.
"""

import bisect
import heapq
import zlib
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

VIOLATIONS_KEPT = 200
NEVER_WRITTEN = "never written"
ACKNOWLEDGED = "older than an acknowledged delete"
TOO_STALE = "stale for too long"
PERMANENT = "permanently stale"
BROKEN = "broken process"
UNCONVERGED = "not converged"
KINDS = (NEVER_WRITTEN, ACKNOWLEDGED, TOO_STALE, PERMANENT, BROKEN, UNCONVERGED)


def compose_value(key: str, version: int) -> bytes:
    """The value of a version: nothing else is ever stored for the key."""
    length = 40 + zlib.crc32(b"%d" % version) % 400
    return f"{key} {version} ".encode().ljust(length, b".")


def version_of(key: str, value: bytes) -> int | None:
    """The version that a value carries; `None` if no version of this key has this value."""
    fields = value.split(b" ", 2)
    if len(fields) != 3 or not fields[1].isdigit():
        return None
    version = int(fields[1])
    return version if value == compose_value(key, version) else None


@dataclass
class Violation:
    """Something that must not happen."""

    kind: str
    at_s: float
    text: str


@dataclass
class Acknowledgement:
    """The newest version whose predecessors a cluster has confirmed to be deleted."""

    version: int
    at_s: float
    by: str


@dataclass
class Key:
    """What is known of one key."""

    versions: list[int]
    committed_s: list[float]
    attempted: int
    acknowledged: dict[str, Acknowledgement]


@dataclass
class Samples:
    """Every read of an old value, one entry in each array; and what happened in each tenth of a second."""

    at_s: array = field(default_factory=lambda: array("d"))
    stale_ms: array = field(default_factory=lambda: array("d"))
    # The age of the oldest read that should have seen a commit, by cluster, key and version.
    old_ms: dict[tuple[str, str, int], float] = field(default_factory=dict)
    commits_s: dict[tuple[str, int], float] = field(default_factory=dict)
    # By tenth of a second: cached reads, reads without an answer, and the longest wait for a page.
    reads: Counter = field(default_factory=Counter)
    failures: Counter = field(default_factory=Counter)
    waited_ms: dict[int, float] = field(default_factory=dict)

    def record_page(self, begin_s: float, end_s: float, failures: int) -> None:
        """A page was answered, or given up."""
        tenth = int(begin_s * 10)
        self.failures[tenth] += failures
        self.waited_ms[tenth] = max(self.waited_ms.get(tenth, 0.0), (end_s - begin_s) * 1000)

    def record_stale(self, cluster: str, key: str, replaced_by: int, at_s: float, stale_ms: float) -> None:
        """A read returned a value that a version had replaced."""
        self.at_s.append(at_s)
        self.stale_ms.append(stale_ms)
        commit = (cluster, key, replaced_by)
        self.old_ms[commit] = max(self.old_ms.get(commit, 0.0), stale_ms)


class Checker:
    """Compares each read with the commits and the acknowledged deletes before it."""

    def __init__(self, keys: list[str], clusters: list[str], stale_ms_max: float | None) -> None:
        self.stale_ms_max = stale_ms_max
        self.keys = {
            key: Key([1], [float("-inf")], 1, {cluster: Acknowledgement(0, 0.0, "") for cluster in clusters})
            for key in keys
        }
        # Per cluster, a heap of commits that the invalidator's position has not passed: sequence, key, version.
        self.pending: dict[str, list[tuple[int, str, int]]] = {cluster: [] for cluster in clusters}
        self.samples = Samples()
        self.counts: Counter[str] = Counter()
        # For how many seconds of a time nothing could be heard of the database. No process could know of a commit
        # sooner, so that an old value may be older by that.
        self.database_away_s: Callable[[float, float], float] = lambda begin_s, end_s: 0.0
        self.violations: list[Violation] = []
        self.commit_sequence = 0

    def add_violation(self, kind: str, at_s: float, text: str) -> None:
        """Counts it, and keeps the first ones."""
        self.counts[kind] += 1
        if len(self.violations) < VIOLATIONS_KEPT:
            self.violations.append(Violation(kind, at_s, text))

    def begin_commit(self, key: str) -> int:
        """The version that the next commit of this key writes."""
        self.keys[key].attempted += 1
        return self.keys[key].attempted

    def record_commit(self, key: str, version: int, at_s: float, sequence: int) -> None:
        """A version is in the database, at or before this sequence number of the commit log."""
        known = self.keys[key]
        known.versions.append(version)
        known.committed_s.append(at_s)
        self.samples.commits_s[key, version] = at_s
        for heap in self.pending.values():
            heapq.heappush(heap, (sequence, key, version))
        self.commit_sequence = max(self.commit_sequence, sequence)
        self.counts["commits"] += 1

    def newest(self, key: str) -> int:
        """The version that was committed last."""
        return self.keys[key].versions[-1]

    def record_delete(self, cluster: str, key: str, version: int, at_s: float, by: str) -> None:
        """The cluster has confirmed a delete that was sent after this version was committed."""
        known = self.keys[key].acknowledged
        if version > known[cluster].version:
            known[cluster] = Acknowledgement(version, at_s, by)

    def record_position(self, cluster: str, sequence: int, at_s: float) -> None:
        """The invalidator has durably passed this sequence number for the cluster."""
        heap = self.pending[cluster]
        while heap and heap[0][0] <= sequence:
            _, key, version = heapq.heappop(heap)
            self.record_delete(cluster, key, version, at_s, "the invalidator's position")

    def acknowledged(self, cluster: str, key: str) -> Acknowledgement:
        """To be noted before a read begins."""
        return self.keys[key].acknowledged[cluster]

    def check_read(
        self, cluster: str, source: str, key: str, value: bytes, begin_s: float, floor: Acknowledgement
    ) -> None:
        """A value that a read of a cluster returned; `floor` was acknowledged before it began."""
        self.counts["cached reads"] += 1
        self.samples.reads[int(begin_s * 10)] += 1
        version = self.check_written(source, key, value, begin_s)
        if version is None:
            return
        if version < floor.version:
            self.add_violation(
                ACKNOWLEDGED,
                begin_s,
                f"{source} returned version {version} of {key}; the deletes up to version {floor.version} had been"
                f" acknowledged {(begin_s - floor.at_s) * 1000:.0f} ms earlier, seen by {floor.by}",
            )
        replaced_by, stale_ms = self.replacement(key, version, begin_s)
        if stale_ms > 0:
            self.counts["stale reads"] += 1
            self.samples.record_stale(cluster, key, replaced_by, begin_s, stale_ms)
        if self.stale_ms_max is not None and stale_ms > self.stale_ms_max:
            away_ms = self.database_away_s(begin_s - stale_ms / 1000, begin_s) * 1000
            if stale_ms - away_ms > self.stale_ms_max:
                self.add_violation(
                    TOO_STALE,
                    begin_s,
                    f"{source} returned version {version} of {key}, {stale_ms:.0f} ms too old; the database was away"
                    f" for {away_ms:.0f} ms of them",
                )

    def check_written(self, source: str, key: str, value: bytes, at_s: float) -> int | None:
        """The version of a value; a value that no commit wrote is a violation."""
        version = version_of(key, value)
        if version is None or version > self.keys[key].attempted:
            self.add_violation(NEVER_WRITTEN, at_s, f"{source} returned {value[:60]!r} for {key}")
            return None
        return version

    def replacement(self, key: str, version: int, at_s: float) -> tuple[int, float]:
        """The version that replaced this one, and the milliseconds since then; 0 if it was current."""
        known = self.keys[key]
        index = bisect.bisect_right(known.versions, version)
        if index == len(known.versions):
            return version, 0.0
        return known.versions[index], max(0.0, (at_s - known.committed_s[index]) * 1000)
