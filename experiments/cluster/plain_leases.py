"""Stale sets of clients that know no leases, and what the router's leases cost them (paper, section 3.2.1).

What: look-aside applications with unmodified clients of six languages, READERS readers each, over KEYS keys whose rows
one writer changes and deletes as fast as the router acknowledges. A query takes up to QUERY_S_MAX, so that many fills
meet a delete. Once without leases, once with `--leases`, and once with `--leases --lease-scope address`. A stale set is
counted when a server, asked directly, holds a version that is older than one whose delete the router had acknowledged
before the question.

How: `tests/plain_clients.py`, which `tests/clients/test_plain_leases_of_clients.py` runs for a shorter time, with the
programs of LOOKASIDE_PROGRAMS. Rates depend on the machine; they are there to show that enough was tried. Few keys and
a delete of each every 20 ms are the worst case for the hit ratio, not a typical one.

    make plain-leases       five minutes; writes docs/measurements/plain_leases.md. Needs `make clients` before
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from plain_clients import CLIENTS, KEYS, QUERY_S_MAX, Application, Outcome, go, java, node, php, python, ruby, run
from processes import PROGRAMS, ROOT, Cluster

from experiments import command_line, machine_facts

READERS = 6
SECONDS = 10.0
MISS_AGE_S = 2
MODES = (
    ("none", ()),
    ("`--leases`", ("--leases",)),
    ("`--lease-scope address`", ("--leases", "--lease-scope", "address", "--lease-miss-age", str(MISS_AGE_S))),
)
GO_PROGRAM = ROOT / "target" / "clients" / "look_aside"
# The programs that `make clients` builds of the pages of docs/clients.
PAGES = ROOT / "target" / "clients" / "pages"
REPORT = ROOT / "docs" / "measurements" / "plain_leases.md"

HEAD = """# Leases for plain clients

`make plain-leases` measures this and writes this page (§3.2.1 of "Scaling Memcache at Facebook"): look-aside
applications with unmodified clients, {readers} readers each for {seconds:.0f} s, over {keys} keys. A writer changes
rows and deletes their keys as fast as the router acknowledges. A query takes up to {query_ms:.0f} ms, so a large
part of the fills meets a delete.
A stale set is counted when a server, asked directly, holds a version older than one whose delete had been acknowledged
before the question.

| client | leases | reads | hits | sets stored | refused | commits | stale sets |
|---|---|---|---|---|---|---|---|
"""

TAIL = """
Without leases the hits are many because stale values are hits. A pool exchanges connections between a get and its set.
With the default scope nearly all of its sets have no miss on their connection and are refused, and some count for
another thread's miss, so a few stale sets remain: such a client needs `--lease-scope address`. memjs and XMemcached
send all requests over one connection, so a miss that is held back keeps the set behind it waiting: they ran with
`--lease-hot-miss-wait 0`. Rails does not report which sets are stored.
With `address`, nothing is stored in the first {age} s, `--lease-miss-age`
([clients](../clients.md#with-leases-at-the-router)).

"""


def applications() -> list[Application]:
    """All clients; builds Go's."""
    build = ["go", "build", "-mod=readonly", "-buildvcs=false", "-o", str(GO_PROGRAM), "./look_aside"]
    subprocess.run(build, cwd=CLIENTS / "go", check=True)
    rubies = [ruby(PAGES / "ruby" / script) for script in ("look_aside.rb", "rails_cache.rb")]
    return [python("own"), php(), node(), java(PAGES / "java"), python("pooled"), go(GO_PROGRAM), *rubies]


def row(application: Application, mode: str, outcome: Outcome) -> str:
    """A line of the table."""
    hits = outcome.hits / max(outcome.reads, 1)
    counts = f"{outcome.stored} | {outcome.refused} | {outcome.commits} | {outcome.stale_sets}"
    return f"| {application.name} | {mode} | {outcome.reads} | {hits:.0%} | {counts} |"


def main() -> int:
    """Measures, and writes the report."""
    command_line.parser(__doc__).parse_args()
    facts = {**machine_facts.facts(), "build": PROGRAMS.name}
    rows = []
    for application in applications():
        for mode, arguments in MODES:
            if arguments and application.sends_all_over_one_connection:
                arguments = (*arguments, "--lease-hot-miss-wait", "0")
            with tempfile.TemporaryDirectory() as folder:
                cluster = Cluster("one", Path(folder), arguments)
                try:
                    rows.append(row(application, mode, run(application, cluster, READERS, SECONDS)))
                finally:
                    cluster.stop()
            print(rows[-1], flush=True)
    head = HEAD.format(readers=READERS, seconds=SECONDS, keys=KEYS, query_ms=QUERY_S_MAX * 1000)
    listed = "".join(f"* {name}: {fact}\n" for name, fact in facts.items())
    REPORT.write_text(head + "\n".join(rows) + "\n" + TAIL.format(age=MISS_AGE_S) + listed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
