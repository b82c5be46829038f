"""The monitor finds exactly the old values that stay after a delete, in clusters whose invalidator is stopped, slow or
loses deletes, and none in healthy ones; it keeps what it knows over a crash, and changes nothing in the caches."""

import contextlib
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from cached_keys import cached, fill, gone
from journal import Journal
from monitor import OLD_ENOUGH_MS, Monitor, age_min_ms, debug, route_to, wait_old
from processes import PROGRAMS, Invalidator, connect, eventually, frozen, stats
from recording_router import RecordingRouter

NAMES = ["one", "two"]


@pytest.fixture
def journal(tmp_path):
    """A SQLite database."""
    return Journal(tmp_path / "app.db")


@pytest.fixture
def start(tmp_path):
    """Starts monitors, and stops them at the end."""
    started = []

    def start(source: str, *arguments: object, ages: str = "1,6", folder: str = "monitor") -> Monitor:
        started.append(Monitor(source, tmp_path / folder, tmp_path, *arguments, ages=ages))
        return started[-1]

    yield start
    for monitor in started:
        monitor.stop()


def counters(port: int) -> dict[str, int]:
    """The statistics of a server that reading or filling would change."""
    names = ("cmd_get", "get_hits", "get_misses", "cmd_touch", "cmd_set", "evictions")
    return {name: int(value) for name, value in stats(port).items() if name in names or name.startswith("lease_")}


def test_exactly_the_values_that_stay_are_found_and_nothing_is_changed(mariadb, clusters, start):
    # No invalidator runs: each delete is lost.
    stale, refilled = [f"stale:{n}" for n in range(5)], "refilled"
    for cluster in clusters:
        # Not read afterwards, so that a later access would show.
        assert cluster.client().set_many(dict.fromkeys([*stale, refilled], "old")) == []
    wait_old(clusters, [*stale, refilled])
    monitor = start(mariadb.url, *map(route_to, clusters))
    servers = [server for cluster in clusters for server in cluster.servers]
    before = {server.port: counters(server.port) for server in servers}
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        cursor.execute(f"INSERT INTO t VALUES (1) /* lookaside: {' '.join(stale)} never:cached {refilled} */")
        for cluster in clusters:
            cluster.client().delete(refilled)
        monitor.wait_looks(NAMES, 1, 7)
        assert all(fetched(cluster, key) == "no" for cluster in clusters for key in stale), "a look is no access"
        for cluster in clusters:
            cluster.client().set(refilled, "new")
    monitor.wait_looks(NAMES, 6, 7)
    for cluster in NAMES:
        assert monitor.looks(cluster, 1) == {"old": 5, "absent": 2}
        assert monitor.looks(cluster, 6) == {"old": 5, "absent": 1, "new": 1}
    # Exactly these are in the log, with all that an operator needs.
    found = {(event["cluster"], event["key"], event["after_s"]) for event in monitor.findings()}
    assert found == {(cluster, key, age) for cluster in NAMES for key in stale for age in (1, 6)}
    event = monitor.findings()[0]
    ports = {f"127.0.0.1:{cluster.port}" for cluster in clusters}
    assert event["from"] in ports and event["position"] and event["committed_at_ms"] > 0
    for event in monitor.findings():
        port = int(event["server"].removeprefix("127.0.0.1:"))
        assert debug(port, event["key"]).startswith("ME "), "the server that has it is named"
    assert event["stored_before_ms"] > 1_000
    after = {server.port: counters(server.port) for server in servers}
    stored = sum(after[port].pop("cmd_set") - before[port].pop("cmd_set") for port in before)
    assert stored == len(clusters), "only this test has stored anything"
    assert after == before


def fetched(cluster, key: str) -> str:
    """Whether the item was read since it was stored, as its server says."""
    return debug(cluster.port, key).split(" fetch=")[1].split()[0]


@pytest.mark.timeout(300)
def test_a_healthy_region_has_no_old_values(mariadb, clusters, start, tmp_path):
    keys = [f"row:{n}" for n in range(100)]
    invalidator = Invalidator(mariadb.url, clusters, tmp_path / "state", tmp_path)
    try:
        fill(clusters, keys)
        wait_old(clusters, keys[-1:])
        monitor = start(mariadb.url, *map(route_to, clusters), ages="1,2")
        with mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
            for n, key in enumerate(keys):
                cursor.execute(f"INSERT INTO t VALUES ({n}, 0) /* lookaside: {key} */")
        gone(clusters, keys)
        monitor.wait_looks(NAMES, 2, len(keys))
        for cluster in NAMES:
            assert monitor.looks(cluster, 1) == {"absent": len(keys)}
            assert monitor.looks(cluster, 2) == {"absent": len(keys)}
        assert monitor.findings() == []
    finally:
        invalidator.stop()


def test_deletes_of_a_stopped_invalidator_are_old_until_it_goes_on(journal, clusters, start, tmp_path):
    keys = [f"row:{n}" for n in range(10)]
    invalidator = Invalidator(journal.url, clusters, tmp_path / "state", tmp_path)
    try:
        fill(clusters, keys)
        wait_old(clusters, keys)
        monitor = start(journal.url, *map(route_to, clusters), ages="1,20")
        with frozen(invalidator):
            for key in keys:
                journal.commit(key)
            monitor.wait_looks(NAMES, 1, len(keys))
        gone(clusters, keys)
        monitor.wait_looks(NAMES, 20, len(keys))
        for cluster in NAMES:
            assert monitor.looks(cluster, 1) == {"old": len(keys)}
            assert monitor.looks(cluster, 20) == {"absent": len(keys)}
    finally:
        invalidator.stop()


def test_a_delete_that_was_acknowledged_and_lost_is_found(journal, cluster, start, tmp_path):
    # For the invalidator all is well: what stands in for a router says that each delete was applied.
    liar = RecordingRouter()
    invalidator = Invalidator(journal.url, [liar], tmp_path / "state", tmp_path)
    try:
        fill([cluster], ["lost", "other"])
        wait_old([cluster], ["lost"])
        monitor = start(journal.url, route_to(cluster), ages="1")
        journal.commit("lost")
        eventually(lambda: liar.has("lost"), "the invalidator has sent the delete")
        monitor.wait_looks(["one"], 1, 1)
        assert monitor.looks("one", 1) == {"old": 1}
        (event,) = monitor.findings()
        assert (event["key"], event["cluster"], event["position"]) == ("lost", "one", "1")
    finally:
        invalidator.stop()
        liar.stop()


@pytest.mark.parametrize("kind", ["sqlite", "mariadb", "postgres"])
def test_the_replay_that_the_log_advises_sends_a_lost_delete_again(kind, cluster, start, tmp_path, request):
    # It advised `--from` with the position of the commit, which is where a replay begins after the commit.
    database = request.getfixturevalue("journal" if kind == "sqlite" else kind)
    if kind == "postgres":
        setup = [PROGRAMS / "lookaside", "invalidator", "setup", "--database", database.url]
        subprocess.run(setup, check=True, capture_output=True)
    liar = RecordingRouter()
    invalidator = Invalidator(database.url, [liar], tmp_path / "state", tmp_path)
    try:
        fill([cluster], ["lost"])
        wait_old([cluster], ["lost"])
        monitor = start(database.url, route_to(cluster), ages="1")
        match kind:
            case "sqlite":
                database.commit("lost")
            case "mariadb":
                with database.connect() as connection, connection.cursor() as cursor:
                    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
                    cursor.execute("INSERT INTO t VALUES (1) /* lookaside: lost */")
            case "postgres":
                with database.connect() as connection:
                    connection.execute("SELECT lookaside_invalidate('lost')")
        eventually(lambda: liar.has("lost"), "the invalidator has sent the delete")
        monitor.wait_looks(["one"], 1, 1)
        (event,) = monitor.findings()
        command = [PROGRAMS / "lookaside", "invalidator", "replay", "--database", database.url, "--cluster",
                   f"one=127.0.0.1:{cluster.port}", *event["replay"].split()]  # fmt: skip
        if kind == "postgres":
            command += ["--state-dir", tmp_path / "state"]
        assert cached([cluster], ["lost"]) == {("one", "lost")}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert cached([cluster], ["lost"]) == set(), done
    finally:
        invalidator.stop()
        liar.stop()


def test_a_killed_monitor_keeps_its_counts_and_its_samples(journal, cluster, start):
    fill([cluster], ["first", "second"])
    wait_old([cluster], ["first", "second"])
    monitor = start(journal.url, route_to(cluster), ages="1,15")
    journal.commit("first")
    monitor.wait_looks(["one"], 1, 1)

    def is_saved() -> bool:
        return monitor.summary()["clusters"][0]["ages"][0]["old"] == 1

    eventually(is_saved, "the count is in the state file", 60)
    monitor.kill()
    # What is committed meanwhile is read when it is back.
    journal.commit("second")
    monitor.start()
    monitor.wait_watching()
    assert monitor.looks("one", 1)["old"] >= 1
    monitor.wait_looks(["one"], 15, 2)
    assert monitor.looks("one", 15) == {"old": 2}
    assert sum(monitor.looks("one", 1).values()) == 2
    assert (monitor.metric("sampled_total"), monitor.metric("deletes_total")) == (2, 2)
    assert monitor.stop() == 0
    assert monitor.summary()["counts"]["sampled"] == 2


def test_postgres_is_read_by_a_slot_that_ends_with_the_monitor(postgres, cluster, start):
    setup = [PROGRAMS / "lookaside", "invalidator", "setup", "--database", postgres.url]
    subprocess.run(setup, check=True, capture_output=True)
    fill([cluster], ["lost:message", "lost:row"])
    wait_old([cluster], ["lost:message", "lost:row"])
    monitor = start(postgres.url, route_to(cluster), ages="1")
    with postgres.connect() as connection:
        slots = "SELECT temporary, slot_name FROM pg_replication_slots"
        ((is_temporary, name),) = connection.execute(slots).fetchall()
        assert is_temporary and name.startswith("lookaside_monitor_")
        connection.execute("SELECT lookaside_invalidate('lost:message')")
        connection.execute("INSERT INTO lookaside_outbox (key) VALUES ('lost:row')")
        monitor.wait_looks(["one"], 1, 2)
        assert monitor.looks("one", 1) == {"old": 2}
        assert monitor.stop() == 0
        eventually(lambda: not connection.execute(slots).fetchall(), "the slot is gone")
        # A restart begins at the present; counts stay.
        connection.execute("SELECT lookaside_invalidate('unseen')")
        monitor.start()
        monitor.wait_watching()
        connection.execute("SELECT lookaside_invalidate('lost:message')")
        monitor.wait_looks(["one"], 1, 3)
        assert monitor.metric("deletes_total") == 3


def test_server_by_server_also_finds_what_no_router_reads(journal, cluster, start):
    # A copy on the server that the pool does not place the key at, as after a change of the pool.
    fill([cluster], ["key"])
    (other,) = [server for server in cluster.servers if not debug(server.port, "key").startswith("ME ")]
    assert connect(other.port).set("key", "copy")
    eventually(lambda: age_min_ms(other.port, "key") > OLD_ENOUGH_MS, "the copy is old", 60)
    servers = ",".join(f"127.0.0.1:{server.port}" for server in cluster.servers)
    monitor = start(journal.url, route_to(cluster), f"--servers=west/each={servers}", ages="1")
    journal.commit("key")
    cluster.client().delete("key")
    monitor.wait_looks(["one", "each"], 1, 1)
    assert monitor.looks("one", 1) == {"absent": 1}
    assert monitor.looks("each", 1) == {"old": 1}
    (event,) = monitor.findings()
    assert event["from"] == f"127.0.0.1:{other.port}"
    assert monitor.stop() == 0
    pairs = {pair["name"]: pair["ages"][0]["old"] for pair in monitor.summary()["region_pairs"]}
    assert pairs == {"local to local": 0, "local to west": 1}


def test_a_cluster_that_does_not_answer_is_counted_and_delays_no_other(journal, clusters, start):
    fill(clusters, ["key"])
    wait_old(clusters, ["key"])
    monitor = start(journal.url, *map(route_to, clusters), "--timeout-ms", "200", ages="1")
    with frozen(clusters[0].router):
        journal.commit("key")
        monitor.wait_looks(NAMES, 1, 1)
    assert monitor.looks("one", 1) == {"failed": 1}
    assert monitor.looks("two", 1) == {"old": 1}
    assert cached(clusters, ["key"]) == {("one", "key"), ("two", "key")}


def test_what_exceeds_the_limits_is_counted(journal, cluster, start):
    fill([cluster], ["key"])
    wait_old([cluster], ["key"])
    monitor = start(journal.url, route_to(cluster), "--pending-max", "3", ages="1")
    journal.commit(*[f"key:{n}" for n in range(10)])
    eventually(lambda: monitor.metric("deletes_total") == 10, "all are read")
    sampled, dropped = monitor.metric("sampled_total"), monitor.metric("dropped_total")
    assert sampled >= 3 and dropped > 0 and sampled + dropped == 10
    assert monitor.stop() == 0


def test_the_figure_is_drawn(journal, cluster, start, tmp_path):
    fill([cluster], ["key"])
    wait_old([cluster], ["key"])
    monitor = start(journal.url, route_to(cluster), ages="1,2")
    journal.commit("key")
    monitor.wait_looks(["one"], 2, 1)
    assert monitor.stop() == 0
    figure = tmp_path / "figure.svg"
    command = [PROGRAMS / "lookaside", "monitor", "--state-dir", monitor.state_dir, "--svg", figure]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "100.0000 %" in table and "local to local" in table
    names = [element.text for element in ElementTree.parse(figure).iter() if element.tag.endswith("text")]
    assert "local to local (1 deletes)" in names and "paper, master region" in names


@pytest.mark.timeout(300)
def test_failed_saves_are_logged_again_and_again(journal, cluster, start):
    # The first failure was logged, and no other one, even if the disk was full for days.
    monitor = start(journal.url, route_to(cluster))
    obstacle = monitor.state_dir / "monitor.json.new"

    def is_blocked() -> bool:
        # The monitor's own temporary file is there for a moment.
        with contextlib.suppress(FileExistsError):
            obstacle.mkdir()
        return obstacle.is_dir()

    eventually(is_blocked, "the state cannot be written")
    eventually(lambda: monitor.log().count("the state cannot be saved") >= 2, "the failure is logged again", 120)
    assert monitor.metric("save_failures_total") >= 2
    obstacle.rmdir()
    (monitor.state_dir / "monitor.json").unlink()
    eventually((monitor.state_dir / "monitor.json").exists, "the state is saved again", 60)


def test_two_monitors_do_not_share_a_state(journal, cluster, start):
    monitor = start(journal.url, route_to(cluster))
    again = subprocess.run(monitor.command, capture_output=True, text=True, timeout=60)
    assert again.returncode == 1 and "in use by another lookaside-monitor" in again.stderr
    command = [PROGRAMS / "lookaside-monitor", "--source", journal.url, "--state-dir", monitor.state_dir]
    nothing = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert nothing.returncode == 2 and "--cluster" in nothing.stderr


def test_an_age_is_shown_through_a_router(cluster):
    fill([cluster], ["key"])
    first = debug(cluster.port, "key")
    assert first.startswith("ME key exp=-1 ") and first.endswith(" hidden=no")
    eventually(lambda: age_min_ms(cluster.port, "key") > 1_000, "an age of a second is known", 60)
    cluster.client().set("key", "again")
    assert age_min_ms(cluster.port, "key") < 1_000
    assert debug(cluster.port, "absent") == "EN"
