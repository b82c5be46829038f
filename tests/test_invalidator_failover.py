"""Failovers of the database under an invalidator: whatever the primary's death loses, no cached value stays older than
the database, and the position is kept where it means the same on the replica.

The region, its fault and its recovery are those of `test_invalidator_faults.py`.
"""

import time
from contextlib import contextmanager, suppress

import pytest
from invalidator_region import ROWS, Writer, running_region
from processes import eventually

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
    eventually(replica.has_applied_all, "the replica has executed what it received", 60)
    replica.promote()
    switch_to(region, replica, *writers)


def check_position_is_kept(region) -> None:
    log = region.invalidator.log()
    assert "another server continues the commit log" in log
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
