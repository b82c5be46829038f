"""Server CPU per request, ours against memcached 1.6.45 (figures of the plan: "Server I/O").

What: CPU time of all threads of a server with one worker, divided by requests answered, in closed loop, over one
million keys of 24 bytes. CPU time and not throughput, as the load shares the machine with the server.

How: both servers run side by side, pinned to the same core; the load generator runs on another and loads one at a time.
Rounds alternate (ours first, then memcached first); experiments/saturation.py says which count, and what the ratio is.
The load generator checks every byte, so it is busier than our server: with some loads ours is not saturated.

On a machine that others use as well, `--nice -10` (as root) gives server and load the two cores while they need them;
`--realtime` gives them the cores at once, all but 50 ms of each second.

    python3 -m experiments.server.cost            some minutes
    python3 -m experiments.server.cost --full     more and longer rounds
"""

import contextlib
import os
import sys
from dataclasses import asdict, dataclass

from experiments import command_line
from experiments.load_generator import load
from experiments.programs import (
    CacheServer,
    Unusable,
    cache_server,
    has_flag,
    lookaside,
    memcached,
)
from experiments.saturation import compare, median

SERVER_CORE = 0
LOAD_CORE = 1
KEYS = 1_000_000
MEMORY_MIB = 1024
WARMUP_S = 0.5
ZIPF = "0.99"

# Options of the load that several scenarios have.
CONNECTIONS = ("--connections", "50")
TEN_KEYS, PAGE = (*CONNECTIONS, "--keys-per-get", "10"), (*CONNECTIONS, "--keys-per-get", "24")
DEEP = ("--depth", "16")


@dataclass(frozen=True)
class Scenario:
    """A load, the bar it must pass and the aim it should reach: how many times cheaper than memcached."""

    name: str
    value_bytes: int
    load: tuple[str, ...]
    bar: float | None = None
    aim: float | None = None
    transport: str = "tcp"


SCENARIOS = (
    Scenario("get 32 B, 50 connections, depth 1", 32, CONNECTIONS, bar=1.0, aim=1.2),
    Scenario("get 32 B, depth 16", 32, (*CONNECTIONS, *DEEP), aim=3.0),
    Scenario("10-key get 32 B, depth 1", 32, TEN_KEYS, aim=2.4),
    Scenario("10-key get 32 B, depth 16", 32, (*TEN_KEYS, *DEEP), aim=8.0),
    Scenario("get 32 B, unix socket, depth 1", 32, CONNECTIONS, bar=1.0, aim=1.5, transport="unix"),
    Scenario("24-key get 135 B, uniform", 135, PAGE, bar=2.0, aim=4.0),
    Scenario("24-key get 135 B, zipf 0.99", 135, (*PAGE, "--zipf", ZIPF), 2.0, 2.5),
    Scenario("24-key get 135 B, UDP", 135, PAGE, 2.0, 14.0, "udp"),
    Scenario("set 100 B, depth 16", 100, (*CONNECTIONS, *DEEP, "--set-share", "1"), aim=2.5),
)


def measure(server: CacheServer, scenario: Scenario, seconds: float) -> dict:
    """One run of the scenario."""
    words = (*of_items(scenario), *scenario.load, "--warmup", WARMUP_S, "--seconds", seconds)
    return load(server, *words, core=LOAD_CORE, transport=scenario.transport)


def of_items(scenario: Scenario) -> tuple[object, ...]:
    """The options that name the items."""
    return ("--keys", KEYS, "--value-bytes", scenario.value_bytes)


def fill(server: CacheServer, scenario: Scenario) -> None:
    """Sets every key."""
    transport = "unix" if scenario.transport == "unix" else "tcp"
    load(server, "--fill", *of_items(scenario), core=LOAD_CORE, transport=transport)


def summary(scenario: Scenario, rounds: list[dict[str, dict]]) -> dict:
    """The medians of the rounds of a scenario that count."""
    comparison, counted = compare(rounds, "lookaside", ["memcached"])
    sides = {
        name: {
            "cpu_us": median(counted, name, "server_cpu_us_per_request"),
            "cpu_share": median(counted, name, "server_cpu_share"),
            "load_cpu_share": median(counted, name, "load_cpu_share"),
            "requests_per_s": median(counted, name, "requests_per_s"),
            "p99_us": median(counted, name, "p99_us"),
            "unexpected_misses": sum(runs[name]["misses"] for runs in rounds),
            "udp_lost": sum(runs[name]["udp_lost"] for runs in rounds),
        }
        for name in ("memcached", "lookaside")
    }
    return {**asdict(scenario), **sides, **comparison}


def run(full: bool, nice: int = 0, only: str = "", is_realtime: bool = False) -> list[dict]:
    """Measures all scenarios, or those whose name contains `only`."""
    if (os.cpu_count() or 1) < 2:
        raise Unusable("the server and its load need a core each")
    rounds, seconds = (11, 4.0) if full else (5, 2.0)
    ours, theirs = lookaside("lookaside-server"), memcached()
    scenarios = [scenario for scenario in SCENARIOS if only in scenario.name]
    if not has_flag(ours, "-s"):
        scenarios = [scenario for scenario in scenarios if scenario.transport != "unix"]
    results = []
    groups = dict.fromkeys((scenario.value_bytes, scenario.transport == "unix") for scenario in scenarios)
    for value_bytes, unix in groups:
        with contextlib.ExitStack() as running:
            servers = [
                running.enter_context(cache_server(name, program, SERVER_CORE, MEMORY_MIB, unix, nice, is_realtime))
                for name, program in (("lookaside", ours), ("memcached", theirs))
            ]
            group = [s for s in scenarios if (s.value_bytes, s.transport == "unix") == (value_bytes, unix)]
            for server in servers:
                fill(server, group[0])
            for scenario in group:
                done = []
                for number in range(rounds):
                    order = servers if number % 2 == 0 else servers[::-1]
                    done.append({server.name: measure(server, scenario, seconds) for server in order})
                results.append(summary(scenario, done))
                show(results[-1])
    return results


def show(result: dict) -> None:
    """A line about a scenario, while the next one runs."""
    shares = f"{result['memcached']['cpu_share']:.2f}/{result['lookaside']['cpu_share']:.2f}"
    print(
        f"{result['name']:36} memcached {result['memcached']['cpu_us']:7.2f} us  ours"
        f" {result['lookaside']['cpu_us']:7.2f} us  {result['ratio']:5.2f} times cheaper"
        f" ({result['ratio_min']:.2f} to {result['ratio_max']:.2f})  share {shares}, saturated: {result['saturation']}",
        file=sys.stderr,
        flush=True,
    )


def main() -> int:
    """Prints the results as JSON."""
    options = command_line.load_parser(__doc__, "servers").parse_args()

    def measure() -> None:
        command_line.print_results(run(options.full, options.nice, options.only, options.realtime))

    return command_line.run_measurement("cost", measure)


if __name__ == "__main__":
    sys.exit(main())
