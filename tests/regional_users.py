"""Users of some regions with remote markers: in each region one that writes at the master, and one that reads what the
first has written, and what the other regions have."""

import contextlib
import subprocess
import threading
from collections import Counter

import psycopg
import pymysql
from lookaside import Client, LookasideError, RegionalClient
from processes import eventually, stats
from region_pair import (
    ROWS,
    DatabaseServer,
    LogicalRegionTrio,
    PairedRegion,
    RegionPair,
    RegionTrio,
    connect_application,
)

# Longer than the router waits for a server.
TIMEOUT_S = 10
# MariaDB's error of a statement that a read-only server refuses.
READ_ONLY = 1290


class RegionalUsers:
    """Each user is a thread. A row is written in one region alone; all rows are read in each."""

    def __init__(self, regions: list[PairedRegion], master: DatabaseServer) -> None:
        self.regions = regions
        # The database that they use as the master.
        self.masters = {"write": master, "read": master}
        self.acknowledged = Counter()
        # The version of each row that every later read of its writer's region must have, as its write is complete.
        self.complete = Counter()
        # Writes of each row at each database, refused ones too.
        self.tried = Counter()
        # Writes that failed, by the name of the error.
        self.refusals = Counter()
        # Reads of all rows, by region.
        self.rounds = Counter()
        # Reads by where they came from: `master`, `replica` or `cache`.
        self.sources = Counter()
        # Reads that are older than a complete write of their region.
        self.stale: list[str] = []
        # Rows whose version went back.
        self.reversals: list[str] = []
        self.failures: list[BaseException] = []
        # Rows whose markers may stay for an hour, as it is unknown whether a transaction has named them.
        self.undecided: set[int] = set()
        self.is_stopped, self.may_write = threading.Event(), threading.Event()
        self.may_write.set()
        targets = [(work, region) for region in regions for work in (self.write, self.read)]
        self.threads = [threading.Thread(target=self.record_failure, args=target, daemon=True) for target in targets]
        for thread in self.threads:
            thread.start()

    def record_failure(self, work, region: PairedRegion) -> None:
        try:
            with Client([f"127.0.0.1:{region.cluster.port}"], timeout=TIMEOUT_S) as client:
                work(region, RegionalClient(client))
        except BaseException as failure:
            self.failures.append(failure)

    def rows_of(self, region: PairedRegion) -> list[int]:
        """The rows that are written in a region."""
        return list(range(self.regions.index(region), ROWS, len(self.regions)))

    def write(self, region: PairedRegion, client: RegionalClient) -> None:
        rows, count = self.rows_of(region), 0
        while not self.is_stopped.is_set():
            master = self.masters["write"]
            with (
                contextlib.suppress(*master.errors),
                contextlib.closing(connect_application(master)) as connection,
            ):
                while self.masters["write"] is master and not self.is_stopped.is_set():
                    if self.may_write.wait(0.05):
                        count += 1
                        self.write_row(client, master, connection, rows[count % len(rows)])

    def write_row(self, client: RegionalClient, master: DatabaseServer, connection, row: int) -> None:
        """Fails with the error of the database."""
        try:
            self.write_marked_row(client, master, connection, row)
        except LookasideError:
            # A server of the cluster did not answer in time; if it is that of the markers, nothing is written.
            self.undecided.add(row)

    def write_marked_row(self, client: RegionalClient, master: DatabaseServer, connection, row: int) -> None:
        """The same. Fails, too, if a marker cannot be set or removed, or the row not be deleted in the cluster."""
        begun = client.begin_write([f"row:{row}"])
        try:
            connection.cursor().execute(master.change(row, *begun.keys))
        except master.errors as error:
            self.refusals[type(error).__name__] += 1
            self.is_stopped.wait(0.01)
            if is_refusal(error):
                begun.abort()
            else:
                self.undecided.add(row)
                begun.finish()
            raise
        finally:
            self.tried[master.port, row] += 1
        self.acknowledged[row] += 1
        begun.finish()
        # Its only writer is this one.
        self.complete[row] = self.acknowledged[row]

    def read(self, region: PairedRegion, client: RegionalClient) -> None:
        own, newest = set(self.rows_of(region)), Counter()
        with contextlib.ExitStack() as stack:
            connections = {}

            def connection_to(database: DatabaseServer):
                if database.port not in connections:
                    connections[database.port] = stack.enter_context(contextlib.closing(database.connect()))
                return connections[database.port]

            def load(row: int, source: str) -> str:
                self.sources[source] += 1
                database = {"master": self.masters["read"], "replica": region.database}[source]
                cursor = connection_to(database).cursor()
                cursor.execute("SELECT version FROM versions WHERE id = %s", (row,))
                return str(cursor.fetchone()[0])

            while not self.is_stopped.is_set():
                for row in range(ROWS):
                    least = self.complete[row] if row in own else 0
                    version = int(client.get_or_load(f"row:{row}", lambda source, row=row: load(row, source)))
                    if version < least:
                        self.stale.append(f"{region.name}: row {row} is {version}, not {least}")
                    if version < newest[row]:
                        self.reversals.append(f"{region.name}: row {row} from {newest[row]} to {version}")
                    newest[row] = version
                self.rounds[region.name] += 1

    def leave_markers(self) -> None:
        """In each region for half of the rows that are written there, as writers do that die before their transactions
        begin: misses of these rows are read from the master for an hour."""
        for region in self.regions:
            with Client([f"127.0.0.1:{region.cluster.port}"], timeout=TIMEOUT_S) as client:
                regional = RegionalClient(client)
                for row in self.rows_of(region)[::2]:
                    self.undecided.add(row)
                    regional.begin_write([f"row:{row}"])

    def marked_rows(self) -> list[str]:
        """Rows that are read from the master, but for those that have to be for an hour: `undecided`, or written more
        often than a list of markers has places while their region's replica got nothing."""
        marked = []
        for region in self.regions:
            with Client([f"127.0.0.1:{region.cluster.port}"], timeout=TIMEOUT_S) as client:
                rows = [row for row in self.rows_of(region) if row not in self.undecided]
                every = {row: f"marker:row:{row}|#|{0:016}" for row in rows}
                full = client.get_many(every.values())
                keys = [f"row:{row}" for row in rows if every[row] not in full]
                sources = RegionalClient(client).find_sources(keys)
            marked += [f"{region.name}: {key}" for key, source in sources.items() if source == "master"]
        return marked

    def direct(self, master: DatabaseServer) -> None:
        """Directs all users to another master, one after the other, as the rollout of an application does. In the end
        no call is left that began before, and no user writes until `resume_writes`.

        The writers try each row there before the readers are directed: were the writes accepted, the readers would load
        what they have replaced.
        """
        self.masters["write"] = master
        self.wait_for(lambda: all(self.tried[master.port, row] for row in range(ROWS)), "writes at the new master")
        self.may_write.clear()
        self.wait_for_rounds(*[region.name for region in self.regions])
        self.masters["read"] = master
        self.wait_for_rounds(*[region.name for region in self.regions])

    def resume_writes(self) -> None:
        """After `direct`."""
        self.may_write.set()

    def wait_for_commits(self, count: int) -> None:
        """Returns after that number of further commits."""
        least = self.acknowledged.total() + count
        self.wait_for(lambda: self.acknowledged.total() >= least, f"{count} commits")

    def wait_for_rounds(self, *regions: str) -> None:
        """Returns when the readers of these regions have read every row, beginning now, at least once."""
        least = {region: self.rounds[region] + 2 for region in regions}
        self.wait_for(lambda: all(self.rounds[region] >= least[region] for region in regions), f"reads in {regions}")

    def wait_for(self, condition, what: str) -> None:
        eventually(lambda: condition() or self.failures, what, 120)
        assert not self.failures, self.failures

    def stop(self) -> None:
        self.is_stopped.set()
        for thread in self.threads:
            thread.join(90)
            assert not thread.is_alive()
        assert not self.failures, self.failures


def is_refusal(error: Exception) -> bool:
    """Whether the database says that it has not executed the statement. Otherwise it may have."""
    is_read_only = isinstance(error, pymysql.MySQLError) and error.args[0] == READ_ONLY
    return is_read_only or isinstance(error, psycopg.errors.InsufficientPrivilege)


def direct_users(pair: RegionPair, users: RegionalUsers, shell: subprocess.Popen) -> None:
    """Directs the users to west when the commands of the page in `shell` demand it. No user writes until
    `resume_writes`."""
    pair.rollout.wait_until_begun(shell)
    with pair.old_master_behind():
        users.direct(pair.west.database)
    pair.rollout.end()


def wait_promoted(shell: subprocess.Popen, regions: list[PairedRegion]) -> None:
    """Waits for the end of the commands. `regions` have everything then, and no cache of theirs is left old."""
    output, _ = shell.communicate(timeout=120)
    assert shell.returncode == 0, output
    versions = [region.versions() for region in regions]
    assert all(had == versions[0] for had in versions), "nothing is written before all have everything"
    for region in regions:
        eventually(region.is_fresh, f"no cache of {region.name} is old after the promotion", 60)


def check_follows(region: PairedRegion, master: DatabaseServer) -> None:
    """A region gets what is committed at the master: the row, its delete, and the removal of a write's marker."""
    region.fill()
    before = region.cached()[7]
    with Client([f"127.0.0.1:{region.cluster.port}"], timeout=TIMEOUT_S) as client:
        regional = RegionalClient(client)
        begun = regional.begin_write(["another"])
        assert regional.find_sources(["another"]) == {"another": "master"}
        master.run(master.change(7))
        master.run(master.insert_into_outbox(*begun.keys))
        begun.finish()
        replicated = {"another": "replica"}
        eventually(lambda: regional.find_sources(["another"]) == replicated, "the write's marker is removed", 60)
    eventually(lambda: 7 not in region.cached(), "the old value is deleted", 60)
    assert region.versions()[7] == before + 1


def check_promoted(trio: RegionTrio | LogicalRegionTrio, users: RegionalUsers) -> None:
    """After a promotion of west under load, whose users have stopped: all regions have all acknowledged commits, their
    caches and markers agree with them, and north does not need the old master."""
    expected = {row: users.acknowledged[row] for row in range(ROWS)}
    assert trio.west.versions() == expected, "every acknowledged commit is there, once"
    for region in (trio.east, trio.north):
        eventually(lambda region=region: region.versions() == expected, f"{region.name} follows", 60)
    for region in trio.regions:
        eventually(region.is_fresh, f"no cache of {region.name} is old", 60)
    eventually(lambda: users.marked_rows() == [], "all markers of replicated writes are removed", 60)
    assert users.stale == [] and users.reversals == []
    assert users.sources["master"] > 0 and users.sources["replica"] > 0
    assert all(stats(region.invalidator.port)["positions_lost"] == "0" for region in trio.regions)
    trio.east.database.kill()
    check_follows(trio.north, trio.west.database)
    eventually(lambda: trio.monitor.metric("watching") == 1, "the monitor reads on")
    assert trio.monitor.metric("positions_lost_total") == 0
