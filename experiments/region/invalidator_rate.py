"""How fast the invalidator reads each database's commit log and deletes, its memory while a cluster is down, and how
late deletes are.

Rate: in each of ROUNDS rounds transactions that each name a key of their own are written before anything reads them.
Then, from the same position and in turns,

* the database's own reader (`mariadb-binlog`, `mysqlbinlog`, `pg_recvlogical`) reads them from the server, and prints
  them to /dev/null;
* the invalidator reads them, waits at its gate, and deletes each key in a cluster of two servers behind a router, from
  its start until all deletes are acknowledged.

The ratio of their rates is held against BAR_RATIO. SQLite has no such reader.

Memory: the router of one of two clusters is down while the commits of HOUR_S seconds at HOUR_COMMITS_PER_S are written,
as fast as the database takes them. The invalidator runs meanwhile, until it reads no further for that cluster and the
other one has all deletes, and then until the cluster is back and has them, too. The figures are the peaks of its
resident size (`VmHWM`) in either part, and BAR_MIB holds for both.

Commit to empty is measured from outside, at SAMPLES_PER_S commits a second: from sending COMMIT to the first get
through the router that misses.

    make bench-invalidator      some eight minutes; --report writes docs/measurements/invalidator.md
    --check                     exit status 1 if a bar is missed
    --only NAME                 one database: MariaDB, MySQL, PostgreSQL or SQLite; prints and writes no page
"""

import contextlib
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from processes import PROGRAMS, ROOT, Cluster, Invalidator, answers, connect, eventually, stats

from experiments import command_line, machine_facts
from experiments.region.commit_logs import COMMIT_LOGS, CommitLog

ROUNDS = 3
HOUR_S, HOUR_COMMITS_PER_S = 3_600, 100
SAMPLES, SAMPLES_PER_S = 1_000, 100
BAR_RATIO, BAR_MIB, BAR_P99_MS = 0.5, 64, 20
REPORT = ROOT / "docs" / "measurements" / "invalidator.md"


def seconds_of(action) -> float:
    """How long an action takes."""
    begun = time.monotonic()
    action()
    return time.monotonic() - begun


def read_stats(invalidator: Invalidator) -> dict[str, str]:
    """`stats`, which may wait for the processor while deletes are sent."""
    return stats(invalidator.port, timeout=60)


def wait_until_deleted(
    invalidator: Invalidator, keys: int, seconds: float, clusters: tuple[str, ...] = ("one",)
) -> dict[str, str]:
    """Returns the statistics when that many deletes are acknowledged in each cluster, and none is pending."""
    figures: dict[str, str] = {}

    def has_all(cluster: str) -> bool:
        deleted, pending = figures[f"cluster:{cluster}:invalidations"], figures[f"cluster:{cluster}:pending_keys"]
        return int(deleted) >= keys and pending == "0"

    def is_done() -> bool:
        figures.update(read_stats(invalidator))
        return all(map(has_all, clusters))

    eventually(is_done, f"{keys} deletes are acknowledged", seconds)
    return figures


def measure_round(log: CommitLog, cluster: Cluster, number: int) -> dict:
    """The rate of the database's own reader, and ours, one after the other."""
    with tempfile.TemporaryDirectory(prefix="lookaside-rate-") as name:
        folder, figures = Path(name), {}
        arguments = log.begin_round(cluster, folder)
        log.write(log.commits, f"round:{number}:")

        def invalidate() -> None:
            invalidator = Invalidator(log.url, [cluster], folder / "state", folder, *arguments)
            try:
                figures.update(wait_until_deleted(invalidator, log.commits, 300))
            finally:
                invalidator.stop()

        sides = {"reader": log.read, "ours": invalidate}
        order = list(sides) if number % 2 else list(reversed(sides))
        taken_s = {side: seconds_of(sides[side]) for side in order}
        return {
            "commits": log.commits,
            "reader_per_s": log.commits / taken_s["reader"],
            "ours_per_s": log.commits / taken_s["ours"],
            "ratio": taken_s["reader"] / taken_s["ours"],
            "keys_per_batch": float(figures["keys_per_batch"]),
            "keys_per_packet": float(figures["keys_per_packet"]),
        }


def measure_hour(log: CommitLog, folder: Path) -> dict:
    """The peak memory while one of two clusters is down, and until it has caught up."""
    commits = HOUR_S * HOUR_COMMITS_PER_S
    with contextlib.ExitStack() as stack:
        cluster, healthy = Cluster("one", folder), Cluster("two", folder)
        for each in (cluster, healthy):
            stack.callback(each.stop)
        cluster.router.kill()
        arguments = log.begin_round(cluster, folder)
        invalidator = Invalidator(log.url, [cluster, healthy], folder / "state", folder, *arguments)
        stack.callback(invalidator.stop)
        written_s = seconds_of(lambda: log.write(commits, "hour:"))
        wait_until_deleted(invalidator, commits, 300, ("two",))
        eventually(lambda: log.is_read(read_stats(invalidator), commits), "nothing more is read", 300)
        down_mib = peak_mib(invalidator)
        cluster.router.start()
        cluster.router.wait_ready(lambda: answers(cluster.port))
        caught_up_s = seconds_of(lambda: wait_until_deleted(invalidator, commits, 600, ("one", "two")))
        return {
            "commits": commits,
            "written_per_s": commits / written_s,
            "down_mib": down_mib,
            "peak_mib": peak_mib(invalidator),
            "caught_up_s": caught_up_s,
        }


def peak_mib(invalidator: Invalidator) -> float:
    """The peak of its resident memory so far."""
    status = Path(f"/proc/{invalidator.running.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


def measure_latency(log: CommitLog, cluster: Cluster) -> dict[str, float]:
    """Commit to empty, in milliseconds."""
    with tempfile.TemporaryDirectory(prefix="lookaside-rate-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        arguments = log.begin_round(cluster, folder)
        invalidator = Invalidator(log.url, [cluster], folder / "state", folder, *arguments)
        stack.callback(invalidator.stop)
        client, begin = connect(cluster.port), log.writer()
        times, due = [], time.monotonic()
        for number in range(SAMPLES):
            due = max(due + 1 / SAMPLES_PER_S, time.monotonic())
            assert client.set(f"sample:{number}", "old")
            commit = begin(f"sample:{number}")
            time.sleep(max(0.0, due - time.monotonic()))
            begun = time.monotonic()
            commit()
            while client.get(f"sample:{number}") is not None:
                assert time.monotonic() < begun + 30, f"sample {number} is not deleted"
            times.append((time.monotonic() - begun) * 1e3)
        times.sort()
        return {"p50": times[SAMPLES // 2], "p99": times[SAMPLES * 99 // 100], "max": times[-1]}


def measure(kind: type[CommitLog]) -> dict:
    """All figures of a database."""
    with tempfile.TemporaryDirectory(prefix="lookaside-rate-") as name, contextlib.ExitStack() as stack:
        folders = {part: Path(name) / part for part in ("database", "cluster", "hour")}
        for folder in folders.values():
            folder.mkdir()
        log = kind(folders["database"])
        stack.callback(log.stop)
        with contextlib.ExitStack() as clusters:
            cluster = Cluster("one", folders["cluster"])
            clusters.callback(cluster.stop)
            rounds = [measure_round(log, cluster, number) for number in range(ROUNDS)] if log.reader else []
            latency_ms = measure_latency(log, cluster)
        results = {
            "database": log.name,
            "reader": log.reader,
            "rounds": rounds,
            "ratio": statistics.median(one["ratio"] for one in rounds) if rounds else None,
            "commit_to_empty_ms": latency_ms,
            "hour": measure_hour(log, folders["hour"]),
        }
        print(results, file=sys.stderr, flush=True)
        return results


@dataclass(frozen=True)
class Bar:
    """What a measurement of a database is held against."""

    database: str
    aim: str
    measured: str
    is_met: bool

    def row(self) -> str:
        """As the page shows it."""
        return f"| {self.database} | {self.aim} | {self.measured} | {'met' if self.is_met else '**missed**'} |"


def rate_rows(results: dict) -> list[str]:
    """The rounds of a database."""
    return [
        f"| {results['database']}, `{results['reader']}` | {number} | {one['commits']:,} | {one['reader_per_s']:,.0f} |"
        f" {one['ours_per_s']:,.0f} | {one['ratio']:.2f} | {one['keys_per_batch']:,.0f} |"
        f" {one['keys_per_packet']:.0f} |"
        for number, one in enumerate(results["rounds"], 1)
    ]


def bars_of(results: dict) -> list[Bar]:
    """The bars of a database."""
    name, ratio, hour, latency = (results[part] for part in ("database", "ratio", "hour", "commit_to_empty_ms"))
    bars = []
    if ratio is not None:
        aim = f"at least {BAR_RATIO:.0%} of the rate of `{results['reader']}`"
        bars.append(Bar(name, aim, f"{ratio:.0%} (median)", ratio >= BAR_RATIO))
    return [
        *bars,
        Bar(
            name,
            f"under {BAR_MIB} MiB while one of two clusters is down for an hour",
            f"{hour['down_mib']:.0f} MiB",
            hour["down_mib"] < BAR_MIB,
        ),
        Bar(
            name,
            f"under {BAR_MIB} MiB until it has caught up",
            f"{hour['peak_mib']:.0f} MiB, after {hour['caught_up_s']:.0f} s",
            hour["peak_mib"] < BAR_MIB,
        ),
        Bar(
            name,
            f"commit to empty, p99, under {BAR_P99_MS} ms",
            f"{latency['p99']:.1f} ms (p50 {latency['p50']:.1f}, max {latency['max']:.1f})",
            latency["p99"] < BAR_P99_MS,
        ),
    ]


def report(results: list[dict], facts: dict[str, str]) -> str:
    """The page."""
    bars = "\n".join(bar.row() for one in results for bar in bars_of(one))
    rates = "\n".join(row for one in results for row in rate_rows(one))
    machine = "\n".join(f"* {name}: {value}" for name, value in facts.items())
    return f"""# How fast the invalidator is

`make bench-invalidator` measures this and writes this page, with the databases on the same machine.

| database | bar | measured | |
|---|---|---|---|
{bars}

**Rate.** In each round transactions are written, each with a key of its own. Then they are read from the same position,
in turns, by the database's own reader, which prints them to /dev/null, and by the invalidator, from its start until all
deletes are acknowledged. SQLite has no such reader.

| reader | round | commits | reader, a second | invalidator, a second | ratio | keys per batch | deletes per packet |
|---|---|---|---|---|---|---|---|
{rates}

**Memory.** The router of one of two clusters is down while {HOUR_S * HOUR_COMMITS_PER_S:,} commits are written: those
of an hour at {HOUR_COMMITS_PER_S} a second, as fast as the database takes them. The figures are the peaks of the
invalidator's resident memory: until it reads no further for that cluster and the other one has all deletes, and until
the cluster is back and has them, too.

**Commit to empty** is from sending COMMIT to the first get through the router that misses: {SAMPLES:,} commits, at
{SAMPLES_PER_S} a second at most.

{machine}
"""


def main() -> int:
    """Measures, prints the results as JSON and writes the page."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--report", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    parser.add_argument("--check", action="store_true", help="fail if a bar is missed")
    parser.add_argument("--only", choices=[kind.name for kind in COMMIT_LOGS], help="one database, and no page")
    options = parser.parse_args()
    missed: list[Bar] = []

    def run() -> None:
        facts = {**machine_facts.facts(), "build": PROGRAMS.name}
        results = [measure(kind) for kind in COMMIT_LOGS if options.only in (None, kind.name)]
        command_line.print_results(results)
        missed.extend(bar for one in results for bar in bars_of(one) if not bar.is_met)
        if options.report and not options.only:
            REPORT.write_text(report(results, facts))

    code = command_line.run_measurement("invalidator_rate", run)
    for bar in missed:
        print(f"invalidator_rate: missed: {bar.database}: {bar.aim}: {bar.measured}", file=sys.stderr)
    return 1 if options.check and missed else code


if __name__ == "__main__":
    sys.exit(main())
