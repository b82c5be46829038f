"""One run of `make delete-latency`: two regions, their users, the faults, and what the monitors have counted."""

import contextlib
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from chaos.faults import Event, Fault, Injector
from chaos.network import Loopback, Namespaces
from monitor import LOOKS, Monitor
from processes import eventually

from experiments.cross_region.faults import KINDS, Late, after_recovery_s, cause, schedule
from experiments.cross_region.load import Load, rows_for
from experiments.cross_region.regions import MASTER, REPLICA, TwoRegions

AGES_S = (1, 2, 5, 10, 30, 60)
POLL_S = 0.2
# Beyond the last age, on a busy machine.
LAST_LOOKS_S = 120.0


@dataclass(frozen=True)
class Settings:
    """What is run."""

    seconds: float = 190.0
    # Commits, and so deletes in each cluster, a second.
    rate: float = 170.0
    seed: int = 1
    ages_s: tuple[int, ...] = AGES_S
    faults: tuple[str, ...] = KINDS
    # Processes that hang all the time, to see that the curve shows it.
    frozen: tuple[str, ...] = ()

    def schedule(self) -> list[Fault]:
        """The faults of both regions."""
        return [
            fault for region in (MASTER, REPLICA) for fault in schedule(region, self.seed, self.faults, self.seconds)
        ]


@dataclass
class Outcome:
    """What was found."""

    settings: Settings
    commits: int
    # The monitors' summaries, by the region whose log they read.
    summaries: dict[str, dict]
    # Looks that found old values of deletes of a region's log in its own cluster.
    late: list[Late]
    events: list[Event]
    failures: list[str]
    # By region, the share of the fillers' reads that were hits.
    cached: dict[str, float] = field(default_factory=dict)

    def ages(self, log: str, cluster: str) -> list[dict]:
        """What the monitor of that log has found in that cluster, by age."""
        (found,) = (curve for curve in self.summaries[log]["clusters"] if curve["name"] == cluster)
        return found["ages"]

    def causes(self, cluster: str) -> dict[int, Counter]:
        """By age, the old values by what they waited for."""
        found: dict[int, Counter] = {}
        for late in self.late:
            if late.cluster == cluster:
                found.setdefault(late.age_s, Counter())[cause(late, self.events)] += late.count
        return found

    def last_after_recovery_s(self, cluster: str) -> float:
        """The longest time after the end of a fault at which an old value was found."""
        return max((after_recovery_s(late, self.events) for late in self.late if late.cluster == cluster), default=0.0)


class Watch(threading.Thread):
    """Notes when the monitors count old values."""

    def __init__(self, monitors: dict[str, Monitor]) -> None:
        super().__init__(name="watch", daemon=True)
        self.monitors = monitors
        self.late: list[Late] = []
        self.counted: Counter = Counter()
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(POLL_S):
            self.look()

    def look(self) -> None:
        """Compares the counts with those before."""
        for region, monitor in self.monitors.items():
            at_s = time.monotonic()
            for cluster, age, found, count in LOOKS.findall(monitor.metrics()):
                if (cluster, found) != (region, "old"):
                    continue
                grown = int(count) - self.counted[cluster, age]
                if grown > 0:
                    self.late.append(Late(at_s, cluster, int(age), grown))
                    self.counted[cluster, age] = int(count)


def run(settings: Settings, network: Loopback | Namespaces, folder: Path) -> Outcome:
    """Runs it once."""
    rows = rows_for(settings.rate, settings.ages_s[-1])
    with contextlib.closing(TwoRegions(folder, network, rows)) as regions:
        load = Load(regions, rows, settings.rate, settings.seconds, settings.seed)
        load.fill()
        regions.start_monitors(settings.ages_s)
        watch = Watch(dict(zip((MASTER, REPLICA), regions.monitors, strict=True)))
        failures: list[str] = []
        injector = Injector(regions, settings.schedule(), settings.seed, failures.append)
        with contextlib.ExitStack() as stack:
            for name in settings.frozen:
                regions.node(name).freeze()
                stack.callback(regions.node(name).thaw)
            watch.start()
            stack.callback(watch.is_over.set)
            with load:
                injector.start()
                load.writer.join(settings.seconds + LAST_LOOKS_S)
                injector.join()
                wait_last_looks(regions, load.writer.commits, settings.ages_s[-1])
            watch.is_over.set()
            watch.join()
            watch.look()
        if load.writer.failure or load.writer.is_alive():
            failures.append(f"the writer has failed: {load.writer.failure or 'it has not ended'}")
        for monitor in regions.monitors:
            monitor.stop()
        summaries = {region: monitor.summary() for region, monitor in watch.monitors.items()}
        cached = {filler.region.name: filler.cached_share() for filler in load.fillers}
        return Outcome(settings, load.writer.commits, summaries, watch.late, injector.events, failures, cached)


def wait_last_looks(regions: TwoRegions, commits: int, age_s: int) -> None:
    """Returns when every delete has reached the last age in every cluster."""
    names = {MASTER: (MASTER, REPLICA), REPLICA: (REPLICA,)}
    for region, monitor in zip(regions.regions, regions.monitors, strict=True):
        for cluster in names[region.name]:
            eventually(
                lambda monitor=monitor, cluster=cluster: sum(monitor.looks(cluster, age_s).values()) >= commits,
                f"all deletes of {region.name} are {age_s} s old in {cluster}",
                age_s + LAST_LOOKS_S,
            )
