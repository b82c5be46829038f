"""`lookaside up --regions`: a master region and replica regions, whose caches follow their own databases (§5)."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from local_regions import PORTS_OF_SEVERAL, Up, free_base, regions_of
from postgres import program
from processes import PROGRAMS, connect, eventually, stats
from regional_client import RegionalClient
from test_up import is_alive

pytestmark = pytest.mark.timeout(300)

KINDS = ["sqlite", "mariadb", "postgres"]
# SQL that creates a table with a row.
CREATE = "CREATE TABLE notes (id INTEGER PRIMARY KEY, body VARCHAR(20))"
INSERT = "INSERT INTO notes VALUES (1, 'old')"
READ = "SELECT body FROM notes WHERE id = 1"


def update(kind: str, body: str = "new", keys: list[str] | None = None) -> str:
    """The SQL that changes the row, and names its key, or other keys."""
    change, keys = f"UPDATE notes SET body = '{body}' WHERE id = 1", keys or ["note:1"]
    if kind == "mariadb":
        return f"{change} /* lookaside: {' '.join(keys)} */"
    table = {"postgres": "lookaside_outbox", "sqlite": "lookaside_journal"}[kind]
    return f"BEGIN; {change}; INSERT INTO {table} (key) VALUES " + ",".join(f"('{key}')" for key in keys) + "; COMMIT"


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


@pytest.mark.parametrize("kind, count", [*((kind, 2) for kind in KINDS), ("mariadb", 3), ("postgres", 3)])
def test_a_replica_region_keeps_a_value_until_its_database_has_the_change(tmp_path, kind, count):
    arguments = ("--database", kind, "--servers", "1")
    # The account that PostgreSQL runs as cannot reach the folders of pytest.
    up = start(tmp_path, *arguments, regions=count, is_temporary=kind == "postgres")
    try:
        east, west, *others = regions = regions_of(up)
        assert len(regions) == count
        create_notes(kind, regions)
        for region in regions:
            for client in region.clients():
                assert client.set("note:1", b"old")

        west.set_link("cut")
        east.run(update(kind))
        for region in (east, *others):
            is_deleted = lambda region=region: all(client.get("note:1") is None for client in region.clients())  # noqa: E731
            eventually(is_deleted, f"region {region.name}", 30)
            assert region.run(READ) == "new"
        # Longer by far than the invalidator takes to read what its database has.
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            assert [client.get("note:1") for client in west.clients()] == [b"old", b"old"]
        assert west.run(READ) == "old"

        def has_arrived() -> bool:
            values = [client.get("note:1") for client in west.clients()]
            # A reader that misses now must find the new row.
            return values == [None, None] and west.run(READ) == "new"

        west.set_link("0")
        eventually(has_arrived, "the replica region", 60)
    finally:
        assert up.stop() == 0, up.log()


@pytest.mark.parametrize("kind", KINDS)
def test_users_of_a_replica_region_read_their_own_writes_by_its_markers(tmp_path, kind):
    up = start(tmp_path, "--database", kind, "--clusters", "1", "--servers", "1", is_temporary=kind == "postgres")
    clients = []
    try:
        east, west = regions = regions_of(up)
        create_notes(kind, regions)
        clients += [RegionalClient(west.ports[0]), RegionalClient(west.ports[0])]
        one, two = clients

        def load(source: str) -> str:
            return {"master": east, "replica": west}[source].run(READ)

        def is_marked(marker: str) -> bool:
            return connect(west.marker_port).get(marker) is not None

        assert one.read("note:1", load) == ("replica", "old")
        west.set_link("cut")
        first = one.write("note:1")
        east.run(update(kind, "first", first))
        one.finish()
        assert one.read("note:1", load) == ("master", "first")
        # The second write is under way while the first one is replicated.
        second = two.write("note:1")
        west.set_link("0")
        eventually(lambda: not is_marked(first[1]), "the first write's marker is cleared", 60)
        assert west.run(READ) == "first" and is_marked(second[1])
        west.set_link("cut")
        east.run(update(kind, "second", second))
        two.finish()
        assert two.read_uncached("note:1", load) == ("master", "second")
        # What eviction would do: why the server of markers does not evict.
        assert stats(west.marker_port)["evictions"] == "0"
        assert connect(west.marker_port).delete(second[1])
        assert two.read_uncached("note:1", load) == ("replica", "first")
        assert [client.stop() for client in clients] == [0, 0]
    finally:
        for client in clients:
            client.running.kill()
        assert up.stop() == 0, up.log()


@pytest.mark.parametrize("kind", KINDS)
def test_the_demo_reads_its_own_writes_while_replication_stands_still(tmp_path, kind):
    arguments = ("--database", kind, "--demo", "--clusters", "1", "--servers", "1")
    up = start(tmp_path, *arguments, is_temporary=kind == "postgres")
    try:
        _, west = regions_of(up)
        west.set_link("cut")

        def last() -> dict:
            lines = up.activity("west")
            return lines[-1] if lines else {"own_reads": 0}

        before = last()["own_reads"]
        up.wait_ready(lambda: last()["own_reads"] > before + 100, 90)
        lines = up.activity("west")
        assert any(line["markers_found_per_s"] > 0 and line["master_reads_per_s"] > 0 for line in lines)
        assert lines[-1]["markers_set_per_s"] > 0 and lines[-1]["markers_cleared_per_s"] == 0
        assert all(line["master_reads_per_s"] == 0 for line in up.activity("east"))
        west.set_link("0")
        is_cleared = lambda: last()["markers_cleared_per_s"] > 0  # noqa: E731
        eventually(is_cleared, "the markers of replicated writes are cleared", 60)
        assert (last()["own_stale_reads"], last()["demo_failures"]) == (0, 0)
        assert up.activity("east")[-1]["own_stale_reads"] == 0 and up.activity("east")[-1]["own_reads"] > 100
    finally:
        assert up.stop() == 0, up.log()


def test_a_start_that_was_killed_between_role_and_database_is_continued():
    """The next start failed, as the role was there already."""
    folder = Path(tempfile.mkdtemp(prefix="lookaside-up-"))
    try:
        folder.chmod(0o711)
        home = folder / "region" / "database"
        home.mkdir(parents=True)
        (home / "password").write_text("secret")
        account = {}
        if os.geteuid() == 0:
            account = {"user": "postgres", "group": "postgres"}
            for path in (home, home / "password"):
                shutil.chown(path, "postgres", "postgres")
        install = ["--username=lookaside_up", f"--pwfile={home}/password", "--auth=scram-sha-256", "--encoding=UTF8"]
        commands = {
            (program("initdb"), "--locale=C", "--no-sync", *install, f"{home}/data"): "",
            (program("postgres"), "--single", "-F", "-D", f"{home}/data", "postgres"): (
                "CREATE ROLE app LOGIN REPLICATION PASSWORD 'app'\n"
            ),
        }
        for command, text in commands.items():
            done = subprocess.run(command, input=text, text=True, capture_output=True, cwd="/", **account)
            assert done.returncode == 0 and "ERROR" not in done.stderr, done.stderr
        up = Up(folder, "--database", "postgres", "--clusters", "1", "--servers", "1", ports=PORTS_OF_SEVERAL)
        try:
            assert f"app:app@127.0.0.1:{up.base + 110}/app" in up.lines()[0]["database"]
        finally:
            assert up.stop() == 0, up.log()
    finally:
        shutil.rmtree(folder)


def test_a_start_that_was_killed_while_it_created_the_database_is_repeated():
    """What initdb had left was taken for a database, and each later start failed."""
    folder = Path(tempfile.mkdtemp(prefix="lookaside-up-"))
    try:
        folder.chmod(0o711)
        home, base = folder / "region" / "database", free_base(PORTS_OF_SEVERAL)
        arguments = ("--database", "postgres", "--clusters", "1", "--servers", "1")
        command = [PROGRAMS / "lookaside", "up", "--json", "--port", str(base), "--state-dir", folder / "region"]
        with (folder / "killed.log").open("w") as log:
            killed = subprocess.Popen([*command, *arguments], stdout=log, stderr=log, start_new_session=True)
        eventually(lambda: list(home.glob("data*/PG_VERSION")), "initdb has begun", 60)
        # With initdb, and with the server that initdb has started: it would go on to write what the next start removes.
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        up = Up(folder, *arguments, ports=PORTS_OF_SEVERAL)
        try:
            assert f"app:app@127.0.0.1:{up.base + 110}/app" in up.lines()[0]["database"]
            assert [path.name for path in home.glob("data*")] == ["data"]
        finally:
            assert up.stop() == 0, up.log()
    finally:
        shutil.rmtree(folder)


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
    east.run(update("mariadb"))
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
    # Two regions of a server, a gutter server, a regional server and its gutter, a server of markers, a router, an
    # invalidator, a database.
    assert len(children) == 16
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
