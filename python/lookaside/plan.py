"""Reads of values whose keys depend on other values, in as few round trips as their dependencies allow (section 3.1 of
"Scaling Memcache at Facebook").

    user:42 --+--> friends:42 --> user:7, user:9 ...      three levels, three round trips, however many keys
              '--> photos:42  --> photo:1, photo:2 ...

A plan runs level by level: the keys of all nodes of a level travel together, and those of one server in one request.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from lookaside.errors import LookasideError

#: The most keys that an error names.
SHOWN_KEYS_MAX = 3

Key = str | bytes
#: Returns the values of keys, as a mapping, or in the order of the keys.
Loader = Callable[[list[Any]], Any]
#: Seconds, None for a value that does not expire, or a function that returns one of these for a key.
Ttl = float | None | Callable[[Any], float | None]


class CycleError(LookasideError, ValueError):
    """Nodes of the plan depend on each other. Nothing was sent."""


@dataclass(frozen=True, eq=False)
class Node:
    """Keys to read, and what they depend on."""

    keys: Sequence[Key] | Callable[..., Iterable[Key]]
    load: Loader
    after: tuple["Node", ...]
    #: `...` for that of the plan.
    ttl: Ttl | EllipsisType


class PlanResults(Mapping[Node, dict[Any, Any]]):
    """The values of each node, by their keys."""

    def __init__(self) -> None:
        self._values: dict[Node, dict[Any, Any]] = {}

    def __getitem__(self, node: Node) -> dict[Any, Any]:
        return self._values[node]

    def __iter__(self) -> Iterator[Node]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Plan:
    """Nodes, and the order in which they are read."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def node(
        self,
        keys: Sequence[Key] | Callable[..., Iterable[Key]],
        load: Loader,
        *,
        after: Iterable[Node] = (),
        ttl: Ttl | EllipsisType = ...,
    ) -> Node:
        """Adds a node.

        `keys` are its keys, or a function that returns them from the values of the nodes in `after`: it gets one
        dictionary for each of them. `load` gets the keys that must come from the database, and returns their values as
        a dictionary or in that order. They are cached for `ttl` seconds; without it, for the `ttl` of `run_plan`.
        """
        node = Node(keys, load, tuple(after), ttl)
        self.nodes.append(node)
        return node

    def levels(self) -> Iterator[list[Node]]:
        """The nodes, each level after those that it depends on."""
        left = list(self.nodes)
        known: set[Node] = set()
        while left:
            ready = [node for node in left if known.issuperset(node.after)]
            if not ready:
                raise CycleError(f"{len(left)} nodes of the plan depend on each other, or on nodes of another plan")
            yield ready
            known.update(ready)
            left = [node for node in left if node not in known]


@dataclass
class Level:
    """The keys of one level, each once, with the node that loads it."""

    keys: dict[Key, Node]
    nodes: list[tuple[Node, list[Key]]]

    @staticmethod
    def of(nodes: list[Node], results: PlanResults) -> "Level":
        """The keys of nodes whose dependencies have been read."""
        level = Level({}, [])
        for node in nodes:
            given = node.keys(*(results[other] for other in node.after)) if callable(node.keys) else node.keys
            keys = list(dict.fromkeys(given))
            level.nodes.append((node, keys))
            for key in keys:
                level.keys.setdefault(key, node)
        return level

    def ttls(self, default: Ttl) -> Ttl:
        """The ttl of each key: that of the node that loads it, or else the default."""
        if all(isinstance(node.ttl, EllipsisType) for node, _ in self.nodes):
            return default

        def of(key: Key) -> float | None:
            ttl = self.keys[key].ttl
            return ttl_of(default if isinstance(ttl, EllipsisType) else ttl, key)

        return of

    def to_load(self, missing: list[Key]) -> Iterator[tuple[Node, list[Key]]]:
        """The missing keys, by the node that loads them."""
        by_node: dict[Node, list[Key]] = {}
        for key in missing:
            by_node.setdefault(self.keys[key], []).append(key)
        return iter(by_node.items())

    def store(self, values: Mapping[Key, Any], results: PlanResults) -> None:
        """Records the values of its nodes."""
        for node, keys in self.nodes:
            results._values[node] = {key: values[key] for key in keys}


def ttl_of(ttl: Ttl, key: Key) -> float | None:
    """The ttl of a key."""
    return ttl(key) if callable(ttl) else ttl


def values_in_order(keys: list[Key], loaded: Any) -> list[Any]:
    """What a loader returned, in the order of the keys. A key that is not in a dictionary has no row: None."""
    if isinstance(loaded, Mapping):
        return [loaded.get(key) for key in keys]
    if not isinstance(loaded, Iterable) or isinstance(loaded, str | bytes | bytearray):
        # Letters are no values, although there may be as many.
        raise TypeError(
            f"the loader of {describe(keys)} returned a {type(loaded).__name__}; expected a dictionary, or the values"
            " in the order of the keys"
        )
    values = list(loaded)
    if len(values) != len(keys):
        raise ValueError(f"the loader returned {len(values)} values for {len(keys)} keys: {describe(keys)}")
    return values


def describe(keys: list[Key]) -> str:
    """Keys, for a message that must stay short."""
    shown = ", ".join(repr(key) for key in keys[:SHOWN_KEYS_MAX])
    return shown if len(keys) <= SHOWN_KEYS_MAX else f"{shown} and {len(keys) - SHOWN_KEYS_MAX} others"
