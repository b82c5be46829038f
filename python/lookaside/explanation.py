"""Where the requests of a key go, as a router of the cluster describes it."""

import re
from dataclasses import dataclass

# A line of the router's `explain`: indentation, a route or a server, the request and its reply.
_LINE = re.compile(r"^(?P<indent> *)(?P<at>\S+) +(?P<request>.+?) -> (?P<reply>.*)$")
_POOL = re.compile(r"(?:Pool|Hash|\w+)Route\|(?P<pool>[^|]+)$")


@dataclass(frozen=True)
class Explanation:
    """The route of one request, if all servers are healthy."""

    #: The key as it is sent, with the prefix of the client's pool.
    key: str
    #: The verb: `get` or `delete`.
    verb: str
    #: The servers that the request reaches, in order, as `host:port`.
    servers: tuple[str, ...]
    #: The names of the pools on its way, the outermost first.
    pools: tuple[str, ...]
    #: Each route and server on its way, as the router prints it.
    text: str

    @property
    def server(self) -> str | None:
        """The first server; None if the key has no route."""
        return self.servers[0] if self.servers else None

    @property
    def pool(self) -> str | None:
        """The pool that is asked first; None if there is none on the way."""
        return self.pools[0] if self.pools else None

    def __str__(self) -> str:
        return self.text


def parse_explanation(full_key: bytes, verb: str, reply: bytes) -> Explanation:
    """The explanation in a router's reply to `explain(VERB,KEY)`."""
    key, text = full_key.decode(errors="replace"), reply.decode(errors="replace")
    servers: list[str] = []
    pools: list[str] = []
    for line in filter(None, map(_LINE.match, text.splitlines())):
        pool = _POOL.match(line["at"])
        if pool:
            pools.append(pool["pool"])
        elif "Route" not in line["at"] and re.search(r":\d+$|^/", line["at"]):
            servers.append(line["at"])
    return Explanation(key, verb, tuple(dict.fromkeys(servers)), tuple(dict.fromkeys(pools)), text)


def explanation_key(full_key: bytes, verb: str) -> bytes:
    """The key by which a router is asked."""
    return b"__mcrouter__.explain(%s,%s)" % (verb.encode(), full_key)
