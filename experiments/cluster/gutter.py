"""A cache server dies under load, with a gutter pool and without one (paper, section 3.3).

What: gets of Zipf-distributed keys by applications that read through: what misses or fails is read from a real MariaDB
and stored. One of SERVERS servers is killed at KILL_S and started again, empty, at RETURN_S. Reported is, second by
second, how many gets were answered by an error (the paper's client-visible failures), how many the database had to
serve, and the share of gets that the gutter could answer with a hit.

How: release programs on this machine; PROCESSES application processes at a fixed rate together, each with a connection
of its own to the router and to the database. Once with the configuration that `lookaside up` writes, in which the
gutter takes the place of a dead server for EXPTIME_S seconds an item, once with the same pool and nothing around it,
and once more with the gutter and a server that falls silent instead of dying: no connection to it ends.
Failures are counted by the applications, hits of the gutter by its own `stats`.

The paper's rates come from days of production; here one server fails once, and the rate of gets for each key decides
what a gutter can answer: with a higher rate a larger share is asked for again within EXPTIME_S.

    make gutter       some four minutes; writes docs/measurements/gutter.md and its pictures
"""

import bisect
import contextlib
import itertools
import json
import multiprocessing
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pymysql
from mariadb import PASSWORD, USER, MariaDb
from processes import PROGRAMS, ROOT, Process, Server, answers, free_port, stats

from experiments import command_line, machine_facts
from experiments.plots import lines

SERVERS = 4
KEYS = 20_000
ZIPF = 0.99
VALUE_BYTES = 200
PROCESSES = 4
RATE = 2_400
EXPTIME_S = 10
KILL_S, RETURN_S, END_S = 10, 50, 70
SECOND_NS = 1_000_000_000

RUNS = (("with gutter", True, False), ("without gutter", False, False), ("with gutter, silent server", True, True))

REPORT = ROOT / "docs" / "measurements" / "gutter.md"
PICTURES = ROOT / "docs" / "measurements" / "pictures"


def key(number: int) -> bytes:
    """The key of a row."""
    return b"row:%d" % number


@dataclass
class Seconds:
    """Counts for each second of a run; all processes add to them."""

    hits: list[int]
    misses: list[int]
    failures: list[int]

    @staticmethod
    def shared() -> "Seconds":
        """Arrays that processes share, one for each process and count."""
        return Seconds(*(multiprocessing.Array("q", END_S) for _ in range(3)))


class Router:
    """A connection to a router, one request at a time."""

    def __init__(self, port: int) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.replies = self.connection.makefile("rb")

    def get(self, name: bytes) -> bytes | None:
        """The value, or nothing; an error of the router is a `LookupError`."""
        self.connection.sendall(b"get %s\r\n" % name)
        line = self.replies.readline()
        if line == b"END\r\n":
            return None
        if not line.startswith(b"VALUE "):
            raise LookupError(line.decode(errors="replace").strip() or "the router hung up")
        value = self.replies.readline()[:-2]
        self.replies.readline()
        return value

    def set(self, name: bytes, value: bytes) -> bool:
        """Whether the value was stored."""
        self.connection.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (name, len(value), value))
        return self.replies.readline() == b"STORED\r\n"


def zipf(keys: int, exponent: float) -> list[float]:
    """Cumulative weights of ranks."""
    return list(itertools.accumulate(1 / rank**exponent for rank in range(1, keys + 1)))


def application(number: int, router_port: int, database_port: int, start_ns: int, seconds: Seconds) -> None:
    """Reads through, at its share of the rate, until the end."""
    rng = random.Random(number)
    weights = zipf(KEYS, ZIPF)
    router = Router(router_port)
    database = pymysql.connect(host="127.0.0.1", port=database_port, user=USER, password=PASSWORD, database="app")
    rows = database.cursor()
    due_ns = start_ns
    while (second := (due_ns - start_ns) // SECOND_NS) < END_S:
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        due_ns += int(rng.expovariate(RATE / PROCESSES) * 1e9)
        row = bisect.bisect(weights, rng.random() * weights[-1])
        counted = seconds.hits
        try:
            value = router.get(key(row))
            if value is None:
                counted = seconds.misses
        except LookupError:
            value, counted = None, seconds.failures
        if value is None:
            rows.execute("SELECT value FROM rows_of_app WHERE id = %s", (row,))
            router.set(key(row), rows.fetchone()[0])
        with counted.get_lock():
            counted[second] += 1


def configuration(main: list[int], gutter: int, with_gutter: bool) -> str:
    """As `lookaside up` writes it, or with nothing around the pool."""
    pools = {
        "main": {"servers": [f"127.0.0.1:{port}" for port in main]},
        "gutter": {"servers": [f"127.0.0.1:{gutter}"]},
    }
    guarded = {
        "type": "OperationSelectorRoute",
        "default_policy": {
            "type": "FailoverWithExptimeRoute",
            "normal": "PoolRoute|main",
            "failover": "PoolRoute|gutter",
            "failover_exptime": EXPTIME_S,
        },
        "operation_policies": {"delete": {"type": "AllSyncRoute", "children": ["PoolRoute|main", "PoolRoute|gutter"]}},
    }
    return json.dumps({"pools": pools, "route": guarded if with_gutter else "PoolRoute|main"})


@contextlib.contextmanager
def cluster(folder: Path, with_gutter: bool) -> Iterator[tuple[int, list[Server], Server]]:
    """The port of a router, its servers, and the gutter."""
    with contextlib.ExitStack() as running:

        def server(name: str) -> Server:
            started = Server(name, folder)
            running.callback(started.stop)
            return started

        servers, gutter = [server(f"server-{number}") for number in range(SERVERS)], server("gutter")
        text = configuration([each.port for each in servers], gutter.port, with_gutter)
        port = free_port()
        words = ["-p", port, "--num-proxies", "1", "--config-str", text]
        router = Process("router", [PROGRAMS / "lookaside-router", *words], folder)
        running.callback(router.stop)
        router.wait_ready(lambda: answers(port))
        yield port, servers, gutter


def fill(database: MariaDb) -> None:
    """The rows."""
    rng = random.Random(0)
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE rows_of_app (id INT PRIMARY KEY, value VARBINARY({VALUE_BYTES}))")
        rows = [(number, rng.randbytes(VALUE_BYTES // 2).hex()) for number in range(KEYS)]
        cursor.executemany("INSERT INTO rows_of_app VALUES (%s, %s)", rows)


def run_outage(database: MariaDb, with_gutter: bool, is_silent: bool) -> tuple[Seconds, list[tuple[int, int]]]:
    """One run; and the gutter's gets and hits in each second."""
    with tempfile.TemporaryDirectory(prefix="lookaside-gutter-") as folder, cluster(Path(folder), with_gutter) as up:
        port, servers, gutter = up
        warm = Router(port)
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, value FROM rows_of_app")
            if not all(warm.set(key(number), value) for number, value in cursor.fetchall()):
                raise SystemExit("the cluster could not be filled")
        seconds, start_ns = Seconds.shared(), time.monotonic_ns() + SECOND_NS
        applications = [
            multiprocessing.Process(
                target=application, args=(number, port, database.port, start_ns, seconds), daemon=True
            )
            for number in range(PROCESSES)
        ]
        for process in applications:
            process.start()
        gutter_samples, before = [], stats(gutter.port)
        for second in range(END_S):
            time.sleep(max(0, start_ns + second * SECOND_NS - time.monotonic_ns()) / 1e9)
            if second == KILL_S:
                fail_server(servers[0], is_silent)
            if second == RETURN_S:
                restore_server(servers[0], is_silent)
            now = stats(gutter.port)
            gutter_samples.append(tuple(int(now[name]) - int(before[name]) for name in ("cmd_get", "get_hits")))
            before = now
        for process in applications:
            process.join(60)
            if process.exitcode != 0:
                raise SystemExit(f"an application ended with {process.exitcode}")
        counts = (list(counted) for counted in (seconds.hits, seconds.misses, seconds.failures))
        # The statistics read at the beginning of a second belong to the second before.
        return Seconds(*counts), [*gutter_samples[1:], (0, 0)]


def fail_server(server: Server, is_silent: bool) -> None:
    """Kills the server, or stops it as a machine that hangs."""
    if is_silent:
        server.running.send_signal(signal.SIGSTOP)
    else:
        server.kill()


def restore_server(server: Server, is_silent: bool) -> None:
    """Undoes it; a server that crashed returns empty."""
    if is_silent:
        server.running.send_signal(signal.SIGCONT)
    else:
        server.restart()


def outage(counts: list[int]) -> int:
    """The sum over the seconds in which the server was dead."""
    return sum(counts[KILL_S:RETURN_S])


def figures(runs: dict[str, tuple[Seconds, list[tuple[int, int]]]]) -> dict:
    """The reported figures."""
    shown = {}
    for name, (seconds, gutter) in runs.items():
        gets = sum(outage(counts) for counts in (seconds.hits, seconds.misses, seconds.failures))
        asked, hit = (outage([second[index] for second in gutter]) for index in (0, 1))
        shown[name] = {
            "gets": gets,
            "failures": outage(seconds.failures),
            "database reads": outage(seconds.misses) + outage(seconds.failures),
            "gutter gets": asked,
            "gutter hit rate": hit / asked if asked else 0.0,
        }
    without = shown["without gutter"]["failures"]
    shown["failures less by"] = 1 - shown["with gutter"]["failures"] / without if without else 0.0
    return shown


def draw(runs: dict[str, tuple[Seconds, list[tuple[int, int]]]]) -> None:
    """Failures, database reads and the gutter's hit rate over time."""
    across = f"time (s); one of {SERVERS} servers is killed at {KILL_S} and returns empty at {RETURN_S}"

    def over_time(values: list[float]) -> list[tuple[float, float]]:
        return list(enumerate(values))

    failures = {name: over_time(seconds.failures) for name, (seconds, _) in runs.items()}
    reads = {
        name: over_time([missed + failed for missed, failed in zip(seconds.misses, seconds.failures, strict=True)])
        for name, (seconds, _) in runs.items()
    }
    gutter = [100 * hit / asked if asked else 0.0 for asked, hit in runs["with gutter"][1]]
    PICTURES.mkdir(exist_ok=True)
    pictures = {
        "gutter_failures": lines.svg("Gets answered by an error", across, "gets per second", failures),
        "gutter_database_reads": lines.svg("Reads of the database", across, "reads per second", reads),
        "gutter_hit_rate": lines.svg("The gutter's hit rate", across, "hit rate (%)", {"hits": over_time(gutter)}),
    }
    for name, drawn in pictures.items():
        (PICTURES / f"{name}.svg").write_text(drawn)


TEXT = """# A dead server, with a gutter and without

`make gutter` measures this and writes this page (§3.3 of "Scaling Memcache at Facebook"): {what}.

| while the server was dead | gets | answered by an error | reads of the database | gets of the gutter | its hit rate |
|---|---|---|---|---|---|
{rows}

Errors that applications saw: {less:.2%} fewer with the gutter. That is one dead server for 40 s with one gutter
server to four servers. It does not compare with the paper's 99 %, which counts all client-visible failures of a fleet
whose gutter is about 1 % of its servers. The paper's gutter hit rates "generally exceed 35% in under 4 minutes". A
server that falls silent (its process is stopped, its machine stays up) is detected only by gets that time out; the
gutter then answers these, a second late.

![errors](pictures/gutter_failures.svg)
![reads of the database](pictures/gutter_database_reads.svg)
![hit rate](pictures/gutter_hit_rate.svg)

{facts}
"""


def report(shown: dict, facts: dict[str, str]) -> str:
    """docs/measurements/gutter.md."""
    rows = [
        f"| {name} | {run['gets']} | {run['failures']} | {run['database reads']} | {run['gutter gets']} |"
        f" {run['gutter hit rate']:.1%} |"
        for name, run in shown.items()
        if isinstance(run, dict)
    ]
    what = (
        f"one of {SERVERS} servers is killed under\n{RATE} gets a second of {KEYS} Zipf-distributed keys (exponent"
        f" {ZIPF}), with MariaDB behind, and returns empty\n{RETURN_S - KILL_S} s later. Items live {EXPTIME_S} s in"
        " the gutter"
    )
    return TEXT.format(
        what=what,
        rows="\n".join(rows),
        less=shown["failures less by"],
        facts="\n".join(f"* {name}: {fact}" for name, fact in facts.items()),
    )


def main() -> int:
    """Runs both, draws, writes the page, and prints the figures as JSON."""
    command_line.parser(__doc__).parse_args()
    facts = machine_facts.facts()
    with tempfile.TemporaryDirectory(prefix="lookaside-gutter-") as folder:
        database = MariaDb(Path(folder))
        try:
            fill(database)
            runs = {}
            for name, with_gutter, is_silent in RUNS:
                print(f"{name}: {END_S} s", file=sys.stderr, flush=True)
                runs[name] = run_outage(database, with_gutter, is_silent)
        finally:
            database.stop()
    shown = figures(runs)
    draw(runs)
    REPORT.write_text(report(shown, facts))
    command_line.print_results(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
