"""Faults between a database and two clusters: whatever fails, no cached value stays older than the database.

Each test fills all caches with the newest versions, injects its fault while rows change and readers fill what is
missing, ends it, and waits until no cache anywhere holds an older version than the database. The time that takes, the
fills until the fault's end, and the most memory that the invalidator had, are in the summary of the run.

LOOKASIDE_SOAK=1 runs a million rows in a transaction, and 100,000 commits while a cluster is down, instead of a tenth.
"""

import os
import random
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from invalidator_region import ROWS, Region, running_region
from processes import Cluster, answers, connect, eventually, stats
from pymemcache.exceptions import MemcacheServerError
from tools import find_libfaketime, need

SCALE = 10 if os.environ.get("LOOKASIDE_SOAK") else 1

# How keys are named and where positions are: by statements and in files, by row rules, in a table of the database.
SETTINGS = pytest.mark.parametrize("setting", ["statements", "rules", "shared"], indirect=True)

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def database(kind, tmp_path_factory):
    """A server of that kind for the tests of this file: starting one takes seconds. Each test has a new schema."""
    database = kind(tmp_path_factory.mktemp(kind.kind))
    yield database
    database.stop()


@pytest.fixture
def clusters(flushable_clusters):
    """Two clusters that may be flushed."""
    return flushable_clusters


@pytest.fixture
def setting(request):
    """How keys are named and where positions are; by statements and in files if a test is not for `SETTINGS`."""
    return getattr(request, "param", "statements")


@pytest.fixture
def region(database, clusters, tmp_path, request, setting):
    """A region with a database of that kind."""
    if not database.accepts():
        # A test that failed has left it dead.
        database.restart()
    with running_region(database, clusters, tmp_path, request, setting) as region:
        yield region


def test_killed_invalidator(region):
    with region.fault():
        region.invalidator.kill()
        region.writer.wait_for(ROWS)
    region.recover(region.invalidator.start)


@SETTINGS
def test_killed_invalidator_while_a_cluster_is_down(region):
    """The cluster's position stays behind the other's. PostgreSQL's slot does not: the rest is in the spool."""

    def is_running() -> bool:
        port = region.invalidator.port
        return answers(port) and stats(port)["cluster:one:state"] == "running"

    with region.fault(unaffected=(0,)):
        region.clusters[1].router.kill()
        region.writer.wait_for(ROWS)
        region.invalidator.kill()
        region.invalidator.start()
        # With a shared state it is a standby at first: it never saw the lock of the killed one held.
        region.invalidator.wait_ready(is_running, 60)
        region.writer.wait_for(ROWS // 2)
    region.recover(lambda: region.restart_router(1))


def test_killed_router(region):
    with region.fault(unaffected=(0,)):
        region.clusters[1].router.kill()
        region.writer.wait_for(ROWS)
    region.recover(lambda: region.restart_router(1))


def test_killed_cache_server(region):
    """It comes back empty; deletes for the other servers of its cluster do not wait for it."""
    server = region.clusters[1].servers[0]
    with region.fault(unaffected=(0, 1)):
        server.kill()
        region.writer.wait_for(ROWS)
    region.recover(server.restart)


@pytest.mark.parametrize("kind", ["mariadb"], indirect=True, scope="module")
def test_a_cluster_with_a_dead_process_has_not_recovered(region):
    """A process that did not answer was left out of the comparison, after the fault, too."""
    cluster = region.clusters[1]
    cluster.servers[0].kill()
    try:
        assert any("does not answer" in found for found in region.stale(cluster, region.versions()))
    finally:
        cluster.servers[0].restart()
    region.wait_fresh()


@pytest.mark.parametrize("kind", ["mariadb"], indirect=True, scope="module")
def test_lost_deletes_are_found(region):
    """Only the first delete of a row removed a value, while no reader filled what was missing, so that later ones could
    be lost unseen. Here the first ones arrive, and the later ones are lost."""
    cluster = region.clusters[1]
    seen = set()

    def lose_repeated_deletes(piece: bytes) -> bytes:
        lines = piece.splitlines(keepends=True)
        kept = [line.replace(b"row:", b"lost:") if line in seen else line for line in lines]
        seen.update(lines)
        return b"".join(kept)

    with region.fault(unaffected=(0,)):
        region.links[1].change_request = lose_repeated_deletes
        eventually(lambda: region.readers[1].fills > ROWS // 4, "values are filled after the first deletes", 60)
        region.writer.wait_for(ROWS)
    region.stop_readers()
    cluster.client().set("last", "old")
    region.database.run(region.database.change(0, "row:0", "last"))
    eventually(lambda: not cluster.client().get("last"), "all deletes are sent", 60)
    eventually(lambda: stats(region.invalidator.port)["cluster:two:pending_keys"] == "0", "all are acknowledged", 60)
    assert region.stale(cluster, region.versions())
    assert not region.stale(region.clusters[0], region.versions())


@SETTINGS
def test_killed_database(region):
    with region.fault():
        region.database.kill()
        start = time.monotonic()
        region.database.restart()
        region.writer.wait_for(ROWS)
    region.recover(since=start)


def test_cut_between_the_invalidator_and_a_cluster(region):
    with region.fault(unaffected=(0,)):
        region.links[1].cut()
        region.writer.wait_for(ROWS)
    region.recover(region.links[1].heal)


@SETTINGS
def test_cut_between_the_invalidator_and_the_database(region):
    with region.fault():
        region.database_link.cut()
        region.writer.wait_for(ROWS)
    region.recover(region.database_link.heal)


def test_full_disk_under_the_positions_and_the_spool(region):
    """Without a spool deletes go on; positions cannot be saved, so a crash repeats deletes, and loses none. With one
    nothing is read until there is space."""
    # A small file system is mounted.
    need("root")
    region.invalidator.stop()
    small = region.folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", small], check=True)
    try:
        region.state_dir = shutil.copytree(region.state_dir, small, dirs_exist_ok=True)
        region.start_invalidator()
        filler = small / "filler"
        with region.fault(unaffected=() if region.database.needs_spool else (0, 1)):
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))
            region.writer.wait_for(ROWS)
        eventually(lambda: "No space left" in region.invalidator.log(), "that is logged")
        if region.database.needs_spool:
            check_reading_has_stopped(region)
        region.fill()
        region.database.run(region.database.change(0))
        region.invalidator.kill()
        region.database.run(*map(region.database.change, range(ROWS)))
        region.invalidator.start()
        region.invalidator.wait_ready(lambda: answers(region.invalidator.port))
        if region.database.needs_spool:
            check_reading_has_stopped(region)
        region.recover(filler.unlink)
    finally:
        region.invalidator.stop()
        subprocess.run(["umount", small], check=True)


def check_reading_has_stopped(region) -> None:
    """Checks that the statistics show that the spool cannot be written."""

    def has_stopped() -> bool:
        figures = stats(region.invalidator.port)
        states = {figures[f"cluster:{cluster.name}:state"] for cluster in region.clusters}
        return int(figures["spool_failures"]) > 0 and states == {"source_failing"}

    eventually(has_stopped, "reading has stopped")


def test_rotated_log(region):
    with region.fault():
        for _ in range(5):
            region.database.rotate()
            region.writer.wait_for(20)
        region.invalidator.kill()
        region.database.rotate()
        region.writer.wait_for(ROWS)
    region.recover(region.invalidator.start)


def check_lost_position(region, lose) -> None:
    """Loses the position while the invalidator is down: it stops and names the choices, or flushes the clusters."""
    with region.fault():
        region.invalidator.kill()
        region.writer.wait_for(ROWS)
    lose()
    region.recover(region.start_flushing_invalidator)


@SETTINGS
def test_purged_log(region):
    """In PostgreSQL, the slot has fallen behind `max_slot_wal_keep_size`."""
    check_lost_position(region, region.database.purge)


@pytest.mark.parametrize("kind", ["postgres"], indirect=True, scope="module")
def test_dropped_slot(region):
    check_lost_position(region, region.database.drop_slot)


@pytest.mark.parametrize("kind", ["postgres"], indirect=True, scope="module")
def test_slot_that_is_invalidated_while_it_is_read(region):
    """The link to the database is cut, and the server does not wait for the reader."""
    with region.fault():
        region.database_link.cut()
        region.writer.wait_for(ROWS)
    region.database.purge()
    start = time.monotonic()
    region.database_link.heal()
    assert region.invalidator.running.wait(60) == 1
    region.start_flushing_invalidator()
    region.recover(since=start)


def test_a_statement_of_20_mb(region):
    region.fill()
    region.database.store_large(20 << 20, "row:0")
    region.database.run(region.database.change(0))
    region.recover()


def test_a_transaction_of_10_000_keys(region):
    keys = [f"key:{index}" for index in range(10_000)]
    for cluster in region.clusters:
        assert cluster.client().set_many(dict.fromkeys(keys, "old")) == []
    region.database.run(
        "BEGIN",
        region.database.change(0, *keys[:5_000]),
        region.database.insert_into_outbox(*keys[5_000:]),
        "COMMIT",
    )
    start = time.monotonic()
    for cluster in region.clusters:
        for first in range(0, len(keys), 1_000):
            part = keys[first : first + 1_000]
            eventually(lambda part=part, cluster=cluster: not cluster.client().get_many(part), "they are gone", 60)
    region.recover(since=start)


def test_a_transaction_of_many_rows(region):
    """The log is read in events of some kilobytes, compressed or not, so the transaction's size costs no memory."""
    rows = 100_000 * SCALE
    region.database.create_logged_table("many", "id INT PRIMARY KEY")
    region.fill()
    region.database.run(
        "BEGIN",
        region.database.fill_numbers("many", rows),
        region.database.change(0),
        "COMMIT",
    )
    region.recover(size=rows)


@pytest.mark.parametrize("setting", ["rules"], indirect=True)
def test_a_transaction_of_many_rows_with_a_rule(region):
    """Each row has a key. They leave while the transaction is read, also if the log has it compressed as one event. Few
    of them may be pending, so that what is read ahead shows in the memory."""
    rows = 100_000 * SCALE
    region.invalidator.stop()
    region.start_invalidator("--pending-keys-max", "10000")
    region.database.create_logged_table("many", "id INT PRIMARY KEY")
    rules = region.folder / "rules.toml"
    rules.write_text(f"{rules.read_text()}[[rule]]\ntable = '{region.database.schema}.many'\nkeys = ['many:{{id}}']\n")
    eventually(lambda: stats(region.invalidator.port)["rules"] == "2", "the rule is loaded", 60)
    keys = [f"many:{row}" for row in (*range(1, rows, rows // 500), rows)]
    for cluster in region.clusters:
        assert cluster.client().set_many(dict.fromkeys(keys, "old")) == []
    region.fill()
    region.database.run("BEGIN", region.database.fill_numbers("many", rows), region.database.change(0), "COMMIT")
    start = time.monotonic()

    def are_gone() -> bool:
        # A router whose server is slow at this moment answers with an error, or late.
        with suppress(MemcacheServerError, TimeoutError):
            return not any(cluster.client().get_many(keys) for cluster in region.clusters)
        return False

    eventually(are_gone, "the keys of all rows are gone", 60 * SCALE)
    region.recover(since=start, size=rows)


def sample_commits(commits: int) -> list[str]:
    """The keys that the first, the last and 500 other ones of that many commits name besides those of their rows."""
    return [f"commit:{number}" for number in (0, *random.Random(1).sample(range(1, commits - 1), 500), commits - 1)]


def find_cached(cluster: Cluster, keys: list[str]) -> set[str]:
    """Those of the keys that a server of the cluster has, without its router."""
    return {key for server in (*cluster.servers, cluster.gutter) for key in connect(server.port).get_many(keys)}


def test_many_commits_while_a_cluster_is_down(region):
    """Each row is changed many times, and nothing is filled while the router is dead, so the first delete of a row
    hides that later ones are lost. Each commit names a key of its own, too, which no other commit deletes."""
    commits = 10_000 * SCALE
    keys = sample_commits(commits)
    for cluster in region.clusters:
        assert cluster.client().set_many(dict.fromkeys(keys, "old")) == []
    with region.fault(unaffected=(0,)):
        region.clusters[1].router.kill()
        region.database.commit_often(commits, ROWS)
    assert find_cached(region.clusters[1], keys) == set(keys), "no delete has arrived while the router is dead"
    region.recover(lambda: region.restart_router(1), size=commits)
    for cluster in region.clusters:
        with suppress(AssertionError):
            eventually(lambda cluster=cluster: not find_cached(cluster, keys), "no sampled key is cached", 60)
        left = find_cached(cluster, keys)
        assert not left, f"{cluster.name} has {len(left)} of {len(keys)} keys: {sorted(left)[:10]}"


def with_clock(clock: Path) -> dict[str, str]:
    """The environment of a program whose time of day is as far from the machine's as the file `clock` says."""
    clock.write_text("+0")
    return {
        **os.environ,
        "LD_PRELOAD": str(find_libfaketime()),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def step(clock: Path, region: Region) -> None:
    """Steps the clock back and forth while rows change."""
    for offset in ("-3600", "+7200", "-86400"):
        clock.write_text(offset)
        region.writer.wait_for(ROWS // 2 if region.has_readers else ROWS // 10)


def test_clock_stepped_back(region):
    """The time of day is used for statistics, and for how long acknowledged commits are kept."""
    need("libfaketime")
    clock = region.folder / "clock"
    region.invalidator.stop()
    region.invalidator.options["env"] = with_clock(clock)
    region.invalidator.start()
    region.invalidator.wait_running(len(region.clusters))
    with region.fault():
        step(clock, region)
    region.recover()
    assert int(stats(region.invalidator.port)["invalidations_total"]) > 0


def test_clock_of_the_database_stepped_back(region):
    """Commits have the database's time, by which nothing is decided. Where it and the invalidator's are compared, a
    commit of the future is no panic and no negative age, and the lag behind the log needs no clock of the database."""
    need("libfaketime")
    database = region.database
    # With libfaketime the fetched MySQL is slow by itself. Seen without an invalidator on two loaded cores: the thread
    # page_flush_coordinator uses 0.6 of a core while nothing is asked, the process reads the clock's file thousands of
    # times a second and waits for locks, a new connection takes 3 to 7 s (without libfaketime, with its query, 0.04 s),
    # a further statement about 0.1 s. FAKETIME_CACHE_DURATION and --innodb-log-writer-threads=OFF do not help.
    # Readers, which connect twice in a test, would wait for that, and so does each comparison with `versions()`.
    region.has_readers = database.kind != "mysql"
    clock = getattr(database, "home", region.folder) / "clock"
    environment = database.options.get("env")
    database.kill()
    database.options["env"] = with_clock(clock)
    try:
        database.restart()
        with region.fault():
            step(clock, region)
            ((now,),) = database.run(database.now)
            assert abs(now - (time.time() - 86_400)) < 600, "the database has that clock"
        region.recover()

        def is_at_end(shown: dict[str, str]) -> bool:
            lags = [shown[f"cluster:{cluster.name}:source_lag_ms"] for cluster in region.clusters]
            return lags == ["0"] * len(lags)

        eventually(lambda: is_at_end(stats(region.invalidator.port)), "the clusters have all of the log", 60)
        shown = stats(region.invalidator.port)
        assert all(not value[1:].isdigit() for value in shown.values() if value.startswith("-")), shown
        assert all(shown[f"cluster:{cluster.name}:oldest_pending_ms"] == "0" for cluster in region.clusters)
    finally:
        database.kill()
        database.options["env"] = environment
        database.restart()
