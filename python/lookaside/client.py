"""The client for functions that block."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from lookaside.cached import KeyTemplate
from lookaside.client_base import ABSENT_TTL_S, FLUSH_TIMEOUT_S, WAIT_S, ClientBase
from lookaside.errors import LookasideError
from lookaside.explanation import Explanation, explanation_key, parse_explanation
from lookaside.plan import Key, Level, Loader, Plan, PlanResults, Ttl, ttl_of, values_in_order

T = TypeVar("T")
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class CachedFunction(Protocol[P, R_co]):
    """A function whose results are cached."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key of the result of a call."""

    def delete(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Deletes the result of a call; whether there was one."""


class Client(ClientBase):
    """A look-aside client that blocks. Threads may share one; it may be used after a fork."""

    _is_async = False

    def get(self, key: Key, default: Any = None, *, timeout: float | None = None) -> Any:
        """The value of a key, or `default` on a miss. It takes no lease: to fill a miss, use `get_or_load`."""
        return self._core.get(key, default, timeout)

    def get_many(self, keys: Iterable[Key], *, timeout: float | None = None) -> dict[Any, Any]:
        """The values that are cached, by their keys, in one round trip.

        A key whose server does not answer, or refuses, is missing, as if it were not cached. If no server answers, that
        is an error.
        """
        return self._core.get_many(keys, timeout)

    def get_or_load(
        self,
        key: Key,
        loader: Callable[[], T],
        *,
        ttl: float | None = None,
        stale: bool = False,
        wait: float = WAIT_S,
        absent_ttl: float = ABSENT_TTL_S,
        timeout: float | None = None,
    ) -> T:
        """The value of a key from the cache, or else from `loader`, whose value is cached for `ttl` seconds.

        Of all clients that miss a key at once, one loads it, under a lease. The others wait for it, `wait` seconds at
        most, and then load it without caching it. With `stale`, they take the value from before the delete meanwhile,
        if there is one. A value that was read before a delete is not cached after it.

        `None` from the loader means that there is no such row, which is cached for `absent_ttl` seconds. `timeout`
        bounds how long the call waits for the cache in all, and so for other clients' loads, too; the time of its own
        loader does not count. A cache that fails, or takes longer, is no error: then the value is loaded.
        """

        def load_one(_: list[Any], _source: Any) -> list[T]:
            return [loader()]

        return cast(T, self._core.read((key,), load_one, (ttl,), stale, wait, absent_ttl, timeout)[0])

    def get_or_load_many(
        self,
        keys: Iterable[Key],
        loader: Loader,
        *,
        ttl: Ttl = None,
        stale: bool = False,
        wait: float = WAIT_S,
        absent_ttl: float = ABSENT_TTL_S,
        timeout: float | None = None,
    ) -> dict[Any, Any]:
        """The values of keys, each as by `get_or_load`, but together.

        `loader` gets the keys that must come from the database, and returns their values as a dictionary, in which
        absent rows may be missing, or in the order of the keys. It may be called again for keys that another client was
        loading. `ttl` may be a function of a key.
        """
        names = list(dict.fromkeys(keys))

        def load(missing: list[Any], _source: Any) -> list[Any]:
            return values_in_order(missing, loader(missing))

        ttls = [ttl_of(ttl, name) for name in names] if callable(ttl) else (ttl,)
        values = self._core.read(names, load, ttls, stale, wait, absent_ttl, timeout)
        return dict(zip(names, values, strict=True))

    def set(self, key: Key, value: Any, *, ttl: float | None = None, timeout: float | None = None) -> None:
        """Stores a value for `ttl` seconds, or without end.

        It may overwrite a newer value by an older one: for rows of a database use `get_or_load` and `delete`.
        """
        self._core.update(self._core.set(key, value, ttl), timeout)

    def set_many(
        self, values: Mapping[Any, Any], *, ttl: float | None = None, timeout: float | None = None
    ) -> dict[Any, LookasideError]:
        """Stores the values of a mapping in one round trip, each as `set` does.

        Returns the keys that were not stored, each with the error that `set` would have raised; nothing is raised for
        them. Of a key whose server does not answer in time it is unknown whether it was stored.
        """
        return self._core.update(self._core.set_many(values, ttl), timeout)

    def add(self, key: Key, value: Any, *, ttl: float | None = None, timeout: float | None = None) -> bool:
        """Stores a value if there is none; whether it was stored. A client that is loading the key does not store then.

        A value from before a delete that is kept for `stale` is none.
        """
        return self._core.update(self._core.add(key, value, ttl), timeout)

    def incr(self, key: Key, delta: int = 1, *, timeout: float | None = None) -> int | None:
        """Adds to an int from 0 to 2**64 - 1, and returns the sum; it wraps. `None` if there is no value.

        A value that is no such int is a `RefusedError`. After another error it is unknown whether it was added.
        """
        return self._core.update(self._core.incr(key, delta), timeout)

    def decr(self, key: Key, delta: int = 1, *, timeout: float | None = None) -> int | None:
        """Subtracts, as `incr` adds; it stops at 0."""
        return self._core.update(self._core.decr(key, delta), timeout)

    def touch(self, key: Key, ttl: float | None, *, timeout: float | None = None) -> bool:
        """Lets a value expire in `ttl` seconds, or never; whether there is one."""
        return self._core.update(self._core.touch(key, ttl), timeout)

    def delete(self, key: Key, *, timeout: float | None = None) -> bool:
        """Deletes a key, after the database was changed; whether there was a value.

        No value that was read before is cached afterwards.
        """
        return self._core.update(self._core.delete(key), timeout)

    def delete_many(self, keys: Iterable[Key], *, timeout: float | None = None) -> dict[Any, bool]:
        """Deletes keys in one round trip, each as `delete` does; for each, whether there was a value.

        All are tried. If one may not be deleted, that is an error: delete them again.
        """
        return self._core.update(self._core.delete_many(keys), timeout)

    def flush_all(self, *, timeout: float = FLUSH_TIMEOUT_S) -> None:
        """Empties all servers of the cluster, whatever the prefix of this client's pool is.

        Routers refuse it (`RefusedError`) unless they run with `--enable-flush-cmd`.
        """
        self._core.flush_all(timeout)

    def cached(
        self,
        key: str,
        *,
        ttl: float | None = None,
        stale: bool = False,
        wait: float = WAIT_S,
        absent_ttl: float = ABSENT_TTL_S,
    ) -> Callable[[Callable[P, T]], CachedFunction[P, T]]:
        """Caches the results of a function. `key` names its parameters in braces: `cached("user:{id}", ttl=60)`.

        The function gets two attributes: `key(...)`, the key of a call, and `delete(...)`, which deletes its result.
        """

        def decorate(function: Callable[P, T]) -> CachedFunction[P, T]:
            if inspect.iscoroutinefunction(function):
                raise TypeError(f"{function.__qualname__} is a coroutine function: use AsyncClient.cached")
            template = KeyTemplate(key, function)

            @functools.wraps(function)
            def read(*args: P.args, **kwargs: P.kwargs) -> T:
                return self.get_or_load(
                    template.key(*args, **kwargs),
                    lambda: function(*args, **kwargs),
                    ttl=ttl,
                    stale=stale,
                    wait=wait,
                    absent_ttl=absent_ttl,
                )

            return cast(CachedFunction[P, T], template.add_attributes(read, self.delete))

        return decorate

    def run_plan(
        self,
        plan: Plan,
        *,
        ttl: Ttl = None,
        stale: bool = False,
        wait: float = WAIT_S,
        absent_ttl: float = ABSENT_TTL_S,
    ) -> PlanResults:
        """Reads the values of all nodes of a plan: one round trip for each level, and one for what was loaded.

        Nodes that name the same key share its value, which the loader of the first of them loads, for its ttl. `ttl` is
        for nodes without one of their own. Values of different ttls are stored in a round trip for each.
        """
        results = PlanResults()
        for nodes in list(plan.levels()):
            level = Level.of(nodes, results)

            def load(missing: list[Any], level: Level = level) -> dict[Any, Any]:
                values: dict[Any, Any] = {}
                for node, keys in level.to_load(missing):
                    values.update(zip(keys, values_in_order(keys, node.load(keys)), strict=True))
                return values

            values = self.get_or_load_many(
                level.keys, load, ttl=level.ttls(ttl), stale=stale, wait=wait, absent_ttl=absent_ttl
            )
            level.store(values, results)
        return results

    def explain(self, key: str, verb: str = "get") -> Explanation:
        """Which pools and servers a request for a key reaches, as a router describes it.

        `RefusedError` if the client was given a server in place of a router.
        """
        full_key = self._core.full_key(key)
        return parse_explanation(full_key, verb, self._core.ask_router(explanation_key(full_key, verb)))

    def close(self) -> None:
        """Ends the client's thread and its connections."""
        self._core.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
