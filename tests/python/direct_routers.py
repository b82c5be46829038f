"""Routers whose clients read servers directly, and pools that are replicas of each other."""

import json

from processes import PROGRAMS, Process, answers, eventually, free_port


class Router(Process):
    """A router with a spool."""

    def __init__(self, tmp_path, source: str, *arguments: str) -> None:
        self.port, self.config = free_port(), source
        command = [
            PROGRAMS / "lookaside-router", "-p", self.port, "--config", source, "--num-proxies", "1",
            "--server-timeout", "300", "--probe-timeout-initial", "50", "--spool", tmp_path / f"spool-{self.port}",
            *arguments,
        ]  # fmt: skip
        super().__init__(f"router-{self.port}", command, tmp_path)
        self.wait_ready(lambda: answers(self.port))

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"127.0.0.1:{self.port}"


def start_router_of_replicas(tmp_path, servers) -> Router:
    """A router whose clients read the first server. Server N is a replica, behind `/west/pN/`, without updates."""
    pools = {f"p{index}": {"servers": [f"127.0.0.1:{server.port}"]} for index, server in enumerate(servers)}
    file = tmp_path / "replicas.json"
    routes = [{"aliases": [f"/west/{pool}/"], "route": f"PoolRoute|{pool}"} for pool in pools]
    file.write_text(json.dumps({"pools": pools, "routes": routes}))
    return Router(tmp_path, f"file:{file}", "-R", "/west/p0/")


def wait_permitted(cache) -> None:
    """Until reads go to servers."""
    eventually(lambda: cache.stats()["direct.is_permitted"] == 1, "the client reads servers directly")
