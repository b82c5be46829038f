"""The procedures of docs/operating/regions.md for PostgreSQL, by the commands that the page prints."""

import pytest
from operating_page import OperatingPage, run_commands, start_commands
from processes import eventually
from region_pair import ROWS, LogicalRegionPair, LogicalRegionTrio, Users, return_to_service
from regional_users import RegionalUsers, check_promoted, direct_users, wait_promoted

pytestmark = pytest.mark.timeout(300)

PAGE = OperatingPage("regions")


@pytest.fixture
def pair(tmp_path):
    pair = LogicalRegionPair(tmp_path)
    yield pair
    pair.close()


@pytest.fixture
def trio(tmp_path):
    trio = LogicalRegionTrio(tmp_path)
    yield trio
    trio.close()


def waits_for_north(connection) -> bool:
    """Whether the commands ask the old master what north has, as they do several times a second."""
    asked = "query LIKE '%= ''north_from_east''%' AND pid <> pg_backend_pid()"
    return connection.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {asked}").fetchone()[0] > 0


def test_promotion_under_load(trio, tmp_path):
    """Both replicas are behind when the promotion begins; no acknowledged commit is lost, no cache is left stale, and
    no marker stays."""
    define, *until_promoted, wait, wait_with_north = PAGE.commands("## Promote a replica of PostgreSQL")
    names = [region.name for region in trio.regions]
    users = RegionalUsers(trio.regions, trio.east.database)
    try:
        users.wait_for_commits(100)
        users.wait_for_rounds(*names)
        users.leave_markers()
        trio.link.cut()
        trio.link_north.cut()
        users.wait_for_commits(20)
        shell = start_commands(define + "".join(until_promoted), trio.settings(), tmp_path)
        eventually(lambda: users.refusals.total() > 0, "the old master refuses writes", 60)
        assert shell.poll() is None, "the commands wait for the replica"
        trio.link.heal()
        direct_users(trio, users, shell)
        with trio.east.database.connect() as watching:
            eventually(lambda: waits_for_north(watching), "the commands wait for north", 60)
        trio.link_north.heal()
        wait_promoted(shell, trio.regions)
        acknowledged_before = users.acknowledged.copy()
        sampled_before = trio.monitor.metric("sampled_total")
        users.resume_writes()
        users.wait_for_commits(100)
        run_commands(define + wait + wait_with_north, trio.settings(), tmp_path)
        users.wait_for_commits(100)
        users.wait_for_rounds(*names)
    finally:
        users.stop()
    assert all(users.acknowledged[row] > acknowledged_before[row] for row in range(ROWS))
    check_promoted(trio, users)
    assert trio.monitor.metric("sampled_total") > sampled_before
    assert set(users.refusals) == {"InsufficientPrivilege"}, "the new master takes each write at once"


def test_a_transaction_that_is_open_is_waited_for(pair, tmp_path):
    """Its commit would be lost, had the new master everything before it."""
    define, stop_and_wait, *_ = PAGE.commands("## Promote a replica of PostgreSQL")
    east = pair.east.database
    with east.connect_application() as writer:
        writer.execute("BEGIN")
        writer.execute(east.change(7))
        shell = start_commands(define + stop_and_wait, pair.settings(), tmp_path)
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        eventually(lambda: east.run(waiting) == [(1,)], "the commands wait for the transaction", 60)
        assert shell.poll() is None
        writer.execute("COMMIT")
        output, _ = shell.communicate(timeout=120)
    assert shell.returncode == 0, output
    assert pair.west.versions()[7] == 1


def test_promotion_after_the_death_of_the_master(pair, tmp_path):
    users = Users(pair.regions, pair.east.database)
    try:
        users.wait_for_commits(100)
        users.wait_for_rounds("east", "west")
        pair.east.database.kill()
        run_commands("".join(PAGE.commands("### If the master of PostgreSQL is dead")), pair.settings(), tmp_path)
        before = users.acknowledged.copy()
        users.master = pair.west.database
        users.wait_for_commits(3 * ROWS)
        users.wait_for_rounds("west")
    finally:
        users.stop()
    assert "UniqueViolation" not in users.refusals, "sequences go on behind what was replicated"
    versions = pair.west.versions()
    assert all(versions[row] >= users.acknowledged[row] - before[row] for row in range(ROWS))
    eventually(pair.west.is_fresh, "no cache of the new master's region is old", 60)
    assert [reversal for reversal in users.reversals if reversal.startswith("west")] == []


def test_a_region_out_of_service_and_back(pair, tmp_path):
    """Its servers keep their values meanwhile; none that is old is read afterwards."""
    define, *_ = PAGE.commands("## Promote a replica of PostgreSQL")
    _, catch_up, wait_for_gate = PAGE.commands("## Take a region out of service, and back")
    west = pair.west
    west.fill()
    assert len(west.cached()) == ROWS
    west.cluster.router.stop()
    west.invalidator.stop()
    west.database.kill()
    for row in range(ROWS):
        pair.east.database.run(pair.east.database.change(row))
    west.database.restart()
    run_commands(define + catch_up, pair.settings(), tmp_path)
    return_to_service(pair, wait_for_gate, tmp_path)
