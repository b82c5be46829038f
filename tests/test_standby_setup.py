"""Two invalidators of one database: how one becomes two and two become one, which options they must have in common, and
what other programs do beside them."""

import subprocess
import time

import pytest
from invalidator_pair import SHARED, Member
from processes import PROGRAMS, eventually, stats

pytestmark = pytest.mark.timeout(600)


def test_one_without_shared_state_disturbs_neither_of_a_pair(pair_region):
    """It took the slot of PostgreSQL when the active one died, and the standby found that it had been confirmed."""
    active, standby = pair_region.add_pair()
    writer = pair_region.begin()
    writer.wait_for(0.2)
    single = pair_region.add("single", "--on-position-lost", "flush")
    if pair_region.database.kind == "postgres":
        eventually(lambda: "another process reads the replication slot" in single.log(), "it names the reader")
    writer.wait_for(0.3)
    killed_at = time.monotonic()
    active.kill()
    pair_region.wait_takeover(standby, killed_at)
    writer.wait_for(0.5)
    single.stop()
    # The account may not list prepared transactions, of which a warning says that they would be lost.
    lines = [line for line in single.log().splitlines() if "XA RECOVER failed" not in line]
    assert not any("lost" in line for line in lines), single.log()
    pair_region.finish()
    assert not pair_region.losses()


def test_standby_with_other_clusters_reports_both_lists(pair_region):
    active = pair_region.add("a")
    eventually(active.is_active, "it is active")
    other = Member("b", pair_region.url, pair_region.clusters[:1], pair_region.folder, *SHARED)
    pair_region.members.append(other)
    eventually(lambda: "--cluster: one,two there, one here" in other.log(), "it has logged both")
    assert stats(other.port)["shared_options_differ"] == "1" and stats(active.port)["shared_options_differ"] == "0"
    active.kill()
    eventually(lambda: "takes over with other options" in other.log(), "it says so again")
    eventually(other.is_active, "it is active nevertheless")


def test_one_invalidator_becomes_two(pair_region):
    """It begins at the position in its folder. The slot of PostgreSQL may be beyond that: the clusters are flushed."""
    flush = ("--on-position-lost", "flush")
    single = pair_region.add("a", *flush)
    eventually(single.is_active, "it runs by itself")
    writer = pair_region.begin()
    writer.wait_for(0.2)
    single.kill()
    writer.wait_for(0.4)
    active = pair_region.add("a", *SHARED, *flush)
    eventually(active.is_active, "it is active")
    assert "beginning at the position in --state-dir" in active.log()
    pair_region.add("b", *SHARED, *flush)
    pair_region.finish()
    if pair_region.database.kind != "postgres":
        assert stats(active.port)["positions_lost"] == "0"


def test_two_invalidators_become_one_again(pair_region):
    """Its files had the positions of before there were two, which the slot of PostgreSQL had left far behind."""
    flush = ("--on-position-lost", "flush")
    single = pair_region.add("a", *flush)
    eventually(single.is_active, "it runs by itself")
    single.stop()
    active = pair_region.add("a", *SHARED, *flush)
    eventually(active.is_active, "it is active")
    writer = pair_region.begin()
    writer.wait_for(0.4)
    active.stop()
    pair_region.database.run("DELETE FROM lookaside_invalidator")
    writer.wait_for(0.6)
    again = pair_region.add("a", "--on-position-lost", "stop")
    eventually(again.is_active, f"it runs by itself: {again.log()}")
    pair_region.finish()
    assert not pair_region.losses()


def test_missing_table_is_named_and_used_once_it_is_there(pair_region):
    pair_region.database.run("DROP TABLE lookaside_invalidator")
    member = pair_region.add("a")
    eventually(lambda: "CREATE TABLE IF NOT EXISTS" in member.log(), "the log has the statement")
    assert member.role() == "standby" and int(stats(member.port)["shared_state_failures"]) > 0
    pair_region.run_setup()
    eventually(member.is_active, "it is active")


def test_replay_beside_a_pair(pair_region):
    """It reads the log, or with PostgreSQL the spool of the active one. It saves nothing, and no takeover follows."""
    active, standby = pair_region.add_pair()
    cluster, keys = pair_region.clusters[0], [f"row:{row}" for row in range(20)]
    client = cluster.client(30)

    def change_rows(active: Member) -> None:
        """Changes rows, and puts old values back behind the invalidator."""
        before = int(stats(active.port)["cluster:one:invalidations"])
        pair_region.database.run(*(pair_region.database.change(row) for row in range(len(keys))))
        eventually(
            lambda: int(stats(active.port)["cluster:one:invalidations"]) >= before + len(keys), "all are deleted", 30
        )
        assert client.set_many(dict.fromkeys(keys, "restored from an old copy")) == []

    def replay(member: Member, *options: str) -> subprocess.CompletedProcess:
        """A replay on the host of `member`."""
        command = [
            PROGRAMS / "lookaside", "invalidator", "replay", "--database", pair_region.url,
            "--cluster", f"one=127.0.0.1:{cluster.port}", *options,
        ]  # fmt: skip
        if pair_region.database.kind == "postgres":
            command += ["--state-dir", pair_region.folder / f"state-{member.name.removeprefix('invalidator-')}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    change_rows(active)
    holder, counter = pair_region.row()
    done = replay(active, "--from", "earliest")
    assert done.returncode == 0 and client.get_many(keys) == {}, done
    eventually(lambda: pair_region.row()[1] > counter, "the active one renews")
    assert (pair_region.row()[0], active.role(), standby.role()) == (holder, "active", "standby")
    if pair_region.database.kind != "postgres":
        return
    none = replay(standby, "--from", "earliest")
    assert none.returncode == 1 and "has no spool of an invalidator" in none.stderr, none
    active.kill()
    pair_region.wait_takeover(standby, time.monotonic())
    change_rows(standby)
    # The new one has what it has read since, and the old one's disk what was before.
    late = replay(standby, "--since", "1h")
    assert late.returncode == 1 and "the log begins at" in late.stderr and client.get_many(keys) == {}, late
    assert client.set_many(dict.fromkeys(keys, "restored once more")) == []
    assert replay(active, "--from", "earliest").returncode == 0 and client.get_many(keys) == {}


@pytest.mark.parametrize("own_database", ["mariadb"], indirect=True)
def test_rules_that_differ_are_reported_until_they_are_the_same(pair_region, tmp_path):
    """An operator changes the files of both one after the other; both read them again while they run."""
    files = {name: tmp_path / f"rules-{name}.toml" for name in "ab"}

    def write(name: str, key: str) -> None:
        files[name].write_text(f"[[rule]]\ntable = 'app.versions'\nkeys = ['{key}:{{id}}']\n")

    for name in files:
        write(name, "row")
    active = pair_region.add("a", *SHARED, "--rules", str(files["a"]))
    eventually(active.is_active, f"the first is active: {active.log()}")
    standby = pair_region.add("b", *SHARED, "--rules", str(files["b"]))
    eventually(lambda: "this is a standby" in standby.log(), "the second one has seen it")

    def differs() -> str:
        return stats(standby.port)["shared_options_differ"]

    assert differs() == "0", standby.log()
    write("b", "other")
    eventually(lambda: differs() == "1", "the standby has read its file, and compares")
    write("a", "other")
    eventually(lambda: differs() == "0", "the active one has read its file, and its record shows it")
    write("a", "row")
    eventually(lambda: differs() == "1", "the active one has read its file again")
