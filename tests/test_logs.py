"""The daemons' logs: one event a line, as text or as JSON, and their levels."""

import json

from processes import PROGRAMS, Cluster, Process, Server, answers, connect, eventually, free_port


def events(process: Process) -> list[dict]:
    """Every event of a log in JSON, the last one only once its line is whole."""
    return [json.loads(line) for line in process.log().splitlines(keepends=True) if line.endswith("\n")]


def is_good(event: dict) -> bool:
    """Whether an event has the fields that every event has."""
    return {"timestamp", "level", "message", "target"} <= event.keys() and event["timestamp"].endswith("Z")


def test_a_router_s_log_events_have_named_fields(tmp_path):
    cluster = Cluster("one", tmp_path, ("--log-format", "json"))
    try:
        address = f"127.0.0.1:{cluster.servers[0].port}"
        cluster.servers[0].kill()
        for number in range(20):
            cluster.client().get(f"key:{number}")
        cluster.configuration_path.write_text('{\n"pools": "\\"odd\\"')
        eventually(lambda: any("refused" in event["message"] for event in events(cluster.router)), "it is refused")
        logged = events(cluster.router)
        assert all(is_good(event) for event in logged)
        (serving,) = (event for event in logged if event["message"] == "serving")
        assert (serving["threads"], serving["source"]) == (1, str(cluster.configuration_path))
        (refused,) = (event for event in logged if "refused" in event["message"])
        assert refused["level"] == "ERROR" and "line 2" in refused["why"]
        (taken_out,) = (event for event in logged if event.get("server") == address)
        assert taken_out["level"] == "WARN"
    finally:
        cluster.stop()


def test_a_servers_and_an_invalidators_events(tmp_path):
    server = Server("server", tmp_path, "--log-format", "json")
    port, journal = free_port(), tmp_path / "journal.db"
    command = [
        PROGRAMS / "lookaside-invalidator", "--source", f"sqlite://{journal}", "--cluster", "one=127.0.0.1:1",
        "--state-dir", tmp_path / "state", "--listen", f"127.0.0.1:{port}", "--log-format", "json",
    ]  # fmt: skip
    invalidator = Process("invalidator", command, tmp_path)
    try:

        def router_events() -> list[dict]:
            return [event for event in events(invalidator) if event.get("router") == "127.0.0.1:1"]

        # What the invalidator calls a server is a router to the operator, and was called a server in the log.
        eventually(lambda: len(router_events()) >= 2, "it logs that its router is down")
        assert any("router does not answer" in event["message"] for event in router_events())
        # The only router of its cluster.
        assert not any("go to the cluster's other routers" in event["message"] for event in router_events())
        assert not any("server" in event or "server" in event["message"] for event in events(invalidator))
        for process in (server, invalidator):
            process.stop()
            logged = events(process)
            assert logged and all(is_good(event) for event in logged), process.log()
    finally:
        server.stop()
        invalidator.stop()


def test_clients_change_a_router_s_log_level(cluster):
    def debug_lines() -> int:
        return cluster.router.log().count("DEBUG") + cluster.router.log().count("TRACE")

    client = cluster.client()
    assert client.get("__mcrouter__.verbosity") == b"0" and debug_lines() == 0
    assert client.raw_command("verbosity 2") == b"OK"
    assert client.get("__mcrouter__.verbosity") == b"2"
    assert answers(cluster.port)
    eventually(lambda: debug_lines() > 0, "a disconnect is logged")
    assert connect(cluster.port).raw_command("verbosity 0") == b"OK"
    assert client.get("__mcrouter__.verbosity") == b"0"


def test_an_unknown_format_is_refused(tmp_path):
    for program in ("lookaside-server", "lookaside-router", "lookaside-invalidator"):
        process = Process(program, [PROGRAMS / program, "--log-format", "xml"], tmp_path)
        assert process.running.wait(20) in (2, 3) and "text or json" in process.log(), process.log()
