"""A look-aside cache client with leases.

    from lookaside import Client

    cache = Client(["127.0.0.1:5000"])
    user = cache.get_or_load("user:42", lambda: load_user(42), ttl=60)
    cache.delete("user:42")          # after COMMIT

`AsyncClient` has the same calls for asyncio. docs/clients/python.md shows what there is.
"""

from lookaside._lookaside import __version__
from lookaside.async_client import AsyncClient
from lookaside.async_regional_client import AsyncRegionalClient, AsyncRemoteWrite
from lookaside.client import Client
from lookaside.connection_settings import Hedge, RouterOptions, Tls, Udp, Window
from lookaside.errors import (
    CacheUnavailableError,
    ClosedError,
    ConfigurationError,
    DeadlineExceededError,
    DecodeError,
    EncodeError,
    InexpressibleValueError,
    InvalidKeyError,
    LookasideError,
    MarkerNotSetError,
    NotStoredError,
    RefusedError,
)
from lookaside.explanation import Explanation
from lookaside.plan import CycleError, Node, Plan, PlanResults
from lookaside.regional_client import RegionalClient, RemoteWrite
from lookaside.remote_markers import RemoteMarkers, Source

__all__ = [
    "AsyncClient",
    "AsyncRegionalClient",
    "AsyncRemoteWrite",
    "CacheUnavailableError",
    "Client",
    "ClosedError",
    "ConfigurationError",
    "CycleError",
    "DeadlineExceededError",
    "DecodeError",
    "EncodeError",
    "Explanation",
    "Hedge",
    "InexpressibleValueError",
    "InvalidKeyError",
    "LookasideError",
    "MarkerNotSetError",
    "Node",
    "NotStoredError",
    "Plan",
    "PlanResults",
    "RefusedError",
    "RegionalClient",
    "RemoteMarkers",
    "RemoteWrite",
    "RouterOptions",
    "Source",
    "Tls",
    "Udp",
    "Window",
    "__version__",
]
