"""The faults of `make delete-latency`, and which of them a late delete belongs to.

In each region one fault follows the other: a process is killed, restarted or cut off, for up to LONGEST_S, and started
or joined again. A fault has ended when its process answers again. What it held up may take RECOVERY_S longer: TCP waits
about as long again as a cut has lasted before it sends again.
"""

import random
from dataclasses import dataclass

from chaos.faults import Event, Fault

from experiments.cross_region.regions import LAYOUT

KINDS = ("kill", "restart", "partition")
FIRST_S = 3.0
SHORTEST_S, LONGEST_S = 0.3, 4.0
REST_S = (2.0, 5.0)
RECOVERY_S = LONGEST_S + 1.0
NO_FAULT = "no fault"


def targets(region: str) -> list[str]:
    """The processes of a region that faults hit, by name."""
    servers = [f"{region}-server-{number + 1}" for number in range(LAYOUT.servers)]
    routers = [f"{region}-router-{number + 1}" for number in range(LAYOUT.routers)]
    invalidators = [f"{region}-invalidator-{number + 1}" for number in range(LAYOUT.invalidators)]
    return [*servers, f"{region}-gutter", *routers, *invalidators]


def schedule(region: str, seed: int, kinds: tuple[str, ...], seconds: float) -> list[Fault]:
    """The faults of a region, none of which lasts beyond `seconds`: the same for the same seed."""
    rng, at, faults = random.Random(f"faults of {region} {seed}"), FIRST_S, []
    while kinds:
        lasts = round(rng.uniform(SHORTEST_S, LONGEST_S), 2)
        if at + lasts > seconds:
            return faults
        faults.append(Fault(rng.choice(kinds), rng.choice(targets(region)), round(at, 2), lasts))
        at += lasts + rng.uniform(*REST_S)
    return faults


def describe(fault: Fault) -> str:
    """The kind of a fault and of its process, such as `kill router`."""
    return f"{fault.kind} {fault.target.split('-')[1]}"


@dataclass(frozen=True)
class Late:
    """Old values that one look at the metrics has found: at `at_s`, of deletes of that age."""

    at_s: float
    cluster: str
    age_s: int
    count: int


def cause(late: Late, events: list[Event]) -> str:
    """The faults of the cluster's region that held at that time, or had ended less than RECOVERY_S before."""
    found = {
        describe(event.fault)
        for event in events
        if event.fault.cluster() == late.cluster
        and event.begin_s <= late.at_s <= (event.recovered_s or late.at_s) + RECOVERY_S
    }
    return " and ".join(sorted(found)) or NO_FAULT


def after_recovery_s(late: Late, events: list[Event]) -> float:
    """How long before that time the last fault of the cluster's region had ended; 0 if one held."""
    begun = [event for event in events if event.fault.cluster() == late.cluster and event.begin_s <= late.at_s]
    if not begun:
        return float("inf")
    ended = max(event.recovered_s or late.at_s for event in begun)
    return max(0.0, late.at_s - ended)
