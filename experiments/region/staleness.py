"""For how long readers see old values while a process hangs or is dead (paper, section 5).

What: two clusters of three servers, a gutter and two routers with spools, an invalidator and MariaDB. A writer commits
and does not delete: all deletes are the invalidator's. Readers of both clusters look aside under leases. One fault
after the other lasts FAULT_S, with REST_S between them. For each commit in that time, and each cluster, the age of the
oldest read that should have seen the commit and did not is the time for which the old value was visible; it is 0 if no
such read was seen. Reported are its median, 99th percentile and maximum, the reads that failed, and the longest time
that a page of keys took.

How: the fault injector of tests/chaos with the faults below instead of a seed's. Every key of a page is read some
sixty times a second in each cluster, which is the resolution. The routers have their default timeouts. The programs'
build hardly matters: the figures are timeouts.

    make staleness       some three minutes; writes docs/measurements/staleness.md and its picture
    --check              exit status 1 if an old value was visible for longer than AIM_MS, in a scenario with one fault
                         of a process that readers and deletes can do without
    --wait-for-invalidator SECONDS   the routers', for the scenario in which both are killed
"""

import shutil
import sys
import textwrap
from dataclasses import dataclass

from chaos import report as chaos_report
from chaos.applications import Load
from chaos.faults import Fault, Plan
from chaos.region import Layout
from chaos.run import Outcome, Settings, run
from processes import PROGRAMS, ROOT

from experiments import command_line, machine_facts
from experiments.plots import lines

FAULT_S, REST_S = 6.0, 6.0
LOAD = Load(keys=48, readers=8, reads=6000.0, page=24, writers=4, writes=40.0, own_deletes=0.0)
# The delete of a commit just before a fault may be delayed by it.
BEFORE_S = 0.5
AIM_MS = 1000
OLD_MS = 500

REPORT = ROOT / "docs" / "measurements" / "staleness.md"
PICTURES = ROOT / "docs" / "measurements" / "pictures"


@dataclass(frozen=True)
class Scenario:
    """Processes of cluster `one`, or all that share its database, that fail together."""

    name: str
    kind: str
    targets: tuple[str, ...]
    # Whether old values must not be read for longer than AIM_MS.
    has_aim: bool = True


SCENARIOS = (
    Scenario("none", "", ()),
    Scenario("a server hangs", "hang", ("one-server-1",)),
    Scenario("a server is killed", "kill", ("one-server-1",)),
    Scenario("the gutter hangs", "hang", ("one-gutter",)),
    Scenario("the gutter is killed", "kill", ("one-gutter",)),
    Scenario("a server and the gutter hang", "hang", ("one-server-1", "one-gutter"), has_aim=False),
    Scenario("a router hangs", "hang", ("one-router-1",)),
    Scenario("a router is killed", "kill", ("one-router-1",)),
    Scenario("a server and a router hang", "hang", ("one-server-1", "one-router-1"), has_aim=False),
    Scenario("both routers are killed", "kill", ("one-router-1", "one-router-2"), has_aim=False),
    Scenario("the database is killed", "kill", ("database",), has_aim=False),
    Scenario("the invalidator is killed", "kill", ("invalidator",), has_aim=False),
)


def begin_of(number: int) -> float:
    """When a scenario begins, in seconds since the run did."""
    return REST_S / 2 + number * (FAULT_S + REST_S)


def faults() -> list[Fault]:
    """The schedule."""
    return [
        Fault(scenario.kind, target, begin_of(number), FAULT_S)
        for number, scenario in enumerate(SCENARIOS)
        for target in scenario.targets
    ]


def row(outcome: Outcome, number: int) -> dict:
    """The figures of one scenario: of the fault, and of the time until the next one."""
    begin_s = outcome.start_s + begin_of(number)
    end_s = begin_s + FAULT_S + REST_S
    samples = outcome.samples
    commits = [commit for commit, at in samples.commits_s.items() if begin_s - BEFORE_S <= at < end_s - BEFORE_S]
    visible = sorted(samples.old_ms.get((cluster, *commit), 0.0) for commit in commits for cluster in ("one", "two"))
    tenths = range(int(begin_s * 10), int(end_s * 10))
    reads, failures = (sum(counted[tenth] for tenth in tenths) for counted in (samples.reads, samples.failures))
    return {
        "fault": SCENARIOS[number].name,
        "commits": len(commits),
        "p50_ms": chaos_report.share(visible, 0.5),
        "p99_ms": chaos_report.share(visible, 0.99),
        "max_ms": visible[-1] if visible else 0.0,
        "last old read_ms": last_old_ms(outcome, begin_s + FAULT_S, end_s),
        "reads": reads,
        "old reads": len(chaos_report.stale_during(outcome, begin_s, end_s)),
        "failed reads": failures,
        "longest page_ms": max((samples.waited_ms.get(tenth, 0.0) for tenth in tenths), default=0.0),
    }


def last_old_ms(outcome: Outcome, begin_s: float, end_s: float) -> float:
    """How long after the end of a fault a value was read that was OLD_MS old; 0 if none was."""
    samples = outcome.samples
    seen = [
        at for at, age in zip(samples.at_s, samples.stale_ms, strict=True) if begin_s <= at < end_s and age >= OLD_MS
    ]
    return (max(seen) - begin_s) * 1000 if seen else 0.0


def draw(outcome: Outcome) -> str:
    """Staleness over time, with the faults as bands."""
    bands = [
        (scenario.name, begin_of(number), begin_of(number) + FAULT_S)
        for number, scenario in enumerate(SCENARIOS)
        if scenario.targets
    ]
    oldest = {"oldest read": chaos_report.oldest_by_bin(outcome)}
    return lines.svg("Age of the oldest value that a read returned", "seconds", "ms", oldest, bands=bands)


TEXT = """# For how long old values are read while a process fails

`make staleness` measures this and writes this page (§5 of "Scaling Memcache at Facebook": deletes are buffered and
replayed, but a reader may see what they have not reached yet). Two clusters of three servers, a gutter and two routers
with `--spool` and `--spool-peers`, an invalidator and MariaDB; the other options are the defaults. Faults are in
cluster `one`, {fault:g} s each, with {rest:g} s between them.

"Old for" is the time from a commit to the last read that began after it and did not see it: of all commits from half a
second before the fault to half a second before the next, in both clusters; 0 if no such read was seen. Every key is
read some sixty times a second in each cluster, so a few milliseconds are not resolved. "After the end" is how long
after the end of the fault a value was read that had been replaced for {old} ms or more. Deletes are the invalidator's
alone: a writer that deletes for itself sees its own write sooner. "Failed" and "longest page" include the readers of a
router that fails: an application gives a page of {page} keys up after 3 s, and asks the other router. Times are in
milliseconds.

| fault | commits | old for: median, ms | p99 | max | after the end | reads | of old values | failed | longest page |
|---|---|---|---|---|---|---|---|---|---|
{rows}

{aim}

![staleness over time](pictures/staleness.svg)

{facts}
"""


def page(rows: list[dict], facts: dict[str, str]) -> str:
    """docs/measurements/staleness.md."""
    shown = [
        "| " + " | ".join(f"{value:,.0f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int)
                          else value for value in one.values()) + " |"
        for one in rows
    ]  # fmt: skip
    above = [one["fault"] for one in rows if one["max_ms"] > AIM_MS]
    aim = (
        textwrap.fill(f"Above {AIM_MS:,} ms: {'; '.join(above)}.", 120) if above else f"Nothing is above {AIM_MS:,} ms."
    )
    return TEXT.format(
        fault=FAULT_S,
        old=OLD_MS,
        rest=REST_S,
        page=LOAD.page,
        rows="\n".join(shown),
        aim=aim,
        facts="\n".join(f"* {name}: {fact}" for name, fact in facts.items()),
    )


def main() -> int:
    """Measures, draws, writes the page, and prints the figures as JSON."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--check", action="store_true", help="fail if an old value was visible for longer than the aim")
    parser.add_argument(
        "--wait-for-invalidator", type=int, default=0, metavar="SECONDS", help="of the routers (default: %(default)s)"
    )
    options = parser.parse_args()
    layout = Layout(router_options=("--wait-for-invalidator", str(options.wait_for_invalidator)))
    facts = {**machine_facts.facts(), "build": PROGRAMS.name}
    if options.wait_for_invalidator:
        facts["routers"] = f"started with `--wait-for-invalidator {options.wait_for_invalidator}`"
    seconds = begin_of(len(SCENARIOS))
    outcome = run(Settings(layout, load=LOAD, plan=Plan(seed=1, seconds=seconds, given=faults())))
    rows = [row(outcome, number) for number in range(len(SCENARIOS))]
    print(chaos_report.text(outcome), file=sys.stderr)
    command_line.print_results(rows)
    if outcome.violations:
        print(f"staleness: the logs are in {outcome.folder}", file=sys.stderr)
        return 1
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "staleness.svg").write_text(draw(outcome))
    REPORT.write_text(page(rows, facts))
    shutil.rmtree(outcome.folder)
    missed = [
        one["fault"]
        for one, scenario in zip(rows, SCENARIOS, strict=True)
        if scenario.has_aim and one["max_ms"] > AIM_MS
    ]
    if options.check and missed:
        print(f"staleness: above {AIM_MS} ms: {'; '.join(missed)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
