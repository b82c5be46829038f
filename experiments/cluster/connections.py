"""Many client connections, few to the servers (paper, section 3.1): ours, memcached's own proxy, and twemproxy.

What: a router with one and with two threads in front of SERVERS servers, and 50, 1,000 and 10,000 client connections.
Reported is how many connections each server has from the router; what a client connection costs the router in memory,
if it never sent a byte, if it sent one request and is idle since, and if it is one of those that send requests; and
the CPU time and the latency of a get when all of them ask in turn, and when 50 others do while they are idle.

How: all proxies in one run, one at a time, each freshly started for each number of connections. Connections at a server
are its `curr_connections`, less what it has without the proxy. Memory is the proxy's resident memory (VmRSS) with the
connections less without them; the kernel's socket buffers are not in it. Requests come in open loop, RATE single gets a
second in all at random times (from the load generator), so that every proxy has the same to do. Figures of time are
medians of ROUNDS rounds.

    experiments/run connections       some five minutes; writes docs/measurements/connections.md
"""

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from experiments import command_line, machine_facts
from experiments.cluster.proxy import answers_gets, command
from experiments.load_generator import load
from experiments.programs import (
    ROOT,
    CacheServer,
    Unusable,
    cache_server,
    free_ports,
    lookaside,
    peer_version,
    pin_and_prioritise,
    resident_bytes,
    server_statistics,
    started,
)

SERVERS = 4
CONNECTIONS = (50, 1_000, 10_000)
PROXIES = (("lookaside", 1), ("memcached", 1), ("twemproxy", 1), ("lookaside", 2), ("memcached", 2))
KEYS = 50_000
VALUE_BYTES = 135
MEMORY_MIB = 64
RATE = 8_000
ACTIVE = 50
ROUNDS = 3
WARMUP_S, MEASURE_S = 0.5, 1.5
PATIENCE_S = 30.0
KIB = 1024

REPORT = ROOT / "docs" / "measurements" / "connections.md"


def open_files(process: subprocess.Popen) -> int:
    """How many descriptors a process has open."""
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def server_connections(server: CacheServer) -> int:
    """Connections of others at a server, at this moment."""
    return int(server_statistics(server.port)["curr_connections"]) - 1


def when_steady(look: Callable[[], object], what: str):
    """The result of `look`, once it was the same three times in a row."""
    seen: list = []
    deadline = time.monotonic() + PATIENCE_S
    while len(seen) < 3 or any(one != seen[-1] for one in seen[-3:]):
        if time.monotonic() > deadline:
            raise Unusable(f"{what} does not settle: {seen[-3:]}")
        seen.append(look())
        time.sleep(0.1)
    return seen[-1]


def connections_at(servers: list[CacheServer]) -> list[int]:
    """Connections of others at each server, when none comes or goes any more."""
    return when_steady(
        lambda: [server_connections(server) for server in servers], "the number of connections at servers"
    )


@contextlib.contextmanager
def proxy(name: str, threads: int, servers: list[CacheServer], nice: int) -> Iterator[CacheServer]:
    """A proxy that has just been started, has answered, and has filled the servers."""
    with tempfile.TemporaryDirectory(prefix="lookaside-bench-") as folder:
        port = free_ports(1)[0]
        words = command(name, port, [server.port for server in servers], Path(folder), threads)
        log_path = Path(folder) / "log"
        with started(name, words, lambda: answers_gets(port), log_path, pin_and_prioritise(nice)) as process:
            target = CacheServer(name, process, port, None)
            load(target, "--fill", *of_items())
            # The same load for all before memory is looked at: what is allocated once and for all has been.
            load(target, *of_items(), "--connections", ACTIVE, "--rate", RATE, "--warmup", 0.1, "--seconds", 0.9)
            when_steady(lambda: open_files(process), f"the number of connections of {name}")
            yield target


def of_items() -> tuple[object, ...]:
    """The options of a load that name the items."""
    return ("--keys", KEYS, "--value-bytes", VALUE_BYTES)


def asked(target: CacheServer, connections: int, during: "list | None" = None, servers=()) -> dict:
    """Medians of rounds of RATE gets a second over `clients` connections; `during` gets the connections at servers."""
    words = ("--connections", connections, "--rate", RATE, "--warmup", WARMUP_S, "--seconds", MEASURE_S)
    rounds = []
    for _ in range(ROUNDS):
        timer = threading.Timer(WARMUP_S + MEASURE_S / 2, lambda: during.append([*map(server_connections, servers)]))
        if during is not None:
            timer.start()
        rounds.append(load(target, *of_items(), *words))
        timer.cancel()
    medians = {
        name: statistics.median(run[figure] for run in rounds)
        for name, figure in (("cpu_us", "server_cpu_us_per_request"), ("p50_us", "p50_us"), ("p99_us", "p99_us"))
    }
    return {**medians, "rss_bytes": max(run["server_resident_bytes"] for run in rounds)}


def hold(target: CacheServer, count: int, held: contextlib.ExitStack) -> list[socket.socket]:
    """Opens `count` connections and waits until all are accepted."""
    before, connections = open_files(target.process), []
    for _ in range(count):
        connections.append(held.enter_context(socket.create_connection(("127.0.0.1", target.port), timeout=PATIENCE_S)))
    deadline = time.monotonic() + PATIENCE_S
    while open_files(target.process) < before + count:
        if time.monotonic() > deadline:
            raise Unusable(f"{target.name} does not accept {count} connections")
        time.sleep(0.05)
    return connections


def ask_once(connections: list[socket.socket]) -> None:
    """One get over each, of a key that is there."""
    value = b"x" * VALUE_BYTES
    connections[0].sendall(b"set asked-once 0 0 %d\r\n%s\r\n" % (len(value), value))
    if connections[0].recv(100) != b"STORED\r\n":
        raise Unusable("a set through the proxy failed")
    for connection in connections:
        connection.sendall(b"get asked-once\r\n")
        answer = b""
        while not answer.endswith(b"END\r\n"):
            answer += connection.recv(KIB) or b"END\r\n"
        if value not in answer:
            raise Unusable(f"a get through the proxy failed: {answer}")


def measure(name: str, threads: int, count: int, servers: list[CacheServer], nice: int) -> dict:
    """One proxy, one number of connections."""
    alone, during = connections_at(servers), []
    with proxy(name, threads, servers, nice) as target:
        before = resident_bytes(target.process.pid)
        busy = asked(target, count, during, servers)
        busy["bytes a connection"] = (busy.pop("rss_bytes") - before) / count
    connections_at(servers)
    with proxy(name, threads, servers, nice) as target, contextlib.ExitStack() as held:
        before = resident_bytes(target.process.pid)
        connections = hold(target, count, held)
        silent = (resident_bytes(target.process.pid) - before) / count
        ask_once(connections)
        idle = (resident_bytes(target.process.pid) - before) / count
        beside = asked(target, ACTIVE)
        beside.pop("rss_bytes")
        at_servers = connections_at(servers)
    worst = max(now - before for seen in [*during, at_servers] for now, before in zip(seen, alone, strict=True))
    return {
        "proxy": name,
        "threads": threads,
        "clients": count,
        "most connections at a server": worst,
        "resident before": before,
        "bytes a silent connection": silent,
        "bytes an idle connection": idle,
        "all ask": busy,
        "others ask": beside,
    }


def run(nice: int, only: str = "") -> list[dict]:
    """All proxies and numbers."""
    results = []
    with contextlib.ExitStack() as running:
        program = lookaside("lookaside-server")
        one = [cache_server("server", program, None, MEMORY_MIB, False, nice) for _ in range(SERVERS)]
        servers = [running.enter_context(server) for server in one]
        for count in CONNECTIONS:
            for name, threads in PROXIES:
                if only in name:
                    results.append(measure(name, threads, count, servers, nice))
                    print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    return results


TEXT = """# Many client connections, few to the servers

`make connections` measures this and writes this page (§3.1 of "Scaling Memcache at Facebook": a router coalesces the
connections of many clients): {servers} servers behind our router, memcached 1.6.45's own proxy and twemproxy 0.5, in
one run, each with its defaults. "At a server" is the most connections that any server had from the proxy at any time.

## Connections and memory

Resident memory that each client connection adds, in bytes: "silent" never sent a request, "idle" sent one and is idle
since, "asking" is one of many that send requests in turn. 50 connections fit into memory that a proxy has already,
and so do some of 1,000: compare the figures for 10,000.

| client connections | proxy | threads | at a server | silent | idle | asking |
|---|---|---|---|---|---|---|
{memory}

Ours needs more for a connection than the other two: each is a task that holds the state of a batch. That does not
include buffers, however large the last reply was: a connection borrows them from a pool while it is active.

## Time

{rate:,} gets a second in open loop: over all connections in turn, and over {active} while the others are idle. Medians
of {rounds} rounds. Where the load averages below are above the number of cores, the 99th percentiles are the machine's,
and a difference of a few microseconds says nothing; [benchmarks.md](benchmarks.md) compares the proxies in rounds.

| client connections | proxy | threads | CPU a get, us | p50, ms | p99, ms | others idle: CPU, us | p50, ms | p99, ms |
|---|---|---|---|---|---|---|---|---|
{time}

{facts}
* load average at the end: {load_after}
"""


def memory_row(result: dict) -> str:
    """Connections and memory."""
    cells = [f"{result['clients']:,}", result["proxy"], result["threads"], result["most connections at a server"]]
    figures = (
        result["bytes a silent connection"],
        result["bytes an idle connection"],
        result["all ask"]["bytes a connection"],
    )
    return "| " + " | ".join([*map(str, cells), *(f"{max(0.0, figure):,.0f}" for figure in figures)]) + " |"


def time_row(result: dict) -> str:
    """CPU and latency."""
    cells = [f"{result['clients']:,}", result["proxy"], str(result["threads"])]
    for figures in (result["all ask"], result["others ask"]):
        cells += [f"{figures['cpu_us']:.1f}", *(f"{figures[name] / 1000:.2f}" for name in ("p50_us", "p99_us"))]
    return "| " + " | ".join(cells) + " |"


def report(results: list[dict], facts: dict[str, str]) -> str:
    """docs/measurements/connections.md."""
    return TEXT.format(
        servers=SERVERS,
        rate=RATE,
        active=ACTIVE,
        rounds=ROUNDS,
        memory="\n".join(map(memory_row, results)),
        time="\n".join(map(time_row, results)),
        facts="\n".join(f"* {name}: {fact}" for name, fact in facts.items()),
        load_after=" ".join(f"{load:.2f}" for load in os.getloadavg()),
    )


def main() -> int:
    """Measures, writes the page, and prints the results as JSON if asked to."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--nice", type=int, default=0, metavar="N", help="niceness of proxies, servers and load")
    parser.add_argument("--only", default="", metavar="TEXT", help="proxies whose name contains TEXT; writes nothing")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    facts = machine_facts.facts() | {name: peer_version(name) for name in ("memcached", "twemproxy")}

    def measure() -> None:
        results = run(options.nice, options.only)
        if not options.only:
            REPORT.write_text(report(results, facts))
        if options.json:
            command_line.print_results(results)

    return command_line.run_measurement("connections", measure)


if __name__ == "__main__":
    sys.exit(main())
