"""A database, two clusters and two or more invalidators, of which one is active."""

import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from processes import PROGRAMS, Cluster, Process, answers, connect, eventually, free_port, stats
from replicated import ACCEPTANCE

ROWS = 3_000
TAKEOVER_S = 5.0
RECOVERY_S = 60.0


def url_of(database, port: int | None = None) -> str:
    """As `--source` takes it, by another port if given, with the account of the invalidators."""
    scheme, parameters = ("postgres", "") if database.kind == "postgres" else ("mysql", f"?{ACCEPTANCE}")
    return f"{scheme}://lookaside:secret@127.0.0.1:{port or database.port}/app{parameters}"


class Writer(threading.Thread):
    """Commits a change of one row after another, through errors, and each at least once."""

    def __init__(self, database, rows: range) -> None:
        super().__init__(daemon=True)
        self.database, self.rows = database, rows
        self.commits = 0
        # However quick the database is, some commits are left for each fault.
        self.allowed = 0.0
        self.is_stopped = False
        self.start()

    def run(self) -> None:
        while self.commits < len(self.rows) and not self.is_stopped:
            with (
                suppress(*self.database.errors),
                self.database.connect() as connection,
                connection.cursor() as cursor,
            ):
                while self.commits < len(self.rows) and not self.is_stopped:
                    eventually(self.may_commit, "more commits are allowed", 120)
                    cursor.execute(self.database.change(self.rows[self.commits]))
                    self.commits += 1

    def may_commit(self) -> bool:
        """Whether the next commit is allowed; an end is."""
        return self.is_stopped or self.commits < self.allowed * len(self.rows)

    def wait_for(self, share: float) -> None:
        """Returns after this share of all commits; a tenth more follows."""
        self.allowed = share + 0.1
        eventually(lambda: self.commits >= share * len(self.rows), f"{share:.0%} of the commits", 120)


SHARED = ("--shared-state", "source")


class Member(Process):
    """An invalidator that may share its state with others."""

    def __init__(self, name: str, url: str, clusters: list[Cluster], folder: Path, *arguments: str) -> None:
        self.port, self.clusters = free_port(), clusters
        command = [
            PROGRAMS / "lookaside-invalidator", "--source", url, "--state-dir", folder / f"state-{name}",
            "--listen", f"127.0.0.1:{self.port}", *arguments,
        ]  # fmt: skip
        for cluster in clusters:
            command += ["--cluster", f"{cluster.name}=127.0.0.1:{cluster.port}"]
        super().__init__(f"invalidator-{name}", command, folder)
        self.wait_ready(lambda: answers(self.port))

    def is_active(self) -> bool:
        """Whether it delivers."""
        if self.running.poll() is not None:
            return False
        found = stats(self.port)
        states = [value for name, value in found.items() if name.endswith(":state")]
        return found["role"] == "active" and set(states) == {"running"}

    def role(self) -> str:
        """`active` or `standby`."""
        return stats(self.port)["role"]


class PairRegion:
    """A database, two clusters and some invalidators."""

    def __init__(self, database, clusters: list[Cluster], folder: Path, record) -> None:
        self.database, self.clusters, self.folder, self.record = database, clusters, folder, record
        self.members: list[Member] = []
        self.writer: Writer | None = None
        self.arguments = SHARED
        self.url = url_of(database)
        database.create_versions(ROWS)
        self.set_up_account()

    def set_up_account(self) -> None:
        """Creates the table, and gives an account of the invalidator's own what the documents list."""
        postgres = ["CREATE ROLE lookaside LOGIN REPLICATION PASSWORD 'secret'"]
        log = {"mariadb": "BINLOG MONITOR, SLAVE MONITOR", "mysql": "REPLICATION CLIENT"}.get(self.database.kind)
        binlog = [
            "CREATE USER lookaside@'%' IDENTIFIED BY 'secret'",
            f"GRANT REPLICATION SLAVE, {log} ON *.* TO lookaside@'%'",
        ]
        self.database.run(*(binlog if log else postgres))
        self.run_setup()

    def run_setup(self) -> None:
        """Creates the table if it is missing, and gives the account the rights on it."""
        command = [
            PROGRAMS / "lookaside", "invalidator", "setup", "--shared-state", "--account", "lookaside", "--database",
            self.database.url_at(self.database.port),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def add(self, name: str, *arguments: str, url: str | None = None) -> Member:
        """Starts one more invalidator."""
        arguments = arguments or self.arguments
        self.members.append(Member(name, url or self.url, self.clusters, self.folder, *arguments))
        return self.members[-1]

    def add_pair(self, url: str | None = None) -> tuple[Member, Member]:
        """Starts an invalidator, which reaches the database at `url` if that is given, and a standby."""
        active = self.add("a", url=url)
        eventually(active.is_active, f"the first is active: {active.log()}")
        standby = self.add("b")
        eventually(lambda: "this is a standby" in standby.log(), "the second one has seen it")
        return active, standby

    def begin_with_pair(self, url: str | None = None) -> tuple[Member, Member, Writer]:
        """Starts both as `add_pair` does, fills all caches, and returns after the first commits."""
        active, standby = self.add_pair(url)
        writer = self.begin()
        writer.wait_for(0.2)
        return active, standby, writer

    def row(self) -> tuple:
        """The holder and the counter."""
        return tuple(self.database.run("SELECT holder, counter FROM lookaside_invalidator")[0])

    def wait_takeover(self, standby: Member, since: float, within: float = TAKEOVER_S) -> float:
        """Returns when `standby` delivers: the seconds since then."""
        eventually(standby.is_active, f"the standby is active:\n{standby.log()}", 30)
        seconds = time.monotonic() - since
        self.record(f"active after {seconds:.2f} s")
        assert seconds < within, f"{seconds:.2f} s"
        return seconds

    def begin(self) -> Writer:
        """Fills all caches and begins to change every row."""
        values = {f"row:{row}": str(version) for row, version in self.versions().items()}
        for cluster in self.clusters:
            assert cluster.client(30).set_many(values) == []
        self.writer = Writer(self.database, range(ROWS))
        return self.writer

    def versions(self) -> dict[int, int]:
        """The versions of all rows in the database."""
        return dict(self.database.run("SELECT id, version FROM versions"))

    def stale(self, cluster: Cluster, versions: dict[int, int]) -> list[str]:
        """Cached values that are older than these versions, in any process of a cluster."""
        keys = [f"row:{row}" for row in versions]
        found = []
        for port in [*cluster.ports, *(server.port for server in (*cluster.servers, cluster.gutter))]:
            client = connect(port, 30)
            for first in range(0, len(keys), 1_000):
                found += [
                    f"{cluster.name}: {key} = {value.decode()}, in the database {versions[int(key[4:])]}"
                    for key, value in client.get_many(keys[first : first + 1_000]).items()
                    if int(value) < versions[int(key[4:])]
                ]
            client.close()
        return found

    def finish(self) -> None:
        """Waits until all is committed, and no cache holds an older value than the database."""
        self.writer.allowed = 1.0
        self.writer.join(120)
        assert not self.writer.is_alive() and self.writer.commits == ROWS
        versions = self.versions()
        assert min(versions.values()) > 0
        start = time.monotonic()
        while left := [stale for cluster in self.clusters for stale in self.stale(cluster, versions)]:
            assert time.monotonic() < start + RECOVERY_S, f"{len(left)} values stay stale: {left[:5]}"
        active = [member for member in self.members if member.is_active()]
        assert len(active) == 1

    def losses(self) -> list[str]:
        """What the invalidators that run have counted as lost."""
        found = [stats(member.port) for member in self.members if member.running.poll() is None]
        return [name for one in found for name in ("positions_lost", "spool_gaps") if one[name] != "0"]

    def stop(self) -> None:
        """Stops all that was started here."""
        if self.writer:
            self.writer.is_stopped = True
        for member in self.members:
            with suppress(ProcessLookupError):
                member.thaw()
            member.stop()
