"""How a client connects, where that is more than an address: TLS, and replicas for late lookups."""

import os
from dataclasses import dataclass


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
