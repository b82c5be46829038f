"""Faults that change a pool's list of servers, and change it back.

| kind | what happens |
|---|---|
| `remove` | a server leaves the pool and returns with all that it held |
| `empty` | a server leaves the pool and returns emptied |
| `add` | a spare server joins at the end and leaves again |
| `exchange` | a spare server takes the place of a server and gives it back |
| `weigh` | a server gets less of the keys, and its share back |

The routers of a cluster learn a change at different moments.
"""

import contextlib
import random
import time

from processes import connect

from chaos.region import SPARE, Cluster

# The kinds, and the part of a pool that each of them changes: a part has one change at a time.
KINDS = {"remove": "members", "empty": "members", "add": "spare", "exchange": "spare", "weigh": "weights"}
SKEW_S = 0.5
LESS = 0.3


def write_configurations(cluster: Cluster, rng: random.Random, skew_s: float) -> None:
    """Gives the routers the cluster's configuration, in random order, up to `skew_s` apart."""
    for number in rng.sample(range(cluster.layout.routers), cluster.layout.routers):
        cluster.write_configuration(number)
        time.sleep(rng.uniform(0, skew_s))


@contextlib.contextmanager
def changed(kind: str, cluster: Cluster, rng: random.Random):
    """The pool is another one inside. Changes of different kinds overlap, so each undoes its own part only."""
    with cluster.lock:
        victim = rng.choice([name for name in cluster.members if name != SPARE])
        place = cluster.members.index(victim)
        change(kind, cluster, victim)
    write_configurations(cluster, rng, SKEW_S)
    try:
        yield
    finally:
        if kind == "empty":
            empty(cluster, victim)
        with cluster.lock:
            undo(kind, cluster, victim, place)
        write_configurations(cluster, rng, SKEW_S)


def change(kind: str, cluster: Cluster, victim: str) -> None:
    """Changes the members or weights."""
    if kind in ("remove", "empty"):
        cluster.members.remove(victim)
    elif kind == "add":
        cluster.members.append(SPARE)
    elif kind == "exchange":
        cluster.members[cluster.members.index(victim)] = SPARE
    else:
        cluster.weights[victim] = LESS


def undo(kind: str, cluster: Cluster, victim: str, place: int) -> None:
    """The inverse."""
    if kind in ("remove", "empty"):
        cluster.members.insert(place, victim)
    elif kind == "add":
        cluster.members.remove(SPARE)
    elif kind == "exchange":
        cluster.members[cluster.members.index(SPARE)] = victim
    else:
        del cluster.weights[victim]


def empty(cluster: Cluster, name: str) -> None:
    """Flushes a server. One that does not answer returns with what it has."""
    place = cluster.servers[name].place
    client = connect(place.port, host=place.host)
    with contextlib.suppress(OSError):
        client.flush_all()
    client.close()
