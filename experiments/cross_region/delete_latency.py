"""The latency of deletes in two regions while processes fail (paper, section 7.3, figure 11).

What: a master and a replica region with real replication (regions.py). A writer commits at the master, so that each
commit deletes a cached value in both regions. A monitor at each region's database asks its clusters about every delete
at several ages. Meanwhile a seeded schedule kills, restarts and cuts off servers, gutters, routers and invalidators,
one at a time in each region (faults.py). Reported are the shares of deletes whose old value was still there, by age,
beside the paper's; what late deletes waited for; and whether the bars of report.py are met.

How: an age counts from when the region's own database shows the commit: the time of replication is in the curve from
the master's commits to the replica region alone. `lookaside simulate --hours 1` shows what an hour holds: in its clock,
not the real one.

    make delete-latency                    nine minutes; writes docs/measurements/delete_latency.md and its picture
    make delete-latency DELETES="--seconds 60 --seed 7 --faults kill,restart --json figures.json"
                                           another schedule; does not change the page without --report
"""

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from chaos.network import Loopback, Namespaces, enter_namespace, is_in_namespace, missing_for_partitions
from processes import PROGRAMS, ROOT

from experiments import command_line, machine_facts
from experiments.cross_region.faults import KINDS
from experiments.cross_region.measurement import Settings, run
from experiments.cross_region.report import Report, draw

# So that the whole takes less than ten minutes.
SIMULATE_S = 300.0
PAGE = ROOT / "docs" / "measurements" / "delete_latency.md"
PICTURE = ROOT / "docs" / "measurements" / "pictures" / "delete_latency.svg"


def simulate(seeds: int) -> dict | None:
    """What `lookaside simulate` reports; `None` if it is not run, or does not end within SIMULATE_S."""
    if not seeds:
        return None
    command = [PROGRAMS / "lookaside", "simulate", "--hours", "1", "--seeds", str(seeds), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SIMULATE_S)
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout)


def kinds_of(text: str) -> tuple[str, ...]:
    """The value of `--faults`."""
    kinds = tuple(kind for kind in text.split(",") if kind != "none")
    unknown = set(kinds) - set(KINDS)
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))} is no kind of fault; there are {', '.join(KINDS)}, none")
    return kinds


def settings_of(options) -> Settings:
    """What the command line asks for."""
    if options.seconds < 5 or options.rate < 1:
        raise ValueError("--seconds must be at least 5, and --rate at least 1")
    return Settings(options.seconds, options.rate, options.seed, faults=kinds_of(options.faults))


def main() -> int:
    """Measures, draws, writes the page, and prints the figures as JSON."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=Settings.seconds, help="how long deletes come (default 190)")
    parser.add_argument("--rate", type=float, default=Settings.rate, help="deletes per second (default 170)")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule of faults (default 1)")
    parser.add_argument("--faults", default=",".join(KINDS), help="kinds of faults, or none (default: %(default)s)")
    parser.add_argument("--simulate", type=int, default=32, metavar="SEEDS", help="simulated hours (default 32)")
    parser.add_argument("--report", action="store_true", help="write the page and its picture")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a bar is missed")
    command_line.add_json_path(parser)
    options = parser.parse_args()
    try:
        settings = settings_of(options)
    except ValueError as why:
        parser.error(str(why))
    if "partition" in settings.faults and not is_in_namespace():
        missing = missing_for_partitions()
        if missing is None:
            enter_namespace("experiments.cross_region.delete_latency")
        print(f"delete_latency: NO PARTITIONS: {missing}", file=sys.stderr, flush=True)
        settings = replace(settings, faults=tuple(kind for kind in settings.faults if kind != "partition"))
    facts = {**machine_facts.facts(), "build": PROGRAMS.name}
    folder = Path(tempfile.mkdtemp(prefix="lookaside-delete-latency-"))
    network = Namespaces() if "partition" in settings.faults else Loopback()
    try:
        outcome = run(settings, network, folder)
    finally:
        network.close()
    report = Report(outcome, simulate(options.simulate))
    command_line.print_results(report.figures(), options.json)
    print(report.bars_text(), file=sys.stderr)
    if options.report:
        PICTURE.write_text(draw(outcome))
        PAGE.write_text(report.page(facts))
    if outcome.failures:
        print(f"delete_latency: the logs are in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 1 if options.check and report.missed() else 0


if __name__ == "__main__":
    sys.exit(main())
