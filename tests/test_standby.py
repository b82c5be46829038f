"""Two invalidators of one database: one is active, the other takes its place, and no delete is lost in between.

Each test fills all caches, changes each row once while something fails, and waits until no cache anywhere holds an
older version than the database. How long takeovers took is in the summary of the run.
"""

import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from forwarder import Forwarder, HandshakeProxy
from invalidator_pair import SHARED, PairRegion, url_of
from processes import PROGRAMS, answers, eventually, stats

pytestmark = pytest.mark.timeout(600)


def test_killed_active(pair_region):
    """Its session ends with it, and the standby sees that: it need not wait until the row expires."""
    active, standby, writer = pair_region.begin_with_pair()
    for member in (active, standby):
        eventually(lambda member=member: stats(member.port)["session_lock"] == "1", "the active one's session is seen")
    killed_at = time.monotonic()
    active.kill()
    pair_region.wait_takeover(standby, killed_at)
    assert stats(standby.port)["takeovers_at_session_end"] == "1", standby.log()
    assert "the session of the former one has ended" in standby.log()
    pair_region.finish()


def test_active_behind_a_proxy_that_shares_sessions(pair_region):
    """Its lock would say nothing of it, so there is none: the standby waits until the row expires."""
    proxy = HandshakeProxy(pair_region.database.port)
    try:
        active, standby, writer = pair_region.begin_with_pair(url_of(pair_region.database, proxy.port))
        assert "a proxy between this and the database shares its sessions" in active.log()
        assert stats(active.port)["session_lock"] == stats(standby.port)["session_lock"] == "0"
        killed_at = time.monotonic()
        active.kill()
        pair_region.wait_takeover(standby, killed_at)
        assert stats(standby.port)["takeovers_at_session_end"] == "0", standby.log()
        assert "has not renewed the shared state for 3 s" in standby.log()
        pair_region.finish()
    finally:
        proxy.close()


def test_active_that_hangs_and_resumes(pair_region):
    """The old one has a full memory of positions and deletes; nothing of that may count any more."""
    active, standby, writer = pair_region.begin_with_pair()
    stopped_at = time.monotonic()
    active.freeze()
    # Some tenths of a second; on a loaded machine more, and always less than until the row expires.
    pair_region.wait_takeover(standby, stopped_at, 2.5)
    found = stats(standby.port)
    assert found["takeovers_at_session_end"] == "0", "its session stays open"
    # It has no beats any more: nothing waits until the row expires.
    assert found["takeovers_at_hang"] == "1" and "has shown no sign of life for" in standby.log(), standby.log()
    holder, counter = pair_region.row()
    active.thaw()
    eventually(lambda: active.role() == "standby", "the old one steps down")
    assert "stepping down" in active.log()
    pair_region.finish()
    # It renews once a second, and all that came before may take less.
    eventually(lambda: pair_region.row()[1] > counter, "the new one renews")
    # On a busy machine the new one may be taken for hung in its turn.
    assert pair_region.row()[0] == holder or "has shown no sign of life for" in active.log()
    assert not pair_region.losses()


def test_active_cut_off_from_the_database(pair_region):
    """Its connections stay open at the database, and so does its session that reads the slot of PostgreSQL."""
    link = Forwarder(pair_region.database.port)
    try:
        active, standby, writer = pair_region.begin_with_pair(url_of(pair_region.database, link.port))
        cut_at = time.monotonic()
        link.cut()
        pair_region.wait_takeover(standby, cut_at)
        assert stats(standby.port)["takeovers_at_hang"] == "1", standby.log()
        assert active.role() == "active", "it cannot know"
        writer.wait_for(0.5)
        link.heal()
        eventually(lambda: active.role() == "standby", "the old one steps down")
        pair_region.finish()
        assert not pair_region.losses()
        # Its session was taken for hung, not for ended: it uses its lock again when it is active.
        assert "no session lock from now on" not in active.log(), active.log()
        standby.kill()
        eventually(lambda: active.role() == "active", "it is active again", 30)
        eventually(lambda: stats(active.port)["session_lock"] == "1", "with a session lock")
    finally:
        link.close()


def test_killed_database(pair_region):
    active, standby, writer = pair_region.begin_with_pair()
    pair_region.database.kill()
    killed_at = time.monotonic()
    pair_region.database.restart()
    eventually(lambda: active.is_active() or standby.is_active(), "one is active", 60)
    pair_region.record(f"active {time.monotonic() - killed_at:.2f} s after the kill of the database")
    pair_region.finish()


def test_orderly_end_hands_over_at_once(pair_region):
    active, standby, writer = pair_region.begin_with_pair()
    ended_at = time.monotonic()
    assert active.stop() == 0, active.log()
    pair_region.wait_takeover(standby, ended_at, 2.5)
    pair_region.finish()


def test_third_one_waits_for_both(pair_region):
    active, standby = pair_region.add_pair()
    third = pair_region.add("c")
    eventually(lambda: "this is a standby" in third.log(), "it has seen the active one")
    writer = pair_region.begin()
    writer.wait_for(0.2)
    standby.kill()
    writer.wait_for(0.4)
    assert third.role() == "standby"
    killed_at = time.monotonic()
    active.kill()
    pair_region.wait_takeover(third, killed_at)
    pair_region.finish()


def test_repeated_takeovers_under_load(pair_region):
    active, standby = pair_region.add_pair()
    writer = pair_region.begin()
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
        pair_region.wait_takeover(standby, since)
        match turn % 3:
            case 1:
                active.thaw()
                eventually(lambda active=active: active.role() == "standby", "the old one steps down")
            case _:
                active.start()
                active.wait_ready(lambda active=active: answers(active.port))
        active, standby = standby, active
    pair_region.finish()
    assert stats(active.port)["positions_lost"] == "0"


def test_takeover_while_a_cluster_is_down(pair_region):
    """Its deletes are in the database's log alone, wherever the first invalidator had kept them."""
    active, standby, writer = pair_region.begin_with_pair()
    cluster = pair_region.clusters[1]
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
    pair_region.finish()
    assert stats(standby.port)["positions_lost"] == "0"


@pytest.mark.parametrize("own_database", ["postgres"], indirect=True)
def test_takeover_repeats_a_change_that_is_not_in_the_log(pair_region, tmp_path):
    """PostgreSQL's log does not have the TRUNCATE of a partition: the first one alone knew of the flush."""
    parts = "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY LIST (id)"
    pair_region.database.run(parts, "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1)")
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\ntable = 'public.parts'\nkeys = ['part:{id}']\notherwise = 'flush-cluster'\n")
    setup = [PROGRAMS / "lookaside", "invalidator", "setup", "--rules", rules, "--database", pair_region.database.url]
    done = subprocess.run(setup, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    active = pair_region.add("a", *SHARED, "--rules", rules)
    eventually(active.is_active, f"the first is active: {active.log()}")
    standby = pair_region.add("b", *SHARED, "--rules", rules)
    eventually(lambda: "this is a standby" in standby.log(), "the second one has seen it")
    state = "SELECT state FROM lookaside_invalidator"
    eventually(lambda: '"parts"' in pair_region.database.run(state)[0][0], "the first look is shared")
    for cluster in pair_region.clusters:
        assert cluster.client(30).set("part:1", "old")
    one, two = pair_region.clusters
    two.router.kill()
    pair_region.database.run("TRUNCATE parts_1")
    eventually(lambda: one.client(30).get("part:1") is None, "the other cluster is flushed", 30)
    active.kill()
    eventually(lambda: stats(standby.port)["role"] == "active", "the standby is active", 30)
    two.router.start()
    two.router.wait_ready(lambda: answers(two.port))
    eventually(lambda: two.client(30).get("part:1") is None, "the cluster that was down is flushed", 30)
    assert not pair_region.losses()


def test_failover_to_a_promoted_replica(pair_region, tmp_path):
    """The table is in the log, so the replica has it, and of PostgreSQL it is given the slot."""
    assert fail_over(pair_region, tmp_path, keeps_slot=True) == []


@pytest.mark.parametrize("own_database", ["postgres"], indirect=True)
def test_failover_of_postgresql_without_the_slot(pair_region, tmp_path):
    """The position is lost, so the clusters are flushed, and the slot is created again."""
    pair_region.arguments = (*SHARED, "--on-position-lost", "flush")
    assert fail_over(pair_region, tmp_path, keeps_slot=False) == ["positions_lost", "spool_gaps"]


def fail_over(region: PairRegion, folder: Path, keeps_slot: bool) -> list[str]:
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


def test_one_write_a_second_however_busy(pair_region):
    """A write is a commit, which moves the position, which is saved."""
    pair_region.add("a")
    writer = pair_region.begin()
    writer.wait_for(0.1)
    (_, before), since = pair_region.row(), time.monotonic()
    writer.allowed = 1.0
    writer.join(120)
    (_, after), seconds = pair_region.row(), time.monotonic() - since
    assert after - before <= seconds + 2, f"{after - before} writes in {seconds:.1f} s"
