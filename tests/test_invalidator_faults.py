"""Faults between a database and two clusters: whatever fails, no cached value stays older than the database.

Each test fills all caches with the newest versions, injects its fault while rows change, ends it, and waits until no
cache anywhere holds an older version than the database. The time that takes is in the summary of the run.

LOOKASIDE_SOAK=1 runs a million rows in a transaction, and 100,000 commits while a cluster is down, instead of a tenth.
"""

import os
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from forwarder import Forwarder
from processes import Cluster, Invalidator, answers, connect, eventually, stats
from replicated import SERVERS, ReplicatedServer, fetched

ROWS = 200
SCALE = 10 if os.environ.get("LOOKASIDE_SOAK") else 1
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
RECOVERY_S = 60.0

pytestmark = pytest.mark.timeout(600)


class Writer(threading.Thread):
    """Commits changes of one row after another, through errors, until it is stopped."""

    def __init__(self, database: ReplicatedServer) -> None:
        super().__init__(daemon=True)
        self.database = database
        self.commits = 0
        self.is_stopped = False
        self.start()

    def run(self) -> None:
        while not self.is_stopped:
            with (
                suppress(*self.database.errors),
                self.database.connect() as connection,
                connection.cursor() as cursor,
            ):
                while not self.is_stopped:
                    cursor.execute(self.database.change(self.commits % ROWS))
                    self.commits += 1

    def wait_for(self, commits: int) -> None:
        """Returns after that number of further commits."""
        least = self.commits + commits
        eventually(lambda: self.commits >= least, f"{commits} commits", 120)

    def stop(self) -> None:
        """Returns when nothing more is committed."""
        self.is_stopped = True
        self.join(70)
        assert not self.is_alive()


class Region:
    """A database, two clusters and an invalidator, with a forwarder on each link of the invalidator."""

    def __init__(self, database: ReplicatedServer, clusters: list[Cluster], folder: Path, record) -> None:
        self.database, self.clusters, self.folder, self.record = database, clusters, folder, record
        self.database_link = Forwarder(database.port)
        self.links = [Forwarder(cluster.port) for cluster in clusters]
        self.state_dir = folder / "state"
        self.invalidator: Invalidator | None = None
        self.writer: Writer | None = None
        database.create_versions(ROWS)

    def start_invalidator(self, *arguments: str) -> None:
        """Starts the invalidator, which reaches everything through the forwarders."""
        behind = [
            SimpleNamespace(name=cluster.name, ports=[link.port])
            for cluster, link in zip(self.clusters, self.links, strict=True)
        ]
        url = self.database.url(self.database_link.port)
        self.invalidator = Invalidator(url, behind, self.state_dir, self.folder, *arguments)

    def fill(self) -> None:
        """Stores the newest version of each row in each cluster."""
        values = {f"row:{row}": str(version) for row, version in self.versions().items()}
        for cluster in self.clusters:
            # A delete that has just arrived refuses to be followed by `add`, not by `set`.
            assert cluster.client().set_many(values) == []

    def versions(self) -> dict[int, int]:
        """The versions of all rows in the database."""
        return dict(self.database.run("SELECT id, version FROM versions"))

    def stale(self, cluster: Cluster, versions: dict[int, int]) -> list[str]:
        """Cached values that are older than these versions, in any process of a cluster."""
        keys = [f"row:{row}" for row in versions]
        found = []
        for port in [*cluster.ports, *(server.port for server in (*cluster.servers, cluster.gutter))]:
            if not answers(port):
                continue
            cached = connect(port).get_many(keys)
            found += [
                f"{cluster.name}: {key} = {value.decode()}, in the database {versions[int(key[4:])]}"
                for key, value in cached.items()
                if int(value) < versions[int(key[4:])]
            ]
        return found

    def wait_fresh(self, clusters: list[Cluster] | None = None, since: float | None = None) -> float:
        """Returns when no cache holds an older value than the database, the seconds since then or since a moment."""
        start = since or time.monotonic()
        versions = self.versions()
        for cluster in clusters or self.clusters:
            eventually(
                lambda cluster=cluster: not self.stale(cluster, versions),
                f"{cluster.name} is as new as the database",
                RECOVERY_S,
            )
        return time.monotonic() - start

    @contextmanager
    def fault(self, *, unaffected: tuple[int, ...] = ()):
        """Runs the body, which injects the fault, in the middle of commits; clusters that it does not affect catch up
        while it lasts. The caller ends the fault and calls `recover`."""
        self.fill()
        self.writer = Writer(self.database)
        self.writer.wait_for(ROWS // 2)
        yield
        self.writer.stop()
        if unaffected:
            self.wait_fresh([self.clusters[index] for index in unaffected])

    def recover(self, since: float) -> None:
        """Waits until all caches are fresh, and checks that commits are still followed."""
        seconds = self.wait_fresh(since=since)
        self.record(seconds)
        self.fill()
        writer = Writer(self.database)
        writer.wait_for(ROWS)
        writer.stop()
        self.wait_fresh()

    def stop(self) -> None:
        """Stops all that was started here."""
        if self.writer:
            self.writer.is_stopped = True
        if self.invalidator:
            self.invalidator.stop()
        for link in (self.database_link, *self.links):
            link.close()


@pytest.fixture(params=[*SERVERS])
def kind(request):
    """The class of a database's servers."""
    if request.param == "mysql" and not fetched("mysql"):
        pytest.skip("MySQL has not been fetched: run tests/fetch_database mysql")
    return SERVERS[request.param]


@pytest.fixture
def region(kind, tmp_path, request):
    """A region with a database of that kind."""
    database, clusters, region = None, [], None

    def record(seconds: float) -> None:
        name = request.node.name.removeprefix("test_")
        request.node.user_properties.append(("recovery", f"{name}: fresh after {seconds:.2f} s"))

    try:
        database = kind(tmp_path)
        clusters += [Cluster(name, tmp_path, ("--enable-flush-cmd",)) for name in ("one", "two")]
        region = Region(database, clusters, tmp_path, record)
        region.start_invalidator()
        yield region
    finally:
        for part in (region, *clusters, database):
            if part:
                part.stop()


def test_killed_invalidator(region):
    with region.fault():
        region.invalidator.kill()
        region.writer.wait_for(ROWS)
    start = time.monotonic()
    region.invalidator.start()
    region.recover(start)


def test_killed_router(region):
    router = region.clusters[1].router
    with region.fault(unaffected=(0,)):
        router.kill()
        region.writer.wait_for(ROWS)
    start = time.monotonic()
    router.start()
    router.wait_ready(lambda: answers(region.clusters[1].port))
    region.recover(start)


def test_killed_cache_server(region):
    """It comes back empty; deletes for the other servers of its cluster do not wait for it."""
    server = region.clusters[1].servers[0]
    with region.fault(unaffected=(0, 1)):
        server.kill()
        region.writer.wait_for(ROWS)
    start = time.monotonic()
    server.restart()
    region.recover(start)


def test_killed_database(region):
    with region.fault():
        region.database.kill()
        start = time.monotonic()
        region.database.restart()
        region.writer.wait_for(ROWS)
    region.recover(start)


def test_failover_to_a_promoted_replica(region, kind, tmp_path):
    replica = kind(tmp_path, server_id=2)
    try:
        replica.follow(region.database)
        with region.fault():
            pass
        versions = region.versions()

        def is_replicated() -> bool:
            with suppress(*replica.errors):
                return dict(replica.run("SELECT id, version FROM versions")) == versions
            return False

        eventually(is_replicated, "the replica has everything", 60)
        # One commit is read from the replica alone.
        region.fill()
        region.invalidator.kill()
        region.database.run(region.database.change(0))
        versions = region.versions()
        eventually(is_replicated, "the replica has the last commit", 60)
        region.database.kill()
        replica.promote()
        start = time.monotonic()
        region.database = replica
        region.database_link.switch(replica.port)
        region.invalidator.start()
        region.recover(start)
        assert "another server continues the commit log" in region.invalidator.log()
    finally:
        replica.stop()


def test_cut_between_the_invalidator_and_a_cluster(region):
    with region.fault(unaffected=(0,)):
        region.links[1].cut()
        region.writer.wait_for(ROWS)
    start = time.monotonic()
    region.links[1].heal()
    region.recover(start)


def test_cut_between_the_invalidator_and_the_database(region):
    with region.fault():
        region.database_link.cut()
        region.writer.wait_for(ROWS)
    start = time.monotonic()
    region.database_link.heal()
    region.recover(start)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system is mounted, which needs root")
def test_full_disk_under_the_positions(region):
    """Deletes go on; positions cannot be saved, so a crash repeats deletes, and loses none."""
    region.invalidator.stop()
    region.state_dir = region.folder / "small"
    region.state_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", region.state_dir], check=True)
    try:
        region.start_invalidator()
        filler = region.state_dir / "filler"
        with region.fault(unaffected=(0, 1)):
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))
            region.writer.wait_for(ROWS)
        eventually(lambda: "No space left" in region.invalidator.log(), "that is logged")
        region.fill()
        region.database.run(region.database.change(0))
        region.invalidator.kill()
        region.database.run(*map(region.database.change, range(ROWS)))
        start = time.monotonic()
        filler.unlink()
        region.invalidator.start()
        region.recover(start)
    finally:
        region.invalidator.stop()
        subprocess.run(["umount", region.state_dir], check=True)


def test_rotated_log(region):
    with region.fault():
        for _ in range(5):
            region.database.rotate()
            region.writer.wait_for(20)
        region.invalidator.kill()
        region.database.rotate()
        region.writer.wait_for(ROWS)
    start = time.monotonic()
    region.invalidator.start()
    region.recover(start)


def test_purged_log(region):
    """The pipelines stop and name the choices; the one that flushes the clusters goes on."""
    with region.fault():
        region.invalidator.kill()
        region.writer.wait_for(ROWS)
    region.database.purge()
    region.invalidator.start()
    assert region.invalidator.running.wait(60) == 1
    log = region.invalidator.log()
    assert "Empty the cluster" in log and "--on-position-lost flush" in log, log
    start = time.monotonic()
    region.start_invalidator("--on-position-lost", "flush")
    region.recover(start)


def test_a_statement_of_20_mb(region):
    region.database.run("CREATE TABLE large (id INT PRIMARY KEY, body LONGTEXT)")
    region.fill()
    start = time.monotonic()
    region.database.run(
        f"INSERT INTO large VALUES (1, '{'x' * (20 << 20)}') /* lookaside: row:0 */",
        region.database.change(0),
    )
    region.recover(start)


def test_a_transaction_of_10_000_keys(region):
    keys = [f"key:{index}" for index in range(10_000)]
    for cluster in region.clusters:
        assert cluster.client().set_many(dict.fromkeys(keys, "old")) == []
    named, outbox = keys[:5_000], keys[5_000:]
    start = time.monotonic()
    region.database.run(
        "BEGIN",
        region.database.change(0, *named),
        "INSERT INTO lookaside_outbox VALUES " + ",".join(f"('{key}')" for key in outbox),
        "COMMIT",
    )
    for cluster in region.clusters:
        for first in range(0, len(keys), 1_000):
            part = keys[first : first + 1_000]
            eventually(lambda part=part, cluster=cluster: not cluster.client().get_many(part), "they are gone", 60)
    region.recover(start)


def resident_bytes_max(pid: int) -> int:
    """The largest resident set of a process so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def test_a_transaction_of_many_rows(region):
    """The log is read in events of some kilobytes, compressed or not, so the transaction's size costs no memory."""
    rows = 100_000 * SCALE
    region.database.run("CREATE TABLE many (id INT PRIMARY KEY)")
    region.fill()
    region.database.run(
        "BEGIN",
        region.database.fill_numbers("many", rows),
        region.database.change(0),
        "COMMIT",
    )
    region.recover(time.monotonic())
    assert resident_bytes_max(region.invalidator.running.pid) < 128 << 20


def test_many_commits_while_a_cluster_is_down(region):
    router = region.clusters[1].router
    with region.fault(unaffected=(0,)):
        router.kill()
        region.database.commit_often(10_000 * SCALE, ROWS)
    start = time.monotonic()
    router.start()
    router.wait_ready(lambda: answers(region.clusters[1].port))
    region.recover(start)
    assert resident_bytes_max(region.invalidator.running.pid) < 128 << 20


@pytest.mark.skipif(not FAKETIME, reason="libfaketime is missing (Debian package libfaketime)")
def test_clock_stepped_back(region):
    """The time of day is used for statistics alone."""
    clock = region.folder / "clock"
    clock.write_text("+0")
    region.invalidator.stop()
    region.invalidator.options["env"] = {
        **os.environ,
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    region.invalidator.start()
    region.invalidator.wait_running(len(region.clusters))
    with region.fault():
        for offset in ("-3600", "+7200", "-86400"):
            clock.write_text(offset)
            region.writer.wait_for(ROWS // 2)
    region.recover(time.monotonic())
    assert int(stats(region.invalidator.port)["invalidations_total"]) > 0
