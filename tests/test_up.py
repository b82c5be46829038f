"""`lookaside up`: a region by one command, and nothing left of it afterwards."""

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest
from local_regions import Up, free_base
from processes import PROGRAMS, Process, connect, eventually, stats


@pytest.fixture
def region(tmp_path):
    """A region without the demo application."""
    region = Up(tmp_path)
    yield region
    region.stop()


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_commit_in_the_embedded_database_empties_both_clusters(region):
    clients = [connect(region.base), connect(region.base + 1)]
    for client in clients:
        assert client.set("user:1", b"old")
    database = sqlite3.connect(region.state / "region.db")
    with database:
        database.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
        database.execute("INSERT INTO users VALUES (1, 'ada')")
        database.execute("INSERT INTO lookaside_journal (key) VALUES ('user:1')")
    eventually(lambda: all(client.get("user:1") is None for client in clients), "both clusters are empty")
    for client in clients:
        assert client.set("user:2", b"old")
    database.execute("INSERT INTO lookaside_journal (key) VALUES ('user:2')")
    database.rollback()
    with database:
        database.execute("INSERT INTO lookaside_journal (key) VALUES ('user:3')")
    eventually(lambda: region.lines()[-1].get("invalidations_per_s") is not None, "a line of the view")
    assert all(client.get("user:2") == b"old" for client in clients)
    database.close()


def test_a_delete_by_routing_prefix_reaches_every_cluster(region):
    clients = [connect(region.base), connect(region.base + 1)]
    for client in clients:
        assert client.set("user:1", b"old")
    assert clients[0].delete("/*/*/user:1")
    assert [client.get("user:1") for client in clients] == [None, None]
    assert clients[0].set("/local/two/user:2", b"there")
    assert [client.get("user:2") for client in clients] == [None, b"there"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_child_processes_end_with_it(region, how):
    children = region.children()
    assert len(children) == 9
    os.kill(region.running.pid, how)
    code = region.running.wait(15)
    assert code == (-9 if how == signal.SIGKILL else 0)
    eventually(lambda: not any(is_alive(pid) for pid in children), "every child has ended")


def test_taken_ports_are_named_with_the_option_to_choose_others(region):
    command = [PROGRAMS / "lookaside", "up", "--port", str(region.base)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert str(region.base) in ended.stderr and "--port" in ended.stderr, ended.stderr
    assert connect(region.base).version()


def test_a_second_region_in_the_same_folder_leaves_the_first_alone(region):
    before = (region.state / "router.json").read_bytes()
    command = [PROGRAMS / "lookaside", "up", "--port", str(free_base()), "--state-dir", region.state]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert "--state-dir" in ended.stderr, ended.stderr
    assert (region.state / "router.json").read_bytes() == before
    assert connect(region.base).set("key", b"value")


def test_an_unusable_database_is_reported_at_the_start(mariadb):
    url = mariadb.url.replace("secret", "wrong")
    command = [PROGRAMS / "lookaside", "up", "--port", str(free_base()), "--database", url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "no commit would reach the caches" in ended.stderr and "lookaside" in ended.stderr, ended.stderr
    assert "wrong" not in ended.stderr


def test_a_slow_start_is_explained_and_can_be_ended(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"mariadb://app:secret@127.0.0.1:{closed.getsockname()[1]}/app"
        up = Process("up", [PROGRAMS / "lookaside", "up", "--port", free_base(), "--database", url], tmp_path)
        eventually(lambda: "waiting for the invalidator to read the commit log" in up.log(), "logged")
        up.running.send_signal(signal.SIGINT)
        assert up.running.wait(10) == 0, up.log()
        assert "no commit would reach" not in up.log(), "it waited on for the database"


def test_a_signal_does_not_wait_for_daemons_that_hang(tmp_path):
    """It was seen only after the line for which each router was waited for, a second each."""
    region = Up(tmp_path, "--clusters", "9", "--servers", "1", ports=120)
    frozen = []
    try:
        for pid in region.children():
            if b"lookaside-router" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGSTOP)
                frozen.append(pid)
        assert len(frozen) == 9
        eventually(lambda: region.lines()[-1].get("unreachable_daemons") == 9, "the routers do not reply", 60)
        lines = len(region.lines())
        region.running.terminate()
        eventually(lambda: len(region.lines()) > lines, "it ends", 60)
        assert region.lines()[lines] == {"event": "stopping"}
    finally:
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        assert region.stop() == 0, region.log()


def test_a_closed_output_pipe_is_not_an_error():
    command = f"{PROGRAMS}/lookaside up --json --port {free_base()} --seconds 3 | head -n 1"
    ended = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    warnings = [line for line in ended.stderr.splitlines() if not line.startswith("lookaside: waiting for ")]
    assert (ended.returncode, warnings) == (0, [])
    assert json.loads(ended.stdout)["ready"]


def test_a_dead_process_is_restarted(region):
    victim = region.children()[0]
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: any("died" in line.get("event", "") for line in region.lines()), "the death is announced")
    eventually(lambda: any("restarted" in line.get("event", "") for line in region.lines()), "it is started again", 30)
    eventually(lambda: len([pid for pid in region.children() if is_alive(pid)]) == 9, "nine processes run")


def test_the_demo_application_reads_and_invalidates(tmp_path):
    region = Up(tmp_path, "--demo")
    try:

        def is_busy() -> bool:
            view = [line for line in region.lines() if "hit_rate" in line]
            return any(
                line["gets_per_s"] > 100
                and line["hit_rate"] > 0.5
                and line["invalidations_per_s"] > 1
                and line["invalidation_latency_us"]["p99"] > 0
                for line in view
            )

        region.wait_ready(is_busy, 60)
    finally:
        started = time.monotonic()
        assert region.stop() == 0
        assert time.monotonic() - started < 10


def test_the_demo_application_works_on_mariadb(tmp_path, mariadb):
    # The parameter is the invalidator's alone.
    region = Up(tmp_path, "--demo", "--database", f"{mariadb.url}?accept-unsafe=sync_binlog")
    try:

        def is_busy() -> bool:
            return any(line.get("hit_rate", 0) > 0.5 and line["invalidations_per_s"] > 1 for line in region.lines())

        region.wait_ready(is_busy, 60)
        assert "secret" not in region.log()
    finally:
        assert region.stop() == 0


def test_a_postgresql_is_prepared_and_its_slot_dropped_at_the_end(tmp_path, postgres):
    # The server keeps its log for a slot that nothing reads, until its disk is full.
    region = Up(tmp_path, "--demo", "--clusters", "1", "--database", postgres.url, is_temporary=True)
    try:
        client = connect(region.base)
        assert client.set("user:1", b"old")
        with postgres.connect() as connection:
            slots = connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall()
            assert slots == [(f"lookaside_up_{region.base}",)]
            connection.execute("SELECT lookaside_invalidate('user:1')")

        def is_busy() -> bool:
            view = [line for line in region.lines() if "hit_rate" in line]
            return any(line["hit_rate"] > 0.5 and line["invalidations_per_s"] > 1 for line in view)

        region.wait_ready(is_busy, 60)
        assert client.get("user:1") is None
        assert "secret" not in region.log()
    finally:
        assert region.stop() == 0, region.log()
    with postgres.connect() as connection:
        assert connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == []
    assert "pg_drop_replication_slot" not in region.log()


def test_a_region_on_postgresql_with_a_directory_continues_where_it_stopped(tmp_path, postgres):
    arguments = ["--clusters", "1", "--servers", "1", "--database", postgres.url]
    region = Up(tmp_path, *arguments)
    assert region.stop() == 0
    # The server keeps its log for the slot.
    assert "SELECT pg_drop_replication_slot('lookaside_up')" in region.log()
    region.log_path.unlink()
    with postgres.connect() as connection:
        connection.execute("SELECT lookaside_invalidate('user:1')")
    region = Up(tmp_path, *arguments)
    try:
        eventually(lambda: stats(region.base + 9)["invalidations_total"] == "1", "the delete has arrived")
    finally:
        assert region.stop() == 0


def test_unsuitable_options_of_several_regions_are_refused():
    for arguments, expected in [
        (["--regions", "2", "--database", "mariadb://app:secret@127.0.0.1/app"], "started here"),
        (["--replication-delay", "1s"], "--regions 2"),
        (["--regions", "2", "--replication-delay", "fast"], "500ms"),
        (["--regions", "4"], "1..=3"),
        (["--database", "oracle"], "postgres"),
    ]:
        command = [PROGRAMS / "lookaside", "up", "--port", str(free_base()), *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert ended.returncode in (1, 2) and expected in ended.stderr, (arguments, ended.stderr)
        assert "secret" not in ended.stderr
