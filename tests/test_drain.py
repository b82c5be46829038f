"""A router that shuts down completes acknowledged work first."""

import json

import pytest
from processes import PROGRAMS, Process, answers, connect, free_port, stats


@pytest.fixture
def router(server, tmp_path):
    """A router whose deletes go on in the background for a while, as long as `late` says."""
    routers = []

    def start(late_ms: int) -> Process:
        late = {"type": "LatencyInjectionRoute", "child": "PoolRoute|main", "before_latency_ms": late_ms}
        configuration = {
            "pools": {"main": {"servers": [f"127.0.0.1:{server.port}"]}},
            "route": {
                "type": "OperationSelectorRoute",
                "default_policy": "PoolRoute|main",
                "operation_policies": {"delete": {"type": "AllAsyncRoute", "children": [late]}},
            },
        }
        port = free_port()
        command = [PROGRAMS / "lookaside-router", "-p", port, "--config-str", json.dumps(configuration)]
        routers.append(Process(f"router-{late_ms}", command, tmp_path))
        routers[-1].port = port
        routers[-1].wait_ready(lambda: answers(port))
        return routers[-1]

    yield start
    for process in routers:
        process.stop()


def test_background_work_completes_before_exit(router, server):
    # Far longer than the three lines behind the delete take, and shorter than a drain may.
    process = router(late_ms=3_000)
    client, direct = connect(process.port), connect(server.port)
    client.set("a", b"x")
    client.delete("a")
    values = stats(process.port)
    assert (values["background_running"], values["background_fan_outs"]) == ("1", "1")
    assert direct.get("a") == b"x", "no client has waited for the delete"
    assert process.stop() == 0
    assert direct.get("a") is None
