"""One cold start: an empty cluster beside a warm one, both under load, with a writer and its deletes."""

import bisect
import collections
import contextlib
import itertools
import json
import multiprocessing
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leases import HOT_MISS, LeaseClient
from mariadb import MariaDb
from processes import PROGRAMS, Process, Server, answers, connect, free_port

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
SECOND_NS = 1_000_000_000


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
