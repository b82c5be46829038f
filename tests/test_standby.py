"""Two invalidators of one database: one is active, the other takes its place, and no delete is lost in between.

Each test fills all caches, changes each row once while something fails, and waits until no cache anywhere holds an
older version than the database. How long takeovers took is in the summary of the run.
"""

import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from forwarder import Forwarder
from processes import PROGRAMS, Cluster, Process, answers, connect, eventually, free_port, stats
from replicated import SERVERS
from tools import need

ROWS = 3_000
TAKEOVER_S = 5.0
RECOVERY_S = 60.0

pytestmark = pytest.mark.timeout(600)


def url_of(database, port: int | None = None) -> str:
    """As `--source` takes it, by another port if given, with the account of the invalidators."""
    scheme = "postgres" if database.kind == "postgres" else "mysql"
    return f"{scheme}://lookaside:secret@127.0.0.1:{port or database.port}/app"


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


class Region:
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


@pytest.fixture(params=SERVERS)
def database(request, tmp_path):
    """A server of each kind."""
    if request.param == "mysql":
        need("mysql")
    database = SERVERS[request.param](tmp_path)
    yield database
    database.stop()


@pytest.fixture
def region(database, flushable_clusters, tmp_path, request):
    """A region without an invalidator yet."""

    def record(text: str) -> None:
        name = request.node.name.removeprefix("test_")
        request.node.user_properties.append(("recovery", f"{name}: {text}"))

    region = Region(database, flushable_clusters, tmp_path, record)
    yield region
    region.stop()


def test_killed_active(region):
    active, standby, writer = region.begin_with_pair()
    killed_at = time.monotonic()
    active.kill()
    region.wait_takeover(standby, killed_at)
    region.finish()


def test_active_that_hangs_and_resumes(region):
    """The old one has a full memory of positions and deletes; nothing of that may count any more."""
    active, standby, writer = region.begin_with_pair()
    stopped_at = time.monotonic()
    active.freeze()
    region.wait_takeover(standby, stopped_at)
    holder, counter = region.row()
    active.thaw()
    eventually(lambda: active.role() == "standby", "the old one steps down")
    assert "stepping down" in active.log()
    region.finish()
    # It renews once a second, and all that came before may take less.
    eventually(lambda: region.row()[1] > counter, "the new one renews")
    assert region.row()[0] == holder
    assert not region.losses()


def test_active_cut_off_from_the_database(region):
    """Its connections stay open at the database, and so does its session that reads the slot of PostgreSQL."""
    link = Forwarder(region.database.port)
    try:
        active, standby, writer = region.begin_with_pair(url_of(region.database, link.port))
        cut_at = time.monotonic()
        link.cut()
        region.wait_takeover(standby, cut_at)
        assert active.role() == "active", "it cannot know"
        writer.wait_for(0.5)
        link.heal()
        eventually(lambda: active.role() == "standby", "the old one steps down")
        region.finish()
        assert not region.losses()
    finally:
        link.close()


def test_killed_database(region):
    active, standby, writer = region.begin_with_pair()
    region.database.kill()
    killed_at = time.monotonic()
    region.database.restart()
    eventually(lambda: active.is_active() or standby.is_active(), "one is active", 60)
    region.record(f"active {time.monotonic() - killed_at:.2f} s after the kill of the database")
    region.finish()


def test_orderly_end_hands_over_at_once(region):
    active, standby, writer = region.begin_with_pair()
    ended_at = time.monotonic()
    assert active.stop() == 0, active.log()
    region.wait_takeover(standby, ended_at, 2.5)
    region.finish()


def test_one_without_shared_state_disturbs_neither_of_a_pair(region):
    """It took the slot of PostgreSQL when the active one died, and the standby found that it had been confirmed."""
    active, standby = region.add_pair()
    writer = region.begin()
    writer.wait_for(0.2)
    single = region.add("single", "--on-position-lost", "flush")
    if region.database.kind == "postgres":
        eventually(lambda: "another process reads the replication slot" in single.log(), "it names the reader")
    writer.wait_for(0.3)
    killed_at = time.monotonic()
    active.kill()
    region.wait_takeover(standby, killed_at)
    writer.wait_for(0.5)
    single.stop()
    assert "lost" not in single.log(), single.log()
    region.finish()
    assert not region.losses()


def test_standby_with_other_clusters_reports_both_lists(region):
    active = region.add("a")
    eventually(active.is_active, "it is active")
    other = Member("b", region.url, region.clusters[:1], region.folder, *SHARED)
    region.members.append(other)
    eventually(lambda: "--cluster: one,two there, one here" in other.log(), "it has logged both")
    assert stats(other.port)["shared_options_differ"] == "1" and stats(active.port)["shared_options_differ"] == "0"
    active.kill()
    eventually(lambda: "takes over with other options" in other.log(), "it says so again")
    eventually(other.is_active, "it is active nevertheless")


def test_third_one_waits_for_both(region):
    active, standby = region.add_pair()
    third = region.add("c")
    eventually(lambda: "this is a standby" in third.log(), "it has seen the active one")
    writer = region.begin()
    writer.wait_for(0.2)
    standby.kill()
    writer.wait_for(0.4)
    assert third.role() == "standby"
    killed_at = time.monotonic()
    active.kill()
    region.wait_takeover(third, killed_at)
    region.finish()


def test_repeated_takeovers_under_load(region):
    active, standby = region.add_pair()
    writer = region.begin()
    for turn, share in enumerate((0.1, 0.25, 0.4, 0.55, 0.7, 0.85)):
        writer.wait_for(share)
        since = time.monotonic()
        match turn % 3:
            case 0:
                active.kill()
            case 1:
                active.freeze()
            case 2:
                active.stop()
        region.wait_takeover(standby, since)
        match turn % 3:
            case 1:
                active.thaw()
                eventually(lambda active=active: active.role() == "standby", "the old one steps down")
            case _:
                active.start()
                active.wait_ready(lambda active=active: answers(active.port))
        active, standby = standby, active
    region.finish()
    assert stats(active.port)["positions_lost"] == "0"


def test_takeover_while_a_cluster_is_down(region):
    """Its deletes are in the database's log alone, wherever the first invalidator had kept them."""
    active, standby, writer = region.begin_with_pair()
    cluster = region.clusters[1]
    cluster.router.kill()
    writer.wait_for(0.4)
    before = stats(active.port)["cluster:two:position"]
    eventually(lambda: stats(active.port)["cluster:one:position"] != before, "the other cluster goes on")
    writer.wait_for(0.6)
    active.kill()
    eventually(lambda: stats(standby.port)["role"] == "active", "the standby is active")
    writer.wait_for(0.8)
    cluster.router.start()
    cluster.router.wait_ready(lambda: answers(cluster.port))
    eventually(standby.is_active, "the cluster catches up")
    region.finish()
    assert stats(standby.port)["positions_lost"] == "0"


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_takeover_repeats_a_change_that_is_not_in_the_log(region, tmp_path):
    """PostgreSQL's log does not have the TRUNCATE of a partition: the first one alone knew of the flush."""
    parts = "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY LIST (id)"
    region.database.run(parts, "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1)")
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\ntable = 'public.parts'\nkeys = ['part:{id}']\notherwise = 'flush-cluster'\n")
    setup = [PROGRAMS / "lookaside", "invalidator", "setup", "--rules", rules, "--database", region.database.url]
    done = subprocess.run(setup, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    active = region.add("a", *SHARED, "--rules", rules)
    eventually(active.is_active, f"the first is active: {active.log()}")
    standby = region.add("b", *SHARED, "--rules", rules)
    eventually(lambda: "this is a standby" in standby.log(), "the second one has seen it")
    state = "SELECT state FROM lookaside_invalidator"
    eventually(lambda: '"parts"' in region.database.run(state)[0][0], "the first look is shared")
    for cluster in region.clusters:
        assert cluster.client(30).set("part:1", "old")
    one, two = region.clusters
    two.router.kill()
    region.database.run("TRUNCATE parts_1")
    eventually(lambda: one.client(30).get("part:1") is None, "the other cluster is flushed", 30)
    active.kill()
    eventually(lambda: stats(standby.port)["role"] == "active", "the standby is active", 30)
    two.router.start()
    two.router.wait_ready(lambda: answers(two.port))
    eventually(lambda: two.client(30).get("part:1") is None, "the cluster that was down is flushed", 30)
    assert not region.losses()


def test_one_invalidator_becomes_two(region):
    """It begins at the position in its folder. The slot of PostgreSQL may be beyond that: the clusters are flushed."""
    flush = ("--on-position-lost", "flush")
    single = region.add("a", *flush)
    eventually(single.is_active, "it runs by itself")
    writer = region.begin()
    writer.wait_for(0.2)
    single.kill()
    writer.wait_for(0.4)
    active = region.add("a", *SHARED, *flush)
    eventually(active.is_active, "it is active")
    assert "beginning at the position in --state-dir" in active.log()
    region.add("b", *SHARED, *flush)
    region.finish()
    if region.database.kind != "postgres":
        assert stats(active.port)["positions_lost"] == "0"


def test_two_invalidators_become_one_again(region):
    """Its files had the positions of before there were two, which the slot of PostgreSQL had left far behind."""
    flush = ("--on-position-lost", "flush")
    single = region.add("a", *flush)
    eventually(single.is_active, "it runs by itself")
    single.stop()
    active = region.add("a", *SHARED, *flush)
    eventually(active.is_active, "it is active")
    writer = region.begin()
    writer.wait_for(0.4)
    active.stop()
    region.database.run("DELETE FROM lookaside_invalidator")
    writer.wait_for(0.6)
    again = region.add("a", "--on-position-lost", "stop")
    eventually(again.is_active, f"it runs by itself: {again.log()}")
    region.finish()
    assert not region.losses()


def test_failover_to_a_promoted_replica(region, tmp_path):
    """The table is in the log, so the replica has it, and of PostgreSQL it is given the slot."""
    assert fail_over(region, tmp_path, keeps_slot=True) == []


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_failover_of_postgresql_without_the_slot(region, tmp_path):
    """The position is lost, so the clusters are flushed, and the slot is created again."""
    region.arguments = (*SHARED, "--on-position-lost", "flush")
    assert fail_over(region, tmp_path, keeps_slot=False) == ["positions_lost", "spool_gaps"]


def fail_over(region: Region, folder: Path, keeps_slot: bool) -> list[str]:
    """A replica that has received everything takes the place of the primary, and rows change before and after that.
    Returns what the invalidators have counted as lost."""
    link, replica = Forwarder(region.database.port), None
    try:
        replica = type(region.database).replicate(region.database, folder)
        region.url = url_of(region.database, link.port)
        _, _, writer = region.begin_with_pair()
        eventually(lambda: not writer.may_commit(), "the writer pauses")
        # Replication is asynchronous: nothing may be lost, not even a renewal.
        lock = region.database.connect()
        region.database.lock_out_writers(lock)
        tables = ("versions", "lookaside_invalidator")

        def is_replicated() -> bool:
            with suppress(*replica.errors):
                return all(
                    sorted(replica.run(f"SELECT * FROM {t}")) == sorted(region.database.run(f"SELECT * FROM {t}"))
                    for t in tables
                )
            return False

        eventually(is_replicated, "the replica has everything", 60)
        region.database.kill()
        killed_at = time.monotonic()
        if keeps_slot:
            replica.take_slot(region.database)
        replica.promote()
        region.database = writer.database = replica
        link.switch(replica.port)
        eventually(lambda: any(member.is_active() for member in region.members), "one is active", 60)
        region.record(f"active {time.monotonic() - killed_at:.2f} s after the kill of the primary")
        region.finish()
        return region.losses()
    finally:
        region.stop()
        link.close()
        if replica:
            replica.stop()


def test_one_write_a_second_however_busy(region):
    """A write is a commit, which moves the position, which is saved."""
    region.add("a")
    writer = region.begin()
    writer.wait_for(0.1)
    (_, before), since = region.row(), time.monotonic()
    writer.allowed = 1.0
    writer.join(120)
    (_, after), seconds = region.row(), time.monotonic() - since
    assert after - before <= seconds + 2, f"{after - before} writes in {seconds:.1f} s"


def test_missing_table_is_named_and_used_once_it_is_there(region):
    region.database.run("DROP TABLE lookaside_invalidator")
    member = region.add("a")
    eventually(lambda: "CREATE TABLE IF NOT EXISTS" in member.log(), "the log has the statement")
    assert member.role() == "standby" and int(stats(member.port)["shared_state_failures"]) > 0
    region.run_setup()
    eventually(member.is_active, "it is active")


def test_replay_beside_a_pair(region):
    """It reads the log, or with PostgreSQL the spool of the active one. It saves nothing, and no takeover follows."""
    active, standby = region.add_pair()
    cluster, keys = region.clusters[0], [f"row:{row}" for row in range(20)]
    client = cluster.client(30)

    def change_rows(active: Member) -> None:
        """Changes rows, and puts old values back behind the invalidator."""
        before = int(stats(active.port)["cluster:one:invalidations"])
        region.database.run(*(region.database.change(row) for row in range(len(keys))))
        eventually(
            lambda: int(stats(active.port)["cluster:one:invalidations"]) >= before + len(keys), "all are deleted", 30
        )
        assert client.set_many(dict.fromkeys(keys, "restored from an old copy")) == []

    def replay(member: Member, *options: str) -> subprocess.CompletedProcess:
        """A replay on the host of `member`."""
        command = [
            PROGRAMS / "lookaside", "invalidator", "replay", "--database", region.url,
            "--cluster", f"one=127.0.0.1:{cluster.port}", *options,
        ]  # fmt: skip
        if region.database.kind == "postgres":
            command += ["--state-dir", region.folder / f"state-{member.name.removeprefix('invalidator-')}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    change_rows(active)
    holder, counter = region.row()
    done = replay(active, "--from", "earliest")
    assert done.returncode == 0 and client.get_many(keys) == {}, done
    eventually(lambda: region.row()[1] > counter, "the active one renews")
    assert (region.row()[0], active.role(), standby.role()) == (holder, "active", "standby")
    if region.database.kind != "postgres":
        return
    none = replay(standby, "--from", "earliest")
    assert none.returncode == 1 and "has no spool of an invalidator" in none.stderr, none
    active.kill()
    region.wait_takeover(standby, time.monotonic())
    change_rows(standby)
    # The new one has what it has read since, and the old one's disk what was before.
    late = replay(standby, "--since", "1h")
    assert late.returncode == 1 and "the log begins at" in late.stderr and client.get_many(keys) == {}, late
    assert client.set_many(dict.fromkeys(keys, "restored once more")) == []
    assert replay(active, "--from", "earliest").returncode == 0 and client.get_many(keys) == {}
