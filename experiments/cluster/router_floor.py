"""What a proxy needs at least on this machine: bare proxies, which move bytes between sockets and do nothing else.

What: CPU time for a request of bare proxies in three event loops (crates/workload/examples/bare_proxy), of the router
and of memcached's proxy, in closed loop with single gets, with the loads and the aims of experiments/cluster/proxy.py.

How: all of them run side by side in front of the same servers and are loaded one at a time, in rounds. Each is compared
with memcached's proxy, as in experiments/saturation.py. The cheaper a proxy is, the less the load and the servers, on
the other core, can keep it busy: a ratio is then a lower bound.

    make router-floor       five minutes; writes docs/measurements/router_floor.md
"""

import sys
import textwrap

from experiments import command_line, machine_facts
from experiments.cluster.proxy import BARE, SCENARIOS, Scenario, closed_loop
from experiments.programs import ROOT, peer_version
from experiments.saturation import compare, median

BARE_NAMES = tuple(BARE + loop for loop in ("epoll", "tokio", "io_uring"))
NAMES = ("lookaside", "memcached", *BARE_NAMES)
REPORT = ROOT / "docs" / "measurements" / "router_floor.md"
COLUMNS = 120

TEXT = """# What a router costs at least

`make router-floor` measures this and writes this page. Bare proxies of one thread move requests and replies between
clients and four servers: they find the end of a request and of a reply, and choose a server by a hash of the key. They
parse nothing, and have no routes, timeouts, statistics or bounds on memory (`crates/workload/examples/bare_proxy`).
Each is built on one event loop, and does the same to the bytes:

* epoll: one level-triggered epoll for clients and servers; all that a round has for a socket leaves in one `send`.
* tokio: a task for each client and one for each server, as in the router.
* io_uring: one ring; the sends and receives of a round are submitted by the system call that waits for the next one.

They run beside the router and memcached's proxy, in rounds, as in [benchmarks](benchmarks.md), which explains "times
cheaper" and "saturated"; the comparison is with memcached's proxy alone. Where the bare proxies miss an aim, too,
moving the bytes alone costs more than it allows, on this machine and kernel and under this load. The cheaper a proxy
is, the longer it waits for the load and the servers, which share the other core, and the more wake-ups it pays for; so
a bare proxy may even cost more than the router.

| scenario | proxy | CPU time for a request, us | times cheaper than memcached's | of the medians | aim | \
core used | saturated |
|---|---|---|---|---|---|---|---|
{rows}
{conclusions}

{facts}
"""


def run(full: bool, nice: int, is_realtime: bool, only: str) -> list[dict]:
    """Ours and the bare proxies beside memcached's, in closed loop with single gets: a result for each of them."""
    rounds, seconds = (11, 4.0) if full else (7, 2.0)
    results = []
    scenarios = [scenario for scenario in SCENARIOS if scenario.keys == 1 and only in scenario.name]
    for scenario, done in closed_loop(NAMES, scenarios, rounds, seconds, nice, is_realtime):
        for name in NAMES:
            results.append(summary(scenario, name, done))
            print(row(results[-1]), end="", file=sys.stderr, flush=True)
    return results


def summary(scenario: Scenario, name: str, rounds: list[dict[str, dict]]) -> dict:
    """A proxy beside memcached's."""
    comparison, counted = compare(rounds, name, ["memcached"])
    figures = {
        "cpu_us": median(counted, name, "server_cpu_us_per_request"),
        "cpu_share": median(counted, name, "server_cpu_share"),
        "memcached_cpu_us": median(counted, "memcached", "server_cpu_us_per_request"),
        "requests_per_s": median(counted, name, "requests_per_s"),
    }
    return {"scenario": scenario.name, "aim": scenario.aim, "name": name, **figures, **comparison}


def row(result: dict) -> str:
    """A proxy's line of the table."""
    is_met = result["ratio"] >= result["aim"]
    words = {"all": "both", "theirs": "memcached; lower bound", "neither": "neither"}
    is_itself = result["name"] == "memcached"
    cells = [
        result["scenario"],
        result["name"],
        f"{result['cpu_us']:.2f}",
        "" if is_itself else f"**{result['ratio']:.2f}** ({result['ratio_min']:.2f} to {result['ratio_max']:.2f})",
        "" if is_itself else f"{result['ratio_of_medians']:.2f}",
        "" if is_itself else f"{result['aim']:g}: {'met' if is_met else '**missed**'}",
        f"{result['cpu_share']:.2f}",
        f"{words[result['saturation']]} ({result['rounds_counted']} of {result['rounds']} rounds)",
    ]
    return f"| {' | '.join(cells)} |\n"


def conclusion(results: list[dict]) -> str:
    """What the results of a scenario say about its aim."""
    found = {result["name"]: result for result in results}
    ours, best = found["lookaside"], max((found[name] for name in BARE_NAMES), key=lambda result: result["ratio"])
    aim = ours["aim"]
    limit_us = best["memcached_cpu_us"] / aim
    text = (
        f"{ours['scenario']}: the aim is {aim:g} times cheaper than memcached's proxy, {limit_us:.2f} us a request in"
        f" this run. The cheapest bare proxy ({best['name'].removeprefix(BARE)}) takes {best['cpu_us']:.2f} us, ours"
        f" {ours['cpu_us']:.2f} us. "
    )
    if max(best["ratio"], ours["ratio"]) < aim:
        text += "No proxy here meets the aim, not even one that only moves bytes."
    else:
        text += f"That leaves {limit_us - best['cpu_us']:.2f} us for all that a router does beside moving bytes."
    return textwrap.fill(f"* {text}", COLUMNS, subsequent_indent="  ", break_on_hyphens=False)


def page(results: list[dict], facts: dict[str, str]) -> str:
    """docs/measurements/router_floor.md."""
    scenarios = dict.fromkeys(result["scenario"] for result in results)
    conclusions = [
        conclusion([result for result in results if result["scenario"] == scenario]) for scenario in scenarios
    ]
    return TEXT.format(
        rows="".join(map(row, results)),
        conclusions="\n".join(conclusions),
        facts="\n".join(f"* {name}: {fact}" for name, fact in facts.items()),
    )


def main() -> int:
    """Prints the results as JSON, and writes the page."""
    parser = command_line.load_parser(__doc__, "proxies, servers")
    parser.add_argument("--report", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    options = parser.parse_args()

    def measure() -> None:
        versions = {"memcached": peer_version("memcached")}
        facts = {**machine_facts.facts(), **versions, "mode": command_line.mode(options)}
        results = run(options.full, options.nice, options.realtime, options.only)
        command_line.print_results(results)
        if options.report:
            REPORT.write_text(page(results, facts))

    return command_line.run_measurement("router_floor", measure)


if __name__ == "__main__":
    sys.exit(main())
