"""The fault injector's checker and its schedules."""

import contextlib
import socket
import threading
from types import SimpleNamespace

import pytest
from chaos import faults as chaos_faults
from chaos.checker import ACKNOWLEDGED, NEVER_WRITTEN, TOO_STALE, Checker, compose_value
from chaos.faults import PROCESS_KINDS, RESIZE_KINDS, Event, Fault, Injector, overlap_s, schedule
from chaos.region import ETCD, FILE, Layout
from processes import eventually


class History:
    """A checker with one key, whose version 2 was committed at 10 s and confirmed to be deleted at 11 s."""

    def __init__(self) -> None:
        self.checker = Checker(["row:1"], ["one", "two"], stale_ms_max=1500)
        assert self.checker.begin_commit("row:1") == 2
        self.checker.record_commit("row:1", 2, 10.0, sequence=7)
        self.checker.record_position("one", 6, 10.5)
        assert self.checker.acknowledged("one", "row:1").version == 0
        self.checker.record_position("one", 7, 11.0)

    def found(self, cluster: str, value: bytes, begin_s: float) -> list[str]:
        """What a read of that value is."""
        floor = self.checker.acknowledged(cluster, "row:1")
        self.checker.check_read(cluster, f"{cluster}-router-1", "row:1", value, begin_s, floor)
        return [violation.kind for violation in self.checker.violations]


@pytest.mark.parametrize(
    "cluster, version, begin_s, kinds",
    [
        ("one", 2, 20.0, []),
        ("two", 1, 9.0, []),
        ("two", 1, 11.0, []),
        ("one", 1, 11.2, [ACKNOWLEDGED]),
        ("two", 1, 11.6, [TOO_STALE]),
        ("two", 3, 12.0, [NEVER_WRITTEN]),
    ],
)
def test_a_read_is_compared_with_the_commits_and_deletes_before_it(cluster, version, begin_s, kinds):
    assert History().found(cluster, compose_value("row:1", version), begin_s) == kinds


def test_a_value_of_another_key_or_cut_off_was_never_written():
    for value in (compose_value("row:2", 1), compose_value("row:1", 1)[:-1], b"", b"row:1 x y"):
        assert History().found("two", value, 12.0) == [NEVER_WRITTEN]


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_gives_one_schedule_and_each_fault_can_be_repeated(seed):
    layout, kinds = Layout(routers=3, is_resized=True), [*PROCESS_KINDS, *RESIZE_KINDS]
    faults = schedule(seed, layout, kinds, 60.0, 1.0, 6.0)
    assert faults == schedule(seed, layout, kinds, 60.0, 1.0, 6.0) != schedule(seed + 1, layout, kinds, 60.0, 1.0, 6.0)
    assert [Fault.parse(str(fault)) for fault in faults] == faults
    assert all(fault.at_s + fault.seconds <= 60.01 for fault in faults)


@pytest.mark.parametrize("waits_for_targets", [True, False])
def test_a_given_fault_waits_for_its_target_and_one_of_a_seed_is_left_out(monkeypatch, waits_for_targets):
    given = [Fault.parse(text) for text in ("kill:one-server-1@0+0.01", "hang:one-server-1@0.05+0.01")]

    def is_second_due() -> bool:
        return bool(injector.skipped) or any(thread.name == str(given[1]) for thread in threading.enumerate())

    @contextlib.contextmanager
    def recovers_late(_region, fault, _rng):
        yield
        if fault == given[0]:
            eventually(is_second_due, "the second fault waits, or is left out", 60)

    monkeypatch.setattr(chaos_faults, "apply", recovers_late)
    failures = []
    injector = Injector(None, given, 1, failures.append, waits_for_targets)
    injector.start()
    injector.join()
    assert failures == []
    assert [event.fault for event in injector.events] == (given if waits_for_targets else given[:1])
    assert injector.skipped == ([] if waits_for_targets else given[1:])
    ends = [event.recovered_s for event in injector.events]
    assert all(event.begin_s >= end for event, end in zip(injector.events[1:], ends, strict=False))


@pytest.mark.parametrize(
    "away_s, kinds",
    [
        (0.0, [TOO_STALE]),
        (0.05, [TOO_STALE]),
        (0.2, []),
    ],
)
def test_a_read_may_be_older_by_the_time_in_which_the_database_was_away(away_s, kinds):
    history = History()
    asked = []
    history.checker.database_away_s = lambda begin_s, end_s: asked.append((begin_s, end_s)) or away_s
    # It was replaced at 10 s, and may be old for 1.5 s.
    assert history.found("two", compose_value("row:1", 1), 11.6) == kinds
    assert asked == [(pytest.approx(10.0), 11.6)]


@pytest.mark.parametrize(
    "fault, begin_s, end_s, away_s",
    [
        ("kill:database@0+4", 11.0, 14.0, 3.0),
        ("kill:database@0+4", 8.0, 20.0, 4.5),
        # TCP may wait for as long as the cut was.
        ("partition:database@0+4", 8.0, 20.0, 8.5),
        ("partition:database@0+4", 18.5, 20.0, 0.0),
        ("partition:invalidator=database@0+4", 8.0, 20.0, 0.0),
        ("partition:etcd@0+4", 8.0, 20.0, 0.0),
    ],
)
def test_the_database_is_away_while_it_fails_or_is_cut_off_from_all(fault, begin_s, end_s, away_s):
    injector = Injector(None, [], 1, print)
    injector.events = [Event(Fault.parse(fault), 10.0, 14.0, 14.5)]
    assert injector.database_away_s(begin_s, end_s) == pytest.approx(away_s)


def test_a_fault_that_lasts_has_no_end_yet():
    assert Event(Fault.parse("hang:database@0+4"), 10.0).absence() == (10.0, float("inf"))


def test_times_that_overlap_are_counted_once():
    assert overlap_s([(3, 5), (1, 4), (7, 9), (2, 3), (20, 30)], 0, 8) == 5
    assert overlap_s([], 0, 8) == overlap_s([(8, 9)], 0, 8) == 0


@pytest.mark.parametrize("history, drawn", [(FILE, {"database"}), (ETCD, {"database", "etcd"})])
def test_a_seed_can_draw_that_the_database_or_etcd_is_cut_off(history, drawn):
    layout = Layout(history=history)
    faults = [fault for seed in range(40) for fault in schedule(seed, layout, [*PROCESS_KINDS], 60.0, 1.0, 6.0)]
    cut_off = {fault.target for fault in faults if fault.kind == "partition"}
    assert cut_off & {"database", "etcd"} == drawn
    assert [Fault.parse(str(fault)) for fault in faults] == faults


class Network:
    """Its cuts close a listener, which heals on the same port; or do nothing."""

    def __init__(self, cuts: bool, heals: bool = True) -> None:
        self.cuts, self.heals = cuts, heals
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self.listener.getsockname()
        self.changes: list[tuple[str, bool]] = []

    def isolate(self, name: str, is_cut: bool) -> None:
        """Records it, and does it."""
        self.changes.append((name, is_cut))
        if is_cut and self.cuts:
            self.listener.close()
        elif not is_cut and self.cuts and self.heals:
            self.listener = socket.create_server((self.host, self.port))


@pytest.mark.parametrize(
    "cuts, heals, report",
    [(True, True, None), (False, True, "is cut off, and accepts a connection"), (True, False, "accepts connections")],
)
def test_a_cut_that_does_not_cut_or_does_not_heal_is_found(monkeypatch, cuts, heals, report):
    def check_once(condition, what, _seconds):
        assert condition(), what

    monkeypatch.setattr(chaos_faults, "eventually", check_once)
    network = Network(cuts, heals)
    region = SimpleNamespace(network=network, foreign=lambda _name: network)
    reports = []
    injector = Injector(region, [Fault.parse("partition:etcd@0+0.01")], 1, reports.append, waits_for_targets=True)
    injector.start()
    injector.join()
    network.listener.close()
    assert network.changes == [("etcd", True), ("etcd", False)]
    assert [report in text for text in reports] == ([True] if report else []), reports
    assert injector.events[0].recovered_s is not None
