"""From a commit in the database to the value gone from both clusters' caches (paper, section 4.1).

What: the time from COMMIT to the first get, through each cluster's router, that no longer finds the value. Measured
from outside: by one writer and two watchers, processes of their own, on the system's monotonic clock. Nothing that our
programs count is used.

How: `lookaside up` runs a region on SQLite. Every key is set in both clusters. The writer commits a row of
`lookaside_journal` per key, at random moments (exponential gaps) at a mean rate. Each watcher polls its router with one
write of WINDOW single gets for the keys that are next, and notes when the answer that lacks a key is complete. So a
latency contains the poll in which it was seen (POLL_S and a round trip): it errs on the high side.

Two beginnings are reported: when COMMIT had returned, before which no writer can tell anybody about the change, and
when COMMIT was sent, which counts the database's own work too and is the stricter. The bar is held against the latter.

A value that is gone before its COMMIT was sent was not emptied by it: the run fails.

    python3 -m experiments.region.invalidation_latency
"""

import contextlib
import math
import multiprocessing
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from experiments import command_line
from experiments.plots import cdf
from experiments.programs import ROOT, Unusable, answers, lookaside, stop

PICTURE = ROOT / "docs" / "measurements" / "pictures" / "invalidation_latency.svg"
BAR_P99_MS = 50.0
CLUSTERS = ("one", "two")
REGION_PORTS = 40
WINDOW = 32
POLL_S = 0.0005
START_S = 60.0
LOST_S = 30.0


def key(number: int) -> bytes:
    """The key that commit `number` empties."""
    return b"watched:%d" % number


class Gets:
    """A connection that reads and writes keys of one router, pipelined."""

    def __init__(self, port: int) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.replies = self.connection.makefile("rb")

    def fill(self, numbers: range) -> None:
        """Sets a value for each number."""
        for first in range(numbers.start, numbers.stop, 500):
            block = range(first, min(first + 500, numbers.stop))
            self.connection.sendall(b"".join(b"set %s 0 0 5\r\nvalue\r\n" % key(number) for number in block))
            for _ in block:
                reply = self.replies.readline()
                if reply != b"STORED\r\n":
                    raise Unusable(f"filling a cluster: {reply!r}")

    def absent(self, numbers: list[int]) -> list[int]:
        """Which of the numbers have no value."""
        self.connection.sendall(b"".join(b"get %s\r\n" % key(number) for number in numbers))
        missing = []
        for number in numbers:
            line = self.replies.readline()
            if line == b"END\r\n":
                missing.append(number)
                continue
            if not line.startswith(b"VALUE "):
                raise Unusable(f"reading key {number}: {line!r}")
            self.replies.readline()
            self.replies.readline()
        return missing


def watch(port: int, commits: int, seen_ns, is_ready) -> None:
    """Polls the keys that are next, in order, and notes when each is gone."""
    gets = Gets(port)
    gets.fill(range(commits))
    watched, next_number = list(range(min(WINDOW, commits))), min(WINDOW, commits)
    is_ready.set()
    last_change = time.monotonic()
    while watched:
        gone = gets.absent(watched)
        now_ns = time.monotonic_ns()
        for number in gone:
            seen_ns[number] = now_ns
        if gone:
            last_change = time.monotonic()
            watched = [number for number in watched if not seen_ns[number]]
            more = range(next_number, min(next_number + len(gone), commits))
            watched.extend(more)
            next_number = more.stop
        elif time.monotonic() - last_change > LOST_S:
            return
        time.sleep(POLL_S)


def write(database: Path, commits: int, rate: float, seed: int) -> tuple[list[int], list[int]]:
    """Commits a row per key; when each COMMIT was sent, and when it had returned."""
    rng = random.Random(seed)
    connection = sqlite3.connect(database, isolation_level=None, timeout=10)
    sent_ns, returned_ns = [], []
    due = time.monotonic()
    for number in range(commits):
        due += rng.expovariate(rate)
        time.sleep(max(0.0, due - time.monotonic()))
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO lookaside_journal (key) VALUES (?)", (key(number),))
        sent_ns.append(time.monotonic_ns())
        connection.execute("COMMIT")
        returned_ns.append(time.monotonic_ns())
    connection.close()
    return sent_ns, returned_ns


def free_base() -> int:
    """A port from which on the region's ports are free: below those that Linux gives to connections by itself."""
    for base in random.sample(range(20_000, 32_000, REGION_PORTS), 50):
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(base, base + REGION_PORTS):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return base
    raise Unusable("no free ports")


@contextlib.contextmanager
def region() -> Iterator[tuple[list[int], Path]]:
    """`lookaside up`; the routers' ports and the database."""
    with tempfile.TemporaryDirectory(prefix="lookaside-bench-") as folder:
        state = Path(folder) / "region"
        log_path = Path(folder) / "log"
        base = free_base()
        command = [lookaside("lookaside"), "up", "--json", "--port", str(base), "--state-dir", state]
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_S
            while b'"ready"' not in log_path.read_bytes():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise Unusable(f"the region did not start:\n{log_path.read_text(errors='replace')}")
                time.sleep(0.02)
            ports = [base + index for index in range(len(CLUSTERS))]
            assert all(answers(port) for port in ports)
            yield ports, state / "region.db"
        finally:
            stop(process)


def latencies(commits: int, rate: float, seed: int = 1) -> dict[str, list[float]]:
    """One run in a region of its own: milliseconds by commit, to each cluster and to the last."""
    with region() as (ports, database):
        seen = [multiprocessing.Array("q", commits, lock=False) for _ in ports]
        ready = [multiprocessing.Event() for _ in ports]
        watchers = [
            multiprocessing.Process(target=watch, args=(port, commits, seen_ns, is_ready), daemon=True)
            for port, seen_ns, is_ready in zip(ports, seen, ready, strict=True)
        ]
        for watcher in watchers:
            watcher.start()
        if not all(is_ready.wait(START_S) for is_ready in ready):
            raise Unusable("a watcher did not start")
        sent_ns, returned_ns = write(database, commits, rate, seed)
        for watcher in watchers:
            watcher.join(2 * LOST_S)
            if watcher.exitcode != 0:
                raise Unusable(f"a watcher ended with {watcher.exitcode}")
    for name, seen_ns in zip(CLUSTERS, seen, strict=True):
        still = sum(1 for at in seen_ns if not at)
        early = sum(1 for at, sent in zip(seen_ns, sent_ns, strict=True) if at and at < sent)
        if still or early:
            raise Unusable(f"cluster {name}: {still} values not emptied, {early} gone before their commit")
    last_ns = [max(times) for times in zip(*seen, strict=True)]

    def since(begun_ns: list[int], ended_ns: list[int]) -> list[float]:
        return [(ended - begun) / 1e6 for begun, ended in zip(begun_ns, ended_ns, strict=True)]

    return {
        **{f"sent to {name}": since(sent_ns, seen_ns) for name, seen_ns in zip(CLUSTERS, seen, strict=True)},
        "sent to last": since(sent_ns, last_ns),
        "returned to last": since(returned_ns, last_ns),
        "commit itself": since(sent_ns, returned_ns),
    }


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def run(full: bool) -> list[dict]:
    """Measures at one rate, or at several; draws the picture of the first."""
    results = []
    for rate, commits in ((200, 2000), (20, 1000), (1000, 10000)) if full else ((200, 2000),):
        measured = latencies(commits, rate)
        spans = {
            name: {
                "p50": percentile(values, 0.5),
                "p90": percentile(values, 0.9),
                "p99": percentile(values, 0.99),
                "max": max(values),
            }
            for name, values in measured.items()
        }
        results.append({"commits": commits, "commits_per_s": rate, "bar_p99_ms": BAR_P99_MS, "ms": spans})
        last = spans["sent to last"]
        print(
            f"commit to empty in both clusters, {rate} commits/s: p50 {last['p50']:.2f} ms, p99 {last['p99']:.2f} ms,"
            f" max {last['max']:.2f} ms",
            file=sys.stderr,
            flush=True,
        )
        if len(results) == 1:
            PICTURE.parent.mkdir(exist_ok=True)
            PICTURE.write_text(picture(measured, rate))
    return results


def picture(measured: dict[str, list[float]], rate: float) -> str:
    """The distributions as SVG."""
    curves = {
        f"cluster {CLUSTERS[0]}": measured[f"sent to {CLUSTERS[0]}"],
        f"cluster {CLUSTERS[1]}": measured[f"sent to {CLUSTERS[1]}"],
        "both clusters": measured["sent to last"],
    }
    title = f"Commit to empty, {len(measured['sent to last'])} commits at {rate} a second (SQLite)"
    return cdf.svg(title, "time since COMMIT was sent (ms)", "commits that took longer", curves, bar=BAR_P99_MS)


def main() -> int:
    """Prints the results as JSON."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--full", action="store_true", help="at 20 and at 1,000 commits a second, too")
    options = parser.parse_args()

    def measure() -> None:
        command_line.print_results(run(options.full))

    return command_line.run_measurement("invalidation_latency", measure)


if __name__ == "__main__":
    sys.exit(main())
