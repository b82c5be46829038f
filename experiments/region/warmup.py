"""A cold cluster beside a warm one, with warm-up and without it (paper, section 4.3).

What: a cluster of empty servers is given the full load at once: applications that look aside under leases, with
Zipf-distributed keys, in front of a real MariaDB. Beside it another cluster has everything, and readers of its own. A
writer in the cold cluster commits WRITES a second and deletes what it changed: in the cold cluster at once, in the
warm one DELAY_S later, as an invalidation that takes time to arrive. Reported is, second by second, how many reads the
database had to serve, the share of reads that were answered without it, and how many reads the cold cluster's router
sent to the warm one; and when the warm-up ended by itself.

Checked: every value carries the version of its row. A reader notes the version that had been deleted in its cluster,
and acknowledged, before its read begins; a value with an older one is a stale read. When the load has ended, every key
that the cold cluster still has is compared with its row: what is older stays stale for as long as it lives.

How: release programs on this machine; an application process has a connection of its own to its cluster's router and to
the database. Four runs: without warm-up (`PoolRoute`); with it, until it has ended; then, shorter, without the hold-off
of deletes, and with deletes that reach the warm cluster LATE_S later, which is more than the hold-off covers.

Days and hours of the paper are not measured here: how long a cluster stays cold is its keys over its reads a second,
and both are small. What is comparable is the shape, and how many times sooner.

    make warmup       some five minutes; writes docs/measurements/warmup.md and its pictures
"""

import json
import sys
import tempfile
from pathlib import Path

from mariadb import MariaDb

from experiments import command_line, machine_facts
from experiments.region.cold_start import RUNS, cold_start, fill
from experiments.region.warmup_report import PAGE, draw, figures, report


def main() -> int:
    """Runs all, draws, writes the page, and prints the figures."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--json", action="store_true", help="print every second of every run, too")
    parser.add_argument("--only", default="", metavar="TEXT", help="runs whose name contains TEXT; writes nothing")
    options = parser.parse_args()
    facts = machine_facts.facts()
    with tempfile.TemporaryDirectory(prefix="lookaside-warmup-") as folder:
        database = MariaDb(Path(folder))
        try:
            fill(database)
            runs = {}
            for run in (run for run in RUNS if options.only in run.name):
                print(f"{run.name}: {run.seconds} s", file=sys.stderr, flush=True)
                runs[run.name] = cold_start(database, run)
        finally:
            database.stop()
    if options.only:
        print(json.dumps(runs))
        return 0
    shown = figures(runs)
    draw(runs)
    PAGE.write_text(report(shown, facts))
    if options.json:
        print(json.dumps({**shown, "facts": facts, "over time": runs}))
    else:
        print(json.dumps(shown, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
