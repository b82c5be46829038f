"""How a client connects, where that is more than an address: TLS, and how it reads servers directly."""

import os
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Tls:
    """TLS to the routers, to servers of which the configuration demands it, and to etcd (`etcds://`).

    Files are PEM. They are read again for each connection, so renewed certificates are used.
    """

    #: The certificates of the authorities that sign those of routers, servers and etcd.
    authorities: str | os.PathLike[str]
    #: The client's own certificate, followed by the intermediate ones; None if none is asked for.
    certificate: str | os.PathLike[str] | None = None
    #: The certificate's private key; None if it is in the same file.
    key: str | os.PathLike[str] | None = None
    #: The name in the routers' certificates; None if it is the host of their address.
    server_name: str | None = None
    #: Whether the routers are connected to by TLS.
    routers: bool = True


@dataclass(frozen=True)
class Hedge:
    """Late lookups are sent to replicas, too; the first answer counts.

    Lookups are those of `get_or_load`, `get_or_load_many`, plans and cached functions, whose keys change by deletes.
    """

    #: The routing prefix of the replicas in the configuration, `/region/cluster/`: routes whose servers get every
    #: delete that those of the client get.
    replicas: str
    #: When a lookup is late, in seconds; None for the quantile.
    delay: float | None = None
    #: A lookup is late that takes longer than this share of the last ones did.
    quantile: float = 0.95
    #: The largest share of the lookups that may be sent twice.
    share_max: float = 0.05
    #: Whether `get` and `get_many` are hedged, too. Then the replicas must get every update: set, add, incr, decr,
    #: touch and delete. If they do not, a `get` may return a value that is older than the last `set`.
    plain_gets: bool = False


@dataclass(frozen=True)
class Udp:
    """Gets go to servers by UDP. A lost, late or reordered datagram is a miss that is not filled."""

    #: The UDP port of all servers; None if it is that of TCP.
    port: int | None = None
    #: How long a reply may take, in seconds. If it is too short, slow replies are counted as lost; if it is too long, a
    #: lost datagram delays its caller.
    timeout: float = 0.1


@dataclass(frozen=True)
class Window:
    """One window bounds what is outstanding at all servers together, so that their replies do not overrun the network.

    While a server hangs, requests to others may wait behind its own, until it is no longer used.
    """

    #: The initial size, in requests.
    initial: int = 100
    #: It never shrinks below this, in requests.
    min: int = 4
    #: It never grows beyond this, in requests. With `min` the same, the window is fixed.
    max: int = 10_000
    #: `"delay"`: it stays where replies take about twice as long as with few requests outstanding. `"loss"`: it grows
    #: until a request goes unanswered, as the paper's; where replies are sent again by TCP, far beyond what the network
    #: can take.
    control: Literal["delay", "loss"] = "delay"
    #: How long a request may wait for it, in seconds; then it fails. A third of the client's timeout at most.
    wait: float = 1.0
    #: Requests that may wait; one more fails.
    waiting_max: int = 100_000

    @classmethod
    def fixed(cls, size: int) -> "Window":
        """A window that always has this size, in requests."""
        return cls(initial=size, min=size, max=size)


@dataclass(frozen=True)
class RouterOptions:
    """Options of the routers' command line on which it depends what a configuration means.

    A client that reads servers directly needs those that the routers of its cluster have. The defaults are those of
    routers. Times are in seconds; where routers take 0 for none, it is None here.
    """

    #: `--server-timeout`. A server that is read directly has a third of the client's timeout at most.
    server_timeout: float = 1.0
    #: `--connect-timeout`; None if it is `server_timeout`.
    connect_timeout: float | None = None
    #: `--cross-region-timeout-ms`.
    cross_region_timeout: float | None = None
    #: `--cross-cluster-timeout-ms`.
    cross_cluster_timeout: float | None = None
    #: `--within-cluster-timeout-ms`.
    within_cluster_timeout: float | None = None
    #: `--send-invalid-route-to-default`.
    send_invalid_route_to_default: bool = False
    #: `--allow-only-gets`.
    allow_only_gets: bool = False
    #: `--disable-shard-split-route`.
    disable_shard_split_route: bool = False
    #: `--big-value-split-threshold`, in bytes; 0 for never.
    big_value_split_threshold: int = 0
    #: `--big-value-batch-size`, in chunks; 0 for all.
    big_value_batch_size: int = 10
    #: `--big-value-hide-reply-flag`. Where values are split, clients that know the flags of values need it.
    big_value_hide_reply_flag: bool = False
    #: `--leases`. Routers with it judge what a set without a miss does; the client need not know.
    leases: bool = False
    #: `--lease-miss-age`: how long this client remembers a miss, in seconds.
    lease_miss_age: int = 10
    #: `--lease-hot-miss-wait`.
    lease_hot_miss_wait: float = 0.1
    #: `--lease-return-stale`.
    lease_return_stale: bool = False


#: The window of a client by default.
WINDOW = Window()
#: The routers' options by default.
ROUTER_OPTIONS = RouterOptions()
