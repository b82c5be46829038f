"""The kinds of faults, the schedule that a seed gives, and its execution.

| kind | targets | what happens, for some seconds |
|---|---|---|
| `kill` | every process, `database`, `etcd` | SIGKILL; started again at the end |
| `restart` | every process of ours | SIGTERM; started again at the end. A server keeps its items |
| `hang` | every process, `database`, `etcd` | SIGSTOP; SIGCONT at the end |
| `upgrade` | servers, gutters, routers | a new process takes over, at once |
| `disturb` | servers, gutters, routers | the same, and the old or the new process is killed or stopped in the middle |
| `reload` | clusters | the routers get a new configuration with the same servers, one after another |
| `partition` | every process, `database`, `etcd` | cut off: from all (`x`), from one (`x=y`), towards it only (`x>y`) |
| `remove-killed` | servers | killed, and removed from the pool (`resize`) |
| `remove`, `empty`, `twice`, `add`, `exchange`, `weigh` | clusters | the pool changes (`resize`) |

A fault is written `KIND:TARGET@AT+SECONDS`, as in `hang:one-server-1@2.5+4`. Faults overlap, but a process has one at a
time, besides cut links. A fault of a seed whose target is still busy with the one before is left out; one that is given
waits for its target, so that all given faults happen on a slow machine too.

The applications are among those that a process is cut off from. A cut that lets them connect is a finding.
"""

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from processes import Process, eventually, frozen

from chaos import resize
from chaos.network import Namespaces, is_reachable
from chaos.region import DATABASE, ETCD, SPARE, Cluster, Layout, Node, Region

PROCESS_KINDS = {"kill": 4, "restart": 2, "hang": 4, "upgrade": 2, "disturb": 2, "partition": 4}
CLUSTER_KINDS = {"reload": 1}
RESIZE_KINDS = {kind: 1 for kind in resize.KINDS}
WEIGHTS = {**PROCESS_KINDS, **CLUSTER_KINDS, **RESIZE_KINDS}
UPGRADES = ("upgrade", "disturb")
REMOVE_KILLED = "remove-killed"
# A successor connects within this time, unless the machine is busy.
DISTURB_S = 0.3
# The processes that are not ours, and the kinds of faults that they have.
FOREIGN = (DATABASE, ETCD)
FOREIGN_KINDS = ("kill", "hang", "partition")
DATABASE_SHARE = 0.05
ETCD_SHARE = 0.1
RELOAD_SKEW_S = 0.2
FIRST_S = 1.0
RECOVERY_S = 90.0


@dataclass(frozen=True)
class Fault:
    """One entry of the schedule; seconds since the run began."""

    kind: str
    target: str
    at_s: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}@{self.at_s:g}+{self.seconds:g}"

    @staticmethod
    def parse(text: str) -> "Fault":
        """The inverse of `str`."""
        kind, rest = text.split(":", 1)
        target, times = rest.rsplit("@", 1)
        at, seconds = times.split("+")
        if kind not in WEIGHTS:
            raise ValueError(f"{kind} is no kind of fault; there are {', '.join(WEIGHTS)}")
        return Fault(kind, target, float(at), float(seconds))

    def ends(self) -> list[str]:
        """The processes that it names."""
        return self.target.replace(">", "=").split("=")

    @property
    def name(self) -> str:
        """Its kind, and the target if that is no process of ours."""
        return f"{self.kind} of {self.target}" if self.target in FOREIGN else self.kind

    def cluster(self) -> str:
        """The name of the cluster that it is in."""
        return self.target.split("-")[0]

    def occupies(self) -> set[str]:
        """The process, part of a cluster, or link that has no other fault meanwhile."""
        if self.kind in RESIZE_KINDS:
            return {f"{resize.KINDS[self.kind]} of {self.cluster()}", self.target} - {self.cluster()}
        if self.target in FOREIGN:
            # Whether one that is started again serves is seen over the network.
            return {self.target}
        return {"link " + "=".join(sorted(self.ends())) if self.kind == "partition" else self.target}


@dataclass
class Event:
    """What became of a fault."""

    fault: Fault
    begin_s: float
    end_s: float | None = None
    recovered_s: float | None = None

    def absence(self) -> tuple[float, float]:
        """From when until when the target may not be heard of because of it; infinite while it lasts.

        After a cut, TCP sends what was lost again at the end of an interval that has been doubled each time: the last
        one is about as long as the cut.
        """
        if self.recovered_s is None:
            return self.begin_s, float("inf")
        return self.begin_s, self.recovered_s + (self.end_s - self.begin_s if self.fault.kind == "partition" else 0.0)


def overlap_s(spans: list[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """How much of a time lies in one of these spans, which may overlap."""
    covered_s, seen_s = 0.0, begin_s
    for first_s, last_s in sorted(spans):
        first_s, last_s = max(first_s, seen_s), min(last_s, end_s)
        if first_s < last_s:
            covered_s += last_s - first_s
            seen_s = last_s
    return covered_s


def schedule(
    seed: int, layout: Layout, kinds: list[str], seconds: float, gap_s: float, longest_s: float
) -> list[Fault]:
    """The faults of a seed: `gap_s` apart in the mean, up to `longest_s` long, none of which lasts beyond `seconds`."""
    rng = random.Random(f"faults {seed}")
    clusters = ["one", "two", "three", "four"][: layout.clusters]
    servers = [f"server-{number + 1}" for number in range(layout.servers)] + ["gutter"]
    servers += [SPARE] if layout.is_resized else []
    routers = [f"router-{number + 1}" for number in range(layout.routers)]
    faults, at = [], FIRST_S
    while True:
        at += rng.expovariate(1 / gap_s)
        lasts = round(min(rng.choice((0.3, 1.5, longest_s)) * rng.uniform(0.5, 1), seconds - at), 2)
        if lasts <= 0.1:
            return faults
        kind = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
        cluster = rng.choice(clusters)
        members = servers + routers
        if kind == REMOVE_KILLED:
            target = f"{cluster}-server-{rng.randint(1, layout.servers)}"
        elif kind in CLUSTER_KINDS or kind in RESIZE_KINDS:
            target = cluster
        elif kind in FOREIGN_KINDS and rng.random() < DATABASE_SHARE:
            target = DATABASE
        elif layout.history == ETCD and kind in FOREIGN_KINDS and rng.random() < ETCD_SHARE:
            target = ETCD
        elif kind not in UPGRADES and rng.random() < 1 / (len(members) + 1):
            target = "invalidator"
        elif kind == "partition":
            target = rng.choice(members)
            near, far = f"{cluster}-{rng.choice(routers)}", f"{cluster}-{rng.choice(members)}"
            target = rng.choice([f"{cluster}-{target}", f"{near}={far}", f"{near}>{far}", f"{far}>{near}"])
            if near == far:
                target = near
        else:
            target = f"{cluster}-{rng.choice(members)}"
        faults.append(Fault(kind, target, round(at, 2), lasts))


class Injector(threading.Thread):
    """Executes a schedule. Each fault has a thread of its own, since starting and upgrading take their time.

    A fault whose target is busy waits for it if `waits_for_targets`, and is left out otherwise.
    """

    def __init__(
        self,
        region: Region,
        faults: list[Fault],
        seed: int,
        report: Callable[[str], None],
        waits_for_targets: bool = False,
    ) -> None:
        super().__init__(name="injector")
        self.region, self.faults, self.seed, self.report = region, sorted(faults, key=lambda f: f.at_s), seed, report
        self.waits_for_targets = waits_for_targets
        self.events: list[Event] = []
        self.skipped: list[Fault] = []
        self.busy: set[str] = set()
        # Guards the three above; notified when a target is free again.
        self.changed = threading.Condition()
        self.is_over = threading.Event()
        self.start_s = 0.0

    def run(self) -> None:
        self.start_s = time.monotonic()
        running = []
        for fault in self.faults:
            if self.is_over.wait(max(0.0, self.start_s + fault.at_s - time.monotonic())):
                break
            if not self.waits_for_targets and not self.reserve(fault, 0.0):
                continue
            running.append(threading.Thread(target=self.execute, args=(fault,), name=str(fault)))
            running[-1].start()
        longest_s = max((fault.seconds for fault in self.faults), default=0.0)
        for thread in running:
            thread.join(longest_s + RECOVERY_S)
            if thread.is_alive():
                self.report(f"{thread.name} has not ended within {RECOVERY_S} s")

    def database_away_s(self, begin_s: float, end_s: float) -> float:
        """For how much of a time nothing could be heard of the database because of a fault of it."""
        with self.changed:
            spans = [event.absence() for event in self.events if event.fault.target == DATABASE]
        return overlap_s(spans, begin_s, end_s)

    def reserve(self, fault: Fault, timeout_s: float) -> bool:
        """Takes the fault's target once it is free; otherwise the fault is left out."""
        with self.changed:
            is_free = self.changed.wait_for(lambda: not fault.occupies() & self.busy, timeout_s)
            if is_free:
                self.busy |= fault.occupies()
            else:
                self.skipped.append(fault)
            return is_free

    def execute(self, fault: Fault) -> None:
        """One fault, from its beginning until its target serves again."""
        if self.waits_for_targets and not self.reserve(fault, RECOVERY_S):
            return
        event = Event(fault, time.monotonic())
        with self.changed:
            self.events.append(event)
        try:
            with apply(self.region, fault, random.Random(f"{fault} {self.seed}")):
                self.is_over.wait(max(0.0, event.begin_s + fault.seconds - time.monotonic()))
                event.end_s = time.monotonic()
        except Exception as error:  # noqa: BLE001 - whatever went wrong is a finding
            self.report(f"{fault}: {type(error).__name__}: {error}")
        event.end_s = event.end_s or time.monotonic()
        event.recovered_s = time.monotonic()
        with self.changed:
            self.busy -= fault.occupies()
            self.changed.notify_all()


def apply(region: Region, fault: Fault, rng: random.Random) -> contextlib.AbstractContextManager:
    """The fault holds inside the returned context."""
    if fault.kind == REMOVE_KILLED:
        return resize.removed_while_dead(region.cluster(fault.cluster()), region.node(fault.target), rng)
    if fault.kind in RESIZE_KINDS:
        return resize.changed(fault.kind, region.cluster(fault.target), rng)
    if fault.kind == "reload":
        return reloaded(region.cluster(fault.target), rng)
    if fault.kind == "partition":
        return isolated(region, fault) if len(fault.ends()) == 1 else partitioned(region.network, fault)
    if fault.target == DATABASE:
        return failed_foreign(region.database, region.database.accepts, fault.kind)
    if fault.target == ETCD:
        etcd = region.foreign(ETCD)
        return failed_foreign(etcd, etcd.answers, fault.kind)
    if fault.kind == "disturb":
        return disturbed_upgrade(region.node(fault.target), rng)
    return failed(region.node(fault.target), fault.kind)


@contextlib.contextmanager
def failed(node: Node, kind: str):
    """A process that is killed, restarted, stopped or upgraded."""
    if kind == "upgrade":
        node.upgrade()
        yield
        return
    fail, repair = {
        "kill": (node.kill, node.restart),
        "restart": (node.terminate, node.restart),
        "hang": (node.hang, node.resume),
    }[kind]
    fail()
    try:
        yield
    finally:
        repair()


@contextlib.contextmanager
def disturbed_upgrade(node: Node, rng: random.Random):
    """An upgrade in which one process is killed or stopped; one of them must serve in the end."""
    processes = node.start_successor()
    time.sleep(rng.uniform(0, DISTURB_S))
    victim, is_killed = rng.choice(processes), rng.random() < 0.5
    victim.send_signal(signal.SIGKILL if is_killed else signal.SIGSTOP)
    try:
        yield
    finally:
        victim.send_signal(signal.SIGCONT)
        node.resolve_upgrade(*processes)


@contextlib.contextmanager
def failed_foreign(process: Process, is_ready: Callable[[], bool], kind: str):
    """The database or etcd is killed or stopped."""
    if kind == "hang":
        with frozen(process):
            yield
        return
    process.kill()
    try:
        yield
    finally:
        process.start()
        process.wait_ready(is_ready, RECOVERY_S)


@contextlib.contextmanager
def reloaded(cluster: Cluster, rng: random.Random):
    """The routers get a configuration that differs in a pool without a route, one after another."""
    cluster.reloads += 1
    resize.write_configurations(cluster, rng, RELOAD_SKEW_S)
    yield


@contextlib.contextmanager
def partitioned(network: Namespaces, fault: Fault):
    """Links are cut."""
    names = fault.ends()
    if len(names) == 1:
        cuts = [lambda is_cut: network.isolate(names[0], is_cut)]
    else:
        near, far = names
        cuts = [lambda is_cut: network.cut(near, far, is_cut)]
        if "=" in fault.target:
            cuts.append(lambda is_cut: network.cut(far, near, is_cut))
    for cut in cuts:
        cut(True)
    try:
        yield
    finally:
        for cut in cuts:
            cut(False)


@contextlib.contextmanager
def isolated(region: Region, fault: Fault):
    """A process is cut off from all, and nothing can connect to it. The end is when something can again; but one of
    ours may have another fault then."""
    is_foreign = fault.target in FOREIGN
    place = region.foreign(fault.target) if is_foreign else region.node(fault.target).place
    with partitioned(region.network, fault):
        assert not is_reachable(place.host, place.port), f"{fault.target} is cut off, and accepts a connection"
        yield
    if is_foreign:
        eventually(
            lambda: is_reachable(place.host, place.port), f"{fault.target} accepts connections again", RECOVERY_S
        )


@dataclass
class Plan:
    """What a run injects: the schedule of a seed, or faults that are given."""

    seed: int = 1
    seconds: float = 30.0
    gap_s: float = 1.5
    longest_s: float = 6.0
    kinds: list[str] = field(default_factory=lambda: [*PROCESS_KINDS, *CLUSTER_KINDS])
    given: list[Fault] | None = None

    def faults(self, layout: Layout) -> list[Fault]:
        """The schedule."""
        if self.given is not None:
            return self.given
        return schedule(self.seed, layout, self.kinds, self.seconds, self.gap_s, self.longest_s) if self.kinds else []
