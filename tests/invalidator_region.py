"""A database, two clusters and an invalidator between them, of which a test breaks one part after another."""

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

from forwarder import Forwarder
from look_aside import Reader
from processes import PROGRAMS, Cluster, Invalidator, answers, connect, eventually
from pymemcache.exceptions import MemcacheServerError
from recovery_log import Recovery, RecoveryLog
from replicated import ReplicatedServer

ROWS = 200
# Rows in the order in which they are changed. It is random, so that whenever something happens, some rows have been
# changed just before and are not changed again soon: a later delete of the same row would hide that one was lost.
ORDER = random.Random(1).choices(range(ROWS), k=10_000)
RECOVERY_S = 60.0
# How long clusters that a fault does not affect may take after the last commit. Most take less than half a second.
UNAFFECTED_S = 5.0
# What the invalidator may take in all, whatever fails.
MEMORY_BYTES_MAX = 64 << 20


class Writer(threading.Thread):
    """Commits changes of one row after another, through errors, until it is stopped."""

    def __init__(self, database: ReplicatedServer, change=None) -> None:
        """`change` gives the statement for a row; by default the one that names its key."""
        super().__init__(daemon=True)
        self.database = database
        self.change = change or (lambda row: self.database.change(row))
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
                    cursor.execute(self.change(ORDER[self.commits % len(ORDER)]))
                    self.commits += 1

    def recent_rows(self, rows: int) -> list[int]:
        """The row that is being changed, and those before it."""
        commits = self.commits
        return [ORDER[index % len(ORDER)] for index in range(commits - rows + 1, commits + 1)]

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

    rows = ROWS

    def __init__(
        self,
        database: ReplicatedServer,
        clusters: list[Cluster],
        folder: Path,
        record,
        setting: str,
        test: str = "",
        recoveries: RecoveryLog | None = None,
    ) -> None:
        """With the setting `rules` keys are named by row rules, not by statements; with `shared` positions are in a
        table of the database. `recoveries` gets those of the test of that name."""
        self.database, self.clusters, self.folder, self.record = database, clusters, folder, record
        self.setting, self.test, self.recoveries = setting, test, recoveries or RecoveryLog(None)
        self.database_link = Forwarder(database.port)
        self.links = [Forwarder(cluster.port) for cluster in clusters]
        self.state_dir = folder / "state"
        self.invalidator: Invalidator | None = None
        self.writer: Writer | None = None
        self.readers: list[Reader] = []
        self.has_readers = True
        self.has_fault = False
        # When the commits of the last fault ended.
        self.commits_ended = 0.0
        self.arguments: tuple[str, ...] = ()
        database.has_rules = setting == "rules"
        database.create_versions(ROWS)
        match setting:
            case "rules":
                rules = folder / "rules.toml"
                rules.write_text(f"[[rule]]\ntable = '{database.schema}.versions'\nkeys = ['row:{{id}}']\n")
                self.arguments = ("--rules", str(rules))
                if database.kind == "postgres":
                    self.set_up("--rules", rules)
            case "shared":
                self.arguments = ("--shared-state", "source")
                self.set_up("--shared-state", "--account", database.create_account())

    def set_up(self, *arguments: object) -> None:
        """Prepares the database."""
        url = self.database.url_at(self.database.port)
        command = [PROGRAMS / "lookaside", "invalidator", "setup", "--database", url, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def start_invalidator(self, *arguments: str) -> None:
        """Starts the invalidator, which reaches everything through the forwarders."""
        behind = [
            SimpleNamespace(name=cluster.name, ports=[link.port])
            for cluster, link in zip(self.clusters, self.links, strict=True)
        ]
        url = self.database.url_at(self.database_link.port)
        self.invalidator = Invalidator(url, behind, self.state_dir, self.folder, *self.arguments, *arguments)

    def start_flushing_invalidator(self) -> None:
        """Starts the invalidator after its position was lost: it stops and names the choices, and flushes the clusters
        with --on-position-lost."""
        self.invalidator.start()
        assert self.invalidator.running.wait(60) == 1
        log = self.invalidator.log()
        assert "Empty the cluster" in log and "--on-position-lost flush" in log, log
        self.start_invalidator("--on-position-lost", "flush")

    def restart_router(self, index: int) -> None:
        """Starts the router of a cluster again, after a kill."""
        cluster = self.clusters[index]
        cluster.router.start()
        cluster.router.wait_ready(lambda: answers(cluster.port))

    def fill(self) -> None:
        """Stores the newest version of each row in each cluster."""
        values = {f"row:{row}": str(version) for row, version in self.versions().items()}

        def is_filled(cluster: Cluster) -> bool:
            # A router whose server is slow at this moment answers with an error.
            with suppress(MemcacheServerError):
                # A delete that has just arrived refuses to be followed by `add`, not by `set`.
                return cluster.client().set_many(values) == []
            return False

        for cluster in self.clusters:
            eventually(lambda cluster=cluster: is_filled(cluster), f"{cluster.name} is filled", RECOVERY_S)

    def versions(self) -> dict[int, int]:
        """The versions of all rows in the database."""
        return dict(self.database.run("SELECT id, version FROM versions"))

    def stale(self, cluster: Cluster, versions: dict[int, int]) -> list[str]:
        """Cached values that are older than these versions, in any process of a cluster, and reads that failed; except
        during a fault, also processes that do not answer."""
        found = []
        for port in cluster.all_ports():
            if not answers(port):
                if not self.has_fault:
                    found.append(f"{cluster.name}: the process at port {port} does not answer")
                continue
            try:
                found += [f"{cluster.name}: {text}" for text in self.old_values(port, versions)]
            except MemcacheServerError as error:
                # A router whose server is slow at this moment.
                found.append(f"{cluster.name}: {error}")
        return found

    def old_values(self, port: int, versions: dict[int, int]) -> list[str]:
        """Cached values of a process that are older than these versions."""
        cached = connect(port).get_many([f"row:{row}" for row in versions])
        return [
            f"{key} = {value.decode()}, in the database {versions[int(key[4:])]}"
            for key, value in cached.items()
            if int(value) < versions[int(key[4:])]
        ]

    def count_old_values(self) -> int:
        """How many cached values are older than the database, in all processes that answer."""
        versions, count = self.versions(), 0
        for cluster in self.clusters:
            for port in filter(answers, cluster.all_ports()):
                with suppress(MemcacheServerError):
                    count += len(self.old_values(port, versions))
        return count

    def wait_fresh(
        self, clusters: list[Cluster] | None = None, since: float | None = None, limit_s: float = RECOVERY_S
    ) -> float:
        """Returns when no cache holds an older value than the database, the seconds since then or since a moment."""
        start = since or time.monotonic()
        versions = self.versions()
        for cluster in clusters or self.clusters:
            eventually(
                lambda cluster=cluster: not self.stale(cluster, versions),
                f"{cluster.name} is as new as the database",
                limit_s,
            )
        return time.monotonic() - start

    def start_load(self) -> None:
        """Starts commits, and a reader at each router."""
        self.writer = Writer(self.database)
        if self.has_readers:
            self.readers = [Reader(self, port) for cluster in self.clusters for port in cluster.ports]

    def stop_readers(self) -> int:
        """Returns when nothing more is filled, how many values were."""
        for reader in self.readers:
            # All at the same time: each may pause before it notices.
            reader.stop_requested.set()
        for reader in self.readers:
            reader.stop()
        return sum(reader.fills for reader in self.readers)

    @contextmanager
    def fault(self, *, unaffected: tuple[int, ...] = ()):
        """Runs the body, which injects the fault, in the middle of commits and reads; clusters that it does not affect
        catch up while it lasts. The caller then calls `recover`, until which there are reads."""
        self.fill()
        self.start_load()
        self.writer.wait_for(ROWS // 2)
        self.has_fault = True
        yield
        self.writer.stop()
        self.commits_ended = time.monotonic()
        if unaffected:
            clusters = [self.clusters[index] for index in unaffected]
            unaffected_s = self.wait_fresh(clusters, limit_s=UNAFFECTED_S)
            self.record(f"unaffected clusters fresh after {unaffected_s:.2f} s")

    def recover(
        self, end_fault: Callable[[], object] | None = None, since: float | None = None, size: int | None = None
    ) -> None:
        """Ends the fault, which had that size, if it has one, waits until all caches are fresh, and checks that commits
        are still followed in little memory. The time is counted from now, or from the moment `since`."""
        # Without an end to come the time may run already.
        old_values = self.count_old_values() if end_fault else None
        start = since or time.monotonic()
        if end_fault:
            end_fault()
        self.has_fault = False
        fills = self.stop_readers()
        recovery_s = self.wait_fresh(since=start)
        self.fill()
        self.start_load()
        self.writer.wait_for(ROWS)
        eventually(lambda: all(reader.fills for reader in self.readers), "each reader has filled something")
        self.writer.stop()
        self.stop_readers()
        self.wait_fresh()
        memory_bytes = self.invalidator.resident_bytes_max()
        self.record(f"fresh after {recovery_s:.2f} s, {fills} fills, {memory_bytes >> 20} MiB")
        assert memory_bytes < MEMORY_BYTES_MAX
        self.recoveries.add(
            Recovery(
                test=self.test,
                setting=self.setting,
                database=self.database.kind,
                size=size,
                old_values=old_values,
                seconds=recovery_s,
                after_commits_s=start + recovery_s - self.commits_ended if self.commits_ended > start else None,
                rows=self.rows,
                processes=sum(len(cluster.processes()) for cluster in self.clusters),
                fills=fills,
                memory_bytes=memory_bytes,
            )
        )

    def stop(self) -> None:
        """Stops all that was started here."""
        if self.writer:
            self.writer.is_stopped = True
        if self.invalidator:
            self.invalidator.stop()
        for link in (self.database_link, *self.links):
            link.close()
        self.stop_readers()


@contextmanager
def running_region(database, clusters, folder, request, setting="statements"):
    """A region whose invalidator reads. What a recovery took is in the summary of the run, and in the file that
    LOOKASIDE_RECOVERIES names."""
    test = request.node.originalname.removeprefix("test_")

    def record(cost: str) -> None:
        request.node.user_properties.append(("recovery", f"{request.node.name.removeprefix('test_')}: {cost}"))

    region = Region(database, clusters, folder, record, setting, test, RecoveryLog.of(os.environ))
    try:
        region.start_invalidator()
        yield region
    finally:
        region.stop()
