"""How fast the invalidator reads MariaDB's binlog and deletes, its memory while a cluster is down, and how late deletes
are.

What: COMMITS transactions that each name a key of its own are written before anything reads them. Then, from the same
position and in turns,

* `mariadb-binlog --read-from-remote-server` prints them to /dev/null: the database's own reader, which sends nothing;
* the invalidator reads them, waits at its gate, and deletes each key in a cluster of two servers behind a router.

The ratio of their rates is held against BAR_RATIO. Memory is the peak of the invalidator's resident size (`VmHWM`)
when it reads no further because no router of its cluster runs. Commit to empty is measured from outside, one
commit after the other: from sending COMMIT to the first get through the router that misses.

    make bench-invalidator      some two minutes; --report writes docs/measurements/invalidator.md
"""

import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mariadb import LOCAL, PASSWORD, USER, MariaDb
from processes import PROGRAMS, ROOT, Cluster, Invalidator, Process, answers, connect, eventually, free_port, stats

from experiments import command_line, machine_facts

COMMITS, ROUNDS, SAMPLES = 100_000, 3, 500
BAR_RATIO, BAR_MIB, BAR_P99_MS = 0.5, 64, 20
REPORT = ROOT / "docs" / "measurements" / "invalidator.md"

WRITE = f"""
CREATE PROCEDURE app.write_commits()
BEGIN
  FOR number IN 1..{COMMITS} DO
    INSERT INTO lookaside_outbox VALUES (CONCAT('user:', number, ':profile'));
  END FOR;
END
"""


def end_of_log(cursor) -> str:
    """The position after the newest commit."""
    cursor.execute("SELECT @@global.gtid_binlog_pos")
    return cursor.fetchone()[0]


def write_commits(database: MariaDb) -> tuple[str, str]:
    """Writes COMMITS transactions; the positions before and after them."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
        cursor.execute("CREATE TABLE lookaside_outbox (`key` VARBINARY(250) NOT NULL) ENGINE=InnoDB")
        cursor.execute(WRITE)
        start = end_of_log(cursor)
        cursor.execute("CALL write_commits()")
        return start, end_of_log(cursor)


def dump_seconds(database: MariaDb, start: str) -> float:
    """How long the database's own reader takes."""
    command = [
        "mariadb-binlog", "--no-defaults", "--read-from-remote-server", "--protocol=tcp", f"--host={LOCAL}",
        f"--port={database.port}", f"--user={USER}", f"--password={PASSWORD}", f"--start-position={start}",
        "--to-last-log", "binlog.000001",
    ]  # fmt: skip
    begun = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun


def invalidate_seconds(database: MariaDb, cluster: Cluster, start: str, end: str) -> tuple[float, dict[str, str]]:
    """How long the invalidator takes from its start to the saved position after the last commit; its statistics."""
    with tempfile.TemporaryDirectory(prefix="lookaside-rate-") as name:
        folder = Path(name)
        begun = time.monotonic()
        invalidator = Invalidator(database.url, [cluster], folder / "state", folder, "--from", start)
        try:
            done = "all is acknowledged"
            eventually(lambda: stats(invalidator.port)["cluster:one:position"] == end, done, 300)
            return time.monotonic() - begun, stats(invalidator.port)
        finally:
            invalidator.stop()


def peak_mib(database: MariaDb, start: str) -> float:
    """The invalidator's peak memory when it reads no further because its cluster is down."""
    with tempfile.TemporaryDirectory(prefix="lookaside-rate-") as name:
        port = free_port()
        command = [
            PROGRAMS / "lookaside-invalidator", "--source", database.url, "--state-dir", name, "--from", start,
            "--listen", f"127.0.0.1:{port}", "--cluster", f"one=127.0.0.1:{free_port()}",
        ]  # fmt: skip
        invalidator = Process("invalidator", command, Path(name))
        try:
            invalidator.wait_ready(lambda: answers(port))
            eventually(lambda: stats(port)["cluster:one:state"] == "blocked", "no more keys are read", 120)
            status = Path(f"/proc/{invalidator.running.pid}/status").read_text()
            return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024
        finally:
            invalidator.stop()


def commit_to_empty_ms(database: MariaDb, cluster: Cluster) -> list[float]:
    """The time of each of SAMPLES commits, in order of size."""
    with tempfile.TemporaryDirectory(prefix="lookaside-rate-") as name, contextlib.ExitStack() as stack:
        invalidator = Invalidator(database.url, [cluster], Path(name) / "state", Path(name))
        stack.callback(invalidator.stop)
        client, connection = connect(cluster.port), stack.enter_context(database.connect())
        times = []
        with connection.cursor() as cursor:
            for number in range(SAMPLES):
                assert client.set(f"sample:{number}", "old")
                cursor.execute("BEGIN")
                cursor.execute("INSERT INTO lookaside_outbox VALUES (%s)", (f"sample:{number}",))
                begun = time.monotonic()
                cursor.execute("COMMIT")
                while client.get(f"sample:{number}") is not None:
                    assert time.monotonic() < begun + 30
                times.append((time.monotonic() - begun) * 1e3)
        return sorted(times)


def measure() -> dict:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="lookaside-rate-") as name, contextlib.ExitStack() as stack:
        database = MariaDb(Path(name))
        stack.callback(database.stop)
        cluster = Cluster("one", Path(name))
        stack.callback(cluster.stop)
        start, end = write_commits(database)
        rounds = []
        for _ in range(ROUNDS):
            dump_s = dump_seconds(database, start)
            ours_s, figures = invalidate_seconds(database, cluster, start, end)
            rounds.append({"dump_per_s": COMMITS / dump_s, "ours_per_s": COMMITS / ours_s, "ratio": dump_s / ours_s})
            print(rounds[-1], file=sys.stderr, flush=True)
        times = commit_to_empty_ms(database, cluster)
        return {
            "commits": COMMITS,
            "rounds": rounds,
            "ratio": statistics.median(run["ratio"] for run in rounds),
            "keys_per_batch": float(figures["keys_per_batch"]),
            "keys_per_packet": float(figures["keys_per_packet"]),
            "peak_mib": peak_mib(database, start),
            "commit_to_empty_ms": {"p50": times[SAMPLES // 2], "p99": times[SAMPLES * 99 // 100], "max": times[-1]},
        }


def report(results: dict, facts: dict[str, str]) -> str:
    """The page."""
    rows = [
        f"| {number} | {run['dump_per_s']:,.0f} | {run['ours_per_s']:,.0f} | **{run['ratio']:.2f}** |"
        for number, run in enumerate(results["rounds"], 1)
    ]
    latency = results["commit_to_empty_ms"]

    def verdict(is_kept: bool) -> str:
        return "kept" if is_kept else "**not kept**"

    return f"""# How fast the invalidator is

`make bench-invalidator` measures this and writes this page, with MariaDB on the same machine. {COMMITS:,} transactions,
each with a key of its own, are read from the same position by `mariadb-binlog --read-from-remote-server`, which sends
nothing, and by the invalidator, from its start to the saved position after the last one.

| round | mariadb-binlog, commits/s | invalidator, commits/s | ratio |
|---|---|---|---|
{chr(10).join(rows)}

| aim | measured | |
|---|---|---|
| at least {BAR_RATIO:.0%} of the rate of the database's own reader | {results["ratio"]:.0%} (median) \
| {verdict(results["ratio"] >= BAR_RATIO)} |
| under {BAR_MIB} MiB while a cluster is down, with {COMMITS:,} commits to read | {results["peak_mib"]:.0f} MiB \
| {verdict(results["peak_mib"] < BAR_MIB)} |
| commit to empty, p99, under {BAR_P99_MS} ms | {latency["p99"]:.1f} ms (p50 {latency["p50"]:.1f}, max \
{latency["max"]:.1f}; {SAMPLES} commits) | {verdict(latency["p99"] < BAR_P99_MS)} |

While it caught up a batch held {results["keys_per_batch"]:,.0f} keys, and a packet {results["keys_per_packet"]:.0f}
deletes. Commit to empty is from sending COMMIT to the first get that misses.

{chr(10).join(f"* {name}: {value}" for name, value in facts.items())}
"""


def main() -> int:
    """Measures, prints the results as JSON and writes the page."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--report", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    options = parser.parse_args()

    def run() -> None:
        facts = {**machine_facts.facts(), "build": PROGRAMS.name}
        results = measure()
        command_line.print_results(results)
        if options.report:
            REPORT.write_text(report(results, facts))

    return command_line.run_measurement("invalidator_rate", run)


if __name__ == "__main__":
    sys.exit(main())
