"""A cold cluster beside a warm one, with warm-up and without it (paper, section 4.3).

What: a cluster of empty servers is given the full load at once: applications that look aside under leases, with
Zipf-distributed keys, in front of a real MariaDB. Beside it another cluster has everything, and readers of its own. A
writer in the cold cluster commits WRITES a second and deletes what it changed: in the cold cluster at once, in the
warm one DELAY_S later, as an invalidation that takes time to arrive. Reported is, second by second, how many reads the
database had to serve, the share of reads that were answered without it, and how many reads the cold cluster's router
sent to the warm one; and when the warm-up ended by itself.

Checked: every value carries the version of its row. A reader notes the version that had been deleted in its cluster,
and acknowledged, before its read begins; a value with an older one is a stale read. When the load has ended, every key
that the cold cluster still has is compared with its row: what is older stays stale for as long as it lives.

How: release programs on this machine; an application process has a connection of its own to its cluster's router and to
the database. Four runs: without warm-up (`PoolRoute`); with it, until it has ended; then, shorter, without the hold-off
of deletes, and with deletes that reach the warm cluster LATE_S later, which is more than the hold-off covers.

Days and hours of the paper are not measured here: how long a cluster stays cold is its keys over its reads a second,
and both are small. What is comparable is the shape, and how many times sooner.

    make warmup       some five minutes; writes docs/measurements/warmup.md and its pictures
"""

import bisect
import collections
import contextlib
import itertools
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leases import HOT_MISS, LeaseClient
from mariadb import MariaDb
from processes import PROGRAMS, ROOT, Process, Server, answers, connect, free_port

from experiments import command_line, machine_facts
from experiments.plots import lines

SERVERS = 2
KEYS = 6_000
ZIPF = 0.99
VALUE_BYTES = 200
COLD_PROCESSES, WARM_PROCESSES = 3, 1
COLD_RATE, WARM_RATE = 1_500, 500
WRITES = 20
DELAY_S, LATE_S = 0.5, 3.0
HOLD_OFF_MS = 2_000
END_AFTER_S = 60
HOT_MISS_WAIT_S = 0.002
STEADY_S, MEAN_S = 20, 5
SECOND_NS = 1_000_000_000

REPORT = ROOT / "docs" / "measurements" / "warmup.md"
PICTURES = ROOT / "docs" / "measurements" / "pictures"


@dataclass(frozen=True)
class Run:
    """One cold start."""

    name: str
    is_warmed: bool
    hold_off_ms: int
    delay_s: float
    seconds: int


WITHOUT, WITH = "without warm-up", "with warm-up"
RUNS = (
    Run(WITHOUT, False, 0, DELAY_S, 90),
    Run(WITH, True, HOLD_OFF_MS, DELAY_S, 140),
    Run("no hold-off", True, 0, DELAY_S, 20),
    Run(f"warm deletes {LATE_S:g} s late", True, HOLD_OFF_MS, LATE_S, 20),
)


class Counts:
    """Counts of one cluster's applications for each second, and the deleted version of each key."""

    def __init__(self, seconds: int, versions: list[int]) -> None:
        self.reads, self.database, self.stale = (multiprocessing.Array("q", seconds) for _ in range(3))
        # A word each, and the writer alone writes them.
        self.deleted = multiprocessing.RawArray("q", versions)


def key(row: int) -> str:
    """The key of a row."""
    return f"row:{row}"


def version_of(value: bytes) -> int:
    """The version that a value carries."""
    return int(value.split(b" ", 1)[0])


def rows_by_rank() -> list[float]:
    """Cumulative weights of ranks."""
    return list(itertools.accumulate(1 / rank**ZIPF for rank in range(1, KEYS + 1)))


def load(rows, row: int) -> bytes:
    """The value of a row, from the database."""
    rows.execute("SELECT version, body FROM rows_of_app WHERE id = %s", (row,))
    return b"%d %s" % rows.fetchone()


def read(router: LeaseClient, rows, row: int) -> tuple[bytes, bool]:
    """Looks aside: the value, and whether it came from the database."""
    while True:
        value, token, _ = router.lease_get(key(row))
        if value is not None:
            return value, False
        if token != HOT_MISS:
            value = load(rows, row)
            router.lease_set(key(row), token, value)
            return value, True
        time.sleep(HOT_MISS_WAIT_S)


def application(
    seed: int, rate: float, port: int, database: MariaDb, start_ns: int, seconds: int, counts: Counts
) -> None:
    """Reads at its rate until the end, and looks whether it sees what was deleted before."""
    rng, weights, router = random.Random(seed), rows_by_rank(), LeaseClient(port)
    rows = database.connect().cursor()
    due_ns = start_ns
    while (second := (due_ns - start_ns) // SECOND_NS) < seconds:
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        due_ns += int(rng.expovariate(rate) * 1e9)
        row = bisect.bisect(weights, rng.random() * weights[-1])
        deleted = counts.deleted[row]
        value, is_from_database = read(router, rows, row)
        happened = (
            (counts.reads, True),
            (counts.database, is_from_database),
            (counts.stale, version_of(value) < deleted),
        )
        for counted, is_so in happened:
            if is_so:
                with counted.get_lock():
                    counted[second] += 1


def writer(
    ports: tuple[int, int], database: MariaDb, start_ns: int, run: Run, cold: Counts, warm: Counts, written
) -> None:
    """Commits, deletes in the cold cluster, and later in the warm one."""
    rng, weights = random.Random(0), rows_by_rank()
    routers = [LeaseClient(port) for port in ports]
    rows = database.connect().cursor()
    later: collections.deque[tuple[int, int, int]] = collections.deque()

    def delete(router: LeaseClient, counts: Counts, row: int, version: int) -> None:
        answer = router.command(b"delete %s" % key(row).encode())
        assert answer in (b"DELETED", b"NOT_FOUND"), answer
        counts.deleted[row] = version

    due_ns, end_ns = start_ns, start_ns + run.seconds * SECOND_NS
    while due_ns < end_ns or later:
        is_write = due_ns < end_ns and (not later or due_ns <= later[0][0])
        time.sleep(max(0, (due_ns if is_write else later[0][0]) - time.monotonic_ns()) / 1e9)
        if not is_write:
            _, row, version = later.popleft()
            delete(routers[1], warm, row, version)
            continue
        due_ns += int(rng.expovariate(WRITES) * 1e9)
        row = bisect.bisect(weights, rng.random() * weights[-1])
        rows.execute("UPDATE rows_of_app SET version = version + 1 WHERE id = %s", (row,))
        rows.execute("SELECT version FROM rows_of_app WHERE id = %s", (row,))
        version = rows.fetchone()[0]
        delete(routers[0], cold, row, version)
        later.append((time.monotonic_ns() + int(run.delay_s * 1e9), row, version))
        written.value += 1


def configuration(run: Run, cold: list[Server], warm: list[Server]) -> dict:
    """Of the cold cluster's router."""
    pools = {
        name: {"servers": [f"127.0.0.1:{server.port}" for server in servers]}
        for name, servers in (("cold", cold), ("warm", warm))
    }
    warm_up = {
        "type": "WarmUpRoute",
        "cold": "PoolRoute|cold",
        "warm": "PoolRoute|warm",
        "exptime": 0,
        "hold_off_ms": run.hold_off_ms,
        "end_after": END_AFTER_S,
    }
    return {"pools": pools, "route": warm_up if run.is_warmed else "PoolRoute|cold"}


@dataclass
class Clusters:
    """The processes of a run."""

    cold: list[Server]
    warm: list[Server]
    routers: list[Process]
    ports: tuple[int, int]

    def sent_to_warm(self) -> int:
        """Requests that the cold cluster's router has sent to the warm cluster."""
        client = LeaseClient(self.ports[0])
        client.socket.sendall(b"stats servers_detailed\r\n")
        servers = {f"destination:127.0.0.1:{server.port}" for server in self.warm}
        sent = 0
        while (line := client.reader.readline().decode().split())[0] != "END":
            if line[1] in servers:
                sent += int(next(word for word in line if word.startswith("sent:")).removeprefix("sent:"))
        client.close()
        return sent


@contextlib.contextmanager
def clusters(folder: Path, run: Run) -> Iterator[Clusters]:
    """A cold and a warm cluster, each with its router."""
    with contextlib.ExitStack() as running:

        def server(name: str) -> Server:
            started = Server(name, folder)
            running.callback(started.stop)
            return started

        cold, warm = ([server(f"{name}-{number}") for number in range(SERVERS)] for name in ("cold", "warm"))
        plain = {
            "pools": {"warm": {"servers": [f"127.0.0.1:{server.port}" for server in warm]}},
            "route": "PoolRoute|warm",
        }
        routers, ports = [], []
        for name, tree in (("cold", configuration(run, cold, warm)), ("warm", plain)):
            port = free_port()
            words = ["-p", port, "--num-proxies", "1", "--config-str", json.dumps(tree)]
            router = Process(f"router-{name}", [PROGRAMS / "lookaside-router", *words], folder)
            running.callback(router.stop)
            router.wait_ready(lambda port=port: answers(port))
            routers.append(router)
            ports.append(port)
        yield Clusters(cold, warm, routers, (ports[0], ports[1]))


def fill(database: MariaDb) -> None:
    """The rows."""
    rng = random.Random(0)
    with database.connect() as connection, connection.cursor() as cursor:
        columns = f"id INT PRIMARY KEY, version INT NOT NULL, body VARBINARY({VALUE_BYTES})"
        cursor.execute(f"CREATE TABLE rows_of_app ({columns})")
        rows = [(row, rng.randbytes(VALUE_BYTES // 2).hex()) for row in range(KEYS)]
        cursor.executemany("INSERT INTO rows_of_app VALUES (%s, 1, %s)", rows)


def all_rows(database: MariaDb) -> list[tuple[int, bytes]]:
    """Version and body of each row, in order."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT version, body FROM rows_of_app ORDER BY id")
        return list(cursor.fetchall())


def left_stale(up: Clusters, database: MariaDb) -> int:
    """Keys whose value in the cold cluster is older than their row."""
    stale = 0
    for server in up.cold:
        client = connect(server.port)
        held = client.get_many([key(row) for row in range(KEYS)])
        rows = all_rows(database)
        stale += sum(version_of(value) < rows[int(name.removeprefix("row:"))][0] for name, value in held.items())
        client.close()
    return stale


def cold_start(database: MariaDb, run: Run) -> dict:
    """One run; what happened in each second of it, and what was left."""
    with tempfile.TemporaryDirectory(prefix="lookaside-warmup-") as folder, clusters(Path(folder), run) as up:
        rows = all_rows(database)
        warm = LeaseClient(up.ports[1])
        for row, (version, body) in enumerate(rows):
            value = b"%d %s" % (version, body)
            assert warm.command(b"set %s 0 0 %d" % (key(row).encode(), len(value)), value) == b"STORED"
        counts = [Counts(run.seconds, [version for version, _ in rows]) for _ in up.ports]
        written, start_ns = multiprocessing.Value("q"), time.monotonic_ns() + SECOND_NS
        jobs = [(writer, (up.ports, database, start_ns, run, *counts, written))]
        for cluster, (processes, rate) in enumerate(((COLD_PROCESSES, COLD_RATE), (WARM_PROCESSES, WARM_RATE))):
            for number in range(processes):
                words = (1 + 100 * cluster + number, rate / processes, up.ports[cluster], database)
                jobs.append((application, (*words, start_ns, run.seconds, counts[cluster])))
        processes = [multiprocessing.Process(target=target, args=words, daemon=True) for target, words in jobs]
        for process in processes:
            process.start()
        sent, ended_s = [], None
        for second in range(run.seconds + 1):
            time.sleep(max(0, start_ns + second * SECOND_NS - time.monotonic_ns()) / 1e9)
            sent.append(up.sent_to_warm())
            if ended_s is None and "warm-up ended" in up.routers[0].log():
                ended_s = second
        for process in processes:
            process.join(60)
            if process.exitcode != 0:
                raise SystemExit(f"an application or the writer ended with {process.exitcode}")
        late_s = time.monotonic() - (start_ns / 1e9 + run.seconds)
        cold, warm_counts = counts
        return {
            "reads": list(cold.reads),
            "database": list(cold.database),
            "stale": list(cold.stale),
            "stale in warm": sum(warm_counts.stale),
            "to warm": [after - before for before, after in itertools.pairwise(sent)],
            "ended_s": ended_s,
            "writes": written.value,
            "left stale": left_stale(up, database),
            "late_s": late_s - run.delay_s,
        }


def hit_rates(run: dict) -> list[float]:
    """The share of reads that were answered without the database, in each second."""
    return [1 - missed / max(1, reads) for reads, missed in zip(run["reads"], run["database"], strict=True)]


def within_a_point_s(rates: list[float], steady: float) -> int | None:
    """The second from which on every mean of MEAN_S seconds is within a point of `steady`."""
    means = [sum(rates[at : at + MEAN_S]) / MEAN_S for at in range(len(rates) - MEAN_S + 1)]
    below = [at for at, mean in enumerate(means) if mean < steady - 0.01]
    first = below[-1] + 1 if below else 0
    return first if first < len(means) else None


def figures(runs: dict[str, dict]) -> dict:
    """The reported figures."""
    steady = sum(hit_rates(runs[WITH])[-STEADY_S:]) / STEADY_S
    shown = {}
    for name, run in runs.items():
        rates, ended_s = hit_rates(run), run["ended_s"]
        shown[name] = {
            "seconds": len(rates),
            "writes": run["writes"],
            "database reads of the first 10 s": sum(run["database"][:10]),
            "most database reads in a second": max(run["database"]),
            "database reads of the first 60 s": sum(run["database"][:60]) if len(rates) >= 60 else None,
            "hit rate of the first 10 s": sum(rates[:10]) / 10,
            "within a point of the settled hit rate after": within_a_point_s(rates, steady),
            "reads": sum(run["reads"]),
            "stale reads": sum(run["stale"]),
            "stale reads in the warm cluster": run["stale in warm"],
            "keys left stale": run["left stale"],
            "warm-up ended after": ended_s,
            "reads of the warm cluster after that": None if ended_s is None else sum(run["to warm"][ended_s:]),
            "behind its rate at the end by": max(0.0, round(run["late_s"], 1)),
        }
    return {"settled hit rate": steady, "runs": shown}


def draw(runs: dict[str, dict]) -> None:
    """Database reads, hit rate and reads of the warm cluster over time."""
    across = "time since the empty cluster was given the load (s)"
    both = {name: runs[name] for name in (WITHOUT, WITH)}
    curves = {
        "warmup_database_reads": (
            "Reads of the database",
            "reads per second",
            {name: run["database"] for name, run in both.items()},
        ),
        "warmup_hit_rate": (
            "Reads that were answered without the database",
            "share of reads (%)",
            {name: [100 * rate for rate in hit_rates(run)] for name, run in both.items()},
        ),
        "warmup_warm_reads": (
            "Reads that the cold cluster's router sent to the warm cluster",
            "reads per second",
            {WITH: runs[WITH]["to warm"]},
        ),
    }
    PICTURES.mkdir(exist_ok=True)
    for name, (title, up, values) in curves.items():
        points = {curve: list(enumerate(drawn)) for curve, drawn in values.items()}
        (PICTURES / f"{name}.svg").write_text(lines.svg(title, across, up, points))


TEXT = """# A cold cluster, with warm-up and without

`make warmup` measures this and writes this page (§4.3 of "Scaling Memcache at Facebook"):
an empty cluster of {servers} servers suddenly gets {rate} reads a second of {keys} Zipf-distributed keys
(exponent {zipf}), from applications that read through the cache under leases, with MariaDB as the database. A
second cluster has all keys cached, and {warm_rate} reads a second of its own. A writer commits {writes} times a
second; its deletes reach the cold cluster at once and the warm one {delay} s later.

| | without warm-up | with warm-up |
|---|---|---|
{rows}

The settled hit rate ({steady:.1%}) is that of the last {steady_s} s with warm-up, which had ended by then;
the writer's deletes cause the remaining misses. A hit is a read that the database did not serve.
The warm-up ended by itself after
{ended} s, as the router's log says, and the router sent {after} reads to the warm cluster from then on (`end_after` was
{end_after} s here; the default of 300 s is longer than this run).

![reads of the database](pictures/warmup_database_reads.svg)
![hit rate](pictures/warmup_hit_rate.svg)
![reads of the warm cluster](pictures/warmup_warm_reads.svg)

## Was anything stale?

Every value carries the version of its row. A read is stale if it begins after a delete was acknowledged in its cluster
and still brings an older version. A key is left stale if the cold cluster has an older version than the database when
all is over: nothing will delete it any more.

| run | reads | writes | stale reads | keys left stale |
|---|---|---|---|---|
{stale}

While an invalidation is on its way to the warm cluster, the old value may be copied from there. The hold-off
refuses it: {hold_off:g} s are enough for an invalidation that takes {delay} s. Without one the old value comes
back and stays. The paper considers an invalidation that takes longer than the hold-off ({late:g} s) rare and
accepts it; here every write causes one.

## What the paper's figure compares to

The paper: back to full capacity "in a few hours instead of a few days". How long a cluster stays cold depends on its
keys over its reads a second; both are small here, so that seconds stand for hours. The shape is comparable: without
warm-up the database serves each key once before the hit rate settles; with it the warm cluster does. Not comparable:
the warm cluster here is on the same machine, neither far away nor busy, and has every key, so the hit rate settles at
once.

{facts}
"""


def seconds_or_not(seconds: int | None) -> str:
    """In words."""
    return "not in this run" if seconds is None else f"{seconds} s"


def report(shown: dict, facts: dict[str, str]) -> str:
    """docs/measurements/warmup.md."""
    runs = shown["runs"]
    compared = (
        ("reads of the database, first 10 s", lambda run: f"{run['database reads of the first 10 s']:,}"),
        ("reads of the database, first 60 s", lambda run: f"{run['database reads of the first 60 s']:,}"),
        ("most in one second", lambda run: f"{run['most database reads in a second']:,}"),
        ("hit rate, first 10 s", lambda run: f"{run['hit rate of the first 10 s']:.1%}"),
        (
            "hit rate within a point of the settled one after",
            lambda run: seconds_or_not(run["within a point of the settled hit rate after"]),
        ),
    )
    rows = [f"| {what} | {report(runs[WITHOUT])} | {report(runs[WITH])} |" for what, report in compared]
    stale = [
        f"| {name} | {run['reads']:,} | {run['writes']:,} | {run['stale reads']:,} | {run['keys left stale']:,} |"
        for name, run in runs.items()
    ]
    with_warm_up = runs[WITH]
    return TEXT.format(
        servers=SERVERS,
        rate=f"{COLD_RATE:,}",
        keys=f"{KEYS:,}",
        zipf=ZIPF,
        warm_rate=WARM_RATE,
        writes=WRITES,
        delay=DELAY_S,
        late=LATE_S,
        hold_off=HOLD_OFF_MS / 1000,
        rows="\n".join(rows),
        stale="\n".join(stale),
        steady=shown["settled hit rate"],
        steady_s=STEADY_S,
        ended=with_warm_up["warm-up ended after"],
        after=with_warm_up["reads of the warm cluster after that"],
        end_after=END_AFTER_S,
        facts="\n".join(f"* {name}: {fact}" for name, fact in facts.items()),
    )


def main() -> int:
    """Runs all, draws, writes the page, and prints the figures."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--json", action="store_true", help="print every second of every run, too")
    parser.add_argument("--only", default="", metavar="TEXT", help="runs whose name contains TEXT; writes nothing")
    options = parser.parse_args()
    facts = machine_facts.facts()
    with tempfile.TemporaryDirectory(prefix="lookaside-warmup-") as folder:
        database = MariaDb(Path(folder))
        try:
            fill(database)
            runs = {}
            for run in (run for run in RUNS if options.only in run.name):
                print(f"{run.name}: {run.seconds} s", file=sys.stderr, flush=True)
                runs[run.name] = cold_start(database, run)
        finally:
            database.stop()
    if options.only:
        print(json.dumps(runs))
        return 0
    shown = figures(runs)
    draw(runs)
    REPORT.write_text(report(shown, facts))
    if options.json:
        print(json.dumps({**shown, "facts": facts, "over time": runs}))
    else:
        print(json.dumps(shown, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
