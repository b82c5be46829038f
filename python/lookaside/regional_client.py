"""The client of a replica region, for functions that block."""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar, cast

from lookaside._lookaside import WriteCore
from lookaside.client import Client
from lookaside.client_base import ABSENT_TTL_S, WAIT_S
from lookaside.plan import Key, Ttl, ttl_of, values_in_order
from lookaside.remote_markers import BegunWrite, RemoteMarkers, Source, keys_by_source, values_by_key

T = TypeVar("T")


class RemoteWrite(BegunWrite):
    """A write that has begun. As a context manager it finishes at the end, also after an exception."""

    def __init__(self, client: Client, core: WriteCore) -> None:
        super().__init__(core)
        self._client = client

    def finish(self, *, timeout: float | None = None) -> None:
        """Deletes the keys in the local cluster. Call it after the commit, also if its outcome is unknown.

        After an error it may be called again; until it succeeds, or the replica has the write, reads may be older.
        """
        self._client._core.update(self._client._core.finish_write(self._core), timeout)

    def abort(self, *, timeout: float | None = None) -> None:
        """Removes the markers. Only for a transaction that has certainly not committed."""
        self._client._core.update(self._client._core.abort_write(self._core), timeout)

    def __enter__(self) -> "RemoteWrite":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish()


class RegionalClient:
    """A client in a replica region, whose users read their own writes although replication lags.

    Its loaders get the name of the database to read, `"master"` or `"replica"`. It shares connections and statistics
    with `client`, whose own calls look for no markers.
    """

    def __init__(self, client: Client, markers: RemoteMarkers | None = None) -> None:
        self._client = client._with_core(client._core.with_remote_markers(markers or RemoteMarkers()))

    def begin_write(self, keys: Iterable[Key], *, timeout: float | None = None) -> RemoteWrite:
        """Sets the markers of keys that a transaction is about to make stale, in two round trips.

        A `MarkerNotSetError` says that one could not be set: nothing is to be written then.
        """
        core = self._client._core
        return RemoteWrite(self._client, core.update(core.begin_write(keys), timeout))

    def get_or_load(
        self,
        key: Key,
        loader: Callable[[Source], T],
        *,
        ttl: float | None = None,
        wait: float = WAIT_S,
        absent_ttl: float = ABSENT_TTL_S,
        timeout: float | None = None,
    ) -> T:
        """As `Client.get_or_load`; `loader` gets the name of the database. A miss costs one round trip more, or two."""

        def load_one(_: list[Any], source: Source) -> list[T]:
            return [loader(source)]

        return cast(T, self._client._core.read((key,), load_one, (ttl,), False, wait, absent_ttl, timeout)[0])

    def get_or_load_many(
        self,
        keys: Iterable[Key],
        loader: Callable[[list[Any], Source], Any],
        *,
        ttl: Ttl = None,
        wait: float = WAIT_S,
        absent_ttl: float = ABSENT_TTL_S,
        timeout: float | None = None,
    ) -> dict[Any, Any]:
        """As `Client.get_or_load_many`; `loader` gets the keys of one database, and its name."""
        names = list(dict.fromkeys(keys))

        def load(missing: list[Any], source: Source) -> list[Any]:
            return values_in_order(missing, loader(missing, source))

        ttls = [ttl_of(ttl, name) for name in names] if callable(ttl) else (ttl,)
        values = self._client._core.read(names, load, ttls, False, wait, absent_ttl, timeout)
        return dict(zip(names, values, strict=True))

    def read_past_cache(
        self, keys: Iterable[Key], loader: Callable[[list[Any], Source], Any], *, timeout: float | None = None
    ) -> dict[Any, Any]:
        """The values of keys from the database that their markers name: nothing is looked up or stored in the cache.

        `loader` gets the keys of one database, and its name, as that of `get_or_load_many`; its values are returned as
        they are. A write whose markers are set is seen once it has committed, in each cluster of the region.
        """
        sources = self.find_sources(keys, timeout=timeout)
        self._client._core.count_past_cache(list(sources), False)
        values: dict[Any, Any] = {}
        for source, names in keys_by_source(sources):
            values |= values_by_key(names, loader(names, source))
        return {name: values[name] for name in sources}

    def read_master(self, keys: Iterable[Key], loader: Callable[[list[Any], Source], Any]) -> dict[Any, Any]:
        """The values of keys from the master, whether or not they have markers, past the cache.

        For a user whose last write of them has no marker (`RemoteWrite.unmarked`), until the replica has that write:
        the cache may keep the row from before it, and its misses may be read from the replica. `loader` is that of
        `get_or_load_many`, and is called once, with `"master"`, if there are keys.
        """
        names = list(dict.fromkeys(keys))
        self._client._core.count_past_cache(names, True)
        return values_by_key(names, loader(names, "master")) if names else {}

    def find_sources(self, keys: Iterable[Key], *, timeout: float | None = None) -> dict[Any, Source]:
        """The database to read each key from past the cache.

        For a query over several rows, say, which must go to the master if one of them does. A value that is loaded by
        this must not be cached, as no lease was taken before. A key whose markers are not known in time is read from
        the database of `RemoteMarkers.when_unknown`.
        """
        names = list(dict.fromkeys(keys))
        core = self._client._core
        sources = core.update(core.find_sources(names), timeout)
        return dict(zip(names, sources, strict=True))

    def stats(self) -> dict[str, int]:
        """As `Client.stats`, and the counters of markers: `markers.marked`, `markers.found` and others."""
        return self._client.stats()
