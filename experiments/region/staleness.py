"""For how long readers see old values while a process hangs or is dead (paper, section 5).

What: two clusters of three servers, a gutter and two routers with spools, two invalidators and a database. A writer
commits and does not delete: all deletes are the invalidator's. Readers of both clusters look aside under leases. One
fault after the other lasts FAULT_S, with REST_S between them. For each commit in that time, and each cluster, the age
of the oldest read that should have seen the commit and did not is the time for which the old value was visible; it is 0
if no such read was seen. Reported are its median, 99th percentile and maximum, the reads that failed, and the longest
time that a page of keys took.

How: the fault injector of tests/chaos with the faults below instead of a seed's. Every key of a page is read some
sixty times a second in each cluster, which is the resolution. The routers have their default timeouts; those of cluster
`two` are started with `--wait-for-invalidator`. The programs' build hardly matters: the figures are timeouts.

    make staleness       four minutes; writes MariaDB's part of docs/measurements/staleness.md, and the picture
    --database mysql     the same with MySQL, or PostgreSQL, whose part of the page is written; the others stay
    --check              exit status 1 if an old value was visible for longer than AIM_MS, in a scenario with one fault
                         of a process that readers and deletes can do without, or of the database; or, in one with the
                         database or with routers, later than AIM_MS after the end of the fault
"""

import datetime
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace

from chaos import report as chaos_report
from chaos.applications import Load
from chaos.databases import DATABASES
from chaos.faults import Fault, Plan
from chaos.region import Layout
from chaos.run import Outcome, Settings, run
from processes import PROGRAMS, ROOT

from experiments import command_line, machine_facts
from experiments.plots import panels

FAULT_S, REST_S = 6.0, 6.0
LOAD = Load(keys=48, readers=8, reads=6000.0, page=24, writers=4, writes=40.0, own_deletes=0.0)
# The delete of a commit just before a fault may be delayed by it.
BEFORE_S = 0.5
AIM_MS = 1000
OLD_MS = 500
MARKS_MS = (1, 10, 100, 1000, 10_000)
GATE_S = 10
# The figure of a row: how long after the end of the fault the last old value was read.
AFTER_END = "last old read_ms"
LAYOUT = Layout(invalidators=2, cluster_router_options={"two": ("--wait-for-invalidator", str(GATE_S))})

REPORT = ROOT / "docs" / "measurements" / "staleness.md"
PICTURES = ROOT / "docs" / "measurements" / "pictures"

ONE = "One process that readers and deletes can do without"
SEVERAL = "Two processes at once"
SOURCE = "What all deletes come from"


@dataclass(frozen=True)
class Scenario:
    """Processes of a cluster, or all that share its database, that fail together."""

    name: str
    kind: str
    targets: tuple[str, ...]
    panel: str

    @property
    def has_aim(self) -> bool:
        """Whether old values must not be read for longer than AIM_MS."""
        return self.panel == ONE or self.name in (INVALIDATOR_KILLED, INVALIDATOR_HANGS, *DATABASE_FAILS)

    @property
    def has_aim_after_end(self) -> bool:
        """Whether no old value must be read later than AIM_MS after the end of the fault."""
        return self.name in DATABASE_FAILS or any("router" in target for target in self.targets)

    def misses_aim(self, figures: dict) -> bool:
        """Whether its figures, a `row`, are above what they must be."""
        is_old_for_long = self.has_aim and figures["max_ms"] > AIM_MS
        return is_old_for_long or self.has_aim_after_end and figures[AFTER_END] > AIM_MS


ROUTERS_KILLED = "both routers are killed"
WAITING_ROUTERS_KILLED = "both routers are killed that wait for the invalidator"
DATABASE_KILLED, DATABASE_HANGS = "the database is killed", "the database hangs"
DATABASE_FAILS = (DATABASE_KILLED, DATABASE_HANGS)
INVALIDATOR_KILLED, INVALIDATOR_HANGS = "the active invalidator is killed", "the active invalidator hangs"
FIRST_INVALIDATOR, SECOND_INVALIDATOR = "invalidator", "invalidator-2"
SERVER_AND_GUTTER_HANG = "a server and the gutter hang"
SERVER_HANGS, GUTTER_HANGS, ROUTER_HANGS = "a server hangs", "the gutter hangs", "a router hangs"

SCENARIOS = (
    Scenario("none", "", (), ONE),
    Scenario(SERVER_HANGS, "hang", ("one-server-1",), ONE),
    Scenario("a server is killed", "kill", ("one-server-1",), ONE),
    Scenario(GUTTER_HANGS, "hang", ("one-gutter",), ONE),
    Scenario("the gutter is killed", "kill", ("one-gutter",), ONE),
    Scenario(ROUTER_HANGS, "hang", ("one-router-1",), ONE),
    Scenario("a router is killed", "kill", ("one-router-1",), ONE),
    Scenario(SERVER_AND_GUTTER_HANG, "hang", ("one-server-1", "one-gutter"), SEVERAL),
    Scenario("a server and a router hang", "hang", ("one-server-1", "one-router-1"), SEVERAL),
    Scenario(ROUTERS_KILLED, "kill", ("one-router-1", "one-router-2"), SEVERAL),
    Scenario(WAITING_ROUTERS_KILLED, "kill", ("two-router-1", "two-router-2"), SEVERAL),
    # The standby takes over from the first one, which then stands by and takes over from the second one.
    Scenario(INVALIDATOR_KILLED, "kill", (FIRST_INVALIDATOR,), SOURCE),
    Scenario(INVALIDATOR_HANGS, "hang", (SECOND_INVALIDATOR,), SOURCE),
    Scenario("both invalidators are killed", "kill", (FIRST_INVALIDATOR, SECOND_INVALIDATOR), SOURCE),
    Scenario("both invalidators hang", "hang", (FIRST_INVALIDATOR, SECOND_INVALIDATOR), SOURCE),
    Scenario(DATABASE_KILLED, "kill", ("database",), SOURCE),
    Scenario(DATABASE_HANGS, "hang", ("database",), SOURCE),
)


@dataclass(frozen=True)
class Comparison:
    """What the same faults cost before, as far as it was measured, and the figure of today that answers it."""

    what: str
    before: str
    scenarios: tuple[str, ...]
    figure: str


# Measured with a fault injector of the same kind, in the state of the programs before deletes were routed side by side,
# routers hedged, retries released and connections to the database tried sooner.
COMPARISONS = (
    Comparison("a server, or the gutter, hangs: old for, at most", "2,000", (SERVER_HANGS, GUTTER_HANGS), "max_ms"),
    Comparison("a router hangs: old for, at most", "5,000", (ROUTER_HANGS,), "max_ms"),
    Comparison("all routers return: old values are read for", "1,000, up to 20 s old", (ROUTERS_KILLED,), AFTER_END),
    Comparison(f"the same, with `--wait-for-invalidator {GATE_S}`", "not there", (WAITING_ROUTERS_KILLED,), AFTER_END),
    Comparison("the database returns: old for, at most", "5,000", (DATABASE_KILLED, DATABASE_HANGS), "max_ms"),
    Comparison("a server and the gutter hang: a page waits for", "5,000", (SERVER_AND_GUTTER_HANG,), "longest page_ms"),
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
        AFTER_END: last_old_ms(outcome, begin_s + FAULT_S, end_s),
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
    shown = []
    for name in (ONE, SEVERAL, SOURCE):
        numbers = [number for number, scenario in enumerate(SCENARIOS) if scenario.panel == name]
        bands = [
            (SCENARIOS[number].name, begin_of(number), begin_of(number) + FAULT_S)
            for number in numbers
            if SCENARIOS[number].targets
        ]
        begin = begin_of(numbers[0]) - REST_S / 2
        shown.append(panels.Panel(name, begin, begin_of(numbers[-1]) + FAULT_S + REST_S / 2, bands))
    title = "Age of the oldest value that a read returned, in each tenth of a second"
    points = chaos_report.oldest_by_bin(outcome)
    return panels.svg(title, "time (s)", "age (ms)", points, shown, MARKS_MS, ("aim", AIM_MS))


# The database whose run is drawn, and compared with the former figures.
DRAWN = "mariadb"
# What `make staleness` adds for the others.
OPTION = ' STALENESS="--database {name}"'
THEN = "Then and now"

HEAD = """# For how long old values are read while a process fails

`make staleness` measures this and writes this page (§5 of "Scaling Memcache at Facebook": deletes are buffered and
replayed, but a reader may see what they have not reached yet). Two clusters of three servers, a gutter and two routers
with `--spool` and `--spool-peers`, two invalidators (`--shared-state source`: one is active, one stands by) and a
database; the other options are the defaults, but for `--wait-for-invalidator {gate}` at the routers of cluster `two`.
Faults are in cluster `one`, and those of the routers that wait for the invalidator in `two`: {fault:g} s each, with
{rest:g} s between them. Each database has a run and a table of its own. It waits for the disk at each commit, as it
does by default. A machine with other work adds to all times, and a standby then waits longer before it takes an
invalidator for hung: compare the load averages.

"Old for" is the time from a commit to the last read that began after it and did not see it: of all commits from half a
second before the fault to half a second before the next, in both clusters; 0 if no such read was seen. Every key is
read some sixty times a second in each cluster, so a few milliseconds are not resolved. "After the end" is how long
after the end of the fault a value was read that had been replaced for {old} ms or more. Deletes are the invalidator's
alone: a writer that deletes for itself sees its own write sooner. "Failed" and "longest page" include the readers of a
router that fails: an application gives a page of {page} keys up after 3 s, and asks the other router. Times are in
milliseconds.

{aim}
"""

MEASURED = """`make staleness{option}` measures this.

| fault | commits | old for: median, ms | p99 | max | after the end | reads | of old values | failed | longest page |
|---|---|---|---|---|---|---|---|---|---|
{rows}

{verdict}

{facts}
"""

COMPARED = """\
Before deletes were routed side by side, routers hedged, pending deletes released by the first answer, and the database
asked more often, the same faults cost more. Those figures were measured once, with other programs and faults of other
lengths; today's programs cannot repeat them. "Now" is with MariaDB. Times are in milliseconds.

| | then | now |
|---|---|---|
{comparisons}
"""

PICTURE = "\n![staleness over time](pictures/staleness.svg)\n"


AIM = (
    "The aim is at most {aim:,} ms in the first {aimed} rows, in which one process fails that readers and"
    " deletes can do without, and when the active invalidator or the database is killed or hangs. Where routers or the"
    " database fail, nothing old is read later than that after the end. A commit that the database acknowledged in the"
    " milliseconds before it failed has been sent to no process: the row of a run that has one is above the aim. While"
    " no router of a cluster runs,"
    " its readers read nothing; when the routers are back, they may read what was replaced meanwhile, unless the"
    " routers wait for the invalidator. Old values are read until a standby has taken over from an invalidator that is"
    " dead or hangs; without one, for as long as that lasts ([what readers see"
    " then](../operating/runbook.md#the-invalidator-dies))."
)


def cell(value: float | int | str) -> str:
    """A figure in a table."""
    return value if isinstance(value, str) else f"{value:,.0f}"


def page(text: str, database: str, rows: list[dict], facts: dict[str, str]) -> str:
    """docs/measurements/staleness.md, which is `text` until now, with the figures of a database."""
    sections = sections_of(text)
    sections[DATABASES[database].title] = measured(database, rows, facts)
    if database == DRAWN:
        sections[THEN] = compared(rows)
    aim = AIM.format(aimed=sum(scenario.panel == ONE for scenario in SCENARIOS), aim=AIM_MS)
    head = HEAD.format(gate=GATE_S, fault=FAULT_S, old=OLD_MS, rest=REST_S, page=LOAD.page, aim=fill(aim))
    order = [*(kind.title for kind in DATABASES.values()), THEN]
    return head + "".join(f"\n## {title}\n\n{sections[title]}" for title in order if title in sections)


def sections_of(text: str) -> dict[str, str]:
    """What is below each heading of the page."""
    parts = re.split(r"^## (.*)\n\n", text, flags=re.MULTILINE)
    return {title: body.rstrip("\n") + "\n" for title, body in zip(parts[1::2], parts[2::2], strict=True)}


def measured(database: str, rows: list[dict], facts: dict[str, str]) -> str:
    """The figures of a run with a database."""
    above = [one["fault"] for one in rows if one["max_ms"] > AIM_MS]
    verdict = f"Above {AIM_MS:,} ms: {'; '.join(above)}." if above else f"Nothing is above {AIM_MS:,} ms."
    text = MEASURED.format(
        option="" if database == DRAWN else OPTION.format(name=database),
        rows=table(one.values() for one in rows),
        verdict=fill(verdict),
        facts="\n".join(f"* {name}: {fact}" for name, fact in facts.items()),
    )
    return text + (PICTURE if database == DRAWN else "")


def compared(rows: list[dict]) -> str:
    """The figures of a run beside the former ones."""
    by_name = {one["fault"]: one for one in rows}
    comparisons = [
        (one.what, one.before, max(by_name[name][one.figure] for name in one.scenarios)) for one in COMPARISONS
    ]
    return COMPARED.format(comparisons=table(comparisons))


def fill(text: str) -> str:
    """A paragraph, in lines."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def table(rows: Iterable[Iterable]) -> str:
    """The rows of a table."""
    return "\n".join("| " + " | ".join(map(cell, one)) + " |" for one in rows)


def build() -> str:
    """Which programs were measured, and since when the oldest of them is there."""
    programs = [PROGRAMS / f"lookaside-{name}" for name in ("server", "router", "invalidator")]
    oldest = min(program.stat().st_mtime for program in programs)
    return f"{PROGRAMS.name}, of {datetime.datetime.fromtimestamp(oldest, datetime.UTC):%Y-%m-%d %H:%M} UTC"


def main() -> int:
    """Measures, draws, writes the page, and prints the figures as JSON."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--check", action="store_true", help="fail if an old value was visible for longer than the aim")
    parser.add_argument("--database", choices=DATABASES, default=DRAWN, help="default: %(default)s")
    options = parser.parse_args()
    facts = {**machine_facts.facts(), "build": build()}
    seconds = begin_of(len(SCENARIOS))
    layout = replace(LAYOUT, database=options.database)
    outcome = run(Settings(layout, load=LOAD, plan=Plan(seed=1, seconds=seconds, given=faults())))
    rows = [row(outcome, number) for number in range(len(SCENARIOS))]
    print(chaos_report.text(outcome), file=sys.stderr)
    command_line.print_results(rows)
    if outcome.violations:
        print(f"staleness: the logs are in {outcome.folder}", file=sys.stderr)
        return 1
    if options.database == DRAWN:
        PICTURES.mkdir(exist_ok=True)
        (PICTURES / "staleness.svg").write_text(draw(outcome))
    REPORT.write_text(page(REPORT.read_text(), options.database, rows, {"database": outcome.database, **facts}))
    shutil.rmtree(outcome.folder)
    missed = [one["fault"] for one, scenario in zip(rows, SCENARIOS, strict=True) if scenario.misses_aim(one)]
    if options.check and missed:
        print(f"staleness: above {AIM_MS} ms: {'; '.join(missed)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
