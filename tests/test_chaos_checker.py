"""The fault injector's checker and its schedules."""

import contextlib
import threading

import pytest
from chaos import faults as chaos_faults
from chaos.checker import ACKNOWLEDGED, NEVER_WRITTEN, TOO_STALE, Checker, compose_value
from chaos.faults import PROCESS_KINDS, RESIZE_KINDS, Fault, Injector, schedule
from chaos.region import Layout
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
