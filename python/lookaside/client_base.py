"""What `Client` and `AsyncClient` share: their settings, and the calls that wait for nothing."""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from lookaside._lookaside import ClientCore
from lookaside.connection_settings import ROUTER_OPTIONS, WINDOW, Hedge, RouterOptions, Tls, Udp, Window
from lookaside.plan import Plan

AnyClient = TypeVar("AnyClient", bound="ClientBase")

#: How long a call may take, in seconds: a router gets half of it, which is enough for it to give up a server (after a
#: second by default) and to ask the gutter.
TIMEOUT_S = 3.0
#: How long a miss waits for another client that loads the same key, in seconds.
WAIT_S = 1.0
#: For how long it is cached that there is no such row, in seconds.
ABSENT_TTL_S = 30.0
#: Values of this size or more are compressed, if compression is on.
COMPRESSION_BYTES_MIN = 1_024
#: How long a router may take to empty the servers of its cluster, in seconds.
FLUSH_TIMEOUT_S = 10.0


class ClientBase:
    """Settings of a client.

    `routers` are those of the cluster, as `HOST:PORT`. The first is used, and the next one if it does not answer. With
    `config` they may be left out: then they are those that the configuration names (`"routers"`), and change with it.

    With `config`, `file:PATH`, `etcd://HOST:PORT/KEY` or `etcds://HOST:PORT/KEY`, gets go to the servers of the
    routers' configuration directly, while a router permits it; all else goes through the routers. The constructor reads
    the configuration, for 10 s at most, and raises `ConfigurationError` if it cannot. Without `config_required` it
    waits for nothing: all goes through the routers until the configuration is there, as in a forked child; if it is the
    configuration that names them, calls fail until then, except in a child, which begins with its parent's.
    `routing_prefix` is that of the routers (`-R`), if they have one; `router_options` has further options of theirs.
    With `udp`, True or a `Udp`, these gets go by UDP: a lost datagram is a miss that is not filled. `window` bounds
    what is outstanding at all servers; `None` is no bound. With `hedge`, late lookups of `get_or_load` and its kind go
    to replicas, too.

    With `send_updates_directly`, sets, fills and deletes go to servers as well while a router permits it. That gives
    promises up: a delete that a server does not answer fails, and its caller must repeat it or leave it to the
    invalidator; one that is acknowledged while a pool changes its servers may miss a copy of the key.

    `tls` has the certificates by which routers, servers and etcd are connected to.

    `timeout` bounds how long each call waits for the cache, in seconds; a call can shorten it. A router that has not
    answered after half of it is given up, and a server that is read directly after a third. `pickle` stores objects
    that are no bytes, str or int as pickles instead of JSON, and reads pickles: only for caches to which trusted
    programs alone can write. `compression` is `"zlib"`, which pymemcache and pylibmc read too, `"zstd"` or `"lz4"`, for
    values of `compression_bytes_min` bytes or more.
    """

    _is_async: ClassVar[bool]
    _core: ClientCore

    def __init__(
        self,
        routers: Sequence[str] = (),
        *,
        config: str | None = None,
        config_required: bool = True,
        routing_prefix: str | None = None,
        router_options: RouterOptions = ROUTER_OPTIONS,
        udp: bool | Udp = False,
        window: Window | None = WINDOW,
        send_updates_directly: bool = False,
        tls: Tls | None = None,
        hedge: Hedge | None = None,
        timeout: float = TIMEOUT_S,
        pickle: bool = False,
        compression: str | None = None,
        compression_bytes_min: int = COMPRESSION_BYTES_MIN,
    ) -> None:
        self._core = ClientCore(
            # One alone may be a str.
            [routers] if isinstance(routers, str) else list(routers),
            config=config,
            config_required=config_required,
            routing_prefix=routing_prefix,
            router_options=router_options,
            udp=Udp() if udp is True else udp or None,
            window=window,
            send_updates_directly=send_updates_directly,
            tls=tls,
            hedge=hedge,
            timeout=timeout,
            pickle=pickle,
            compression=compression,
            compression_bytes_min=compression_bytes_min,
            is_async=self._is_async,
        )
        self._prepare()

    def _prepare(self) -> None:
        """The rest of the constructor."""

    def _with_core(self: AnyClient, core: ClientCore) -> AnyClient:
        """The same client for the calls of another core."""
        client = object.__new__(type(self))
        client._core = core
        return client

    def pool(self: AnyClient, prefix: str) -> AnyClient:
        """The same client for the keys that begin with `prefix`, which it puts in front of each key.

        The routers' configuration chooses the pool by it (`PrefixSelectorRoute`); a routing prefix, `/region/cluster/`,
        chooses the cluster. Connections and statistics are shared. `close` closes both.
        """
        return self._with_core(self._core.with_prefix(prefix))

    def with_own_statistics(self: AnyClient) -> AnyClient:
        """The same client, whose `stats` has the counters of its own calls only: those of a page, say.

        This client counts them too. All else is shared. `close` closes both.
        """
        return self._with_core(self._core.with_own_statistics())

    def plan(self) -> Plan:
        """A plan, to be filled with nodes and passed to `run_plan`."""
        return Plan()

    def stats(self) -> dict[str, int]:
        """The counters since the client was made, or forked: `gets`, `hits`, `misses`, `errors`, `fills_refused`..."""
        return self._core.stats()
