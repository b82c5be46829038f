"""Where the router's CPU time goes, by groups of functions, under the loads of experiments/cluster/proxy.py.

What: `perf record -e cpu-clock` of the router while it is loaded in closed loop; the share of the samples by group. In
the kernel a sample belongs to the system call that it is in: sending by the loopback device includes the receiver's
side of TCP and its wake-up. In the router it belongs to the innermost function's module.

How: the router alone in front of four servers, on a core of its own. It prints a table, which
docs/measurements/benchmarks.md has in the part that is written by people.

    python3 -m experiments.cluster.router_profile       a minute; needs perf, and the rights to use it
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from experiments import command_line
from experiments.cluster.proxy import LOAD_CORE, SCENARIOS, of_items, proxies
from experiments.load_generator import load
from experiments.programs import Unusable

PROFILE_S = 6
HERTZ = 2_000

# The system calls, by a part of the name of a function in the stack.
KERNEL = {"sendto": "kernel: `send`", "recvfrom": "kernel: `recv`", "epoll": "kernel: `epoll_wait`"}
KERNEL_OTHER = "kernel: other"
# The first that matches the innermost function.
GROUPS = {
    "tokio: tasks, wake-ups, channels": r"^<?tokio|^<?mio::|^<?futures",
    "allocation": r"^_?mi_|^__rust_|shared_v_|promotable|[Rr]aw_?[Vv]ec|vec::Vec<",
    "clients: reading and parsing requests": r"frontend::parse|text::parse::|session::io|Session::step|memchr",
    "clients: composing replies": r"compose_repl|frontend::reply|ReplyWriter",
    "servers: queues, requests, reading replies": r"lookaside_client|parse_reply|compose_request",
    "routing and hashing": r"lookaside_routing|Proxy::|route_chunk|lookaside_router::tree",
    "copying and comparing": r"mem(move|cpy|cmp|set)",
}
OTHER = "other"
FRAME = re.compile(r"\s*[0-9a-f]+ (.*) \((.*)\)$")


def group_of(stack: str) -> str:
    """The group of a sample, by its stack as `perf script` prints it, the innermost function first."""
    frames = [found.groups() for found in map(FRAME.match, stack.splitlines()) if found]
    if not frames:
        return OTHER
    function, module = frames[0]
    if module.startswith("["):
        names = [name for name, _ in frames]
        calls = (group for part, group in KERNEL.items() if any(part in name for name in names))
        return next(calls, KERNEL_OTHER)
    return next((group for group, pattern in GROUPS.items() if re.search(pattern, function)), OTHER)


def shares(stacks: list[str]) -> dict[str, float]:
    """The share of each group, the largest first."""
    counts = Counter(map(group_of, stacks))
    return {group: count / len(stacks) for group, count in counts.most_common()}


def profile(pid: int, path: Path) -> subprocess.Popen:
    """`perf` for a process, which ends by itself."""
    words = ["perf", "record", "--quiet", "-e", "cpu-clock", "-F", HERTZ, "-g", "-p", pid, "-o", path]
    words += ["--", "sleep", PROFILE_S]
    try:
        return subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        raise Unusable("perf is not there: apt-get install linux-perf") from None


def run(only: str, nice: int, is_realtime: bool) -> dict[str, dict]:
    """By scenario: CPU time for a request in us, the share of the core, and the shares of the groups."""
    results = {}
    with (
        tempfile.TemporaryDirectory(prefix="lookaside-profile-") as folder,
        proxies(("lookaside",), LOAD_CORE, nice, is_realtime) as (_, (router,)),
    ):
        for scenario in (scenario for scenario in SCENARIOS if only in scenario.name):
            path = Path(folder) / "perf.data"
            recording = profile(router.process.pid, path)
            words = (*scenario.load, *of_items(), "--warmup", 0, "--seconds", PROFILE_S)
            figures = load(router, *words, core=LOAD_CORE)
            if recording.wait() != 0:
                raise Unusable("perf record failed: is /proc/sys/kernel/perf_event_paranoid above 1?")
            script = ["perf", "script", "-i", path, "-F", "ip,sym,dso"]
            printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
            results[scenario.name] = {
                "cpu_us": figures["server_cpu_us_per_request"],
                "cpu_share": figures["server_cpu_share"],
                "shares": shares(printed.strip().split("\n\n")),
            }
    return results


def table(results: dict[str, dict]) -> str:
    """The groups as rows and the scenarios as columns, in percent."""
    known = [*KERNEL.values(), KERNEL_OTHER, *GROUPS, OTHER]
    lines = [f"| share of the router's CPU time | {' | '.join(results)} |", "|---" * (1 + len(results)) + "|"]
    for group in known:
        cells = (f"{result['shares'].get(group, 0):.0%}" for result in results.values())
        lines.append(f"| {group} | {' | '.join(cells)} |")
    for name, figure in (("CPU time for a request, us", "cpu_us"), ("core used", "cpu_share")):
        lines.append(f"| {name} | {' | '.join(f'{result[figure]:.2f}' for result in results.values())} |")
    return "\n".join(lines)


def main() -> int:
    """Prints the table."""
    options = command_line.load_parser(__doc__, "router, servers").parse_args()

    def measure() -> None:
        print(table(run(options.only, options.nice, options.realtime)))

    return command_line.run_measurement("router_profile", measure)


if __name__ == "__main__":
    sys.exit(main())
