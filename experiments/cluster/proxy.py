"""CPU per request and latency of a router in front of four servers: ours, memcached's own proxy, and twemproxy.

What: closed loop, each proxy with one thread on one core, four of our servers and the load on the other. CPU time of
all threads of the proxy, divided by requests answered; the 99th percentile of the latency. Then, at a fifth of what one
thread can do, in open loop, how much later half of the answers come than from a server that is asked directly.

How: the three run side by side and are loaded one at a time, in rounds; each round gives one ratio, the cost over ours
of the cheaper of the other two in that round, and the median of the ratios is reported with its range.
experiments/saturation.py says which rounds count. Each proxy has its own way to spread keys (ours Ch3, memcached's jump
hash, twemproxy's ketama), and fills the servers for itself.

In closed loop the load and the servers share a core and are the bottleneck where a proxy is cheap: it then waits, and
pays for wake-ups that a busier one shares among requests. So a round in which ours waits is a lower bound. For the
latency the proxy and the servers share a core, as the load generator needs the other for itself.

    python3 -m experiments.cluster.proxy            six minutes
    python3 -m experiments.cluster.proxy --full     more and longer rounds
"""

import contextlib
import json
import os
import socket
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments import command_line
from experiments.load_generator import load
from experiments.programs import (
    PROGRAMS,
    CacheServer,
    Unusable,
    as_user,
    cache_server,
    free_ports,
    lookaside,
    memcached,
    peer,
    pin_and_prioritise,
    started,
)
from experiments.saturation import compare, median

PROXY_CORE = 0
LOAD_CORE = 1
SERVERS = 4
KEYS = 100_000
VALUE_BYTES = 135
MEMORY_MIB = 256
WARMUP_S = 0.5
NAMES = ("lookaside", "memcached", "twemproxy")
# Begins the names of the proxies of experiments/cluster/router_floor.py: the event loop follows.
BARE = "bare "
# A fifth of 85,000 a second, which each of the three comes to with 50 clients.
LATENCY_RATE = 17_000
LATENCY_AIM_US = 60


@dataclass(frozen=True)
class Scenario:
    """A load, how many times cheaper than the best of the others we should be, and how cheap a key should be."""

    name: str
    load: tuple[str, ...]
    # The keys of a request.
    keys: int
    aim: float
    # `None` if a request has one key.
    aim_us_per_key: float | None = None


SCENARIOS = (
    Scenario("get, 50 clients", ("--connections", "50"), 1, 1.25),
    Scenario("get, 1,000 clients", ("--connections", "1000"), 1, 1.25),
    Scenario("get, 50 clients, depth 16", ("--connections", "50", "--depth", "16"), 1, 2.5),
    Scenario("24-key get, 50 clients", ("--connections", "50", "--keys-per-get", "24"), 24, 2.0, 0.6),
    Scenario("24-key get, 1,000 clients", ("--connections", "1000", "--keys-per-get", "24"), 24, 2.0, 0.6),
)


def answers_gets(port: int) -> bool:
    """Whether a get through this port comes to a server and back, for keys of all servers."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        for number in range(64):
            connection.sendall(f"get ready:{number}\r\n".encode())
            if connection.recv(100) != b"END\r\n":
                return False
        return True
    return False


def command(name: str, port: int, servers: list[int], folder: Path, threads: int = 1) -> list:
    """How a proxy is started in front of the servers on these ports; twemproxy has one thread, always."""
    if name.startswith(BARE):
        program = PROGRAMS / "examples" / "bare_proxy"
        if not program.exists():
            raise Unusable("bare_proxy is not built: cargo build --release --package lookaside-workload --examples")
        return [program, name.removeprefix(BARE), port, *(f"127.0.0.1:{server}" for server in servers)]
    if name == "lookaside":
        pools = {"main": {"servers": [f"127.0.0.1:{server}" for server in servers]}}
        configuration = json.dumps({"pools": pools, "route": "PoolRoute|main"})
        words = ["-p", port, "--num-proxies", threads, "-c", 20000, "--config-str", configuration]
        return [lookaside("lookaside-router"), *words]
    if name == "memcached":
        path = folder / "proxy.lua"
        backends = ", ".join(f'"127.0.0.1:{server}"' for server in servers)
        pool = f"pools{{ main = {{ backends = {{ {backends} }} }} }}"
        path.write_text(f'{pool}\nroutes{{ default = route_direct{{ child = "main" }} }}\n')
        words = [
            "-l",
            "127.0.0.1",
            "-p",
            port,
            "-t",
            threads,
            "-c",
            20000,
            "-o",
            f"proxy_config=routelib,proxy_arg={path}",
        ]
        return [memcached(), *words, *as_user(name)]
    path = folder / "twemproxy.yml"
    lines = [
        f"main:\n  listen: 127.0.0.1:{port}\n  hash: fnv1a_64\n  distribution: ketama\n  timeout: 5000\n  servers:\n"
    ]
    path.write_text("".join(lines + [f"   - 127.0.0.1:{server}:1\n" for server in servers]))
    return [peer("twemproxy"), "-c", path, "-s", free_ports(1)[0], "-o", folder / "twemproxy.log"]


@contextlib.contextmanager
def proxy(name: str, servers: list[int], core: int, nice: int, is_realtime: bool) -> Iterator[CacheServer]:
    """A proxy with one thread on `core`."""
    with tempfile.TemporaryDirectory(prefix="lookaside-bench-") as folder:
        port = free_ports(1)[0]
        words, log_path = command(name, port, servers, Path(folder)), Path(folder) / "log"
        prepare = pin_and_prioritise(nice, core, is_realtime)
        with started(name, words, lambda: answers_gets(port), log_path, prepare) as process:
            yield CacheServer(name, process, port, None)


@contextlib.contextmanager
def proxies(
    names: Sequence[str], server_core: int, nice: int, is_realtime: bool
) -> Iterator[tuple[CacheServer, list[CacheServer]]]:
    """Four servers on `server_core` and these proxies in front of them: one of the servers, and the proxies."""
    with contextlib.ExitStack() as running:
        program = lookaside("lookaside-server")
        one = [
            cache_server("server", program, server_core, MEMORY_MIB, False, nice, is_realtime) for _ in range(SERVERS)
        ]
        servers = [running.enter_context(server) for server in one]
        ports = [server.port for server in servers]
        in_front = [running.enter_context(proxy(name, ports, PROXY_CORE, nice, is_realtime)) for name in names]
        for target in (servers[0], *in_front):
            load(target, "--fill", *of_items(), core=LOAD_CORE)
        yield servers[0], in_front


def of_items() -> tuple[object, ...]:
    """The options of a load that name the items."""
    return ("--keys", KEYS, "--value-bytes", VALUE_BYTES)


def closed_loop(
    names: Sequence[str],
    scenarios: Sequence[Scenario],
    rounds: int,
    seconds: float,
    nice: int,
    is_realtime: bool,
) -> Iterator[tuple[Scenario, list[dict[str, dict]]]]:
    """The rounds of each scenario: the figures of each of these proxies."""
    words = (*of_items(), "--warmup", WARMUP_S, "--seconds", seconds)
    with proxies(names, LOAD_CORE, nice, is_realtime) as (_, in_front):
        for scenario in scenarios:
            done = []
            for number in range(rounds):
                order = in_front if number % 2 == 0 else in_front[::-1]
                done.append({target.name: load(target, *scenario.load, *words, core=LOAD_CORE) for target in order})
            yield scenario, done


def costs(rounds: int, seconds: float, nice: int, is_realtime: bool, only: str) -> list[dict]:
    """The closed loop."""
    results = []
    scenarios = [scenario for scenario in SCENARIOS if only in scenario.name]
    for scenario, done in closed_loop(NAMES, scenarios, rounds, seconds, nice, is_realtime):
        results.append(summary(scenario, done))
        show(results[-1])
    return results


def summary(scenario: Scenario, rounds: list[dict[str, dict]]) -> dict:
    """The medians of the rounds of a scenario that count."""
    ours, *others = NAMES
    comparison, counted = compare(rounds, ours, others)
    sides = {
        name: {
            "cpu_us": median(counted, name, "server_cpu_us_per_request"),
            "cpu_share": median(counted, name, "server_cpu_share"),
            "requests_per_s": median(counted, name, "requests_per_s"),
            "p99_us": median(counted, name, "p99_us"),
            "unexpected_misses": sum(runs[name]["misses"] for runs in rounds),
        }
        for name in NAMES
    }
    return {**asdict(scenario), "sides": sides, **comparison}


def latencies(rounds: int, seconds: float, nice: int, is_realtime: bool) -> dict:
    """The open loop: the 50th and 99th percentile of asking a server directly and through each proxy, in us."""
    words = ("--connections", 50, "--rate", LATENCY_RATE, "--warmup", WARMUP_S, "--seconds", seconds)
    with proxies(NAMES, PROXY_CORE, nice, is_realtime) as (server, in_front):
        runs = [
            {target.name: load(target, *of_items(), *words, core=LOAD_CORE) for target in (server, *in_front)}
            for _ in range(rounds)
        ]
    figures = {
        name: {figure: statistics.median(run[name][figure] for run in runs) for figure in ("p50_us", "p99_us")}
        for name in ("server", *NAMES)
    }
    added = {name: statistics.median(run[name]["p50_us"] - run["server"]["p50_us"] for run in runs) for name in NAMES}
    result = {
        "rate": LATENCY_RATE,
        "rounds": rounds,
        "figures": figures,
        "added_p50_us": added,
        "aim_us": LATENCY_AIM_US,
    }
    print(f"added at {LATENCY_RATE} a second: {added}", file=sys.stderr, flush=True)
    return result


def run(full: bool, nice: int = 0, is_realtime: bool = False, only: str = "") -> dict:
    """Measures all, or the scenarios whose name contains `only`."""
    if (os.cpu_count() or 1) < 2:
        raise Unusable("the proxies and their load need a core each")
    rounds, seconds = (11, 4.0) if full else (7, 2.0)
    return {
        "costs": costs(rounds, seconds, nice, is_realtime, only),
        "latencies": latencies(rounds, seconds, nice, is_realtime),
    }


def show(result: dict) -> None:
    """A line about a scenario, while the next one runs."""
    costs = "  ".join(
        f"{name} {side['cpu_us']:.2f} us ({side['cpu_share']:.2f})" for name, side in result["sides"].items()
    )
    print(
        f"{result['name']:26} {costs}  {result['ratio']:.2f} times cheaper"
        f" ({result['ratio_min']:.2f} to {result['ratio_max']:.2f}), cheapest: {result['cheapest']},"
        f" saturated: {result['saturation']} ({result['rounds_counted']} of {result['rounds']})",
        file=sys.stderr,
        flush=True,
    )


def main() -> int:
    """Prints the results as JSON."""
    options = command_line.load_parser(__doc__, "proxies, servers").parse_args()

    def measure() -> None:
        command_line.print_results(run(options.full, options.nice, options.realtime, options.only))

    return command_line.run_measurement("proxy", measure)


if __name__ == "__main__":
    sys.exit(main())
