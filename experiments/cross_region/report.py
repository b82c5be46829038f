"""The figures of `make delete-latency`, its bars, and its page."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from experiments.cross_region.faults import LONGEST_S, NO_FAULT, RECOVERY_S, REST_S, UNDER_WAY_S, describe
from experiments.cross_region.measurement import Outcome
from experiments.cross_region.regions import MASTER, REPLICA
from experiments.plots import delete_curves

# Name of a curve, the region whose log is read, the cluster that is asked.
CURVES = (
    ("master region", MASTER, MASTER),
    ("replica region, by its own log", REPLICA, REPLICA),
    ("master's commits in the replica region", MASTER, REPLICA),
)
# Section 7.3 of the paper: four nines within a second and five after an hour where source and destination are in the
# master region; three nines within a second and four within ten minutes between replica regions.
PAPER = {
    "paper, master region": [(1, 1e-4), (3_600, 1e-5)],
    "paper, replica regions": [(1, 1e-3), (600, 1e-4)],
}
MASTER_SHARE_MAX, REPLICA_SHARE_MAX, HOUR_SHARE_MAX = 1e-4, 1e-3, 1e-5
# Within ten minutes. A value that is gone after LATER_S, a minute, is gone within ten; the run does not last as long.
REPLICA_LATER_SHARE_MAX, LATER_S = 1e-4, 60
DELETES_MIN = 30_000
# With more questions without an answer, or at the last age more undecided answers, a curve says too little.
UNANSWERED_SHARE_MAX, UNDECIDED_SHARE_MAX = 1e-2, 1e-3
# Of the simulation, so that five nines are seen.
SAMPLES_MIN = 100_000
HOUR_S = 3_600
VERDICTS = {True: "met", False: "missed", None: "not measured"}


TEXT = """# How long deletes take in two regions while processes fail

`make delete-latency` measures this and writes this page: figure 11 of "Scaling Memcache at Facebook" (§7.3) for a
master and a replica region with real replication (MariaDB), each with two servers, a gutter, two routers with a spool,
and an active and a standby invalidator; the options are the defaults. {commits} commits at {rate} a second each delete
one cached value in both regions; applications delete nothing. [The monitor](../operating/monitor.md) of each region's
database asks about every delete (`--sample 1`). Of all keys, {cached} were cached on average: about
this part of the deletes had a value to delete.

In each region one fault follows the other, {faults} in all (seed {seed}: {kinds}), for up to {longest} s each and
{rest} s apart: a process is killed with SIGKILL, stopped with SIGTERM, or cut off from all others in a network
namespace of its own, and is started or joined again. The paper's figure is of 30 days of a whole site, where faults are
rarer.

## Bars

| bar | measured | |
|---|---|---|
{bars}

"Late" is a value from before the commit that the monitor found through the cluster's routers, as a reader would. An age
counts from when the region's own database shows the commit. The simulated hour is `lookaside simulate --hours 1`: two
or three regions under a simulated clock, for an hour with faults of up to 6 s, replication that stands still for up to
30 s and promotions, and another hour in which the last deletes grow as old. The monitor of each region asks about every
delete, by routers and server by server, and a checker that knows when each value was stored confirms its counts.

{simulated}

"Undecided" is a value that may be from before or after the commit, as far as the monitor knows
([what it finds](../operating/monitor.md#what-it-finds)): most were filled again after the delete. The bars with a
share count them as late. A bar is "not measured" if they alone would miss it, if over {unanswered} of the questions
had no answer or were not asked in time, or if over {undecided} are undecided at the last age, where a value that never
went would be one of them.

## Curves

| curve | age | answered | old | share | undecided | no answer | not asked in time |
|---|---|---|---|---|---|---|---|
{curves}

Questions that had no answer, or that the monitor could not ask in time, are in no share: later ages show what became of
these deletes. A machine with other work has more of them.

The paper states 0.01 % after a second and 0.001 % after an hour for the master region, 0.1 % after a second and 0.01 %
after ten minutes between replica regions (§7.3).

![the share of deletes whose old value is still cached, by age](pictures/delete_latency.svg)

## What late deletes waited for

Old values by the faults of their region. A delete can have waited for a fault if it was committed after the fault
began, or up to {under_way} s before, and if the old value was found before {recovery} s had passed since the process
answered again. An old value of a delete whose age is more than the longest fault and {recovery} s belongs to no fault,
whenever it was found. Between the recovery from one fault and the next fault there are seconds that no fault explains.

| region | fault | old values |
|---|---|---|
{causes}

| fault | in the master region | in the replica region |
|---|---|---|
{injected}

{facts}
"""


@dataclass(frozen=True)
class Bar:
    """A promise, and what was measured of it; `is_met` is None if nothing was."""

    text: str
    measured: str
    is_met: bool | None


def percent(share: float | None) -> str:
    """A share with as many digits as five nines need."""
    return "-" if share is None else f"{share * 100:.4f} %"


@dataclass
class Report:
    """One run, and what `lookaside simulate` has reported, None if it was not run."""

    outcome: Outcome
    simulated: dict | None = None

    def bars(self) -> list[Bar]:
        """All bars, in the order of the page."""
        return [
            self.enough(),
            self.within_a_second("the master region", MASTER, MASTER_SHARE_MAX),
            self.within_recovery(),
            self.within_a_second("the replica region, from the replica's own commit", REPLICA, REPLICA_SHARE_MAX),
            self.within_ten_minutes(),
            self.within_an_hour(),
        ]

    def missed(self) -> list[Bar]:
        """The bars that were measured and not met."""
        return [bar for bar in self.bars() if bar.is_met is False]

    def enough(self) -> Bar:
        """Whether there were enough deletes to speak of four nines."""
        answered = [self.age(region, 0)["answered"] for region in (MASTER, REPLICA)]
        return Bar(
            f"at least {DELETES_MIN:,} deletes sampled in each region",
            " and ".join(f"{count:,}" for count in answered),
            min(answered) >= DELETES_MIN,
        )

    def within_a_second(self, where: str, region: str, share_max: float) -> Bar:
        """The first age, in a region's own cluster."""
        return share_bar(f"{(1 - share_max) * 100:g} % within one second in {where}", self.age(region, 0), share_max)

    def within_ten_minutes(self) -> Bar:
        """The first age from LATER_S on, in the cluster of the replica region."""
        text = (
            f"{(1 - REPLICA_LATER_SHARE_MAX) * 100:g} % within ten minutes in the replica region, asked after a minute"
        )
        later = [age for age in self.outcome.ages(REPLICA, REPLICA) if age["age_s"] >= LATER_S]
        if not later:
            return Bar(text, f"no deletes of {LATER_S} s", None)
        return share_bar(text, with_answered(later[0]), REPLICA_LATER_SHARE_MAX)

    def within_recovery(self) -> Bar:
        """Whether each late delete of the master region waited for a fault, and arrived when that was over."""
        causes = self.outcome.causes(MASTER)
        unexplained = sum(counts[NO_FAULT] for counts in causes.values())
        last = self.age(MASTER, -1)
        undecided = f"({last['undecided']:,} of {last['answered']:,} undecided at the last age{unanswered(last)})"
        if any(age["old"] for age in self.outcome.ages(MASTER, MASTER)):
            found = (
                f"{unexplained:,} late without a fault, {last['old']:,} at the last age {undecided}; the last one"
                f" {self.outcome.last_after_recovery_s(MASTER):.1f} s after a fault"
            )
        else:
            found = f"none was late {undecided}"
        text = f"100 % within the fault's recovery ({RECOVERY_S:g} s after its process answers) in the master region"
        if unexplained or last["old"]:
            return Bar(text, found, False)
        is_decided = last["undecided"] <= last["answered"] * UNDECIDED_SHARE_MAX
        return Bar(text, found, True if is_decided and is_answered(last) else None)

    def within_an_hour(self) -> Bar:
        """What monitors under a simulated clock have found an hour after the deletes, in all seeds together."""
        text = f"{(1 - HOUR_SHARE_MAX) * 100:g} % within an hour of simulated time"
        if self.simulated is None:
            return Bar(text, "`lookaside simulate` was not run, or not in time", None)
        samples, failed = self.simulated["samples"], len(self.simulated["failed"])
        [age] = [age for age in self.simulated["deletes_by_age"] if age["age_s"] == HOUR_S]
        found = (
            f"{samples:,} deletes in {self.simulated['seeds']:,} seeds, {failed} failed: {age['old']:,} old values in"
            f" {age['answered']:,} answers after an hour"
        )
        if samples < SAMPLES_MIN or not age["answered"]:
            return Bar(text, f"{found}; too few deletes", None)
        return Bar(text, found, failed == 0 and age["old_share"] <= HOUR_SHARE_MAX)

    def age(self, region: str, index: int) -> dict:
        """What was found in a region's own cluster at one of the ages."""
        return with_answered(self.outcome.ages(region, region)[index])

    def figures(self) -> dict:
        """The figures as JSON: `{"commits", "curves": {name: [{"age_s", "old", ...}]}, "late": {..}, "bars": [..]}`."""
        return {
            "settings": vars(self.outcome.settings),
            "commits": self.outcome.commits,
            "faults": [
                {"fault": str(event.fault), "lasted_s": round((event.recovered_s or event.begin_s) - event.begin_s, 2)}
                for event in self.outcome.events
            ],
            "curves": {name: [with_answered(age) for age in self.outcome.ages(*of)] for name, *of in CURVES},
            "late": {region: self.outcome.causes(region) for region in (MASTER, REPLICA)},
            "cached": self.outcome.cached,
            "simulated": self.simulated,
            "failures": self.outcome.failures,
            "bars": [{**vars(bar), "verdict": VERDICTS[bar.is_met]} for bar in self.bars()],
        }

    def bars_text(self) -> str:
        """A line for each bar."""
        return "\n".join(f"{VERDICTS[bar.is_met]:>12}: {bar.text}: {bar.measured}" for bar in self.bars())

    def page(self, facts: dict[str, str]) -> str:
        """docs/measurements/delete_latency.md."""
        settings = self.outcome.settings
        return TEXT.format(
            commits=f"{self.outcome.commits:,}",
            rate=f"{settings.rate:g}",
            faults=len(self.outcome.events),
            seed=settings.seed,
            kinds=", ".join(settings.faults) or "none",
            cached=", ".join(f"{share * 100:.0f} % in {region}" for region, share in self.outcome.cached.items()),
            bars=table((bar.text, bar.measured, VERDICTS[bar.is_met]) for bar in self.bars()),
            simulated=self.simulated_text(),
            curves=table(self.curve_rows()),
            injected=table(self.fault_rows()),
            causes=table(self.cause_rows()) if self.outcome.late else "| none | | |",
            recovery=f"{RECOVERY_S:g}",
            unanswered=f"{UNANSWERED_SHARE_MAX * 100:g} %",
            undecided=f"{UNDECIDED_SHARE_MAX * 100:g} %",
            longest=f"{LONGEST_S:g}",
            rest=f"{REST_S[0]:g} to {REST_S[1]:g}",
            under_way=f"{UNDER_WAY_S:g}",
            facts="\n".join(f"* {name}: {fact}" for name, fact in facts.items()),
        )

    def simulated_text(self) -> str:
        """The table of the simulation, by age."""
        if self.simulated is None:
            return "It was not run."
        rows = (
            (
                delete_curves.age_name(age["age_s"]), age["answered"], age["old"], percent(age["old_share"]),
                age["undecided"], age["failed"], age["late"],
            )
            for age in self.simulated["deletes_by_age"]
        )  # fmt: skip
        head = "| simulated age | answered | old | share | undecided | no answer | not asked in time |"
        return f"{head}\n|---|---|---|---|---|---|---|\n{table(rows)}"

    def curve_rows(self) -> Iterator[tuple]:
        """A row for each curve and age."""
        for name, log, cluster in CURVES:
            for age in map(with_answered, self.outcome.ages(log, cluster)):
                yield (
                    name, delete_curves.age_name(age["age_s"]), age["answered"], age["old"], percent(age["old_share"]),
                    age["undecided"], age["failed"], age["late"],
                )  # fmt: skip

    def cause_rows(self) -> Iterator[tuple]:
        """A row for each region and kind of fault: the old values at each of the first ages."""
        for region in (MASTER, REPLICA):
            causes = self.outcome.causes(region)
            for name in sorted({name for counts in causes.values() for name in counts}):
                ages = ", ".join(
                    f"{counts[name]:,} at {delete_curves.age_name(age)}"
                    for age, counts in sorted(causes.items())
                    if counts[name]
                )
                yield region, name, ages

    def fault_rows(self) -> Iterator[tuple]:
        """A row for each kind of fault: how often it was injected in each region."""
        counted = Counter((describe(event.fault), event.fault.cluster()) for event in self.outcome.events)
        for name in sorted({name for name, _ in counted}):
            yield name, counted[name, MASTER], counted[name, REPLICA]


def share_bar(text: str, age: dict, share_max: float) -> Bar:
    """A bar on the share of deletes that may be late at an age."""
    if not age["answered"]:
        return Bar(text, "no answer", None)
    # All that may be late.
    late_share = (age["old"] + age["undecided"]) / age["answered"]
    found = (
        f"{percent(1 - late_share)} ({age['old']:,} of {age['answered']:,} late,"
        f" {age['undecided']:,} undecided{unanswered(age)})"
    )
    if age["old_share"] > share_max:
        return Bar(text, found, False)
    return Bar(text, found, True if late_share <= share_max and is_answered(age) else None)


def with_answered(age: dict) -> dict:
    """The counts of an age, with the number of looks that had an answer."""
    return {**age, "answered": age["absent"] + age["new"] + age["old"] + age["undecided"]}


def is_answered(age: dict) -> bool:
    """Whether enough questions had an answer for the rest not to matter."""
    missing = age["failed"] + age["late"]
    return bool(age["answered"]) and missing <= (age["answered"] + missing) * UNANSWERED_SHARE_MAX


def unanswered(age: dict) -> str:
    """How many questions had no answer, as the end of a list; empty if all had."""
    missing = age["failed"] + age["late"]
    return f", {missing:,} without an answer" if missing else ""


def cell(value: object) -> str:
    """A figure in a table."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(rows: Iterable[Iterable[object]]) -> str:
    """The rows of a table."""
    return "\n".join("| " + " | ".join(map(cell, row)) + " |" for row in rows)


def draw(outcome: Outcome) -> str:
    """Figure 11."""
    curves = {
        name: [(age["age_s"], age["old_share"]) for age in outcome.ages(log, cluster) if age["old_share"] is not None]
        for name, log, cluster in CURVES
    }
    return delete_curves.svg("Deletes whose old value is still cached", curves, PAPER)
