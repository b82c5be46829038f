"""Measures everything and writes docs/measurements/benchmarks.md: a ratio for each scenario, losses included.

What is below the line `KEPT` in that file is written by people, and stays: why a bar is missed, what was tried.

    experiments/run            some minutes
    experiments/run --full     three times as long, and more rates of commits
"""

import sys
import time
from pathlib import Path

from experiments import command_line, machine_facts
from experiments.cluster import proxy
from experiments.programs import ROOT, peer_version
from experiments.region import invalidation_latency
from experiments.server import cost, item_overhead

REPORT = ROOT / "docs" / "measurements" / "benchmarks.md"
KEPT = "<!-- Above: written by experiments/report.py. Below: written by people, and kept. -->"

HEAD = """# Benchmarks

`make bench` measures this and writes this page; `make bench BENCH=--full` takes longer. Absolute times depend on the
machine and its load. The ratios are medians of interleaved runs, in which both sides share the same disturbance.
"""

COST = """
## Server CPU for a request, against memcached 1.6.45

Closed loop, one worker on one core, the load on another; one million keys of 24 bytes. "Times cheaper" is memcached's
CPU time for a request over ours, round by round: the median of these ratios, by which bar and aim are judged, and in
brackets the lowest and highest. "Of the medians" is the ratio of the two medians to the left of it; where it differs
much, so did the rounds. "Core used" is the median share of its core that the server used, memcached's and ours; a
server is saturated from 0.9 on. If both are saturated, the costs compare fairly. If only memcached is, the load
generator could not keep ours busy: our requests pay for wake-ups that memcached's requests share, and the ratio is a
lower bound. If neither is, the ratio says little. Only the rounds of the strictest of these classes that three or more
reach count. The bar is a requirement; the aim is what the design should reach.

| scenario | memcached, us | ours, us | times cheaper | of the medians | core used | saturated | bar | aim |
|---|---|---|---|---|---|---|---|---|
"""

OVERHEAD = """
## Memory of an item, against memcached 1.6.45

{items:,} items with keys of {key_bytes} bytes and values of {value_bytes}, all of them held, in a server of one worker
with `-m {memory_mib}`. Resident memory is the resident set (VmRSS) less that of an empty server of its kind with
`-m 2`, over the number of items. Overhead is what of it is neither key nor value: headers, the index, and what is lost
in slab classes and in pages that are not full. The aim is for ours.

| | resident for an item, bytes | overhead, bytes | aim |
|---|---|---|---|
"""

PROXY = """
## Router CPU for a request, against memcached 1.6.45's proxy and twemproxy 0.5

Closed loop, one thread on one core, four of our servers and the load on the other; 100,000 keys of 24 bytes, values of
135. "Times cheaper" is the CPU time for a request of the cheaper of the other two in a round over ours, round by round:
the median of these ratios, by which the aim is judged, in brackets the lowest and highest, and which of the two was the
cheaper one in how many rounds. "Of the medians" is the lower of their medians over ours. "Core used" is the median
share of its core that each proxy used; a proxy is saturated from 0.9 on. If all are saturated, the costs compare
fairly. If only the other two are, the load and the servers on the other core were too slow to keep ours busy: our
requests pay for wake-ups that theirs share, and the ratio is a lower bound. If neither is so, the ratio says little.
Only the rounds of the strictest of these classes that three or more reach count. The last column is the 99th percentile
of the latency under this load, in ms. Where a list has three figures, they are those of ours, memcached's and
twemproxy's. The aim for a key is one in us of CPU time of ours, so it depends on the machine.

| scenario | ours, us | memcached, us | twemproxy, us | times cheaper than the best | of the medians | aim | \
ours, us a key | aim for a key | core used | saturated | p99, ms |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""

ADDED = """
At {rate:,} single gets a second, in open loop from 50 clients, a fifth of what one thread can do, the median
latency through a proxy exceeds that of a server asked directly ({direct:.0f} us) by this much: {added}. The aim for
ours is under {aim} us: **{verdict}**.
"""

LATENCY = """
## Commit to empty in both clusters

A region by `lookaside up` on SQLite, values in both clusters, a row of the journal committed for each, both routers
polled from outside until the last value is gone. "Sent" counts from when COMMIT was sent, "returned" from when it had
returned; both include the watcher's poll of 0.5 ms and its round trip.

| commits | a second | from | p50, ms | p90, ms | p99, ms | longest, ms | bar for p99 |
|---|---|---|---|---|---|---|---|
"""


def verdict(is_met: bool, bar: str, missed_by: float) -> str:
    """The bar, and whether it is met."""
    return f"{bar}: met" if is_met else f"{bar}: **missed by {missed_by:.0%}**"


def cost_row(result: dict) -> str:
    """A scenario's line of the table."""
    ratio = result["ratio"]
    goals = [
        verdict(ratio >= goal, f"{goal:g}", 1 - ratio / goal) if goal else "" for goal in (result["bar"], result["aim"])
    ]
    theirs, ours = result["memcached"], result["lookaside"]
    words = {"all": "both", "theirs": "memcached; lower bound", "neither": "neither"}
    cells = [
        result["name"],
        f"{theirs['cpu_us']:.2f}",
        f"{ours['cpu_us']:.2f}",
        f"**{ratio:.2f}** ({result['ratio_min']:.2f} to {result['ratio_max']:.2f})",
        f"{result['ratio_of_medians']:.2f}",
        f"{theirs['cpu_share']:.2f}, {ours['cpu_share']:.2f}",
        saturated(result, words),
        *goals,
    ]
    return f"| {' | '.join(cells)} |\n"


def saturated(result: dict, words: dict[str, str]) -> str:
    """Which sides were saturated in the rounds that count."""
    return f"{words[result['saturation']]} ({result['rounds_counted']} of {result['rounds']} rounds)"


def cost_notes(results: list[dict]) -> str:
    """Remarks on the rows."""
    notes = []
    for result in results:
        for name in ("memcached", "lookaside"):
            side = result[name]
            if side["unexpected_misses"]:
                notes.append(f"* {result['name']}: {name} lost {side['unexpected_misses']} values that were set.\n")
            if side["udp_lost"]:
                notes.append(f"* {result['name']}: {side['udp_lost']} requests to {name} had no whole reply in time.\n")
    return "\n" + "".join(notes) if notes else ""


def overhead_rows(result: dict) -> str:
    """The table of the memory of an item."""
    rows = OVERHEAD.format(**result)
    for name, overhead in result["overhead_bytes"].items():
        aim = result["aim_bytes"]
        judged = verdict(overhead <= aim, f"{aim:g}", overhead / aim - 1) if name == "lookaside" else ""
        resident = overhead + result["key_bytes"] + result["value_bytes"]
        rows += f"| {name} | {resident:.1f} | {overhead:.1f} | {judged} |\n"
    return rows


def proxy_row(result: dict) -> str:
    """A scenario's line of the table."""
    ratio, goal = result["ratio"], result["aim"]
    sides = result["sides"].values()
    cheapest = ", ".join(f"{name} {rounds}" for name, rounds in result["cheapest"].items())
    words = {"all": "all", "theirs": "the other two; lower bound", "neither": "neither"}
    cells = [
        result["name"],
        *(f"{side['cpu_us']:.2f}" for side in sides),
        f"**{ratio:.2f}** ({result['ratio_min']:.2f} to {result['ratio_max']:.2f}; {cheapest})",
        f"{result['ratio_of_medians']:.2f}",
        verdict(ratio >= goal, f"{goal:g}", 1 - ratio / goal),
        *key_cells(result),
        ", ".join(f"{side['cpu_share']:.2f}" for side in sides),
        saturated(result, words),
        ", ".join(f"{side['p99_us'] / 1000:.1f}" for side in sides),
    ]
    return f"| {' | '.join(cells)} |\n"


def key_cells(result: dict) -> tuple[str, str]:
    """Our CPU time for a key, and whether it is as low as it should be; empty if a request has one key."""
    goal = result["aim_us_per_key"]
    if goal is None:
        return "", ""
    us = result["sides"]["lookaside"]["cpu_us"] / result["keys"]
    return f"{us:.2f}", verdict(us <= goal, f"{goal:g}", us / goal - 1)


def added_latency(result: dict) -> str:
    """The latency that a proxy adds."""
    added, aim = result["added_p50_us"], result["aim_us"]
    words = ", ".join(f"{name} {late:.0f} us" for name, late in added.items())
    judged = "met" if added["lookaside"] < aim else f"missed by {added['lookaside'] / aim - 1:.0%}"
    direct = result["figures"]["server"]["p50_us"]
    return ADDED.format(rate=result["rate"], direct=direct, added=words, aim=aim, verdict=judged)


def latency_rows(result: dict) -> str:
    """A rate's lines of the table."""
    rows = ""
    for name, label in (
        ("sent to last", "sent"),
        ("returned to last", "returned"),
        ("commit itself", "(the COMMIT itself)"),
    ):
        spans, bar = result["ms"][name], result["bar_p99_ms"]
        figures = " | ".join(f"{spans[figure]:.2f}" for figure in ("p50", "p90", "p99", "max"))
        judged = verdict(spans["p99"] < bar, f"{bar:g}", spans["p99"] / bar - 1) if name == "sent to last" else ""
        rows += f"| {result['commits']} | {result['commits_per_s']} | {label} | {figures} | {judged} |\n"
    return rows


def markdown(results: dict) -> str:
    """The whole generated part."""
    where = "".join(f"* {name}: {fact}\n" for name, fact in results["machine"].items())
    text = f"{HEAD}\n{where}"
    if "cost" in results:
        text += COST + "".join(map(cost_row, results["cost"])) + cost_notes(results["cost"])
    if "item_overhead" in results:
        text += overhead_rows(results["item_overhead"])
    if "proxy" in results:
        text += (
            PROXY + "".join(map(proxy_row, results["proxy"]["costs"])) + added_latency(results["proxy"]["latencies"])
        )
    if "invalidation_latency" in results:
        picture = invalidation_latency.PICTURE.relative_to(REPORT.parent)
        text += LATENCY + "".join(map(latency_rows, results["invalidation_latency"]))
        text += f"\n![Distribution of the latency]({picture})\n"
    return text


def write(results: dict, path: Path) -> None:
    """Writes the report and keeps what people wrote below it."""
    before = path.read_text() if path.exists() else ""
    kept = before.partition(KEPT)[2] or "\n"
    path.write_text(f"{markdown(results)}\n{KEPT}{kept}")


def versions() -> dict[str, str]:
    """The peers' releases."""
    return {name: peer_version(name) for name in ("memcached", "twemproxy")}


def main() -> int:
    """Measures and reports; fails when something could not be measured, not when a bar is missed."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--full", action="store_true", help="more and longer rounds, more rates of commits")
    parser.add_argument("--nice", type=int, default=0, metavar="N", help="niceness of cache servers and load: -10")
    parser.add_argument("--realtime", action="store_true", help="cache servers and load before all others (as root)")
    command_line.add_json_path(parser)
    parser.add_argument("--report", type=Path, default=REPORT, metavar="FILE", help=f"default: {REPORT.name}")
    options = parser.parse_args()
    started = time.monotonic()

    def measure() -> None:
        results = {"machine": {**machine_facts.facts(), **versions(), "mode": command_line.mode(options)}}
        results["cost"] = cost.run(options.full, options.nice, is_realtime=options.realtime)
        results["item_overhead"] = item_overhead.run()
        results["proxy"] = proxy.run(options.full, options.nice, options.realtime)
        results["invalidation_latency"] = invalidation_latency.run(options.full)
        write(results, options.report)
        command_line.write_results(results, options.json)
        print(f"{options.report} written in {time.monotonic() - started:.0f} s", file=sys.stderr)

    return command_line.run_measurement("make bench", measure)


if __name__ == "__main__":
    sys.exit(main())
