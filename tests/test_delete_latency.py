"""`make delete-latency`: a short run without faults, in which a stopped invalidator shows; the parts of its report."""

import pytest
from chaos.faults import Event, Fault
from chaos.network import Loopback

from experiments.cross_region.faults import (
    KINDS,
    NO_FAULT,
    RECOVERY_S,
    Late,
    after_recovery_s,
    cause,
    explained_age_max_s,
    schedule,
    targets,
)
from experiments.cross_region.load import rows_for
from experiments.cross_region.measurement import Outcome, Settings, run
from experiments.cross_region.regions import MASTER, REPLICA
from experiments.cross_region.report import Report, draw

# As the monitor counts the looks at one age.
NOTHING = {"absent": 0, "new": 0, "old": 0, "undecided": 0, "failed": 0, "late": 0}


def curve(name: str, counts: dict[int, dict]) -> dict:
    """A curve of a monitor's summary: by age, the counts that are not 0."""
    ages = [{"age_s": age, **NOTHING, **found} for age, found in counts.items()]
    for age in ages:
        answered = age["absent"] + age["new"] + age["old"] + age["undecided"]
        age["old_share"] = age["old"] / answered if answered else None
    return {"name": name, "ages": ages}


def outcome(
    master_old: int = 0, replica_old: int = 0, last_old: int = 0, late: tuple = (), events: tuple = ()
) -> Outcome:
    """An outcome of 30,000 deletes in each region."""

    def of(old: int) -> dict[int, dict]:
        last = min(old, last_old)
        return {1: {"old": old, "absent": 30_000 - old}, 60: {"old": last, "absent": 30_000 - last}}

    summaries = {
        MASTER: {"clusters": [curve(MASTER, of(master_old)), curve(REPLICA, of(replica_old))]},
        REPLICA: {"clusters": [curve(REPLICA, of(replica_old))]},
    }
    return Outcome(Settings(), 30_000, summaries, list(late), list(events), [], {MASTER: 0.9, REPLICA: 0.9})


def verdicts(found: Outcome, simulated: dict | None = None) -> list[bool | None]:
    """Of the bars on the master region, its recovery, the replica region after a second and a minute, and the hour."""
    return [bar.is_met for bar in Report(found, simulated).bars()[1:]]


@pytest.mark.timeout(300)
def test_a_stopped_invalidator_shows_in_the_curve_of_its_region_alone(tmp_path):
    frozen = tuple(f"{REPLICA}-invalidator-{number}" for number in (1, 2))
    settings = Settings(seconds=5, rate=60, ages_s=(1, 2), faults=(), frozen=frozen)
    found = run(settings, Loopback(), tmp_path)
    assert not found.failures and found.commits == 300
    for age in found.ages(MASTER, MASTER):
        assert age["old"] == 0 and age["absent"] + age["new"] == 300, age
    for log, cluster in ((REPLICA, REPLICA), (MASTER, REPLICA)):
        for age in found.ages(log, cluster):
            assert age["old"] == 300, age
    assert found.causes(REPLICA) == {1: {NO_FAULT: 300}, 2: {NO_FAULT: 300}}
    report = Report(found)
    assert [bar.is_met for bar in report.bars()] == [False, True, True, False, None, None]
    # The same figures are in the JSON, on the page, and in the picture.
    figures = report.figures()
    assert figures["curves"]["replica region, by its own log"][0]["old_share"] == 1
    assert [bar["verdict"] for bar in figures["bars"]] == ["missed", "met", "met", "missed", *["not measured"] * 2]
    page = report.page({"build": "debug"})
    assert "0.0000 % (300 of 300 late, 0 undecided)" in page and "| west | no fault | 300 at 1 s, 300 at 2 s |" in page
    assert "replica region, by its own log" in draw(found)


def test_rows_are_changed_once_before_the_last_question():
    assert rows_for(100, 60) > 100 * 60


def test_bars_are_met_up_to_their_limit():
    assert verdicts(outcome(3, 30, last_old=3)) == [True, False, True, True, None]
    assert verdicts(outcome(3, 30)) == [True, True, True, True, None]
    assert verdicts(outcome(4, 30))[0] is False
    assert verdicts(outcome(3, 31))[2] is False
    assert verdicts(outcome(0, 30, last_old=4))[3] is False
    few = outcome()
    few.summaries[REPLICA]["clusters"][0]["ages"][0]["absent"] -= 1
    assert Report(few).bars()[0].is_met is False and Report(outcome()).bars()[0].is_met is True


def test_what_may_be_late_meets_no_bar():
    # A third of the answers at the last age were undecided, and the bars were met all the same.
    def with_counts(age: int, **counts: int) -> Outcome:
        found = outcome()
        for curves in found.summaries.values():
            for region in curves["clusters"]:
                of_age = region["ages"][age]
                of_age.update(counts, absent=30_000 - sum(counts.values()))
        return found

    assert verdicts(with_counts(0, undecided=3)) == [True, True, True, True, None]
    assert verdicts(with_counts(0, undecided=4)) == [None, True, True, True, None]
    assert verdicts(with_counts(0, undecided=31)) == [None, True, None, True, None]
    assert verdicts(with_counts(-1, undecided=3)) == [True, True, True, True, None]
    assert verdicts(with_counts(-1, undecided=30)) == [True, True, True, None, None]
    assert verdicts(with_counts(-1, undecided=31)) == [True, None, True, None, None]
    assert "31 of 30,000 undecided" in Report(with_counts(-1, undecided=31)).bars()[2].measured
    # Nor does what was not asked, or had no answer.
    assert verdicts(with_counts(0, failed=100, late=200)) == [True, True, True, True, None]
    assert verdicts(with_counts(0, failed=101, late=200)) == [None, True, None, True, None]
    assert verdicts(with_counts(-1, failed=301)) == [True, None, True, None, None]
    # What is late for certain misses its bar, however little else is known.
    certain = with_counts(0, failed=20_000)
    for curves in certain.summaries.values():
        for region in curves["clusters"]:
            region["ages"][0] |= {"old": 100, "old_share": 0.01}
    assert verdicts(certain) == [False, True, False, True, None]


def test_a_delete_must_arrive_when_the_fault_is_over():
    fault = Event(Fault("kill", f"{MASTER}-router-1", 0, 2), begin_s=100.0, end_s=102.0, recovered_s=103.0)
    during, soon, later, elsewhere = (
        Late(101.0, MASTER, 1, 2),
        Late(103.0 + RECOVERY_S - 0.1, MASTER, 2, 2),
        Late(103.0 + RECOVERY_S + 0.1, MASTER, 5, 1),
        Late(101.0, REPLICA, 1, 1),
    )
    assert [cause(late, [fault]) for late in (during, soon, later, elsewhere)] == [
        "kill router", "kill router", NO_FAULT, NO_FAULT,
    ]  # fmt: skip
    assert after_recovery_s(during, [fault]) == 0 and after_recovery_s(soon, [fault]) == pytest.approx(RECOVERY_S - 0.1)
    assert verdicts(outcome(2, late=(during, soon), events=(fault,)))[1] is True
    assert verdicts(outcome(2, late=(during, soon, later), events=(fault,)))[1] is False
    text = Report(outcome(2, late=(during, soon), events=(fault,))).bars()[2].measured
    assert f"the last one {RECOVERY_S - 0.1:.1f} s after a fault" in text
    assert Report(outcome(events=(fault,))).bars()[2].measured.startswith("none was late")
    # What is old at the last age was never deleted.
    assert verdicts(outcome(2, last_old=1, late=(during,), events=(fault,)))[1] is False
    # A late delete of the replica region says nothing about the master's.
    assert verdicts(outcome(late=(elsewhere,), events=(fault,)))[1] is True


def test_a_value_that_was_old_before_the_fault_or_for_longer_than_it_is_not_explained():
    # Nearly every moment was one of some fault, or of the recovery from it: whatever was late was explained.
    def fault(begin_s: float, lasted_s: float, kind: str = "kill") -> Event:
        end_s = begin_s + lasted_s
        return Event(Fault(kind, f"{MASTER}-router-1", 0, lasted_s), begin_s, end_s, recovered_s=end_s)

    first, second = fault(100.0, 3.0), fault(112.0, 4.0, "partition")
    events = [first, second]

    def of(at_s: float, age_s: int) -> str:
        return cause(Late(at_s, MASTER, age_s, 1), events)

    assert of(101.5, 1) == "kill router" and of(100.5, 1) == "kill router", "it was on its way when the fault began"
    assert of(106.0, 5) == "kill router" and of(103.0, 5) == NO_FAULT, "it was late before the fault"
    assert of(101.0, 10) == NO_FAULT, "it is older than any fault with its recovery"
    # Two faults one after the other do not add up.
    assert of(112.5, 2) == NO_FAULT and of(113.5, 2) == "partition router"
    assert of(120.0, 10) == NO_FAULT and of(120.9, 5) == "partition router"
    assert explained_age_max_s(events) == 4 + RECOVERY_S and explained_age_max_s([]) == RECOVERY_S
    # A fault that has not ended explains nothing that is older than the others.
    events.append(Event(Fault("restart", f"{MASTER}-gutter", 0, 2), begin_s=200.0))
    assert of(205.0, 5) == "restart gutter" and of(230.0, 10) == NO_FAULT
    ten_seconds = Late(101.0, MASTER, 10, 1)
    assert verdicts(outcome(1, late=(ten_seconds,), events=(first,)))[1] is False


def test_an_hour_is_that_of_the_simulation():
    def simulated(samples: int = 100_000, failed: int = 0, old: int = 4) -> dict:
        """Each delete is asked about four times."""
        ages = [
            {"age_s": age, "answered": 400_000, "old": count, "old_share": count / 400_000, "undecided": 0, "failed": 0,
             "late": 0}
            for age, count in ((1, 9_999), (3_600, old))
        ]  # fmt: skip
        return {"seeds": 40, "samples": samples, "failed": [{}] * failed, "deletes_by_age": ages}

    assert verdicts(outcome(), simulated())[4] is True
    assert verdicts(outcome(), simulated(failed=1))[4] is False
    assert verdicts(outcome(), simulated(old=5))[4] is False
    assert verdicts(outcome(), simulated(samples=99_999))[4] is None
    page = Report(outcome(), simulated(old=5)).page({"build": "debug"})
    assert "| 1 h | 400,000 | 5 | 0.0013 % |" in page


def test_a_seed_gives_the_same_faults_one_at_a_time():
    faults = schedule(MASTER, 1, KINDS, 190)
    assert faults == schedule(MASTER, 1, KINDS, 190)
    times = [[fault.at_s for fault in others] for others in (faults, schedule(MASTER, 2, KINDS, 190))]
    times.append([fault.at_s for fault in schedule(REPLICA, 1, KINDS, 190)])
    assert len(set(map(tuple, times))) == 3, "other seeds and other regions have other faults"
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.target for fault in faults} <= set(targets(MASTER))
    ends = [fault.at_s + fault.seconds for fault in faults]
    rests = [after.at_s - end for after, end in zip(faults[1:], ends, strict=False)]
    assert min(rests) > RECOVERY_S, "between a recovery and the next fault nothing explains a late delete"
    assert ends[-1] <= 190
    assert schedule(MASTER, 1, (), 190) == []
