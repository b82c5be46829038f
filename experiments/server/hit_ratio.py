"""Miss ratios of our server and of memcached 1.6.45 at equal memory, index included.

What: a real trace (Twitter's cache cluster 52), or one like it, at three sizes of memory, and the four pools of the
paper's Tables 2 and 3 with keys that come and go (crates/workload/src/pool.rs says what the paper gives and what is
made up). Look-aside: get, on a miss set, in strict order, through the network: `lookaside replay --plain`.

Equal memory: ours runs with -m as the size says. What a server takes for its cache is its resident set (VmRSS) when
full, minus the resident set of an empty server of its kind with -m 2. "Full" is after a fill with twice the memory in
objects of the very workload's sizes. memcached, whose index comes on top of its -m, gets the smallest -m with which it
takes at least as much as ours; never less. Both are measured again after the replay and reported.

Time: caches balance and expire by the clock, in seconds. `--speed 1`, the mode of --full, replays in the trace's own
time: 26 minutes, all servers side by side, each with some thousand requests a second. The quick mode replays ten times
as fast: ages are then a tenth, against clocks of one second.

The floor is what a cache without bound would miss: first requests, and those after a delete.

    experiments/run hit_ratio                  about five minutes
    experiments/run hit_ratio --full --report  in real time; writes docs/measurements/hit_ratio.md and its pictures

TRACES names the folder with the real trace. Without it, a trace with like popularity, sizes and churn is made from a
seed (`lookaside replay synthetic`, crates/workload/src/synthetic.rs); the page says which was used.
"""

import concurrent.futures
import contextlib
import getpass
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from experiments import command_line, machine_facts
from experiments.plots import bars
from experiments.programs import (
    READY_S,
    ROOT,
    Unusable,
    answers,
    free_ports,
    lookaside,
    memcached,
    peer_version,
    resident_bytes,
    stop,
)

MIB = 1 << 20
SIZES_MIB = (16, 64, 128)
POOLS = {"wildcard": 1_000_000, "app": 1_000_000, "replicated": 1_500_000, "regional": 375_000}
POOL_MIB = 64
SYNTHETIC = "synthetic:3000000"
QUICK_SPEED = 10.0
PROBES_MAX = 8
MEMORY_MIB_MIN = 2
REPORT = ROOT / "docs" / "measurements" / "hit_ratio.md"
PICTURES = ROOT / "docs" / "measurements" / "pictures"
KEPT = "<!-- Above: written by experiments/server/hit_ratio.py. Below: written by people, and kept. -->"


class Refused(Unusable):
    """The server would not store all that it was sent."""


@dataclass(frozen=True)
class Workload:
    """A workload and its memory; the first `warmup` requests are not counted."""

    name: str
    source: str
    memory_mib: int
    warmup: int = 0


@dataclass
class Side:
    """One server's part of a comparison."""

    memory_mib: int = 0
    resident_full: int = 0
    resident_after: int = 0
    figures: dict = field(default_factory=dict)


def trace() -> str:
    """The longest trace of Twitter's cluster 52 in the folder TRACES; if that is not set, one that is made."""
    folder = os.environ.get("TRACES")
    if not folder:
        return SYNTHETIC
    found = sorted((ROOT / folder).glob("twitter-cluster52*.pack.zst"), key=lambda path: path.stat().st_size)
    if not found:
        raise Unusable(f"no twitter-cluster52*.pack.zst in the folder TRACES={folder}")
    return str(found[-1])


def is_trace(result: dict) -> bool:
    """Whether a result is of a trace, not of a pool."""
    return not result["source"].startswith("pool:")


def trace_name(results: list[dict]) -> str:
    """The trace of these results, in words."""
    is_made = any(result["source"] == SYNTHETIC for result in results)
    return "a trace from a seed" if is_made else "Twitter cluster 52"


def workloads() -> list[Workload]:
    """All that is compared."""
    sizes = [Workload(f"{mib} MiB", trace(), mib) for mib in SIZES_MIB]
    return sizes + [Workload(name, f"pool:{name}", POOL_MIB, warmup) for name, warmup in POOLS.items()]


@contextlib.contextmanager
def server(name: str, memory_mib: int, *more: object) -> Iterator[tuple[int, int]]:
    """A running server: its pid and port."""
    program = memcached() if name == "memcached" else lookaside("lookaside-server")
    port = free_ports(1)[0]
    words = [program, "-p", port, "-U", "0", "-l", "127.0.0.1", "-t", "1", "-m", memory_mib, *more]
    if name == "memcached" and os.geteuid() == 0:
        words += ["-u", getpass.getuser()]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + READY_S
            while not answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise Unusable(f"{name} did not start: {log.read().decode(errors='replace')}")
                time.sleep(0.01)
            yield process.pid, port
        finally:
            stop(process)


def empty(name: str) -> int:
    """The memory of an empty server."""
    with server(name, MEMORY_MIB_MIN) as (pid, _):
        return resident_bytes(pid)


def replay(port: int, workload: Workload, *words: str) -> str:
    """Runs `lookaside replay --plain`; what it printed."""
    command = [
        lookaside("lookaside"), "replay", workload.source, "--plain", "--endpoint", f"127.0.0.1:{port}", *words,
    ]  # fmt: skip
    run = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if run.returncode != 0:
        kind = Refused if "not stored" in run.stderr else Unusable
        raise kind(f"{workload.name}: replay failed: {run.stderr.strip()[:500]}")
    return run.stdout


def full(name: str, workload: Workload, memory_mib: int, base: int) -> int:
    """The memory that a full server uses for its cache, in bytes. It may refuse values under such a load."""
    with server(name, memory_mib) as (pid, port):
        with contextlib.suppress(Refused):
            replay(port, workload, "--fill", str(2 * workload.memory_mib))
        return resident_bytes(pid) - base


def equal_memory(workload: Workload, bases: dict[str, int]) -> dict[str, Side]:
    """Both sides with their -m: memcached takes as much as ours when full, or a little more."""
    ours = Side(workload.memory_mib)
    ours.resident_full = full("lookaside", workload, ours.memory_mib, bases["lookaside"])
    taken: dict[int, int] = {}
    memory_mib = workload.memory_mib
    for _ in range(PROBES_MAX):
        if memory_mib not in taken:
            taken[memory_mib] = full("memcached", workload, memory_mib, bases["memcached"])
        short = ours.resident_full - taken[memory_mib]
        if short > 0:
            step = max(1, short // MIB)
        elif memory_mib - 1 in taken or memory_mib == MEMORY_MIB_MIN:
            break
        else:
            step = min(-1, short // MIB + 1)
        memory_mib = max(MEMORY_MIB_MIN, memory_mib + step)
    else:
        enough = [mib for mib, full_bytes in taken.items() if full_bytes >= ours.resident_full]
        if not enough:
            raise Unusable(f"{workload.name}: no -m of memcached takes as much as ours: {taken}")
        memory_mib = min(enough)
    return {"lookaside": ours, "memcached": Side(memory_mib, taken[memory_mib])}


def measure(name: str, side: Side, workload: Workload, base: int, speed: float) -> None:
    """Replays the workload through a new server and notes what came of it."""
    with server(name, side.memory_mib) as (pid, port):
        printed = replay(port, workload, "--json", "--speed", str(speed), "--warmup", str(workload.warmup))
        side.figures = json.loads(printed)
        side.resident_after = resident_bytes(pid) - base
    if side.figures["errors"]:
        raise Unusable(f"{workload.name}: {name} gave errors: {side.figures}")


def run(speed: float, only: str = "", jobs: int = 0) -> list[dict]:
    """Compares on all workloads whose name contains `only`; `at_once` replays run side by side (0: all)."""
    facts = machine_facts.facts() | {"memcached": peer_version("memcached")}
    chosen = [workload for workload in workloads() if only in workload.name]
    bases = {name: empty(name) for name in ("lookaside", "memcached")}
    sides = {}
    for workload in chosen:
        sides[workload] = equal_memory(workload, bases)
        taken = {
            name: f"-m {side.memory_mib}, {side.resident_full / MIB:.1f}" for name, side in sides[workload].items()
        }
        print(f"{workload.name}: MiB when full: {taken}", file=sys.stderr, flush=True)
    with concurrent.futures.ThreadPoolExecutor(jobs or 2 * len(chosen)) as pool:
        running = [
            pool.submit(measure, name, side, workload, bases[name], speed)
            for workload, pair in sides.items()
            for name, side in pair.items()
        ]
        for done in concurrent.futures.as_completed(running):
            done.result()
    results = []
    for workload, pair in sides.items():
        figures = {name: asdict(side) for name, side in pair.items()}
        results.append({**asdict(workload), "speed": speed, "machine": facts, **figures})
        results[-1]["source"] = Path(workload.source).name
        show(results[-1])
    return results


def avoidable(result: dict, name: str) -> float:
    """The misses above the floor, as a share of gets."""
    figures = result[name]["figures"]
    return figures["miss_ratio"] - figures["floor"]


def show(result: dict) -> None:
    """A line about a comparison."""
    ours, theirs = result["lookaside"], result["memcached"]
    print(
        f"{result['name']:10} miss ratio: ours {ours['figures']['miss_ratio']:.5f}, memcached"
        f" {theirs['figures']['miss_ratio']:.5f}, floor {ours['figures']['floor']:.5f}; of bytes:"
        f" {ours['figures']['byte_miss_ratio']:.5f}, {theirs['figures']['byte_miss_ratio']:.5f},"
        f" {ours['figures']['byte_floor']:.5f}; resident MiB after: {ours['resident_after'] / MIB:.1f},"
        f" {theirs['resident_after'] / MIB:.1f}",
        file=sys.stderr,
        flush=True,
    )


def row(result: dict) -> str:
    """A comparison's line of the table."""
    ours, theirs = result["lookaside"], result["memcached"]
    mine, other = ours["figures"], theirs["figures"]
    gain = 1 - avoidable(result, "lookaside") / max(avoidable(result, "memcached"), 1e-12)
    cells = [
        result["name"],
        f"**{mine['miss_ratio']:.5f}**",
        f"{other['miss_ratio']:.5f}",
        f"{mine['floor']:.5f}",
        f"{gain:.0%}" if avoidable(result, "memcached") > 0 else "",
        f"{mine['byte_miss_ratio']:.4f}",
        f"{other['byte_miss_ratio']:.4f}",
        f"{mine['byte_floor']:.4f}",
        f"{ours['memory_mib']}, {theirs['memory_mib']}",
        f"{ours['resident_full'] / MIB:.1f}, {theirs['resident_full'] / MIB:.1f}",
        f"{ours['resident_after'] / MIB:.1f}, {theirs['resident_after'] / MIB:.1f}",
    ]
    return f"| {' | '.join(cells)} |\n"


COLUMNS = """
| {} | ours | memcached | floor | saved | of bytes: ours | memcached | floor | -m | MiB when full | after |
|---|---|---|---|---|---|---|---|---|---|---|
"""

HEAD = """# Hit ratio at equal memory

`make hit-ratio` measures this; `make hit-ratio HIT_RATIO="--full --report"` writes this page, in real time: 26
minutes. `TRACES=FOLDER` names a folder with a real trace; without it, a trace is made from a seed.

Look-aside, in strict order, through the network: get; on a miss, set. Our server and memcached 1.6.45 with one worker
and its defaults, at equal memory. The miss ratio is that of gets. The floor is the miss ratio of an unbounded
cache. "Saved" is the share of memcached's misses above the floor that ours avoids.

**Equal memory.** A server's memory is its resident set when full, minus that of an empty server of the same kind with
`-m 2`: items, their metadata, the index, and allocator waste. "Full" is after a fill with twice the memory in objects
of the workload's sizes. Ours has the `-m` of the row; memcached, whose index comes on top of its `-m`, has the smallest
`-m` with which it takes at least as much. The columns name ours first; "after" is after the replay itself.
"""

MADE = """
## A trace from a seed

{gets:,} gets of a trace that is made from a seed with the popularity, sizes and churn of a real one
([synthetic.rs](../../crates/workload/src/synthetic.rs) says how): `lookaside replay --plain {source}`. {speed}
"""

TRACE = """
## Twitter's cache cluster 52

The first requests of a public sample (`{source}`: {gets:,} gets), CC-BY 4.0, Yang et al., "A large scale
analysis of hundreds of in-memory cache clusters at Twitter", OSDI 2020. {speed}
"""

POOL = """
## The paper's pools

The four pools of Tables 2 and 3 in {mib} MiB: rates of gets, sets and deletes and sizes of values as the paper gives
them; popularity and churn are assumptions ([pool.rs](../../crates/workload/src/pool.rs) says how), from one seed. The
first quarter of the requests is not counted. {speed}
"""


def markdown(results: list[dict]) -> str:
    """The generated part of the page."""
    speed = results[0]["speed"]
    clock = "Replayed in real time." if speed == 1 else f"Replayed {speed:g} times as fast as in real time."
    text = HEAD + "\n" + "".join(f"* {name}: {fact}\n" for name, fact in results[0]["machine"].items())
    traces = [result for result in results if is_trace(result)]
    pools = [result for result in results if not is_trace(result)]
    if traces:
        gets = traces[0]["lookaside"]["figures"]["gets"]
        section = MADE if traces[0]["source"] == SYNTHETIC else TRACE
        text += section.format(source=traces[0]["source"], gets=gets, speed=clock)
        text += COLUMNS.format("memory") + "".join(map(row, traces))
        text += "\n![Miss ratios of the trace](pictures/hit_ratio_trace.svg)\n"
    if pools:
        text += POOL.format(mib=POOL_MIB, speed=clock)
        text += COLUMNS.format("pool") + "".join(map(row, pools))
        text += "\n![Miss ratios of the pools](pictures/hit_ratio_pools.svg)\n"
    return text


def pictures(results: list[dict]) -> dict[str, str]:
    """The pictures, by file name."""
    drawn = {}
    for name, title, is_pool in (
        ("hit_ratio_trace.svg", f"Misses of gets, {trace_name(results)}, equal memory", False),
        ("hit_ratio_pools.svg", f"Misses of gets, the paper's pools in {POOL_MIB} MiB, memcached's = 1", True),
    ):
        groups = {}
        for result in (result for result in results if is_trace(result) != is_pool):
            mine, other = result["lookaside"]["figures"], result["memcached"]["figures"]
            unit = other["miss_ratio"] if is_pool else 1
            label = f"{result['name']} ({other['miss_ratio']:.2%})" if is_pool else result["name"]
            groups[label] = {
                "memcached 1.6.45": other["miss_ratio"] / unit,
                "ours": mine["miss_ratio"] / unit,
                bars.FLOOR: mine["floor"] / unit,
            }
        if groups:
            across = "pool (memcached's share of gets that miss)" if is_pool else "memory"
            up = "misses (memcached's = 1)" if is_pool else "share of gets that miss"
            drawn[name] = bars.svg(title, across, up, groups, "{:.2f}" if is_pool else "{:.4f}")
    return drawn


def write(results: list[dict]) -> None:
    """Writes the page and its pictures, and keeps what people wrote."""
    before = REPORT.read_text() if REPORT.exists() else ""
    REPORT.write_text(f"{markdown(results)}\n{KEPT}{before.partition(KEPT)[2] or chr(10)}")
    for name, drawn in pictures(results).items():
        (PICTURES / name).write_text(drawn)


def main() -> int:
    """Compares, prints JSON."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--full", action="store_true", help="in the trace's own time")
    parser.add_argument("--speed", type=float, metavar="TIMES", help=f"seconds of the trace in one; {QUICK_SPEED:g}")
    parser.add_argument("--only", default="", metavar="TEXT", help="workloads whose name contains TEXT")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="replays at a time; default: all")
    parser.add_argument("--report", action="store_true", help="write docs/measurements/hit_ratio.md and its pictures")
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="write the page from figures measured before")
    command_line.add_json_path(parser)
    options = parser.parse_args()
    speed = options.speed or (1.0 if options.full else QUICK_SPEED)

    def measure() -> None:
        if options.from_json:
            results = json.loads(options.from_json.read_text())
        else:
            results = run(speed, options.only, options.jobs)
        if options.report:
            write(results)
        command_line.print_results(results, options.json)

    return command_line.run_measurement("hit_ratio", measure)


if __name__ == "__main__":
    sys.exit(main())
