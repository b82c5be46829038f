"""Faults that change a pool's list of servers, and change it back.

| kind | what happens |
|---|---|
| `remove` | a server leaves the pool and returns with all that it held |
| `remove-killed` | a server is killed, leaves the pool, and returns: before or after it is started again |
| `empty` | a server leaves the pool and returns emptied |
| `twice` | two servers leave the pool within a second, and return within a second |
| `add` | a spare server joins at the end and leaves again |
| `exchange` | a spare server takes the place of a server and gives it back |
| `weigh` | a server gets less of the keys, and its share back |

The routers of a cluster learn a change at different moments. Each change draws how long moved keys are read from their
former owners.
"""

import asyncio
import contextlib
import random
import time

from processes import connect

from chaos.checker import Checker
from chaos.connections import Failure, read_stats
from chaos.region import SPARE, Cluster, Node, Region

# The kinds, and the part of a pool that each of them changes: a part has one change at a time.
KINDS = {
    "remove": "members", "remove-killed": "members", "empty": "members", "twice": "members",
    "add": "spare", "exchange": "spare", "weigh": "weights",
}  # fmt: skip
OF_MEMBERS = [kind for kind, part in KINDS.items() if part == "members"]
SKEW_S = 0.5
# Three routers get two changes within a second.
SKEW_TWICE_S = 0.15
LESS = 0.3
WARM_UPS_S = (0, 1, 3)
LOOK_S = 0.2
# What routers count of changes. A process that is restarted begins at 0.
COUNTED = (
    "configuration_changes", "covering_deletes", "servers_emptied", "purge_keys_checked", "purge_keys_removed",
    "former_owner_hits", "former_owner_fills",
)  # fmt: skip
# How often a router was found to say that etcd does not answer.
ETCD_AWAY = "looks at routers without etcd"


def write_configurations(cluster: Cluster, rng: random.Random, skew_s: float) -> None:
    """Gives the routers the cluster's configuration, in random order, up to `skew_s` apart."""
    for number in rng.sample(range(cluster.layout.routers), cluster.layout.routers):
        cluster.write_configuration(number)
        time.sleep(rng.uniform(0, skew_s))


@contextlib.contextmanager
def changed(kind: str, cluster: Cluster, rng: random.Random, victim: str | None = None):
    """The pool is another one inside. Changes of different kinds overlap, so each undoes its own part only."""
    skew_s = SKEW_TWICE_S if kind == "twice" else SKEW_S
    places = []
    for name in victims(kind, cluster, rng) if victim is None else [victim]:
        with cluster.lock:
            if name in cluster.members:
                places.append((name, cluster.members.index(name)))
                change(kind, cluster, name)
                cluster.warm_up_s = rng.choice(WARM_UPS_S)
        write_configurations(cluster, rng, skew_s)
    try:
        yield
    finally:
        for name, place in reversed(places):
            if kind == "empty":
                empty(cluster, name)
            with cluster.lock:
                undo(kind, cluster, name, place)
                cluster.warm_up_s = rng.choice(WARM_UPS_S)
            write_configurations(cluster, rng, skew_s)


@contextlib.contextmanager
def removed_while_dead(cluster: Cluster, node: Node, rng: random.Random):
    """A server is killed and leaves the pool. Half of them return to it before they are started again."""
    name = node.name.removeprefix(f"{cluster.name}-")
    node.kill()
    with contextlib.ExitStack() as stack:
        if rng.random() < 0.5:
            stack.callback(node.restart)
            stack.enter_context(changed("remove", cluster, rng, name))
        else:
            stack.enter_context(changed("remove", cluster, rng, name))
            stack.callback(node.restart)
        yield


def victims(kind: str, cluster: Cluster, rng: random.Random) -> list[str]:
    """The servers that a change is about, one change for each."""
    with cluster.lock:
        own = [name for name in cluster.members if name != SPARE]
    return rng.sample(own, min(2, len(own) - 1) if kind == "twice" else 1)


def change(kind: str, cluster: Cluster, victim: str) -> None:
    """Changes the members or weights."""
    if kind in OF_MEMBERS:
        cluster.members.remove(victim)
    elif kind == "add":
        cluster.members.append(SPARE)
    elif kind == "exchange":
        cluster.members[cluster.members.index(victim)] = SPARE
    else:
        cluster.weights[victim] = LESS


def undo(kind: str, cluster: Cluster, victim: str, place: int) -> None:
    """The inverse."""
    if kind in OF_MEMBERS:
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


async def count_changes(region: Region, checker: Checker) -> None:
    """Adds up what the routers count of changes, until it is cancelled."""
    await asyncio.gather(*(count_of(router, checker) for cluster in region.clusters for router in cluster.routers))


async def count_of(router: Node, checker: Checker) -> None:
    """The same for one router; what it counted in its last fraction of a second before a kill is not seen."""
    last = dict.fromkeys(COUNTED, 0)
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            figures = await read_stats(router.place)
        except Failure:
            continue
        if figures.get("resize_history") == "away":
            checker.counts[ETCD_AWAY] += 1
        for name in COUNTED:
            now = int(figures[name])
            checker.counts[name] += now - last[name] if now >= last[name] else now
            last[name] = now
