"""Round trips and time of pages whose data depend on each other, with and without a plan (paper, section 3.1).

What: a page asks for some values, derives keys from them, asks for those, and so on. The client library can read it key
by key, component by component, or by a plan (`Plan` in crates/client), which sends everything together whose
dependencies are there. The number of keys of a page has the paper's distributions: 24 on average and 95 at the 95th
percentile for a request, 521 and 1,740 for a popular page.

How: SERVERS servers on this machine, one client thread, one page at a time, all keys in the cache.
crates/workload/examples/pages.rs generates and reads the pages.

    make round-trips       a minute; writes docs/measurements/round_trips.md
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from processes import PROGRAMS, ROOT, Process, answers, free_port

from experiments import command_line, machine_facts

SERVERS = 8
REPORT = ROOT / "docs" / "measurements" / "round_trips.md"

WAYS = {
    "KeyByKey": "a get for each key",
    "ComponentByComponent": "a multiget for each component",
    "Plan": "a plan",
}

TEXT = """# Round trips of a page

`make round-trips` measures this and writes this page (§3.1 of "Scaling Memcache at Facebook"): pages of components of
one to eight keys, each of which needs the values of one other component, in chains of at most five. The number of keys
of a page has the paper's distributions: 24 on average and 95 at the 95th percentile for a request, 521 and 1,740 for a
popular page. The columns of the keys are those of the pages that were read, {pages}. They
are smaller since so few pages lack the largest, and since a logarithmic normal distribution with a mean of 24 has a
95th percentile of 93 at most. {servers} servers on the same machine, one client thread, one page at a time, every key
in the cache.

| page | keys: mean | p95 | read by | round trips: mean | p50 | p95 | time, ms: mean | p50 | p95 |
|---|---|---|---|---|---|---|---|---|---|
{rows}

A round trip is a batch to all servers at once. A plan needs as many as its longest chain has components. On one machine
a round trip costs little but processor time, so that the times show the work saved as much as the waiting: over a
network that takes longer, times approach the ratio of the round trips.

{facts}
"""


def measure(program: Path) -> list[dict]:
    """The example's results, against servers of its own."""
    with tempfile.TemporaryDirectory(prefix="lookaside-pages-") as name, contextlib.ExitStack() as running:
        ports = []
        for number in range(SERVERS):
            port = free_port()
            words = [PROGRAMS / "lookaside-server", "-p", port, "-t", 1, "-m", 64]
            process = Process(f"server-{number}", words, Path(name))
            running.callback(process.stop)
            process.wait_ready(lambda port=port: answers(port))
            ports.append(port)
        command = [program, *(f"127.0.0.1:{port}" for port in ports)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in printed.splitlines()]


def report(results: list[dict], facts: dict[str, str]) -> str:
    """docs/measurements/round_trips.md."""
    # A get for each key is a round trip for each key.
    keys = {result["page"]: result["round_trips"] for result in results if result["way"] == "KeyByKey"}
    rows = []
    for result in results:
        mean, _, p95 = keys[result["page"]]
        trips = " | ".join(f"{number:g}" for number in result["round_trips"])
        times = " | ".join(f"{number / 1000:.2f}" for number in result["us"])
        rows.append(f"| {result['page']} | {mean} | {p95} | {WAYS[result['way']]} | {trips} | {times} |")
    pages = " and ".join(f"{count} {page}s" for page, count in {r["page"]: r["pages"] for r in results}.items())
    facts_text = "\n".join(f"* {name}: {fact}" for name, fact in facts.items())
    return TEXT.format(servers=SERVERS, pages=pages, rows="\n".join(rows), facts=facts_text)


def main() -> int:
    """Measures, and writes the page."""
    parser = command_line.parser(__doc__)
    parser.add_argument("program", type=Path, help="the built example `pages` of crates/workload")
    options = parser.parse_args()
    facts = machine_facts.facts()
    text = report(measure(options.program.resolve()), facts)
    REPORT.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
