"""The faults of `make delete-latency`, and which of them a late delete belongs to.

In each region one fault follows the other: a process is killed, restarted or cut off, for up to LONGEST_S, and started
or joined again. A fault has ended when its process answers again. What it held up may take RECOVERY_S longer: TCP waits
about as long again as a cut has lasted before it sends again. Then the next fault has not begun yet, so that there are
times at which nothing explains a late delete:

    fault         recovery      nothing     fault
    |-------------|-------------|           |---------
      up to 4 s     5 s           1 to 4 s
"""

import random
from dataclasses import dataclass

from chaos.faults import Event, Fault

from experiments.cross_region.regions import LAYOUT

KINDS = ("kill", "restart", "partition")
FIRST_S = 3.0
SHORTEST_S, LONGEST_S = 0.3, 4.0
RECOVERY_S = LONGEST_S + 1.0
# From the end of a fault to the beginning of the next one.
REST_S = (RECOVERY_S + 1.0, RECOVERY_S + 4.0)
# A delete may have been on its way when a fault began; its time is known as precisely as the metrics are read.
UNDER_WAY_S = 1.0
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


def explained_age_max_s(events: list[Event]) -> float:
    """The greatest age at which an old value can be explained: a delete waits for one fault, and for its recovery."""
    lasted = (event.recovered_s - event.begin_s for event in events if event.recovered_s is not None)
    return max(lasted, default=0.0) + RECOVERY_S


def is_explained(late: Late, event: Event) -> bool:
    """Whether the deletes can have waited for this fault.

    They were committed while it held, or were on their way when it began, or were committed in its recovery; and its
    recovery was not over when they were found to be late.
    """
    committed_s = late.at_s - late.age_s
    over_s = (late.at_s if event.recovered_s is None else event.recovered_s) + RECOVERY_S
    is_in_time = event.begin_s - UNDER_WAY_S <= committed_s and event.begin_s <= late.at_s <= over_s
    return is_in_time and event.fault.cluster() == late.cluster


def cause(late: Late, events: list[Event]) -> str:
    """The faults of the cluster's region that the deletes can have waited for."""
    of_region = [event for event in events if event.fault.cluster() == late.cluster]
    if late.age_s > explained_age_max_s(of_region):
        return NO_FAULT
    found = {describe(event.fault) for event in of_region if is_explained(late, event)}
    return " and ".join(sorted(found)) or NO_FAULT


def after_recovery_s(late: Late, events: list[Event]) -> float:
    """How long before that time the last fault of the cluster's region had ended; 0 if one held."""
    begun = [event for event in events if event.fault.cluster() == late.cluster and event.begin_s <= late.at_s]
    if not begun:
        return float("inf")
    ended = max(event.recovered_s or late.at_s for event in begun)
    return max(0.0, late.at_s - ended)
