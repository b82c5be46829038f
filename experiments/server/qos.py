"""Throughput with p99 under a millisecond by number of connections, ours against memcached 1.6.45.

What: gets and sets ten to one, as memtier mixes them, of one million keys of 24 bytes with values of 32 bytes, on 1 to
2,000 connections. Two questions for each number of connections:

    open loop     requests are due at random times, whatever the server does, and a latency counts from when a request
                  was due. The highest rate at which the p99 stays under LATENCY_MS_MAX is searched for by halving.
    closed loop   every connection has one request on its way and sends the next when it has the answer. Throughput
                  and p99 as they come: the sweep that the chapter on memcached draws, where latency rises with the
                  number of connections.

How: both servers run side by side, one worker each, pinned to the same core; the load generator has another. Windows
alternate, one of each server at a time, so that both searches share the disturbance. A window that misses the bar is
asked once more before it counts, as another's work makes a p99 worse and never better. Each round is a whole search;
reported is the median of the rounds with their range.

The load shares the machine and checks every byte, so on few cores it, not the server, may be what gives in. The share
of its core that the server used at the rate found tells: near 1, the server was at its end; well below, the load was.

On a machine that others use as well, `--realtime` (as root) lets both servers and the load in at once when they wake:
otherwise the p99 is that of the kernel's turns. The kernel still keeps 50 ms of each second for the others, in one
piece where real-time processes leave them less: so windows are shorter than that second, with a pause between them.
Real-time threads of one core take turns of 100 ms, and so a window may be a fifth of a second longer than asked for.

    experiments/run qos             about ten minutes; writes docs/measurements/qos.md and its picture
    experiments/run qos --realtime  the same, on a machine that others use as well
"""

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from experiments import command_line, machine_facts
from experiments.load_generator import load
from experiments.plots import lines
from experiments.programs import ROOT, CacheServer, cache_server, lookaside, memcached, peer_version
from experiments.server.cost import LOAD_CORE, MEMORY_MIB, SERVER_CORE, Scenario, fill, of_items

CONNECTIONS = (1, 10, 50, 100, 200, 500, 1000, 2000)
LATENCY_MS_MAX = 1.0
SET_SHARE = "0.0909"
MIX = Scenario("gets and sets ten to one, 32 B", 32, ("--set-share", SET_SHARE))
ROUNDS, ROUNDS_FULL = 3, 7
WARMUP_S, WINDOW_S = 0.1, 0.5
PAUSE_S = 0.15
# The share of the due requests that must have been answered. Below it a queue grows, however short it is yet.
ANSWERED_SHARE_MIN = 0.98

FIRST_RATE = 50_000.0
STEP = 1.5
PRECISION = 1.04
WINDOWS_MAX = 20

REPORT = ROOT / "docs" / "measurements" / "qos.md"
PICTURE = ROOT / "docs" / "measurements" / "pictures" / "qos.svg"
KEPT = "<!-- Above: written by experiments/server/qos.py. Below: written by people, and kept. -->"
NAMES = ("lookaside", "memcached")


class Search:
    """The highest rate that holds, from answers about single rates: first in steps to both sides of it, then by halving
    what lies between, until that is within PRECISION or WINDOWS_MAX answers have been given."""

    def __init__(self, first: float) -> None:
        self.rate: float | None = first
        self.held: float | None = None
        self.failed: float | None = None
        self._failed_once = False
        self._windows = 0

    def note(self, meets_target: bool) -> None:
        """The answer about `rate`; None if there is none yet, so that `rate` is tried next."""
        assert self.rate is not None, "the search was over"
        self._windows += 1
        if not meets_target and not self._failed_once:
            self._failed_once = True
        else:
            self._failed_once = False
            if meets_target:
                self.held = self.rate
            else:
                self.failed = self.rate
            self.rate = self._next()
        if self._windows >= WINDOWS_MAX:
            self.rate = None

    def _next(self) -> float | None:
        if self.failed is None:
            return self.held * STEP
        if self.held is None:
            return self.failed / STEP
        if self.failed / self.held <= PRECISION:
            return None
        return (self.failed * self.held) ** 0.5


def meets_target(figures: dict, rate: float) -> bool:
    """Whether a window's p99 is under the bar, with all that was asked for answered."""
    return figures["p99_us"] < LATENCY_MS_MAX * 1000 and figures["requests_per_s"] >= ANSWERED_SHARE_MIN * rate


@dataclass
class Found:
    """A search's result on one server: the last window that met the target, and the first rate of the next search."""

    rate: float = 0.0
    server_share: float = 0.0
    p50_us: float = 0.0


def window(server: CacheServer, connections: int, *words: object) -> dict:
    """One window of load."""
    timing = ("--warmup", WARMUP_S, "--seconds", WINDOW_S)
    time.sleep(PAUSE_S)
    return load(server, *of_items(MIX), *MIX.load, "--connections", connections, *timing, *words, core=LOAD_CORE)


def search(servers: list[CacheServer], connections: int, first: dict[str, float]) -> dict[str, Found]:
    """Both servers' searches, a window of each in turn."""
    searches = {server.name: Search(first[server.name]) for server in servers}
    found = {server.name: Found() for server in servers}
    while any(one.rate for one in searches.values()):
        for server in servers:
            one = searches[server.name]
            if one.rate is None:
                continue
            rate = one.rate
            figures = window(server, connections, "--rate", str(round(rate)))
            is_held = meets_target(figures, rate)
            if is_held:
                found[server.name] = Found(figures["requests_per_s"], figures["server_cpu_share"], figures["p50_us"])
            one.note(is_held)
    return found


def closed(servers: list[CacheServer], connections: int) -> dict[str, dict]:
    """A window of each server in closed loop."""
    return {server.name: window(server, connections) for server in servers}


def run(full: bool, is_realtime: bool = False, connections: tuple[int, ...] = CONNECTIONS) -> list[dict]:
    """The whole sweep: a result for each number of connections."""
    rounds: dict[int, list[dict]] = {count: [] for count in connections}
    with both(is_realtime) as servers:
        rates = dict.fromkeys(NAMES, FIRST_RATE)
        for number in range(ROUNDS_FULL if full else ROUNDS):
            order = servers if number % 2 == 0 else servers[::-1]
            for count in connections:
                if rounds[count]:
                    rates = {name: rounds[count][-1]["open"][name].rate or FIRST_RATE for name in NAMES}
                done = {"open": search(order, count, rates), "closed": closed(order, count)}
                rounds[count].append(done)
                rates = {name: done["open"][name].rate or rates[name] for name in NAMES}
                show(number, count, done)
    return [summary(count, done) for count, done in rounds.items()]


@contextlib.contextmanager
def both(is_realtime: bool) -> Iterator[list[CacheServer]]:
    """Both servers with one worker each on the same core, filled."""
    with contextlib.ExitStack() as running:
        servers = [
            running.enter_context(cache_server(name, program, SERVER_CORE, MEMORY_MIB, is_realtime=is_realtime))
            for name, program in (("lookaside", lookaside("lookaside-server")), ("memcached", memcached()))
        ]
        for server in servers:
            fill(server, MIX)
        yield servers


def summary(connections: int, rounds: list[dict]) -> dict:
    """The medians of the rounds for one number of connections."""

    def open_side(name: str) -> dict:
        found = [one["open"][name] for one in rounds]
        return {
            "rate": statistics.median(one.rate for one in found),
            "rate_min": min(one.rate for one in found),
            "rate_max": max(one.rate for one in found),
            "server_share": statistics.median(one.server_share for one in found),
            "p50_us": statistics.median(one.p50_us for one in found),
        }

    def closed_side(name: str) -> dict:
        def median(figure: str) -> float:
            return statistics.median(one["closed"][name][figure] for one in rounds)

        return {figure: median(figure) for figure in ("requests_per_s", "p50_us", "p99_us", "server_cpu_share")}

    def ratio(rate: Callable[[dict, str], float]) -> float | None:
        ratios = [rate(one, "lookaside") / rate(one, "memcached") for one in rounds if rate(one, "memcached") > 0]
        return statistics.median(ratios) if ratios else None

    return {
        "connections": connections,
        "rounds": len(rounds),
        "open": {name: open_side(name) for name in NAMES},
        "open_ratio": ratio(lambda one, name: one["open"][name].rate),
        "closed": {name: closed_side(name) for name in NAMES},
        "closed_ratio": ratio(lambda one, name: one["closed"][name]["requests_per_s"]),
    }


def show(number: int, connections: int, done: dict) -> None:
    """A line about a round, while the next one runs."""
    ours, theirs = (done["open"][name] for name in NAMES)
    print(
        f"round {number + 1}, {connections:5} connections: p99 under {LATENCY_MS_MAX:g} ms up to"
        f" {ours.rate:8,.0f}/s ours (core {ours.server_share:.2f}),"
        f" {theirs.rate:8,.0f}/s memcached (core {theirs.server_share:.2f})",
        file=sys.stderr,
        flush=True,
    )


HEAD = """# Throughput with p99 under a millisecond

`make qos` measures this and writes this page. Gets and sets ten to one, one million keys of 24 bytes, values of 32
bytes, TCP, no request for several keys. One worker on one core, the load generator on another; ours and memcached
1.6.45 in one run, window by window in turn. Absolute rates depend on the machine and its load. "Times" is the
median of the rounds' ratios, in which both sides share the same disturbance.
"""

OPEN = """
## Open loop: the highest rate that keeps p99 under a millisecond

Requests are due at random times (a Poisson process), spread over the connections; a latency counts from when a request
was due. Found by halving, to 4 %; the median of the rounds, in brackets the lowest and highest. "Core used" is the
share of its core that the server used at that rate, ours and memcached's. Near 1, the
server was the limit. Well below 1, the load generator was, which sends, receives and checks everything on one core:
such a rate is a lower bound.

| connections | ours, requests/s | memcached, requests/s | times | core used | p50 at that rate, us |
|---|---|---|---|---|---|
"""

CLOSED = """
## Closed loop: throughput and p99 by number of connections

Every connection sends its next request when it has the reply to the last, as most benchmarks do.
A saturated server's latency is then no more than the number of connections over its throughput.

| connections | ours, requests/s | p99, us | memcached, requests/s | p99, us | times | core used |
|---|---|---|---|---|---|---|
"""


def markdown(results: list[dict], facts: dict[str, str]) -> str:
    """The generated part of the page."""
    text = HEAD + "\n" + "".join(f"* {name}: {fact}\n" for name, fact in facts.items())
    text += OPEN + "".join(map(open_row, results))
    text += f"\n![Throughput with p99 under a millisecond]({PICTURE.relative_to(REPORT.parent)})\n"
    return text + CLOSED + "".join(map(closed_row, results))


def open_row(result: dict) -> str:
    """A line of the first table."""
    ours, theirs = (result["open"][name] for name in NAMES)

    def rate(side: dict) -> str:
        return f"{side['rate']:,.0f} ({side['rate_min']:,.0f} to {side['rate_max']:,.0f})"

    cells = [
        f"{result['connections']:,}",
        rate(ours),
        rate(theirs),
        times(result["open_ratio"]),
        f"{ours['server_share']:.2f}, {theirs['server_share']:.2f}",
        f"{ours['p50_us']:.0f}, {theirs['p50_us']:.0f}",
    ]
    return f"| {' | '.join(cells)} |\n"


def closed_row(result: dict) -> str:
    """A line of the second table."""
    ours, theirs = (result["closed"][name] for name in NAMES)

    def p99(side: dict) -> str:
        over = side["p99_us"] >= LATENCY_MS_MAX * 1000
        return f"{side['p99_us']:,.0f}{', over' if over else ''}"

    cells = [
        f"{result['connections']:,}",
        f"{ours['requests_per_s']:,.0f}",
        p99(ours),
        f"{theirs['requests_per_s']:,.0f}",
        p99(theirs),
        times(result["closed_ratio"]),
        f"{ours['server_cpu_share']:.2f}, {theirs['server_cpu_share']:.2f}",
    ]
    return f"| {' | '.join(cells)} |\n"


def times(ratio: float | None) -> str:
    """How many times memcached's throughput ours is."""
    return f"**{ratio:.2f}**" if ratio is not None else "memcached held no rate"


def picture(results: list[dict]) -> str:
    """Both servers' rates by number of connections, with the range of the rounds."""
    curves = {name: [] for name in NAMES}
    for name, points in curves.items():
        for result in results:
            side = result["open"][name]
            if side["rate_min"] > 0:
                rates = (side["rate"], side["rate_min"], side["rate_max"])
                points.append((result["connections"], *(rate / 1000 for rate in rates)))
    title = "Throughput with p99 under 1 ms: median and range of the rounds"
    return lines.svg(title, "connections", "throughput (1,000 requests/s)", curves, is_logarithmic=True)


def write(results: list[dict], facts: dict[str, str]) -> None:
    """Writes the page and its picture, and keeps what people wrote."""
    before = REPORT.read_text() if REPORT.exists() else ""
    REPORT.write_text(f"{markdown(results, facts)}\n{KEPT}{before.partition(KEPT)[2] or chr(10)}")
    PICTURE.write_text(picture(results))


def main() -> int:
    """Measures, writes the page, prints JSON."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--full", action="store_true", help=f"{ROUNDS_FULL} rounds instead of {ROUNDS}")
    parser.add_argument("--realtime", action="store_true", help="servers and load before all others (as root)")
    parser.add_argument("--connections", metavar="N,N", help="these numbers alone, and do not write the page")
    command_line.add_json_path(parser)
    options = parser.parse_args()
    counts = tuple(int(word) for word in options.connections.split(",")) if options.connections else CONNECTIONS
    facts = machine_facts.facts() | {"memcached": peer_version("memcached")}
    facts["mode"] = ("full" if options.full else "quick") + (", real-time priority" if options.realtime else "")

    def measure() -> None:
        results = run(options.full, options.realtime, counts)
        if not options.connections:
            write(results, facts)
        command_line.print_results(results, options.json)

    return command_line.run_measurement("qos", measure)


if __name__ == "__main__":
    sys.exit(main())
