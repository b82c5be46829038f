"""`lookaside up --regions`: a master region and replica regions, whose caches follow their own databases (§5)."""

import os
import signal
import subprocess
import time

import pytest
from local_regions import PORTS_OF_SEVERAL, Up, free_base, regions_of
from processes import PROGRAMS, connect, eventually
from test_up import is_alive

pytestmark = pytest.mark.timeout(300)

# SQL for each kind of database: creates a table with a row, changes the row and names its key.
CREATE = "CREATE TABLE notes (id INTEGER PRIMARY KEY, body VARCHAR(20))"
INSERT = "INSERT INTO notes VALUES (1, 'old')"
UPDATE = {
    "mariadb": "UPDATE notes SET body = 'new' WHERE id = 1 /* lookaside: note:1 */",
    "postgres": "BEGIN; UPDATE notes SET body = 'new' WHERE id = 1; "
    "INSERT INTO lookaside_outbox (key) VALUES ('note:1'); COMMIT",
    "sqlite": "BEGIN; UPDATE notes SET body = 'new' WHERE id = 1; "
    "INSERT INTO lookaside_journal (key) VALUES ('note:1'); COMMIT",
}
READ = "SELECT body FROM notes WHERE id = 1"


def start(folder, *arguments: str, regions: int = 2, is_temporary: bool = False) -> Up:
    """Several regions."""
    ports = PORTS_OF_SEVERAL * regions
    return Up(folder, "--regions", str(regions), *arguments, is_temporary=is_temporary, ports=ports)


def create_notes(kind: str, regions) -> None:
    """A table with one row in every region."""
    master, *replicas = regions
    if kind == "postgres":
        # Logical replication brings rows, not tables.
        for replica in replicas:
            replica.run(f"BEGIN READ WRITE; {CREATE}; COMMIT")
    master.run(f"{CREATE}; {INSERT}")
    if kind == "postgres":
        for replica in replicas:
            administrator = (replica.state_dir / "database" / "password").read_text()
            url = replica.database.replace("app:app@", f"lookaside_up:{administrator}@")
            refresh = f"ALTER SUBSCRIPTION lookaside_{replica.name} REFRESH PUBLICATION"
            subprocess.run(["psql", "--no-psqlrc", "-qc", refresh, url], check=True, capture_output=True)
    for replica in replicas:
        eventually(lambda replica=replica: has_row(replica, "old"), "the row is replicated", 60)


def has_row(region, body: str) -> bool:
    try:
        return region.run(READ) == body
    except AssertionError:
        return False  # the table has not arrived


@pytest.mark.parametrize("kind", ["sqlite", "mariadb", "postgres"])
def test_a_replica_region_keeps_a_value_until_its_database_has_the_change(tmp_path, kind):
    # The account that PostgreSQL runs as cannot reach the folders of pytest.
    up = start(tmp_path, "--database", kind, "--servers", "1", is_temporary=kind == "postgres")
    try:
        east, west = regions = regions_of(up)
        create_notes(kind, regions)
        for client in east.clients() + west.clients():
            assert client.set("note:1", b"old")

        west.set_link("cut")
        east.run(UPDATE[kind])
        eventually(lambda: all(client.get("note:1") is None for client in east.clients()), "the master region", 30)
        # Longer by far than the invalidator takes to read what its database has.
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            assert [client.get("note:1") for client in west.clients()] == [b"old", b"old"]
        assert west.run(READ) == "old"

        def is_deleted() -> bool:
            values = [client.get("note:1") for client in west.clients()]
            # A reader that misses now must find the new row.
            return values == [None, None] and west.run(READ) == "new"

        west.set_link("0")
        eventually(is_deleted, "the replica region", 60)
    finally:
        assert up.stop() == 0, up.log()


def test_a_replica_refuses_writes(tmp_path):
    up = start(tmp_path, "--database", "mariadb", "--clusters", "1", "--servers", "1")
    try:
        _, west = regions_of(up)
        with pytest.raises(AssertionError, match="read-only"):
            west.run(CREATE)
    finally:
        assert up.stop() == 0, up.log()


def test_regional_keys_are_shared_by_the_clusters_of_a_region_alone(tmp_path):
    up = start(tmp_path, "--database", "sqlite", "--servers", "1", regions=3)
    try:
        east, west, north = (region.clients() for region in regions_of(up))
        assert west[0].set("regional:1", b"here") and west[0].set("usual:1", b"here")
        assert [client.get("regional:1") for client in east + west + north] == [
            None,
            None,
            b"here",
            b"here",
            None,
            None,
        ]
        assert [client.get("usual:1") for client in west] == [b"here", None]
        assert west[1].delete("regional:1")
        assert west[0].get("regional:1") is None
        # A broadcast stays in its region: elsewhere the delete follows the database.
        for client in east + west:
            assert client.set("usual:2", b"here")
        assert west[0].delete("/*/*/usual:2")
        assert [client.get("usual:2") for client in east + west] == [b"here", b"here", None, None]
    finally:
        assert up.stop() == 0, up.log()


def test_the_demo_shows_stale_reads_and_the_lag_of_a_replica_region(tmp_path):
    delay_ms = 300
    up = start(tmp_path, "--demo", "--clusters", "1", "--replication-delay", f"{delay_ms}ms")
    try:
        _, west = regions_of(up)

        def is_seen() -> bool:
            east_lines, west_lines = up.activity("east"), up.activity("west")
            return any(line["hit_rate"] > 0.5 and line["invalidations_per_s"] > 1 for line in east_lines) and any(
                line["hit_rate"] > 0.5 and line["stale_reads_per_s"] > 0 and line["database_lag_us"] >= delay_ms * 1000
                for line in west_lines
            )

        up.wait_ready(is_seen, 90)
        assert all(line["database_lag_us"] == 0 for line in up.activity("east"))

        west.set_link("cut")
        cut_lag_us = (delay_ms + 1500) * 1000
        eventually(lambda: up.activity("west")[-1]["database_lag_us"] > cut_lag_us, "the lag grows", 30)
        west.set_link("0")
        eventually(lambda: up.activity("west")[-1]["database_lag_us"] < cut_lag_us / 4, "the replica follows again", 60)
        assert up.activity("west")[-1]["demo_failures"] == 0
    finally:
        assert up.stop() == 0, up.log()


def test_a_text_that_is_no_state_of_a_link_is_reported_and_changes_nothing(tmp_path):
    up = start(tmp_path, "--database", "sqlite", "--clusters", "1", "--servers", "1")
    try:
        _, west = regions_of(up)
        (up.state / "west.link").write_text("fast\n")
        reported = lambda: any("the link stays as it is" in line.get("event", "") for line in up.lines())  # noqa: E731
        eventually(reported, "it is reported")
        west.set_link("cut")
    finally:
        assert up.stop() == 0, up.log()


def test_regions_continue_where_they_stopped(tmp_path):
    """A commit that the replica has not received is replicated after the next start."""
    arguments = ("--clusters", "1", "--servers", "1", "--database", "mariadb")
    up = start(tmp_path, *arguments)
    east, west = regions = regions_of(up)
    create_notes("mariadb", regions)
    west.set_link("cut")
    east.run(UPDATE["mariadb"])
    assert west.run(READ) == "old"
    assert up.stop() == 0, up.log()
    up.log_path.unlink()
    up = start(tmp_path, *arguments)
    try:
        _, west = regions_of(up)
        eventually(lambda: west.run(READ) == "new", "the commit arrives", 60)
    finally:
        assert up.stop() == 0, up.log()


def test_databases_end_with_a_killed_up(tmp_path):
    up = start(tmp_path, "--database", "mariadb", "--clusters", "1", "--servers", "1")
    children = up.children()
    # Two regions of a server, a gutter server, a regional server and its gutter, a router, an invalidator, a database.
    assert len(children) == 14
    os.kill(up.running.pid, signal.SIGKILL)
    up.running.wait(15)
    eventually(lambda: not any(is_alive(pid) for pid in children), "every child has ended", 60)


def test_the_announcement_names_what_runs_where(tmp_path):
    base = free_base(PORTS_OF_SEVERAL * 2)
    command = [
        PROGRAMS / "lookaside", "up", "--regions", "2", "--database", "sqlite", "--port", str(base), "--seconds", "2",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for text in (
        "Region east (master)", "Region west (replica)", f"127.0.0.1:{base}", f"127.0.0.1:{base + 200}",
        f"127.0.0.1:{base + 209}", "echo cut > ", "west.link", "INSERT INTO lookaside_journal",
    ):  # fmt: skip
        assert text in done.stdout, (text, done.stdout)
    with pytest.raises(OSError):
        connect(base).version()
