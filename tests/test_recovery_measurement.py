"""`make recovery`: what the tests of the invalidator's faults record of their recoveries, and the page that is made of
it."""

import ast
import dataclasses
from types import SimpleNamespace

import pytest
from invalidator_region import Region
from recovery_log import VARIABLE, Recovery, RecoveryLog

from experiments.programs import Unusable
from experiments.region import recovery

KILLED = Recovery(
    test="killed_router",
    setting="statements",
    database="mariadb",
    size=None,
    old_values=300,
    seconds=0.25,
    after_commits_s=None,
    rows=200,
    processes=8,
    fills=1_000,
    memory_bytes=20 << 20,
)


def recovered(**changes) -> Recovery:
    """A recovery as KILLED, but for these fields."""
    return dataclasses.replace(KILLED, **changes)


@pytest.fixture
def region(tmp_path):
    """A region without processes, whose caches are fresh three seconds after the end of a fault."""

    class FreshRegion(Region):
        def wait_fresh(self, clusters=None, since=None, limit_s=0.0) -> float:
            return 3.0

        def count_old_values(self) -> int:
            return 11

        def stop_readers(self) -> int:
            return 7

        def fill(self) -> None:
            pass

        def start_load(self) -> None:
            self.writer = SimpleNamespace(wait_for=lambda commits: None, stop=lambda: None)

    database = SimpleNamespace(kind="mysql", port=1, create_versions=lambda rows: None)
    clusters = [SimpleNamespace(port=port, processes=lambda: range(4)) for port in (2, 3)]
    log = RecoveryLog(tmp_path / "recoveries")
    region = FreshRegion(database, clusters, tmp_path, lambda cost: None, "statements", "killed_router", log)
    region.invalidator = SimpleNamespace(resident_bytes_max=lambda: 30 << 20, stop=lambda: None)
    yield region
    region.writer = None
    region.stop()


def test_a_region_records_its_recovery(region):
    with region.fault():
        pass
    ended = []
    region.recover(lambda: ended.append("fault"), size=5)
    found = recovered(database="mysql", old_values=11, seconds=3.0, size=5, fills=7, memory_bytes=30 << 20)
    assert (region.recoveries.read(), ended) == ([found], ["fault"])


def test_commits_that_go_on_after_the_fault_are_recorded(region):
    with region.fault():
        pass
    # The fault ended a second before the last commit.
    region.recover(since=region.commits_ended - 1)
    (found,) = region.recoveries.read()
    assert (found.seconds, found.after_commits_s, found.old_values) == (3.0, pytest.approx(2.0), None)


def test_nothing_is_recorded_of_a_recovery_in_too_much_memory(region):
    region.invalidator.resident_bytes_max = lambda: 64 << 20
    with pytest.raises(AssertionError):
        region.recover()
    assert region.recoveries.read() == []


def test_recoveries_are_written_if_the_environment_names_a_file(tmp_path):
    RecoveryLog.of({}).add(KILLED)
    assert list(tmp_path.iterdir()) == []
    log = RecoveryLog.of({VARIABLE: str(tmp_path / "recoveries")})
    assert log.read() == []
    for seconds in (1.0, 2.0):
        log.add(recovered(seconds=seconds))
    assert [one.seconds for one in log.read()] == [1.0, 2.0]


def test_each_fault_of_the_tests_has_a_row():
    """A test without one would end a measurement of twenty minutes with an error."""
    tests = [
        node.name.removeprefix("test_")
        for path in recovery.FILES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert sorted(tests) == sorted([*recovery.BY_TEST, *recovery.OTHER_TESTS])


def cells(text: str, name: str) -> list[list[str]]:
    """The cells of the rows of a fault, without its name."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [row[1:] for row in rows if row[0] == name]


def test_a_row_has_median_and_maximum_of_each_database():
    rounds = [recovered(seconds=seconds) for seconds in (0.5, 0.25, 4.0)]
    text = recovery.table(recovery.rows_of([*rounds, recovered(database="postgres", seconds=1.0, old_values=12)]))
    assert cells(text, "a router is killed") == [["the start of the router", "12 to 300", "0.50 / 4.00", "", "1.00"]]


def test_a_fault_with_commits_after_its_end_has_two_rows():
    found = recovered(test="killed_database", old_values=None, seconds=5.0, after_commits_s=0.125)
    text = recovery.table(recovery.rows_of([found]))
    (from_start, from_commits) = cells(text, "the database is killed")
    assert (from_start[2], from_commits) == ("5.00", ["the last of these commits", "", "0.12", "", ""])


def test_sizes_and_settings_have_rows_of_their_own():
    many = [
        recovered(test="many_commits_while_a_cluster_is_down", size=size, setting=setting)
        for size in (100_000, 10_000)
        for setting in ("statements", "rules")
    ]
    names = [row.name for row in recovery.rows_of(many)]
    assert names == [
        "10,000 commits while a router is dead",
        "100,000 commits while a router is dead",
        "10,000 commits while a router is dead (row rules)",
        "100,000 commits while a router is dead (row rules)",
    ]


TESTS = """
import os
import pytest
from recovery_log import Recovery, RecoveryLog

@pytest.mark.parametrize("kind", ["mariadb"])
def test_recovers(kind):
    log = RecoveryLog.of(os.environ)
    log.add(Recovery("killed_router", "statements", kind, {size}, 4, 0.5, None, 200, 8, 9, 5 << 20))

def test_fails():
    assert False

def test_cannot_run():
    pytest.skip("missing")
"""


def test_a_run_of_the_tests_becomes_a_page(tmp_path, monkeypatch):
    monkeypatch.setenv(recovery.SOAK, "1")
    monkeypatch.setenv("PYTHONPATH", str(recovery.ROOT / "tests"))
    file = tmp_path / "test_some.py"
    file.write_text(TESTS.format(size="int(os.environ.get('LOOKASIDE_SOAK', 0))"))
    outcome = recovery.Outcome()
    for is_large in (False, True):
        recovery.run_tests(outcome, [file], soak=is_large)
    assert (outcome.rounds, outcome.has_soak) == (1, True)
    outcome.rounds = 2
    assert [one.size for one in outcome.recoveries] == [0, 1]
    assert (outcome.passed, outcome.failed, outcome.skipped) == (2, {"fails": 2}, {"cannot_run": 2})
    text = recovery.page(outcome, {"processor": "one"})
    for part in ("**Failed: `fails` (2 times).**", "Skipped on this machine: `cannot_run`", "/ maximum", "most 5 MiB"):
        assert part in " ".join(text.split())
    assert "a router is killed" in recovery.draw(recovery.rows_of(outcome.recoveries))


@pytest.mark.parametrize("text", ["import missing_module", "def test_is_interrupted(): raise KeyboardInterrupt", ""])
def test_a_run_that_did_not_end_is_no_round(tmp_path, text):
    file = tmp_path / "test_some.py"
    file.write_text(text)
    outcome = recovery.Outcome()
    with pytest.raises(Unusable, match="exit status"):
        recovery.run_tests(outcome, [file])
    assert outcome == recovery.Outcome()
