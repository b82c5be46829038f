"""Packets from the invalidator to a router, beside those of each delete by itself (paper, section 4.1).

What: the paper's invalidation pipelines batch deletes, which made "18 times" fewer packets. A writer commits to SQLite,
KEYS_OF_COMMIT keys a commit, popular keys more often (Zipf), at several rates. Reported for each rate and
`--linger-ms-max`, as the median of ROUNDS runs: the packets with data that the kernel counts on the invalidator's
connection (`data_segs_out`), the packets that the invalidator counts itself, the deletes that commits named, and the
latency from commit to acknowledgement. A last run sends each delete by itself (`--batch-keys-max 1`), one after the
other.

How: everything runs in a network namespace of its own, whose loopback has Ethernet's MTU of 1,500 bytes, so that
packets are of the size that they have between hosts.

    make packets      as root; some two minutes; writes docs/measurements/delete_packets.md
"""

import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from journal import Journal
from processes import PROGRAMS, ROOT, Cluster, Invalidator, eventually, stats

from experiments import command_line, machine_facts
from experiments.programs import Unusable

KEYS, KEYS_OF_COMMIT, ZIPF = 20_000, 4, 0.9
SECONDS, ROUNDS = 3.0, 3
# Commits a second; None: as many as the writer can.
RATES = (100, 1_000, None)
LINGERS_MS = (0, 1, 5)
BY_ITSELF_COMMITS = 300
PAPER_RATIO = 18
MTU = 1_500
REPORT = ROOT / "docs" / "measurements" / "delete_packets.md"


@dataclass
class Run:
    """One run's figures."""

    label: str
    linger: str
    commits: int
    seconds: float
    # Keys that the commits named, each once per commit.
    deletes: int
    # As the kernel and as the invalidator count them.
    packets: int
    counted_packets: int
    keys_per_batch: float
    latency_ms: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Deletes per packet: the packets of each delete by itself, divided by ours."""
        return self.deletes / self.packets


def enter_namespace() -> None:
    """Starts this program again in a network namespace of its own, unless it is in one."""
    if os.environ.get("IN_NAMESPACE"):
        subprocess.run(["ip", "link", "set", "lo", "mtu", str(MTU), "up"], check=True)
        return
    if os.geteuid() != 0:
        raise Unusable("a network namespace needs root")
    os.environ["IN_NAMESPACE"] = "1"
    os.execvp("unshare", ["unshare", "--net", sys.executable, "-m", "experiments.region.delete_packets", *sys.argv[1:]])


def data_packets(router_port: int) -> int:
    """Packets with data that were sent on the connection to the router that sent the most."""
    command = ["ss", "-Htin", "dst", f"127.0.0.1:{router_port}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return max(int(count) for count in re.findall(r"data_segs_out:(\d+)", text))


def commit_keys(journal: Journal, rate: int | None, commits_max: int | None) -> tuple[int, int, float]:
    """Commits for SECONDS, or `commits_max` times; commits, keys that they named, and seconds."""
    rng = random.Random(1)
    weights = [1 / (rank + 1) ** ZIPF for rank in range(KEYS)]
    drawn = rng.choices(range(KEYS), weights, k=500_000)
    journal.connection.execute("PRAGMA synchronous=OFF")
    begun, commits, keys = time.monotonic(), 0, 0
    while time.monotonic() < begun + SECONDS and commits != commits_max:
        at = commits * KEYS_OF_COMMIT % (len(drawn) - KEYS_OF_COMMIT)
        names = {f"user:{number}:profile" for number in drawn[at : at + KEYS_OF_COMMIT]}
        journal.commit(*names)
        commits, keys = commits + 1, keys + len(names)
        if rate:
            time.sleep(max(0.0, begun + commits / rate - time.monotonic()))
    return commits, keys, time.monotonic() - begun


def measure(rate: int | None, linger: str, options: tuple[str, ...], commits_max: int | None = None) -> Run:
    """One run with processes of its own."""
    with tempfile.TemporaryDirectory(prefix="lookaside-packets-") as name:
        folder, invalidator = Path(name), None
        journal, cluster = Journal(folder / "app.db"), Cluster("one", folder)
        try:
            invalidator = Invalidator(journal.url, [cluster], folder / "state", folder, *options)
            commits, deletes, seconds = commit_keys(journal, rate, commits_max)

            # Every key has a row in the journal, and the position is that of the last row.
            position = str(deletes)
            acknowledged = "all deletes are acknowledged"
            eventually(lambda: stats(invalidator.port)["cluster:one:position"] == position, acknowledged, 120)
            figures, packets = stats(invalidator.port), data_packets(cluster.port)
            label = f"{rate:,}" if rate else f"{commits / seconds:,.0f} (all that the writer can)"
            latency_ms = tuple(float(figures[f"latency_us_{share}"]) / 1e3 for share in ("p50", "p99"))
            return Run(
                label, linger, commits, seconds, deletes, packets, int(figures["packets"]),
                float(figures["keys_per_batch"]), latency_ms,
            )  # fmt: skip
        finally:
            if invalidator:
                invalidator.stop()
            cluster.stop()
            journal.connection.close()


def median(runs: list[Run]) -> Run:
    """The run with the median ratio; its latencies are the medians of all."""
    chosen = statistics.median_low(run.ratio for run in runs)
    p50, p99 = (statistics.median(run.latency_ms[at] for run in runs) for at in (0, 1))
    return replace(next(run for run in runs if run.ratio == chosen), latency_ms=(p50, p99))


def report(runs: list[Run], by_itself: Run, facts: dict[str, str]) -> str:
    """The page."""
    rows = [
        f"| {run.label} | {run.linger} | {run.deletes:,} | {run.packets:,} | {run.counted_packets:,}"
        f" | {run.keys_per_batch:.1f} | **{run.ratio:.1f}** | {run.latency_ms[0]:.1f} | {run.latency_ms[1]:.1f} |"
        for run in runs
    ]
    best = max(run.ratio for run in runs)
    reached = "is reached" if best >= PAPER_RATIO else "is not reached here"
    return f"""# Packets of deletes

`make packets` measures this and writes this page (§4.1 of "Scaling Memcache at Facebook": batches of deletes made 18
times fewer packets). A writer commits to SQLite for {SECONDS:.0f} s, {KEYS_OF_COMMIT} of {KEYS:,} keys a commit,
popular ones more often (Zipf {ZIPF}). Of {ROUNDS} runs the one with the median ratio is shown, with median latencies.
"Packets" are those with data that the kernel counts on the invalidator's connection to its router (MTU {MTU:,});
"counted" those that the invalidator reports as `packets`. The ratio is deletes divided by packets: the packets of
each delete by itself, over those of the batches. Latency is from a commit to the acknowledgement of its deletes, in
milliseconds.

| commits/s | linger, ms | deletes | packets | counted | keys per batch | ratio | p50 | p99 |
|---|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}

Each delete by itself (`--batch-keys-max 1`): {by_itself.deletes:,} deletes took {by_itself.packets:,} packets, a ratio
of {by_itself.ratio:.2f}. (A connection writes all deletes at once that have queued up meanwhile.)

The ratio depends on how many deletes arrive while a batch is unanswered: at a low rate each commit is sent at once, and
its own keys are all that a packet holds. The paper's factor of {PAPER_RATIO} {reached}. A machine that is busy with
other work answers later, which makes batches larger and latencies longer.

{chr(10).join(f"* {name}: {value}" for name, value in facts.items())}
"""


def main() -> int:
    """Measures, prints the results as JSON and writes the page."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--report", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    options = parser.parse_args()

    def run() -> None:
        enter_namespace()
        facts = {**machine_facts.facts(), "build": PROGRAMS.name}
        rounds: dict[tuple[int | None, int], list[Run]] = {
            (rate, linger): [] for rate in RATES for linger in LINGERS_MS
        }
        # One round after the other, since the machine may be busier in one minute than in the next.
        for _ in range(ROUNDS):
            for (rate, linger_ms), measured in rounds.items():
                measured.append(measure(rate, str(linger_ms), ("--linger-ms-max", str(linger_ms))))
                print(measured[-1], round(measured[-1].ratio, 1), file=sys.stderr, flush=True)
        runs = [median(measured) for measured in rounds.values()]
        alone = ("--batch-keys-max", "1", "--batches-in-flight-max", "1", "--linger-ms-max", "0")
        by_itself = measure(None, "0", alone, BY_ITSELF_COMMITS)
        command_line.print_results([{**vars(run), "ratio": run.ratio} for run in (*runs, by_itself)])
        if options.report:
            REPORT.write_text(report(runs, by_itself, facts))

    return command_line.run_measurement("delete_packets", run)


if __name__ == "__main__":
    sys.exit(main())
