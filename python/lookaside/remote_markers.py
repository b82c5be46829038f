"""Remote markers (section 5 of "Scaling Memcache at Facebook"): the settings, and a write between its two ends.

docs/operating/remote_markers.md has what the cluster needs.
"""

from dataclasses import dataclass
from typing import Any, Literal

from lookaside._lookaside import WriteCore
from lookaside.errors import LookasideError
from lookaside.plan import values_in_order

#: The database that a loader is to read.
Source = Literal["master", "replica"]


@dataclass(frozen=True)
class RemoteMarkers:
    """How remote markers are named, how long they live, and what their loss means.

    All clients of a region must have the same `key_prefix` and `per_key`.
    """

    #: The names of markers begin with it; the routers send such keys to the pool of markers.
    key_prefix: str = "marker:"
    #: How long a marker lives if no replication deletes it, in seconds, up to 30 days. Reads may be older than their
    #: user's writes if the time from `begin_write` to the commit, and the lag of replication, are together more.
    ttl: int = 3_600
    #: One marker for all writes of a key, as in the paper: the replication of one write deletes the marker that another
    #: still needs.
    per_key: bool = False
    #: Whether a write goes on if a marker cannot be set; then `unmarked` has its key.
    accept_lag: bool = False
    #: Where a key is read from if the pool does not say whether it has a marker. With `"replica"` reads may be older
    #: than their user's writes while a server of the pool is down.
    when_unknown: Source = "master"


class BegunWrite:
    """A write whose markers are set. Its transaction at the master must name `keys`."""

    def __init__(self, core: WriteCore) -> None:
        self._core = core

    @property
    def keys(self) -> list[str]:
        """The keys to name in the transaction: those that it makes stale, then their markers."""
        return self._core.keys

    @property
    def markers(self) -> list[str]:
        """The markers among `keys`, for a transaction whose other keys are named by row rules."""
        return self._core.markers

    @property
    def unmarked(self) -> dict[str, LookasideError]:
        """The keys whose markers could not be set, each with the error: empty unless `accept_lag` is set.

        Until the replica has the write, a read of them may be older than it; `RegionalClient.read_master` is not.
        """
        return self._core.unmarked

    def sql_comment(self) -> str:
        """`keys` as a comment for a statement of MariaDB or MySQL. A `ValueError` if a key cannot be in a comment."""
        comment = self._core.sql_comment()
        if comment is None:
            wrong = next(key for key in self.keys if "/*" in key or "*/" in key)
            raise ValueError(
                f"the key {wrong!r} has /* or */, which cannot be in a comment: name the keys by rows of the outbox"
            )
        return comment


def keys_by_source(sources: dict[Any, Source]) -> list[tuple[Source, list[Any]]]:
    """The keys of each database that has some."""
    databases: tuple[Source, ...] = ("master", "replica")
    groups = [(source, [key for key, of in sources.items() if of == source]) for source in databases]
    return [(source, keys) for source, keys in groups if keys]


def values_by_key(keys: list[Any], loaded: Any) -> dict[Any, Any]:
    """What a loader returned for keys. A key that is not in its dictionary has no row: None."""
    values = values_in_order(keys, loaded)
    if len(values) != len(keys):
        raise ValueError(f"the loader returned {len(values)} values for {len(keys)} keys")
    return dict(zip(keys, values, strict=True))
