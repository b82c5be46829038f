"""How long it takes, after each kind of fault, until no cached value is older than the database (paper, section 5).

What: the tests of `tests/test_invalidator_faults.py` and `tests/test_invalidator_failover.py`, with real MariaDB, MySQL
and PostgreSQL, two clusters and one invalidator. In the middle of commits and reads one thing fails; when it works
again, every version of every row in every process is compared with the database until none is older. The times of
these tests are what is reported: median and maximum of the rounds.

How: each round is a run of pytest, one test after the other, with the environment variable LOOKASIDE_RECOVERIES, by
which the tests write what they measured. The page is written after each round.

    make recovery           ROUNDS rounds of some five minutes; writes docs/measurements/recovery.md and its picture
    RECOVERY="--rounds 1"   another number of rounds
    RECOVERY=--full         also, once, a million rows in a transaction, and 100,000 commits while a cluster is down
    RECOVERY="--only cut"   tests by pytest's `-k`, in one round; prints the figures and writes no page

Exit status 1 if a test failed: the page says which.
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from processes import PROGRAMS, ROOT
from recovery_log import VARIABLE, Recovery, RecoveryLog

from experiments import command_line, machine_facts
from experiments.plots import dots
from experiments.programs import Unusable

ROUNDS = 3
# A test has 600 s; a run of all of them on a slow machine takes less than this.
RUN_S_MAX = 2_400
STOP_S = 120
# pytest's exit status if all tests passed, and if some failed.
RAN = (0, 1)
FILES = (ROOT / "tests" / "test_invalidator_faults.py", ROOT / "tests" / "test_invalidator_failover.py")
SOAK = "LOOKASIDE_SOAK"
SOAK_CASES = "many"
REPORT = ROOT / "docs" / "measurements" / "recovery.md"
PICTURES = ROOT / "docs" / "measurements" / "pictures"

DATABASES = {"mariadb": "MariaDB", "mysql": "MySQL", "postgres": "PostgreSQL"}
SETTINGS = {
    "statements": "",
    "rules": " (row rules)",
    "shared": " (shared state)",
}


@dataclass(frozen=True)
class Fault:
    """The fault of a test, in words; `{size}` stands for its size. `counted_from` is the moment of its end."""

    test: str
    name: str
    counted_from: str


ROUTER_STARTS, INVALIDATOR_STARTS = "the start of the router", "the start of the invalidator"
COMMITTED = "the return of COMMIT"
HEALED = "the moment the connection works again"
REFUSED = f"{INVALIDATOR_STARTS}, which finds its position lost"

FAULTS = (
    Fault("killed_invalidator", "the invalidator is killed", INVALIDATOR_STARTS),
    Fault(
        "killed_invalidator_while_a_cluster_is_down",
        "a router is killed, then the invalidator, which is started again",
        ROUTER_STARTS,
    ),
    Fault("killed_router", "a router is killed", ROUTER_STARTS),
    Fault("killed_cache_server", "a cache server is killed", "the start of the server, empty"),
    Fault("killed_database", "the database is killed", "the start of the database, on which commits go on"),
    Fault("cut_between_the_invalidator_and_a_cluster", "no connection from the invalidator to a cluster", HEALED),
    Fault("cut_between_the_invalidator_and_the_database", "no connection from the invalidator to the database", HEALED),
    Fault(
        "full_disk_under_the_positions_and_the_spool",
        "the invalidator's disk is full, and it is killed and started",
        "the moment there is space",
    ),
    Fault("rotated_log", "the log is rotated, and the invalidator is killed", INVALIDATOR_STARTS),
    Fault("purged_log", "the invalidator is killed, and the log is purged", REFUSED),
    Fault("dropped_slot", "the invalidator is killed, and its slot is dropped", REFUSED),
    Fault(
        "slot_that_is_invalidated_while_it_is_read",
        "no connection to the database, which invalidates the slot",
        HEALED,
    ),
    Fault("a_statement_of_20_mb", "a statement of 20 MiB", COMMITTED),
    Fault("a_transaction_of_10_000_keys", "a transaction of 10,000 keys", COMMITTED),
    Fault("a_transaction_of_many_rows", "a transaction of {size} rows without keys", COMMITTED),
    Fault("a_transaction_of_many_rows_with_a_rule", "a transaction of {size} rows, each with a key", COMMITTED),
    Fault("many_commits_while_a_cluster_is_down", "{size} commits while a router is dead", ROUTER_STARTS),
    Fault("clock_stepped_back", "the invalidator's clock is stepped", "the last commit"),
    Fault(
        "clock_of_the_database_stepped_back",
        "the database's clock is stepped by libfaketime, with which MySQL takes seconds to answer",
        "the last commit",
    ),
    Fault(
        "failover_to_a_promoted_replica",
        "the invalidator and the primary are killed, a replica is promoted",
        f"{INVALIDATOR_STARTS} (PostgreSQL: which finds its position lost)",
    ),
    Fault(
        "failover_under_load",
        "the primary is killed, a semi-synchronous replica is promoted",
        "the kill; commits go on at the replica",
    ),
    Fault(
        "failover_under_load_without_the_slot",
        "the primary is killed, a standby without the slot is promoted",
        "the kill; commits go on at the standby, and the position is lost",
    ),
    Fault(
        "failover_under_load_with_the_slot",
        "the primary is killed, a synchronous standby is given its slot and promoted",
        "the kill; commits go on at the standby",
    ),
    Fault(
        "failover_under_load_with_a_copied_slot",
        "the primary is killed, a synchronous standby that has copied the slot is promoted (PostgreSQL 18)",
        "the kill; commits go on at the standby",
    ),
    Fault(
        "failover_to_a_standby_without_the_log_of_the_slot",
        "the primary is killed, a standby is given its slot, without the log that it needs, and promoted",
        "the kill; the position is lost",
    ),
    Fault(
        "failover_without_the_last_commits_without_keys",
        "the primary is killed, whose last commits, without keys, the replica lacks",
        "the kill",
    ),
)
BY_TEST = {fault.test: fault for fault in FAULTS}
# These show that the comparison finds an old value, and a process that does not answer. Nothing recovers in them.
OTHER_TESTS = ("a_cluster_with_a_dead_process_has_not_recovered", "lost_deletes_are_found")


@dataclass
class Outcome:
    """What runs of the tests found."""

    rounds: int = 0
    has_soak: bool = False
    recoveries: list[Recovery] = field(default_factory=list)
    passed: int = 0
    failed: Counter = field(default_factory=Counter)
    skipped: Counter = field(default_factory=Counter)


def heed_interrupts() -> None:
    """Runs in a child before exec: a program that a shell has started in the background ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_tests(outcome: Outcome, files: Iterable[Path], only: str = "", soak: bool = False) -> None:
    """Runs the tests once and adds what they found."""
    with tempfile.TemporaryDirectory(prefix="lookaside-recovery-") as name:
        log, results = RecoveryLog(Path(name) / "recoveries"), Path(name) / "results.xml"
        environment = {word: value for word, value in os.environ.items() if word != SOAK}
        environment |= {VARIABLE: str(log.path)} | ({SOAK: "1"} if soak else {})
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={results}", *map(str, files)]
        command += ["-k", only] if only else []
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=2, preexec_fn=heed_interrupts)
        try:
            process.wait(RUN_S_MAX)
        except BaseException as failure:
            # The tests stop what they have started.
            process.send_signal(signal.SIGINT)
            process.wait(STOP_S)
            if isinstance(failure, subprocess.TimeoutExpired):
                raise Unusable(f"the tests took more than {RUN_S_MAX} s") from None
            raise
        if process.returncode not in RAN:
            raise Unusable(f"pytest ended with exit status {process.returncode}; see above")
        outcome.rounds += not soak
        outcome.has_soak |= soak
        outcome.recoveries += log.read()
        for case in ElementTree.parse(results).iter("testcase"):
            test = case.get("name", "").removeprefix("test_")
            if case.find("failure") is not None or case.find("error") is not None:
                outcome.failed[test] += 1
            elif case.find("skipped") is not None:
                outcome.skipped[test] += 1
            else:
                outcome.passed += 1


@dataclass
class Row:
    """What failed, from when the time is counted, and the times with each kind of database, in seconds."""

    name: str
    counted_from: str
    old_values: list[int] = field(default_factory=list)
    times: dict[str, list[float]] = field(default_factory=dict)

    def text(self) -> str:
        """As the page shows it."""
        old = sorted({min(self.old_values), max(self.old_values)}) if self.old_values else []
        cells = [cell(self.times.get(database, [])) for database in DATABASES]
        return "| " + " | ".join((self.name, self.counted_from, " to ".join(map(str, old)), *cells)) + " |"


def rows_of(recoveries: list[Recovery]) -> list[Row]:
    """In the order of FAULTS."""
    tests, settings = [fault.test for fault in FAULTS], list(SETTINGS)
    rows: dict[tuple[str, str], Row] = {}

    def place(recovery: Recovery) -> tuple[int, int, int]:
        return tests.index(recovery.test), settings.index(recovery.setting), recovery.size or 0

    for recovery in sorted(recoveries, key=place):
        fault = BY_TEST[recovery.test]
        name = fault.name.format(size=f"{recovery.size or 0:,}") + SETTINGS[recovery.setting]
        cases = [(fault.counted_from, recovery.seconds)]
        if recovery.after_commits_s is not None:
            cases.append(("the last of these commits", recovery.after_commits_s))
        for counted_from, seconds in cases:
            row = rows.setdefault((name, counted_from), Row(name, counted_from))
            row.times.setdefault(recovery.database, []).append(seconds)
            if recovery.old_values is not None:
                row.old_values.append(recovery.old_values)
    return list(rows.values())


def cell(times: list[float]) -> str:
    """A database's cell: a figure, or median and maximum of several."""
    return " / ".join(f"{value:.2f}" for value in ([statistics.median(times), max(times)] if times[1:] else times))


def table(rows: list[Row]) -> str:
    """The rows of the table."""
    return "\n".join(row.text() for row in rows)


def draw(rows: list[Row]) -> str:
    """The times by fault and database. Of a fault whose time is counted from two moments, it is the second one, after
    which only the recovery goes on."""
    drawn = {
        row.name: {
            DATABASES[database]: (statistics.median(times), min(times), max(times))
            for database in DATABASES
            if (times := row.times.get(database))
        }
        for row in rows
    }
    return dots.svg("Time until no cached value is older than the database", "time (s)", drawn)


TEXT = """# How long it takes to recover from a fault

`make recovery` measures this and writes this page (§5 of "Scaling Memcache at Facebook": deletes are buffered and
replayed until they arrive). It runs the tests `tests/test_invalidator_faults.py` and
`tests/test_invalidator_failover.py`, with the database, two clusters of two servers, a gutter and a router each, and
one invalidator, all on this machine. All caches are filled with the newest versions of {rows} rows; then one thing
fails while rows are changed, one after the other, and readers fill what is missing under leases. "Killed" is `kill -9`;
the router, or the server, is one of one cluster, and the other cluster is up to date meanwhile. Keys are named in SQL,
or by [row rules](../operating/row_rules.md); positions are in files, or, with a
[shared state](../operating/invalidation.md#two-invalidators), in the database.

The times are in seconds. They begin at the end of the fault, the moment in the second column, so the start of a
process is part of them; where commits go on after it, a second row counts from the last of them. They end with the
first comparison in which none of the {processes} processes of the clusters, each of which is asked for all rows, has a
version that is older than the database's. The readers are stopped before the first comparison, so a tenth of a second
more or less says little. "Old" is how many old values these processes had at the end of the fault; it is not counted
where the fault ends by itself. A lost position stops the invalidator, which is then started with
`--on-position-lost flush`: both starts are part of the time. With a shared state either may first stand by, until it
has seen that no other one is active. The deletes of rows that were changed more than once, and of keys that are not
cached, may still follow: how many a second is [measured, too](invalidator.md). After all this, in each test, further
commits are followed by all caches.

{figures}

| what fails | counted from | old | {databases} |
|---|---|---|{columns}|
{table}

![time to recover](pictures/recovery.svg)

{checks}

{facts}
"""


def named(counted: Counter) -> str:
    """Tests, with how often, if that is more than once."""
    return ", ".join(f"`{name}`" + (f" ({times} times)" if times > 1 else "") for name, times in counted.items())


def page(outcome: Outcome, facts: dict[str, str]) -> str:
    """docs/measurements/recovery.md."""
    recoveries = outcome.recoveries
    rounds = f"{outcome.rounds} rounds" if outcome.rounds > 1 else "one round"
    with_large = ", and once the largest ones" if outcome.has_soak else ""
    figures = f"Figures are those of {rounds}" + (": median / maximum." if outcome.rounds > 1 else ".")
    figures += " A cell with one figure was run once. A cell is empty where the fault is not one of that database."
    checks = [f"All tests ran in {rounds}{with_large}; {outcome.passed} passed."]
    if outcome.failed:
        checks.append(f"**Failed: {named(outcome.failed)}.**")
    if outcome.skipped:
        checks.append(f"Skipped on this machine: {named(outcome.skipped)}.")
    memory_mib = max(one.memory_bytes for one in recoveries) / (1 << 20)
    fills = sum(one.fills for one in recoveries)
    checks.append(
        f"In {len(recoveries)} recoveries no old value was left, although readers filled {fills:,} values until the end"
        f" of the faults. The invalidator had at most {memory_mib:.0f} MiB in them."
    )
    return TEXT.format(
        rows=max(one.rows for one in recoveries),
        processes=max(one.processes for one in recoveries),
        figures=wrap(figures),
        databases=" | ".join(DATABASES.values()),
        columns="|".join("---" for _ in DATABASES),
        table=table(rows_of(recoveries)),
        checks=wrap(" ".join(checks)),
        facts="\n".join(f"* {name}: {fact}" for name, fact in facts.items()),
    )


def wrap(text: str) -> str:
    """A paragraph in lines."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def main() -> int:
    """Runs the tests, writes the page after each round, and prints the recoveries as JSON."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"default: {ROUNDS}")
    parser.add_argument("--full", action="store_true", help="also, once, larger transactions and more commits")
    parser.add_argument("--only", default="", metavar="TEXT", help="tests by pytest's -k, in one round, and no page")
    command_line.add_json_path(parser)
    options = parser.parse_args()
    outcome = Outcome()

    def measure() -> None:
        facts = {**machine_facts.facts(), "build": PROGRAMS.name}

        def write() -> None:
            if options.only or not outcome.recoveries:
                return
            PICTURES.mkdir(exist_ok=True)
            (PICTURES / "recovery.svg").write_text(draw(rows_of(outcome.recoveries)))
            load = " ".join(f"{load:.2f}" for load in os.getloadavg())
            REPORT.write_text(page(outcome, {**facts, "load average at the end": load}))

        for number in range(1 if options.only else options.rounds):
            run_tests(outcome, FILES, options.only)
            write()
            if options.full and number == 0:
                run_tests(outcome, FILES, SOAK_CASES, soak=True)
                write()
        command_line.print_results([asdict(one) for one in outcome.recoveries], options.json)

    code = command_line.run_measurement("make recovery", measure)
    if outcome.failed:
        print(f"make recovery: failed: {named(outcome.failed)}", file=sys.stderr)
    return 1 if outcome.failed else code


if __name__ == "__main__":
    sys.exit(main())
