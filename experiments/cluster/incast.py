"""The effect of the window over outstanding requests on the time of a page (paper, section 3.1 and Figure 4).

What: a router asks SERVERS servers for the keys of a page at once, and all of them answer through one link with a short
queue, as the ports of a rack's switch have. With a small window a page is asked for in many turns, each a round trip
long; with a large one the answers overflow the queue, and what is lost there comes again only after TCP's timeout. In
between is the paper's minimum. Drawn is the time of a page over the size of the window, and what `--window adaptive`
makes of it by itself. A client that asks the servers directly, with the window that it has by default, is measured
beside it (crates/workload/examples/page_arrivals.rs).

How: two network namespaces with a veth between them. Towards the router the link has RATE_MBIT and a queue of
QUEUE_BYTES; in front of each server another router holds every request up for DELAY_MS, as a longer way would (not
every kernel has a queue that delays). Pages arrive at random, PAGES_PER_S a second whatever has been answered (so
that their number in the system follows Little's law, as in the paper), each with KEYS_PER_PAGE random keys of
VALUE_BYTES. A page that is incomplete or an error is counted as failed, and as what it took until then: a request
that waits for the window for a second is refused.

    make incast       some three minutes, as root, with `ip` and `tc`; writes
                      docs/measurements/incast.md and its picture
"""

import argparse
import contextlib
import json
import math
import os
import queue
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from processes import PROGRAMS, ROOT, Process, answers, eventually, free_port

from experiments import command_line, machine_facts
from experiments.plots import lines

SERVERS = 10
KEYS = 20_000
KEYS_PER_PAGE = 400
VALUE_BYTES = 450
PAGES_PER_S = 20.0
RATE_MBIT = 100
QUEUE_BYTES = 40_000
DELAY_MS = 1
WINDOWS = (10, 20, 50, 100, 200, 400, 1000, 4000)
QUIET_S, MEASURE_S = 4.0, 14.0
CONNECTIONS = 64
# The row of the client that asks the servers directly.
CLIENT = "direct client, by delay"
SERVER_TIMEOUT_MS = 500
SERVERS_IP, ROUTER_IP = "10.77.0.2", "10.77.0.1"
FIRST_PORT = 11311

REPORT = ROOT / "docs" / "measurements" / "incast.md"
PICTURE = ROOT / "docs" / "measurements" / "pictures" / "incast.svg"


def key(number: int) -> bytes:
    """A key of a page."""
    return b"page:%d" % number


def run(*words: object) -> None:
    """A command that must work."""
    subprocess.run([str(word) for word in words], check=True)


@contextlib.contextmanager
def namespaces() -> Iterator[tuple[str, str]]:
    """The router's and the servers' network, with the link between them."""
    router, servers = (f"lookaside-{side}-{os.getpid()}" for side in ("router", "servers"))
    with contextlib.ExitStack() as made:
        for name in (router, servers):
            run("ip", "netns", "add", name)
            made.callback(subprocess.run, ["ip", "netns", "delete", name], check=False)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", router, "link", "add", "link0", "type", "veth", "peer", "name", "link0", "netns", servers)
        for name, address in ((router, ROUTER_IP), (servers, SERVERS_IP)):
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "link0")
            run("ip", "-n", name, "link", "set", "link0", "up")
        shape = ("tbf", "rate", f"{RATE_MBIT}mbit", "burst", 5000, "limit", QUEUE_BYTES)
        run("tc", "-n", servers, "qdisc", "add", "dev", "link0", "root", *shape)
        yield router, servers


def start_servers(folder: Path, namespace: str, running: contextlib.ExitStack) -> None:
    """The servers in their network, each with the one that delays in front of it."""

    def start(name: str, port: int, *words: object) -> None:
        process = Process(name, ["ip", "netns", "exec", namespace, *words], folder)
        running.callback(process.stop)

        def accepts() -> bool:
            with contextlib.suppress(OSError), socket.create_connection((SERVERS_IP, port), timeout=1):
                return True
            return False

        process.wait_ready(accepts)

    for number in range(SERVERS):
        near, far = FIRST_PORT + number, FIRST_PORT + SERVERS + number
        words = ["-l", SERVERS_IP, "-p", far, "-t", 1, "-m", 64]
        start(f"server-{number}", far, PROGRAMS / "lookaside-server", *words)
        delay = {"type": "LatencyInjectionRoute", "child": "PoolRoute|far", "before_latency_ms": DELAY_MS}
        text = json.dumps({"pools": {"far": {"servers": [f"{SERVERS_IP}:{far}"]}}, "route": delay})
        words = ["-l", SERVERS_IP, "-p", near, "--num-proxies", 1, "--config-str", text]
        start(f"delay-{number}", near, PROGRAMS / "lookaside-router", *words)


def configuration(folder: Path) -> Path:
    """The file of the router's configuration, and of the direct client's."""
    servers = [f"{SERVERS_IP}:{FIRST_PORT + number}" for number in range(SERVERS)]
    pool = {"servers": servers, "server_timeout": SERVER_TIMEOUT_MS}
    file = folder / "router.json"
    file.write_text(json.dumps({"pools": {"main": pool}, "route": "PoolRoute|main"}))
    return file


@contextlib.contextmanager
def router(folder: Path, window: str) -> Iterator[int]:
    """The port of a router with this window."""
    port = free_port()
    words = ["-p", port, "--num-proxies", 1, "-f", configuration(folder), "--window", window]
    process = Process(f"router-{window}", [PROGRAMS / "lookaside-router", *words], folder)
    try:
        process.wait_ready(lambda: answers(port))
        yield port
    finally:
        process.stop()


def fill(port: int) -> None:
    """Every key."""
    value = b"x" * VALUE_BYTES
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        replies = connection.makefile("rb")
        for first in range(0, KEYS, 200):
            numbers = range(first, min(first + 200, KEYS))
            sets = (b"set %s 0 0 %d\r\n%s\r\n" % (key(number), VALUE_BYTES, value) for number in numbers)
            connection.sendall(b"".join(sets))
            stored = [replies.readline() for _ in numbers]
            assert all(reply == b"STORED\r\n" for reply in stored), set(stored)


def page(connection: socket.socket, rng: random.Random) -> bool:
    """Asks for a page's keys; whether all came."""
    numbers = rng.sample(range(KEYS), KEYS_PER_PAGE)
    connection.sendall(b"get " + b" ".join(key(number) for number in numbers) + b"\r\n")
    answer = bytearray()
    while not answer.endswith(b"END\r\n"):
        piece = connection.recv(1 << 20)
        if not piece:
            raise ConnectionError("the router hung up")
        answer += piece
        if b"SERVER_ERROR" in answer[-200:] and answer.endswith(b"\r\n"):
            return False
    return answer.count(b"VALUE ") == KEYS_PER_PAGE


def pages(port: int) -> tuple[list[float], int]:
    """Milliseconds by page, without those of the first SETTLE_S; and how many failed."""
    rng = random.Random(1)
    due: queue.Queue[float | None] = queue.Queue()
    taken: list[tuple[float, float, bool]] = []

    def browse(number: int) -> None:
        mine = random.Random(number)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            while (arrived := due.get()) is not None:
                is_whole = page(connection, mine)
                taken.append((arrived, time.monotonic(), is_whole))

    browsers = [threading.Thread(target=browse, args=(number,), daemon=True) for number in range(CONNECTIONS)]
    for browser in browsers:
        browser.start()
    begun = arrives = time.monotonic()
    while (arrives := arrives + rng.expovariate(PAGES_PER_S)) < begun + QUIET_S + MEASURE_S:
        time.sleep(max(0.0, arrives - time.monotonic()))
        due.put(arrives)
    for _ in browsers:
        due.put(None)
    for browser in browsers:
        browser.join(60)
    eventually(due.empty, "all pages are done", 1)
    measured = [entry for entry in taken if entry[0] >= begun + QUIET_S]
    return [1000 * (end - start) for start, end, _ in measured], sum(not whole for *_, whole in measured)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def statistic(port: int, name: str) -> int:
    """A number of the router's `stats`."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"stats\r\n")
        reply = b""
        while not reply.endswith(b"END\r\n"):
            reply += connection.recv(65536)
    return next(int(line.split()[2]) for line in reply.decode().splitlines() if line.startswith(f"STAT {name} "))


def pages_of_client(program: Path, folder: Path, port: int) -> tuple[list[float], int, int]:
    """As `pages`, for a client that asks the servers directly by the router's permits; and the size of its window."""
    arguments = (KEYS, KEYS_PER_PAGE, PAGES_PER_S, QUIET_S, MEASURE_S)
    command = [str(word) for word in (program, configuration(folder), f"127.0.0.1:{port}", *arguments)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert not found["unpermitted_reads"], "these went through the router"
    return found["ms"], found["failed"], found["size"]


def result_of(window: str, size: int | None, times: list[float], failed: int) -> dict:
    """What is printed and reported of a window."""
    result = {
        "window": window,
        "size at the end": size,
        "pages": len(times),
        "failed": failed,
        "ms": {name: percentile(times, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))},
        "mean ms": sum(times) / len(times),
    }
    print(json.dumps(result), file=sys.stderr, flush=True)
    return result


def measure(servers: str, program: Path) -> list[dict]:
    """All windows, one after the other. Runs in the router's network."""
    results = []
    with tempfile.TemporaryDirectory(prefix="lookaside-incast-") as name, contextlib.ExitStack() as running:
        folder = Path(name)
        start_servers(folder, servers, running)
        with router(folder, "100") as port:
            fill(port)
        for window in (*map(str, WINDOWS), "adaptive", "loss", "off"):
            with router(folder, window) as port:
                times, failed = pages(port)
                size = statistic(port, "window_size") if window != "off" else None
            results.append(result_of(window, size, times, failed))
        with router(folder, "off") as port:
            times, failed, size = pages_of_client(program, folder, port)
        results.append(result_of(CLIENT, size, times, failed))
    return results


def picture(results: list[dict]) -> str:
    """Time of a page over the window; those that find their size as level lines."""
    fixed = [result for result in results if result["window"].isdigit()]
    curves = {name: [(int(result["window"]), result["ms"][name]) for result in fixed] for name in ("p50", "p95")}
    for found in ("adaptive", "loss"):
        times = next(result["ms"] for result in results if result["window"] == found)
        curves[f"p95, {found}"] = [(window, times["p95"]) for window in (WINDOWS[0], WINDOWS[-1])]
    return lines.svg(
        "Time of a page by size of the window", "size of the window (requests)", "time of a page (ms)", curves, True
    )


TEXT = """# Incast, and the window against it

`make incast` measures this and writes this page (§3.1 and Figure 4 of "Scaling Memcache at Facebook"): {pages:g}
pages a second of {keys} keys each, from {servers} servers through one link of {rate} Mbit/s with a queue of {queue}
kB; every reply takes another {delay} ms. A small window needs many round trips, a large one floods the queue.

| window | p50, ms | p95, ms | p99, ms | mean pages in the system | failed |
|---|---|---|---|---|---|
{rows}

![time of a page](pictures/incast.svg)

`adaptive` stays where replies take about twice as long as with few requests outstanding: its mean page takes {ratio}
times as long as that of the best fixed window ({best}). `loss` shrinks when a request goes unanswered, as the paper's
window does. Over TCP a lost reply arrives late rather than never, so that one shrinks only when replies take longer
than the server's timeout ({timeout} ms here); it avoids the collapse on the right and does not find the minimum. The
router's window is off by default.

The last row is a Rust client that asks the servers directly, with the window that it has by default, which is that of
`adaptive` (`WindowSettings::by_delay`): its mean page takes {client_ratio} times as long as that of the best fixed
window of a router, without a hop in between.

{facts}
"""


def report(results: list[dict], facts: dict[str, str]) -> str:
    """docs/measurements/incast.md."""
    rows = []
    for result in results:
        window = result["window"] + (
            f" (at the end {result['size at the end']})" if result["window"] in ("adaptive", "loss", CLIENT) else ""
        )
        times = " | ".join(f"{result['ms'][name]:.0f}" for name in ("p50", "p95", "p99"))
        inside = PAGES_PER_S * result["mean ms"] / 1000
        rows.append(f"| {window} | {times} | {inside:.1f} | {result['failed']} of {result['pages']} |")
    mean = {result["window"]: result["mean ms"] for result in results}
    best = min(map(str, WINDOWS), key=mean.__getitem__)
    return TEXT.format(
        ratio=f"{mean['adaptive'] / mean[best]:.1f}",
        client_ratio=f"{mean[CLIENT] / mean[best]:.1f}",
        best=best,
        pages=PAGES_PER_S,
        keys=KEYS_PER_PAGE,
        servers=SERVERS,
        rate=RATE_MBIT,
        queue=QUEUE_BYTES // 1000,
        delay=DELAY_MS,
        timeout=SERVER_TIMEOUT_MS,
        rows="\n".join(rows),
        facts="\n".join(f"* {name}: {fact}" for name, fact in facts.items()),
    )


def main() -> int:
    """Makes the networks, measures inside, draws, and writes the page."""
    parser = command_line.parser(__doc__)
    parser.add_argument("program", type=Path, help="the built example `page_arrivals` of crates/workload")
    parser.add_argument("--inside", metavar="NAMESPACE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure(options.inside, options.program)))
        return 0
    missing = [program for program in ("ip", "tc") if not shutil.which(program)]
    if missing or os.geteuid() != 0:
        print(f"incast: needs root, and {', '.join(missing) or 'nothing else'}", file=sys.stderr)
        return 1
    facts = machine_facts.facts()
    with namespaces() as (inside, servers):
        command = [
            "ip",
            "netns",
            "exec",
            inside,
            sys.executable,
            "-m",
            "experiments.cluster.incast",
            str(options.program.resolve()),
            "--inside",
            servers,
        ]
        measured = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if measured.returncode != 0:
        return measured.returncode
    results = json.loads(measured.stdout)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(results))
    REPORT.write_text(report(results, facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
