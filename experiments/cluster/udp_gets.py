"""Gets by UDP to servers, beside TCP and a router in between: latency, and processor time of the client (paper, section
3.1 and Figure 3).

What: a Rust client builds the routes of the router's configuration and sends gets to the servers itself, by UDP or TCP
(`DirectRoute`), or sends them to the router by TCP. In the paper a get by UDP takes a fifth less time than one through
mcrouter, for the client has no connections and no hop in between.

How: SERVERS servers of one thread and a router on this machine, one client thread, every key in the cache.
crates/workload/examples/udp_gets.rs reads, in turns.

    make udp-gets       two minutes; writes docs/measurements/udp_gets.md
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from processes import PROGRAMS, ROOT, Process, answers, free_port

from experiments import command_line, machine_facts

SERVERS = 8
REPORT = ROOT / "docs" / "measurements" / "udp_gets.md"
# Microseconds of processor time of the client for each key of a page of 24.
CPU_US_MAX = 0.8

# The width of the page.
COLUMNS = 120

WAYS = {
    "udp": "UDP to servers",
    "udp, no window": "UDP to servers, without a window",
    "tcp": "TCP to servers",
    "tcp, no window": "TCP to servers, without a window",
    "router": "TCP to the router",
    "bare": "bare TCP sockets, without a client",
}

TEXT = """# Gets by UDP, by TCP, and through a router

`make udp-gets` measures this and writes this page (§3.1 and Figure 3 of "Scaling Memcache at Facebook"): a Rust client
of one thread reads {servers} servers on the same machine, itself or through a router of one thread. A page has 24 keys,
of values of 135 bytes; every key is in the cache.

| read | by | mean, us | p50 | p95 | processor time for a key, us | of which in the kernel | errors, of keys |
|---|---|---|---|---|---|---|---|
{rows}

The mean of one key by UDP is {saved} than through the router; the paper has 20 % less. The processor time is that of
the client, with its routes, its permits and its window. On one machine the kernel's part holds what a network card
would do elsewhere: sending to a server over the loopback device runs the receiver's side of TCP or UDP in the sender's
time, once for each of the {servers} servers of a page. The bar is {bar} us for a key of a page:

| read | by | bar | outside of the kernel |
|---|---|---|---|
{verdicts}

{bare_verdict}

{facts}
"""


def measure(program: Path, seconds: float) -> list[dict]:
    """The example's results, against servers and a router of its own."""
    with tempfile.TemporaryDirectory(prefix="lookaside-udp-") as name, contextlib.ExitStack() as running:

        def start(process: str, port: int, *words: object) -> None:
            started = Process(process, [PROGRAMS / f"lookaside-{process.split('-')[0]}", "-p", port, *words], folder)
            running.callback(started.stop)
            started.wait_ready(lambda: answers(port))

        folder = Path(name)
        ports = [free_port() for _ in range(SERVERS)]
        for number, port in enumerate(ports):
            start(f"server-{number}", port, "-U", port, "-t", 1, "-m", 64)
        configuration = folder / "router.json"
        servers = [f"127.0.0.1:{port}" for port in ports]
        configuration.write_text(json.dumps({"pools": {"main": {"servers": servers}}, "route": "PoolRoute|main"}))
        router = free_port()
        start("router", router, "-f", configuration, "--num-proxies", 1)
        command = [program, configuration, f"127.0.0.1:{router}", str(seconds)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in printed.splitlines()]


def report(results: list[dict], facts: dict[str, str]) -> str:
    """docs/measurements/udp_gets.md."""
    rows = []
    for result in results:
        times = " | ".join(f"{result[name]:.0f}" for name in ("mean_us", "p50_us", "p95_us"))
        errors = f"{result['errors']} of {result['keys']}"
        cpu = f"{result['cpu_us_per_key']:.2f} | {100 * result['kernel_share']:.0f} %"
        rows.append(f"| {result['load']} | {WAYS[result['way']]} | {times} | {cpu} | {errors} |")
    found = {(result["load"], result["way"]): result for result in results}
    ratio = found["one key", "udp"]["mean_us"] / found["one key", "router"]["mean_us"]
    saved = f"{100 * (1 - ratio):.0f} % less" if ratio < 1 else f"{100 * (ratio - 1):.0f} % more"

    def verdict(load: str, way: str) -> str:
        """A row: whether the bar is met, in all and without the kernel."""
        us = found[load, way]["cpu_us_per_key"]
        own = us * (1 - found[load, way]["kernel_share"])
        figures = " | ".join(f"{figure:.2f}: {'met' if figure <= CPU_US_MAX else 'missed'}" for figure in (us, own))
        return f"| {load} | {WAYS[way]} | {figures} |"

    verdicts = "\n".join(verdict(load, way) for load in ("a page", "16 pages at a time") for way in ("udp", "tcp"))
    bare = found["a page", "bare"]
    bare_us = bare["cpu_us_per_key"]
    times = {way: found["a page", way]["cpu_us_per_key"] / bare_us for way in ("tcp", "tcp, no window")}
    conclusion = (
        f"no client that asks {SERVERS} servers for a page at a time can meet it here."
        if bare_us > CPU_US_MAX
        else "what is missed is the client's."
    )
    bare_verdict = textwrap.fill(
        "Bare sockets show what of that is no client's to save: a loop writes one prepared `get` to each server and"
        f" then reads each reply, {SERVERS} system calls of each kind for a page, without routes, permits, a window,"
        f" timeouts or an event loop, and compares the bytes. It takes {bare_us:.2f} us for a key,"
        f" {100 * bare['kernel_share']:.0f} % of it in the kernel, {bare_us / CPU_US_MAX:.1f} times the bar:"
        f" {conclusion} TCP to servers takes {times['tcp, no window']:.1f} times as long as the loop without a"
        f" window, and {times['tcp']:.1f} times with one.",
        COLUMNS,
    )
    facts_text = "\n".join(f"* {name}: {fact}" for name, fact in facts.items())
    return TEXT.format(
        servers=SERVERS,
        rows="\n".join(rows),
        saved=saved,
        bar=CPU_US_MAX,
        verdicts=verdicts,
        bare_verdict=bare_verdict,
        facts=facts_text,
    )


def main() -> int:
    """Measures, and writes the page."""
    parser = command_line.parser(__doc__)
    parser.add_argument("program", type=Path, help="the built example `udp_gets` of crates/workload")
    parser.add_argument("--seconds", type=float, default=8, help="for each way and load")
    parser.add_argument("--no-page", action="store_true", help="only print the page")
    options = parser.parse_args()
    facts = machine_facts.facts()
    text = report(measure(options.program.resolve(), options.seconds), facts)
    if not options.no_page:
        REPORT.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
