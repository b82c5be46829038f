"""Failovers of the database under an invalidator: whatever the primary's death loses, no cached value stays older than
the database, and the position is kept where it means the same on the replica.

The region, its fault and its recovery are those of `test_invalidator_faults.py`.
"""

import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cached_keys import fill
from invalidator_region import ROWS, Region, Writer, running_region
from processes import connect, eventually, stats
from replicated import fetched
from replicated_postgres import PostgresServer
from tools import need

# More than are committed in a test.
NUMBERED_COMMITS_MAX = 5_000

pytestmark = pytest.mark.timeout(600)


def test_failover_to_a_promoted_replica(kind, flushable_clusters, tmp_path, request):
    """Positions of MariaDB and MySQL mean the same on the replica. In PostgreSQL the slot is gone, and the replica may
    have received less than was read, so the position is lost."""
    primary = kind(tmp_path)
    replica = None
    try:
        with running_region(primary, flushable_clusters, tmp_path, request) as region:
            replica = kind.replicate(primary, tmp_path)
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
            primary.run(primary.change(0))
            versions = region.versions()
            eventually(is_replicated, "the replica has the last commit", 60)
            primary.kill()
            replica.promote()
            start = time.monotonic()
            region.database = replica
            region.database_link.switch(replica.port)
            if kind.has_positions_of_replicas:
                region.invalidator.start()
            else:
                region.start_flushing_invalidator()
            region.recover(since=start)
            if kind.has_positions_of_replicas:
                assert "another server continues the commit log" in region.invalidator.log()
    finally:
        for server in filter(None, (primary, replica)):
            server.stop()


@contextmanager
def semi_synchronous_region(kind, clusters, folder, request):
    """A region, a replica that its commits wait for, and a writer of rows without keys, to be started."""
    primary = kind(folder)
    replica = quiet = None
    try:
        with running_region(primary, clusters, folder, request, "shared") as region:
            primary.run("CREATE TABLE quiet (id INT PRIMARY KEY, n INT)")
            replica = kind.replicate(primary, folder)
            primary.wait_for_replica(replica)
            quiet = Writer(primary, lambda row: f"REPLACE INTO quiet VALUES ({row}, RAND() * 1000000)")
            yield region, replica, quiet
    finally:
        if quiet:
            quiet.is_stopped = True
        for server in filter(None, (primary, replica)):
            server.stop()


def switch_to(region, replica, *writers) -> None:
    """Applications and the invalidator use the replica from now on."""
    region.database = replica
    for writer in writers:
        writer.database = replica
    region.database_link.switch(replica.port)


def fail_over(region, replica, *writers) -> None:
    """The primary dies, and its replica takes its place."""
    region.database.kill()
    promote(region, replica, *writers)


def promote(region, replica, *writers) -> None:
    """The replica takes the place of the primary, which is dead."""
    eventually(replica.has_applied_all, "the replica has executed what it received", 60)
    replica.take_slot(region.database)
    replica.promote()
    switch_to(region, replica, *writers)


def check_position_is_kept(region) -> None:
    log = region.invalidator.log()
    assert "another server continues the commit log" in log or "a promoted standby continues the log" in log
    assert "deletes are lost" not in log


@pytest.mark.parametrize("kind", ["mariadb", "mysql"], indirect=True, scope="module")
def test_failover_under_load(kind, flushable_clusters, tmp_path, request):
    """The primary dies in the middle of commits. Readers have seen only what the replica has, and so has the
    invalidator: it goes on there."""
    with semi_synchronous_region(kind, flushable_clusters, tmp_path, request) as (region, replica, quiet):
        with region.fault():
            quiet.wait_for(ROWS)
            start = time.monotonic()
            fail_over(region, replica, region.writer, quiet)
            region.writer.wait_for(ROWS)
            quiet.stop()
        region.recover(since=start)
        check_position_is_kept(region)


@pytest.mark.parametrize("kind", ["postgres"], indirect=True, scope="module")
def test_failover_under_load_without_the_slot(kind, flushable_clusters, tmp_path, request):
    """The standby has no slot, may lack commits that readers have seen, and commits go on there. Nothing reads them
    until the invalidator has a new slot; it flushes what was filled until then."""
    primary = kind(tmp_path)
    replica = None
    try:
        with running_region(primary, flushable_clusters, tmp_path, request, "shared") as region:
            replica = kind.replicate(primary, tmp_path)
            with region.fault():
                start = time.monotonic()
                primary.kill()
                replica.promote()
                switch_to(region, replica, region.writer)
                region.writer.wait_for(ROWS)
                assert region.invalidator.running.wait(60) == 1
                region.start_flushing_invalidator()
                region.writer.wait_for(ROWS)
            region.recover(since=start)
    finally:
        for server in filter(None, (primary, replica)):
            server.stop()


class NumberedWriter(Writer):
    """Its commits name keys of their own, too, which nothing fills again: `commit:N`."""

    def __init__(self, database: PostgresServer) -> None:
        super().__init__(database, lambda row: self.database.change(row, f"row:{row}", f"commit:{self.commits}"))


class PostgresThatCopiesSlots(PostgresServer):
    """The fetched PostgreSQL 18, of which a standby copies the slot, with the settings that the documents have."""

    @classmethod
    def installed(cls) -> Path | None:
        return fetched("postgres18").parent / "root"

    @classmethod
    def replicate(cls, primary: PostgresServer, directory: Path) -> PostgresServer:
        primary.run("SELECT pg_create_physical_replication_slot('standby', true)")
        settings = ("sync_replication_slots=on", "hot_standby_feedback=on", "primary_slot_name=standby")
        return cls(directory, server_id=2, primary=primary, settings=settings)

    def wait_for_replica(self, replica: PostgresServer) -> None:
        super().wait_for_replica(replica)
        self.run("ALTER SYSTEM SET synchronized_standby_slots = 'standby'", "SELECT pg_reload_conf()")

        def is_copied() -> bool:
            # The standby copies the slot when decoding can begin at a later place than where the standby's log begins.
            self.run("SELECT pg_log_standby_snapshot()", "SELECT lookaside_invalidate('any')")
            copied = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = 'lookaside'"
            return replica.run(copied) == [(True,)]

        eventually(is_copied, "the standby has copied the slot", 120)

    def take_slot(self, primary: PostgresServer) -> None:
        """Does nothing: the server has copied it."""


def numbered_keys(region: Region) -> set[tuple[int, int]]:
    """The numbers of the keys `commit:N` that are cached, each with the port of its server."""
    keys = [f"commit:{number}" for number in range(NUMBERED_COMMITS_MAX)]
    ports = [server.port for cluster in region.clusters for server in cluster.servers]
    return {(port, int(key.removeprefix("commit:"))) for port in ports for key in connect(port).get_many(keys)}


def check_failover_with_the_slot(kind, clusters, folder, request, setting: str, is_behind: bool) -> None:
    """The primary dies in the middle of commits, and its synchronous standby has the slot. Each delete arrives, also
    those of the last commits before the death and of the first ones after the promotion, and nothing else is deleted.
    With `is_behind` the last commits can be read from the standby alone."""
    primary = kind(folder)
    replica = numbered = None
    try:
        with running_region(primary, clusters, folder, request, setting) as region:
            replica = kind.replicate(primary, folder)
            primary.wait_for_replica(replica)
            region.invalidator.wait_running(len(clusters))
            fill(clusters, [f"commit:{number}" for number in range(NUMBERED_COMMITS_MAX)])
            filled = numbered_keys(region)
            with region.fault():
                numbered = NumberedWriter(primary)
                numbered.wait_for(ROWS)
                if is_behind:
                    region.database_link.cut()
                    numbered.wait_for(ROWS)
                start = time.monotonic()
                primary.kill()
                pending = {number for _, number in numbered_keys(region) if number < numbered.commits}
                region.record(f"{len(pending)} of {numbered.commits} numbered deletes pending at the death")
                assert not is_behind or len(pending) >= ROWS
                promote(region, replica, region.writer, numbered)
                region.database_link.heal()
                region.writer.wait_for(ROWS)
                numbered.wait_for(ROWS)
                numbered.stop()
            region.recover(since=start)
            later = {(port, number) for port, number in filled if number >= numbered.commits}
            assert later, f"{numbered.commits} commits are more than the keys"
            eventually(lambda: numbered_keys(region) <= later, "all deletes have arrived", 30)
            assert numbered_keys(region) == later, "nothing else was deleted"
            check_position_is_kept(region)
            found = stats(region.invalidator.port)
            assert {found[name] for name in ("positions_lost", "spool_gaps")} == {"0"}
            servers = [server for cluster in clusters for server in (*cluster.servers, cluster.gutter)]
            assert {stats(server.port)["cmd_flush"] for server in servers} == {"0"}
    finally:
        if numbered:
            numbered.is_stopped = True
        for server in filter(None, (primary, replica)):
            server.stop()


IS_BEHIND = pytest.mark.parametrize("is_behind", [False, True], ids=["reading", "behind"])


@IS_BEHIND
@pytest.mark.parametrize("kind", ["postgres"], indirect=True, scope="module")
def test_failover_under_load_with_the_slot(kind, is_behind, flushable_clusters, tmp_path, request):
    """The standby is given the primary's slot, as before version 17. Positions are in files: a renewal of the shared
    state waits for no standby, and might be read before the standby has it."""
    check_failover_with_the_slot(kind, flushable_clusters, tmp_path, request, "statements", is_behind)


@IS_BEHIND
def test_failover_under_load_with_a_copied_slot(is_behind, flushable_clusters, tmp_path, request):
    """From version 17 on the server copies the slot, and nothing is read that the standby lacks, whatever it is."""
    need("postgres18")
    kind = PostgresThatCopiesSlots
    check_failover_with_the_slot(kind, flushable_clusters, tmp_path, request, "shared", is_behind)


@pytest.mark.parametrize("kind", ["postgres"], indirect=True, scope="module")
def test_failover_to_a_standby_without_the_log_of_the_slot(kind, flushable_clusters, tmp_path, request):
    """The standby was made while the invalidator was down, from a backup. It never had the log at which decoding begins
    for the slot that it is given, and its server says so only to the reader. Nothing can be read from that slot any
    more: the position is lost. The invalidator tried again each second, for ever, and deleted nothing."""
    primary = kind(tmp_path)
    replica = None
    try:
        with running_region(primary, flushable_clusters, tmp_path, request) as region:
            region.fill()
            region.invalidator.kill()
            replica = kind.replicate(primary, tmp_path)
            primary.wait_until_synchronous()
            primary.run(primary.change(0))
            start = time.monotonic()
            fail_over(region, replica)
            region.invalidator.start()
            eventually(lambda: "requested WAL segment" in replica.log(), "the standby lacks the log", 60)
            eventually(lambda: region.invalidator.running.poll() == 1, "the position is lost", 30)
            region.start_flushing_invalidator()
            region.recover(since=start)
            # Another slot has taken its place: one loss for each cluster, and no more.
            confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots"
            before = replica.run(confirmed)
            replica.run(replica.change(1))
            eventually(lambda: replica.run(confirmed) != before, "the slot is confirmed further", 30)
            found = stats(region.invalidator.port)
            assert (found["positions_lost"], found["spool_gaps"]) == (str(len(region.clusters)), "0")
    finally:
        for server in filter(None, (primary, replica)):
            server.stop()


@pytest.mark.parametrize("kind", ["mariadb", "mysql"], indirect=True, scope="module")
def test_failover_without_the_last_commits_without_keys(kind, flushable_clusters, tmp_path, request):
    """The position passed them although no replica had them, the renewals of the shared state among them, and was lost
    by the failover."""
    with semi_synchronous_region(kind, flushable_clusters, tmp_path, request) as (region, replica, quiet):
        primary = region.database
        region.fill()
        quiet.wait_for(1)
        replica.stop_receiving()

        def is_read() -> bool:
            states = [row[0] or "" for row in primary.run("SELECT state FROM information_schema.processlist")]
            sent = [state for state in states if "has sent all binlog" in state]
            return any("semi-sync ACK" in state for state in states) and len(sent) >= len(region.clusters)

        eventually(is_read, "a commit waits for the replica, and the invalidator has it", 60)
        start = time.monotonic()
        fail_over(region, replica, quiet)
        quiet.wait_for(1)
        quiet.stop()
        region.recover(since=start)
        check_position_is_kept(region)
